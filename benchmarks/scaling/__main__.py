"""``python -m benchmarks.scaling ranks|workers|model|page``: measure points into the record, or write the page anew."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch

from benchmarks.scaling import points
from benchmarks.scaling.page import page
from benchmarks.tables import LARGE, RESULTS, ROOT, replace_file

RECORD, PAGE = RESULTS / "scaling.json", ROOT / "docs" / "scaling.md"


def read(file: Path) -> dict[str, Any]:
    """Return a record, an empty one where there is none yet."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def main(arguments: list[str] | None = None) -> None:
    """Do what was asked for; every point goes into the record at once."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("what", choices=["ranks", "workers", "model", "page"])
    parser.add_argument("--counts", type=int, nargs="+", help="ranks (default 1 2 3) or workers (default 1 2)")
    parser.add_argument("--parameters", type=float, nargs="+", default=[1e8], help="of a decoder, about")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each measure of a decoder")
    parser.add_argument("--record", type=Path, default=RECORD)
    asked = parser.parse_args(arguments)
    record = read(asked.record)
    if asked.what == "ranks":
        record["ranks"] = [points.of_ranks(count) for count in asked.counts or (1, 2, 3)]
    elif asked.what == "workers":
        record["workers"] = [points.of_workers(count) for count in asked.counts or (1, 2)]
        record["cores"] = len(os.sched_getaffinity(0))
    for parameters in asked.parameters if asked.what == "model" else ():
        found = points.of_model(
            parameters,
            torch.device(asked.device),
            samples=asked.samples,
            tokens=asked.tokens,
            seconds=asked.seconds,
        )
        print(json.dumps(found), flush=True)
        record["models"] = [*record.get("models", ()), found]
        replace_file(asked.record, json.dumps(record, indent=1) + "\n")
    if asked.what != "page":
        replace_file(asked.record, json.dumps(record, indent=1) + "\n")
    if asked.record == RECORD:
        replace_file(PAGE, page(record, read(LARGE)))


if __name__ == "__main__":
    main()

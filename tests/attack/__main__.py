"""Run the corpus: python -m tests.attack --networks 2000 --seed 1 --processes 2 --json FILE."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections import Counter
from pathlib import Path

import torch

from tests.attack.record import judged, record_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1, help="the first network is seed × 1,000,000")
    parser.add_argument("--only", type=int, help="one network, by its own seed")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where the record goes")
    given = parser.parse_args()
    first = given.seed * 1_000_000
    seeds = [given.only] if given.only is not None else range(first, first + given.networks)
    start = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(given.processes, torch.set_num_threads, (1,)) as pool:
        found = []
        for one in pool.imap(judged, seeds, chunksize=1 if given.only is not None else 10):
            found.append(one)
            for line in one["lines"]:
                print(line, flush=True)
    record = record_of(list(seeds), found)
    minutes = (time.perf_counter() - start) / 60
    print(f"{record['networks']} networks, {record['compared']} numbers, {minutes:.1f} min: {record['failed']} failed")
    for (what, hazard), count in sorted(
        Counter((f["what"], f["traits"]["hazard"]) for f in record["failures"]).items()
    ):
        print(f"{what:10} {hazard:24} {count}")
    if given.json is not None:
        given.json.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")
    return int(bool(record["failed"]))


if __name__ == "__main__":
    raise SystemExit(main())

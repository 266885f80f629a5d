"""Measure the networks of the site's typical values: python -m tests.typical [--only NAME …] --json FILE.

With ``--only`` the other networks of the file stay in it as they are.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import numpy
import torch

import spiritlevel
from tests.typical.networks import NETWORKS
from tests.typical.recording import GROUPS, record_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(NETWORKS), metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--json", type=Path, help="where the record goes")
    given = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(given.json.read_text(encoding="utf-8")) if given.only and given.json else {}
    began, records = time.process_time(), {each["name"]: each for each in kept.get("networks", [])}
    for name in given.only or NETWORKS:
        records[name] = record_of(NETWORKS[name])
        for state, found in records[name]["states"].items():
            print(f"{name:16} {state:16} loss {found['loss']:.4g}, accuracy {found['accuracy']:.2%}", flush=True)
    versions = {"spiritlevel": spiritlevel.__version__, "torch": torch.__version__, "numpy": numpy.__version__}
    record = {
        "command": "python -m tests.typical --json docs/results/typical.json",
        "versions": {**versions, "python": platform.python_version()},
        "seconds": round(kept.get("seconds", 0) + time.process_time() - began),
        "groups": GROUPS,
        "networks": [records[name] for name in NETWORKS if name in records],
    }
    if given.json is not None:
        given.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

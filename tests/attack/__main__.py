"""Run the corpus: python -m tests.attack --networks 2000 --seed 1 --json FILE."""

from __future__ import annotations

import argparse
import collections
import json
import time
import warnings
from pathlib import Path

import torch

from tests.attack.corpus import make_case
from tests.attack.verdict import judge


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1, help="the first network is seed × 1,000,000")
    parser.add_argument("--only", type=int, help="one network, by its own seed")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    first = given.seed * 1_000_000
    seeds = [given.only] if given.only is not None else range(first, first + given.networks)
    failures, compared, times = [], collections.Counter(), collections.Counter()
    start = time.perf_counter()
    for seed in seeds:
        began = time.perf_counter()
        case = make_case(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = judge(case)
            except Exception as error:  # the truth itself could not be had: the corpus is at fault
                print(seed, "no truth", type(error).__name__, error, case.traits)
                continue
        compared.update(found.compared)
        failures += found.failures
        times[str(case.traits["hazard"])] += time.perf_counter() - began
        for failure in found.failures:
            print(
                seed,
                failure.what,
                failure.quantity,
                failure.got,
                failure.truth,
                failure.label,
                failure.error,
                flush=True,
            )
    bad = {failure.seed for failure in failures}
    seconds = time.perf_counter() - start
    print(f"{len(list(seeds))} networks, {dict(compared)} numbers, {len(bad)} networks with failures, {seconds:.0f} s")
    by = collections.Counter((f.what, str(f.traits["hazard"])) for f in failures)
    for (what, hazard), count in sorted(by.items()):
        print(f"{what:10} {hazard:24} {count}")
    if given.json is not None:
        record = {"seeds": list(seeds), "compared": dict(compared), "failures": [f.record() for f in failures]}
        given.json.write_text(json.dumps(record, indent=1, default=str), encoding="utf-8")
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main())

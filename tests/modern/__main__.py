"""Measure the zoo: python -m tests.modern [--only NAME …] [--samples 1000] [--seeds K] [--cover K] [--json FILE].

A gradient pass is the median CPU time of one forward and backward pass over the same samples, in the batches that the
measurement takes, on one thread; every sample's Hessian trace is part of what is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch

from tests.modern.coverage import coverage
from tests.modern.measured import Measured, measured
from tests.modern.page import MEDIAN, MOST, page_of
from tests.modern.verdict import COVERED, Verdict
from tests.modern.zoo import NETWORKS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(NETWORKS), metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1, help="measurements of every network, with seeds 0, 1, …")
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "spiritlevel-modern")
    parser.add_argument("--cover", type=int, default=0, metavar="K", help="seeds on few samples, for coverage")
    parser.add_argument("--page", type=Path, help="where the record goes as a page")
    parser.add_argument("--json", type=Path, help="where the record goes")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found, records = [], []
    for name in given.only or NETWORKS:
        found.append(measured(NETWORKS[name], given.samples, given.seeds, given.dtype, given.cache))
        print("\n".join(lines_of(found[-1])), flush=True)
        records.append(record_of(found[-1]))
        if given.cover:
            covered = coverage(NETWORKS[name], given.cover, cache=given.cache).summary
            records[-1] |= {"coverage": covered, "coverage_seeds": given.cover}
            told = ", ".join(f"{what} {one['covered']:.0%} of {one['count']}" for what, one in covered.items())
            print(f"    covered over {given.cover} seeds: {told}", flush=True)
    print("\n".join(summary_of(found)))
    if given.json is not None:
        given.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    if given.page is not None:
        given.page.write_text(page_of(records), encoding="utf-8")
    return int(any(one.wrong or one.refused for one in found))


def lines_of(one: Measured) -> list[str]:
    """A network's line, and one for every measure with its first seed."""
    shape = "×".join(map(str, one.outputs))
    head = f"{one.name:20} P = {one.parameters:5,}  outputs {shape:8} loss {one.losses[0]:.3g} → {one.losses[1]:.3g}"
    if one.refused:
        return [f"{head}  refused: {one.refused}"]
    spent = ", ".join(f"{number:.0f} {kind}" for kind, number in one.spent[0].items())
    passes = statistics.median(one.passes)
    lines = [f"{head}  {passes:,.0f} passes (gradient {one.gradient * 1e3:.2f} ms; counted {spent})"]
    lines += [_line(verdict) for verdict in one.verdicts[0]]
    layers, samples = _spread(list(one.layers[0].values())), _spread(one.sample_traces[0])
    lines.append(f"    {'layers’ traces':24} {layers};  samples’ traces {samples}")
    lines += [f"    WRONG {_line(verdict).strip()}" for verdict in one.wrong]
    return lines


def _line(verdict: Verdict) -> str:
    if verdict.truth is None:
        return f"    {verdict.measure:24} not applicable"
    place = "exact" if verdict.z is None else f"z = {verdict.z:+.2f}"
    if verdict.interval is not None:
        low, high = verdict.interval
        place = f"certified within {(high - low) / 2 / abs(verdict.value):.1e}"
    bar = f" ± {verdict.stderr:.2g}" if verdict.z is not None else ""
    told = "" if verdict.status == "ok" else f"  {verdict.status}: {verdict.reason}"
    bound = f" ({verdict.how.replace('_', ' ')})" if verdict.how.endswith("bound") else ""
    return f"    {verdict.measure:24} {verdict.value:.6g}{bar}{bound}  truth {verdict.truth:.6g}  {place}{told}"


def _spread(errors: list[float]) -> str:
    covered = sum(abs(z) <= COVERED for z in errors)
    return f"{covered} of {len(errors)} within {COVERED} errors, at most {max(map(abs, errors)):.1f}"


def summary_of(found: list[Measured]) -> list[str]:
    """Coverage of every estimated measure, and the costs against what is asked."""
    ran = [one for one in found if one.passes]
    if not ran:
        return ["nothing was measured"]
    lines = []
    verdicts = [verdict for one in ran for of_seed in one.verdicts for verdict in of_seed]
    errors = {name: [v.z for v in verdicts if v.measure == name and v.counted] for name in ran[0].truth.values}
    errors["layers' traces"] = [z for one in ran for of_seed in one.layers for z in of_seed.values() if z != 0.0]
    errors["samples' traces"] = [z for one in ran for of_seed in one.sample_traces for z in of_seed if z != 0.0]
    for name, zs in errors.items():
        if zs:
            covered = sum(abs(z) <= COVERED for z in zs) / len(zs)
            furthest = max(map(abs, zs))
            lines.append(f"{name:24} {len(zs):5} estimates, {covered:.1%} within {COVERED}, at most {furthest:.1f}")
    costs = {one.name: statistics.median(one.passes) for one in ran}
    above = [name for name, cost in costs.items() if cost > MOST]
    median = statistics.median(costs.values())
    lines.append(f"median {median:,.0f} gradient passes, samples' traces included (asked for: {MEDIAN})")
    lines.append(f"above {MOST}: {len(above)} of {len(costs)}" + (f": {', '.join(above)}" if above else ""))
    lines.append(f"wrong: {sum(len(one.wrong) for one in found)}; refused: {sum(bool(one.refused) for one in found)}")
    return lines


def record_of(one: Measured) -> dict[str, object]:
    """A network's line for the record, without the Hessian's diagonal."""
    record = asdict(one)
    record["truth"].pop("diagonal")
    return record


if __name__ == "__main__":
    raise SystemExit(main())

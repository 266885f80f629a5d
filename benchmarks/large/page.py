"""From the record of the large networks to its section of ``docs/performance.md``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from benchmarks.timing import number

INTRODUCTION = """
Trained for a moment on real tokens or images, then measured in float32 on samples they were trained on, each network
with `python -m benchmarks.large_models`. A *gradient pass* is one gradient of the mean loss over the same samples in
full float32, in which the products are made too; *memory* is the most bytes held, model and data included, over those
of a float32 training step with AdamW on the same samples. *Off* is the distance from our value of the trace, or from
our certified eigenvalue. The exact trace is out of reach: ours is held against a second seed and against plain probes,
and the distance is given in their joint standard errors, z. Peers run as they are documented; *to our error* is the
time that probes of theirs need for a standard error as small as ours, by the inverse root of their number.
"""
_PEERS = ("hessian-eigenthings", "curvlinops", "BackPACK", "PyHessian")


def section(record: dict[str, Any]) -> str:
    """Return the large networks' part of the page."""
    machine = record["machine"]
    peers = ", ".join(f"{name} {version}" for name, version in machine["peers"].items() if version)
    lines = [f"## Large networks, {machine['device']}", INTRODUCTION]
    lines += [f"Python {machine['python']}, torch {machine['torch']}." + (f" Peers: {peers}." if peers else ""), ""]
    if record.get("smoke"):
        lines += ["**A trial with tiny sizes: none of these numbers means anything.**", ""]
    for entry in record["networks"]:
        lines += [*_network(entry), ""]
    return "\n".join(lines)


def _network(entry: dict[str, Any]) -> Iterator[str]:
    rows, unit = entry["rows"], entry["rows"].get("gradient", {})
    yield f"### {entry.get('title', entry['name'])}"
    yield ""
    if "parameters" in entry:
        training = entry["training"]
        yield (
            f"{entry['parameters']:,} parameters, {entry['provider']}; {entry['samples']:,} samples: {entry['data']}. "
            f"Trained for {training['steps']} steps, loss {number(training['first_loss'])} to "
            f"{number(training['last_loss'])}."
        )
    if "seconds" in unit:
        yield (
            f"A gradient takes {number(unit['seconds'])} s in full float32, {number(unit['default_seconds'])} s with "
            "torch's own settings."
        )
    if "step_peak_bytes" in unit:
        yield f"A training step holds {_gibibytes(unit['step_peak_bytes'])}."
    yield ""
    yield from _table("trace", _traces(rows, unit))
    yield from _table("largest eigenvalue", _tops(rows, unit))
    yield from _defaults(rows.get("default", {}))
    for name, row in rows.items():
        for key in ("failed", "stopped", "left_out", "trace_reason", "top_reason"):
            if row.get(key) and not (key == "failed" and row.get("stopped")):
                part = name + {"trace_reason": ", trace", "top_reason": ", largest eigenvalue"}.get(key, "")
                yield f"{part}: {row[key]}."
                yield ""
    notes = {note for name in ("trace", "top", "default") for note in rows.get(name, {}).get("notes", [])}
    for note in sorted(notes):
        yield f"Said with it: {note}"
        yield ""


def _table(title: str, body: list[list[str]]) -> Iterator[str]:
    if body:
        head = [title, "value", "error", "seconds", "gradient passes", "memory", "how"]
        yield "| " + " | ".join(head) + " |"
        yield "|" + "---|" * len(head)
        yield from ("| " + " | ".join(cells) + " |" for cells in body)
        yield ""


def _traces(rows: dict[str, Any], unit: dict[str, Any]) -> list[list[str]]:
    body = []
    ours, truth = rows.get("trace", {}), rows.get("truth", {})
    if math.isfinite(ours.get("value", math.nan)):
        error = "exact" if ours["how"] == "exact" else f"± {_of(ours['stderr'], ours['value'])}"
        body.append(["Spiritlevel", number(ours["value"]), error, *_costs(ours, unit), _status(ours)])
    second = truth.get("second_seed", {})
    if "value" in second:
        error = "exact" if second["how"] == "exact" else f"± {_of(second['stderr'], second['value'])}"
        costs = _costs(second, unit)
        body.append(["Spiritlevel, another seed", number(second["value"]), error, *costs, _apart(second)])
    probes = truth.get("probes")
    if probes:
        error = f"± {_of(probes['stderr'], probes['value'])}"
        how = f"{probes['count']} probes; {_apart(probes)}"
        body.append(["plain probes", number(probes["value"]), error, *_costs(probes, unit), how])
    for name in _PEERS:
        row = rows.get(name, {})
        if "trace_value" not in row:
            continue
        off = f", off {_percent(row['trace_off_ours'])}" if "trace_off_ours" in row else ""
        how = f"{row['trace_words']}; {row['trace_products']} products" + (" (cut short)" * row["trace_cut_short"])
        if "seconds_to_goal" in row:
            goal = "5%" if row["goal_is"].startswith("5%") else "our error"
            how += f"; to {goal}: {number(row['probes_to_goal'])} probes, {number(row['seconds_to_goal'])} s"
        costs = _costs({**row, "seconds": row["trace_seconds"]}, unit)
        error = f"± {_of(row['trace_stderr'], row.get('our_trace_value') or row['trace_value'])}{off}"
        body.append([name, number(row["trace_value"]), error, *costs, how])
    return body


def _tops(rows: dict[str, Any], unit: dict[str, Any]) -> list[list[str]]:
    body = []
    ours = rows.get("top", {})
    if math.isfinite(ours.get("value", math.nan)):
        how = f"{ours.get('products')} products; {_status(ours)}"
        if "seconds_before_first_product" in ours:
            how += f"; {number(ours['seconds_before_first_product'])} s before the first product"
        error = f"residual {_of(ours.get('residual'), ours['value'])}"
        body.append(["Spiritlevel", number(ours["value"]), error, *_costs(ours, unit), how])
    for name in _PEERS:
        row = rows.get(name, {})
        if "top_value" in row:
            off = f"off {_percent(row['top_error'])}" if "top_error" in row else ""
            costs = _costs({**row, "seconds": row["top_seconds"]}, unit)
            how = f"{row['top_words']}; at most {row['top_products']} products"
            body.append([name, number(row["top_value"]), off, *costs, how])
    return body


def _defaults(row: dict[str, Any]) -> Iterator[str]:
    if not row.get("measures"):
        return
    costs = f"{number(row['seconds'])} s"
    if "deadline" in row:
        costs += f" of at most {number(row['deadline'])}"
    if "passes" in row:
        costs += f", {number(row['passes'])} gradient passes"
    if "peak_over_training_step" in row:
        costs += f", {number(row['peak_over_training_step'])} training steps' memory"
    yield f"The default group: {costs}."
    yield ""
    yield "| measure | value | error | status |"
    yield "|---|---|---|---|"
    for name, found in row["measures"].items():
        error = f"± {_of(found['stderr'], found['value'])}" if found["stderr"] else ""
        if found["interval"]:
            error = " to ".join(number(end) for end in found["interval"])
        error = error or found["how"]
        shown = found["value"] is not None and math.isfinite(found["value"])
        cells = [f"`{name}`", number(found["value"]), error] if shown else [f"`{name}`", "–", ""]
        yield "| " + " | ".join([*cells, _status(found)]) + " |"
    yield ""


def _costs(row: dict[str, Any], unit: dict[str, Any]) -> list[str]:
    passes = number(row["seconds"] / unit["seconds"]) if "seconds" in unit else "–"
    known = "peak_bytes" in row and "step_peak_bytes" in unit
    memory = number(row["peak_bytes"] / unit["step_peak_bytes"]) if known else "–"
    return [number(row["seconds"]), passes, memory]


def _status(row: dict[str, Any]) -> str:
    words = str(row["status"]).replace("_", " ")
    return f"{words}: {row['reason']}" if row.get("reason") else words


def _apart(row: dict[str, Any]) -> str:
    finite = [z for z in row.get("z", []) if math.isfinite(z)]
    return f"z = {finite[0]:.1f}" if finite else "–"


def _of(error: float | None, value: float) -> str:
    return _percent(abs(error / value)) if error is not None and value else "–"


def _percent(share: float) -> str:
    return f"{number(100 * share)}%" if math.isfinite(share) else "–"


def _gibibytes(count: float) -> str:
    return f"{number(count / 2**30)} GiB"

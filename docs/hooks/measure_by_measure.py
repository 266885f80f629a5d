"""The page that says of each measure how to read it, from declarations, interpretations and stored records."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
from docs.hooks.material import ROOT
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.interpretation import CONFIDENCE, FEWER_SAMPLES, INFLUENCES, INFLUENCES_IN_SHORT
from spiritlevel.measures.interpretations import interpretation_of
from spiritlevel.measures.registry import MEASURES
from spiritlevel.results.numerals import MISSING, percent, plain, with_error
from spiritlevel.values.symmetries import SYMMETRIES

PAGE = ROOT / "docs" / "measure-by-measure.md"
RECORD = ROOT / "docs" / "results" / "typical.json"
STUDIES = ROOT / "docs" / "results" / "records"
_BOUNDS = {"lower_bound": "≥ ", "upper_bound": "≤ "}
_SHORT = {True: "same", False: "moves", None: "not known"}
_MODE = "BatchNorm's mode"

_HEAD = """# Measure by measure

Generated from the declarations and interpretations in `src/spiritlevel/measures/` and from stored records; do not
edit by hand (`make docs` writes it). [How to read your results](how-to-read.md) has what holds for all measures,
[Measures](measures.md) their formulas, costs and settings.

## What moves a measure

[Measures](measures.md) says what rescaling does to each, and an audit tries it on your network. Here *same* means that
the value stays under what the column says, *moves* that it may change. Tests show each answer on a small network.

- *labels*: {labels}. What they do not move cannot know whether the network is right.
- *copying units*: {copied_units}. What it moves cannot be compared across widths.
- *units of inputs*: {input_units}. What they move cannot be compared on data that were scaled differently.
- *confidence*: what becomes of the value when training goes on once every sample is right, when the outputs are
  scaled up, or without label smoothing.
- *fewer samples*: what becomes of it on average on fewer of the same samples. What is too large or too small on few
  can be compared at the same number only.

BatchNorm's mode, training or evaluation, moves every measure that looks at samples.
"""
_NETWORKS = """
## The networks of the tables below

Each is trained from seed 0 on the first images of its data, in float64 ({training}, without momentum), and measured on
{samples} of them, a draw stratified by class. *Interpolating* networks were trained until every image was right. Losses
and accuracies are those of all training images.
"""
_VALUES = """
Below, ± is one standard error of computation and samples together (where a measure has none over samples, from the
spread over {groups} groups of them); ≥ and ≤ mark bounds, — a measure that is not defined there. An asterisk marks a
search or a sampling that its budget ended before its tolerance was met. Correlations are Pearson's r with the
generalisation gap over the networks of a study, with its 95% interval; in the studies of random labels both
normalised sharpnesses are those of the loss of standardised outputs (Tsuzuku et al. 2019, eq. (20)).

**These values are no thresholds.** They say which order of magnitude to expect and how far training moves it. No
value makes one network flat or sharp: a measure only orders two networks, on the same data.
"""


def page() -> str:
    """Return the page."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    correlations = correlations_in(STUDIES)
    samples = {state["samples"] for network in record["networks"] for state in network["states"].values()}
    assert len(samples) == 1, samples
    parts = [
        _HEAD.format(**INFLUENCES),
        *_what_moves(),
        _NETWORKS.format(samples=samples.pop(), training=_training(record)[0][0]),
        *_networks(record),
        _VALUES.format(groups=record["groups"]),
        *(line for own in MEASURES.values() for line in _section(own, record, correlations.get(own.name, []))),
        "## How the record was made",
        "",
        f"    {record['command']}",
        "",
        f"About {record['seconds']} seconds of one CPU core; "
        + ", ".join(f"{name} {version}" for name, version in record["versions"].items())
        + ". The record is [results/typical.json](results/typical.json).",
    ]
    return "\n".join(parts).rstrip() + "\n"


def _table(head: list[str], rows: list[list[str]], right: bool = False) -> list[str]:
    rule = "|---|" + ("---:|" if right else "---|") * (len(head) - 1)
    return [f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _what_moves() -> list[str]:
    rows = []
    for name in MEASURES:
        read = interpretation_of(MEASURES[name])
        assert read is not None
        answers = [_SHORT[read.answer(which)] for which in INFLUENCES]
        rows.append([f"[`{name}`](#{name})", *answers, read.confidence, read.fewer_samples])
    return _table(["measure", *INFLUENCES_IN_SHORT.values(), "confidence", "fewer samples"], rows)


def _training(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Return how each network was trained, which is the same for all, and how long where it was brief."""
    parts = [network["training"].partition("; briefly: ") for network in record["networks"]]
    assert len({how for how, _, _ in parts}) == 1, parts
    return [(how, long) for how, _, long in parts]


def _networks(record: dict[str, Any]) -> list[str]:
    networks = record["networks"]
    states = list(networks[0]["states"])
    about = [
        [f"`{each['name']}`", each["words"], f"{each['parameters']:,}", each["data"], brief]
        for each, (_, brief) in zip(networks, _training(record), strict=True)
    ]
    stands = [
        [f"`{each['name']}`", *(f"{plain(at['loss'], 3)}, {percent(at['accuracy'])}" for at in each["states"].values())]
        for each in networks
    ]
    return [
        *_table(["network", "what it is", "parameters", "data", "briefly"], about),
        *_table(["training loss, accuracy", *states], stands, right=True),
    ]


def _section(own: Measure, record: dict[str, Any], correlations: list[list[str]]) -> list[str]:
    lines = [f"## `{own.name}`", "", f"**{own.title}.** {_direction(own)} [Definition](measures.md#{own.name}).", ""]
    lines += [f"- {label}: {text}" for label, text in said_of(own).items()]
    measured = [network for network in record["networks"] if own.name in network["states"]["initialised"]["measures"]]
    if measured:
        states = list(measured[0]["states"])
        rows = [
            [f"`{each['name']}`", *(value_of(at["measures"][own.name]) for at in each["states"].values())]
            for each in measured
        ]
        lines += ["", *_table(["network", *states], rows, right=True)]
    else:
        lines += ["", "It is not among `papers`, so the record has no values of it.", ""]
    if correlations:
        lines += _table(["correlation with the gap", "r [95%]", "networks"], correlations)
    return lines


def _direction(own: Measure) -> str:
    return f"Sharper when {own.sharper_when}." if own.sharper_when else "Larger is neither flatter nor sharper."


def said_of(own: Measure) -> dict[str, str]:
    """Return what a measure's declaration and interpretation say of reading it, by label."""
    read = interpretation_of(own)
    assert read is not None
    answers = {each.words: own.invariances[each.name] for each in SYMMETRIES.values()}
    answers |= {words: read.answer(which) for which, words in INFLUENCES_IN_SHORT.items()}
    answers[_MODE] = read.fewer_samples == "not used"
    listed = {state: [words for words, answer in answers.items() if answer is state] for state in (True, False, None)}
    found = {
        "does not move it": ", ".join(listed[True]),
        "moves it": ", ".join(listed[False]),
        "not known": ", ".join(listed[None]),
        "confidence": CONFIDENCE[read.confidence],
        "samples": FEWER_SAMPLES[read.fewer_samples],
        "**may be concluded**": read.conclude,
        "**but**": read.beware,
    }
    return {label: text for label, text in found.items() if text}


def value_of(entry: dict[str, Any]) -> str:
    """Return a value of the record with its whole error."""
    if entry["value"] is None or entry["status"] not in ("ok", "budget_spent"):
        return MISSING
    error = math.hypot(entry["stderr"] or 0.0, entry["stderr_data"] or 0.0)
    mark = r"\*" if entry["status"] == "budget_spent" else ""
    return _BOUNDS.get(entry["how"], "") + with_error(entry["value"], error) + mark


def correlations_in(folder: Path) -> dict[str, list[list[str]]]:
    """Return rows of study, correlation with the generalisation gap and number of networks, by measure."""
    found: dict[str, list[list[str]]] = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        for name, quantity in record["analysis"].items():
            measure = name.removeprefix("r_")
            if name != measure and measure in MEASURES and quantity["unit"] == "networks":
                r, low, high = (f"{quantity[part]:.2f}" for part in ("value", "low", "high"))
                study = f"[{record['study']}](results/{record['study']}.md)"
                found.setdefault(measure, []).append([study, f"{r} [{low}, {high}]", str(quantity["count"])])
    return found


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""Documents that are made from declarations say what the declarations say."""

import json
from pathlib import Path

from docs.hooks import measure_by_measure
from spiritlevel.measures.documenting import page
from spiritlevel.measures.interpretations import INTERPRETATIONS
from spiritlevel.measures.registry import GROUPS, MEASURES

ROOT = Path(__file__).parents[2]


def test_page_of_measures_is_up_to_date():
    assert (ROOT / "docs" / "measures.md").read_text(encoding="utf-8") == page(), "run `make docs`"


def test_page_of_how_to_read_each_is_up_to_date() -> None:
    shown = measure_by_measure.PAGE.read_text(encoding="utf-8")
    assert shown == measure_by_measure.page(), "run `make docs`"


def test_every_measure_is_read_with_all_that_is_said_of_it() -> None:
    text = measure_by_measure.page()
    for name, own in MEASURES.items():
        section = text.partition(f"\n## `{name}`\n")[2].partition("\n## ")[0]
        for words in (own.title, INTERPRETATIONS[name].conclude, INTERPRETATIONS[name].beware):
            assert words in section, name
        assert ("`lenet5`" in section) == (name in GROUPS["papers"]), name


def test_a_value_stands_with_both_of_its_errors() -> None:
    entry = {"value": 10.0, "stderr": 0.3, "stderr_data": 0.4, "how": "estimated", "status": "ok"}
    assert measure_by_measure.value_of(entry) == "10.00 ± 0.50"
    assert measure_by_measure.value_of({**entry, "how": "lower_bound"}) == "≥ 10.00 ± 0.50"
    assert measure_by_measure.value_of({**entry, "status": "budget_spent"}) == r"10.00 ± 0.50\*"
    assert measure_by_measure.value_of({**entry, "stderr": 0.0, "stderr_data": None}) == "10.000"
    assert measure_by_measure.value_of({**entry, "value": None, "status": "not_applicable"}) == "—"


def test_correlations_are_those_of_the_studies() -> None:
    found = measure_by_measure.correlations_in(measure_by_measure.STUDIES)
    record = json.loads((measure_by_measure.STUDIES / "petzka-mnist-paper.json").read_text(encoding="utf-8"))
    r = record["analysis"]["r_hessian_trace"]
    row = ["[petzka-mnist](results/petzka-mnist.md)", f"{r['value']:.2f} [{r['low']:.2f}, {r['high']:.2f}]", "58"]
    assert row in found["hessian_trace"]
    assert set(found) <= set(MEASURES)

"""Reports: their text, their strict JSON and what becomes of numbers that are not finite."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from spiritlevel.results import Report, collect, load_reports, schema
from spiritlevel.results.audits import Audit
from spiritlevel.results.base import ResultBase
from spiritlevel.results.collecting import save_reports
from spiritlevel.results.compared import Comparison
from spiritlevel.results.header import Header
from spiritlevel.results.numerals import at_least, how_text, plain, with_error
from spiritlevel.results.spectrum_result import Spectrum
from spiritlevel.results.terminal import as_text, rows_table
from spiritlevel.results.wording import UNTRAINED, shared_prefix_removed
from spiritlevel.values.errors import SpiritlevelError, UsageError
from spiritlevel.values.estimate import Estimate, not_applicable


def make_report(**header: Any) -> Report:
    head = {
        "model": "digits_mlp", "weights": "runs/a.pt", "data": "digits", "split": "train", "samples": 100,
        "samples_total": 1437, "loss_name": "cross_entropy", "loss": 0.123456, "accuracy": 0.991,
        "gradient_norm": 0.12, "gradient_noise": 0.01, "at_minimum": False, "seed": 0, "fingerprint": "ab12",
        "mode": "eval", "dtype": "float32", "notes": ["A note with <b>tags</b>."], "trained": True,
        "passes": {"forward": 2.0, "column": 9},
    }  # fmt: skip
    return Report(
        estimates={
            "hessian_trace": Estimate(123.456789, verified=True, stderr_data=3.21, samples=100),
            "hessian_top_eigenvalue": Estimate(12.3456, how="lower_bound", interval=(12.34, 12.36)),
            "normalized_sharpness": Estimate(3.2e-9, stderr=4.1e-11, how="estimated", details={"x": torch.ones(2)}),
            "output_margin": not_applicable("the loss has no classes"),
            "exploding": Estimate(math.inf),
            "slow": Estimate(0.5, stderr=0.03, how="estimated", status="budget_spent", reason="64 probes were spent"),
        },
        per_layer={
            "hessian_trace": {"0": Estimate(1.0), "2": Estimate(3.0, stderr=0.1, how="estimated")},
            "kappa": {"2": Estimate(5.0, how="upper_bound")},
        },
        per_neuron={"rho": {"0": [1.0, math.nan]}},
        per_sample={"output_margin": torch.tensor([1.0, 2.0, math.inf])},
        header=Header.of({**head, **header}),
        settings={"hessian_trace": {"probes": 3}},
        titles={"hessian_trace": "trace of the Hessian"},
    )


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (12.3456, 0.0234, "12.346 ± 0.023"),
        (12.3456, 0.0996, "12.35 ± 0.10"),
        (1234567.9, 99.6, "1,234,570 ± 100"),
        (3.2e-9, 4.1e-11, "(3.200 ± 0.041)e-09"),
        (0.0, 2e-7, "(0.0 ± 2.0)e-07"),
        (0.99997283, 5.7e-6, "0.9999728 ± 0.0000057"),
        (0.5, 2e-12, "(5.000000000000 ± 0.000000000020)e-01"),
        (-5.0, 12.0, "-5 ± 12"),
        (7.0, 0.0, "7.0000"),
        (1.0, math.nan, "1.0000"),
    ],
)
def test_value_and_error_end_at_the_same_place(value: float, error: float, text: str) -> None:
    assert with_error(value, error) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (123456.7, "123,457"), (1e-12, "1.0000e-12"), (None, "—"), (math.inf, "—")]
)
def test_numbers_without_an_error(value: float | None, text: str) -> None:
    assert plain(value) == text


def test_how_is_said_in_words() -> None:
    report = make_report()
    assert how_text(report["hessian_trace"]) == "exact (verified)"
    assert how_text(report["hessian_top_eigenvalue"]) == "lower bound, residual 1.4e-02"
    assert how_text(report["slow"]) == "estimated, budget spent"
    assert how_text(report["output_margin"]) == "not applicable"


def test_text_shows_the_header_titles_errors_and_reasons() -> None:
    text = str(make_report())
    first, second = text.splitlines()[:2]
    assert "100 of 1,437 samples" in first
    assert "(train)" in first
    assert "eval mode" in first
    assert "float32" in first
    assert "accuracy 99.10%" in second
    assert "gradient norm 0.120" in second
    assert "not at a minimum" in second
    assert "trace of the Hessian  hessian_trace" in text
    assert "± 3.2" in text
    assert "[1] the loss has no classes" in text
    assert max(map(len, text.splitlines())) <= 120
    assert UNTRAINED not in text
    assert str(make_report(trained=False)).startswith(UNTRAINED)
    assert "not at a minimum" not in str(make_report(at_minimum=True))
    assert "not distinguishable from noise at 100 samples" in str(make_report(at_minimum=None)).splitlines()[1]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_number_is_cut_at_any_width(width: int) -> None:
    reports = {f"runs/epoch-{epoch:03d}.pt": make_report() for epoch in range(3)}
    for table in (make_report().table(layers=True), rows_table(reports)):
        text = as_text(table, width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
    rows = as_text(rows_table(reports), width)
    assert rows.count("the loss has no classes") == 1
    assert rows.count("123.46") == 3


def test_layers_table_has_a_row_a_layer() -> None:
    text = as_text(make_report().table(layers=True))
    assert "3.00 ± 0.10" in text
    assert "≤ 5.0000" in text
    assert "3.00 ± 0.10" not in str(make_report())


def test_html_is_static_and_escaped() -> None:
    html = make_report(model="<script>alert(1)</script>")._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "&lt;b&gt;tags" in html
    assert "trace of the Hessian" in html


def test_report_is_a_mapping_with_near_names() -> None:
    report = make_report()
    assert next(iter(report)) == "hessian_trace"
    assert len(report) == 6
    assert float(report["hessian_trace"]) == 123.456789
    assert report.get("nothing") is None
    with pytest.raises(KeyError, match="hessian_trace"):
        report["hesian_trace"]
    assert (report.loss, report.accuracy, report.gradient_norm) == (0.123456, 0.991, 0.12)
    assert report.fingerprint == "ab12"
    assert not report.ok


def test_scalars_are_finite_floats() -> None:
    scalars = make_report().scalars("val/")
    assert scalars["val/hessian_trace"] == 123.456789
    assert scalars["val/normalized_sharpness_stderr"] == 4.1e-11
    assert scalars["val/hessian_trace/2"] == 3.0
    assert "val/output_margin" not in scalars
    assert "val/exploding" not in scalars
    assert all(type(value) is float and math.isfinite(value) for value in scalars.values())


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} in strict JSON")


def test_saved_json_is_strict_and_loads_back(tmp_path: Path) -> None:
    report = make_report()
    file = tmp_path / "r.json"
    report.save(file)
    record = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse_constant)
    assert record["measures"]["exploding"]["value"] is None
    assert record["measures"]["exploding"]["status"] == "not_finite"
    assert record["samples"]["output_margin"] == [1.0, 2.0, None]
    assert os.listdir(tmp_path) == ["r.json"]
    again = Report.load(file)
    assert str(again) == str(report)
    assert again["hessian_top_eigenvalue"] == report["hessian_top_eigenvalue"]
    assert again.settings == report.settings
    assert again.per_layer["kappa"]["2"] == report.per_layer["kappa"]["2"]
    assert torch.equal(again.per_sample["output_margin"][:2], torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert again.record() == record


def conforms(value: Any, rule: dict[str, Any], root: dict[str, Any]) -> bool:
    """A hand-written check of the few keywords of JSON Schema that the published schema uses."""
    if "$ref" in rule:
        return conforms(value, root["$defs"][rule["$ref"].rpartition("/")[2]], root)
    if "oneOf" in rule:
        return sum(conforms(value, choice, root) for choice in rule["oneOf"]) == 1
    if "const" in rule and value != rule["const"]:
        return False
    if "enum" in rule and value not in rule["enum"]:
        return False
    names = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    kinds = rule.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kinds and not (
        any(kind in names and isinstance(value, names[kind]) for kind in kinds)
        or ("number" in kinds and number)
        or ("integer" in kinds and number and isinstance(value, int))
    ):
        return False
    if isinstance(value, dict):
        known = rule.get("properties", {})
        rest = rule.get("additionalProperties", True)
        if any(key not in value for key in rule.get("required", [])):
            return False
        for key, item in value.items():
            part = known.get(key, rest)
            if part is False or (isinstance(part, dict) and not conforms(item, part, root)):
                return False
    if isinstance(value, list) and "items" in rule:
        return all(conforms(item, rule["items"], root) for item in value)
    return True


def test_records_follow_the_published_schema() -> None:
    published = schema()
    record = make_report().record()
    assert conforms(record, published, published)
    assert conforms({"schema_version": 1, "reports": [record, record]}, published, published)
    for damage in ({"schema_version": 2}, {"measures": {"a": {"value": "1"}}}, {"header": {}}):
        assert not conforms({**record, **damage}, published, published)
    # A header with nothing in it still gives a record that says what it does not know.
    assert conforms(Report({}).record(), published, published)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not strict JSON"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[]", "no schema_version"),
        ('{"schema_version": 99}', "schema version 99"),
        ('{"schema_version": 1, "header": {}}', "settings"),
    ],
)
def test_what_is_not_a_report_is_refused_in_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "r.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SpiritlevelError, match=words):
        Report.load(file)


def test_damaged_estimates_are_refused(tmp_path: Path) -> None:
    record = make_report().record()
    del record["measures"]["slow"]["how"]
    file = tmp_path / "r.json"
    file.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(SpiritlevelError, match="damaged report"):
        Report.load(file)
    with pytest.raises(UsageError, match="there is no file"):
        Report.load(tmp_path / "nothing.json")


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(SpiritlevelError, match="could not be written"):
        make_report().save(tmp_path / "missing" / "r.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SpiritlevelError, match="could not be written"):
        make_report().save(tmp_path / "folder")
    assert sorted(os.listdir(tmp_path)) == ["folder"]


def test_to_pandas_has_a_row_for_each_level() -> None:
    report = make_report()
    network = report.to_pandas()
    assert network.set_index("measure").loc["hessian_trace", "value"] == 123.456789
    assert network.set_index("measure").loc["hessian_top_eigenvalue", "interval_high"] == 12.36
    assert len(report.to_pandas("layer")) == 3
    assert report.to_pandas("sample")["output_margin"].tolist()[:2] == [1.0, 2.0]
    with pytest.raises(UsageError, match=r"a report has 'network'.*'layer'.*'neuron'.*'sample'"):
        report.to_pandas("epoch")


def test_collect_joins_files_into_one_long_table(tmp_path: Path) -> None:
    make_report().save(tmp_path / "a.json")
    save_reports([make_report(weights="b.pt"), make_report(weights="c.pt")], tmp_path / "b.json")
    assert [report.header.weights for report in load_reports(tmp_path / "b.json")] == ["b.pt", "c.pt"]
    with pytest.raises(UsageError, match="several reports"):
        Report.load(tmp_path / "b.json")
    table = collect([tmp_path / "a.json", tmp_path / "b.json"])
    assert len(table) == 3 * 6
    assert table["weights"].unique().tolist() == ["runs/a.pt", "b.pt", "c.pt"]
    assert table[table.measure == "hessian_trace"]["value"].tolist() == [123.456789] * 3
    assert set(table["data_samples"]) == {100}
    assert len(collect(tmp_path / "a.json", level="layer")) == 3


def test_labels_lose_only_the_folder_they_share() -> None:
    assert shared_prefix_removed(["runs/x/a.pt", "runs/y/a.pt"]) == ["x/a.pt", "y/a.pt"]
    assert shared_prefix_removed(["runs/a.pt"]) == ["runs/a.pt"]
    assert shared_prefix_removed(["a.pt", "runs/a.pt"]) == ["a.pt", "runs/a.pt"]


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [(1.9213, 3, "1.93"), (1.92, 3, "1.92"), (2.14, 2, "2.2"), (12.01, 3, "12.1"), (1.004, 3, "1.0040")],
)
def test_a_factor_that_must_suffice_is_rounded_up(value: float, digits: int, shown: str) -> None:
    assert at_least(value, digits) == shown


def test_a_header_is_built_once_and_keeps_what_it_does_not_know(tmp_path: Path) -> None:
    report = make_report(epoch=3, notes=["one"], layers=["0", "2"], house="ours")
    with pytest.raises(AttributeError):
        report.header.loss = 0.0  # type: ignore[misc]
    more = report.described(weights="b.pt", learning_rate=0.1)
    assert (report.header.weights, more.header.weights, more.header.epoch) == ("runs/a.pt", "b.pt", 3)
    more.save(tmp_path / "b.json")
    again = Report.load(tmp_path / "b.json").header
    assert again == more.header
    assert (again.notes, again.layers, again.other) == (("one",), ("0", "2"), {"house": "ours"})
    record = json.loads((tmp_path / "b.json").read_text())["header"]
    assert (record["house"], record["wall_time"], record["layers"]) == ("ours", None, ["0", "2"])
    assert "identity" not in record  # what few ever say is left out


@pytest.mark.parametrize("kind", [Report, Comparison, Audit, Spectrum])
def test_results_share_one_base(kind: type[ResultBase]) -> None:
    own = {"save", "load", "html", "__str__"} & vars(kind).keys()
    assert issubclass(kind, ResultBase)
    assert not own

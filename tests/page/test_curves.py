"""Curves over training and along scales: runs apart, whole epochs, nothing outside the axes or flattened."""

from __future__ import annotations

import re

import numpy as np
import pytest

from spiritlevel import page
from spiritlevel.page import builder, points
from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.curves import DEEPEST, CurvePoint, curve, relative_curves
from spiritlevel.page.figures.density import density
from spiritlevel.page.figures.distributions import distribution
from spiritlevel.page.palette import LIGHT
from spiritlevel.values.estimate import Estimate
from tests.page.material import made_report, made_spectrum, sampled_report

altair = pytest.importorskip("altair")


def two_runs() -> PageContent:
    return PageContent(
        {
            f"runs/{run}/epoch-{epoch}.pt": made_report((1 + run) * 2.0**epoch, epoch=epoch)
            for epoch in range(6)
            for run in (0, 1)
        }
    )


def test_two_runs_are_two_lines_with_all_their_points() -> None:
    content = two_runs()
    assert set(content.runs.runs.values()) == {"runs/0", "runs/1"}
    figures = builder.figures(content)
    for name in ("curves", "curve_of_measure_hessian_trace", "curve_of_loss"):
        rows = figures[name].data[0].values
        assert len(rows) == 12
        for run in ("runs/0", "runs/1"):
            own = [row["place"] for row in rows if row["run"] == run]
            assert own == sorted(own)
            assert len(set(own)) == 6
    drawn = figures["curve_of_measure_hessian_trace"].draw(LIGHT).to_dict()
    assert all(row["series"] == row["run"] for row in rows)
    assert all(layer["encoding"]["color"]["field"] == "series" for layer in drawn["layer"][:3])
    assert drawn["layer"][0]["encoding"]["detail"]["field"] == "run", "runs of one colour are lines of their own"


def test_files_of_one_folder_are_one_run_and_files_of_many_none() -> None:
    one = PageContent({f"run/epoch-{epoch}.pt": made_report() for epoch in range(3)})
    apart = PageContent({f"seed{seed}/final-{seed}.pt": made_report() for seed in range(3)})
    for content in (one, apart):
        assert set(content.runs.runs.values()) == {""}


def test_the_same_epochs_in_two_folders_are_places() -> None:
    labels = [f"{run}/epoch-{epoch}.pt" for run in "ab" for epoch in (1, 2)]
    found = PageContent({label: made_report() for label in labels}).runs
    assert (found.unit, list(found.places.values())) == ("epoch", [1, 2, 1, 2])


def test_epochs_have_no_halves_where_none_was_measured() -> None:
    whole = [CurvePoint(place, "", place + 1.0) for place in (1.0, 2.0, 3.0)]
    halves = [CurvePoint(place, "", place + 1.0) for place in (0.5, 1.0)]
    ticks = [
        curve(each, "loss", "loss", "epoch").draw(LIGHT).to_dict()["layer"][0]["encoding"]["x"].get("axis", {})
        for each in (whole, halves)
    ]
    assert ticks[0].get("values") == [1, 2, 3]
    assert "values" not in ticks[1]
    long = [CurvePoint(place, "", place + 1.0) for place in range(7, 1404, 3)]
    axis = curve(long, "loss", "loss", "step").draw(LIGHT).to_dict()["layer"][0]["encoding"]["x"]["axis"]
    assert axis["values"] == [200, 400, 600, 800, 1000, 1200, 1400]


def test_errors_end_on_a_logarithmic_axis() -> None:
    rows = curve([CurvePoint(1, "", 1e-3, 5.0), CurvePoint(2, "", 1.0, 2.0)], "x", "x", "epoch").data[0].values
    assert all(0 < row["low"] <= row["value"] for row in rows)


def test_one_tiny_value_does_not_flatten_the_others() -> None:
    values = {"trace": [(0.1, 1.0), (1.0, 2.0), (10.0, 1e-178)], "margin": [(0.1, 1.0), (1.0, 1.5), (10.0, 2.0)]}
    figure = relative_curves(values, "α", "alpha", "Outputs scaled", base=1.0, places="log")
    assert figure is not None
    heights = [row["relative"] for row in figure.data[0].values]
    assert min(heights) == pytest.approx(DEEPEST * max(heights))
    assert figure.caption.startswith("1 of the values lie")
    assert any(row["value"] == 1e-178 for row in figure.data[0].values), "what is pointed at says the value itself"
    domain = figure.draw(LIGHT).to_dict()["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert domain[0] <= min(heights) <= max(heights) <= domain[1]


def test_no_line_is_drawn_through_a_few_points() -> None:
    x = np.arange(1.0, 30.0)
    axis = points.axis_of(x)
    assert points.fit(x[:3], 2 * x[:3], axis, axis) is None
    assert points.fit(x, 2 * x, axis, axis) is not None


def test_a_stability_line_far_off_is_said_and_not_drawn() -> None:
    spectrum = made_spectrum(largest=2.0)
    for rate, drawn in ((0.7, True), (0.001, False)):
        figure = density(spectrum, rate, "density")
        places = [row["place"] for row in figure.data[1].values]
        assert (2 / rate in places) == drawn
        assert max(places) <= 4.0, "the spectrum keeps the axis"
        assert f"2/lr = {2 / rate:.4g}." in figure.caption


def test_a_spectrum_s_page_has_the_terminal_s_caveats_and_values_their_error_over_samples() -> None:
    spectrum = made_spectrum()
    first = builder.page_of(page.of_spectrum(spectrum)).first
    assert first.table is not None
    for sentence in spectrum.sentences:
        assert sentence in first.table.note
        assert sentence in " ".join(str(spectrum).split())
    assert any("negative eigenvalues" in sentence for sentence in spectrum.sentences)
    report = made_report()
    report.estimates["hessian_trace"] = Estimate(46.079, verified=True, stderr_data=8.1, samples=400)
    table = builder.page_of(page.of_reports(report)).first.table
    assert table is not None
    assert (table.rows[0].cells[1].text, table.rows[0].cells[1].small) == ("46.079", "± 8.1 over samples")


def test_numbers_on_axes_are_written_as_people_write_them() -> None:
    values = {"trace": [(10.0**power, 10.0 ** (2 * power)) for power in range(-4, 5)]}
    wide = relative_curves(values, "α", "alpha", "Outputs scaled", base=1.0, places="log")
    assert wide is not None
    for figure in (wide, density(made_spectrum(), 0.7, "density")):
        texts = re.findall(r"<text[^>]*>([^<]+)</text>", builder.image(figure, "svg").decode("utf-8"))
        assert any(re.fullmatch(r"[\d.,e−-]+", text) for text in texts)
        assert not [text for text in texts if "e+" in text]


def test_what_is_said_of_runs_leads_from_no_run_to_another() -> None:
    first = builder.page_of(two_runs()).first
    strong, rest = first.answer
    assert strong == (
        "At the end of the 2 runs (epoch 5), Hessian trace lies between 320.00 (runs/0) and 640.00 (runs/1), and top "
        "eigenvalue of the Hessian lies between 64.000 (runs/0) and 128.00 (runs/1)."
    )
    assert rest.endswith("Which is flatter is for a comparison to say.")
    assert not any("→" in value for _, value in first.facts)
    assert [run for run, _ in first.title] == ["runs/0", "runs/1"]


def test_many_distributions_are_rows_and_few_are_outlines() -> None:
    rng = np.random.default_rng(0)
    six = {f"net-{place}": rng.normal(place, 1, 400) for place in range(6)}
    drawn = distribution(six, "Output margin", "margins", {})
    assert [row["name"] for row in drawn.data[0].values] == list(six)
    for row, values in zip(drawn.data[0].values, six.values()):
        assert row["median"] == pytest.approx(np.median(values), rel=1e-5)
        assert row["p5"] < row["q1"] < row["median"] < row["q3"] < row["p95"]
    assert drawn.draw(LIGHT).to_dict()["layer"]
    two = dict(list(six.items())[:2])
    assert distribution(two, "Output margin", "margins", dict.fromkeys(two, 0.0)).data[0].name == "margins_bins"


def test_samples_of_two_networks_share_axes_and_lie_within_them() -> None:
    reports = {"a.pt": sampled_report(300), "b.pt": sampled_report(300, seed=1)}
    reports["b.pt"].per_sample["hessian_trace"][:5] *= 1e-30
    figures = builder.figures(PageContent(reports))
    scales = [
        figures[f"trace_against_output_margin{suffix}"].draw(LIGHT).to_dict()["layer"][0]["encoding"]
        for suffix in ("", "_2")
    ]
    for axis in "xy":
        first, second = (scale[axis]["scale"] for scale in scales)
        assert first == second
        assert first.get("clamp", first.get("type") != "log"), "nothing is drawn outside a logarithmic axis"

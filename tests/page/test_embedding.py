"""What is embedded in a page: few samples, its own scripts alone, names as text, formulas as mathematics."""

from __future__ import annotations

import json
import re

import pytest

from spiritlevel import page
from spiritlevel.measures.registry import MEASURES
from spiritlevel.page import builder, embedding, formulas, points
from spiritlevel.values.estimate import Estimate
from tests.page.contents import data_of
from tests.page.material import HOSTILE, made_report, sampled_report

# --- what is embedded -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large_page() -> str:
    return page.html(page.of_reports(sampled_report(60_000)))


def test_sixty_thousand_samples_stay_under_two_megabytes(large_page: str) -> None:
    assert len(large_page.encode()) < 2_000_000


def test_samples_are_embedded_once_and_few_of_them(large_page: str) -> None:
    data = data_of(large_page)
    assert len(data["datasets"]["samples"]["sample"]) == points.SHOWN
    users = [name for name, figure in data["figures"].items() if any(d["name"] == "samples" for d in figure["data"])]
    assert len(users) == 4
    assert large_page.count('"samples":{"sample"') == 1
    counted = sum(data["datasets"]["trace_against_aceht_bins"]["count"])
    assert counted == 60_000


def test_the_page_asks_for_nothing_from_elsewhere(large_page: str) -> None:
    markup = re.sub(r"<script.*?</script>", "", large_page, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=[\"'](?!data:|#)", markup)
    assert "@import" not in markup
    assert "url(" not in markup
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', large_page)
    assert policy is not None
    assert policy.group(1).startswith("default-src &#39;none&#39;") or policy.group(1).startswith("default-src 'none'")


def test_only_the_page_s_own_scripts_may_run(large_page: str) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", large_page, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        assert embedding.hash_of(script) in large_page


def test_values_stand_in_the_table_before_any_script_runs(large_page: str) -> None:
    markup = re.sub(r"<script.*?</script>", "", large_page, flags=re.DOTALL)
    for value in ("10.000", "2.0000", "30.000", "100.00", "5.0000", "4.0000"):
        assert f">{value}<" in markup


def test_every_figure_has_its_numbers_in_words() -> None:
    found = builder.figures(page.of_reports(sampled_report(500)))
    assert set(found) >= {
        "layer_shares",
        "output_margin_distribution",
        "trace_against_aceht",
        "trace_against_output_margin",
    }
    for figure in found.values():
        assert re.search(r"\d", figure.alt), figure.name
    assert "fc1 70%" in found["layer_shares"].alt


def test_names_never_become_markup() -> None:
    report = made_report(weights=HOSTILE[1], notes=[f"a note about {HOSTILE[2]}"])
    report.per_layer["hessian_trace"] = {name: Estimate(1.0 + i) for i, name in enumerate(HOSTILE)}
    report.estimates["mine"] = Estimate(1.0, status="budget_spent", reason=HOSTILE[1])
    report.titles["mine"] = HOSTILE[0]
    text = page.html(page.of_reports(report))
    for name in HOSTILE[:2]:
        assert name not in text
    assert text.count("</script>") == 3  # the data and two scripts
    assert text.count("&lt;b&gt;x&lt;/b&gt;") > 0
    assert "\\u003c/script\\u003e" in text


def test_json_inside_the_page_cannot_close_its_element() -> None:
    value = {"name": "</script><!-- & \u2028"}
    text = embedding.as_safe_json(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value


# --- formulas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MEASURES)
def test_every_declared_formula_is_drawn(name: str) -> None:
    drawn = formulas.as_mathml(MEASURES[name].formula)
    assert drawn is not None
    assert drawn.startswith("<math")


@pytest.mark.parametrize(
    "source", [r"\text{<b>x</b>}", r"\text{<img src=x onerror=alert(1)>}", r"\undefinedcommand x", "{"]
)
def test_a_formula_that_is_more_than_a_formula_stays_text(source: str) -> None:
    assert formulas.as_mathml(source) is None

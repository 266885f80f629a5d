"""What results show of themselves in Python: one line, a table for notebooks, data frames, figures and pages."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.analyses.comparison import compare
from spiritlevel.engine.operators import LayerBlock
from spiritlevel.results import levels
from spiritlevel.results.audits import Audit
from spiritlevel.results.base import Shown
from spiritlevel.results.eigenpairs import Eigenvalues
from spiritlevel.results.header import Header
from spiritlevel.results.verdicts import Sweep
from spiritlevel.results.webpage import fragment
from spiritlevel.values.errors import UsageError
from spiritlevel.values.estimate import Estimate, not_applicable
from spiritlevel.values.rich_tables import new_table
from tests.page.material import made_audit, made_report, made_spectrum, sampled_report


def made_eigenvalues() -> Eigenvalues:
    return Eigenvalues(
        values=torch.tensor([4.0, 2.5, 1.25, 0.5], dtype=torch.float64),
        vectors=torch.eye(7)[:, :4],
        residuals=torch.tensor([0.1, 0.2, 0.3, 0.01], dtype=torch.float64),
        status="ok",
        reason="",
        sweeps=9,
        products=18,
        path="double backward",
        strategy="looped",
        header=Header(model="MyNet", samples=40),
    )


def audit_with_sweep() -> Audit:
    audit = made_audit({"hessian_trace": "changes", "rho_sum": "invariant"})
    values = {"hessian_trace": [Estimate(10.0), Estimate(100.0)]}
    return replace(audit, sweep=Sweep([1.0, 10.0], values, {"hessian_trace": "Hessian trace"}, [0.1, 0.9], [1.0, 1.0]))


MADE = {
    "report": lambda: replace(sampled_report(30), per_neuron={"rho": {"fc1": [1.0, 2.0]}}),
    "comparison": lambda: compare({"a.pt": made_report(), "b.pt": made_report(2.0, weights="b.pt")}),
    "audit": audit_with_sweep,
    "spectrum": made_spectrum,
    "list of eigenvalues": made_eigenvalues,
}


@pytest.fixture(params=MADE)
def made(request: pytest.FixtureRequest) -> Shown:
    return MADE[request.param]()


class Tables(HTMLParser):
    """Reads the rows of all tables, and the elements there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.rows: list[list[str]] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        assert not [name for name, _ in attributes if name.startswith("on") or name in ("src", "href")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


def test_the_notebook_shows_what_the_terminal_shows(made: Shown) -> None:
    html, text = made._repr_html_(), str(made)
    tables = Tables(html)
    assert {"table", "thead", "tbody", "th", "td"} <= tables.elements
    assert not {"script", "pre", "link", "img"} & tables.elements
    cells = [cell for row in tables.rows for cell in row]
    for number in re.findall(r"(?<=[│ ] )[\d.,]+(?= +│)", text):
        assert number in cells, number
    words = " ".join(text.split())
    plain = " ".join(re.sub(r"<[^>]+>", " ", html.partition("</style>")[2]).split())
    assert plain.split()[:4] == words.split()[:4]


def test_cells_know_their_column_for_narrow_places() -> None:
    html = made_report()._repr_html_()
    assert html.count("<td ") == html.count("<td data-column=") == 6 * 2  # value and how
    assert html.count('data-column="value"') == 6
    assert "@container (max-width" in html


def test_what_is_bold_or_dim_in_a_terminal_is_so_in_a_notebook() -> None:
    from rich.console import Group
    from rich.text import Text

    table = new_table("name", "value")
    table.add_row(Text("a<b").append("\nsmall", style="dim"), "[bold]1[/bold]")
    html = fragment(Group(Text("the answer", style="bold"), table))
    assert "<strong>the answer</strong>" in html
    assert 'a&lt;b<span class="dim"><br>small</span>' in html
    assert "<strong>1</strong>" in html


def test_text_from_outside_is_no_markup_in_a_notebook() -> None:
    names = {"<img src=x onerror=alert(1)>": made_report(), '" onmouseover="alert(1)': made_report(2.0)}
    assert "img" not in Tables(compare(names)._repr_html_()).elements


def test_a_representation_is_one_line(made: Shown) -> None:
    text = repr(made)
    assert text.startswith(f"<{type(made).__name__} of ")
    assert "\n" not in text
    assert len(text) < 160


def test_representations_name_what_matters() -> None:
    shown = {kind: repr(make()) for kind, make in MADE.items()}
    assert shown["report"] == "<Report of mlp with runs/a.pt on digits, 30 samples: 6 measures>"
    assert shown["comparison"] == "<Comparison of a.pt against b.pt: 6 measures, told apart by 6>"
    assert "2 measures under 4 symmetries, no contradiction" in shown["audit"]
    assert shown["list of eigenvalues"] == "<Eigenvalues of the Hessian of MyNet: 4.0000, 2.5000, 1.2500, … (4) ± 0.30>"
    many = compare({f"run-{number}.pt": made_report(1.0 + number) for number in range(7)})
    assert "7 networks" in repr(many)


def test_every_level_is_a_data_frame(made: Shown) -> None:
    for level, declared in made.levels.items():
        frame = made.to_pandas(level)
        assert len(frame) > 0, level
        assert list(frame.columns) == (list(declared.columns) or list(frame.columns))
    assert made.to_pandas().equals(made.to_pandas(next(iter(made.levels))))


def test_a_wrong_level_is_answered_with_all_there_are(made: Shown) -> None:
    with pytest.raises(UsageError, match="there is no level 'nothing'") as refused:
        made.to_pandas("nothing")
    for level, declared in made.levels.items():
        assert f"{level!r} ({declared.words})" in str(refused.value)


def test_a_comparison_has_a_row_for_each_of_its_levels() -> None:
    found = compare({name: made_report(scale) for name, scale in (("a", 1.0), ("b", 2.0), ("c", 3.0))})
    assert len(found.to_pandas()) == 6
    assert len(found.to_pandas("pair")) == 6 * 3
    assert len(found.to_pandas("network")) == 6 * 3
    pairs = found.to_pandas("pair").set_index(["measure", "first", "second"])
    assert pairs.loc[("hessian_trace", "a", "c"), "value"] == pytest.approx(3.0)
    assert pairs.loc[("hessian_trace", "a", "c"), "flatter"] == "a"
    assert pairs.loc[("output_margin", "a", "c"), "value"] == pytest.approx(1 / 3)
    assert found.to_pandas().set_index("measure").loc["hessian_trace", "flattest"] == "a"


def test_an_audit_has_a_row_a_measure_and_symmetry() -> None:
    audit = made_audit({"hessian_trace": "changes", "rho_sum": "invariant"})
    frame = audit.to_pandas().set_index(["measure", "symmetry"])
    assert frame.loc[("hessian_trace", "layer_rescaling"), "factor"] == pytest.approx(12.0)
    assert frame.loc[("rho_sum", "layer_rescaling"), "verdict"] == "invariant"
    trials = audit.to_pandas("trial").set_index(["measure", "symmetry"])
    assert trials.loc[("hessian_trace", "layer_rescaling"), "after"] == pytest.approx(120.0)


def test_a_spectrum_has_a_row_a_ritz_value() -> None:
    spectrum = made_spectrum()
    frame = spectrum.to_pandas("node")
    assert len(frame) == spectrum.nodes.numel()
    assert frame.groupby("probe")["weight"].sum().to_list() == pytest.approx([1.0] * len(spectrum.nodes))


def test_every_result_has_a_figure_and_a_page(made: Shown, tmp_path: Path) -> None:
    assert made.figure().to_dict()["datasets"]
    with pytest.raises(UsageError, match="there is no figure 'nothing'"):
        made.figure("nothing")
    made.html(tmp_path / "page.html")
    assert "<h1" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_report_without_layers_has_nothing_to_draw() -> None:
    with pytest.raises(UsageError, match="these results have no figure; measure what has values by layer or sample"):
        made_report(layers=False).figure()


def test_a_spectrum_still_writes_an_image_where_a_file_is_named(tmp_path: Path) -> None:
    made_spectrum().figure(tmp_path / "spectrum.png")
    assert (tmp_path / "spectrum.png").read_bytes().startswith(b"\x89PNG")


def test_eigenvalues_are_within_their_drawn_intervals() -> None:
    found = made_eigenvalues()
    rows = found.figure().to_dict()["datasets"]["eigenvalues"]
    assert [row["value"] for row in rows] == [4.0, 2.5, 1.25, 0.5]
    assert [(row["low"], row["high"]) for row in rows][:2] == [(3.9, 4.1), (2.3, 2.7)]


def test_eigenvalues_say_what_they_are_of() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    problem = sl.Problem(model, (torch.randn(9, 3).double(), torch.arange(9) % 3))
    found = sl.eigenvalues(problem, 2, operator="ggn")
    assert (found.header.model, found.header.samples, found.operator) == ("Sequential", 9, "ggn")
    assert "Gauss–Newton matrix" in repr(found)
    assert len(found.to_pandas()) == 2
    assert found.described(model="mine").values is found.values


def test_problem_and_matrices_say_what_they_are() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    problem = sl.Problem(model, (torch.randn(9, 3), torch.arange(9) % 3))
    assert repr(problem) == (
        "<Problem: Sequential of 31 parameters on 9 samples, cross_entropy, eval mode, float32 on cpu>"
    )
    assert repr(problem.hessian) == "<HessianOperator of Sequential: 31 × 31, float32 on cpu>"
    block = LayerBlock(problem, ["2.weight", "2.bias"])
    assert repr(block) == "<LayerBlock of Sequential, 2.weight, 2.bias: 15 × 15, float32 on cpu>"


def test_an_estimate_says_how_it_was_obtained() -> None:
    assert repr(Estimate(12.3456789, verified=True)) == "<Estimate 12.3457, exact (verified)>"
    assert repr(Estimate(2.0, stderr=0.031, how="estimated")) == "<Estimate 2 ± 0.031, estimated>"
    assert repr(Estimate(2.0, interval=(1.5, 2.5), how="estimated")) == "<Estimate 2, estimated, in [1.5, 2.5]>"
    assert repr(not_applicable("there are no classes")).endswith("not applicable: there are no classes>")


def test_no_two_levels_of_a_kind_are_the_same() -> None:
    for table in (levels.REPORT, levels.COMPARISON, levels.AUDIT, levels.SPECTRUM, levels.EIGENVALUES):
        words = [level.words for level in table.values()]
        assert len(set(words)) == len(words)

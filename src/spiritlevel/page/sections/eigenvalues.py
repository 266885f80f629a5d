"""Some eigenvalues of a matrix: the first screen of a page about them."""

from __future__ import annotations

from spiritlevel.page import cells, facts
from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.eigenvalues import eigenvalue_intervals
from spiritlevel.page.parts import Cell, First, PageTable, TableRow
from spiritlevel.results.numerals import plain
from spiritlevel.results.wording import matrix_words, number_of


def eigenvalue_screen(content: PageContent) -> First:
    """Return the first screen: every eigenvalue with its residual."""
    label, found = next(iter(content.eigenvalues.items()))
    report = found.report()
    own = PageContent({label: report}, learning_rate=content.learning_rate)
    values = found.values.tolist()
    ends = plain(values[0]) if len(values) == 1 else f"between {plain(min(values), 3)} and {plain(max(values), 3)}"
    were = "lie" if len(values) > 1 else "is"
    strong = f"{number_of(len(values), 'eigenvalue')} of the {matrix_words(found.operator)} {were} {ends}."
    rest = "An eigenvalue lies within each residual; that none was passed over no residual can prove."
    rows = [TableRow([Cell(report.title(name)), cells.value(e), cells.how(e)]) for name, e in report.items()]
    note = f"{found.sweeps:,} sweeps over the data; products by {found.path}."
    return First(
        title=[(label, "eigenvalues")],
        settings=facts.settings_line([report]),
        answer=(strong, rest),
        facts=facts.facts(own),
        notes=facts.notes(own),
        figure=eigenvalue_intervals(found, content.learning_rate),
        table=PageTable("first-table", ["quantity", "value", "how"], rows, note=note, numeric=[1]),
        kind="spectrum",
    )

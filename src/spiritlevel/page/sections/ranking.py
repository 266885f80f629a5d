"""Many networks in the order of each measure: letters for ties, every network as a row, pairs as a matrix."""

from __future__ import annotations

from spiritlevel.page import cells
from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.matrix import matrix
from spiritlevel.page.figures.ranks import spaced
from spiritlevel.page.parts import Cell, PageTable, Part, Section, TableRow, Words
from spiritlevel.page.sections.epochs import how_grouped
from spiritlevel.results.compared import Comparison
from spiritlevel.results.numerals import MISSING, percent
from spiritlevel.results.ranking import test_accuracies
from spiritlevel.results.standing import standing_of

MOST_IN_A_MATRIX = 16
MOST_MATRICES = 6
_STANDING = {"yes": "yes", "no": "no", "not told": "not told from noise", None: MISSING}


def section(content: PageContent) -> Section | None:
    """Return the section of the ranking, where networks are ranked."""
    ranked = content.ranked
    if ranked is None or not ranked.rankings:
        return None
    parts: list[Part] = [
        Words(
            "Networks that share a letter (a number, where letters do not suffice) are not told apart by that measure, "
            f"and those that share none are. Letters and intervals hold with 95%{ranked.together}. "
            "Without an error over samples they hold on these samples alone."
        ),
        _networks(content, ranked),
        *_matrices(content, ranked),
    ]
    if content.comparison is not None:
        parts.insert(0, Words(" ".join(ranked.reading)))
    if content.runs.several:
        parts.insert(1, Words(how_grouped(content.runs)))
    told = [
        f"{sum(each.decided for each in row.contrasts):,} of {len(row.contrasts):,} by {content.words(name)}"
        for name, row in ranked.rows.items()
        if name in ranked.rankings
    ]
    return Section("ranking", "Ranking", f"pairs told apart: {told[0]}", parts)


def _networks(content: PageContent, ranked: Comparison) -> PageTable:
    """Return all networks as rows, each value with its letters."""
    runs, tested = content.runs, test_accuracies(content.reports, ranked.test)
    names = content.measures
    in_runs = runs.several and runs.in_training
    heads = ["run", runs.unit] if in_runs else ["network"]
    columns = [*heads, "loss", *(["test accuracy"] if tested else []), "at a minimum", *map(content.title, names)]
    rows = []
    for label, report in content.reports.items():
        place = [Cell(runs.runs[label]), Cell(f"{runs.places[label]:g}", value=runs.places[label])]
        row = place if in_runs else [Cell(label)]
        row.append(cells.number_cell(report.header.loss, 4))
        if tested:
            row.append(Cell(percent(tested.get(label)), value=tested.get(label)))
        row.append(Cell(_STANDING[standing_of(report.header)]))
        for name in names:
            cell = cells.value(report.get(name))
            ranking = ranked.rankings.get(name)
            row.append(Cell(cell.text, (ranking.letters.get(label, "") if ranking else ""), cell.value, cell.kind))
        rows.append(TableRow(row))
    first = len(heads)
    return PageTable(
        "networks",
        columns,
        rows,
        caption="All networks",
        tools=True,
        numeric=[*range(1, first + 1 + bool(tested)), *range(len(columns) - len(names), len(columns))],
    )


def _matrices(content: PageContent, ranked: Comparison) -> list[Part]:
    """Return a matrix of pairs for each of the first measures, of the runs' ends where there are too many networks."""
    runs, found = content.runs, list[Part]()
    few = list(content.reports)
    which = f"all {len(few)} networks"
    if len(few) > MOST_IN_A_MATRIX and 1 < len(runs.ends) <= MOST_IN_A_MATRIX:
        few, which = list(runs.ends.values()), f"the ends of the {len(runs.ends)} runs"
    for name, ranking in list(ranked.rankings.items())[:MOST_MATRICES]:
        order = [label for label in ranking.order if label in few]
        shown = spaced(order, MOST_IN_A_MATRIX)
        names = [runs.runs[label] if which.startswith("the ends") else label for label in shown]
        drawn = matrix(ranked.rows[name], shown, names, f"pairs_{name}")
        if drawn is not None:
            found.append(drawn)
    if len(few) > MOST_IN_A_MATRIX:
        which = f"{MOST_IN_A_MATRIX} of the {len(few)} networks, at even distances in the order of each measure"
    return [Words(f"Pairs of {which}, the flattest first."), *found] if found else []

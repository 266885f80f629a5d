"""The first screen of many networks: which run and epoch is flattest, with ties, and where test accuracy is best."""

from __future__ import annotations

from collections import Counter

from spiritlevel.measures.registry import DEFAULT
from spiritlevel.page import facts, sentences
from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.ranks import ranks_figure
from spiritlevel.page.parts import Cell, Figure, First, PageTable, TableRow
from spiritlevel.page.sections import epochs
from spiritlevel.results.compared import Comparison
from spiritlevel.results.numerals import MISSING, percent, plain, value_text
from spiritlevel.results.ranking import at_minimum_or_untold, left_out_words, test_accuracies
from spiritlevel.results.standing import Standing, standing_of

MOST_TITLES = 4


def ranked_screen(content: PageContent) -> First:
    """Return the first screen of networks that are ranked."""
    ranked = content.ranked
    assert ranked is not None
    strong, *rest = ranked.answer or ranked.reading[:1]
    rest += ranked.reading[1:] if content.comparison is not None else []
    if content.one_training:
        rest.append(sentences.of_several(content, content.runs.places, content.runs.unit)[0])
    return First(
        title=_title(content),
        settings=facts.settings_line(content.reports.values()),
        answer=(strong, " ".join(rest)),
        facts=_facts(content, ranked),
        notes=facts.notes(content),
        figure=_figure(content, ranked),
        table=_table(content, ranked),
        kind=content.kind,
        joined=", ",
    )


def measures_ranked(ranked: Comparison) -> list[str]:
    """Return the default measures that have a direction, or where there are none the first six that have one."""
    return [name for name in DEFAULT if name in ranked.rankings] or list(ranked.rankings)[:6]


def _title(content: PageContent) -> list[tuple[str, str]]:
    labels, runs = list(content.reports), content.runs
    if runs.several and runs.in_training:
        names = runs.names
        steps = sorted(set(runs.places.values()))
        over = f", {runs.unit} {steps[0]:g} to {steps[-1]:g}" if len(steps) > 1 else ""
        muted = f"{len(labels):,} networks{over}"
        if len(names) <= MOST_TITLES:
            return [*((name, "") for name in names[:-1]), (names[-1], f"({muted})")]
        return [(f"{len(names)} runs", f"({muted})")]
    return [(labels[0], ""), (labels[-1], f"({len(labels):,} networks)")]


def _facts(content: PageContent, ranked: Comparison) -> list[tuple[str, str]]:
    """Return the ranges of loss and accuracies, how many networks are at a minimum, and the cost."""
    reports = list(content.reports.values())

    def between(values: list[float | None], show: object) -> str:
        known = sorted(value for value in values if value is not None)
        ends = [show(value) for value in (known[0], known[-1])] if known else []  # type: ignore[operator]
        return " to ".join(dict.fromkeys(ends)) or MISSING

    found = [("loss", between([report.header.loss for report in reports], lambda value: plain(value, 3)))]
    if any(report.accuracy is not None for report in reports):
        found.append(("accuracy", between([report.accuracy for report in reports], percent)))
    tested = test_accuracies(content.reports, ranked.test)
    if tested:
        found.append(("test accuracy", between(list(tested.values()), percent)))
    standings = Counter(standing_of(report.header) for report in reports)
    words: dict[Standing | None, str] = {"yes": "yes", "no": "no", "not told": "not distinguishable from noise"}
    said = [f"{standings[key]:,} {text}" for key, text in words.items() if standings[key]]
    if said:
        found.append(("at a minimum", ", ".join(said)))
    cost = content.cost.words
    return [*found, ("cost", cost)] if cost else found


def _figure(content: PageContent, ranked: Comparison) -> Figure | None:
    """Return the curves of the first measure where the networks follow each other, else the networks in its order."""
    if content.runs.in_training:
        return epochs.signature(content)
    name = next(iter(measures_ranked(ranked)), None)
    return None if name is None else ranks_figure(content, ranked, name)


def _table(content: PageContent, ranked: Comparison) -> PageTable:
    """Return the flattest by each measure, with those it is not told apart from, and the flattest of the runs' ends."""
    runs = content.runs
    kept = at_minimum_or_untold(content.reports)
    among = kept or list(content.reports)
    ends = [label for label in runs.ends.values() if label in among] if len(runs.ends) < len(content.reports) else []
    rows = []
    for name in measures_ranked(ranked):
        ranking = ranked.rankings[name]
        best = ranking.best_of(among)
        if not best:
            continue
        first = best[0]
        without = "" if ranking.over_samples else "no error over samples"
        value, elsewhere = value_text(content.reports[first][name]), _elsewhere(ranking.order[0], first, content)
        cells = [
            Cell(content.title(name), small=name),
            Cell(runs.where(first), small=value + (f"; {elsewhere}" if elsewhere else "")),
            Cell(_tied(best[1:], content), small=without),
        ]
        if len(ends) > 1:
            at_end = ranking.best_of(ends)
            cells.append(Cell(", ".join(runs.runs[label] for label in at_end[:3]) + _more(len(at_end) - 3)))
        rows.append(TableRow(cells))
    columns = ["measure", "flattest", "not told apart from it"]
    if len(ends) > 1:
        columns.append("flattest at the runs' ends")
    left_out = len(content.reports) - len(among)
    note = f"{_held_together(ranked)} ± is one standard error of the computation."
    if left_out:
        which = f"{left_out:,} networks that {left_out_words(content.reports)}"
        note += f" {which} are left out here; the ranking below has all."
    return PageTable("first-table", columns, rows, note=note)


def _held_together(ranked: Comparison) -> str:
    return f"Told apart is what differs by more than its error, with 95%{ranked.together}."


def _elsewhere(best: str, first: str, content: PageContent) -> str:
    if best == first:
        return ""
    why = "hardly better than guessing" if content.reports[best].header.guessing else "not at a minimum"
    return f"of all: {content.runs.where(best)}, {why}"


def _tied(labels: list[str], content: PageContent) -> str:
    """Return ties in words: by their runs where they are many."""
    runs = content.runs
    if not labels:
        return "none"
    if len(labels) <= 2:
        return ", ".join(runs.where(label) for label in labels)
    if not runs.several:
        return f"{len(labels):,} others"
    counts = Counter(runs.runs[label] for label in labels)
    said = [f"{run} ({count})" for run, count in counts.most_common(3)]
    rest = len(labels) - sum(count for _, count in counts.most_common(3))
    return f"{len(labels):,} others: {', '.join(said)}" + (f" and {rest} more" if rest else "")


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""

"""The first screen of each kind of page."""

from __future__ import annotations

from spiritlevel.measures.registry import DEFAULT, MEASURES
from spiritlevel.page import cells, facts, many, sentences
from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.density import density
from spiritlevel.page.figures.ratios import ratio_figure
from spiritlevel.page.parts import Cell, Figure, First, PageTable, TableRow
from spiritlevel.page.sections import audit, claims, eigenvalues, epochs, layers, margins
from spiritlevel.results import Report
from spiritlevel.values.symmetries import RESCALINGS

MOST_COLUMNS = 4
MOST_ROWS = 10


def first_screen(content: PageContent) -> First:
    """Return the first screen of whatever the page is about."""
    screens = {
        "report": _of_report,
        "reports": _of_reports,
        "comparison": _of_comparison,
        "audit": _of_audit,
        "spectrum": _of_spectrum,
        "eigenvalues": eigenvalues.eigenvalue_screen,
        "study": _of_studies,
    }
    if content.ranked is not None:
        return many.ranked_screen(content)
    return screens[content.kind](content)


def _of_comparison(content: PageContent) -> First:
    comparison, letters = content.comparison, content.letters
    assert comparison is not None
    rows = []
    for name in measures_shown(content):
        row = comparison.rows.get(name)
        estimates = [report.get(name) for report in content.reports.values()]
        words = row.holding.words if row is not None else "not in every report"
        rows.append(
            TableRow(
                [
                    Cell(content.title(name), small=name),
                    *(cells.value_over_samples(e) for e in estimates),
                    cells.shared_how(estimates),
                    Cell(words),
                ]
            )
        )
    more = len(content.measures) - len(rows)
    table = PageTable(
        "first-table",
        ["measure", *letters.values(), "how", "does the ordering hold?"],
        rows,
        numeric=range(1, len(letters) + 1),
        note="± is one standard error of the computation; intervals in the figure are 95%"
        f"{comparison.together}, paired over samples where a measure has a value of each." + _more(more),
    )
    drawn = [name for name in measures_shown(content) if name in comparison.rows]
    return First(
        title=[(label, f"({letter})") for label, letter in letters.items()],
        settings=facts.settings_line(content.reports.values()),
        answer=sentences.answer_of_comparison(content),
        facts=facts.facts(content),
        notes=facts.notes(content),
        figure=ratio_figure(comparison, drawn, letters),
        table=table,
        kind="comparison",
        joined=" against " if len(letters) == 2 else ", ",
    )


def _of_audit(content: PageContent) -> First:
    label, found = next(iter(content.audits.items()))
    notes = [*(f"Contradiction: {text}" for text in found.contradictions), *facts.notes(content)]
    return First(
        title=[(label, "audited")],
        settings=facts.settings_line([found.base]),
        answer=sentences.answer_of_audit(content),
        facts=facts.facts(content),
        notes=notes,
        figure=audit.figure_of(content, found),
        table=_one_table(content),
        kind="audit",
    )


def _of_spectrum(content: PageContent) -> First:
    label, found = next(iter(content.spectra.items()))
    report = found.report()
    rows = [
        TableRow([Cell(report.title(name), small=name), cells.value_over_samples(e), cells.how(e)])
        for name, e in report.items()
    ]
    own = PageContent({label: report}, spectra=content.spectra, learning_rate=content.learning_rate)
    return First(
        title=[(label, "spectrum")],
        settings=facts.settings_line([report]),
        answer=sentences.answer_of_spectrum(own),
        facts=facts.facts(own),
        notes=facts.notes(own),
        figure=density(found, content.learning_rate, "density"),
        table=PageTable("first-table", ["quantity", "value", "how"], rows, note=" ".join(found.sentences), numeric=[1]),
        kind="spectrum",
    )


def _of_studies(content: PageContent) -> First:
    names = [record.study.title for record in content.studies]
    papers = list(dict.fromkeys(record.study.paper for record in content.studies))
    seconds = sum(record.seconds for record in content.studies)
    return First(
        title=[(name, "") for name in names] if len(names) <= 2 else [(f"{len(names)} studies", "")],
        settings=" · ".join([*papers, *dict.fromkeys(f"size {record.size}" for record in content.studies)]),
        answer=sentences.answer_of_studies(content),
        facts=[
            ("runs", f"{sum(r.finished for r in content.studies):,} of {sum(r.planned for r in content.studies):,}"),
            ("computing", f"{seconds:,.0f} s"),
        ],
        notes=[],
        figure=None,
        table=claims.claims_table(content.studies),
        kind="study",
        joined=" and ",
    )


def _of_reports(content: PageContent) -> First:
    """Return the first screen of several reports that were not compared."""
    places, unit = content.runs.places, content.runs.unit
    ends = content.runs.ends
    in_training = places if content.runs.in_training else None
    return First(
        title=[(run, "") for run in ends] if 0 < len(ends) <= MOST_COLUMNS else _several_title(content),
        settings=facts.settings_line(content.reports.values()),
        answer=(
            sentences.of_runs(content, ends, places, unit) if ends else sentences.of_several(content, in_training, unit)
        ),
        facts=facts.facts(content),
        notes=facts.notes(content),
        figure=epochs.signature(content),
        table=_several_table(content),
        kind="reports",
        joined=" to " if content.one_training else ", ",
    )


def _of_report(content: PageContent) -> First:
    label, report = next(iter(content.reports.items()))
    figure = layers.shares_figure(content, label)
    return First(
        title=[(label, "")],
        settings=facts.settings_line([report]),
        answer=sentences.answer_of_one(content),
        facts=facts.facts(content),
        notes=facts.notes(content),
        figure=figure or _margins_figure(content),
        table=_one_table(content),
    )


def measures_shown(content: PageContent) -> list[str]:
    """Return the default six, or where none of them was measured the first six that were."""
    return [name for name in DEFAULT if name in content.measures] or content.measures[:6]


def _one_table(content: PageContent) -> PageTable:
    rows = []
    for name in measures_shown(content):
        estimate = content.first[name]
        rows.append(
            TableRow(
                [
                    Cell(content.title(name), small=name),
                    cells.value_over_samples(estimate),
                    cells.how(estimate),
                    Cell(rescaling_words(content, name)),
                ]
            )
        )
    more = len(content.measures) - len(rows)
    source = "measured by the audit below" if content.audits else "as the measures declare; an audit measures it"
    note = f"± is one standard error of the computation. What rescaling does: {source}."
    return PageTable(
        "first-table",
        ["measure", "value", "how", "would rescaling change it?"],
        rows,
        note=note + _more(more),
        numeric=[1],
    )


def _more(count: int) -> str:
    return f" {count} more measure{'s' if count > 1 else ''} below." if count > 0 else ""


def rescaling_words(content: PageContent, name: str) -> str:
    """Return what rescaling does to a measure: as audited where it was, else as declared."""
    for each in content.audits.values():
        row = each.verdicts.get(name)
        if row:
            found = [row[s].verdict for s in RESCALINGS if s in row]
            if "changes" in found:
                return "yes, measured"
            if found and all(verdict == "invariant" for verdict in found):
                return "no, measured"
            return "undecided" if "undecided" in found else "no rescaling found"
    if name not in MEASURES:
        return "not declared"
    own = MEASURES[name].invariances
    by_layer, by_neuron, by_output = own["layer_rescaling"], own["neuron_rescaling"], own["output_scaling"]
    if by_layer is False:
        return "yes, by rescaling layers"
    if by_neuron is False:
        return "not by layers; by rescaling neurons"
    if by_layer is None or by_neuron is None:
        return "not declared"
    return "no; scales with the logits" if by_output is False else "no"


def _several_title(content: PageContent) -> list[tuple[str, str]]:
    labels = list(content.reports)
    if len(labels) <= MOST_COLUMNS:
        return [(label, "") for label in labels]
    return [(labels[0], ""), (labels[-1], f"({len(labels)} reports)")]


def _several_table(content: PageContent) -> PageTable:
    labels = list(content.reports)
    if len(labels) <= MOST_COLUMNS:
        rows = []
        for name in measures_shown(content):
            estimates = [report.get(name) for report in content.reports.values()]
            shown = [Cell(content.title(name), small=name), *(cells.value_over_samples(e) for e in estimates)]
            rows.append(TableRow([*shown, cells.shared_how(estimates)]))
        return PageTable("first-table", ["measure", *labels, "how"], rows, numeric=range(1, len(labels) + 1))
    names = measures_shown(content)[:3]
    rows = [
        TableRow(
            [
                Cell(label),
                cells.number_cell(report.loss, 3),
                *(cells.value_over_samples(report.get(name)) for name in names),
            ]
        )
        for label, report in _spaced(content)
    ]
    return PageTable(
        "first-table",
        ["weights", "loss", *(content.title(name) for name in names)],
        rows,
        numeric=range(1, len(names) + 2),
        note=f"{len(rows)} of {len(content.reports)} networks; all of them, by all {len(content.measures)} measures, "
        "are below.",
    )


def _spaced(content: PageContent) -> list[tuple[str, Report]]:
    """Return a few networks at even distances, the first and the last among them."""
    networks = list(content.reports.items())
    steps = min(len(networks), MOST_ROWS) - 1
    return [networks[round(step * (len(networks) - 1) / steps)] for step in range(steps + 1)]


def _margins_figure(content: PageContent) -> Figure | None:
    found = margins.section(content)
    return next((part for part in found.parts if isinstance(part, Figure)), None) if found else None

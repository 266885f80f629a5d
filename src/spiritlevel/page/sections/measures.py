"""All measures: every value, and behind each row its meaning, formula, citation, settings and layers."""

from __future__ import annotations

from dataclasses import replace

from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.registry import MEASURES
from spiritlevel.page import cells
from spiritlevel.page.content import MOST_ONE_BY_ONE, PageContent
from spiritlevel.page.parts import Cell, Explanation, PageTable, Part, Section, TableRow, Words
from spiritlevel.results.contrasts import contrast_words
from spiritlevel.results.numerals import MISSING
from spiritlevel.values.symmetries import SYMMETRIES

SHARPER = {"larger": "larger is sharper", "smaller": "smaller is sharper", "": ""}


def section(content: PageContent) -> Section | None:
    """Return the section of all measures of all networks."""
    if not content.measures:
        return None
    whole, content = content, replace(content, reports=content.shown)
    over_samples = not content.several and any(e.stderr_data is not None for e in content.first.values())
    columns = ["measure", *_value_columns(content), *(["over samples"] if over_samples else [])]
    columns += [*_ratio_columns(content), "how"]
    if content.comparison is not None:
        columns += ["flatter", "does the ordering hold?"]
    rows = [_row(content, name, over_samples) for name in content.measures]
    count = len(rows)
    table = PageTable(
        "all-measures",
        columns,
        rows,
        tools=True,
        numeric=range(1, 1 + len(content.reports) + over_samples),
        note="± after a value is one standard error of the computation; a value without one was not sampled."
        + (" Over samples: one standard error from the samples being these and not others." if over_samples else ""),
    )
    parts: list[Part] = [table]
    if len(whole.reports) > len(content.reports) and whole.ranked is not None and not whole.one_training:
        name = next(iter(whole.ranked.rankings), "")
        by = f"Of {len(whole.reports):,} networks the flattest and the sharpest by {whole.words(name)} are shown."
        parts.insert(0, Words(by))
    if len(whole.reports) > len(content.reports) and whole.ranked is None:  # the ranking has them all
        parts.append(_by_network(whole))
    fell_short = sum(not e.ok for report in whole.reports.values() for e in report.values())
    summary = f"{count} measure{'s' if count != 1 else ''}" + (f", {fell_short} fell short" if fell_short else "")
    return Section("measures", "All measures", summary, parts)


def _by_network(content: PageContent) -> PageTable:
    """Return all networks as rows, where they are too many for columns."""
    columns = ["weights", "loss", *(content.title(name) for name in content.measures)]
    rows = [
        TableRow(
            [Cell(label), cells.number_cell(report.loss, 4), *(cells.value(report.get(n)) for n in content.measures)]
        )
        for label, report in content.reports.items()
    ]
    return PageTable("networks", columns, rows, caption="All networks", tools=True, numeric=range(1, len(columns)))


def _value_columns(content: PageContent) -> list[str]:
    return list(content.reports) if content.several else ["value"]


def _ratio_columns(content: PageContent) -> list[str]:
    if content.comparison is None:
        return []
    first, *others = content.reports
    return [f"{content.letters[other]} ÷ {content.letters[first]} (95%)" for other in others]


def _compared(content: PageContent, name: str) -> tuple[list[Cell], list[Cell]]:
    """Return the ratios, and who is flatter with whether that holds."""
    if content.comparison is None:
        return [], []
    row = content.comparison.rows.get(name)
    first, *others = content.reports
    if row is None:
        return [Cell(MISSING) for _ in others], [Cell(MISSING), Cell("not in every report")]
    contrasts = [row.between(first, other) for other in others]
    ratios = [
        Cell(contrast_words(c), value=c.ratio.value if c is not None and c.ratio is not None else None)
        for c in contrasts
    ]
    few = 2 < len(content.comparison.labels) <= MOST_ONE_BY_ONE
    ranking = content.comparison.rankings.get(name) if few else None
    return ratios, [Cell(row.flattest or MISSING, ranking.words if ranking else ""), Cell(row.holding.words)]


def _row(content: PageContent, name: str, over_samples: bool) -> TableRow:
    estimates = [report.get(name) for report in content.reports.values()]
    title = content.title(name)
    held = next((e for e in estimates if e is not None), None)
    ratios, ordering = _compared(content, name)
    row = [
        Cell(title, small=name),
        *(cells.value(e) for e in estimates),
        *([cells.over_samples(held)] if over_samples else []),
        *ratios,
        cells.shared_how(estimates),
        *ordering,
    ]
    return TableRow(row, more=explanations(content, name), below=_layers(content, name, over_samples))


def explanations(content: PageContent, name: str) -> list[Explanation]:
    """Return what is known of a measure: meaning, formula, source, what changes it, its settings."""
    own = MEASURES.get(name)
    found = []
    if own is not None:
        found.append(Explanation("meaning", own.meaning))
        found.append(Explanation("formula", own.formula, formula=True))
        found.append(Explanation("from", own.citation))
        if own.sharper_when:
            found.append(Explanation("reading", SHARPER[own.sharper_when]))
        found.append(Explanation("declared", declared_words(own)))
    else:
        found.append(Explanation("declared", "a measure of your own; its declaration is not part of the report"))
    settings = {
        label: ", ".join(f"{key}={value!r}" for key, value in report.settings.get(name, {}).items())
        for label, report in content.reports.items()
    }
    if len(set(settings.values())) == 1:
        settings = {"": next(iter(settings.values()))}
    for label, text in settings.items():
        if text:
            found.append(Explanation("settings" + (f" ({label})" if label else ""), text))
    for label, report in content.reports.items():
        estimate = report.get(name)
        if estimate is not None and estimate.reason:
            found.append(Explanation("remark" + (f" ({label})" if content.several else ""), estimate.reason))
    return list(dict.fromkeys(found))


def declared_words(own: Measure) -> str:
    """Return what a measure declares about the symmetries, in words."""
    kept, changed = (
        [each.words for each in SYMMETRIES.values() if own.invariances[each.name] is answer] for answer in (True, False)
    )
    parts = ([f"unchanged by {', '.join(kept)}"] if kept else []) + (
        [f"changed by {', '.join(changed)}"] if changed else []
    )
    return "; ".join(parts) or "nothing about rescaling"


def _layers(content: PageContent, name: str, over_samples: bool) -> list[list[Cell]]:
    own = MEASURES.get(name)
    quantities = own.layer_quantities if own is not None else (name,)
    rows = []
    blank = [Cell("") for _ in _ratio_columns(content)]
    for quantity in quantities:
        by_network = [report.per_layer.get(quantity, {}) for report in content.reports.values()]
        for layer in dict.fromkeys(layer for found in by_network for layer in found):
            estimates = [found.get(layer) for found in by_network]
            held = next(e for e in estimates if e is not None)
            rows.append(
                [
                    Cell(layer, small=quantity if len(quantities) > 1 or quantity != name else ""),
                    *(cells.value(e) for e in estimates),
                    *([cells.over_samples(held)] if over_samples else []),
                    *blank,
                    cells.shared_how(estimates),
                    *([Cell(""), Cell("")] if content.comparison is not None else []),
                ]
            )
    return rows

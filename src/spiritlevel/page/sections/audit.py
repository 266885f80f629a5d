"""The audit: a heat map of verdicts, every trial behind them, and the sweep over scaled outputs."""

from __future__ import annotations

from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.curves import relative_curves
from spiritlevel.page.figures.heat import heat_map
from spiritlevel.page.parts import Cell, Figure, PageTable, Part, Section, TableRow, Words
from spiritlevel.results.audits import Audit
from spiritlevel.results.numerals import MISSING, plain, value_text
from spiritlevel.values.symmetries import SYMMETRY_WORDS


def section(content: PageContent) -> Section | None:
    """Return the section of the audits."""
    parts: list[Part] = []
    for position, (label, audit) in enumerate(content.audits.items()):
        suffix = "" if position == 0 else f"_{position + 1}"
        if len(content.audits) > 1:
            parts.append(Words("", strong=label))
        parts += [Words(text + ".", strong="Contradiction:") for text in audit.contradictions]
        if position or content.kind != "audit":
            parts.append(figure_of(content, audit, f"audit{suffix}"))
        parts.append(verdict_table(content, audit, f"verdicts{suffix.replace('_', '-')}"))
        parts += [Words(text) for text in audit.notes]
    if not parts:
        return None
    count = sum(len(audit.verdicts) for audit in content.audits.values())
    contradictions = sum(len(audit.contradictions) for audit in content.audits.values())
    summary = f"{count} measures before and after each change" + (
        f", {contradictions} contradict their declaration" if contradictions else ""
    )
    return Section("audit", "Audit", summary, parts)


def figure_of(content: PageContent, audit: Audit, name: str = "audit") -> Figure:
    """Return the heat map of one audit."""
    return heat_map(audit, {measure: content.title(measure) for measure in audit.verdicts}, name)


def verdict_table(content: PageContent, audit: Audit, name: str) -> PageTable:
    """Return the verdicts in words; behind each row are its trials."""
    symmetries = [s for s in SYMMETRY_WORDS if any(s in row for row in audit.verdicts.values())]
    rows = []
    for measure, row in audit.verdicts.items():
        cells = [Cell(content.title(measure), small=measure)]
        below = []
        for symmetry in symmetries:
            verdict = row.get(symmetry)
            if verdict is None:
                cells.append(Cell(MISSING, kind="missing"))
                continue
            kind = "contradiction" if verdict.contradiction else verdict.verdict.replace(" ", "-")
            cells.append(Cell(verdict.words, value=verdict.factor, kind=kind))
            for trial in verdict.trials:
                words = f"{value_text(trial.before)} → {value_text(trial.after)}, {trial.verdict}"
                blank = [Cell("") for _ in symmetries]
                blank[symmetries.index(symmetry)] = Cell(words, small=trial.reason)
                below.append([Cell(trial.strength or SYMMETRY_WORDS[symmetry]), *blank])
        rows.append(TableRow(cells, below=below))
    strengths = ", ".join(f"{key} {low:g} to {high:g}" for key, (low, high) in audit.strengths.items())
    return PageTable(
        name,
        ["measure", *(SYMMETRY_WORDS[s] for s in symmetries)],
        rows,
        tools=True,
        note=f"Factors drawn from: {strengths}. A row unfolds to its trials, before → after.",
    )


def sweep_section(content: PageContent) -> Section | None:
    """Return the section of the sweep over T_α."""
    parts: list[Part] = []
    for position, (label, audit) in enumerate(content.audits.items()):
        sweep = audit.sweep
        if sweep is None:
            continue
        suffix = "" if position == 0 else f"_{position + 1}"
        if len(content.audits) > 1:
            parts.append(Words("", strong=label))
        values = {
            sweep.titles.get(name, name): [
                (alpha, e.value) for alpha, e in zip(sweep.alphas, row) if e.status in ("ok", "budget_spent")
            ]
            for name, row in sweep.values.items()
        }
        figure = relative_curves(values, "α", f"output_scaling{suffix}", "Outputs scaled by α", base=1.0, places="log")
        if figure is not None:
            parts.append(figure)
        rows = [TableRow([Cell("loss"), *(Cell(plain(loss, 3), value=loss) for loss in sweep.losses)])]
        rows += [
            TableRow(
                [
                    Cell(sweep.titles.get(name, name), small=name),
                    *(
                        Cell(plain(e.value, 3), value=e.value) if e.status in ("ok", "budget_spent") else Cell(MISSING)
                        for e in row
                    ),
                ]
            )
            for name, row in sweep.values.items()
        ]
        parts.append(
            PageTable(
                f"sweep{suffix.replace('_', '-')}",
                ["", *(f"α = {alpha:g}" for alpha in sweep.alphas)],
                rows,
                numeric=range(1, len(sweep.alphas) + 1),
                note="Scaling all outputs through the last layer keeps every predicted class.",
            )
        )
    return (
        Section("sweep", "Scaled outputs (T_α)", "what confidence alone does to each measure", parts) if parts else None
    )

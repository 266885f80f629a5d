"""Studies: the paper's claims with what was measured and the verdict, and the figures."""

from __future__ import annotations

import io

from spiritlevel.page.content import PageContent, StudyRecord
from spiritlevel.page.parts import Cell, CommandLines, Explanation, PageTable, Part, Picture, Section, TableRow, Words

KINDS = {"holds": "holds", "does not hold": "fails", "undecided": "undecided"}


def claims_table(records: tuple[StudyRecord, ...], name: str = "claims") -> PageTable:
    """Return all claims; behind each is the rule that decided and, where it fails, why."""
    rows = []
    for record in records:
        for each in record.judgements:
            verdict = each.verdict if record.finished else f"not run: {record.study.unrun}"
            more = [
                Explanation("study", f"{record.study.name}: {record.study.title} ({record.study.paper})"),
                Explanation("place", each.claim.place),
                Explanation("rule", " and ".join(str(rule) for rule in each.claim.rules)),
            ]
            if each.remark:
                more.append(Explanation("remark", each.remark))
            rows.append(
                TableRow(
                    [
                        Cell(each.claim.statement, small=f"{record.study.name}, {each.claim.place}"),
                        Cell(each.claim.paper),
                        Cell(each.words),
                        Cell(verdict, kind=KINDS.get(each.verdict, "undecided") if record.finished else "missing"),
                        Cell(f"{record.size}, {record.behind(each)}"),
                    ],
                    more=more,
                )
            )
    return PageTable(name, ["claim", "the paper", "measured", "verdict", "size, runs"], rows, tools=len(rows) > 3)


def section(content: PageContent) -> Section | None:
    """Return the section of the studies' figures, quantities and departures."""
    parts: list[Part] = []
    for record in content.studies:
        parts.append(Words(f"{record.study.paper}. {_runs(record)}", strong=record.study.title + "."))
        parts += pictures(record)
        parts += [Words(line, strong="Departure from the paper:") for line in record.study.departures(record.size)]
        rows = [
            TableRow([Cell(name), Cell(str(quantity), value=quantity.value), Cell(f"{quantity.count} {quantity.unit}")])
            for name, quantity in record.analysis.items()
        ]
        if rows:
            parts.append(PageTable(f"quantities-{record.study.name}", ["quantity", "value", "behind it"], rows))
        parts.append(CommandLines(record.command))
    count = len(content.studies)
    summary = f"{count} stud{'y' if count == 1 else 'ies'}: figures, quantities, departures from the paper"
    return Section("studies", "Studies", summary, parts, opened=content.kind == "study") if parts else None


def pictures(record: StudyRecord) -> list[Picture]:
    """Return the study's own figures, drawn from its runs."""
    if not record.finished:
        return []
    drawn = []
    for name, function in record.study.figures.items():
        stream = io.BytesIO()
        function(record.table).savefig(stream, format="png", dpi=110, metadata={"Software": None})
        numbers = "; ".join(f"{key} = {quantity}" for key, quantity in list(record.analysis.items())[:8])
        drawn.append(Picture(stream.getvalue(), f"{record.study.title}, figure {name}. {numbers}.", name))
    return drawn


def _runs(record: StudyRecord) -> str:
    return f"Size {record.size}, {record.finished} of {record.planned} runs, {record.seconds:,.0f} s of computing."

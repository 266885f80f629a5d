"""The spectrum: density, Ritz values and the numbers that come with them."""

from __future__ import annotations

from spiritlevel.page import cells
from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.density import density, stems
from spiritlevel.page.parts import Cell, PageTable, Part, Section, TableRow, Words


def section(content: PageContent) -> Section | None:
    """Return the section of the spectra."""
    parts: list[Part] = []
    for position, (label, spectrum) in enumerate(content.spectra.items()):
        suffix = "" if position == 0 else f"_{position + 1}"
        if len(content.spectra) > 1:
            parts.append(Words("", strong=label))
        if position or content.kind != "spectrum":
            parts.append(density(spectrum, content.learning_rate, f"density{suffix}"))
        parts.append(stems(spectrum, content.learning_rate, f"ritz_values{suffix}"))
        report = spectrum.report()
        rows = [
            TableRow([Cell(report.title(name), small=name), cells.value(e), cells.how(e)]) for name, e in report.items()
        ]
        parts.append(
            PageTable(f"spectrum-numbers{suffix.replace('_', '-')}", ["quantity", "value", "how"], rows, numeric=[1])
        )
    return Section("spectrum", "Spectrum", "eigenvalues with certificates", parts) if parts else None

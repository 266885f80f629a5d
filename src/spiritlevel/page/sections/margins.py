"""Margins as distributions, with quartiles and skewness."""

from __future__ import annotations

import numpy as np
from scipy.stats import skew

from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.distributions import distribution
from spiritlevel.page.parts import Cell, PageTable, Part, Section, TableRow
from spiritlevel.results.numerals import MISSING, plain

QUANTITIES = ("output_margin", "softmax_margin")
POINTS = {"least": 0.0, "first quartile": 0.25, "median": 0.5, "third quartile": 0.75, "largest": 1.0}


def section(content: PageContent) -> Section | None:
    """Return the section of the margins that were measured per sample."""
    parts: list[Part] = []
    summary = ""
    for quantity in QUANTITIES:
        samples = {
            label: values[np.isfinite(values)]
            for label, report in content.reports.items()
            if quantity in report.per_sample
            for values in [report.per_sample[quantity].double().numpy()]
        }
        samples = {label: values for label, values in samples.items() if len(values)}
        if not samples:
            continue
        medians = {label: float(np.median(values)) for label, values in samples.items()}
        drawn = {label: values for label, values in samples.items() if label in content.shown} or samples
        parts.append(
            distribution(
                drawn, content.title(quantity), f"{quantity}_distribution", {label: medians[label] for label in drawn}
            )
        )
        rows = []
        for label, values in samples.items():
            quantiles = np.quantile(values, list(POINTS.values()))
            skewness = float(skew(values)) if np.ptp(values) > 0 else None
            rows.append(
                TableRow(
                    [
                        Cell(label),
                        Cell(f"{len(values):,}", value=len(values)),
                        *(Cell(plain(float(q), 4), value=float(q)) for q in quantiles),
                        Cell(MISSING if skewness is None else plain(skewness, 3), value=skewness),
                        Cell(f"{int((values <= 0).sum()):,}", value=int((values <= 0).sum())),
                    ]
                )
            )
        parts.append(
            PageTable(
                f"{quantity}-quartiles",
                ["network", "samples", *POINTS, "skewness", "at or below zero"],
                rows,
                caption=content.title(quantity),
                numeric=range(1, 9),
            )
        )
        if not summary:
            shown = [plain(medians[label], 3) for label in drawn]
            joint = " → " if len(drawn) < len(medians) and content.one_training else " / "
            summary = f"{content.title(quantity)}, median {joint.join(shown)}"
    return Section("margins", "Margins", summary, parts) if parts else None

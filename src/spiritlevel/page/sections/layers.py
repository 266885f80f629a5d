"""Every quantity that was measured per layer, a row a layer."""

from __future__ import annotations

from dataclasses import replace

from spiritlevel.page import cells
from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.shares import layer_shares
from spiritlevel.page.parts import Cell, Figure, PageTable, Part, Section, TableRow, Words

INVARIANT = ("normalized_sharpness", "rho_sum", "rho", "fisher_rao_diagonal")
TRACE = "hessian_trace"


def section(content: PageContent) -> Section | None:
    """Return the section of layers, one table a network."""
    parts: list[Part] = []
    for position, (label, report) in enumerate(content.shown.items()):
        if not report.per_layer:
            continue
        if content.kind != "report" and (figure := shares_figure(content, label, f"layer_shares_{position + 1}")):
            parts.append(figure)
        layers = list(dict.fromkeys(layer for values in report.per_layer.values() for layer in values))
        quantities = list(report.per_layer)
        rows = [
            TableRow([Cell(layer), *(cells.value(report.per_layer[quantity].get(layer)) for quantity in quantities)])
            for layer in layers
        ]
        parts.append(
            PageTable(
                f"layers-{position + 1}",
                ["layer", *(content.title(quantity) for quantity in quantities)],
                rows,
                caption=label if content.several else "",
                numeric=range(1, len(quantities) + 1),
                tools=len(layers) > 3,
            )
        )
    if not parts:
        return None
    count = len(dict.fromkeys(layer for r in content.reports.values() for q in r.per_layer.values() for layer in q))
    if len(content.shown) < len(content.reports):
        parts.append(Words(f"{' and '.join(content.shown)} are shown, of {len(content.reports)} networks."))
    return Section("layers", "Layers", f"{count} layers", parts)


def shares_figure(content: PageContent, label: str, name: str = "layer_shares") -> Figure | None:
    """Return the figure of the layers' share of the trace beside an invariant share."""
    report = content.reports[label]
    invariant = next((quantity for quantity in INVARIANT if quantity in report.per_layer), None)
    names = [quantity for quantity in (TRACE, invariant) if quantity is not None and quantity in report.per_layer]
    usable = {
        quantity: {
            layer: e.value for layer, e in report.per_layer[quantity].items() if e.status in ("ok", "budget_spent")
        }
        for quantity in names
    }
    titles = {quantity: quantity_words(content, quantity) for quantity in names}
    drawn = layer_shares(usable, titles, name)
    if drawn is None or not content.several:
        return drawn
    return replace(drawn, title=f"{drawn.title}: {label}")


def quantity_words(content: PageContent, quantity: str) -> str:
    """Return a layer quantity in words, with what rescaling does to it."""
    title = content.title(quantity)
    if quantity == TRACE:
        return f"{title} (rescaling moves it)"
    return f"{title} (rescaling cannot)"

"""Small figures for the studies, drawn with matplotlib where it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spiritlevel.results.writing import replacing
from spiritlevel.values.extras import need_of_extra

COLOURS = ("#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#787774")


def panels(count: int = 1, *, width: float = 3.4, height: float = 2.7) -> tuple[Any, list[Any]]:
    """Return a figure with panels side by side."""
    figure_class = need_of_extra("matplotlib.figure", "a study's figure", "studies").Figure
    figure = figure_class(figsize=(width * count, height), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=7)
        axis.tick_params(which="minor", labelsize=5)  # 3 × 10³ and 4 × 10³ stand close together
    return figure, list(axes)


def label(axis: Any, x: str, y: str, title: str = "") -> None:
    """Name the axes."""
    axis.set_xlabel(x, fontsize=8)
    axis.set_ylabel(y, fontsize=8)
    axis.set_title(title, fontsize=8)


def dots(axis: Any, groups: Mapping[str, tuple[Any, Any]]) -> None:
    """Draw named clouds of points."""
    for colour, (name, (x, y)) in zip(COLOURS, groups.items()):
        axis.scatter(x, y, s=7, alpha=0.6, color=colour, label=name, linewidths=0)
    if len(groups) > 1:
        axis.legend(fontsize=6, frameon=False)


def lines(axis: Any, groups: Mapping[str, tuple[Any, Any]], marker: str = "o") -> None:
    """Draw named lines."""
    for colour, (name, (x, y)) in zip(COLOURS * 4, groups.items()):
        axis.plot(x, y, marker=marker, markersize=2.5, linewidth=1, color=colour, label=name)
    if len(groups) > 1:
        axis.legend(fontsize=6, frameon=False)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as a small PNG."""
    with replacing(path, "wb") as stream:
        figure.savefig(stream, format="png", dpi=110, metadata={"Software": None})

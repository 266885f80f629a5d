"""A spectrum as an image: the stem of Ritz values on a log axis, and the smoothed density with its band."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from spiritlevel.results.spectrum_result import Spectrum
from spiritlevel.results.wording import matrix_words
from spiritlevel.results.writing import replacing
from spiritlevel.values.cleaning import for_page
from spiritlevel.values.errors import UsageError
from spiritlevel.values.extras import need_of_extra

SMALLEST_WEIGHT = 1e-12  # of a stem that is drawn


def check_figure(path: str | os.PathLike[str]) -> str:
    """Return the image format of a file name, refusing what cannot be drawn before any work is done for it."""
    ending = Path(path).suffix.lower().lstrip(".")
    if ending not in ("png", "pdf", "svg"):
        raise UsageError(f"the figure {path} must end in .png, .pdf or .svg")
    _pyplot()
    return ending


def write_figure(spectrum: Spectrum, path: str | os.PathLike[str]) -> None:
    """Write both panels to a file; it appears whole or not at all."""
    kind = check_figure(path)
    figure_class = _pyplot()
    figure = figure_class(figsize=(10, 4), layout="constrained")
    stems, smooth = figure.subplots(1, 2)
    _draw_stems(stems, spectrum)
    _draw_density(smooth, spectrum)
    figure.suptitle(_title(spectrum))
    with replacing(path, "wb") as stream:
        figure.savefig(stream, format=kind, dpi=150)


def _pyplot() -> Any:
    # Without pyplot: no state of the user's own figures is touched.
    return need_of_extra("matplotlib.figure", "a figure", "page", UsageError).Figure


def _draw_stems(axes: Any, spectrum: Spectrum) -> None:
    """Each probe's Ritz values with their weights; the mean weight over probes of a value is the density's."""
    nodes, weights = spectrum.nodes.flatten(), spectrum.weights.flatten() / len(spectrum.nodes)
    shown = weights > SMALLEST_WEIGHT
    axes.vlines(nodes[shown].numpy(), SMALLEST_WEIGHT, weights[shown].numpy(), color="tab:blue", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylim(bottom=float(weights[shown].min()) / 3)
    for estimate, label in ((spectrum.eigenvalue_max, "largest"), (spectrum.eigenvalue_min, "smallest")):
        axes.axvline(estimate.value, color="tab:red", linestyle=":", linewidth=0.8)
        axes.annotate(f"{label}\n{estimate.value:.3g}", (estimate.value, 0.97), xycoords=("data", "axes fraction"),
                      ha="center", va="top", fontsize=7, color="tab:red")  # fmt: skip
    axes.set_xlabel("Ritz value")
    axes.set_ylabel("share of the eigenvalues (log)")
    axes.set_title("Ritz values of all probes with their weights", fontsize=8)


def _draw_density(axes: Any, spectrum: Spectrum) -> None:
    band = spectrum.density()
    grid, mean = band.grid.numpy(), band.mean.numpy()
    axes.semilogy(grid, mean, color="tab:blue")
    if bool(torch.isfinite(band.stderr).all()):
        low = (band.mean - 2 * band.stderr).clamp_min(1e-300).numpy()
        axes.fill_between(grid, low, (band.mean + 2 * band.stderr).numpy(), alpha=0.3, color="tab:blue", linewidth=0)
    peak = float(band.mean.max())
    axes.set_ylim(peak * 1e-8, peak * 3)
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density (log)")
    axes.set_title(f"kernel width {band.kernel_width:.2g} · band ± 2 standard errors over probes", fontsize=8)


def _title(spectrum: Spectrum) -> str:
    name = matrix_words(spectrum.operator)
    head = spectrum.header
    where = f" · {for_page(str(head.model))}" if head.model else ""
    text = (
        f"Spectrum of the {for_page(name)}{where} · {len(spectrum.nodes)} probes × {spectrum.nodes.shape[1]} steps · "
        f"{spectrum.size:,} parameters"
    )
    return text.replace("$", r"\$")  # between two of them matplotlib would look for a formula

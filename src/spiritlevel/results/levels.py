"""What a row of a data frame can be, for each kind of result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spiritlevel.results.frames import ESTIMATE_COLUMNS, Level, estimate_cells, layer_rows, network_rows
from spiritlevel.values.estimate import Estimate

if TYPE_CHECKING:
    from spiritlevel.results.audits import Audit
    from spiritlevel.results.compared import Comparison
    from spiritlevel.results.eigenpairs import Eigenvalues
    from spiritlevel.results.report import Report
    from spiritlevel.results.spectrum_result import Spectrum

FrameRows = list[dict[str, Any]]


def _neurons(report: Report) -> FrameRows:
    return [
        {"quantity": quantity, "layer": layer, "neuron": neuron, "value": value}
        for quantity, layers in report.per_neuron.items()
        for layer, values in layers.items()
        for neuron, value in enumerate(values)
    ]


def _samples(report: Report) -> Any:
    return {name: values.double().numpy() for name, values in report.per_sample.items()}


def _sample_index(report: Report) -> tuple[str, Sequence[Any]]:
    name, index = report.sample_index()
    return name, index.tolist()


REPORT = {
    "network": Level("a row a measure", ("measure", "title", *ESTIMATE_COLUMNS), network_rows),
    "layer": Level("a row a quantity and layer", ("quantity", "layer", *ESTIMATE_COLUMNS), layer_rows),
    "neuron": Level("a row a quantity and neuron", ("quantity", "layer", "neuron", "value"), _neurons),
    "sample": Level("a row a sample", (), _samples, _sample_index),
}


def _by_network(own: Mapping[str, Report], rows: Any) -> FrameRows:
    return [{"network": label, **row} for label, report in own.items() for row in rows(report)]


def _compared_networks(found: Comparison) -> FrameRows:
    rows = _by_network(found.reports, network_rows)
    for row in rows:
        ranking = found.rankings.get(row["measure"])
        row["letters"] = None if ranking is None else ranking.letters.get(row["network"])
    return rows


def _compared_measures(found: Comparison) -> FrameRows:
    return [
        {
            "measure": name,
            "title": row.title,
            "sharper_when": row.sharper_when,
            "flattest": row.flattest,
            "pairs": len(row.contrasts),
            "decided": sum(contrast.decided for contrast in row.contrasts),
            "holding": row.holding.kind,
            "words": row.holding.words,
            "reversed_by": None if row.holding.reversal is None else row.holding.reversal.factor,
        }
        for name, row in found.rows.items()
    ]


def _pairs(found: Comparison) -> FrameRows:
    return [
        {
            "measure": name,
            "title": row.title,
            "first": contrast.first,
            "second": contrast.second,
            "scale": contrast.scale,
            "value": contrast.interval.value,
            "interval_low": contrast.interval.low,
            "interval_high": contrast.interval.high,
            "decided": contrast.decided,
            "flatter": contrast.flatter,
            "over_samples": contrast.over_samples,
        }
        for name, row in found.rows.items()
        for contrast in row.contrasts
    ]


COMPARISON = {
    "measure": Level(
        "a row a measure",
        ("measure", "title", "sharper_when", "flattest", "pairs", "decided", "holding", "words", "reversed_by"),
        _compared_measures,
    ),
    "pair": Level(
        "a row a measure and pair, second against first",
        (
            "measure", "title", "first", "second", "scale", "value", "interval_low", "interval_high", "decided",
            "flatter", "over_samples",
        ),
        _pairs,
    ),
    "network": Level(
        "a row a network and measure",
        ("network", "measure", "title", "letters", *ESTIMATE_COLUMNS),
        _compared_networks,
    ),
    "layer": Level(
        "a row a network, quantity and layer",
        ("network", "quantity", "layer", *ESTIMATE_COLUMNS),
        lambda found: _by_network(found.reports, layer_rows),
    ),
}  # fmt: skip


def _verdicts(audit: Audit) -> FrameRows:
    return [
        {
            "measure": name,
            "title": audit.base.title(name),
            "symmetry": symmetry,
            "verdict": verdict.verdict,
            "factor": verdict.factor,
            "declared": verdict.declared,
            "contradiction": verdict.contradiction,
        }
        for name, row in audit.verdicts.items()
        for symmetry, verdict in row.items()
    ]


def _trials(audit: Audit) -> FrameRows:
    return [
        {
            "measure": name,
            "symmetry": symmetry,
            "strength": trial.strength,
            "verdict": trial.verdict,
            "factor": trial.factor,
            **_ends("before", trial.before),
            **_ends("after", trial.after),
            "reason": trial.reason,
        }
        for name, row in audit.verdicts.items()
        for symmetry, verdict in row.items()
        for trial in verdict.trials
    ]


def _ends(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_stderr": estimate.stderr}


def _sweep(audit: Audit) -> FrameRows:
    if audit.sweep is None:
        return []
    return [
        {"alpha": alpha, "loss": loss, "accuracy": accuracy, "measure": name, **estimate_cells(estimates[place])}
        for place, (alpha, loss, accuracy) in enumerate(
            zip(audit.sweep.alphas, audit.sweep.losses, audit.sweep.accuracies)
        )
        for name, estimates in audit.sweep.values.items()
    ]


AUDIT = {
    "verdict": Level(
        "a row a measure and symmetry",
        ("measure", "title", "symmetry", "verdict", "factor", "declared", "contradiction"),
        _verdicts,
    ),
    "trial": Level(
        "a row a measure, symmetry and strength",
        (
            "measure", "symmetry", "strength", "verdict", "factor", "before", "before_stderr", "after", "after_stderr",
            "reason",
        ),
        _trials,
    ),
    "sweep": Level(
        "a row a scale α of the outputs and measure",
        ("alpha", "loss", "accuracy", "measure", *ESTIMATE_COLUMNS),
        _sweep,
    ),
    "network": Level(
        "a row a measure, before any change", REPORT["network"].columns, lambda audit: network_rows(audit.base)
    ),
}  # fmt: skip


def _nodes(spectrum: Spectrum) -> FrameRows:
    columns = (spectrum.nodes, spectrum.weights, spectrum.residuals)
    return [
        {"probe": probe, "node": node, "weight": weight, "residual": residual}
        for probe, parts in enumerate(zip(*(part.tolist() for part in columns)))
        for node, weight, residual in zip(*parts)
    ]


def _density(spectrum: Spectrum) -> FrameRows:
    band = spectrum.density()
    parts = (band.grid, band.mean, band.stderr)
    return [
        {"eigenvalue": place, "density": density, "stderr": error}
        for place, density, error in zip(*(part.tolist() for part in parts))
    ]


def _eigenvalues(values: Sequence[float], residuals: Sequence[float]) -> FrameRows:
    return [
        {"value": value, "residual": residual, "interval_low": value - residual, "interval_high": value + residual}
        for value, residual in zip(values, residuals)
    ]


_EIGENVALUE = ("value", "residual", "interval_low", "interval_high")
SPECTRUM = {
    "quantity": Level("a row a number", REPORT["network"].columns, lambda found: network_rows(found.report())),
    "eigenvalue": Level(
        "a row an eigenvalue that converged, the largest first",
        _EIGENVALUE,
        lambda found: _eigenvalues(found.top_values.tolist(), found.top_residuals.tolist()),
    ),
    "node": Level("a row a probe and Ritz value", ("probe", "node", "weight", "residual"), _nodes),
    "density": Level("a row a place of the smoothed density", ("eigenvalue", "density", "stderr"), _density),
}


def _pairs_found(found: Eigenvalues) -> FrameRows:
    return _eigenvalues(found.values.tolist(), found.residuals.tolist())


EIGENVALUES = {"eigenvalue": Level("a row an eigenvalue, in the order asked for", _EIGENVALUE, _pairs_found)}

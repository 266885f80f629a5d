"""Spectra and eigenvalues of networks against dense matrices: extremes, sums, density, budgets, memory, files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.analyses.eigenvalue_search import operator_named
from spiritlevel.analyses.spectrum_plan import plan_spectrum
from spiritlevel.engine.problem import Problem
from spiritlevel.measures.reference.dense import Dense
from spiritlevel.results.spectrum_result import Spectrum
from spiritlevel.values.errors import SpiritlevelError, UsageError
from tests.networks import PIECEWISE_LINEAR, SMOOTH

ROUNDING = 1e-9


def network(seed: int = 0, smooth: bool = True) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A small trained classifier with BatchNorm, and its data: under 300 parameters."""
    torch.manual_seed(seed)
    middle = nn.Tanh() if smooth else nn.ReLU()
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), middle, nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    model = model.double()
    x, y = torch.randn(27, 5, dtype=torch.float64), torch.randint(0, 3, (27,))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, (x, y)


def block_of(dense: Dense, names: list[str]) -> Tensor:
    index = torch.cat([torch.arange(dense.slices[name].start, dense.slices[name].stop) for name in names])
    return dense.hessian[index][:, index]


def check_against(spectrum: Spectrum, matrix: Tensor) -> None:
    """Every number of the spectrum against the eigenvalues of the dense matrix."""
    exact = torch.linalg.eigvalsh(matrix)
    norm = float(exact.abs().max())
    assert spectrum.size == len(exact)
    for estimate, value in ((spectrum.eigenvalue_max, exact[-1]), (spectrum.eigenvalue_min, exact[0])):
        assert estimate.ok, estimate.reason
        assert estimate.interval is not None
        low, high = estimate.interval
        assert low - ROUNDING * norm <= float(value) <= high + ROUNDING * norm
    squares = float(exact.square().sum())
    assert abs(spectrum.frobenius_squared.value - squares) <= 6 * spectrum.frobenius_squared.stderr + ROUNDING * squares
    trace = spectrum.trace
    assert abs(trace.value - float(exact.sum())) <= 6 * trace.stderr + ROUNDING * norm
    if trace.how == "exact":
        assert trace.value == pytest.approx(float(exact.sum()), rel=1e-10)
    torch.testing.assert_close(spectrum.weights.sum(1), torch.ones(len(spectrum.weights), dtype=torch.float64))
    nearest = (spectrum.nodes[..., None] - exact).abs().amin(-1)
    assert bool((nearest <= spectrum.residuals + ROUNDING * norm).all())
    negative = spectrum.negative_mass
    true_share = float((exact < -1e-12 * norm).double().mean())
    low, high = negative.details.get("bounds", (negative.value, negative.value))
    spread = 6 * max(negative.stderr, 0.05) + 1e-9
    assert low - spread <= true_share <= high + spread
    positive = exact.clamp_min(0)
    dimension = spectrum.effective_dimension(0.1)
    assert abs(dimension.value - float((positive / (positive + 0.1)).sum())) <= 6 * dimension.stderr + 0.05
    volume = spectrum.log_volume(3)
    assert volume.ok
    assert volume.value == pytest.approx(float(exact[-3:].log().sum()), abs=1e-6)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_whole_network_and_every_layer_against_the_dense_hessian(mode: str) -> None:
    model, data = network()
    problem = Problem(model, data, batch_size=10, mode=mode)
    dense = Dense(problem)
    check_against(sl.spectrum(problem, probes=6, steps=70), dense.hessian)
    for name, layer in problem.layers.items():
        own = block_of(dense, list(layer.parameters.values()))
        check_against(sl.spectrum(problem, probes=6, steps=60, operator=name), own)
    one = sl.spectrum(problem, probes=4, steps=60, operator="3.weight")
    check_against(one, dense.block("3.weight"))


def test_gauss_newton_and_batch_variance_against_dense() -> None:
    model, (x, y) = network()
    problem = Problem(model, (x, y), batch_size=10)
    dense = Dense(problem)
    ggn = sl.spectrum(problem, probes=6, steps=70, operator="ggn")
    check_against(ggn, dense.ggn)
    assert ggn.trace.how == "exact"
    second = torch.zeros_like(dense.hessian)
    for start in (0, 10, 20):
        own = Dense(Problem(model, (x[start : start + 10], y[start : start + 10]))).hessian
        second += len(x[start : start + 10]) / len(x) * own @ own
    check_against(
        sl.spectrum(problem, probes=6, steps=70, operator="batch_variance"), second - dense.hessian @ dense.hessian
    )


def test_trace_is_exact_where_the_blocks_are_and_controlled_where_not() -> None:
    model, data = network(smooth=False)
    problem = Problem(model, data)
    exact = sl.spectrum(problem, probes=2, steps=5)
    assert exact.trace.how == "exact"
    assert exact.trace.stderr == 0.0
    assert exact.trace.value == pytest.approx(float(Dense(problem).hessian.trace()), rel=1e-10)
    smooth = Problem(*network())
    controlled = sl.spectrum(smooth, probes=8, steps=5)
    assert controlled.trace.how == "estimated"
    plain = controlled.quadrature.sum_of(lambda nodes: nodes)
    assert controlled.trace.stderr < 0.5 * plain.stderr  # the Gauss–Newton part is not left to chance
    layers = sl.spectrum(smooth, probes=2, steps=5, operator="3")
    assert layers.trace.how == "exact"  # the layer behind the tanh


@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_eigenvalues_against_dense(which: Any, mode: str) -> None:
    model, data = network()
    problem = Problem(model, data, batch_size=10, mode=mode)
    values, vectors = torch.linalg.eigh(Dense(problem).hessian)
    order = {"largest": -values, "smallest": values, "magnitude": -values.abs()}[which].argsort()[:3]
    found = sl.eigenvalues(problem, 3, which, tolerance=1e-6)
    assert found.status == "ok"
    torch.testing.assert_close(found.values, values[order], rtol=1e-8, atol=1e-8 * float(values.abs().max()))
    assert bool(((found.intervals[:, 0] <= values[order]) & (values[order] <= found.intervals[:, 1] + 1e-12)).all())
    overlap = (found.vectors * vectors[:, order]).sum(0).abs()
    assert bool((overlap > 1 - 1e-6).all())
    assert found.path == "double backward"
    assert found.strategy in ("looped", "batched")
    assert set(problem.unflatten(found.vectors[:, 0])) == set(problem.parameters)


def test_eigenvalues_of_a_layer_and_of_g() -> None:
    model, data = network()
    problem = Problem(model, data)
    dense = Dense(problem)
    layer = sl.eigenvalues(problem, 2, operator="0")
    exact = torch.linalg.eigvalsh(block_of(dense, ["0.weight", "0.bias"])).flip(0)
    torch.testing.assert_close(layer.values, exact[:2], rtol=1e-4, atol=0)
    smallest = sl.eigenvalues(problem, 1, "smallest", operator="ggn")  # rank-deficient: zero, with many copies
    assert smallest.status == "ok"
    assert abs(float(smallest.values[0])) <= float(smallest.residuals[0]) + 1e-12


def test_spent_budgets_are_said() -> None:
    model, data = network()
    problem = Problem(model, data)
    exact = torch.linalg.eigvalsh(Dense(problem).hessian)
    found = sl.eigenvalues(problem, 4, tolerance=1e-9, max_sweeps=3)
    assert found.status == "budget_spent"
    assert "after 3 sweeps" in found.reason
    distance = (found.values[:, None] - exact).abs().amin(1)
    assert bool((distance <= found.residuals + 1e-12).all())  # the certificates hold all the same
    short = sl.spectrum(problem, probes=2, steps=2)
    assert short.eigenvalue_max.status == "budget_spent"
    assert "after 2 sweeps" in short.eigenvalue_max.reason
    assert not short.ok
    assert short.log_volume(5).status == "not_applicable"


def test_tolerance_takes_probes_until_the_error_is_met_and_keeps_all_draws() -> None:
    model, data = network()
    problem = Problem(model, data)
    dense = Dense(problem)
    found = sl.spectrum(problem, probes=2, steps=6, tolerance=0.05, max_probes=64)
    exact = torch.linalg.eigvalsh(dense.hessian)
    assert found.settings["probes"] >= 8  # a minimum before an error is believed
    assert len(found.frobenius_squared.details["draws"]) == found.settings["probes"] == len(found.nodes)
    assert found.frobenius_squared.ok
    assert found.frobenius_squared.stderr <= 0.05 * found.frobenius_squared.value
    assert found.eigenvalue_max.ok
    assert found.eigenvalue_max.value == pytest.approx(float(exact[-1]), rel=1e-2)  # six steps alone would not do
    assert found.eigenvalue_min.ok
    assert found.eigenvalue_min.value == pytest.approx(float(exact[0]), rel=0.02)
    spent = sl.spectrum(problem, probes=2, steps=3, tolerance=1e-6, max_probes=4)
    assert spent.frobenius_squared.status == "budget_spent"
    assert "after 4 probes" in spent.frobenius_squared.reason
    with pytest.raises(UsageError, match="tolerance must lie between 0 and 1"):
        sl.spectrum(problem, tolerance=2.0)


@pytest.mark.slow
def test_95_percent_intervals_cover_on_a_network() -> None:
    from spiritlevel.values.draws import student_quantile

    model, data = network()
    problem = Problem(model, data)
    exact = torch.linalg.eigvalsh(Dense(problem).hessian)
    truths = {"trace": float(exact.sum()), "frobenius_squared": float(exact.square().sum())}
    hits = dict.fromkeys(truths, 0)
    for seed in range(200):
        found = sl.spectrum(problem, probes=8, steps=12, seed=seed)
        for name, truth in truths.items():
            estimate = getattr(found, name)
            hits[name] += abs(estimate.value - truth) <= student_quantile(7) * estimate.stderr
    for name, count in hits.items():
        assert 182 <= count <= 196, f"{name}: {count} of 200"


def test_same_seed_same_numbers_and_batch_size_changes_nothing() -> None:
    model, data = network()
    first, again, split = (
        sl.spectrum(Problem(model, data, batch_size=size), probes=2, steps=8, seed=3) for size in (27, 27, 5)
    )
    assert torch.equal(first.nodes, again.nodes)
    torch.testing.assert_close(first.nodes, split.nodes, rtol=1e-9, atol=1e-9)
    other = sl.spectrum(Problem(model, data), probes=2, steps=8, seed=4)
    assert not torch.allclose(first.nodes, other.nodes)


def test_density_and_cumulative_share() -> None:
    model, data = network()
    problem = Problem(model, data)
    found = sl.spectrum(problem, probes=6, steps=60)
    band = found.density(width=0.02)
    assert float(torch.trapezoid(band.mean, band.grid)) == pytest.approx(1.0, rel=1e-4)
    assert band.kernel_width > 0
    exact = torch.linalg.eigvalsh(Dense(problem).hessian)
    grid = torch.tensor([float(exact[-3]) * 0.99], dtype=torch.float64)
    share = found.cumulative(grid)
    true = float((exact <= grid).double().mean())
    assert abs(float(share.mean) - true) <= 6 * float(share.stderr) + 1e-6


def test_outliers_are_counted_against_the_classes() -> None:
    nodes = torch.tensor([[-0.1, 0.01, 0.1, 0.2, 5.0, 7.0, 8.0]] * 3, dtype=torch.float64)
    weights = torch.full_like(nodes, 1 / 7)
    residuals = torch.full_like(nodes, 1e-6)
    value = sl.Estimate(1.0)
    made = Spectrum(
        operator="hessian",
        size=7,
        eigenvalue_max=value,
        eigenvalue_min=value,
        trace=value,
        frobenius_squared=value,
        nodes=nodes,
        weights=weights,
        residuals=residuals,
        top_values=nodes[0],
        top_residuals=residuals[0],
        rounding=1e-15,
        classes=3,
    )
    assert made.outliers.count == 3
    assert made.outliers.classes == 3
    assert made.outliers.gap == pytest.approx(25.0)
    assert made.outliers.counts == (3, 3, 3)
    bulk = nodes.clone()
    bulk[:] = torch.linspace(1, 1.2, 7)
    even = replace(made, nodes=bulk, top_values=bulk[0])
    assert even.outliers.count == 0


def test_memory_plan_is_printed_and_makes_the_run_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = network()
    problem = Problem(model, data)
    everything = sl.spectrum(problem, probes=4, steps=10, progress=True)
    printed = capsys.readouterr().err
    assert "all 4 probes together" in printed
    assert "40 products" in printed
    assert everything.plan["sweeps"] == 10
    per_probe = (10 * 8 + 64) * problem.size
    monkeypatch.setattr(
        "spiritlevel.analyses.spectrum_plan.free_bytes", lambda device: int(2.2 * per_probe / 0.8) + 200_000
    )
    monkeypatch.setattr("spiritlevel.analyses.spectrum_plan.graph_bytes", lambda problem: (160_000, 1))
    plan = plan_spectrum(operator_named(problem, "hessian"), "hessian", 4, 10)
    assert plan.probes_at_once == 2
    assert plan.sweeps == 20
    assert "2 of 4 probes at a time" in str(plan)
    halves = sl.spectrum(problem, probes=4, steps=10)
    torch.testing.assert_close(halves.nodes, everything.nodes, rtol=1e-9, atol=1e-9)  # the same probes
    monkeypatch.setattr("spiritlevel.analyses.spectrum_plan.free_bytes", lambda device: 210_000)
    with pytest.raises(SpiritlevelError, match="one probe's basis of 10 vectors takes"):
        sl.spectrum(problem, probes=4, steps=10)


def test_graphs_kept_or_not_give_the_same_spectrum() -> None:
    model, data = network()
    problem = Problem(model, data, batch_size=10)
    kept, rebuilt = (sl.spectrum(problem, probes=2, steps=10, keep_graphs=keep) for keep in (True, False))
    assert kept.plan["keep_graphs"] is True
    assert rebuilt.plan["keep_graphs"] is False
    torch.testing.assert_close(kept.nodes, rebuilt.nodes, rtol=1e-9, atol=1e-12)


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    model, data = network()
    found = sl.spectrum(Problem(model, data), probes=3, steps=12)
    found.save(tmp_path / "s.json")
    record = json.loads((tmp_path / "s.json").read_text())
    assert record["kind"] == "spectrum"
    assert record["schema_version"] == 1
    assert record["header"]["samples"] == 27
    assert record["plan"]["path"] == "double backward"
    loaded = Spectrum.load(tmp_path / "s.json")
    assert torch.equal(loaded.nodes, found.nodes)
    assert loaded.eigenvalue_max == found.eigenvalue_max
    assert str(loaded) == str(found)
    assert "Largest eigenvalue" in str(found)
    assert loaded.log_volume(2).value == found.log_volume(2).value


def test_a_single_probe_has_no_error_bar_and_says_null(tmp_path: Path) -> None:
    model, data = network()
    found = sl.spectrum(Problem(model, data), probes=1, steps=5)
    assert math.isinf(found.frobenius_squared.stderr)
    found.save(tmp_path / "one.json")
    assert json.loads((tmp_path / "one.json").read_text())["estimates"]["frobenius_squared"]["stderr"] is None
    found.figure(tmp_path / "one.png")


def test_figure_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    model, data = network()
    found = sl.spectrum(Problem(model, data), probes=3, steps=10)
    for ending in ("png", "svg", "pdf"):
        found.figure(tmp_path / f"f.{ending}")
        assert (tmp_path / f"f.{ending}").stat().st_size > 1000
    svg = (tmp_path / "f.svg").read_text()
    assert svg.startswith("<?xml")
    with pytest.raises(UsageError, match="must end in"):
        found.figure(tmp_path / "f.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.pdf", "f.png", "f.svg"]


def test_bad_requests_are_refused() -> None:
    model, data = network()
    problem = Problem(model, data)
    with pytest.raises(UsageError, match="there is no matrix 'hesian'"):
        sl.spectrum(problem, operator="hesian")
    with pytest.raises(UsageError, match="at least one probe and one step"):
        sl.spectrum(problem, probes=0)
    with pytest.raises(UsageError, match="k must lie between 1"):
        sl.eigenvalues(problem, 10_000)
    with pytest.raises(UsageError, match="which must be one of"):
        sl.eigenvalues(problem, 1, "top")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="k must lie between 1"):
        sl.spectrum(problem, probes=1, steps=3).log_volume(0)


@pytest.mark.parametrize("name", ["attention", "lstm", "layer_norm"])
def test_smooth_architectures_against_dense(name: str) -> None:
    model, data = SMOOTH[name].trained()
    problem = Problem(model, data, batch_size=9)
    found = sl.spectrum(problem, probes=12, steps=60)
    exact = torch.linalg.eigvalsh(Dense(problem).hessian)
    assert found.eigenvalue_max.value == pytest.approx(float(exact[-1]), rel=1e-8)
    assert found.eigenvalue_min.value == pytest.approx(float(exact[0]), abs=1e-6 * float(exact[-1]))
    assert abs(found.trace.value - float(exact.sum())) <= 6 * found.trace.stderr


def test_float32_certificates_hold_against_the_float64_matrix() -> None:
    case = PIECEWISE_LINEAR["mlp"]
    problem = case.problem(dtype="float32")
    exact = torch.linalg.eigvalsh(Dense(case.problem()).hessian)
    found = sl.spectrum(problem, probes=2, steps=40)
    assert found.eigenvalue_max.interval is not None
    low, high = found.eigenvalue_max.interval
    norm = float(exact.abs().max())
    assert low - 1e-6 * norm <= float(exact[-1]) <= high + 1e-6 * norm
    assert found.eigenvalue_max.value == pytest.approx(float(exact[-1]), rel=1e-5)

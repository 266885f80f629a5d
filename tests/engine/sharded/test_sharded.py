"""A model sharded by fully_shard gives the numbers of the whole one, and stays as it was.

The truth is a dense Hessian of the same network in one process, over the data of all ranks.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import spiritlevel as sl
from spiritlevel.engine.estimators.probes import random_signs
from tests.engine.sharded.networks import network, part_of, samples
from tests.engine.sharded.on_ranks import run_on_ranks

MEASURES = ["hessian_trace", "hessian_top_eigenvalue", "hessian_spectral_norm", "weight_norm", "output_margin"]
BOUNDS = (0, 20, 29)  # uneven parts, and in batches of 8 another number of them


def sharded(way: str, dtype: torch.dtype = torch.float64, **options: Any) -> torch.nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = network(way, dtype)
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def of_whole(problem: Any, whole: Tensor) -> Tensor:
    """Return this rank's rows of columns over all parameters."""
    rows, start = [], 0
    for name in problem.parameters:
        layout = problem.layouts[name]
        piece = whole[start : start + layout.shape.numel()].T.reshape(-1, *layout.shape)
        rows.append(piece.narrow(layout.dim + 1, layout.start, layout.length).reshape(len(piece), -1))
        start += layout.shape.numel()
    return torch.cat(rows, 1).T


def state(model: torch.nn.Module) -> list[Any]:
    parameters = [(p.to_local().clone(), p.requires_grad, p.grad) for p in model.parameters()]  # type: ignore[attr-defined]
    hooks = [(list(m._forward_hooks), list(m._forward_pre_hooks), m.training) for m in model.modules()]
    return [parameters, hooks]


def same(first: list[Any], second: list[Any]) -> bool:
    values = all(torch.equal(a[0], b[0]) and a[1:] == b[1:] for a, b in zip(first[0], second[0]))
    return values and first[1] == second[1]


def measured(rank: int, way: str, bounds: tuple[int, ...] | None) -> dict[str, Any]:
    """Measure on one rank; what torch cannot send becomes numbers and words."""
    from spiritlevel.analyses.sharded_measuring import open_sharded
    from spiritlevel.engine.sharded.sharded_products import ShardedHessian
    from spiritlevel.engine.sharded.vectors import local_signs

    model, data = sharded(way), samples()
    own = data if bounds is None else part_of(data, rank, bounds)
    model(own[0][:2])  # leaves the root whole
    problem = sl.Problem(model, own, batch_size=8)
    before = state(model)
    report = sl.measure(problem, MEASURES)
    left, head = same(before, state(model)), report.header
    pairs = sl.eigenvalues(problem, k=2)
    opened = open_sharded(problem)
    hessian = ShardedHessian(opened)
    size = opened.size
    vectors = torch.randn(size, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found: dict[str, Any] = {
        "rows": {name: vars(value) for name, value in report.items()},
        "layers": {name: (one.value, one.stderr) for name, one in report.per_layer["hessian_trace"].items()},
        "header": (head.samples, head.loss, head.gradient_norm, head.gradient_noise),
        "notes": head.notes,
        "name": head.model,
        "untouched": left,
        "pairs": (pairs.values, pairs.residuals),
        "vectors": (pairs.vectors, of_whole(opened, torch.arange(float(size), dtype=torch.float64)[:, None])),
        "product": (hessian.matvec(of_whole(opened, vectors)), of_whole(opened, vectors)),
        "probes": torch.equal(
            local_signs(opened, 2, seed=3, first=5),
            of_whole(opened, random_signs(size, 2, seed=3, first=5, dtype=torch.float64)),
        ),
        "refused": [],
    }
    for question in (
        sl.audit,
        sl.spectrum,
        sl.curvature,
        lambda p: p.hessian @ vectors,
        lambda p: sl.measure(p, seconds=9),
    ):
        with pytest.raises(sl.SpiritlevelError) as refusal:
            question(problem)
        found["refused"].append(str(refusal.value))
    model(own[0][:2]).sum().backward()  # it trains on
    found["trains"] = all(p.grad is not None for p in model.parameters())
    return found


class Truth:
    """The same network in one process, over all data."""

    def __init__(self, way: str) -> None:
        plain = {"once": "tanh", "recomputed": ""}.get(way, way)
        self.dense = sl.reference.Dense(sl.Problem(network(plain), samples()))
        self.values = torch.linalg.eigvalsh(self.dense.hessian)
        self.gradient = self.dense.gradient


def check(found: list[dict[str, Any]], truth: Truth, exact: float) -> None:
    """Hold all ranks' numbers against the truth; ``exact`` is how far products may lie from it."""
    dense = truth.dense.hessian
    for own in found:
        assert own["rows"]["hessian_trace"]["value"] == found[0]["rows"]["hessian_trace"]["value"]
        assert own["header"] == found[0]["header"]
        assert own["untouched"]
        assert own["trains"]
        assert own["probes"]
        assert own["name"] == "Transformer"
        product, vectors = own["product"]
        place = own["vectors"][1][:, 0].long()
        whole = torch.randn(len(dense), 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        assert torch.equal(whole[place], vectors)
        torch.testing.assert_close(product, (dense @ whole)[place], rtol=exact, atol=exact)
        assert all("sharded" in words for words in own["refused"])
        assert "sharded" in own["rows"]["output_margin"]["reason"]
    rows = found[0]["rows"]
    trace, top, norm = (rows[name] for name in ("hessian_trace", "hessian_top_eigenvalue", "weight_norm"))
    assert trace["stderr"] < 0.3 * abs(trace["value"])
    assert abs(trace["value"] - float(dense.trace())) <= 4 * trace["stderr"]
    assert top["interval"][0] <= float(truth.values[-1]) <= top["interval"][1]
    assert top["interval"][1] - top["interval"][0] < 0.01 * float(truth.values[-1])
    assert rows["hessian_spectral_norm"]["value"] == pytest.approx(float(truth.values.abs().max()), rel=1e-3)
    assert norm["value"] == pytest.approx(float(truth.dense.theta.norm()), rel=1e-12)
    for name, (value, error) in found[0]["layers"].items():
        inside = [place for full, place in truth.dense.slices.items() if full.rpartition(".")[0] == name]
        block = sum(float(dense[place, place].trace()) for place in inside)
        assert abs(value - block) <= 5 * error + 1e-9
    samples_seen, loss, gradient, _ = found[0]["header"]
    assert samples_seen == len(samples()[0])
    assert loss == pytest.approx(truth.dense.loss, rel=1e-12)
    assert gradient == pytest.approx(float(truth.gradient.norm()), rel=1e-9)
    values, residuals = found[0]["pairs"]
    assert bool(((values - truth.values.flip(0)[:2]).abs() <= residuals + 1e-9).all())
    vector = torch.zeros(len(dense), dtype=torch.float64)
    for own in found:
        vector[own["vectors"][1][:, 0].long()] = own["vectors"][0][:, 0]
    assert float(vector.norm()) == pytest.approx(1, rel=1e-9)
    assert float((dense @ vector - values[0] * vector).norm()) <= float(residuals[0]) * 1.01 + 1e-9


def test_two_ranks_give_the_numbers_of_the_whole_model(tmp_path: Path) -> None:
    found = run_on_ranks(2, measured, tmp_path, "recomputed", BOUNDS)
    check(found, Truth("recomputed"), exact=1e-11)
    assert not any("differences" in note for note in found[0]["notes"])


@pytest.mark.slow
def test_a_function_without_a_second_derivative_is_found_and_differences_take_over(tmp_path: Path) -> None:
    found = run_on_ranks(2, measured, tmp_path, "once", BOUNDS)
    check(found, Truth("once"), exact=1e-7)
    assert any("finite differences of gradients, because an operation" in note for note in found[0]["notes"])
    assert "radius" in found[0]["rows"]["hessian_trace"]["details"]["path"]


@pytest.mark.slow
def test_more_ranks_than_batches_and_data_that_all_were_given(tmp_path: Path) -> None:
    found = run_on_ranks(3, measured, tmp_path, "", None)
    check(found, Truth(""), exact=1e-11)
    assert any("given the same data" in note for note in found[0]["notes"])
    (tmp_path / "uneven").mkdir()
    check(run_on_ranks(3, measured, tmp_path / "uneven", "", (0, 26, 28, 29)), Truth(""), exact=1e-11)


def lost(rank: int) -> str:
    """Measure with data that cannot be read on the second rank."""
    model, data = sharded(""), part_of(samples(), rank, BOUNDS)

    class Torn:
        def __iter__(self) -> Any:
            yield data
            if rank == 1:
                raise OSError("the disk is gone")

    try:
        sl.measure(sl.Problem(model, Torn()), MEASURES)
    except sl.SpiritlevelError as error:
        return str(error)
    return "nothing"


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_others_with_a_sentence(tmp_path: Path) -> None:
    first, second = run_on_ranks(2, lost, tmp_path, ends=False)
    assert "the disk is gone" in second
    assert "another rank of the sharded model failed or ended" in first

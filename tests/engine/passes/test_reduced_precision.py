"""Gauss–Newton sums in coarser arithmetic: right within their errors, labelled, and not taken where they are not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import spiritlevel as sl
from spiritlevel.engine.passes import reduced_precision
from spiritlevel.engine.passes.recording import Recorder
from spiritlevel.inputs.open_problem import open_problem
from spiritlevel.measures.reference.dense import Dense
from spiritlevel.measures.workbench import Workbench
from spiritlevel.values.errors import UsageError

MEASURES = ["hessian_trace", "rho_sum", "kappa_tau_sum", "normalized_sharpness"]
COUNT, CLASSES = 96, 8


class Twice(nn.Module):
    """A layer applied after itself, and its weight once more through a function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.head = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.again(torch.relu(self.again(torch.relu(self.first(x))))))
        return self.head(hidden + nn.functional.linear(x, self.first.weight))


class LastState(nn.Module):
    """A recurrent layer, which has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def chain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: chain(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, CLASSES)), (5,)),
    "conv": (
        lambda: chain(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, CLASSES)),
        (1, 8, 8),
    ),
    "batch_norm": (
        lambda: chain(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES)),
        (1, 8, 8),
    ),
    "layer_norm": (lambda: chain(nn.Linear(5, 7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, CLASSES)), (5,)),
    "twice": (Twice, (5,)),
    "lstm": (LastState, (3, 5)),
}


def made(name: str, precision: str, *, seed: int = 0, count: int = COUNT, **options: Any) -> sl.Problem:
    build, shape = NETS[name]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        data = torch.randn(count, *shape), torch.randint(0, CLASSES, (count,))
        return sl.Problem(build().eval(), data, precision=precision, **options)


def measured(
    name: str, precision: str, *, measures: Any = MEASURES, tolerance: float | None = None, **options: Any
) -> sl.Report:
    return sl.measure(made(name, precision, **options), measures, tolerance=tolerance)


def dense(name: str, seed: int = 0) -> Dense:
    return Dense(made(name, "float32", seed=seed, dtype="float64"))


@pytest.mark.parametrize("name", ["mlp", "conv", "batch_norm", "layer_norm"])
def test_sums_in_bfloat16_are_within_their_errors(name: str) -> None:
    report, plain = measured(name, "bfloat16", tolerance=0.2), measured(name, "float32", tolerance=0.2)
    assert report.header.precision == "bfloat16"
    assert plain.header.precision is None
    assert any("Gauss–Newton sums are in bfloat16" in note for note in report.header.notes)
    trace = report["hessian_trace"]
    assert (trace.how, trace.verified) == ("estimated", False)
    assert trace.details["precision"] == "bfloat16"
    assert 0 < trace.details["rounding"] < 2e-2
    assert trace.value != plain["hessian_trace"].value  # it was computed otherwise
    assert abs(trace.value - float(dense(name).hessian.trace())) <= 3 * trace.stderr
    for layer, found in report.per_layer["hessian_trace"].items():
        exact = plain.per_layer["hessian_trace"][layer]
        assert abs(found.value - exact.value) <= 3 * (found.stderr + exact.stderr) + 1e-6 * abs(exact.value), layer
        assert found.how == "estimated", layer
    for measure in ("rho_sum", "kappa_tau_sum"):
        found, exact = report[measure], plain[measure]
        assert found.how == "estimated", measure
        assert abs(found.value - exact.value) <= 3 * (found.stderr + exact.stderr), measure


def test_its_errors_cover_over_many_networks() -> None:
    z = []
    for name in ("mlp", "conv"):
        for seed in range(20):
            found = measured(name, "bfloat16", seed=seed, measures="hessian_trace")["hessian_trace"]
            if "precision" in found.details:
                z.append(abs(found.value - float(dense(name, seed).hessian.trace())) / found.stderr)
    assert len(z) >= 15
    assert sum(one > 2 for one in z) <= 2
    assert max(z) <= 4


def test_each_samples_trace_is_within_its_error() -> None:
    found = Workbench(open_problem(made("conv", "bfloat16"))).blocks.sample_traces()
    own = dense("conv")
    exact = torch.stack([own.sample_hessian(i).trace() for i in range(COUNT)])
    assert found.how == "estimated"
    assert ((found.value - exact).abs() > 3 * found.stderr).sum() <= 3
    assert not torch.allclose(found.value, exact, rtol=1e-5)


def test_products_with_h_and_eigenvalues_stay_in_float32() -> None:
    problems = [made("conv", name) for name in ("float32", "bfloat16")]
    block = torch.randn(problems[0].size, 2, generator=torch.Generator().manual_seed(0))
    for matrix in ("hessian", "ggn"):
        assert torch.equal(*(getattr(problem, matrix) @ block for problem in problems))
    tops = [sl.measure(problem, "hessian_top_eigenvalue")["hessian_top_eigenvalue"] for problem in problems]
    assert tops[0].value == tops[1].value


class LateCancellation(nn.Module):
    """A hidden layer's values moved far from zero and back: float32 keeps their digits, bfloat16 does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, CLASSES)
        self.register_buffer("ones", torch.ones(1, 6))

    def forward(self, x: Tensor, offset: Tensor) -> Tensor:
        moved = self.first(x) + (offset @ self.ones).to(x.dtype)
        return self.second(torch.relu((moved @ torch.eye(6, dtype=moved.dtype)) - offset))


def late_cancellation(affected: slice, size: float = 300.0, count: int = COUNT) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = LateCancellation()
    offset = torch.zeros(count, 1)
    offset[affected] = size
    return model, ((torch.randn(count, 4), offset), torch.randint(0, CLASSES, (count,)))


@pytest.mark.parametrize("affected", [slice(64, 96), slice(40, 96, 8)], ids=["late batches", "some samples"])
def test_a_benign_first_batch_proves_nothing_for_the_others(affected: slice) -> None:
    model, data = late_cancellation(affected)
    plain = sl.measure(model, data, "hessian_trace", batch_size=32)["hessian_trace"]
    report = sl.measure(model, data, "hessian_trace", precision="bfloat16", batch_size=32)
    assert report.header.precision is None
    assert report["hessian_trace"].value == plain.value  # the very same number, and the reason
    assert any("stay in float32, not in bfloat16: it changes" in note for note in report.header.notes)
    ((x, offset), y), benign = data, slice(0, 40)
    benign_data = (x[benign], offset[benign]), y[benign]
    report = sl.measure(model, benign_data, "hessian_trace", precision="bfloat16", batch_size=32)
    assert report.header.precision == "bfloat16"


def test_one_bad_sample_shows_in_the_error_or_is_not_taken() -> None:
    for bad in range(70, 96, 5):
        model, data = late_cancellation(slice(bad, bad + 1), 3e3)
        plain = sl.measure(model, data, "hessian_trace", batch_size=32)["hessian_trace"]
        found = sl.measure(model, data, "hessian_trace", precision="bfloat16", batch_size=32)["hessian_trace"]
        assert abs(found.value - plain.value) <= 3 * found.stderr + 1e-6 * plain.value, bad


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("conv", {"loss": "normalized_cross_entropy"}),  # an indefinite second derivative: columns of either sign
        ("twice", {}),  # parameters that meet the data twice
        ("lstm", {}),  # parameters without a rule
    ],
)
def test_other_losses_and_layers_are_within_their_errors(name: str, options: dict[str, Any]) -> None:
    plain = measured(name, "float32", measures="hessian_trace", **options)["hessian_trace"]
    found = measured(name, "bfloat16", measures="hessian_trace", tolerance=0.3, **options)["hessian_trace"]
    assert found.details["precision"] == "bfloat16"
    assert abs(found.value - plain.value) <= 3 * (found.stderr + plain.stderr)


def test_sketched_columns_are_within_their_errors() -> None:
    torch.manual_seed(1)
    model = chain(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 50))
    data = torch.randn(COUNT, 5), torch.randint(0, 50, (COUNT,))
    report = sl.measure(model, data, "hessian_trace", precision="bfloat16")
    exact = float(Dense(sl.Problem(model, data, dtype="float64")).hessian.trace())
    assert report.header.precision == "bfloat16"
    assert abs(report["hessian_trace"].value - exact) <= 3 * report["hessian_trace"].stderr


class RoundedProducts(TorchDispatchMode):
    """Products rounded to TF32's ten bits, while the switch for TF32 is on: what a GPU does, on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.coarse = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.get_float32_matmul_precision() == "high" and func._schema.name in (
            "aten::mm", "aten::bmm", "aten::addmm", "aten::convolution", "aten::convolution_backward",
        ):  # fmt: skip
            self.coarse += 1
            args = [self.rounded(a) for a in args]
        return func(*args, **(kwargs or {}))

    @staticmethod
    def rounded(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            return value
        return ((value.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@contextlib.contextmanager
def pretended_tf32(monkeypatch: pytest.MonkeyPatch) -> Iterator[RoundedProducts]:
    monkeypatch.setattr(reduced_precision, "has_tf32", lambda device: True)
    with RoundedProducts() as mode:
        yield mode


def switches() -> tuple[str, bool]:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


def test_tf32_is_for_the_way_back_alone_and_switched_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = switches()
    plain = measured("conv", "float32")
    with pretended_tf32(monkeypatch) as mode:
        report = measured("conv", "tf32")
    assert mode.coarse > 0
    assert report.header.precision == "tf32"
    trace = report["hessian_trace"]
    assert 0 < trace.details["rounding"] < 1e-3
    assert 0 < abs(trace.value - plain["hessian_trace"].value) <= 3 * trace.stderr
    assert (trace.how, trace.verified) == ("estimated", False)
    assert switches() == before


def test_switches_are_put_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    before, own = switches(), Recorder.pull_back_all

    def fail(*given: Any) -> Any:
        if torch.get_float32_matmul_precision() == "high":
            raise RuntimeError("in the middle")
        return own(*given)

    with pretended_tf32(monkeypatch):
        monkeypatch.setattr(Recorder, "pull_back_all", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            measured("conv", "tf32", measures="hessian_trace")
    assert switches() == before


def test_float32_is_kept_where_nothing_else_is_to_be_had() -> None:
    report = measured("conv", "tf32", measures="hessian_trace")
    assert report.header.precision is None
    assert "Gauss–Newton sums stay in float32, not in tf32: cpu has no arithmetic in TF32." in report.header.notes
    assert report["hessian_trace"].value == measured("conv", "float32", measures="hessian_trace")["hessian_trace"].value
    report = measured("conv", "bfloat16", measures="hessian_trace", count=5)
    assert any("5 samples are too few to measure its error on" in note for note in report.header.notes)
    assert report["hessian_trace"].verified
    torch.manual_seed(0)
    two_classes = chain(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    report = sl.measure(
        two_classes, (torch.randn(40, 4), torch.randint(0, 2, (40,))), "hessian_trace", precision="bfloat16"
    )
    assert any("1 backward passes are too few to gain by it" in note for note in report.header.notes)


def test_a_finer_tolerance_allows_less() -> None:
    report = sl.measure(made("conv", "bfloat16"), "hessian_trace", tolerance=1e-3)
    assert report.header.precision is None
    assert any("and 0.01% is allowed (a tenth of the tolerance)" in note for note in report.header.notes)


def test_what_is_no_precision_is_refused() -> None:
    with pytest.raises(
        UsageError,
        match=r"precision must be float32, tf32 or bfloat16, not 'float16'; it is that of Gauss–Newton sums alone",
    ):
        made("conv", "float16")
    with pytest.raises(UsageError, match="the model is measured in float64, which is asked for where float32"):
        made("conv", "tf32", dtype="float64")

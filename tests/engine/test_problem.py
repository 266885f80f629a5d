"""The Problem: wrappers looked through, outputs found, copies where needed, bad input refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.operators import GGNOperator, HessianOperator
from spiritlevel.inputs import batch_sizes
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.opening import unwrap
from spiritlevel.measures.reference import Dense
from spiritlevel.values.errors import SpiritlevelError, UsageError
from tests.engine.small_problem import Output, data
from tests.helpers import opened
from tests.networks import PIECEWISE_LINEAR, SMOOTH


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))


def trace(model: nn.Module, given: Any = None, **options: Any) -> float:
    return sl.measure(opened(model, given or data(), **options), "hessian_trace")["hessian_trace"].value


# --- wrappers and outputs ------------------------------------------------------------------------------------------


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_wrappers_are_looked_through() -> None:
    plain = small()
    expected = trace(plain)
    compiled = torch.compile(plain, backend="eager")
    for wrapped in (nn.DataParallel(plain).cpu(), compiled, nn.DataParallel(compiled).cpu()):
        assert unwrap(wrapped) is plain
        problem = opened(wrapped, data())
        assert problem.parameters == [name for name, _ in plain.named_parameters()]
        report = sl.measure(problem, "hessian_trace")
        assert report["hessian_trace"].value == expected
        assert report["hessian_trace"].how == "exact"


def test_a_module_compiled_inside_is_measured_eagerly() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.compile(small(), backend="eager")

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    model = Outer()
    model(data()[0])  # compiled before it is measured: hooks added later would never fire
    assert trace(model) == pytest.approx(trace(small()), rel=1e-6)
    in_place = small()
    in_place.compile(backend="eager")
    in_place(data()[0])
    assert trace(in_place) == pytest.approx(trace(small()), rel=1e-6)


def test_a_distributed_wrapper_is_looked_through(process_group: None) -> None:
    model = small()
    expected = trace(model)
    assert trace(nn.parallel.DistributedDataParallel(model)) == expected


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y: Output(y),
        lambda y: (y, None),
        lambda y: [y, y.sum()],
        lambda y: {"logits": y, "hidden": 2 * y},
    ],
)
def test_outputs_are_found(wrap: Any) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = small()

        def forward(self, x: Tensor) -> Any:
            return wrap(self.body(x))

    assert trace(Wrapped()) == trace(small())


def test_outputs_that_cannot_be_found_are_named() -> None:
    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = small()

        def forward(self, x: Tensor) -> str:
            return "no tensor"

    with pytest.raises(SpiritlevelError, match="the model returned str, in which no output tensor was found"):
        trace(Strange())


def test_own_forward() -> None:
    model = small()
    problem = opened(model, data(), forward=lambda net, batch: 2 * net(batch[0]))
    with torch.no_grad():
        expected = F.cross_entropy(2 * model(data()[0]), data()[1])
    assert problem.survey.loss == pytest.approx(float(expected), rel=1e-6)
    with pytest.raises(UsageError, match="forward must be a function"):
        opened(model, data(), forward="logits")  # type: ignore[arg-type]


# --- dtype and device ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_is_measured_on_an_upcast_copy(half: torch.dtype) -> None:
    model = small().to(half)
    problem = opened(model, data())
    assert problem.dtype == torch.float32
    assert all(parameter.dtype == half for parameter in model.parameters())
    assert any("copy in float32" in note for note in problem.notes)
    assert trace(model) == pytest.approx(trace(small()), rel=0.05)
    mixed = small()
    mixed[0].to(half)
    assert opened(mixed, data()).dtype == torch.float32


def test_dtype_and_device_options_work_on_copies() -> None:
    model = small()
    assert trace(model, dtype="float64") == pytest.approx(trace(model), rel=1e-5)
    problem = opened(model, data(), dtype=torch.float64, device="cpu")
    assert problem.dtype == torch.float64
    assert problem.model is not model
    assert next(model.parameters()).dtype == torch.float32
    assert opened(model, data(), dtype="float32", device="cpu").model is model
    x, y = data()
    assert trace(model, (x.double(), y)) == trace(model)  # data follows the model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float16"}, "dtype must be 'float32' or 'float64'"),
        ({"dtype": "double_double"}, "dtype must be 'float32' or 'float64'"),
        ({"device": "teapot"}, "device 'teapot' is not understood"),
        ({"mode": "both"}, "mode must be 'eval' or 'train'"),
        ({"loss": "crossentropy"}, "There is no loss named 'crossentropy'.*cross_entropy"),
        ({"loss": nn.CrossEntropyLoss}, "loss is"),
        ({"parameters": "0.weigth"}, "no parameter is named '0.weigth'.*0.weight"),
        ({"parameters": []}, "no parameter"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        opened(small(), data(), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is present")
def test_an_absent_device_is_named() -> None:
    with pytest.raises(UsageError, match="torch sees no CUDA device"):
        opened(small(), data(), device="cuda")


# --- bad models, data and losses -----------------------------------------------------------------------------------


def with_nan() -> nn.Module:
    model = small()
    with torch.no_grad():
        model[0].weight[1, 2] = math.nan
    return model


def overflowing() -> nn.Module:
    model = small()
    with torch.no_grad():
        model[2].weight.fill_(3e38)
    return model


def frozen() -> nn.Module:
    return small().requires_grad_(False)


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3))


def out_of_range() -> tuple[Tensor, Tensor]:
    x, y = data()
    return x, y + 1


def negative_labels() -> tuple[Tensor, Tensor]:
    x, y = data()
    return x, y - 1


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "dropout": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 3)),
        {"mode": "train"},
        r"dropout is active in training mode \(1\)",
    ),
    "not_a_number": (with_nan, {}, "parameter 0.weight holds 1 values that are NaN or infinite"),
    "overflow": (overflowing, {}, "outputs are not finite|loss is not finite"),
    "no_parameters": (lambda: nn.Sequential(nn.ReLU()), {}, "Sequential has no parameters"),
    "all_frozen": (frozen, {}, "every parameter of the model is frozen"),
    "lazy": (lazy, {}, "lazy parameters"),
    "complex": (lambda: nn.Linear(3, 3, dtype=torch.complex64), {}, "complex parameters"),
    "labels_out_of_range": (small, {"data": out_of_range}, "label"),
    "negative_labels": (small, {"data": negative_labels}, "label"),
    "all_ignored": (small, {"data": lambda: (data()[0], torch.full((10,), -100))}, "every sample weight zero"),
    "wrong_shape": (small, {"data": lambda: (torch.randn(4, 5), torch.zeros(4).long())}, "could not be run on a batch"),
    "infinite_input": (
        small,
        {"data": lambda: (torch.full((4, 3), math.inf), torch.zeros(4).long())},
        "not finite .first at sample 0",
    ),
    "scalar_loss": (
        small,
        {"loss": lambda f, batch: F.cross_entropy(f, batch[1])},
        "one loss per sample|one loss a sample",
    ),
    "loss_of_wrong_size": (small, {"loss": lambda f, batch: f.sum(1)[:2]}, "one loss per sample|one loss a sample"),
    "sum_reduction": (small, {"loss": nn.CrossEntropyLoss(reduction="sum")}, "reduction='mean'"),
    "no_labels": (small, {"data": lambda: {"input": data()[0]}}, "no labels"),
    "not_a_module": (lambda: F.relu, {}, "model must be a torch.nn.Module"),
    "positions_first": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Flatten(0)),
        {},
        "first dimension must be the samples",
    ),
    "random_model": (
        lambda: nn.Sequential(nn.Linear(3, 4), _Noise(), nn.Linear(4, 3)),
        {},
        "two sweeps over the same data disagree",
    ),
}


class _Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_sentence(name: str) -> None:
    make, options, message = BAD[name]
    options = dict(options)
    model = make()
    given = options.pop("data", data)()
    before = {key: value.clone() for key, value in model.state_dict().items()} if name == "dropout" else {}
    with pytest.raises(SpiritlevelError, match=message) as caught:
        sl.measure(opened(model, given, **options), "hessian_trace")
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence) < 400
    for key, value in before.items():
        assert torch.equal(model.state_dict()[key], value)


def test_one_bad_sample_is_named_by_its_number() -> None:
    x, y = data()
    x[7] = math.nan
    with pytest.raises(SpiritlevelError, match="first at sample 7"):
        trace(small(), (x, y), batch_size=3)


def test_dropout_in_eval_mode_is_off() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 3)).train()
    assert sl.measure(opened(model, data()), "hessian_trace")["hessian_trace"].how == "exact"
    assert model.training
    assert model[1].training


# --- vectors -------------------------------------------------------------------------------------------------------


def test_products_and_flat_vectors() -> None:
    problem = PIECEWISE_LINEAR["mlp"].opened()
    dense = Dense(problem)
    vectors = torch.randn(problem.size, 3, dtype=torch.float64)
    torch.testing.assert_close(HessianOperator(problem) @ vectors, dense.hessian @ vectors, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(GGNOperator(problem) @ vectors, dense.ggn @ vectors, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(
        HessianOperator(problem) @ vectors[:, 0], dense.hessian @ vectors[:, 0], rtol=1e-9, atol=1e-11
    )
    parts = problem.unflatten(vectors[:, 0])
    assert torch.equal(problem.flatten(parts), vectors[:, 0])
    assert {name: part.shape for name, part in parts.items()} == {
        name: tensor.shape for name, tensor in problem.chosen_parameters.items()
    }
    assert problem.unflatten(vectors)["0.weight"].shape == (5, 4, 3)
    with pytest.raises(UsageError, match="rows, but the problem has"):
        problem.unflatten(vectors[:-1])


def test_layers_and_weights_have_names() -> None:
    problem = SMOOTH["lstm"].opened()
    assert list(problem.layers) == ["cell", "head"]
    assert problem.weights == {
        "cell.weight_ih_l0": "cell.weight_ih_l0",
        "cell.weight_hh_l0": "cell.weight_hh_l0",
        "head": "head.weight",
    }
    tied = SMOOTH["tied"].opened()
    assert tied.layers["2"].parameters == {"bias": "2.bias"}


def test_measuring_inside_inference_mode() -> None:
    expected = trace(small())
    with torch.inference_mode():
        x, y = data()
        assert x.is_inference()
        assert trace(small_outside, (x, y)) == expected


small_outside = small()


def test_huge_margins_in_float32_do_not_raise_false_alarms() -> None:
    """Losses near the rounding of the logits may differ by it between kernels; that is no disagreement of sweeps."""
    torch.manual_seed(0)
    model = small()
    x, _ = data(64)
    with torch.no_grad():
        model[2].weight.mul_(60)
    problem = opened(model, (x, model(x).argmax(1)), batch_size=16)
    report = sl.measure(problem, "default")
    assert all(estimate.status != "not_applicable" for estimate in report.values())


def test_measures_finished_before_an_interruption_are_kept() -> None:
    @sl.declare(title="Interrupted", formula="0", citation="none")
    def interrupted(problem: OpenProblem) -> float:
        """Stop as a person would."""
        raise KeyboardInterrupt

    problem = opened(small(), data())
    with pytest.raises(KeyboardInterrupt) as stopped:
        sl.measure(problem, ["weight_norm", interrupted, "hessian_trace"])
    report = stopped.value.report  # type: ignore[attr-defined]
    assert report["weight_norm"].ok
    for name in ("interrupted", "hessian_trace"):  # a row each, which says why it has no number
        assert report[name].status == "not_applicable"
        assert "interrupted" in report[name].reason
    assert "Interrupted after 1 of 3 measures." in report.header.notes


@pytest.mark.parametrize(("cached", "expected"), [(10**9, 256), (1000, 128)])
def test_batches_nobody_chose_are_as_large_as_the_caches_hold(
    monkeypatch: pytest.MonkeyPatch, cached: int, expected: int
) -> None:
    monkeypatch.setattr(batch_sizes, "CACHED", cached)
    inputs, labels = data()
    inputs, labels = inputs.repeat(300, 1)[:300], labels.repeat(300)[:300]
    assert next(iter(opened(small(), (inputs, labels)).batches())).count == expected
    assert next(iter(opened(small(), (inputs, labels), batch_size=7).batches())).count == 7
    assert next(iter(opened(small(), (inputs, labels), mode="train").batches())).count == 128


def test_a_batch_size_leaves_it_to_the_first_batch_to_fail() -> None:
    inputs, labels = data()
    wider = torch.cat([inputs, inputs], 1)
    assert batch_sizes.batch_size_for(opened(small(), (wider, labels))) == batch_sizes.DEFAULT_BATCH_SIZE

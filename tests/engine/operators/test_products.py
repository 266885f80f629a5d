"""Products with H and G: every strategy against dense matrices and another library."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.operators import GGNOperator, HessianOperator, LayerBlock, VarianceOperator
from spiritlevel.engine.operators.layer_tops import block_products
from spiritlevel.engine.operators.memory import GRAPH_SHARE, free_bytes, graph_bytes, within
from spiritlevel.engine.operators.products import Products
from spiritlevel.inputs.process.precision import full_float32
from spiritlevel.measures.reference.dense import Dense
from spiritlevel.values.errors import UsageError
from tests.engine.operators.material import CASES, distance, vectors
from tests.helpers import opened
from tests.networks import PIECEWISE_LINEAR, SMOOTH

STRATEGIES = ("looped", "batched", "forward", "finite differences")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["mlp", "batch_norm_2d", "tanh", "layer_norm", "attention", "embedding"])
def test_every_strategy_gives_the_same_products(name: str, strategy: Any) -> None:
    problem = CASES[name].opened()
    dense, block = Dense(problem), vectors(problem)
    tolerance = 1e-6 if strategy == "finite differences" else 1e-12
    for keep in (False, True):
        hessian = HessianOperator(problem, strategy=strategy, keep_graphs=keep)
        for _ in range(2):  # the second time from graphs that were kept
            assert distance(hessian @ block, dense.hessian @ block) < tolerance
        ggn = GGNOperator(problem, strategy=strategy, keep_graphs=keep)
        assert distance(ggn @ block, dense.ggn @ block) < tolerance
        # Forward mode has no rule for some operations; then the looped products stand in, and a note says so.
        given_up = any(f"{strategy!r} were given up" in note for note in problem.notes)
        assert hessian.products.strategy == ("looped" if given_up else strategy)
        assert not given_up or name in ("attention", "embedding")
        assert hessian.products.keeps_graphs is keep


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_layer_blocks_and_train_mode_batch_norm_against_dense(mode: str) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    model = model.double()
    model[1].running_mean.add_(0.3)
    before = copy.deepcopy(model.state_dict())
    x, y = torch.randn(11, 4, dtype=torch.float64), torch.randint(0, 3, (11,))
    problem = opened(model, (x, y), batch_size=4, mode=mode)
    dense, block = Dense(problem), vectors(problem)
    for keep in (False, True):
        for strategy in ("looped", "batched"):
            operator = HessianOperator(problem, strategy=strategy, keep_graphs=keep)
            assert distance(operator @ block, dense.hessian @ block) < 1e-12
            assert distance(operator @ block, dense.hessian @ block) < 1e-12
    for layer in problem.layers.values():
        names = list(layer.parameters.values())
        index = torch.cat([torch.arange(dense.slices[n].start, dense.slices[n].stop) for n in names])
        own = LayerBlock(problem, names)
        piece = block[index]
        assert distance(own @ piece, dense.hessian[index][:, index] @ piece) < 1e-12
    parts = block_products(
        Products(problem, ["0.weight", "3.weight"]), ["0.weight", "3.weight"], [block[: 4 * 5, 0], block[: 5 * 4, 1]]
    )
    for part, full, column in zip(parts, ("0.weight", "3.weight"), (0, 1)):
        assert distance(part, dense.block(full) @ block[:20, column]) < 1e-12
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} was changed"
    assert model.training


def test_train_mode_depends_on_the_partition_and_eval_mode_does_not() -> None:
    case = PIECEWISE_LINEAR["batch_norm_1d"]
    found = {}
    for mode in ("eval", "train"):
        for size in (4, 7):
            problem = case.opened(batch_size=size, mode=mode)
            found[mode, size] = HessianOperator(problem) @ vectors(problem)
    assert distance(found["eval", 4], found["eval", 7]) < 1e-12
    assert distance(found["train", 4], found["train", 7]) > 1e-2


def test_variance_over_batches_is_the_mean_square_less_the_squared_mean() -> None:
    case = SMOOTH["tanh"]
    problem = case.opened(count=11, batch_size=4)  # the last batch is short
    x, y = case.data(11)
    total = torch.zeros(problem.size, problem.size, dtype=torch.float64)
    for start, stop in ((0, 4), (4, 8), (8, 11)):
        own = Dense(opened(case.model(), (x[start:stop], y[start:stop]))).hessian
        total += (stop - start) / 11 * own @ own
    mean = Dense(problem).hessian
    block = vectors(problem)
    for strategy in ("looped", "batched", "forward"):
        assert distance(VarianceOperator(problem, strategy=strategy) @ block, (total - mean @ mean) @ block) < 1e-11
    alone = VarianceOperator(case.opened(count=4, batch_size=4))
    assert float((alone @ block).abs().max()) < 1e-14  # one batch has no variance


def test_variance_over_batches_nobody_chose_is_over_those_of_the_usual_size() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    data = torch.randn(300, 3).double(), torch.randint(2, (300,))
    problem = opened(model, data)
    assert next(iter(problem.batches())).count == 256  # in which other sweeps go
    block = torch.randn(problem.size, 2).double()
    found, expected = (VarianceOperator(opened(model, data, batch_size=size)) @ block for size in (None, 128))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


def _mean_squared(model: nn.Module, x: Tensor) -> tuple[str, Any, Tensor]:
    return "mean_squared_error", nn.MSELoss(), torch.randn(len(x), 3, dtype=torch.float64)


def _binary(model: nn.Module, x: Tensor) -> tuple[str, Any, Tensor]:
    return "binary_cross_entropy", nn.BCEWithLogitsLoss(), torch.randint(0, 2, (len(x), 3)).double()


def _classes(model: nn.Module, x: Tensor) -> tuple[str, Any, Tensor]:
    return "cross_entropy", nn.CrossEntropyLoss(), torch.randint(0, 3, (len(x),))


LIBRARY_CASES: list[tuple[str, Callable[..., Any], int]] = [
    ("mlp", _classes, 4),
    ("mlp", _mean_squared, 4),
    ("mlp", _binary, 3),
    ("affine", _classes, 10),
    ("tanh", _classes, 1),
    ("tanh", _mean_squared, 10),
    ("gelu", _binary, 4),
    ("batch_norm_1d", _classes, 4),
    ("batch_norm_2d", _mean_squared, 6),
    ("conv1d_reflect", _classes, 3),
    ("residual", _classes, 4),
    ("inplace_relu", _classes, 7),
    ("max_pool_1d", _classes, 4),
    ("lstm", _classes, 4),
    ("prelu", _mean_squared, 9),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "targets", "size"), LIBRARY_CASES)
def test_products_agree_with_curvlinops(name: str, targets: Callable[..., Any], size: int) -> None:
    curvlinops = pytest.importorskip("curvlinops")
    case = CASES[name]
    model, (x, _) = case.model(), case.data(10)
    loss, criterion, y = targets(model, x)
    problem = opened(model, (x, y), loss, batch_size=size)
    batches = [(x[start : start + size], y[start : start + size]) for start in range(0, 10, size)]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    block = vectors(problem)
    for ours, theirs in (
        (HessianOperator(problem), curvlinops.HessianLinearOperator),
        (GGNOperator(problem), curvlinops.GGNLinearOperator),
    ):
        other = theirs(model, criterion, parameters, batches)
        assert distance(ours @ block, other @ block) < 1e-12


def test_float32_products_are_those_of_float64_to_rounding() -> None:
    case = SMOOTH["attention"]
    wide = case.opened()
    narrow = case.opened(dtype="float32")
    block = vectors(wide)
    assert distance(HessianOperator(narrow) @ block.float(), HessianOperator(wide) @ block) < 1e-5


def test_strategy_is_chosen_and_said() -> None:
    problem = CASES["mlp"].opened()
    products = Products(problem, problem.parameters)
    assert products.strategy == "looped"  # one vector
    HessianOperator(problem) @ vectors(problem)
    operator = HessianOperator(problem)
    operator @ vectors(problem)
    assert operator.products.strategy == "batched"  # a small graph shares its overhead
    assert operator.path.label == "double backward"
    size, batches = graph_bytes(problem)
    assert size > 0
    assert batches == 2
    assert free_bytes(torch.device("cpu")) > size
    with pytest.raises(UsageError, match="strategy must be one of"):
        HessianOperator(problem, strategy="magic")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs a CUDA device"):
        HessianOperator(problem, strategy="compiled")


@pytest.mark.parametrize("name", ["conv2d_strided_padded", "mlp"])
def test_pieces_of_batches_add_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spiritlevel.engine.operators.products.TOGETHER", 1)  # one sample at a time
    monkeypatch.setattr("spiritlevel.engine.operators.products.MOST_TOGETHER", 2)
    problem = CASES[name].opened()
    dense, block = Dense(problem).hessian, vectors(problem, 5)
    for keep in (False, True):
        operator = HessianOperator(problem, keep_graphs=keep)
        assert distance(operator @ block, dense @ block) < 1e-12
        assert operator.products.strategy == "batched"
        assert distance(operator @ block[:, 0], dense @ block[:, 0]) < 1e-12
    assert len(operator.products._kept or []) == problem.survey.count
    coupled = PIECEWISE_LINEAR["batch_norm_1d"].opened(mode="train")
    operator = HessianOperator(coupled, keep_graphs=True)
    operator @ vectors(coupled, 5)
    assert len(operator.products._kept or []) == 2  # the batches themselves


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_graphs_are_kept_while_there_is_room(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = CASES["conv2d_strided_padded"].opened()
    size, number = graph_bytes(problem)
    assert number == 2
    dense, block = Dense(problem).hessian, vectors(problem, 5)
    operator = HessianOperator(problem, strategy="batched", keep_graphs=None)
    monkeypatch.setattr(type(operator.products), "_room", property(lambda self: (batches + 0.5) * size))
    for columns in (block, block[:, 0], block[:, :3]):  # later products have other widths than the first
        assert distance(operator @ columns, dense @ columns) < 1e-12
    assert len(operator.products._kept) == batches
    operator.release()
    assert distance(operator @ block, dense @ block) < 1e-12


def test_a_batch_is_counted_for_itself_where_it_is_a_view_of_all_data() -> None:
    model = nn.Sequential(nn.Linear(50, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y = torch.randn(400, 50), torch.randint(3, (400,))
    few, many = (opened(model, (x[:n], y[:n]), batch_size=20) for n in (40, 400))
    assert graph_bytes(few)[0] == graph_bytes(many)[0]


def allow(monkeypatch: pytest.MonkeyPatch, allowed: float) -> None:
    monkeypatch.setenv("SPIRITLEVEL_MEMORY", str(int(allowed)))


def test_graphs_take_no_more_than_a_training_step_unless_that_is_little() -> None:
    gib = 2.0**30
    in_use, kept = within(free=100 * gib, step=20 * gib, small=4 * gib)  # a large model: no more than the step itself
    assert in_use + kept <= 20 * gib
    assert within(free=100 * gib, step=gib, small=4 * gib) == (4 * gib, 4 * gib)  # a small one keeps what it can
    assert within(free=2 * gib, step=20 * gib, small=4 * gib) == (1 * gib, pytest.approx(0.8 * gib))


@pytest.mark.parametrize("strategy", ["looped", "batched"])
@pytest.mark.parametrize("samples", [1, 2, 4])
def test_batches_are_cut_into_pieces_whose_graph_fits(
    samples: int, strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = CASES["conv2d_strided_padded"].opened()
    size, number = graph_bytes(problem)
    each = size * number / problem.survey.count
    dense, block = Dense(problem).hessian, vectors(problem)
    wide = HessianOperator(problem, strategy=strategy) @ block
    allow(monkeypatch, each * (samples + 0.5) / GRAPH_SHARE)
    for keep in (False, True, None):
        operator = HessianOperator(problem, strategy=strategy, keep_graphs=keep)
        counts = [part.batch.count for part in operator.products.sweep(3, "test")]  # type: ignore[attr-defined]
        assert max(counts) == samples
        assert sum(counts) == problem.survey.count
        for _ in range(2):
            product = operator @ block
            assert distance(product, dense @ block) < 1e-12
            torch.testing.assert_close(product, wide, rtol=1e-10, atol=1e-14)
        operator.release()


def test_too_little_memory_for_the_graph_of_one_sample_takes_forward_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = CASES["tanh"].opened()
    size, number = graph_bytes(problem)
    allow(monkeypatch, size * number / problem.survey.count)  # of which only a part may be a graph
    operator = HessianOperator(problem, keep_graphs=None)
    block = vectors(problem)
    assert distance(operator @ block, Dense(problem).hessian @ block) < 1e-12
    assert operator.products.strategy == "forward"
    assert not operator.products.keeps_graphs


def test_samples_that_influence_each_other_are_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PIECEWISE_LINEAR["batch_norm_1d"].opened(mode="train")
    whole = HessianOperator(problem) @ vectors(problem)
    allow(monkeypatch, 1000)
    assert distance(HessianOperator(problem) @ vectors(problem), whole) < 1e-12
    own = HessianOperator(problem)
    assert len(list(own.products.sweep(1, "test"))) == 2


def test_vectors_as_large_as_the_model_go_one_by_one_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = CASES["mlp"].opened(count=40)
    monkeypatch.setattr("spiritlevel.engine.operators.products.SMALL_GRAPH", 1)
    assert Products(problem, problem.parameters).strategy_for(8) == "batched"
    monkeypatch.setattr("spiritlevel.engine.operators.products.LARGEST_BLOCK", 12 * 8 * (problem.size - 1))
    assert Products(problem, problem.parameters).strategy_for(8) == "looped"


def test_a_strategy_that_fails_gives_way_and_the_report_says_so() -> None:
    problem = PIECEWISE_LINEAR["batch_norm_1d"].opened(mode="train")  # statistics written in place stop transforms
    operator = HessianOperator(problem, strategy="forward")
    block = vectors(problem)
    assert distance(operator @ block, Dense(problem).hessian @ block) < 1e-12
    assert operator.products.strategy == "looped"
    assert any("'forward' were given up for 'looped'" in note for note in problem.notes)


def test_full_float32_precision_holds_inside_and_is_restored() -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    try:
        with full_float32():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
        problem = CASES["mlp"].opened()
        with problem.session():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def test_wrong_shapes_and_names_are_refused() -> None:
    problem = CASES["mlp"].opened()
    with pytest.raises(UsageError, match="cannot be multiplied"):
        HessianOperator(problem) @ torch.zeros(3, dtype=torch.float64)
    with pytest.raises(UsageError, match="no parameter is named 'nowhere'"):
        LayerBlock(problem, ["nowhere"])
    one = vectors(problem)[:, 0]
    assert (HessianOperator(problem) @ one).shape == one.shape
    assert HessianOperator(problem).shape == (problem.size, problem.size)


def test_a_measurement_with_little_memory_gives_the_same_numbers_in_smaller_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, names = CASES["gelu"], ["hessian_trace", "hessian_top_eigenvalue", "hessian_frobenius"]
    seen: list[int] = []
    made = Products._made

    def counted(self: Products, problem: Any, batch: Any, *arguments: Any) -> Any:
        seen.append(batch.count)
        return made(self, problem, batch, *arguments)

    monkeypatch.setattr(Products, "_made", counted)
    found = []
    for samples in (None, 6):
        problem = case.opened(count=48, batch_size=48)
        if samples is not None:
            allow(monkeypatch, graph_bytes(problem)[0] / 48 * samples / GRAPH_SHARE)
        seen.clear()
        found.append((sl.measure(problem, names), max(seen)))
    (wide, largest), (narrow, most) = found
    assert most <= 6 < largest
    for name in names:
        assert narrow[name].status == wide[name].status
        assert narrow[name].value == pytest.approx(wide[name].value, rel=1e-9)

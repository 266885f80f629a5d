"""Weights as matrices and each sample's gradients by rules, against indices written out and autograd one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spiritlevel.engine.blocks import Blocks
from spiritlevel.engine.layers.rules import rule_of
from spiritlevel.engine.layers.sample_gradients import OuterGradients, pad, patches
from spiritlevel.engine.passes.recording import USE, Recorder
from spiritlevel.engine.passes.stages import Stages
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.weight_matrices import WeightView, as_matrix, from_matrix, matrix_shape
from spiritlevel.measures.reference import Dense
from tests.helpers import opened
from tests.networks import PIECEWISE_LINEAR

MODULES: dict[str, tuple[nn.Module, tuple[int, int, int, int]]] = {
    "linear": (nn.Linear(3, 5), (1, 5, 3, 1)),
    "conv1d": (nn.Conv1d(4, 6, 3, groups=2), (2, 3, 2, 3)),
    "conv2d": (nn.Conv2d(4, 6, (2, 3)), (1, 6, 4, 6)),
    "conv2d_depthwise": (nn.Conv2d(4, 8, 3, groups=4), (4, 2, 1, 9)),
    "conv3d": (nn.Conv3d(2, 4, (1, 2, 3), groups=2), (2, 2, 1, 6)),
    "conv_transposed": (nn.ConvTranspose2d(4, 6, (2, 3), groups=2), (2, 3, 2, 6)),
    "embedding": (nn.Embedding(7, 3), (1, 3, 7, 1)),
    "bilinear": (nn.Bilinear(2, 3, 4), (1, 4, 6, 1)),
}


@pytest.mark.parametrize("name", MODULES)
def test_weights_as_matrices_and_back(name: str) -> None:
    module, shape = MODULES[name]
    weight = module.weight.detach()
    assert matrix_shape(module, weight) == shape
    matrix = as_matrix(module, weight, weight)
    assert tuple(matrix.shape) == shape
    assert torch.equal(from_matrix(module, matrix, weight), weight)
    stacked = torch.stack([weight, 2 * weight])
    assert torch.equal(from_matrix(module, as_matrix(module, stacked, weight), weight), stacked)
    assert torch.equal(as_matrix(module, stacked, weight)[1], 2 * matrix)


@pytest.mark.parametrize("name", ["linear", "conv1d", "conv2d", "conv2d_depthwise", "conv3d", "conv_transposed"])
def test_a_row_holds_all_weights_into_one_output_and_a_column_all_out_of_one_input(name: str) -> None:
    """Outputs that change with a row's weights are one channel; inputs a column reads are one channel."""
    module, (groups, outputs, inputs, _) = MODULES[name]
    weight = module.weight.detach()
    size = (1, groups * inputs, *([5] * (weight.ndim - 2)))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, generator=generator)
    index = torch.arange(weight.numel()).reshape(weight.shape)
    matrix = as_matrix(module, index, weight)

    def run(mask: Tensor, given: Tensor) -> Tensor:
        kept = torch.where(mask, weight, 0.0)
        return torch.func.functional_call(module, {"weight": kept, "bias": torch.zeros_like(module.bias)}, (given,))

    for group in range(groups):
        for row in range(outputs):
            mask = torch.isin(index, matrix[group, row].reshape(-1))
            found = run(mask, x).abs().flatten(2).sum(2)[0] if weight.ndim > 2 else run(mask, x).abs()[0]
            assert found.nonzero().reshape(-1).tolist() == [group * outputs + row]
        for column in range(inputs):
            mask = torch.isin(index, matrix[group, :, column].reshape(-1))
            # Only input channel (group, column) matters to what these weights give.
            without = x.clone()
            without[:, group * inputs + column] = 0
            assert not bool(run(mask, without).any())
            assert bool(run(mask, x).any())


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(
    "module",
    [
        nn.Conv1d(2, 3, 3, stride=2, padding=2, dilation=2),
        nn.Conv1d(4, 4, 2, groups=2, padding=1, padding_mode="circular"),
        nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(1, 0), groups=2),
        nn.Conv2d(2, 2, (2, 4), padding="same"),
        nn.Conv2d(2, 2, 3, padding="valid", dilation=2),
        nn.Conv2d(2, 2, 3, padding=2, padding_mode="reflect"),
        nn.Conv3d(2, 2, (1, 2, 3), padding=(0, 1, 1), padding_mode="replicate"),
    ],
)
def test_unfolded_patches_times_the_weight_are_the_convolution(module: Any) -> None:
    module = module.double()
    x = torch.randn(2, module.in_channels, *([6] * len(module.kernel_size)), dtype=torch.float64)
    unfolded = patches(module, pad(module, x))  # (B, G, T, IK)
    view = WeightView(module, module.weight)
    outputs = torch.einsum("bgti,goi->bgot", unfolded, view.flat).flatten(1, 2)
    expected = (module(x) - (0 if module.bias is None else module.bias.reshape(-1, *([1] * (x.ndim - 2))))).flatten(2)
    torch.testing.assert_close(outputs, expected)


def _rule_cases() -> list[str]:
    return [name for name in PIECEWISE_LINEAR if name not in ("functional", "conv_transposed")]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", _rule_cases())
def test_gradients_by_rule_are_those_of_autograd(name: str) -> None:
    """Every functional of the samples' gradients, from gradients taken one sample and one column at a time."""
    problem = PIECEWISE_LINEAR[name].opened(count=4)
    with problem.session():
        (batch,) = problem.batches()
        with Recorder(problem) as recorder:
            outputs = problem.outputs(batch.content)
        columns = torch.randn(3, *outputs.shape, dtype=torch.float64)
        names = [layer for layer in problem.layers if rule_of(problem.layers[layer].module) is not None]
        assert names == list(problem.layers)
        deltas = recorder.pull_back_all(outputs, columns, names, Stages())
        rules = recorder.gradients_from_deltas(names)
        expected = _one_by_one(problem, outputs, columns)
        for layer in names:
            for local, found in rules[layer](deltas[layer]).items():
                full = problem.layers[layer].parameters[local]
                _compare(
                    found, expected[full], WeightView(problem.layers[layer].module, problem.chosen_parameters[full])
                )


def _one_by_one(problem: OpenProblem, outputs: Tensor, columns: Tensor) -> dict[str, Tensor]:
    """Gradients of column·output for each column and sample, (K, B, *shape)."""
    found: dict[str, list[Tensor]] = {full: [] for full in problem.parameters}
    for column in columns:
        rows: dict[str, list[Tensor]] = {full: [] for full in problem.parameters}
        for b in range(len(outputs)):
            parts = torch.autograd.grad((outputs[b] * column[b]).sum(), problem.tensors, retain_graph=True)
            for full, part in zip(problem.parameters, parts):
                rows[full].append(part)
        for full in problem.parameters:
            found[full].append(torch.stack(rows[full]))
    return {full: torch.stack(parts) for full, parts in found.items()}


def _compare(found: Any, expected: Tensor, view: WeightView) -> None:
    count = expected.shape[:2]
    coefficients = torch.randn(count, dtype=torch.float64)
    torch.testing.assert_close(found.squared_norms(), expected.flatten(2).square().sum(2))
    total = torch.zeros(expected.shape[2:], dtype=torch.float64)
    found.add_squares(total[None], coefficients)
    torch.testing.assert_close(total, torch.einsum("kb,kb...->...", coefficients, expected.square()))
    if expected.ndim < 4:
        return
    weight = view.weight.detach()
    products = as_matrix(view.module, expected * weight, weight)  # (K, B, G, O, I, kernel)
    torch.testing.assert_close(found.row_products(view), products.sum((-1, -2)).flatten(2))
    torch.testing.assert_close(found.column_products(view), products.sum((-1, -3)).flatten(2))
    gradients = as_matrix(view.module, expected, weight).flatten(-2)
    transposed = torch.einsum("goi,kbgoj->kbgij", view.flat, gradients)
    torch.testing.assert_close(found.transposed_norms(view), transposed.square().sum((2, 3, 4)))


def test_a_subclass_has_no_rule() -> None:
    """It may compute something else than its parent."""

    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    assert rule_of(nn.Linear(2, 2)) is not None
    assert rule_of(Doubled(2, 2)) is None
    assert rule_of(nn.ReLU()) is None


class Temperature(nn.Module):
    """A single number scales the outputs, as in contrastive models."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner, self.head = nn.Parameter(torch.tensor(1.3)), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.head(torch.relu(self.inner(x)))


class Squeezing(nn.Module):
    """Drops every dimension of size 1, the batch's too."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.head = nn.Parameter(torch.randn(4, 4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(x.squeeze() @ self.matrix))


class SequenceFirst(nn.Module):
    """Layers that see positions, or positions and samples together, where samples are expected."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x.transpose(0, 1)))
        x = torch.relu(self.second(x.flatten(0, 1))).unflatten(0, x.shape[:2])
        return self.head(x.mean(0))


@pytest.mark.parametrize("shape", [(4,), (1, 4), (6, 3), (4, 3)])
def test_parameters_of_unusual_models_are_found_where_they_are_used(shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    make = {(4,): Temperature, (1, 4): Squeezing}.get(shape, SequenceFirst)
    problem = opened(make().double(), (torch.randn(6, *shape), torch.randint(0, 3, (6,))), batch_size=6)
    blocks, dense = Blocks(problem, frozenset({"diagonal", "rows", "columns", "transposed"})), Dense(problem)
    assert blocks.exact
    assert blocks.sums is not None
    assert not blocks.sums.fallback
    assert any(name.startswith(USE) for name in blocks.sums.by_rule)
    for full in problem.parameters:
        expected = dense.hessian.diagonal()[dense.slices[full]].reshape(dense.shapes[full])
        torch.testing.assert_close(blocks.diagonal(full).value, expected, rtol=1e-8, atol=1e-12)


def test_an_embedding_with_repeated_tokens_adds_before_squaring() -> None:
    model = nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(6, 2)).double()
    tokens = torch.tensor([[1, 1, 1], [0, 3, 0]])
    problem = opened(model, (tokens, torch.tensor([0, 1])))
    with problem.session():
        (batch,) = problem.batches()
        with Recorder(problem) as recorder:
            outputs = problem.outputs(batch.content)
        column = torch.randn_like(outputs)[None]
        (delta,) = recorder.pull_back_all(outputs, column, ["0"], Stages())["0"]
        found = recorder.gradients_from_deltas(["0"])["0"]([delta])["weight"]
        expected = torch.stack(
            [
                delta[0, 0].sum(0).square().sum(),
                delta[0, 1, [0, 2]].sum(0).square().sum() + delta[0, 1, 1].square().sum(),
            ]
        )
        torch.testing.assert_close(found.squared_norms()[0], expected)


@pytest.mark.parametrize("columns", [1, 4])
@pytest.mark.parametrize("positions", [1, 5, 90])
def test_norms_of_drawn_columns_are_the_norms(columns: int, positions: int) -> None:
    """By positions where these are few, by the gradients where they are many: to rounding the same."""
    inputs, deltas = torch.randn(3, 2, positions, 40), torch.randn(columns, 3, 2, positions, 30)
    expected = OuterGradients(inputs.double(), deltas.double(), torch.Size((60, 40))).squared_norms()
    found = OuterGradients(inputs, deltas, torch.Size((60, 40)))
    torch.testing.assert_close(found.sampled_norms().double(), expected, rtol=1e-5, atol=0)
    assert (found._formed is None) == (positions < 90)


def test_norms_of_drawn_columns_of_convolutions() -> None:
    module = nn.Conv2d(8, 12, 2, stride=2, groups=2)
    inputs, deltas = torch.randn(3, 8, 4, 4), torch.randn(5, 3, 12, 2, 2)
    found = rule_of(module)(module, [inputs])([deltas])["weight"]
    torch.testing.assert_close(found.sampled_norms().float(), found.squared_norms(), rtol=1e-4, atol=1e-6)

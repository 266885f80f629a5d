"""Convolutions pulled back with rows folded into channels, as on a GPU: the gradients autograd gives."""

import pytest
import torch
from torch import Tensor, nn

from spiritlevel.passes.curvature import gauss_newton_columns
from spiritlevel.passes.folding import can_be_folded, pulled_through
from spiritlevel.passes.graph import look_at
from spiritlevel.passes.recording import Recorder
from spiritlevel.passes.stages import Stages, find_stages
from spiritlevel.problem import Problem

PLENTY = 10**9  # of a GPU's memory


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": (2, 3), "padding": (1, 2)},
        {"kernel_size": (3, 2), "dilation": (2, 3), "padding": (3, 1)},
        {"kernel_size": 5, "padding": 2, "bias": False},
        {"kernel_size": (4, 1)},
    ],
)
def test_gradients_of_the_inputs_are_those_of_autograd(options) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    module = nn.Conv2d(3, 4, **options).double()
    inputs = torch.randn(6, 3, 7, 9, dtype=torch.float64, requires_grad=True)
    outputs = module(inputs)
    deltas = torch.randn_like(outputs)
    (expected,) = torch.autograd.grad(outputs, inputs, deltas)
    torch.testing.assert_close(pulled_through(module, deltas, inputs.shape), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("module", "height", "expected"),
    [
        (nn.Conv2d(6, 16, 5), 14, True),
        (nn.Conv2d(6, 16, 5), 28, False),  # too much more arithmetic
        (nn.Conv2d(64, 64, 5), 14, False),  # channels enough
        (nn.Conv2d(6, 16, 5, stride=2), 14, False),
        (nn.Conv2d(6, 16, 5, groups=2), 14, False),
        (nn.Conv2d(6, 16, 5, padding="same"), 14, False),
        (nn.Conv2d(6, 16, 5, padding=2, padding_mode="circular"), 14, False),
        (nn.Conv2d(6, 16, 3, padding=3), 8, False),  # outputs that see nothing but padding
        (nn.Linear(6, 16), 14, False),
    ],
)
def test_only_small_plain_convolutions_are_folded(module: nn.Module, height: int, expected: bool) -> None:
    assert can_be_folded(module, torch.Size([2, 6, height, 14])) == expected


def layers(*pools: bool) -> nn.Module:
    """Convolutions, each with a ReLU behind it and with a pooling where it is told."""
    torch.manual_seed(0)
    found: list[nn.Module] = []
    for place, pooled in enumerate(pools):
        found += [nn.Conv2d(1 if place == 0 else 3, 3, 3, padding=1), nn.ReLU()]
        found += [nn.MaxPool2d(2)] if pooled else []
    size = 3 * (8 // 2 ** sum(pools)) ** 2
    return nn.Sequential(*found, nn.Flatten(), nn.Linear(size, 5), nn.ReLU(), nn.Linear(5, 3)).double()


@pytest.mark.parametrize(
    ("pools", "cut", "folded"),
    [
        ((True, True), "3", "0"),
        ((True, False), "3", "0"),
        ((False, True), "2", None),  # a ReLU lies between
        ((True, True, True), "6", "3"),  # the first one is pulled back by autograd from there
        ((True,), "0", None),
    ],
)
def test_a_network_pulled_back_so_gives_the_same(pools: tuple[bool, ...], cut: str, folded: str | None) -> None:
    torch.manual_seed(1)
    problem = Problem(layers(*pools), (torch.randn(11, 1, 8, 8).double(), torch.randint(3, (11,))))
    with problem.session():
        batch = next(iter(problem.batches()))
        with Recorder(problem) as recorder:
            outputs = problem.outputs(batch.content)
        graph = look_at(outputs)
        recorder.stop_after_poolings(graph)
        columns = gauss_newton_columns(problem, batch, outputs.detach()).columns
        names = list(recorder.edges)
        chosen = find_stages(recorder, graph, names, len(columns), PLENTY)
        assert (chosen.cut, chosen.folded) == (cut, folded)
        assert recorder.can_be_staged(outputs, columns, names, chosen)
        norms: list[list[Tensor]] = []
        for how in (Stages(), chosen):
            deltas = recorder.pull_back_all(outputs, columns, names, how)
            assert deltas.keys() == set(names)
            rules = recorder.gradients_from_deltas(names, how)
            norms.append([part.squared_norms() for name in names for part in rules[name](deltas[name]).values()])
    torch.testing.assert_close(*norms, rtol=1e-11, atol=1e-15)

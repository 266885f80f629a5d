"""Convolutions pulled back with rows taken as channels, as on a GPU: the gradients autograd gives."""

import pytest
import torch
from torch import Tensor, nn

from spiritlevel.engine.passes import recording, stages
from spiritlevel.engine.passes.row_channels import pulled_through, rows_as_channels
from spiritlevel.engine.passes.stages import RowChannels, Stages, find_stages
from tests.helpers import opened, recorded

PLENTY = 10**9  # of a GPU's memory


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
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
def test_gradients_of_the_inputs_are_those_of_autograd(options, rows: int) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    module = nn.Conv2d(3, 4, **options).double()
    inputs = torch.randn(6, 3, 8, 9, dtype=torch.float64, requires_grad=True)
    outputs = module(inputs)
    deltas = torch.randn_like(outputs)
    (expected,) = torch.autograd.grad(outputs, inputs, deltas)
    torch.testing.assert_close(pulled_through(module, deltas, inputs.shape, rows), expected, rtol=1e-12, atol=1e-13)


class OnGpu(Tensor):
    """Inputs that say they are on a GPU."""

    is_cuda = True


@pytest.mark.parametrize(
    ("module", "height", "on_gpu", "on_cpu"),
    [
        (nn.Conv2d(6, 16, 5), 14, 14, 2),
        (nn.Conv2d(6, 16, 5), 28, 1, 2),  # too much more arithmetic for a GPU
        (nn.Conv2d(6, 16, 5), 15, 15, 1),  # two rows at a time would leave one over
        (nn.Conv2d(64, 64, 5), 14, 1, 1),  # channels enough
        (nn.Conv2d(6, 16, 5, stride=2), 14, 1, 1),
        (nn.Conv2d(6, 16, 5, groups=2), 14, 1, 1),
        (nn.Conv2d(6, 16, 5, padding="same"), 14, 1, 1),
        (nn.Conv2d(6, 16, 5, padding=2, padding_mode="circular"), 14, 1, 1),
        (nn.Conv2d(6, 16, 3, padding=3), 8, 1, 1),  # outputs that see nothing but padding
        (nn.Linear(6, 16), 14, 1, 1),
    ],
)
def test_only_small_plain_convolutions_take_rows_as_channels(
    module: nn.Module, height: int, on_gpu: int, on_cpu: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = torch.zeros(2, 6, height, 14)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert rows_as_channels(module, inputs) == on_cpu
    assert rows_as_channels(module, inputs.as_subclass(OnGpu)) == on_gpu
    assert rows_as_channels(module, inputs.double()) == 1
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert rows_as_channels(module, inputs) == 1  # six of eight lanes are at work anyway


def layers(*pools: bool) -> nn.Module:
    """Convolutions, each with a ReLU behind it and with a pooling where it is told."""
    torch.manual_seed(0)
    found: list[nn.Module] = []
    for place, pooled in enumerate(pools):
        found += [nn.Conv2d(1 if place == 0 else 3, 3, 3, padding=1), nn.ReLU()]
        found += [nn.MaxPool2d(2)] if pooled else []
    size = 3 * (8 // 2 ** sum(pools)) ** 2
    return nn.Sequential(*found, nn.Flatten(), nn.Linear(size, 5), nn.ReLU(), nn.Linear(5, 3)).double()


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize(
    ("pools", "room", "cut", "by_rows"),
    [
        ((True, True), PLENTY, "3", RowChannels("3", "0")),
        ((True, False), PLENTY, "3", RowChannels("3", "0")),
        ((False, True), PLENTY, "2", None),  # a ReLU lies between
        ((True, True, True), PLENTY, "6", RowChannels("3", "0")),  # the last of them
        (
            (False, True, True),
            PLENTY,
            "5",
            RowChannels("5", "2"),
        ),  # autograd pulls the first one back from there
        ((True,), PLENTY, "0", None),
        ((True, True), 700, "7", RowChannels("3", "0")),  # the cut comes before, autograd leads to the convolution
        ((True, True), 0, None, RowChannels("3", "0")),
        ((True, True, True), 0, None, RowChannels("3", "0")),
        ((False, True, True), 0, None, None),  # there is more behind, and no cut to go on from
    ],
)
def test_a_network_pulled_back_so_gives_the_same(
    pools: tuple[bool, ...],
    room: int,
    cut: str | None,
    by_rows: RowChannels | None,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "rows_as_channels", lambda module, inputs: rows)
    monkeypatch.setattr(recording, "rows_as_channels", lambda module, inputs: min(rows, inputs.shape[2]))
    torch.manual_seed(1)
    problem = opened(layers(*pools), (torch.randn(11, 1, 8, 8).double(), torch.randint(3, (11,))))
    with problem.session():
        outputs, recorder, graph, columns = recorded(problem)
        names = list(recorder.edges)
        chosen = find_stages(recorder, graph, names, len(columns), room)
        assert (chosen.cut, chosen.by_rows) == (cut, by_rows)
        assert recorder.can_be_staged(outputs, columns, names, chosen)
        norms: list[list[Tensor]] = []
        for how in (Stages(), chosen):
            deltas = recorder.pull_back_all(outputs, columns, names, how)
            assert deltas.keys() == set(names)
            rules = recorder.gradients_from_deltas(names, how)
            norms.append([part.squared_norms() for name in names for part in rules[name](deltas[name]).values()])
    torch.testing.assert_close(*norms, rtol=1e-11, atol=1e-15)

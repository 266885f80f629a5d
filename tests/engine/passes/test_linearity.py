"""Which layers are exact is found on the data: one smooth sample in hundreds is seen, no label hangs on the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.engine.blocks import Blocks
from spiritlevel.measures.reference import Dense
from tests.engine.passes.agreement import ALL, close
from tests.helpers import opened
from tests.networks import PIECEWISE_LINEAR, SMOOTH


class RarelySmooth(nn.Module):
    """Linear everywhere but for inputs beyond a threshold that about one sample in a hundred passes."""

    def __init__(self, smooth: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.before, self.middle, self.after = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.smooth = smooth

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.middle(F.relu(self.before(x))))
        hidden = torch.where(x[:, :1] > 4, self.smooth(hidden), hidden)
        return self.after(hidden)


@pytest.mark.parametrize("smooth", [F.gelu, F.softplus, torch.tanh, torch.square])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("position", [0, 150, 299])
def test_one_smooth_sample_in_hundreds_is_found(smooth: Any, dtype: torch.dtype, position: int) -> None:
    torch.manual_seed(11)
    model = RarelySmooth(smooth).to(dtype)
    x, y = torch.randn(300, 3, dtype=dtype).clamp(max=3), torch.randint(0, 2, (300,))
    x[[position, (position + 1) % 300, (position + 2) % 300], 0] = 5.0
    with torch.no_grad():  # the rare samples' units must be alive
        model.before.bias.fill_(1.0), model.middle.bias.fill_(1.0)
    blocks = Blocks(opened(model, (x, y), batch_size=64))
    assert blocks.exact_layers == {"before": False, "middle": False, "after": True}
    usual = Blocks(opened(model, (x.clamp(max=3), y), batch_size=64))
    assert usual.exact


def test_a_hardswish_in_its_linear_range_is_exact_and_elsewhere_is_not() -> None:
    """Hardswish is linear beyond ±3; single inputs inside the range decide."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Hardswish(), nn.Linear(1, 2)).double()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    far = torch.linspace(4, 9, 200)[:, None].double()
    labels = torch.arange(200) % 2
    assert Blocks(opened(model, (far, labels), batch_size=32)).exact
    far[137] = 1.0
    assert Blocks(opened(model, (far, labels), batch_size=32)).exact_layers == {"0": False, "2": True}


def test_labels_do_not_depend_on_the_loss_being_zero() -> None:
    """At interpolation every check through the loss would pass; this one has no loss in it."""
    case = SMOOTH["gelu"]
    model, (x, _) = case.model(), case.data()
    target = model(x).detach()
    blocks = Blocks(opened(model, (x, target), "mean_squared_error", batch_size=4), ALL)
    assert blocks.exact_layers == {"0": False, "2": True, "4": True}
    trace = blocks.network_trace()
    assert trace.how == "estimated"
    dense = Dense(blocks.problem)
    close(trace.value, dense.hessian.trace(), 1e-6)  # the remainder vanishes with the residuals
    # Cross-entropy so confident that the loss rounds to zero.
    with torch.no_grad():
        model[4].weight.mul_(1e6)
    labels = model(x).argmax(1)
    problem = opened(model, (x, labels), batch_size=4)
    assert problem.survey.loss < 1e-30
    assert Blocks(problem).exact_layers == {"0": False, "2": True, "4": True}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_float32_verification_of_every_architecture() -> None:
    for name, case in PIECEWISE_LINEAR.items():
        x, y = case.data()
        x = x.float() if x.is_floating_point() else x
        assert Blocks(opened(case.model().float(), (x, y), batch_size=4)).exact, name
    for name, case in SMOOTH.items():
        x, y = case.data()
        x = x.float() if x.is_floating_point() else x
        blocks = Blocks(opened(case.model().float(), (x, y), batch_size=4))
        assert {layer for layer, exact in blocks.exact_layers.items() if not exact} == case.smooth, name


def test_derivatives_are_checked_where_something_may_be_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below what is curved everywhere nothing is claimed; above it torch's own linear operations are left."""

    def refused(problem: Any) -> Any:
        raise AssertionError("products were checked, which nothing asked for")

    monkeypatch.setattr("spiritlevel.engine.passes.linearity.path_of", refused)
    case = SMOOTH["gelu"]
    blocks = Blocks(opened(case.model(), case.data(), batch_size=4))
    assert blocks.exact_layers == {"0": False, "2": True, "4": True}
    hardswish = nn.Sequential(nn.Linear(3, 4), nn.Hardswish(), nn.Linear(4, 2))
    with pytest.raises(AssertionError, match="nothing asked for"):  # straight in places: its zeros must be trusted
        Blocks(opened(hardswish, (torch.randn(8, 3), torch.arange(8) % 2)))

"""Fused operations composed of single ones: the same values, and derivatives that torch's own do not give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from spiritlevel.engine.operators.differentiation import derivative_along
from spiritlevel.inputs.process.composite_operations import ComposedLayerNorm, composite_operations


@pytest.mark.parametrize("shape", [(6,), (3, 6)])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.3}])
def test_a_composed_layer_norm_has_torchs_values(shape: tuple[int, ...], options: dict[str, object]) -> None:
    torch.manual_seed(0)
    norm = nn.LayerNorm(shape, **options).double()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(4, 3, 6, dtype=torch.float64)
    with ComposedLayerNorm():
        composed = norm(x), torch.layer_norm(x, (6,))
    torch.testing.assert_close(composed, (norm(x), torch.layer_norm(x, (6,))), rtol=1e-12, atol=1e-12)


def test_a_composed_layer_norm_can_be_pushed_forward_twice() -> None:
    """The second derivative along a direction, against central differences."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(5).double()
    x, direction, weight = torch.randn(3, 2, 5, dtype=torch.float64)

    def value(x: Tensor) -> Tensor:
        return (norm(x) * weight).sum(-1)

    leaf = x.clone().requires_grad_()
    with ComposedLayerNorm():
        values = value(leaf)
    slope = derivative_along(values, [leaf], [direction], create_graph=True)
    found = derivative_along(slope, [leaf], [direction])
    step = 1e-4
    differences = (value(x + step * direction) + value(x - step * direction) - 2 * value(x)) / step**2
    torch.testing.assert_close(found, differences.detach(), rtol=1e-5, atol=1e-6)


def test_an_lstm_in_float32_is_made_of_operations_that_are_seen() -> None:
    """On a CPU torch fuses it into one operation of oneDNN, which says nothing of what is inside."""
    torch.manual_seed(0)
    model, x = nn.LSTM(2, 3, batch_first=True), torch.randn(4, 5, 2)

    fused, before = model(x)[0], torch.backends.mkldnn.enabled
    with composite_operations(model.modules()):
        composed = model(x)[0]
    assert torch.backends.mkldnn.enabled == before
    assert torch.get_float32_matmul_precision() in (
        "highest",
        "high",
        "medium",
    )  # which raises where it was meddled with
    torch.testing.assert_close(composed, fused)
    behind = [composed.grad_fn]
    seen: set[str] = set()
    while behind:
        node = behind.pop()
        seen.add(type(node).__name__)
        behind += [own for own, _ in node.next_functions if own is not None]
    assert {"TanhBackward0", "SigmoidBackward0"} <= seen
    assert not any("Mkldnn" in name for name in seen)

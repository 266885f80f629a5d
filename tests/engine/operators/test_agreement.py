"""The rule by which derivatives agree with differences: one sharp step decides, a blurred one does not."""

from __future__ import annotations

import pytest
import torch

from spiritlevel.engine.operators.agreement import Agreement
from spiritlevel.engine.operators.generic_point import SHARP, STEPS
from spiritlevel.values.errors import SpiritlevelError

FIRST, SECOND = STEPS[torch.float64][:2]


def looked_at(gaps: list[float], dtype: torch.dtype = torch.float64) -> Agreement:
    """One tensor's products, whose differences lie so far from them at one step after the other."""
    agreement = Agreement(dtype, 1, gradient_size=1e-3)
    product = torch.tensor([3.0, 4.0], dtype=torch.float64)
    for gap, step in zip(gaps, STEPS[dtype]):
        agreement.slope(1e-3, 1e-3, step, loss=1e-3)
        agreement.second([product], [product * (1 + gap)], [1.0], step)
    return agreement


def test_one_sharp_step_decides() -> None:
    agreement = looked_at([SHARP / 2])
    assert agreement.sharp
    assert agreement.complete(second=True, push=False)


def test_one_blurred_step_does_not() -> None:
    agreement = looked_at([50 * SHARP])  # within what derivatives may differ by at the most
    assert agreement.complete(second=True, push=False)
    assert not agreement.sharp


def test_a_derivative_off_by_more_than_two_steps_are_apart_is_wrong() -> None:
    assert not looked_at([50 * SHARP, 50 * SHARP]).second_agrees
    assert looked_at([50 * SHARP, 5 * SHARP]).second_agrees  # the differences themselves are as far apart


def test_in_float32_the_first_step_never_decides_alone() -> None:
    agreement = looked_at([0.0], torch.float32)
    assert agreement.complete(second=True, push=False)
    assert not agreement.sharp


def test_a_wrong_gradient_is_refused() -> None:
    agreement = Agreement(torch.float64, 1, gradient_size=1.0)
    agreement.slope(1.0, 1.1, FIRST, loss=1.0)
    assert not agreement.sharp
    agreement.slope(1.0, 1.1, SECOND, loss=1.0)
    with pytest.raises(SpiritlevelError, match="is not the derivative of the loss"):
        agreement.require_slope()

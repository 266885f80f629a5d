"""Differences from two steps: extrapolated, with an error that covers, and of several steps the best."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from spiritlevel.engine.operators.extrapolation import best_step, difference_along, extrapolated


def norm(parts: Sequence[Tensor]) -> float:
    return math.hypot(*(float(part.norm()) for part in parts))


def gradient(step: float, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return a gradient along a line: its derivative at 0 is (1, 2)."""
    return [torch.tensor([math.sin(step)], dtype=dtype), torch.tensor([math.exp(2 * step)], dtype=dtype)]


TRUTH = [torch.ones(1, dtype=torch.float64), torch.full((1,), 2.0, dtype=torch.float64)]


def off(parts: Sequence[Tensor]) -> float:
    return norm([part - true for part, true in zip(parts, TRUTH)])


@pytest.mark.parametrize("step", [0.3, 0.1, 0.01])
def test_two_steps_are_better_than_one_and_tell_by_how_much(step: float) -> None:
    found = extrapolated(gradient, step, norm)
    narrow = [(a - b) / step for a, b in zip(gradient(step / 2), gradient(-step / 2))]
    assert off(found.parts) < 0.2 * off(narrow)
    assert off(found.parts) <= found.gap
    assert found.gap == pytest.approx(3 * off(narrow), rel=0.2)
    assert found.size == pytest.approx(norm(narrow), rel=1e-12)


@pytest.mark.parametrize(("dtype", "least"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_the_best_step_is_neither_the_largest_nor_the_smallest(dtype: torch.dtype, least: float) -> None:
    steps = [10.0**-power for power in range(9)]
    best = best_step(lambda step: gradient(step, dtype), steps, norm)
    assert steps[-1] < best < steps[0]
    found = extrapolated(lambda step: gradient(step, dtype), best, norm)
    assert off(found.parts) < least
    assert off(extrapolated(lambda step: gradient(step, dtype), steps[0], norm).parts) > 100 * off(found.parts)
    assert off(extrapolated(lambda step: gradient(step, dtype), steps[-1], norm).parts) > 20 * off(found.parts)


def turning(step: float) -> list[Tensor]:
    """Return a gradient that turns round within steps of 1/50: its derivative at 0 is 1, that of its course 0.01."""
    return [torch.tensor([math.sin(50 * step) / 50 + 0.01 * step], dtype=torch.float64)]


def test_smaller_steps_are_tried_where_two_disagree() -> None:
    first = extrapolated(turning, 0.1, norm)
    assert not first.agrees
    found = difference_along(turning, 0.1, norm)
    assert found.agrees
    assert abs(float(found.parts[0]) - 1.01) <= found.gap
    assert difference_along(turning, 0.1, norm, enough=first.gap).gap == first.gap  # nothing beside what is known


def test_steps_that_leap_over_what_bends_within_them_are_not_taken() -> None:
    steps = [50.0, 10.0, 1e-2, 1e-3, 1e-4]
    leaping = extrapolated(turning, steps[0], norm)
    assert leaping.agrees  # with itself, on 0.01
    assert abs(float(leaping.parts[0]) - 0.01) < 1e-3
    found = extrapolated(turning, best_step(turning, steps, norm), norm)
    assert abs(float(found.parts[0]) - 1.01) <= found.gap < 1e-3


def test_a_kink_is_stepped_short_of() -> None:
    """There is no curvature at 0, whatever larger steps see of the kink beside it."""
    kinked = lambda step: [torch.tensor([max(step - 1e-3, 0.0)], dtype=torch.float64)]  # noqa: E731
    assert best_step(kinked, [1e-1, 1e-2, 1e-3, 1e-4], norm) <= 1e-3
    assert float(difference_along(kinked, 1.5e-3, norm).parts[0]) == 0.0

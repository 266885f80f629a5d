"""Letters: two share one exactly where they are not told apart, however many there are."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from spiritlevel.values.letters import letter_groups, lettered


def told_apart(values: np.ndarray, errors: np.ndarray) -> set[tuple[str, str]]:
    """Return the pairs of networks 0, 1, … that differ by more than their errors."""
    return {
        (str(i), str(j))
        for i, j in combinations(range(len(values)), 2)
        if abs(values[i] - values[j]) > errors[i] + errors[j]
    }


def check(order: list[str], apart: set[tuple[str, str]]) -> list[list[str]]:
    groups = letter_groups(order, apart)
    together = {frozenset(pair) for group in groups for pair in combinations(group, 2)}
    for pair in combinations(order, 2):
        assert (frozenset(pair) in together) == (pair not in apart and pair[::-1] not in apart)
    assert {label for group in groups for label in group} == set(order)
    return groups


@pytest.mark.parametrize("count", [1, 2, 3, 7, 30, 200])
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 300.0])
def test_sharing_a_letter_is_not_being_told_apart(count: int, spread: float) -> None:
    rng = np.random.default_rng(count)
    values = np.sort(rng.normal(0, spread, count))
    for errors in (np.full(count, 0.2), rng.uniform(0, 0.6, count)):
        order = [str(place) for place in range(count)]
        groups = check(order, told_apart(values, errors))
        assert len(groups) <= count * 3
        letters = lettered(order, groups)
        assert all(letters[label] for label in order)


def test_errors_of_one_size_take_the_fewest_groups() -> None:
    # Groups are then the longest stretches in which nothing is told apart, and none of them can be missed.
    values = np.sort(np.random.default_rng(0).uniform(0, 5, 60))
    groups = check([str(place) for place in range(60)], told_apart(values, np.full(60, 0.25)))
    stretches = [max(j for j in range(60) if values[j] - values[i] <= 0.5) for i in range(60)]
    assert len(groups) == len(set(stretches))


def test_any_pattern_of_pairs_is_shown_as_it_is() -> None:
    rng = np.random.default_rng(2)
    order = [str(place) for place in range(25)]
    for share in (0.1, 0.5, 0.9):
        check(order, {pair for pair in combinations(order, 2) if rng.random() < share})


def test_letters_are_short_and_never_ambiguous() -> None:
    assert lettered(["x", "y"], [["x", "y"]]) == {"x": "a", "y": "a"}
    three = [["x"], ["x", "y"], ["x"], ["y"], ["x"]]
    assert lettered(["x", "y"], three) == {"x": "a–c, e", "y": "bd"}
    many = [[str(place)] for place in range(40)] + [["0"]]
    letters = lettered(["0", "1"], many)
    assert letters == {"0": "1, 41", "1": "2"}

"""The corpus as a test: a few hundred random networks each time, thousands in the slow run.

``SPIRITLEVEL_ATTACK_SEED`` draws other networks, as is done anew for each release; a failure names the seed of its
network, which ``python -m tests.attack --only SEED`` measures again.
"""

from __future__ import annotations

import os
import warnings

import pytest

from tests.attack.corpus import LARGEST, make_case
from tests.attack.hooks import hazards
from tests.attack.verdict import judge

FIRST = 1_000_000 * int(os.environ.get("SPIRITLEVEL_ATTACK_SEED", "7"))
FAST, SLOW, AT_ONCE = 200, 2000, 20
SMALL = 40  # parameters: most of what can go wrong needs no more, and sampling takes long


def _failures(seeds: range, largest: int) -> list[str]:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # networks warn of what they do; that is not what is asked here
        for seed in seeds:
            for f in judge(make_case(seed, largest)).failures:
                found.append(f"{f.seed} {f.what} {f.quantity}: {f.got} for {f.truth} ({f.label}) {f.traits}")
    return found


@pytest.mark.parametrize("first", range(FIRST, FIRST + FAST, AT_ONCE))
def test_small_networks_are_measured_right_or_refused(first: int) -> None:
    failures = _failures(range(first, first + AT_ONCE), SMALL)
    assert not failures, "\n".join(failures)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST + 500_000, FIRST + 500_000 + SLOW, 100))
def test_networks_are_measured_right_or_refused(first: int) -> None:
    failures = _failures(range(first, first + 100), LARGEST)
    assert not failures, "\n".join(failures)


def test_a_seed_makes_the_same_case_again() -> None:
    for seed in range(FIRST, FIRST + 20):
        one, again = make_case(seed), make_case(seed)
        assert one.traits == again.traits
        assert one.x.equal(again.x)
        assert all(a.equal(b) for a, b in zip(one.model.state_dict().values(), again.model.state_dict().values()))


def test_every_hazard_is_drawn() -> None:
    drawn = {make_case(seed).traits["hazard"] for seed in range(FIRST, FIRST + 600)}
    assert {hazard.name for hazard in hazards()} <= drawn

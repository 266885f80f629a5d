"""The record of typical values is what its command gives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from docs.hooks.measure_by_measure import RECORD
from spiritlevel.measures.registry import GROUPS
from tests.typical.networks import NETWORKS, STATES
from tests.typical.recording import state_record

AGAIN = "digits_mlp"


def recorded(name: str) -> dict[str, Any]:
    """Return a network's part of the record."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    (found,) = [each for each in record["networks"] if each["name"] == name]
    return found


def test_every_network_is_recorded_in_every_state_with_every_measure() -> None:
    for name, network in NETWORKS.items():
        found = recorded(name)
        assert found["words"] == network.words
        assert tuple(found["states"]) == STATES
        for state in found["states"].values():
            assert set(state["measures"]) == set(GROUPS["papers"])
        assert found["states"]["interpolating"]["accuracy"] == 1.0


@pytest.mark.parametrize("state", STATES)
def test_a_network_measured_again_gives_the_recorded_values(state: str) -> None:
    again, before = state_record(NETWORKS[AGAIN], state, over_samples=False), recorded(AGAIN)["states"][state]
    for quantity in ("loss", "accuracy", "samples"):
        assert again[quantity] == pytest.approx(before[quantity], rel=1e-5), quantity
    for name, entry in again["measures"].items():
        stored = before["measures"][name]
        for key in ("how", "status"):
            assert entry[key] == stored[key], name
        if entry["value"] is None:
            assert stored["value"] is None, name
            continue
        for key in ("value", "stderr"):
            # Trained in float64, so that rounding does not grow; searches end within their own tolerance.
            assert entry[key] == pytest.approx(stored[key], rel=1e-3, abs=1e-9), (name, key)

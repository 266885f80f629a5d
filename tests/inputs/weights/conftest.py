"""A network whose weights are saved."""

from __future__ import annotations

import pytest

from tests.inputs.weights.saved_networks import Net


@pytest.fixture
def net() -> Net:
    return Net()

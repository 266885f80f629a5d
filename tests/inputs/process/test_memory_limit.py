"""The limit that the user sets on memory, and what is free under it."""

from __future__ import annotations

import pytest
import torch

from spiritlevel.engine.operators.memory import free_bytes
from spiritlevel.inputs.process.memory_limit import memory_limit
from spiritlevel.values.errors import UsageError


@pytest.mark.parametrize(
    ("given", "bytes"),
    [("", None), ("4096", 4096), ("16GB", 16 * 10**9), ("1.5 GiB", 3 * 2**29), ("500 mb", 5 * 10**8), ("2KiB", 2048)],
)
def test_amounts(given: str, bytes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRITLEVEL_MEMORY", given)
    assert memory_limit() == bytes


@pytest.mark.parametrize("given", ["much", "16 parsecs", "-1", "GB"])
def test_what_is_no_amount_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRITLEVEL_MEMORY", given)
    with pytest.raises(UsageError, match="no amount of memory"):
        memory_limit()


def test_no_more_is_free_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert free_bytes(cpu) > 10**6
    monkeypatch.setenv("SPIRITLEVEL_MEMORY", "1 MB")
    assert free_bytes(cpu) == 10**6
    monkeypatch.setenv("SPIRITLEVEL_MEMORY", "1000000 GB")
    assert free_bytes(cpu) < 10**15

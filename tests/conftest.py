"""Every test starts from the same random state, on one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _fixed_random_state() -> Iterator[None]:
    torch.manual_seed(20240229)
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)

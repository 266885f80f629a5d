"""The reference of the package: every example in a docstring prints what stands below it."""

from __future__ import annotations

import pytest

from docs.hooks.examples import Documented, everywhere, wrong


@pytest.mark.slow
@pytest.mark.parametrize("found", everywhere(), ids=str)
def test_an_example_prints_what_is_shown(found: Documented) -> None:
    assert wrong(found) == []

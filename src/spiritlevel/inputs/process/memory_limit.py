"""How much memory measurements may take at most, where the user says so: a card of 16 GB tried on a larger one."""

from __future__ import annotations

import os
import re

from spiritlevel.values.errors import UsageError

VARIABLE = "SPIRITLEVEL_MEMORY"
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def memory_limit() -> int | None:
    """Return the bytes that ``SPIRITLEVEL_MEMORY`` allows ("16 GB", "500MiB", bytes), None where it is not set."""
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", given.lower())
    if found is None or found[2] not in _UNITS:
        raise UsageError(
            f"{VARIABLE} is {given!r}, which is no amount of memory; give bytes, or a number with MB or GiB"
        )
    return int(float(found[1]) * _UNITS[found[2]])

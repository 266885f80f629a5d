"""What --html and --learning-rate need, checked before the first pass over the data."""

from __future__ import annotations

import math

from spiritlevel.values.errors import UsageError


def check_page(html: str | None, learning_rate: float | None = None) -> None:
    """Refuse a page that could not be made: a missing package, a learning rate that is none."""
    if learning_rate is not None and not (learning_rate > 0 and math.isfinite(learning_rate)):
        raise UsageError(f"--learning-rate must be a positive number, not {learning_rate:g}")
    if html is None:
        return
    if html == "-":
        raise UsageError("--html - is not possible; name a file")
    from spiritlevel.page.extras import check_extras

    check_extras()

"""Numbers as text: a value ends at the same decimal place as its error, an exact one has a few significant digits."""

from __future__ import annotations

import math

from spiritlevel.values.estimate import NEGLIGIBLE, Estimate

EXACT_DIGITS = 5
MISSING = "—"
_SHORTEST = 1e-9  # an error is written out to so many decimals beside a value that is
_HOW = {"exact": "exact", "estimated": "estimated", "lower_bound": "lower bound", "upper_bound": "upper bound"}


def plain(value: float | None, digits: int = EXACT_DIGITS) -> str:
    """Return a number without an error with so many significant digits."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    decimals = digits - 1 - _exponent(value, digits)
    if _is_moderate(value):
        return f"{value:,.{max(decimals, 0)}f}"
    return f"{value:.{digits - 1}e}"


def bytes_text(count: float) -> str:
    """Return an amount of memory in the unit that suits it."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count:.0f} bytes"


def with_error(value: float, error: float) -> str:
    """Return ``value ± error``, the error with two significant digits and the value to the same place."""
    if not math.isfinite(error) or error <= NEGLIGIBLE:
        return plain(value)
    if not math.isfinite(value):
        return MISSING
    place = 1 - _exponent(error, 2)  # decimals of the last digit shown
    if _is_moderate(value) and (_is_moderate(error) or (value != 0 and error >= _SHORTEST)):
        decimals = max(place, 0)
        return f"{round(value, place):,.{decimals}f} ± {round(error, place):,.{decimals}f}"
    # One power of ten for both, the larger of the two, so that the digits can be compared.
    exponent = max(_exponent(value, 2) if value else -400, _exponent(error, 2))
    decimals = max(place + exponent, 0)
    return f"({value / 10.0**exponent:.{decimals}f} ± {error / 10.0**exponent:.{decimals}f})e{exponent:+03d}"


def value_text(estimate: Estimate) -> str:
    """Return the value with the error of its computation where there is one; a dash where there is no value."""
    if estimate.status not in ("ok", "budget_spent"):
        return MISSING
    return with_error(estimate.value, estimate.stderr)


def residual_of(estimate: Estimate) -> float | None:
    """Return how far the truth may lie from the value by its certificate, or None where there is none."""
    if estimate.interval is None:
        return None
    low, high = estimate.interval
    return max(high - estimate.value, estimate.value - low)


def how_text(estimate: Estimate) -> str:
    """Return in words how the value was obtained."""
    if estimate.status == "not_applicable":
        return "not applicable"
    if estimate.status == "not_finite":
        return "not finite"
    words = _HOW[estimate.how]
    if estimate.how == "exact" and estimate.verified:
        words = "exact (verified)"
    residual = residual_of(estimate)
    if residual is not None and math.isfinite(residual):
        words += f", residual {residual:.1e}"
    if estimate.status == "budget_spent":
        words += ", budget spent"
    return words


def percent(share: float | None) -> str:
    """Return a share between 0 and 1 in per cent."""
    return MISSING if share is None else f"{100 * share:.2f}%"


def _exponent(value: float, digits: int) -> int:
    """Return the power of ten of the leading digit after rounding to so many significant digits."""
    return int(f"{value:.{digits - 1}e}".partition("e")[2])


def _is_moderate(value: float) -> bool:
    return value == 0 or 1e-4 <= abs(value) < 1e7


def at_least(value: float, digits: int) -> str:
    """Return a number above 1 rounded up, so that what is printed still does what the number itself does."""
    digits = digits if value >= 1 + 10.0 ** (1 - digits) else digits + 2
    places = max(0, digits - 1 - math.floor(math.log10(value)))
    step = 10.0**-places
    return f"{math.ceil(round(value / step, 6)) * step:.{places}f}"

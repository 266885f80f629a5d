"""Learning-rate schedules: a factor on the first learning rate as a function of progress t in [0, 1)."""

from __future__ import annotations

import math
from collections.abc import Callable

from spiritlevel.values.errors import UsageError, near_names

Schedule = Callable[[float], float]


def constant() -> Schedule:
    """Return the schedule that keeps the learning rate.

    Returns
    -------
    callable
        A function of progress in [0, 1) that is 1 everywhere.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> sl.training.constant()(0.9)
    1.0
    """
    return lambda progress: 1.0


def linear(final: float = 0.01, until: float = 1.0) -> Schedule:
    """Return Granziol 2021's schedule: full rate to half way, linear to ``final`` at nine tenths, then ``final``.

    The printed eq. (14) and (15) are garbled; this is the schedule of stochastic weight averaging that they describe.

    Parameters
    ----------
    final : float
        The last share of the first rate.
    until : float
        The share of training after which the rate no longer changes: 1 in eq. (14), T_avg / T in eq. (15).

    Returns
    -------
    callable
        A function of progress in [0, 1) that the first rate is multiplied by.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> factor = sl.training.linear()
    >>> [round(factor(progress), 3) for progress in (0.0, 0.5, 0.7, 0.9)]
    [1.0, 1.0, 0.505, 0.01]
    """

    def factor(progress: float) -> float:
        t = progress / until
        if t <= 0.5:
            return 1.0
        if t <= 0.9:
            return 1.0 - (1.0 - final) * (t - 0.5) / 0.4
        return final

    return factor


def averaging(start: float = 161 / 300, final: float = 0.5) -> Schedule:
    """Return eq. (15): down to half the rate by the share ``start`` of training, where iterate averaging begins.

    Parameters
    ----------
    start : float
        The share of training where averaging begins.
    final : float
        The share of the first rate from there on.

    Returns
    -------
    callable
        A function of progress in [0, 1) that the first rate is multiplied by.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> factor = sl.training.averaging()
    >>> [round(factor(progress), 3) for progress in (0.0, 0.4, 0.6)]
    [1.0, 0.693, 0.5]
    """
    return linear(final=final, until=start)


def cosine() -> Schedule:
    """Return half a cosine from the full rate down to zero.

    Returns
    -------
    callable
        A function of progress in [0, 1) that the first rate is multiplied by.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> factor = sl.training.cosine()
    >>> [round(factor(progress), 3) for progress in (0.0, 0.5, 0.9)]
    [1.0, 0.5, 0.024]
    """
    return lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress))


SCHEDULES: dict[str, Callable[[], Schedule]] = {
    "constant": constant,
    "linear": linear,
    "averaging": averaging,
    "cosine": cosine,
}


def schedule_name(schedule: str | Schedule) -> str:
    """Return a schedule's name for a record."""
    return schedule if isinstance(schedule, str) else getattr(schedule, "__qualname__", "function")


def resolve_schedule(schedule: str | Schedule) -> Schedule:
    """Return the schedule of a name, or the function itself."""
    if callable(schedule):
        return schedule
    if schedule not in SCHEDULES:
        raise UsageError(
            f"No schedule is called {schedule!r}{near_names(schedule, SCHEDULES) or '.'} "
            f"The names are {', '.join(SCHEDULES)}."
        )
    return SCHEDULES[schedule]()

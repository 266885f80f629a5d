"""What a result cost: seconds by the clock, and sweeps over the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from spiritlevel.results.records import as_json

# A pass over the data by its kind, and several, in the field's words.
PASS_WORDS = {
    "forward": ("forward pass", "forward passes"),
    "gradient": ("gradient", "gradients"),
    "column": ("VJP", "VJPs"),
    "product": ("HVP", "HVPs"),
    "hessian product": ("HVP", "HVPs"),
    "ggn product": ("GGN-vector product", "GGN-vector products"),
}


def passes_in_words(passes: Mapping[str, float]) -> str:
    """Return passes over the data, kind by kind, in words."""
    said = []
    for kind, count in passes.items():
        if count:
            number = f"{count:,.0f}" if count >= 100 else f"{count:.3g}"
            said.append(f"{number} {PASS_WORDS.get(kind, (kind, kind))[count != 1]}")
    return ", ".join(said)


@dataclass(frozen=True)
class ResultCost:
    """Wall time in seconds, and passes over the data by kind.

    Attributes
    ----------
    wall_time : float
        Seconds; None stands for a time that nobody took.
    passes : mapping
        Passes by kind; a sweep over a part of the data is that part of a pass.
    """

    wall_time: float | None = None
    passes: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_all(cls, costs: Iterable[ResultCost]) -> Self:
        """Return the sum of costs."""
        each = list(costs)
        times = [cost.wall_time for cost in each if cost.wall_time is not None]
        passes: Counter[str] = Counter()
        for cost in each:
            passes.update(cost.passes)
        return cls(sum(times) if times else None, dict(passes))

    @property
    def words(self) -> str:
        """The cost in words, nothing where it is not known."""
        count = sum(self.passes.values())
        parts = [f"{count:,.0f} passes over the data"] if count else []
        return ", ".join(parts + ([f"{self.wall_time:,.1f} s"] if self.wall_time else []))

    def record(self) -> dict[str, Any]:
        """Return the cost as plain JSON values."""
        return {"wall_time": as_json(self.wall_time), "passes": as_json(self.passes)}


def read_cost(record: Mapping[str, Any] | None) -> ResultCost | None:
    """Return the cost of a record; earlier versions wrote none."""
    return None if record is None else ResultCost(record["wall_time"], dict(record["passes"]))

"""A tensor of values with their errors, as single values have them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from spiritlevel.values.estimate import Estimate, How, Status


@dataclass(frozen=True)
class TensorEstimate:
    """A tensor of values with their errors; ``halves`` are two independent estimates of it where it was sampled."""

    value: Tensor  # float64, CPU
    stderr: Tensor
    how: How = "exact"
    verified: bool = False
    status: Status = "ok"
    reason: str = ""
    halves: Tensor | None = None  # (2, *shape)

    @property
    def sampled(self) -> bool:
        """Whether any part of it was sampled."""
        return self.how != "exact"

    def largest(self) -> tuple[int, Estimate]:
        """Return where the largest entry of a vector is, and the entry.

        Where entries were sampled it is chosen on one half of the probes and evaluated on the other, both ways: the
        largest of noisy values would be too large on average, this is at most the true largest on average.
        """
        if not self.sampled:
            top = int(self.value.argmax())
            return top, Estimate(float(self.value[top]), verified=self.verified)
        halves = self.halves if self.halves is not None else self.value.expand(2, -1)
        picks = [int(half.argmax()) for half in halves]
        return picks[0], Estimate(
            0.5 * float(halves[1][picks[0]] + halves[0][picks[1]]),
            # Each half alone has √2 times the error of all probes, and the two evaluations may share their luck.
            math.sqrt(2) * float(max(self.stderr[pick] for pick in picks)),
            how="lower_bound",
            status=self.status,
            reason=self.reason,
        )

"""Lines about a training that takes minutes: how far it is, how fast it goes and how long it still needs."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from spiritlevel.lab.training import EpochRecord

logger = logging.getLogger("spiritlevel.studies")
EVERY_SECONDS = 15.0


def print_lines() -> None:
    """Print what is logged here on standard error: for a worker process, whose parent's handlers it does not have."""
    logger.addHandler(logging.StreamHandler())
    logger.setLevel(logging.INFO)


class EpochLines:
    """A hook for ``train_ensemble`` that logs a line now and then, and one at the end."""

    def __init__(self, what: str, images: int, epochs: int, every: float = EVERY_SECONDS) -> None:
        self.what = what
        self.images = images
        self.epochs = epochs
        self.every = every
        self.seen = 0
        self.started = self.told = time.perf_counter()

    def __call__(self, rows: Mapping[int, EpochRecord]) -> None:
        """Count an epoch of every network still in training."""
        self.seen += self.images * len(rows)
        now, done = time.perf_counter(), next(iter(rows.values())).epoch + 1
        if now - self.told < self.every and done < self.epochs:
            return
        self.told = now
        spent = max(now - self.started, 1e-9)
        logger.info(
            "%s: epoch %s of %s, %s networks, %s images/s, %.0f s, %.0f s left",
            self.what, f"{done:,}", f"{self.epochs:,}", len(rows), f"{self.seen / spent:,.0f}", spent,
            spent / done * (self.epochs - done),
        )  # fmt: skip

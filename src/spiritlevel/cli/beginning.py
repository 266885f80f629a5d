"""When the command began: ``--seconds`` counts from there, with what is imported and loaded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spiritlevel.inputs.deadline import Deadline


class Beginning:
    """The moment at which the present command of this process began."""

    def __init__(self) -> None:
        self.again()

    def again(self) -> None:
        """Begin now."""
        self._at = time.monotonic()

    def deadline(self, seconds: float | None) -> Deadline | None:
        """Return the end of so many seconds from the beginning; None where nobody asked for one."""
        if seconds is None:
            return None
        from spiritlevel.inputs.deadline import Deadline

        return Deadline(seconds, began=self._at)


BEGINNING = Beginning()  # a process runs one command at a time

"""The command line: what is asked for, checked before the first pass, and one sentence where it cannot be done."""

from spiritlevel.cli.failures import main

__all__ = ["main"]

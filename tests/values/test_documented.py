"""Parameters that one docstring takes from another."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from spiritlevel.values.documented import documented_like


def first(x: int, low: int, high: int, *, seed: int = 0) -> int:
    """Return a number.

    Parameters
    ----------
    x : int
        A number,

        and more of it.
    low, high : int
        The range.
    seed : int
        Seed of what is drawn.

    Returns
    -------
    int
        The number.
    """
    return x + low + high + seed


def other(*names: str, seed: int = 1, **options: str) -> None:
    """Do nothing.

    Parameters
    ----------
    *names
        Some names.
    seed : int
        Another seed.
    **options
        What else there is.
    """


def text(own: object) -> str:
    return inspect.getdoc(own) or ""


def test_what_is_left_out_is_taken_in_the_order_of_the_signature() -> None:
    @documented_like(first)
    def own(y: int, x: int, *, seed: int = 0) -> int:
        """Return another number.

        In two lines.

        Parameters
        ----------
        y : int
            The other number.

        Examples
        --------
        >>> own(1, 2)
        3
        """
        return x + y + seed

    assert text(own) == (
        "Return another number.\n\nIn two lines.\n\nParameters\n----------\ny : int\n    The other number.\n"
        "x : int\n    A number,\n\n    and more of it.\nseed : int\n    Seed of what is drawn.\n\n"
        "Examples\n--------\n>>> own(1, 2)\n3"
    )


def test_a_docstring_without_parameters_gets_them_before_its_first_section() -> None:
    @documented_like(first)
    def own(low: int, high: int) -> int:
        """Return the width.

        Returns
        -------
        int
            The width.
        """
        return high - low

    @documented_like(first)
    def bare(x: int) -> None:
        """Do nothing with it."""

    between = "Parameters\n----------\nlow, high : int\n    The range."
    assert text(own) == f"Return the width.\n\n{between}\n\nReturns\n-------\nint\n    The width."
    assert text(bare) == (
        "Do nothing with it.\n\nParameters\n----------\nx : int\n    A number,\n\n    and more of it."
    )


def test_the_first_that_describes_it_is_believed_and_own_words_before_all() -> None:
    @documented_like(other, first)
    def own(x: int, *names: str, seed: int, **options: str) -> None:
        """Do something.

        Parameters
        ----------
        **options
            Own words.
        """

    found = text(own)
    assert found.index("x : int") < found.index("*names") < found.index("Another seed.") < found.index("**options")
    assert "Own words." in found
    assert "What else" not in found
    assert "Seed of what is drawn." not in found


def test_a_class_takes_the_words_for_what_it_is_made_of() -> None:
    @documented_like(first)
    @dataclass
    class Own:
        """A number kept.

        Attributes
        ----------
        size : int
            Its size.
        """

        x: int
        size: int = 0

    assert text(Own).startswith("A number kept.\n\nParameters\n----------\nx : int\n    A number,")
    assert text(Own).endswith("Attributes\n----------\nsize : int\n    Its size.")


def test_without_docstrings_nothing_is_put_in() -> None:
    def own(x: int) -> int:
        return x

    assert documented_like(first)(own).__doc__ is None

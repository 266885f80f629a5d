"""What every result can do: be shown in a terminal, a notebook or a page, be a data frame, be saved and read back."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from spiritlevel.results.frames import Level, data_frame
from spiritlevel.results.records import strict_dumps
from spiritlevel.results.saving import read_record, reading
from spiritlevel.results.webpage import fragment
from spiritlevel.results.writing import replacing
from spiritlevel.values.cleaning import for_terminal

if TYPE_CHECKING:
    from rich.console import RenderableType


class Shown(ABC):
    """The base of everything that is shown: in a terminal, in a notebook, as a page, as a figure, as a data frame.

    A class of its own says its ``kind``, what it is in a table and in one line, and the rows of its data frames.
    """

    kind: ClassVar[str]  # as its files name it
    main_figure: ClassVar[str] = ""  # the one ``figure()`` draws where no name is given, as a rule
    levels: ClassVar[Mapping[str, Level]]  # of its data frames, by name; the first is the usual one

    @abstractmethod
    def table(self) -> RenderableType:
        """Return the result for rich's ``print``.

        Returns
        -------
        rich renderable
            What a terminal shows.
        """

    @property
    @abstractmethod
    def in_short(self) -> str:
        """What the result is in a few words."""

    def __repr__(self) -> str:
        return for_terminal(f"<{type(self).__name__} of {self.in_short}>")

    def __str__(self) -> str:
        from spiritlevel.results.terminal import as_text

        return as_text(self.table())

    def _repr_html_(self) -> str:
        return fragment(self.table())

    def to_pandas(self, level: str = "") -> Any:
        """Return a data frame; ``level`` says what a row is, and a wrong one lists them all.

        Parameters
        ----------
        level : str
            What a row is; by default the first of those that a wrong one lists.

        Returns
        -------
        pandas.DataFrame
            The rows.

        Raises
        ------
        UsageError
            There is no such level.
        SpiritlevelError
            Pandas is not installed.
        """
        return data_frame(self, self.kind, self.levels, level)

    def html(self, path: str | os.PathLike[str], *, learning_rate: float | None = None) -> None:
        """Write the result as one self-contained page; ``learning_rate`` draws the line 2/lr.

        Parameters
        ----------
        path : path
            The file to write; it appears whole or not at all.
        learning_rate : float
            Of the training, for the line 2/lr.

        Raises
        ------
        SpiritlevelError
            The extra ``page`` is not installed, or the file cannot be written.
        """
        from spiritlevel import page

        page.write(page.together([self], learning_rate), path)

    def figure(self, name: str = "") -> Any:
        """Return one of the page's figures as an Altair chart, by default the main one; a wrong name lists them all.

        Parameters
        ----------
        name : str
            The figure, such as "layer_shares".

        Returns
        -------
        altair.Chart
            The chart.

        Raises
        ------
        UsageError
            There is no such figure.
        SpiritlevelError
            The extra ``page`` is not installed.
        """
        from spiritlevel import page

        return page.figure(page.together([self]), name or self._usual_figure())

    def _usual_figure(self) -> str:
        return self.main_figure


class ResultBase(Shown):
    """The base of reports, comparisons, audits and spectra, which are saved too.

    A class of its own says also what it is in a record, and how it is read from one.
    """

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return the result as plain JSON values, in the published layout.

        Returns
        -------
        dict
            Numbers, texts, lists and dicts alone; what is not finite is None.
        """

    @classmethod
    @abstractmethod
    def _read(cls, record: dict[str, Any], source: str) -> Self:
        """Return the result of a record that follows the schema."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write strict JSON; the file appears whole or not at all.

        Parameters
        ----------
        path : path
            The file to write.

        Raises
        ------
        SpiritlevelError
            The file cannot be written.
        """
        text = strict_dumps(self.record())
        with replacing(path) as stream:
            stream.write(text)

    @classmethod
    def from_record(cls, record: Any, source: str = "the record") -> Self:
        """Return the result of a record that ``record()`` or a file gave; ``source`` names it in a refusal.

        Parameters
        ----------
        record : dict
            Plain JSON values in the published layout.
        source : str
            What the record is called where it is refused.

        Returns
        -------
        Self
            The result.

        Raises
        ------
        SpiritlevelError
            The record does not follow the layout; the message names the place.
        """
        with reading(record, cls.kind, source):
            return cls._read(record, source)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the result that ``save`` wrote.

        Parameters
        ----------
        path : path
            The file to read.

        Returns
        -------
        Self
            The result.

        Raises
        ------
        SpiritlevelError
            The file cannot be read or does not follow the layout.
        """
        return cls.from_record(read_record(path, cls.kind), str(path))

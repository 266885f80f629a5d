"""What every result can do: be saved and read back as strict JSON, be printed, and be shown as a page or a figure."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from spiritlevel.results.records import strict_dumps
from spiritlevel.results.saving import read_record, reading
from spiritlevel.results.webpage import escape
from spiritlevel.results.writing import replacing

if TYPE_CHECKING:
    from rich.console import RenderableType


class ResultBase(ABC):
    """The base of reports, comparisons, audits and spectra.

    A class of its own says its ``kind``, what it is in a table and in a record, and how it is read from one.
    """

    kind: ClassVar[str]  # as its files name it
    main_figure: ClassVar[str] = ""  # the one ``figure()`` draws where no name is given

    @abstractmethod
    def table(self) -> RenderableType:
        """Return the result for rich's ``print``."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return the result as plain JSON values, in the published layout."""

    @classmethod
    @abstractmethod
    def _read(cls, record: dict[str, Any], source: str) -> Self:
        """Return the result of a record that follows the schema."""

    # --- for the eye -----------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        from spiritlevel.results.terminal import as_text

        return as_text(self.table())

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def html(self, path: str | os.PathLike[str], *, learning_rate: float | None = None) -> None:
        """Write the result as one self-contained page; ``learning_rate`` draws the line 2/lr."""
        from spiritlevel import page

        page.write(page.together([self], learning_rate), path)

    def figure(self, name: str = "") -> Any:
        """Return one of the page's figures as an Altair chart, such as "layer_shares"; a wrong name lists them all."""
        from spiritlevel import page

        return page.figure(page.together([self]), name or self.main_figure)

    # --- for other programs ----------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write strict JSON; the file appears whole or not at all."""
        text = strict_dumps(self.record())
        with replacing(path) as stream:
            stream.write(text)

    @classmethod
    def from_record(cls, record: Any, source: str = "the record") -> Self:
        """Return the result of a record that ``record()`` or a file gave; ``source`` names it in a refusal."""
        with reading(record, cls.kind, source):
            return cls._read(record, source)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the result that ``save`` wrote."""
        return cls.from_record(read_record(path, cls.kind), str(path))

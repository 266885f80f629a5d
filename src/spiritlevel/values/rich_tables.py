"""Tables for a terminal, as all of ours look."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def new_table(*columns: str) -> Table:
    """Return a table without rows, with columns that break what is too long for them."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.ROUNDED, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table

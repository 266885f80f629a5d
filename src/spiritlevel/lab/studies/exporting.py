"""All rows of all runs as one long table, for a spreadsheet or a notebook."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spiritlevel.lab.studies.study import Table
from spiritlevel.results.writing import replacing
from spiritlevel.values.cleaning import for_csv
from spiritlevel.values.extras import need_of_extra


def study_rows(tables: Mapping[str, Table]) -> list[dict[str, Any]]:
    """Return every row with its study first; settings that are lists or mappings become text."""
    rows = []
    for study, table in tables.items():
        for row in table.rows:
            flat = {key: str(value) if isinstance(value, list | dict) else value for key, value in row.items()}
            rows.append({"study": study, **flat})
    return rows


def write_csv(tables: Mapping[str, Table], path: Path) -> None:
    """Write the rows as CSV with one column for every name that occurs."""
    rows = study_rows(tables)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(path) as stream:
        writer = csv.DictWriter(stream, names)
        writer.writerow({name: for_csv(name) for name in names})
        writer.writerows({name: for_csv(cell) for name, cell in row.items()} for row in rows)


def write_parquet(tables: Mapping[str, Table], path: Path) -> None:
    """Write the rows as Parquet."""
    pandas = need_of_extra("pandas", "Parquet", "studies", instead="use --csv")
    need_of_extra("pyarrow", "Parquet", "studies", instead="use --csv")
    with replacing(path, "wb") as stream:
        pandas.DataFrame(study_rows(tables)).to_parquet(stream)

"""Finished runs on disk: one file each, named by what affects its result, there in full or not at all."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from spiritlevel.lab.studies.study import FinishedRun, Outcome, Settings, Study, Table
from spiritlevel.results.writing import replacing
from spiritlevel.values.errors import SpiritlevelError


class RunStore:
    """A folder of finished runs, by study."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def path(self, study: Study, settings: Settings) -> Path:
        """Return where a run is or will be kept."""
        return self.root / study.name / f"{study.identity(settings)}.json"

    def has(self, study: Study, settings: Settings) -> bool:
        """Say whether a run is finished."""
        return self.path(study, settings).is_file()

    def write(
        self, study: Study, settings: Settings, outcome: Outcome, seconds: float, environment: dict[str, Any]
    ) -> None:
        """Keep a finished run."""
        path = self.path(study, settings)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "study": study.name,
            "revision": study.revision,
            "settings": dict(settings),
            "rows": outcome.rows,
            "columns": outcome.columns,
            "seconds": seconds,
            "environment": environment,
            "rules": study.rules_hash(),  # those the run was made under, to tell if they changed afterwards
        }
        with replacing(path) as stream:
            json.dump(strict(content), stream, allow_nan=False)

    def read(self, study: Study, settings: Settings) -> FinishedRun:
        """Return a finished run."""
        path = self.path(study, settings)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return FinishedRun(
                study.identity(settings),
                content["settings"],
                content["rows"],
                content["columns"],
                content["seconds"],
                content["environment"],
                content.get("rules", ""),
            )
        except (OSError, ValueError, KeyError) as error:
            raise SpiritlevelError(
                f"{path} cannot be read as a finished run ({error}): remove it and run again."
            ) from error

    def table(self, study: Study, size: str) -> Table:
        """Return all finished runs of a size in the order of the grid."""
        return Table([self.read(study, settings) for settings in study.settings(size) if self.has(study, settings)])


def strict(value: Any) -> Any:
    """Return the value with numbers that JSON does not have (nan, infinities) as null."""
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value

"""The record of a study at a size: its rows, its analysis and every claim judged, with what it was judged by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spiritlevel.lab.studies.claims import Judgement, judge_claim
from spiritlevel.lab.studies.quantities import Quantity
from spiritlevel.lab.studies.store import strict
from spiritlevel.lab.studies.study import FinishedRun, Study, Table
from spiritlevel.results.writing import replacing
from spiritlevel.values.errors import SpiritlevelError


@dataclass(frozen=True, kw_only=True)
class Record:
    """One study at one size as it was found: complete, or with the runs that are still missing counted."""

    study: Study
    size: str
    table: Table
    planned: int
    analysis: Mapping[str, Quantity]
    judgements: tuple[Judgement, ...]
    rules: str
    command: str
    judged_by: str = field(default="")

    @property
    def finished(self) -> int:
        """How many runs there are."""
        return len(self.table.runs)

    @property
    def seconds(self) -> float:
        """Time spent on all runs, summed."""
        return sum(run.seconds for run in self.table.runs)

    @property
    def environments(self) -> list[dict[str, Any]]:
        """The different environments the runs were computed in."""
        found: list[dict[str, Any]] = []
        for run in self.table.runs:
            if dict(run.environment) not in found:
                found.append(dict(run.environment))
        return found

    def behind(self, judgement: Judgement) -> str:
        """Return how many independent runs stand behind a judgement."""
        if not judgement.measured:
            return f"{self.finished} runs"
        least = min(judgement.measured.values(), key=lambda quantity: quantity.count)
        return f"{least.count} {least.unit}"


def make_record(study: Study, size: str, table: Table) -> Record:
    """Analyse the finished runs and judge every claim."""
    analysis = study.analyse(table) if len(table) else {}
    explaining = study.explain(table) if study.explain is not None and len(table) else {}
    judgements = tuple(judge_claim(claim, analysis, explaining) for claim in study.claims)
    return Record(
        study=study,
        size=size,
        table=table,
        planned=len(study.settings(size)),
        analysis={**analysis, **explaining},
        judgements=judgements,
        rules=study.rules_hash(),
        command=f"spiritlevel study run {study.name} --size {size}",
        judged_by=", ".join(sorted({run.rules for run in table.runs if run.rules})),
    )


def save_record(record: Record, path: Path, *, digits: int = 7) -> None:
    """Write a record as compact JSON, numbers to ``digits`` significant digits."""
    content = {
        "study": record.study.name,
        "size": record.size,
        "command": record.command,
        "rules": record.judged_by or record.rules,
        "revision": record.study.revision,
        "planned": record.planned,
        "seconds": record.seconds,
        "environments": record.environments,
        "analysis": {name: vars(quantity) for name, quantity in record.analysis.items()},
        "claims": [
            {"name": each.claim.name, "verdict": each.verdict, "rules": [str(rule) for rule in each.claim.rules]}
            for each in record.judgements
        ],
        "runs": [
            {"settings": dict(run.settings), "rows": run.rows, "columns": run.columns, "seconds": run.seconds}
            for run in record.table.runs
        ],
    }
    with replacing(path) as stream:
        json.dump(rounded(strict(content), digits), stream, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
        stream.write("\n")


def load_record(study: Study, path: Path) -> Record:
    """Read a record and judge its rows by the rules as they are now."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        environments = content["environments"] or [{}]
        runs = [
            FinishedRun(
                study.identity(run["settings"]),
                run["settings"],
                run["rows"],
                run["columns"],
                run["seconds"],
                environments[0],
            )
            for run in content["runs"]
        ]
        size, planned, command = content["size"], content["planned"], content["command"]
    except (OSError, ValueError, KeyError) as error:
        raise SpiritlevelError(f"{path} cannot be read as the record of a study ({error}).") from error
    made = make_record(study, size, Table(runs))
    return replace(made, planned=planned, command=command, judged_by=content["rules"])


def rounded(value: Any, digits: int) -> Any:
    """Return all floats with at most so many significant digits."""
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value

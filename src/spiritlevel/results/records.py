"""Reports as strict JSON: one layout with a version, published as a schema; what is not finite becomes null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np
from torch import Tensor

from spiritlevel.results.checking import what_is_wrong
from spiritlevel.values.errors import SpiritlevelError
from spiritlevel.values.estimate import ANYWHERE, TINIEST, Estimate

SCHEMA_VERSION = 1
ESTIMATE_FIELDS = (
    "value", "stderr", "stderr_data", "interval", "how", "verified", "status", "reason", "samples", "passes", "details",
)  # fmt: skip


def schema() -> dict[str, Any]:
    """Return the published JSON Schema of a report file.

    Returns
    -------
    dict
        The schema, as plain JSON values.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> sl.results.schema()["title"]
    'Spiritlevel report, version 1'
    """
    text = resources.files("spiritlevel.results").joinpath("report.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def as_json(value: Any) -> Any:
    """Return plain JSON values: tensors and arrays become lists, numbers that are not finite become null."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (Tensor, np.ndarray)):
        return as_json(value.tolist())
    if isinstance(value, np.generic):
        return as_json(value.item())
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(as_json(item) for item in value)
    return str(value)


def estimate_record(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as JSON values."""
    return {name: as_json(getattr(estimate, name)) for name in ESTIMATE_FIELDS}


def read_estimate(record: Mapping[str, Any]) -> Estimate:
    """Return the estimate of a record; null stands for a value that was not finite."""
    stderr, interval = _number(record["stderr"]), record.get("interval")
    if interval is not None:
        interval = tuple(end if held is None else _number(held) for end, held in zip(ANYWHERE, interval))
    elif record["how"] == "estimated":  # earlier versions also wrote estimates without an error
        interval = None if math.isfinite(stderr) else ANYWHERE
        stderr = stderr or TINIEST
    return Estimate(
        value=_number(record["value"]),
        stderr=stderr,
        stderr_data=record.get("stderr_data"),
        interval=interval,
        how=record["how"],
        verified=record["verified"],
        status=record["status"],
        reason=record["reason"],
        samples=record["samples"],
        passes=record["passes"],
        details=dict(record["details"]),
    )


def strict_dumps(record: Any) -> str:
    """Return strict JSON text, without the NaN and Infinity that the standard does not know."""
    text = json.dumps(record, allow_nan=False, ensure_ascii=False, indent=1) + "\n"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # a file name that is no UTF-8, which no reader of JSON could be sure to take
        return strict_dumps(_spelt_out(record))
    return text


def stored(text: str) -> str:
    """Return text as a record keeps it: bytes of a file name that are no UTF-8 are spelt out, as ``\\udcff``."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _spelt_out(value: Any) -> Any:
    if isinstance(value, str):
        return stored(value)
    if isinstance(value, Mapping):
        return {stored(key): _spelt_out(item) for key, item in value.items()}
    return [_spelt_out(item) for item in value] if isinstance(value, list) else value


def strict_loads(text: str, source: str) -> Any:
    """Return the content of strict JSON text; ``source`` names it in a refusal."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise SpiritlevelError(f"{source} is not a report: it is not strict JSON ({error})") from error


def check_record(record: Any, source: str) -> None:
    """Refuse what is not a report of a version that can be read."""
    if not isinstance(record, dict) or "schema_version" not in record:
        raise SpiritlevelError(f"{source} is not a report: it has no schema_version; give a file saved by spiritlevel")
    version = record["schema_version"]
    if version != SCHEMA_VERSION:
        raise SpiritlevelError(
            f"{source} has schema version {version!r}, and this spiritlevel reads version {SCHEMA_VERSION}; "
            "use the version that wrote it"
        )
    kind = "reports" if "reports" in record else "report"
    found = what_is_wrong(record, kind)
    if found:
        raise SpiritlevelError(f"{source} is a damaged report ({found}); save it again")


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)

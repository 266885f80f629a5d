"""The hyper-parameters that Lightning stores beside the weights, as far as they are plain values."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spiritlevel.inputs.weights.bounded_pickle import BudgetSpent
from spiritlevel.inputs.weights.safe_pickle import Placeholder, open_regular, placeholder_parts
from spiritlevel.inputs.weights.torch_files import open_stream, open_zip
from spiritlevel.values.errors import SpiritlevelError

_ENTRY = "hyper_parameters"


@dataclass(frozen=True)
class StoredArguments:
    """Hyper-parameters by name: numbers, texts, truth values, None and lists of these; the names of all others."""

    plain: dict[str, Any] = field(default_factory=dict)
    others: tuple[str, ...] = ()


def stored_arguments(path: str | os.PathLike[str]) -> StoredArguments:
    """Return the hyper-parameters in a file of weights; none where it has none or cannot be read, which loading says.

    Nothing in the file is executed: what is no plain value has become an inert placeholder, and only its name is kept.
    """
    try:
        with open_regular(path) as stream:
            start = stream.read(2)
        opened = open_zip if start == b"PK" else open_stream if start[:1] == b"\x80" else None
        if opened is None:
            return StoredArguments()
        with opened(Path(path)) as file:
            root = file.root
    except (SpiritlevelError, OSError, RecursionError, BudgetSpent):
        return StoredArguments()
    found = root.get(_ENTRY) if isinstance(root, dict) else None
    if isinstance(found, Placeholder):  # Lightning's own kind of dictionary
        found = placeholder_parts(found)
    if not isinstance(found, dict):
        return StoredArguments()
    named = {name: value for name, value in found.items() if isinstance(name, str)}
    plain = {name: value for name, value in named.items() if _is_plain(value)}
    return StoredArguments(plain, tuple(name for name in named if name not in plain))


def _is_plain(value: object) -> bool:
    kinds = (bool, int, float, str, type(None))
    return type(value) in kinds or (type(value) in (list, tuple) and all(type(item) in kinds for item in value))  # type: ignore[attr-defined]

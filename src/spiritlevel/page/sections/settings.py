"""What it takes to measure the same again: a command line to copy, and everything the numbers depend on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from spiritlevel.page.content import PageContent
from spiritlevel.page.parts import Cell, CommandLines, PageTable, Part, Section, TableRow, Words
from spiritlevel.results.cost import passes_in_words
from spiritlevel.results.header import Headed, Header
from spiritlevel.results.numerals import plain
from spiritlevel.results.standing import standing_words

_SHOWN = (
    "model", "weights", "data", "split", "samples", "samples_total", "loss_name", "loss", "accuracy", "gradient_norm",
    "gradient_noise", "at_minimum", "seed", "data_seed", "fingerprint", "mode", "dtype", "device", "parameters",
    "exact_layers", "passes", "wall_time", "versions",
)  # fmt: skip


def section(content: PageContent) -> Section | None:
    """Return the last section: the command and the settings."""
    parts: list[Part] = []
    command = command_of(content)
    if command:
        parts.append(CommandLines(command))
    headers = headers_of(content)
    if headers and not command:
        parts.append(Words("Measured from Python; the settings below say the same as a command line would."))
    if headers:
        said = {key: [_said(header, key) for header in headers.values()] for key in _SHOWN}
        rows = [
            TableRow([Cell(_called(content, key)), *(Cell(_shown(key, value)) for value in values)])
            for key, values in said.items()
            if any(value not in (None, "", (), {}) for value in values)
        ]
        heads = list(headers) if len(headers) > 1 else ["value"]
        parts.append(PageTable("settings-table", ["setting", *heads], rows))
    if not parts:
        return None
    return Section("settings", "Settings", "as a command line to copy" if command else "what was measured how", parts)


def _said(header: Header, key: str) -> Any:
    return standing_words(header) if key == "at_minimum" else getattr(header, key)


def _called(content: PageContent, key: str) -> str:
    """Return a setting in words; what one measurement cost is not what all of the page did."""
    words = key.replace("_", " ")
    return f"{words} of measuring it once" if key in ("passes", "wall_time") and content.cost_of_whole else words


def headers_of(content: PageContent) -> dict[str, Header]:
    """Return what each network was measured on and how, by label."""
    if content.reports:
        return {label: report.header for label, report in content.shown.items()}
    spectral: dict[str, Headed] = {**content.spectra, **content.eigenvalues}
    return {label: found.header for label, found in spectral.items()}


def command_of(content: PageContent) -> str:
    """Return the command that measures the same again, where the reports came from the command line."""
    headers = list(headers_of(content).values())
    request = headers[0].request if headers else None
    if not isinstance(request, Mapping) or not request.get("model"):
        return ""
    everyone = [report.header for report in content.reports.values()] or headers
    weights = [str(w) for header in everyone if (w := header.weights)]
    verbs = {"comparison": "compare", "audit": "audit", "spectrum": "spectrum"}
    verb = verbs.get(content.kind, "measure")
    words = ["spiritlevel", verb, str(request["model"]), *dict.fromkeys(weights), "--data", str(request.get("data"))]
    left_out = ("model", "data", "weights", *(("measures", "settings") if verb == "spectrum" else ()))
    for option, value in request.items():
        if option not in left_out:
            words += _option_words(option, value)
    return shlex.join(words)


def _option_words(option: str, value: Any) -> list[str]:
    """Return an option as a command line takes it; nothing where nothing was said."""
    name = option.replace("_", "-")
    if value is None or value in ((), [], {}):
        return []
    if option == "settings":
        pairs = [(measure, key, one) for measure, own in value.items() for key, one in own.items()]
        return [word for measure, key, one in pairs for word in ("--set", f"{measure}.{key}={one}")]
    if isinstance(value, Mapping):
        return [word for key, one in value.items() for word in (f"--{name}", f"{key}={one}")]
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, (list, tuple)):
        return [f"--{name}", ",".join(map(str, value))]
    return [f"--{name}", str(value)]


def _shown(key: str, value: Any) -> str:
    return passes_in_words(value) if key == "passes" and isinstance(value, Mapping) else _text(value)


def _text(value: Any) -> str:
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return plain(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)

"""``--state FILE``: what sweeps give is kept there, and the same command goes on from it after an interruption."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spiritlevel.cli.sharing import Command
from spiritlevel.values.errors import UsageError

# Options that decide no number.
_BESIDE = (
    "state", "timeout", "json", "html", "per_sample", "figure", "layers", "quiet", "strict", "learning_rate", "runs",
)  # fmt: skip


def resumable(command: Command) -> Command:
    """Return a command that keeps what sweeps give where --state names a file."""

    @functools.wraps(command)
    def run(**options: Any) -> int:
        if options.get("state") is None or options.get("dry_run"):
            return command(**options)
        _refuse_what_cannot_be_kept(command, options)
        from spiritlevel.inputs.process.ranks import kept_in
        from spiritlevel.results.writing import check_outputs

        files = list(_files(options))
        outputs = [
            (f"--{name}", options[name]) for name in ("json", "html", "figure") if options.get(name) not in (None, "-")
        ]
        check_outputs([*outputs, ("--state", options["state"])], [("what is measured", file) for file in files])
        with kept_in(options["state"], _identity(command, options, files)):
            return command(**options)

    return run


def _refuse_what_cannot_be_kept(command: Command, options: Mapping[str, Any]) -> None:
    for name in ("seconds", "workers", "ray"):
        if options.get(name) is not None:
            raise UsageError(
                f"--state and --{name} do not go together: what is done would hang on the time; leave one out"
            )
    weights = [*(options.get("weights") or ()), *(options.get("more_weights") or ())]
    if command.__name__ == "measure_command" and len(weights) > 1:
        raise UsageError(
            f"--state keeps one measurement, and {len(weights)} weights files were given; --json FILE keeps those that "
            "are finished"
        )


def _files(options: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the files that options name: weights, code, data, a configuration."""
    for name, value in options.items():
        for word in value if isinstance(value, (list, tuple)) else [value]:
            place = Path(word.partition(":")[0]) if isinstance(word, str) and name not in _BESIDE else None
            if place is None or not word:
                continue
            try:
                found = sorted(place.rglob("*")) if place.is_dir() else [place]
                yield from (file for file in found if file.is_file())
            except OSError:  # no name of a file
                continue


def _identity(command: Command, options: Mapping[str, Any], files: list[Path]) -> str:
    """Return what stands for all that decides the numbers."""
    from spiritlevel.analyses.measuring import versions

    said = {name: value for name, value in options.items() if name not in _BESIDE}
    digests = []
    for file in files:
        with file.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest())
    whole = json.dumps([command.__name__, said, digests, versions()], sort_keys=True, default=str)
    return hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()

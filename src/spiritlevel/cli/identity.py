"""By what a finished result is known again: the weights, the settings, the user's code and the versions behind it."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from spiritlevel.cli.subject import Subject
from spiritlevel.cli.user_code import source_files
from spiritlevel.data import open_source, tensors_of
from spiritlevel.fingerprints import Fingerprint
from spiritlevel.measuring import versions
from spiritlevel.random_state import kept_random_state
from spiritlevel.results.records import as_json


class Identity:
    """What all weights files of a command share; with the content of one of them it identifies a result.

    The data is told apart by its fingerprint, which a report holds and which takes a sweep to find out.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        model = subject.named.model
        shared = {
            "request": as_json(subject.request.record()),
            "versions": {**versions(), **_extra_versions(subject.request.model or "")},
            "network": re.sub(r" at 0x[0-9a-fA-F]+", "", str(model)),  # addresses differ from run to run
            "device": sorted({str(tensor.device) for tensor in model.parameters()}),
            "code": [_digest(file) for file in source_files()],
        }
        self._shared = json.dumps(shared, sort_keys=True).encode("utf-8", "backslashreplace")
        self._fingerprint: str | None = None

    def of(self, weights: str) -> str:
        """Return the identity of the result of a weights file as it is now, or nothing where it cannot be read."""
        place = Path(weights)
        joined = hashlib.blake2b(self._shared, digest_size=16)
        try:
            files = sorted(place.iterdir()) if place.is_dir() else [place]
            for file in files:
                if file.is_file():
                    joined.update(_digest(file).encode())
                elif not place.is_dir():
                    return ""
        except OSError:  # told where the weights are loaded
            return ""
        return joined.hexdigest()

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the data, found without running the network."""
        if self._fingerprint is None:
            request, found = self.subject.request, Fingerprint()
            content, seed = self.subject.named.data.content, request.seed or 0
            try:
                with kept_random_state():
                    source = open_source(content, batch_size=request.batch_size, samples=request.samples, seed=seed)
                    for batch in source.read():
                        found.add(tensors_of(batch))
                self._fingerprint = str(found)
            except Exception:  # told where the data is measured on
                self._fingerprint = "none"
        return self._fingerprint


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _extra_versions(model: str) -> dict[str, Any]:
    """Return the version of the package that builds a network by name."""
    import importlib.metadata

    package = {"timm": "timm", "hf": "transformers"}.get(model.partition(":")[0])
    if package is None:
        return {}
    try:
        return {package: importlib.metadata.version(package)}
    except importlib.metadata.PackageNotFoundError:
        return {}

"""By what a finished result is known again: the weights, the settings, the user's code and the versions behind it."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from pathlib import Path

from spiritlevel.analyses.measuring import versions
from spiritlevel.cli.extras import BUILDERS
from spiritlevel.cli.hugging_face import HUGGING_FACE
from spiritlevel.cli.subject import Subject
from spiritlevel.cli.user_code import source_files
from spiritlevel.inputs.contents import tensors_of
from spiritlevel.inputs.data import open_source
from spiritlevel.inputs.fingerprints import Fingerprint
from spiritlevel.inputs.process.random_state import kept_random_state
from spiritlevel.results.records import as_json


class Identity:
    """What all weights files of a command share; with the content of one of them it identifies a result.

    The data is told apart by its fingerprint, which a report holds and which takes a sweep to find out.
    """

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        model, request = subject.named.model, subject.request
        code = list(source_files([request.model or "", request.data or "", request.forward or "", *request.measures]))
        shared = {
            "request": as_json(request.record()),
            "versions": {**_imported_versions(code, request.model or ""), **versions()},
            "network": re.sub(r" at 0x[0-9a-fA-F]+", "", str(model)),  # addresses differ from run to run
            "device": sorted({str(tensor.device) for tensor in model.parameters()}),
            "code": [_digest(file) for file in (*code, *_configurations(request.model or ""))],
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


def _configurations(model: str) -> list[Path]:
    """Return the file that says what the network of ``hf:FOLDER`` is, which its modules show only in part."""
    place = Path(model.removeprefix(HUGGING_FACE), "config.json")
    return [place] if model.startswith(HUGGING_FACE) and place.is_file() else []


def _imported_versions(files: list[Path], model: str) -> dict[str, str]:
    """Return the versions of the packages that files of code import, or that build a network by name."""
    names = {BUILDERS[kind]} if (kind := model.partition(":")[0]) in BUILDERS else set()
    for file in files:
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, OSError):  # no source, but an extension
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return {name: str(getattr(sys.modules.get(name), "__version__", "")) for name in names}

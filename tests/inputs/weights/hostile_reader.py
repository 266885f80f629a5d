"""Reads hostile weight files in a process of its own, and writes down for each what became of it and at what cost.

Run as ``python hostile_reader.py FOLDER``: every entry of the folder is loaded into a small network, one JSON line for
each goes to standard output. The address space is limited, so that an attack that succeeds harms only this process.
"""

from __future__ import annotations

import codecs
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spiritlevel.inputs.weights.checkpoints import load_weights
from spiritlevel.values.errors import SpiritlevelError

FORBIDDEN = ("os.", "subprocess.", "socket.", "shutil.", "ctypes.", "webbrowser.", "import", "exec", "compile")
HARMLESS = ("os.listdir", "os.scandir")


class Net(nn.Module):
    """The network that the honest files of the corpus were saved from."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)


def _status(field: str) -> int:
    """A field of this process's memory account, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def read_one(path: Path) -> dict[str, Any]:
    """Load one file, and say whether it loaded, was refused in a sentence, or did anything worse."""
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Path("/proc/self/clear_refs").write_text("5")
    start = _status("VmRSS")
    events.clear()
    watching.append(True)
    try:
        load_weights(model, path)
        outcome, words = "loaded", ""
    except SpiritlevelError as error:
        outcome, words = "refused", str(error)
    except BaseException as error:
        outcome, words = "raised", f"{type(error).__name__}: {error}"[:300]
    watching.clear()
    if outcome != "loaded" and any(not torch.equal(before[n], v) for n, v in model.state_dict().items()):
        outcome = "changed"
    claimed = _status("VmHWM") - start
    return {"name": path.name, "outcome": outcome, "words": words, "bytes": claimed, "events": list(events)}


events: list[str] = []
watching: list[bool] = []


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if not watching:
        return
    written = event == "open" and len(arguments) > 2 and isinstance(arguments[2], int)
    writes = written and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or (event.startswith(FORBIDDEN) and event not in HARMLESS):
        events.append(f"{event} {arguments!r}"[:200])


def main() -> None:
    folder = Path(sys.argv[1])
    # The first reading of each kind imports what it needs; only what comes after is watched.
    for encoding in ("cp437", "unicode_escape", "raw_unicode_escape", "latin1", "ascii"):
        codecs.lookup(encoding)
    for path in sorted((folder / "warm").iterdir()):
        load_weights(Net(), path)
    limit = _status("VmSize") + (3 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    sys.addaudithook(_listen)
    for path in sorted((folder / "cases").iterdir()):
        print(json.dumps({"name": path.name}), flush=True)
        print(json.dumps(read_one(path)), flush=True)


if __name__ == "__main__":
    main()

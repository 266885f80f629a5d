"""A process of its own for some rows of one network: it reads jobs, a line each, and writes each answer to a file.

It loads the libraries at once and waits, so that the next network's process is ready when the last one's ends.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write(file: Path, facts: Any) -> None:
    """Write facts whole or not at all."""
    beside = file.with_name(f"{file.name}.new")
    beside.write_text(json.dumps(facts, allow_nan=True, default=str), encoding="utf-8")
    os.replace(beside, file)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Interrupt what runs, as Ctrl-C would, when the seconds are over."""

    def ring(number: int, frame: Any) -> None:
        raise KeyboardInterrupt(f"{seconds:.0f} s were over")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    """Serve jobs until there are no more."""
    folder, images, device_name, peers_folder = sys.argv[1:5]
    smoke = "--smoke" in sys.argv
    if peers_folder:
        sys.path.append(peers_folder)
    import torch

    with contextlib.suppress(ImportError):
        import transformers  # noqa: F401  (for the seconds it takes)

    from benchmarks.large import plain
    from benchmarks.large.networks import NETWORKS, Prepared, prepare
    from benchmarks.large.rivals import RIVALS, rival
    from benchmarks.large.rows import ROWS

    device = torch.device(device_name)
    if device.type == "cuda":
        torch.zeros(1, device=device)
    gc.freeze()  # collecting before each timing would look through all libraries
    every = {**ROWS, **{name: rival(name) for name in RIVALS}}
    found: Prepared | None = None
    for line in sys.stdin:
        job = json.loads(line)
        answer, row = Path(job["answer"]), {}

        def keep(**facts: Any) -> None:
            row.update(facts)  # noqa: B023  (called in this round alone)
            write(answer.with_suffix(".partial"), row)  # noqa: B023

        began = time.perf_counter()
        try:
            with at_most(job["seconds"]):
                if job["row"] == "prepare":
                    network = NETWORKS[job["network"]]
                    found = prepare(network, Path(folder), Path(images), device, smoke, job["training_seconds"])
                    keep(**found.facts)
                else:
                    assert found is not None
                    every[job["row"]](found, device, job["seconds"], job["known"], keep)
        except KeyboardInterrupt:
            keep(stopped=f"stopped when the row's {job['seconds']:.0f} s were spent")
        except Exception as error:
            if time.perf_counter() - began >= job["seconds"]:  # the interrupt, which C++ has made another error of
                keep(stopped=f"stopped when the row's {job['seconds']:.0f} s were spent")
            keep(
                failed=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
                where="".join(traceback.format_tb(error.__traceback__)[-3:]),
            )
        row["row_seconds"] = time.perf_counter() - began
        plain.free()
        write(answer, row)


if __name__ == "__main__":
    main()

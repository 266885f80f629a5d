"""Networks of the size people train: ``python -m benchmarks.large_models --out FILE.json [--only NAME …]``.

Every network is trained for a moment, all at the same time, then measured row by row in processes of its own, one after
the other, each row within a share of the time; what failed, did not fit or took too long is a row with its sentence.
The record is written after every row.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Shares of a network's time, in the order of importance; what a row leaves is shared by those after it.
OURS = {"gradient": 1.0, "trace": 5.0, "default": 8.0, "top": 3.0, "truth": 2.0}
RIVALS = {"curvlinops": 1.0, "PyHessian": 1.0, "hessian-eigenthings": 1.0, "BackPACK": 0.5}
TRAINING = 0.15  # of a network's time, at most
PREPARING = 60.0  # seconds for loading beside it, at most
GRACE = 8.0  # seconds that a row may take to stop when its time is over
START_UP = 60.0  # seconds that a process may take to load its libraries


class Worker:
    """A process that does rows, one at a time."""

    def __init__(self, asked: argparse.Namespace, room: Path) -> None:
        self.log = tempfile.NamedTemporaryFile("w+", dir=room, suffix=".log", delete=False)  # noqa: SIM115
        command = [sys.executable, "-m", "benchmarks.large.worker", str(asked.folder), str(asked.images), asked.device]
        command += [str(asked.peers or ""), *(["--smoke"] if asked.smoke else [])]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self.log, stderr=subprocess.STDOUT, text=True
        )
        self.answer = Path(self.log.name).with_suffix(".json")
        self.used = False
        self.seconds = self.limit = 0.0

    def do(self, job: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return a row's facts; where the process dies or hangs, those it had written, with a sentence."""
        self.begin(job, seconds)
        return self.facts()

    def begin(self, job: dict[str, Any], seconds: float) -> None:
        """Let it begin a row, whose facts are to be asked for."""
        for file in (self.answer, self.answer.with_suffix(".partial")):
            file.unlink(missing_ok=True)
        start_up = 0.0 if self.used else START_UP  # it may still be loading its libraries
        self.used, self.seconds = True, seconds
        self.limit = time.monotonic() + seconds + GRACE + start_up
        with contextlib.suppress(OSError):  # where the process is gone, asking for the facts says so
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps({**job, "seconds": seconds, "answer": str(self.answer)}) + "\n")
            self.process.stdin.flush()

    def facts(self) -> dict[str, Any]:
        """Wait for the row that was begun, and return its facts."""
        while not self.answer.exists():
            if self.process.poll() is not None and not self.answer.exists():
                return self._lost(f"its process ended with {self.process.returncode}")
            if time.monotonic() > self.limit:
                return self._lost(f"ended by force, as it did not stop when its {self.seconds:.0f} s were spent")
            time.sleep(0.02)
        return json.loads(self.answer.read_text(encoding="utf-8"))

    def _lost(self, why: str) -> dict[str, Any]:
        self.end(by_force=True)
        partial = self.answer.with_suffix(".partial")
        row = json.loads(partial.read_text(encoding="utf-8")) if partial.exists() else {}
        lines = Path(self.log.name).read_text(encoding="utf-8", errors="replace").splitlines()
        return {**row, "failed": why, "where": "\n".join(lines[-8:])}

    @property
    def alive(self) -> bool:
        """Whether it can do another row."""
        return self.process.poll() is None

    def end(self, by_force: bool = False) -> None:
        """Let it end, and wait for that, so that the device's memory is free."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        if by_force:
            self.process.kill()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if not self.log.closed:
            self.log.close()


class Run:
    """All rows asked for, one after the other, and the record they make."""

    def __init__(self, asked: argparse.Namespace, room: Path) -> None:
        self.asked, self.room = asked, room
        self.began = time.monotonic()
        self.record = self._begun()
        self.workers: list[Worker] = []
        self.spare: Worker | None = None
        self.prepared: dict[str, tuple[Worker, dict[str, Any]]] = {}  # by network: the process that has it, the facts

    def left(self) -> float:
        """Return the seconds that are left of the run's."""
        return self.asked.budget - (time.monotonic() - self.began)

    def all_networks(self) -> None:
        """Do every network's rows; each gets an equal part of what is left."""
        names = self.asked.only
        try:
            self._prepare_together(names)
            for place, name in enumerate(names):
                if self.left() < self.asked.least:
                    why = f"the run's {self.asked.budget:.0f} s were spent"
                    self.record.setdefault("left_out", {})[name] = why
                    self._save()
                    print(f"{name} is left out: {why}", flush=True)
                    continue
                self.network(name, self.left() / (len(names) - place), last=place == len(names) - 1)
        finally:
            for worker in self.workers:
                worker.end(by_force=True)

    def _prepare_together(self, names: list[str]) -> None:
        """Load and train all networks at the same time, in the processes that measure them; nothing is timed yet."""
        training = TRAINING * self.left()
        limit = min(training + PREPARING, max(self.asked.least, self.left()))
        for name in names:
            worker = self._new()
            worker.begin({"network": name, "row": "prepare", "training_seconds": training}, limit)
            self.prepared[name] = worker, {}
        for name, (worker, _) in self.prepared.items():
            self.prepared[name] = worker, worker.facts()

    def _worker(self, more_to_come: bool) -> Worker:
        """Return a process that has begun to load, and let the next one begin."""
        worker = self.spare or self._new()
        self.spare = self._new() if more_to_come else None
        return worker

    def _new(self) -> Worker:
        self.workers.append(Worker(self.asked, self.room))
        return self.workers[-1]

    def network(self, name: str, seconds: float, last: bool) -> None:
        """Do one network's rows: ours in one process, the peers' in another."""
        end = time.monotonic() + seconds
        shares = {row: share for row, share in {**OURS, **RIVALS}.items() if row in self.asked.rows}
        entry: dict[str, Any] = {"name": name, "rows": {}}
        groups = [{**OURS, **RIVALS}] if self.asked.smoke else [OURS, RIVALS]
        for group in groups:
            rows = [row for row in group if row in shares]
            worker: Worker | None = None
            for row in rows:
                if worker is None or not worker.alive:
                    worker, facts = self.prepared.pop(name, None) or self._again(name, not last or group is OURS)
                    self._described(entry, facts)
                    entry = self._entry(entry)
                    if "failed" in facts or "stopped" in facts:
                        why = facts.get("failed") or facts["stopped"]
                        entry["rows"] |= {other: {"failed": f"not prepared: {why}"} for other in rows}
                        self._save()
                        break
                allowed = (end - time.monotonic()) * shares[row] / sum(shares.values())
                del shares[row]
                if self.left() < 1:
                    entry["rows"][row] = {"left_out": f"the run's {self.asked.budget:.0f} s were spent"}
                    self._save()
                    continue
                job = {"network": name, "row": row, "known": entry["rows"]}
                entry["rows"][row] = worker.do(job, min(max(self.asked.least, allowed), self.left()))
                self._save()
                self._say(name, row, entry["rows"][row])
            if worker is not None:
                worker.end()
        entry["seconds"] = seconds - (end - time.monotonic())
        self._save()

    def _again(self, name: str, more_to_come: bool) -> tuple[Worker, dict[str, Any]]:
        """Return another process with the network, from its checkpoint."""
        worker = self._worker(more_to_come)
        limit = min(PREPARING, max(self.asked.least, self.left()))
        return worker, worker.do({"network": name, "row": "prepare", "training_seconds": 0.0}, limit)

    def _described(self, entry: dict[str, Any], facts: dict[str, Any]) -> None:
        if entry.get("training"):  # a second process loads what the first one trained
            return
        entry |= {key: value for key, value in facts.items() if key != "row_seconds"}
        entry["prepare_seconds"] = facts.get("row_seconds")
        trained = facts.get("training", {})
        self._say(entry["name"], "prepare", {**facts, **trained})

    def _entry(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return the record's entry for the network: with its earlier rows if it is the same trained network."""
        networks = self.record["networks"]
        for place, before in enumerate(networks):
            if before is entry:
                return entry
            if before["name"] == entry["name"]:
                same = {k: v for k, v in (before.get("training") or {}).items() if k != "from_checkpoint"}
                now = {k: v for k, v in (entry.get("training") or {}).items() if k != "from_checkpoint"}
                if same == now:
                    entry["rows"] = {**before["rows"], **entry["rows"]}
                networks[place] = entry
                return entry
        networks.append(entry)
        return entry

    def _begun(self) -> dict[str, Any]:
        """Return the record to go on with: the one that is there, if this machine made it."""
        import torch

        from benchmarks.machine import describe, version_of

        machine = describe(torch.device(self.asked.device))
        for library in ("hessian-eigenthings",):
            machine["peers"][library] = version_of(library)
        machine |= {name: version_of(name) for name in ("transformers", "timm", "torchvision")}
        if self.asked.out.exists():
            before = json.loads(self.asked.out.read_text(encoding="utf-8"))
            if before.get("machine") == machine and before.get("smoke") == self.asked.smoke:
                return before
        return {"machine": machine, "smoke": self.asked.smoke, "networks": []}

    def _save(self) -> None:
        from benchmarks.large.worker import write

        self.record["seconds"] = time.monotonic() - self.began
        self.asked.out.parent.mkdir(parents=True, exist_ok=True)
        write(self.asked.out, self.record)

    def _say(self, name: str, row: str, facts: dict[str, Any]) -> None:
        shown = ("value", "stderr", "status", "passes", "seconds", "trace_value", "top_value", "last_loss", "failed")
        words = ", ".join(
            f"{key} {facts[key]:.4g}" if isinstance(facts[key], float) else f"{key} {facts[key]}"
            for key in (*shown, "stopped", "left_out")
            if facts.get(key) is not None
        )
        print(f"[{time.monotonic() - self.began:5.0f} s] {name} {row}: {words}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Run what was asked for."""
    names = ("gpt2", "bert", "vit", "convnext", "resnet50", "gpt_1b")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_models", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the record, as JSON; an earlier one is gone on with")
    parser.add_argument("--only", nargs="+", choices=names, default=list(names), metavar="NAME")
    parser.add_argument("--rows", nargs="+", choices=[*OURS, *RIVALS, "peers"], default=[*OURS, "peers"], metavar="ROW")
    parser.add_argument("--budget", type=float, default=None, help="seconds for everything (default 530)")
    parser.add_argument("--least", type=float, default=None, help="seconds that a row gets at least (default 8)")
    parser.add_argument("--peers", type=Path, default=None, help="folder of the unpacked peers")
    parser.add_argument("--images", type=Path, default=Path("carried/cifar100.npz"), help="CIFAR-100 as an npz file")
    parser.add_argument("--folder", type=Path, default=Path("carried/large"), help="where trained networks are kept")
    parser.add_argument("--device", default=None)
    parser.add_argument("--smoke", action="store_true", help="everything with tiny sizes")
    asked = parser.parse_args(arguments)
    if asked.budget is None:
        asked.budget = 110.0 if asked.smoke else 530.0
    if asked.least is None:
        asked.least = 1.5 if asked.smoke else 8.0
    if "peers" in asked.rows:
        asked.rows = [*asked.rows, *RIVALS]
    if asked.peers is not None:
        asked.peers = asked.peers.resolve()
        sys.path.append(str(asked.peers))
    if asked.device is None:
        import torch

        asked.device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as room:
        Run(asked, Path(room)).all_networks()
    print(f"{asked.out}")


if __name__ == "__main__":
    main()

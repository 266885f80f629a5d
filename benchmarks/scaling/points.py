"""Points that are measured: ranks and workers on a CPU, and a transformer of any size on any device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.material import images
from benchmarks.memory import forget_peak, peak_bytes
from benchmarks.timing import synchronise

MEASURED = ["hessian_trace", "hessian_top_eigenvalue", "output_margin"]
SAMPLES, SIDE, CLASSES = 2048, 16, 10


def of_ranks(count: int) -> dict[str, Any]:
    """Measure a ReLU network on so many Gloo ranks of one thread; CPU seconds are those of the slowest rank."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.scaling.points", str(count), folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        running = [subprocess.Popen([*command, str(rank)], env=environment) for rank in range(count)]
        if any(process.wait() for process in running):
            raise SystemExit(f"a rank of {count} failed")
        found = [json.loads(Path(folder, f"{rank}.json").read_text(encoding="utf-8")) for rank in range(count)]
    slowest = max(found, key=lambda each: each["cpu_seconds"])
    return {"ranks": count, "samples": SAMPLES, **slowest}


@contextmanager
def bytes_added() -> Iterator[list[int]]:
    """Count within, in the one entry of a list, the bytes that this rank adds up with others."""
    from spiritlevel.inputs.process.ranks import ranks

    group, counted = ranks(), [0]
    own = group.adder
    assert own is not None

    def counting(tensor: Tensor) -> None:
        counted[0] += tensor.numel() * tensor.element_size()
        own(tensor)

    group.adder = counting
    try:
        yield counted
    finally:
        group.adder = own


def _as_rank(count: int, folder: Path, rank: int) -> None:
    import spiritlevel as sl

    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=count)
    torch.manual_seed(0)
    layers = [nn.Linear(SIDE**2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, CLASSES)]
    problem = sl.Problem(nn.Sequential(nn.Flatten(), *layers), images(SAMPLES, size=SIDE, classes=CLASSES))
    with sl.over_ranks():
        sl.measure(problem, MEASURED)  # what the first use of anything costs
        wall, cpu = time.perf_counter(), time.process_time()
        with bytes_added() as added:
            report = sl.measure(problem, MEASURED)
        facts = {
            "cpu_seconds": time.process_time() - cpu,
            "seconds": time.perf_counter() - wall,
            "added_bytes": added[0],
            "products": (report.header.passes or {}).get("hessian product", 0.0),
            "parameters": problem.size,
            "values": {name: estimate.value for name, estimate in report.items()},
        }
    (folder / f"{rank}.json").write_text(json.dumps(facts), encoding="utf-8")
    torch.distributed.destroy_process_group()


# Runs a command, and prints the CPU seconds of its own process and of those it started.
_COMMAND = """
import json, resource, sys
from spiritlevel.cli import main
if __name__ == "__main__":
    code = main(sys.argv[1:])
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps([each.ru_utime + each.ru_stime for each in used]))
    sys.exit(code)
"""


def of_workers(count: int, files: int = 24) -> dict[str, Any]:
    """Measure checkpoints of a small convolutional network with so many workers of one thread.

    CPU seconds are those of the command and of one worker's share, start-up included: what it takes where every process
    has a core.
    """
    import spiritlevel as sl

    with tempfile.TemporaryDirectory() as folder:
        for seed in range(files):
            torch.save(sl.nets.build("digits_cnn", seed=seed).state_dict(), Path(folder, f"e{seed}.pt"))
        words = ["measure", "digits_cnn", *(f"e{seed}.pt" for seed in range(files)), "--data", "digits", "--quiet"]
        words += ["--json", "all.json", "--workers", str(count)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        start = time.perf_counter()
        command = [sys.executable, "-c", _COMMAND, *words]
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - start
        own, others = json.loads(ran.stdout.splitlines()[-1])
        reports = sl.load_reports(Path(folder, "all.json"))
    return {
        "workers": count,
        "files": files,
        "seconds": seconds,
        "cpu_seconds": own + others / count,
        "values": [[estimate.value for _, estimate in report.items()] for report in reports],
    }


class Decoder(nn.Module):
    """A transformer from tokens to logits, each position of those before it, of about so many parameters."""

    def __init__(self, parameters: float, vocabulary: int, tokens: int) -> None:
        super().__init__()
        width = max(64, 64 * round((128 * parameters / 12) ** (1 / 3) / 64))
        layers = max(1, round((parameters - vocabulary * width) / (12 * width**2)))
        self.embedding, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, 0.0, nn.functional.gelu, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, T, vocabulary), by the embedding itself."""
        places = torch.arange(x.shape[1], device=x.device)
        hidden = self.layers(self.embedding(x) + self.places(places), mask=self.mask, is_causal=True)
        return hidden @ self.embedding.weight.T


def of_model(parameters: float, device: torch.device, *, samples: int, tokens: int, seconds: float) -> dict[str, Any]:
    """Measure trace and top eigenvalue of a decoder built from its size, by a deadline each."""
    import spiritlevel as sl
    from spiritlevel.inputs.process.precision import full_float32

    torch.manual_seed(0)
    vocabulary = 8192
    with torch.device(device):
        model = Decoder(parameters, vocabulary, tokens)
    data = torch.randint(0, vocabulary, (samples, tokens)).to(device)
    size = sum(tensor.numel() for tensor in model.parameters())
    found: dict[str, Any] = {"parameters": size, "samples": samples, "tokens": tokens, "device": _name(device)}
    with full_float32():
        found["gradient_seconds"] = min(_gradient(model, data, device) for _ in range(3))
    for measure in ("hessian_trace", "hessian_top_eigenvalue"):
        forget_peak(device)
        start = time.perf_counter()
        problem = sl.Problem(model, (data, data), "next_token", batch_size=1)
        report = sl.measure(problem, measure, seconds=seconds, tolerance=0.05)
        synchronise(device)
        own = report[measure]
        found[measure] = {
            "seconds": time.perf_counter() - start,
            "value": own.value,
            "stderr": own.stderr,
            "interval": own.interval,
            "status": own.status,
            "passes": dict(report.header.passes or {}),
            "peak_bytes": peak_bytes(device),
        }
    return found


def _gradient(model: nn.Module, data: Tensor, device: torch.device) -> float:
    synchronise(device)
    start = time.perf_counter()
    for row in data.split(1):
        logits = model(row)
        loss = nn.functional.cross_entropy(logits[0, :-1], row[0, 1:])
        torch.autograd.grad(loss, list(model.parameters()))
    synchronise(device)
    return time.perf_counter() - start


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


if __name__ == "__main__":
    _as_rank(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))

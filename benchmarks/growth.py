"""How time and memory of the curvature pass grow with samples, parameters, classes and depth.

On a CPU every point runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks import material
from benchmarks.memory import forget_peak, held_bytes, peak_bytes
from benchmarks.timing import synchronise

BASE = {"samples": 2048, "width": 64, "classes": 10, "depth": 3}
AXES: dict[str, tuple[int, ...]] = {
    "samples": (2_048, 8_192, 32_768, 131_072),
    "width": (64, 128, 256, 512),
    "classes": (4, 8, 16, 32),
    "depth": (2, 4, 8, 16),
}
# A GPU takes batches of thousands: memory stops growing only beyond them.
ON_GPU = {**AXES, "samples": (16_384, 32_768, 65_536, 131_072)}
MEANING = {"samples": "samples N", "width": "parameters P", "classes": "classes C", "depth": "depth"}


def axes(device: torch.device, *, quick: bool) -> dict[str, tuple[int, ...]]:
    """Return the values along each axis."""
    chosen = ON_GPU if device.type == "cuda" else AXES
    return {axis: values[:2] for axis, values in chosen.items()} if quick else chosen


def point(samples: int, width: int, classes: int, depth: int, device: torch.device) -> dict[str, float]:
    """Measure traces and the diagonal of a ReLU network once; the peak is above what the process held before."""
    import spiritlevel as sl

    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Flatten()]
    fan_in = 256
    for _ in range(depth):
        layers += [nn.Linear(fan_in, width), nn.ReLU()]
        fan_in = width
    model = nn.Sequential(*layers, nn.Linear(fan_in, classes)).to(device)
    x, y = material.images(samples, size=16, classes=classes)
    data = (x.to(device), y.to(device))
    parameters = sum(tensor.numel() for tensor in model.parameters())
    sl.curvature(sl.Problem(model, (data[0][:256], data[1][:256])))  # what the first use of anything costs
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else held_bytes("VmRSS")
    forget_peak(device)
    synchronise(device)
    start = time.perf_counter()
    sl.curvature(sl.Problem(model, data))
    synchronise(device)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "megabytes": (peak_bytes(device) - before) / 1e6, "parameters": parameters}


def growth(
    device: torch.device, axes: dict[str, tuple[int, ...]], say: Callable[[str], None], repeats: int = 3
) -> list[dict[str, Any]]:
    """Return time (the least of ``repeats`` runs) and peak memory (their median) along each axis, with exponents."""
    say("How cost grows")
    found = []
    for axis, values in axes.items():
        runs = [[_measured({**BASE, axis: value}, device) for _ in range(repeats)] for value in values]
        scale = [run[0]["parameters"] for run in runs] if axis == "width" else list(values)
        seconds = [min(one["seconds"] for one in run) for run in runs]
        megabytes = [statistics.median(one["megabytes"] for one in run) for run in runs]
        entry = {
            "axis": MEANING[axis],
            "values": scale,
            "seconds": seconds,
            "megabytes": megabytes,
            "time_exponent": exponent(scale, seconds),
            "memory_exponent": exponent(scale, [max(one, 1e-3) for one in megabytes]),
        }
        say(f"  {entry['axis']}: time ~ {entry['time_exponent']:.2f}, memory ~ {entry['memory_exponent']:.2f}")
        found.append(entry)
    return found


def exponent(values: Sequence[float], costs: Sequence[float]) -> float:
    """Return the slope of log cost over log value by least squares."""
    x = [math.log(value) for value in values]
    y = [math.log(cost) for cost in costs]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y)) / sum((a - middle_x) ** 2 for a in x)


def _measured(setting: dict[str, int], device: torch.device) -> dict[str, float]:
    if device.type == "cuda":  # torch counts what it holds there, and starting anew takes seconds
        return point(**setting, device=device)
    command = [sys.executable, "-m", "benchmarks.growth", json.dumps(setting), str(device)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(point(**json.loads(sys.argv[1]), device=torch.device(sys.argv[2]))))

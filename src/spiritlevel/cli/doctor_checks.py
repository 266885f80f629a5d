"""Is this machine fit for the work: versions, devices, extras, and a check against dense matrices in seconds."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spiritlevel.values.extras import EXTRAS

REQUIRED = ("torch", "numpy", "scipy", "scikit-learn", "typer", "rich", "safetensors")
# Relative differences to a float64 matrix that rounding explains, by the precision of the network.
BOUNDS = {torch.float64: 1e-8, torch.float32: 1e-3}


@dataclass(frozen=True)
class Difference:
    """The largest relative difference of one quantity of one network to its dense float64 reference."""

    network: str
    dtype: torch.dtype
    device: str
    quantity: str
    value: float

    @property
    def ok(self) -> bool:
        """Whether rounding explains the difference."""
        return self.value <= BOUNDS[self.dtype]


def run_doctor() -> int:
    """Print what is installed and how far this machine is from the dense reference; 1 where it is too far."""
    for name, version in package_versions().items():
        print(f"{name:14} {version}")
    print(f"{'devices':14} {'; '.join(devices())}")
    print("\nExtras:")
    for line in extra_lines():
        print(f"  {line}")
    print("\nLargest relative difference to a dense float64 matrix:")
    started = time.perf_counter()
    failed = False
    for found in check_machine():
        failed |= not found.ok
        dtype = str(found.dtype).removeprefix("torch.")
        verdict = "ok" if found.ok else f"TOO LARGE, over {BOUNDS[found.dtype]:.0e}"
        print(f"  {found.network:20} {dtype:8} {found.device:7} {found.quantity:22} {found.value:.1e}  {verdict}")
    print(f"Checked in {time.perf_counter() - started:.1f} s.")
    if failed:
        print("spiritlevel: this machine's arithmetic does not agree with the dense reference", file=sys.stderr)
    return int(failed)


def package_versions() -> dict[str, str]:
    """Return the versions of this package, Python and what it stands on."""
    from spiritlevel.values.version import __version__

    found = {"spiritlevel": __version__, "python": f"{platform.python_version()} on {platform.platform()}"}
    for name in REQUIRED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def extra_lines() -> list[str]:
    """Return a line an extra: what it adds, and the command that installs it where a package of it is missing."""
    found = []
    for extra in EXTRAS.values():
        missing = extra.missing
        state = f"without {', '.join(missing)}: {extra.command}" if missing else "installed"
        found.append(f"{extra.name:8} {extra.adds}; {state}")
    return found


def devices() -> list[str]:
    """Return the processors that torch can use, in words."""
    found = [f"cpu ({os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads)"]
    if torch.cuda.is_available():
        found += [f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(torch.cuda.device_count())]
    return found


def check_machine() -> list[Difference]:
    """Compare trace, diagonal and products of two tiny networks with dense matrices, in both precisions."""
    places = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    found = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        images, labels = torch.randn(24, 1, 6, 6, dtype=torch.float64), torch.randint(0, 3, (24,))
        networks = {"convolutional, ReLU": _convolutional(), "dense, tanh": _dense()}
    for name, network in networks.items():
        for place in places:
            for dtype in (torch.float64, torch.float32):
                found += _differences(name, network.to(place, dtype), (images.to(place, dtype), labels.to(place)))
    return found


def _convolutional() -> nn.Module:
    layers = (nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, 3))
    return nn.Sequential(*layers)


def _dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 3))


def _differences(name: str, network: nn.Module, data: tuple[Tensor, Tensor]) -> list[Difference]:
    from spiritlevel.analyses.diagonal_blocks import curvature
    from spiritlevel.engine.problem import Problem
    from spiritlevel.measures.reference import Dense

    problem = Problem(network, data)
    dense = Dense(problem)
    vectors = torch.randn(problem.size, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    placed = vectors.to(problem.device, problem.dtype)
    pairs = {
        "product with Hessian": (problem.hessian @ placed, dense.hessian @ vectors),
        "product with G-N": (problem.ggn @ placed, dense.ggn @ vectors),
    }
    view = curvature(problem)
    exact = [layer for layer, is_exact in view.exact_layers.items() if is_exact]
    # Layers before a smooth operation are sampled: their error is statistical, and no sign of the machine's arithmetic.
    parameters = [full for layer in exact for full in problem.layers[layer].parameters.values()]
    dense_diagonal = torch.cat([dense.block(full).diagonal() for full in parameters])
    diagonal = torch.cat([view.diagonal[full].reshape(-1) for full in parameters])
    trace = sum(float(view.layer_trace[layer]) for layer in exact)
    pairs["trace"] = (torch.tensor(trace, dtype=torch.float64), dense_diagonal.sum())
    pairs["diagonal"] = (diagonal, dense_diagonal)
    return [
        Difference(name, problem.dtype, str(problem.device), quantity, _relative(ours, theirs))
        for quantity, (ours, theirs) in pairs.items()
    ]


def _relative(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference against the largest entry of the reference."""
    return float((ours.detach().double().cpu() - theirs).abs().max() / theirs.abs().max())

"""Thirty-two LeNets trained in one stack against one after another: python benchmarks/ensemble.py [cpu|cuda]."""

from __future__ import annotations

import sys
import time

import torch

from spiritlevel.lab.nets import build
from spiritlevel.lab.training import train, train_ensemble

NETWORKS, IMAGES, BATCH = 32, 4096, 64


def seconds(work, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else ("cuda" if torch.cuda.is_available() else "cpu")
    networks = NETWORKS if device == "cuda" else 8
    steps = 100 if device == "cuda" else 10
    generator = torch.Generator().manual_seed(0)
    data = (torch.rand(IMAGES, 1, 28, 28, generator=generator), torch.randint(10, (IMAGES,), generator=generator))
    options = {"lr": 0.05, "momentum": 0.9, "batch_size": BATCH}

    def models() -> list[torch.nn.Module]:
        return [build("lenet5", seed=seed, device=device) for seed in range(networks)]

    def loop(count: int) -> None:
        for seed, model in enumerate(alone):
            train(model, data, seed=seed, steps=count, **options)

    def stack(count: int) -> None:
        train_ensemble(together, data, seeds=range(networks), steps=count, **options)

    alone, together = models(), models()
    loop(3)  # first calls choose algorithms
    stack(3)
    alone, together = models(), models()
    one_by_one, at_once = seconds(lambda: loop(steps), device), seconds(lambda: stack(steps), device)
    apart = max(
        float((a - b).abs().max())
        for one, other in zip(alone, together)
        for a, b in zip(one.state_dict().values(), other.state_dict().values())
    )
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{networks} LeNets, {steps} steps of {BATCH} images, {name}, torch {torch.__version__}")
    print(f"one by one {one_by_one:.2f} s, in one stack {at_once:.2f} s: {one_by_one / at_once:.1f} times faster")
    print(f"largest difference of any weight: {apart:.1e} (float32)")


if __name__ == "__main__":
    main()

"""The memory that a plan names is what measuring takes, within a factor; what cannot fit is refused with a way out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.inputs.process.memory_use import memory_use

CPU = torch.device("cpu")
WITHIN = 2.2  # what is sampled takes as many draws as its error asks for


def data(samples: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(samples, 1, 12, 12, generator=generator), torch.randint(0, 4, (samples,), generator=generator)


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "wide":  # what it takes goes with the parameters
        return nn.Sequential(
            nn.Flatten(), nn.Linear(144, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 4)
        )
    if kind == "images":  # with the samples
        convolutions = [nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*convolutions, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(108, 4))
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 100), nn.GELU(), nn.Linear(100, 4))


@pytest.mark.parametrize("kind", ["wide", "images", "smooth"])
@pytest.mark.parametrize("measures", ["hessian_trace", "hessian_top_eigenvalue"])
def test_what_is_planned_is_what_is_held(kind: str, measures: str) -> None:
    planned = sl.plan(sl.Problem(network(kind), data()), measures)
    with memory_use(CPU) as use:
        sl.measure(sl.Problem(network(kind), data()), measures)
    assert use.peak is not None
    assert use.peak / WITHIN <= planned.memory_bytes <= use.peak * WITHIN
    assert planned.memory.reason == ""
    assert planned.refusal == ""


def test_tensors_are_counted_while_they_are_alive() -> None:
    with memory_use(CPU) as use:
        kept = torch.zeros(1000, dtype=torch.float64)
        for _ in range(3):
            half = (kept + 1).view(2, 500)[0]  # what a view holds is the whole
        del half
    assert use.peak == 3 * 8000  # a sum is made before the one before it is let go
    assert use.left == 8000


def test_parameters_and_samples_are_told_apart() -> None:
    wide, images = (sl.plan(sl.Problem(network(kind), data()), "hessian_trace").memory for kind in ("wide", "images"))
    assert wide.fixed > 0.8 * wide.peak
    assert images.each_sample * images.batch > 0.7 * images.peak


def test_a_batch_too_large_is_refused_with_one_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network("images")
    whole = sl.plan(sl.Problem(model, data(), batch_size=256), "hessian_trace")
    monkeypatch.setenv("SPIRITLEVEL_MEMORY", str(whole.memory.needed // 2))
    planned = sl.plan(sl.Problem(model, data(), batch_size=256), "hessian_trace")
    assert "a batch of 256 samples needs about" in planned.refusal
    advised = int(planned.refusal.partition("batch_size=")[2].partition(",")[0])
    assert 16 <= advised < 256
    assert sl.plan(sl.Problem(model, data(), batch_size=advised), "hessian_trace").refusal == ""


def test_too_many_parameters_are_refused_with_fewer_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRITLEVEL_MEMORY", "8 MB")
    model = network("wide")  # 450,000 parameters: the gradient's sums alone take 7 MB
    planned = sl.plan(sl.Problem(model, data()), "hessian_trace")
    assert "choose fewer of them by a pattern as parameters='head.*'" in planned.refusal
    assert "shard the model" in planned.refusal
    assert sl.plan(sl.Problem(model, data(), parameters=["5.*"], batch_size=16), "hessian_trace").refusal == ""


def test_ranks_add_up_what_the_declarations_say() -> None:
    problem = sl.Problem(network("smooth"), data())
    alone, three = (sl.plan(problem, ["output_margin", "hessian_top_eigenvalue"], ranks=ranks) for ranks in (1, 3))
    size, samples = alone.parameters, alone.samples
    # The first sweep with four outputs, the gradient's two sums, the margins, and a sweep and twenty products.
    assert alone.reduced_bytes == 8 * (12 * samples + 2 * size + samples + samples + 20 * size)
    assert "ranks" not in str(alone)
    assert "3 ranks share the passes and add up about" in str(three)
    with pytest.raises(sl.UsageError, match="ranks"):
        sl.plan(problem, ranks=0)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="the kernel does not tell")
@pytest.mark.parametrize("kind", ["wide", "images"])
def test_the_kernel_counts_as_much(kind: str) -> None:
    """What a process holds at most, in a process of its own that gives back what it frees."""
    script = textwrap.dedent(
        f"""
        import json, torch
        torch.set_num_threads(1)
        import spiritlevel as sl
        from benchmarks.memory import forget_peak, held_bytes, peak_bytes
        from tests.analyses.test_memory_plan import CPU, data, network
        planned = sl.plan(sl.Problem(network({kind!r}), data(1024)))
        before = held_bytes("VmRSS")
        forget_peak(CPU)
        sl.measure(sl.Problem(network({kind!r}), data(1024)))
        print(json.dumps([planned.memory_bytes, peak_bytes(CPU) - before]))
        """
    )
    root = Path(__file__).parents[2]
    own = {"PYTHONPATH": f"{root / 'src'}:{root}", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    giving_back = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, env={**os.environ, **own, **giving_back}, capture_output=True, text=True, check=True)
    planned, held = json.loads(ran.stdout.splitlines()[-1])
    assert held / WITHIN <= planned <= held * WITHIN

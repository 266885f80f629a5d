"""Two threads that measure at once give a single thread's numbers and leave the process as they found it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl

NAMES = ["hessian_trace", "hessian_top_eigenvalue", "rho_sum", "output_margin"]


class Small(nn.Module):
    """Attention with a fast path, normalisation with buffers, and a piecewise linear end."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm, self.head = nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.attention(x, x, x, need_weights=False)[0].mean(1)))


def _data(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(12, 3, 4, generator=generator), torch.randint(3, (12,), generator=generator)


def _numbers(problem: sl.Problem) -> dict[str, Any]:
    report = sl.measure(problem, measures=NAMES, tolerance=0.5)
    found: dict[str, Any] = {name: (e.value, e.stderr, e.how, e.status) for name, e in report.items()}
    found["loss"] = report.loss
    found["product"] = (problem.hessian @ torch.ones(problem.size)).tolist()
    return found


def _process() -> tuple[Any, ...]:
    """The switches of the process, and the modes of this thread."""
    cuda = torch.backends.cuda
    return (
        torch.backends.mha.get_fastpath_enabled(),
        torch.get_float32_matmul_precision(),
        cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        (cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled()),
        torch.backends.mkldnn.enabled,
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.are_deterministic_algorithms_enabled(),
        str(torch._dynamo.eval_frame._stance) if hasattr(torch, "_dynamo") else None,
    )


def _two(seeds: tuple[int, int]) -> tuple[list[nn.Module], Callable[[], list[sl.Problem]]]:
    models = [Small(seed) for seed in seeds]
    return models, lambda: [sl.Problem(model, _data(seed)) for model, seed in zip(models, seeds)]


def _same(seeds: tuple[int, int]) -> tuple[list[nn.Module], Callable[[], list[sl.Problem]]]:
    model = Small(seeds[0])
    return [model], lambda: [sl.Problem(model, _data(seeds[0]))] * 2


def _shared(seeds: tuple[int, int]) -> tuple[list[nn.Module], Callable[[], list[sl.Problem]]]:
    model = Small(seeds[0])
    return [model], lambda: [sl.Problem(model, _data(seed)) for seed in seeds]


def _at_once(problems: list[sl.Problem]) -> list[Any]:
    found: list[Any] = [None] * len(problems)
    start = threading.Barrier(len(problems))

    def work(place: int) -> None:
        try:
            start.wait()
            found[place] = _numbers(problems[place])
        except BaseException as error:
            found[place] = error

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(problems))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _rounds(make: Callable[[tuple[int, int]], Any], count: int) -> None:
    models, problems = make((3, 4))
    for model in models:
        model.train()
        model.norm.eval()
    expected = [_numbers(problem) for problem in problems()]
    before, state = _process(), torch.get_rng_state()
    modes = [[module.training for module in model.modules()] for model in models]
    weights = [[t.clone() for t in model.state_dict().values()] for model in models]
    required = [[p.requires_grad for p in model.parameters()] for model in models]
    for _ in range(count):
        assert _at_once(problems()) == expected
        assert _process() == before
        assert torch.equal(torch.get_rng_state(), state)
        assert [[module.training for module in model.modules()] for model in models] == modes
        assert [[p.requires_grad for p in model.parameters()] for model in models] == required
        now = [list(model.state_dict().values()) for model in models]
        assert all(a.equal(b) for old, new in zip(weights, now) for a, b in zip(old, new))


@pytest.mark.parametrize("make", [_two, _same, _shared])
def test_two_threads_give_one_threads_numbers(make: Callable[[tuple[int, int]], Any]) -> None:
    _rounds(make, 5)


@pytest.mark.slow
@pytest.mark.parametrize("make", [_two, _same, _shared])
def test_two_threads_give_one_threads_numbers_a_hundred_times(make: Callable[[tuple[int, int]], Any]) -> None:
    _rounds(make, 100)

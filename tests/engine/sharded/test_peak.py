"""What a rank of two holds at most, against what one process holds that has the whole model.

Counted are the bytes of tensors alive, storage by storage, from the parameters on: what the allocator keeps of freed
memory would say more about it than about the measurement.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

import spiritlevel as sl
from tests.engine.sharded.live_bytes import LiveBytes
from tests.engine.sharded.networks import Transformer
from tests.engine.sharded.on_ranks import run_on_ranks


def peak(rank: int, size: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Transformer(width=192, depth=5, words=500)  # far larger than what it does to eight short sequences
    tokens, labels = torch.randint(0, 500, (8, 4)), torch.randint(0, 3, (8,))
    whole = sum(tensor.nbytes for tensor in model.parameters())
    if size > 1:
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    parts: list[Any] = list(model.parameters())
    live = LiveBytes(*(part.to_local() if size > 1 else part for part in parts))
    held = live.now
    problem = sl.Problem(model, (tokens[rank::size], labels[rank::size]))
    with live:
        report = sl.measure(problem, ["hessian_trace", "hessian_top_eigenvalue"], tolerance=0.2)
    top, trace = report["hessian_top_eigenvalue"], report["hessian_trace"]
    return {
        "whole": whole,
        "held": held,
        "peak": live.peak,
        "top": top.interval,
        "trace": (trace.value, trace.stderr),
        "parameters": report.header.parameters,
    }


@pytest.mark.slow
def test_a_rank_of_two_holds_little_more_than_half(tmp_path: Path) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    alone.mkdir()
    both.mkdir()
    (one,) = run_on_ranks(1, peak, alone, 1)
    two = run_on_ranks(2, peak, both, 2)
    assert one["held"] == one["whole"]
    assert one["peak"] > 5 * one["whole"]  # the counter sees vectors
    for rank in two:
        assert rank["parameters"] == one["parameters"]
        assert rank["held"] < 0.51 * one["whole"]
        assert rank["peak"] > 5 * rank["held"]
        assert rank["peak"] < 0.65 * one["peak"]
        assert rank["top"][0] <= one["top"][1]
        assert one["top"][0] <= rank["top"][1]
        apart = abs(rank["trace"][0] - one["trace"][0])
        assert apart <= 4 * (rank["trace"][1] ** 2 + one["trace"][1] ** 2) ** 0.5

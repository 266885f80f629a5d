"""Activation checkpointing in the forms people write it, and attention by kernels the forward chooses itself.

Both give the curvature of the same network written plainly.
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import gelu, scaled_dot_product_attention
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import spiritlevel as sl
from tests.engine.passes.foolers import CLASSES, dense_hessian, right_or_refused, sorted_data

Blocks = Callable[[nn.Sequential, Tensor], Tensor]


@pytest.fixture(autouse=True)
def drawn() -> None:
    torch.manual_seed(0)


# --- checkpointing ----------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + gelu(self.linear(self.norm(x)))


class Stack(nn.Module):
    """Blocks that are recomputed in one form or another, in training mode alone where that is how it is written."""

    def __init__(self, through: Blocks) -> None:
        super().__init__()
        self.blocks, self.head, self.through = nn.Sequential(Block(), Block()), nn.Linear(4, CLASSES), through
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.through(self.blocks, x))


def plainly(blocks: nn.Sequential, x: Tensor) -> Tensor:
    return blocks(x)


def each(blocks: nn.Sequential, x: Tensor, **options: Any) -> Tensor:
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False, **options)
    return x


def nested(blocks: nn.Sequential, x: Tensor) -> Tensor:
    return checkpoint(lambda h: each(blocks, h), x, use_reentrant=False)


def products_kept(context: object, operation: object, *arguments: object, **named: object) -> CheckpointPolicy:
    kept = operation == torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def captured(blocks: nn.Sequential, x: Tensor) -> Tensor:
    """What is recomputed uses a tensor that it is not handed."""
    first = blocks[0](x)
    return checkpoint(lambda h: blocks[1](h) * first, x, use_reentrant=False)


FORMS: dict[str, Blocks] = {
    "each block": each,
    "nested": nested,
    "sequence": lambda blocks, x: checkpoint_sequential(blocks, 2, x, use_reentrant=False),
    "selective": functools.partial(
        each, context_fn=functools.partial(create_selective_checkpoint_contexts, products_kept)
    ),
    "never stopped early": functools.partial(each, early_stop=False),
    "captured": captured,
}


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("form", FORMS)
def test_checkpointing_in_any_form_changes_no_number(form: str, mode: str) -> None:
    model, data = Stack(FORMS[form]), sorted_data()
    plain = Stack((lambda blocks, x: blocks[1](x) * blocks[0](x)) if form == "captured" else plainly)
    plain.load_state_dict(model.state_dict())
    truth = dense_hessian(plain, *data)
    report = right_or_refused(model, data, truth, mode=mode)
    assert report is not None
    assert report["hessian_top_eigenvalue"].status == "ok"
    assert not any("differences" in note for note in report.header.notes)
    for strategy in ("looped", "batched", "forward"):
        matrix = sl.operators.HessianOperator(sl.Problem(model, data, mode=mode), strategy=strategy)
        torch.testing.assert_close(matrix @ truth[0], truth @ truth[0], rtol=1e-9, atol=1e-12)
        assert matrix.products.strategy == strategy


def test_checkpointing_by_a_wrapper_changes_no_number() -> None:
    wrapping = pytest.importorskip("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
    model, data = Stack(plainly), sorted_data()
    truth = dense_hessian(model, *data)
    model.blocks = nn.Sequential(*(wrapping.checkpoint_wrapper(block) for block in model.blocks))
    assert right_or_refused(model, data, truth) is not None


# --- attention --------------------------------------------------------------------------------------------------------


class Attending(nn.Module):
    """Attention over three positions; ``kernel`` says by what it is computed."""

    def __init__(self, kernel: str) -> None:
        super().__init__()
        self.kernel, self.embed, self.head = kernel, nn.Linear(4, 12), nn.Linear(4, CLASSES)
        self.mixed = nn.MultiheadAttention(4, 2, batch_first=True) if kernel.startswith("module") else None
        self.double()

    def attended(self, h: Tensor) -> Tensor:
        q, k, v = (part.unsqueeze(1) for part in (h, h.sin(), h.tanh()))
        if self.mixed is not None:
            return self.mixed(h, h.sin(), h.tanh(), need_weights=False)[0]
        if self.kernel == "operation":
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0].squeeze(1)
        return scaled_dot_product_attention(q, k, v).squeeze(1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).unflatten(1, (3, 4))
        if self.kernel.endswith("chosen"):
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return self.head((h + self.attended(h)).mean(1))
        return self.head((h + self.attended(h)).mean(1))


def truth_of(kernel: str, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    plain = Attending("module" if kernel.startswith("module") else "")
    plain.load_state_dict(model.state_dict())
    with sdpa_kernel(SDPBackend.MATH):
        return dense_hessian(plain, x, y)


@pytest.mark.parametrize("kernel", ["", "chosen", "module", "module chosen"])
def test_a_fused_kernel_gives_way_to_the_mathematical_one(kernel: str) -> None:
    model, data = Attending(kernel), sorted_data()
    truth = truth_of(kernel, model, *data)
    report = right_or_refused(model, data, truth)
    assert report is not None
    assert any("mathematical kernel" in note for note in report.header.notes) == kernel.endswith("chosen")
    for strategy in ("looped", "batched", "forward"):
        matrix = sl.operators.HessianOperator(sl.Problem(model, data), strategy=strategy)
        torch.testing.assert_close(matrix @ truth[0], truth @ truth[0], rtol=1e-9, atol=1e-12)
        assert matrix.path.label == "double backward"


def test_a_fused_kernel_called_by_its_own_name_takes_differences_and_says_so() -> None:
    model, data = Attending("operation"), sorted_data()
    truth = truth_of("operation", model, *data)
    report = right_or_refused(model, data, truth)
    assert report is not None
    assert any("no second derivative" in note for note in report.header.notes)
    assert "finite differences" in report["hessian_top_eigenvalue"].details["path"]
    torch.testing.assert_close(sl.Problem(model, data).hessian @ truth[0], truth @ truth[0], rtol=1e-6, atol=1e-9)


def test_the_kernels_that_were_allowed_are_allowed_again() -> None:
    kinds = torch.backends.cuda
    before = kinds.flash_sdp_enabled(), kinds.mem_efficient_sdp_enabled(), kinds.math_sdp_enabled()
    sl.measure(Attending("chosen"), sorted_data(), "hessian_top_eigenvalue")
    assert (kinds.flash_sdp_enabled(), kinds.mem_efficient_sdp_enabled(), kinds.math_sdp_enabled()) == before

"""Proof on the example: a map that claims to keep the function is run beside the original, or it is refused."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.analyses.symmetries.tracing import as_call, copied, in_mode
from spiritlevel.inputs.torch_internals import trees
from spiritlevel.values.errors import SpiritlevelError

# Relative to the largest output. Rounding of the factors and of sums taken in another size of terms: a few
# thousand units in the last place leave room for depth, none for a wrong factor.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}


def tolerance(dtype: torch.dtype) -> float:
    """Return the relative difference up to which two outputs of this type count as equal."""
    return TOLERANCE.get(dtype, 1e-4)


def outputs(model: nn.Module, example: Any, mode: str = "eval") -> list[Tensor]:
    """Return every tensor a copy of the model puts out on the example, in order."""
    args, kwargs = as_call(example)
    runnable = in_mode(copied(model), mode)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
        result = runnable(*args, **kwargs)
    return [leaf.detach() for leaf in trees.leaves(_as_tree(result)) if isinstance(leaf, Tensor)]


def difference(expected: list[Tensor], found: list[Tensor], alpha: float = 1.0) -> tuple[float, float]:
    """Return the largest relative difference from α times the expected outputs, and the tolerance of their type."""
    worst, allowed = 0.0, tolerance(torch.float64)
    for before, after in zip(expected, found, strict=True):
        if not before.is_floating_point():
            worst = max(worst, 0.0 if torch.equal(before, after) else float("inf"))
            continue
        if before.numel() == 0:
            continue
        target = alpha * before.double()
        error = (after.double() - target).abs().max() / target.abs().max().clamp_min(torch.finfo(before.dtype).tiny)
        worst = max(worst, float(error) if torch.isfinite(error) else float("inf"))
        allowed = max(allowed, tolerance(before.dtype))
    return worst, allowed


def prove(
    original: nn.Module, changed: nn.Module, example: Any, *, alpha: float = 1.0, mode: str = "eval", advice: str = ""
) -> float:
    """Compare outputs on the example and return their relative difference; raise where it exceeds the tolerance."""
    expected = outputs(original, example, mode)
    worst, allowed = difference(expected, outputs(changed, example, mode), alpha)
    if worst <= allowed:
        return worst
    again, _ = difference(expected, outputs(original, example, mode))
    if again > allowed:
        raise SpiritlevelError(
            f"two runs of the model on the example differ by {again:.1e}, so equality of outputs cannot be proven; "
            "switch off what is random in its forward pass"
        )
    kept = "the same" if alpha == 1 else f"{alpha:g} times the original"
    raise SpiritlevelError(
        f"the outputs on the example are not {kept}: they differ by {worst:.1e} relative to the largest, more than the "
        f"{allowed:.0e} that rounding allows; {advice or 'use milder factors or a float64 model'}"
    )


def _as_tree(result: Any) -> Any:
    """Open the output classes of other libraries, which are mappings or dataclasses."""
    if hasattr(result, "to_tuple"):
        return result.to_tuple()
    return vars(result) if hasattr(result, "__dataclass_fields__") else result

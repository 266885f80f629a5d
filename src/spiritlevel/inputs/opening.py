"""Opening a model: the network inside its wrappers, on the device and in the dtype asked for, and what may move."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from spiritlevel.inputs.sharding import is_sharded, put_at_rest
from spiritlevel.inputs.torch_internals.compiling import network_inside
from spiritlevel.values.errors import SpiritlevelError, UsageError, near_names

HALF = (torch.float16, torch.bfloat16)
PRECISIONS = ("float32", "tf32", "bfloat16")  # of Gauss–Newton sums


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside DataParallel, DistributedDataParallel and torch.compile wrappers."""
    while True:
        inner = network_inside(model)
        if inner is None and isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def open_model(
    model: nn.Module, device: str | torch.device | None, dtype: str | torch.dtype | None
) -> tuple[nn.Module, list[str]]:
    """Return the network to measure, the given one or a copy on another device or in another dtype, and notes on it."""
    model, notes = unwrap(model), list[str]()
    tensors = list(model.parameters())
    if not tensors:
        raise SpiritlevelError(
            f"{type(model).__name__} has no parameters, so there is no minimum to measure; pass the trained network"
        )
    if any(isinstance(tensor, nn.parameter.UninitializedParameter) for tensor in tensors):
        raise SpiritlevelError("the model has lazy parameters that were never used; run it once on a batch first")
    if any(tensor.is_meta for tensor in (*tensors, *model.buffers())):
        raise SpiritlevelError(
            "the model is on the meta device, which holds shapes and no numbers; build it on a device, or call "
            "model.to_empty(device='cpu') and load its weights"
        )
    wanted_dtype = as_torch_dtype(dtype, "'float32' or 'float64'", "; half precision cannot carry curvature")
    if is_sharded(tensors):
        _refuse_copies_of_shards(tensors, wanted_dtype, _as_device(device))
        put_at_rest(model)
        return model, notes
    kinds = {tensor.dtype for tensor in tensors}
    if any(kind.is_complex for kind in kinds):
        raise SpiritlevelError(
            "the model has complex parameters, for which no Hessian is defined here; give real and imaginary parts as "
            "parameters of their own"
        )
    if wanted_dtype is None and (kinds & set(HALF) or len(kinds) > 1):
        wanted_dtype = torch.float64 if torch.float64 in kinds else torch.float32
        found = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        copied = str(wanted_dtype).removeprefix("torch.")
        notes.append(f"The model's {found} weights are measured on a copy in {copied}.")
    wanted_device = _as_device(device)
    made_for_inference = any(tensor.is_inference() for tensor in tensors)  # these can take no gradients
    if made_for_inference:
        notes.append("The model was made in inference mode and is measured on a copy.")
    if (
        not made_for_inference
        and (wanted_dtype is None or kinds == {wanted_dtype})
        and (wanted_device is None or all(_same_device(tensor.device, wanted_device) for tensor in tensors))
    ):
        return model, notes
    try:
        with torch.inference_mode(False):
            return copy.deepcopy(model).to(device=wanted_device, dtype=wanted_dtype), notes
    except Exception as error:
        raise SpiritlevelError(
            f"the model could not be copied to {wanted_device or 'its device'} as {wanted_dtype or 'its dtype'} "
            f"({type(error).__name__}: {error}); convert it yourself and pass that"
        ) from error


def _refuse_copies_of_shards(
    tensors: list[nn.Parameter], dtype: torch.dtype | None, device: torch.device | None
) -> None:
    """Refuse to measure a sharded model in another precision or elsewhere: no copy of it is made."""
    kinds = {tensor.dtype for tensor in tensors}
    wanted = {dtype or torch.float32} if dtype or kinds & set(HALF) or len(kinds) > 1 else kinds
    if kinds != wanted:
        found = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise UsageError(
            f"the model is sharded and holds {found} weights, and no copy of a sharded model is made; convert it to "
            f"{str(next(iter(wanted))).removeprefix('torch.')} before fully_shard"
        )
    if device is not None and not all(_same_device(tensor.device, device) for tensor in tensors):
        raise UsageError(f"the model is sharded on {tensors[0].device}, and is measured there: leave device away")


def as_torch_dtype(dtype: str | torch.dtype | None, choice: str, reason: str = "") -> torch.dtype | None:
    """Return float32 or float64 from itself or its name, None for None; what else is given is refused in words."""
    if dtype is None or isinstance(dtype, torch.dtype):
        found = dtype
    else:
        found = getattr(torch, str(dtype).removeprefix("torch."), None)
    if dtype is not None and found not in (torch.float32, torch.float64):
        raise UsageError(f"dtype must be {choice}, not {dtype!r}{reason}")
    return found


def checked_precision(precision: str, model: nn.Module) -> str:
    """Return the arithmetic that Gauss–Newton sums may be in, refusing what is none, or finer numbers cut down."""
    if precision not in PRECISIONS:
        said = "; it is that of Gauss–Newton sums alone, because half precision cannot carry curvature"
        raise UsageError(f"precision must be {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}, not {precision!r}{said}")
    if precision != "float32" and next(model.parameters()).dtype == torch.float64:
        raise UsageError(
            f"precision={precision!r} makes sums quicker and coarser than float32, but the model is measured in "
            "float64, which is asked for where float32 is too coarse; leave one of them out"
        )
    return precision


def _as_device(device: str | torch.device | None) -> torch.device | None:
    if device is None:
        return None
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"device {device!r} is not understood; give 'cpu', 'cuda' or 'cuda:1'") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {str(device)!r} was asked for, but torch sees no CUDA device here; use 'cpu'")
    return found


def _same_device(a: torch.device, b: torch.device) -> bool:
    return a.type == b.type and (b.index is None or a.index == b.index)


def choose_parameters(model: nn.Module, patterns: str | list[str] | tuple[str, ...] | None) -> dict[str, Tensor]:
    """Return the parameters that may move, by name; none of them may hold anything but finite numbers."""
    named = _named(model, patterns)
    chosen = {name: tensor for name, tensor in named.items() if tensor.numel()}  # the others have no direction to move
    if not chosen:
        raise SpiritlevelError(
            f"every chosen parameter is empty ({', '.join(list(named)[:3])} of no entries), so there is nothing to "
            "measure; choose others"
        )
    if not is_sharded(chosen.values()):  # of which a part lies here: all ranks look together when measuring begins
        refuse_non_finite(chosen)
    return chosen


def _named(model: nn.Module, patterns: str | list[str] | tuple[str, ...] | None) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    if patterns is None:
        chosen: dict[str, Tensor] = {name: tensor for name, tensor in named.items() if tensor.requires_grad}
        if not chosen:
            raise SpiritlevelError(
                "every parameter of the model is frozen (requires_grad is False); pass parameters='*' for all"
            )
        return chosen
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    if not wanted:
        raise UsageError("parameters names no parameter; give name patterns such as '*.weight', or None for all")
    for pattern in wanted:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in named):
            some = f"; there are {', '.join(list(named)[:3])}{', …' if len(named) > 3 else ''}"
            raise UsageError(f"no parameter is named {pattern!r}{near_names(pattern, named) or some}")
    return {name: t for name, t in named.items() if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)}


def refuse_non_finite(parameters: Mapping[str, Tensor]) -> None:
    """Refuse parameters that hold anything but finite numbers."""
    finite = [torch.isfinite(tensor.detach()).all() for tensor in parameters.values()]
    if len({tensor.device for tensor in finite}) == 1:  # a GPU is waited for once
        finite = torch.stack(finite).tolist()
    for (name, tensor), sound in zip(parameters.items(), finite):
        if not sound:
            bad = int((~torch.isfinite(tensor.detach())).sum())
            raise SpiritlevelError(
                f"parameter {name} holds {bad:,} values that are NaN or infinite, so there is no curvature there; "
                "use a checkpoint from before training diverged"
            )

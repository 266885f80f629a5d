"""Fitting named tensors to a model: which name goes where, whether every one has a place, and only then the copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from spiritlevel.inputs.torch_internals.compiling import WRAPPED, network_inside
from spiritlevel.inputs.torch_internals.modules import unsaved_buffers
from spiritlevel.inputs.weights.safe_pickle import shown
from spiritlevel.values.errors import UsageError

_COMPILED = f"{WRAPPED}."
PREFIXES = ("module.", _COMPILED, "model.", "net.")
# Nobody wraps a network so often; a name may be made of nothing but prefixes.
_MOST_PREFIXES = 16


@dataclass(frozen=True)
class Fit:
    """Where each tensor of a file goes in a model, and what stands in the way."""

    prefixes: tuple[str, ...]
    places: dict[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def own_tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the tensors that a model's state dict names, and the buffers that it keeps out of it.

    Wrappers are looked through, so the names are those of the network itself.
    """
    while (inner := _wrapped(model)) is not None:
        model = inner
    saved: dict[str, Tensor] = {}
    unsaved: dict[str, Tensor] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = (path + "." if path else "").replace(_COMPILED, "")
        own = module.named_parameters(recurse=False, remove_duplicate=False)
        buffers = module.named_buffers(recurse=False, remove_duplicate=False)
        left_out = unsaved_buffers(module)
        for name, tensor in (*own, *buffers):
            (unsaved if name in left_out else saved)[prefix + name] = tensor
    for name, tensor in saved.items():
        if is_lazy(tensor) or tensor.is_meta:
            raise UsageError(
                f"{name} of the model has no data yet; run the model on one batch, or build it on a real device"
            )
        if any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride())):
            raise UsageError(f"{name} of the model is an expanded view that cannot be written; make it contiguous")
    return saved, unsaved


def _wrapped(model: nn.Module) -> nn.Module | None:
    return model.module if isinstance(model, DataParallel | DistributedDataParallel) else network_inside(model)


def fit_names(tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor], unsaved: Mapping[str, Tensor]) -> Fit:
    """Return the fit with the fewest prefixes removed under which every name has a place, or else the closest one."""
    fits = [_compare(places, prefixes, tensors, saved, unsaved) for places, prefixes in _renamings(tensors, saved)]
    return min(fits, key=lambda fit: len(fit.missing) + len(fit.unexpected))


def _renamings(
    tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor]
) -> Iterator[tuple[dict[str, str], tuple[str, ...]]]:
    """Yield the names as they are, then with one more prefix off that they all share."""
    places = {name: name for name in tensors}
    # torch's AveragedModel counts its updates beside the network it wraps.
    if (
        len(places) > 1
        and "n_averaged" not in saved
        and all(n == "n_averaged" or n.startswith("module.") for n in places)
    ):
        places.pop("n_averaged", None)
    prefixes: tuple[str, ...] = ()
    while len(prefixes) <= _MOST_PREFIXES:
        yield places, prefixes
        prefix = next((p for p in PREFIXES if all(n.startswith(p) and n != p for n in places.values())), None)
        if prefix is not None:
            shorter = {source: name.removeprefix(prefix) for source, name in places.items()}
        else:
            # torch.compile on a part of the network leaves its prefix in the middle of the names of that part.
            prefix = _COMPILED
            shorter = {source: name.replace("." + _COMPILED, ".") for source, name in places.items()}
            shorter = {source: name.removeprefix(_COMPILED) for source, name in shorter.items()}
        if shorter == places or len(set(shorter.values())) < len(shorter):
            return
        places, prefixes = shorter, (*prefixes, prefix)


def _compare(
    places: dict[str, str],
    prefixes: tuple[str, ...],
    tensors: Mapping[str, Tensor],
    saved: Mapping[str, Tensor],
    unsaved: Mapping[str, Tensor],
) -> Fit:
    """Return what is missing and unexpected under one way of naming."""
    present = set(places.values())
    filled = {_memory(saved[name]) for name in present if name in saved}
    missing = tuple(
        name
        for name, tensor in saved.items()
        # One tensor under two names is filled by either; BatchNorm before torch 0.4.1 did not count its batches.
        if name not in present and _memory(tensor) not in filled and name.split(".")[-1] != "num_batches_tracked"
    )
    unexpected = tuple(
        source
        for source, name in places.items()
        # A constant that older versions of the network wrote into the file changes nothing.
        if name not in saved and not (name in unsaved and _equal(unsaved[name].cpu(), tensors[source]))
    )
    known = {source: name for source, name in places.items() if name in saved}
    return Fit(prefixes, known, missing, unexpected)


def describe_misfit(fit: Fit, tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> str:
    """Return in words everything that keeps the tensors from being copied, or nothing if they fit."""
    shapes, kinds, torn = [], [], []
    written: dict[object, str] = {}
    for source, name in fit.places.items():
        given, wanted = tensors[source], saved[name]
        if given.shape != wanted.shape and not (wanted.dim() == 0 and given.numel() == 1):
            shapes.append(f"{shown(name)}: {tuple(given.shape)} in the file, {tuple(wanted.shape)} in the model")
        elif not _same_kind(given.dtype, wanted.dtype):
            kinds.append(f"{shown(name)}: {_dtype(given)} in the file, {_dtype(wanted)} in the model")
        elif not _equal(tensors[written.setdefault(_memory(wanted), source)], given):
            torn.append(f"{fit.places[written[_memory(wanted)]]} and {name}")
    complaints = (
        (fit.missing, "{} missing"),
        (fit.unexpected, "{} unexpected"),
        (shapes, "{} of another shape"),
        (kinds, "{} of another kind of number"),
        (torn, "{} shared in the model but different in the file"),
    )
    return ", ".join(
        words.format(f"{len(names)} {'name' if len(names) == 1 else 'names'}") + f" ({_first_three(names)})"
        for names, words in complaints
        if names
    )


def copy_weights(fit: Fit, tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Write every tensor into its place, in the type and on the device the model has."""
    with torch.no_grad():
        for source, name in fit.places.items():
            saved[name].copy_(tensors[source].reshape(saved[name].shape))


def _memory(tensor: Tensor) -> object:
    """Return what two names of the same tensor have in common."""
    if tensor.numel() == 0:
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _same_kind(given: torch.dtype, wanted: torch.dtype) -> bool:
    """Say whether a cast keeps the meaning: integers in place of weights are quantised, their scale lies elsewhere."""
    if given.is_complex != wanted.is_complex:
        return wanted.is_complex and given.is_floating_point
    return given.is_floating_point or not wanted.is_floating_point


def _equal(a: Tensor, b: Tensor) -> bool:
    """Say whether two tensors are the same, not-a-number included."""
    return a is b or (a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all()))


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _first_three(names: tuple[str, ...] | list[str]) -> str:
    return "; ".join(map(shown, names[:3])) + (f"; and {len(names) - 3} more" if len(names) > 3 else "")

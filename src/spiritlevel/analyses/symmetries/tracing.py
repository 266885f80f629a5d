"""The graph of operations one forward pass runs, with every parameter and buffer under its own name."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from spiritlevel.inputs.process.composite_operations import without_encoder_fast_path
from spiritlevel.inputs.process.precision import without_autocast
from spiritlevel.inputs.process.scope import hold, process_scope
from spiritlevel.inputs.torch_internals import hooks, trees
from spiritlevel.inputs.torch_internals.base_classes import NORMS
from spiritlevel.inputs.torch_internals.compiling import network_inside
from spiritlevel.values.errors import SpiritlevelError, UsageError


@dataclass(frozen=True)
class Trace:
    """A graph over ATen operations; ``stored`` maps placeholder names to the tensors of the model they stand for."""

    graph: torch.fx.Graph
    stored: dict[str, str]
    buffers: frozenset[str]


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the network inside torch.compile, DataParallel and DistributedDataParallel wrappers."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif (inner := network_inside(model)) is not None:
            model = inner
        else:
            return model


def copied(model: nn.Module) -> nn.Module:
    """Return a deep copy, so that the user's model is never touched."""
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise SpiritlevelError(
            f"the model cannot be copied ({type(error).__name__}: {error}), and a rescaled model is a changed copy; "
            "remove from it what copy.deepcopy refuses, such as stored activations"
        ) from error


def in_mode(model: nn.Module, mode: str) -> nn.Module:
    """Put a copy in eval mode; with ``mode="train"`` its normalisations use the statistics of the batch."""
    if mode not in ("eval", "train"):
        raise UsageError(f"mode is {mode!r}; it is 'eval' or 'train'")
    model.eval()
    if mode == "train":
        for module in model.modules():
            if isinstance(module, NORMS):
                module.train()
    return model


def as_call(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Read an example as the arguments of one call: a tensor, a tuple of inputs, or a dict of keyword inputs."""
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, dict):
        return (), dict(example)
    if isinstance(example, tuple | list) and example:
        return tuple(example), {}
    raise UsageError(
        f"example is a {type(example).__name__}; give a batch of inputs: a tensor, a tuple of positional inputs "
        "or a dict of keyword inputs"
    )


def trace_model(model: nn.Module, example: Any) -> Trace:
    """Trace a model (already a copy, in its mode) on an example, or raise what stopped every way of tracing.

    The graph is read on the first two samples where the model accepts them: the labels of every activation are then
    small, and scales never differ between samples.
    """
    failure: Exception | None = None
    for way in (_by_export, _by_make_fx):
        for call in (_first_samples(example), as_call(example)):
            try:
                with _quietly():
                    return way(model, *call)
            except Exception as error:
                failure = failure or error
    assert failure is not None
    raise failure


# torch keeps something of every graph it exports for as long as the process lives, so a network is traced once.
_known: WeakKeyDictionary[nn.Module, tuple[str, Trace]] = WeakKeyDictionary()


def traced_once(model: nn.Module, runnable: nn.Module, example: Any) -> Trace:
    """Return the trace of ``runnable``, a copy of ``model`` in its mode; the one of before where nothing changed since.

    What may change a graph is what the modules are, the shapes of their tensors and of the example, and plain values
    among their attributes.
    """
    structure = _structure(runnable, example)
    known = _known.get(model)
    if known is None or known[0] != structure:
        known = _known[model] = structure, trace_model(runnable, example)
    return known[1]


def _structure(model: nn.Module, example: Any) -> str:
    plain = (bool, int, float, str, tuple, type(None))
    lines = []
    for name, module in model.named_modules():
        values = {key: value for key, value in vars(module).items() if isinstance(value, plain)}
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        shapes = [(key, tuple(tensor.shape), str(tensor.dtype), str(tensor.device)) for key, tensor in own]
        values |= {key: id(getattr(value, "__code__", value)) for key, value in vars(module).items() if callable(value)}
        own_hooks = [id(hook) for hook in hooks.forward_hooks(module)]
        lines.append(f"{name} {type(module).__qualname__} {id(type(module))} {values} {shapes} {own_hooks}")
    leaves, layout = trees.flatten(as_call(example))
    inputs = [(tuple(leaf.shape), str(leaf.dtype)) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves]
    return "\n".join([*lines, str(layout), str(inputs)])


def _first_samples(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    call = as_call(example)
    tensors = [leaf for leaf in trees.leaves(call) if isinstance(leaf, Tensor)]
    sizes = {t.shape[0] if t.dim() else 0 for t in tensors}
    if len(sizes) != 1 or sizes.pop() <= 2:
        return call
    first: tuple[tuple[Any, ...], dict[str, Any]] = trees.mapped(
        lambda leaf: leaf[:2] if isinstance(leaf, Tensor) else leaf, call
    )
    return first


def _by_export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Trace:
    program = torch.export.export(model, args, kwargs, strict=False)
    signature = program.graph_signature
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    return Trace(program.graph, _one_name_each(model, stored), frozenset(signature.inputs_to_buffers.values()))


def _by_make_fx(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Trace:
    from torch.fx.experimental.proxy_tensor import make_fx

    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names, inputs = list(tensors), trees.flatten((args, kwargs))
    leaves, structure = inputs

    def call(*flat: Any) -> Any:
        state = dict(zip(names, flat))
        args, kwargs = trees.unflatten(list(flat[len(names) :]), structure)
        return trees.leaves(torch.func.functional_call(model, state, args, kwargs))

    graph = make_fx(call, pre_dispatch=True)(*tensors.values(), *leaves).graph
    placeholders = [node.name for node in graph.nodes if node.op == "placeholder"]
    return Trace(graph, dict(zip(placeholders, names)), frozenset(dict(model.named_buffers())))


def _one_name_each(model: nn.Module, stored: dict[str, str]) -> dict[str, str]:
    """Give a tensor registered under several names (tied weights) its first name everywhere."""
    first: dict[int, str] = {}
    alias: dict[str, str] = {}
    for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            alias[name] = first.setdefault(id(tensor), name)
    return {placeholder: alias.get(name, name) for placeholder, name in stored.items()}


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Trace without printing, without warnings, and without moving the random state."""
    with (
        process_scope(),
        without_autocast(),
        _without_log(),
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=[]),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        torch.enable_grad(),
    ):
        hold("no encoder fast path", without_encoder_fast_path)
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)

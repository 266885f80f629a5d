"""Layers that store their weight with the inputs first, y = xW + b, as Hugging Face's Conv1D does: found by trying.

Names are not trusted.  A module of nobody's library that owns one matrix, and at most one vector beside it, is run on
random numbers with random parameters in a copy of its own; what it gives tells which way round the matrix is stored.
"""

from __future__ import annotations

import warnings
import weakref
from functools import partial

import torch
from torch import Tensor, nn

from spiritlevel.inputs.process.random_state import kept_random_state
from spiritlevel.inputs.process.scope import process_scope
from spiritlevel.inputs.torch_internals.modules import with_parameters

_known: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


def is_input_first(module: nn.Module) -> bool:
    """Whether the module's matrix has a row for each input: its output is xW + b."""
    return storage_order(module) == "inputs first"


def storage_order(module: nn.Module) -> str:
    """Return "outputs first" (torch's own layers), "inputs first", or nothing where trying does not tell."""
    if type(module).__module__.startswith("torch."):
        return "outputs first"
    if module not in _known:
        _known[module] = _tried(module)
    return _known[module]


def _tried(module: nn.Module) -> str:
    own = dict(module.named_parameters(recurse=False))
    matrices = [name for name, tensor in own.items() if tensor.ndim == 2]
    if len(matrices) != 1 or len(own) > 2 or any(module.children()) or any(True for _ in module.buffers()):
        return ""
    weight = own.pop(matrices[0])
    if any(tensor.ndim != 1 for tensor in own.values()) or weight.numel() == 0:
        return ""
    # Random parameters, because those at hand may be zero or symmetric and fit both ways.
    generator = torch.Generator(weight.device).manual_seed(0)  # where they are used: there may be millions
    draw = partial(torch.randn, generator=generator, dtype=torch.float64, device=weight.device)
    matrix, *vector = (draw(shape) for shape in (weight.shape, *(tensor.shape for tensor in own.values())))
    parameters = {matrices[0]: matrix, **dict(zip(own, vector))}
    for words, product in (("inputs first", matrix), ("outputs first", matrix.T)):
        inputs = draw((2, 3, len(product)))
        if vector and len(vector[0]) != product.shape[1]:
            continue
        expected = inputs @ product + (vector[0] if vector else 0.0)
        found = _run(module, parameters, inputs)
        if found is not None and found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-9):
            return words
    return ""


def _run(module: nn.Module, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor | None:
    """Return what the module's forward gives with other parameters; neither it nor its hooks see anything of that."""
    try:
        trial = with_parameters(module, parameters)
        with process_scope(), torch.no_grad(), kept_random_state(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = trial.forward(inputs)
    except Exception:  # it is no such layer, and may raise what it likes
        return None
    return found if isinstance(found, Tensor) else None

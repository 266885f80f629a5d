"""A generic point near the parameters and a direction from it, where derivatives are held against differences."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from spiritlevel.engine.estimators.probes import seeded_generator
from spiritlevel.engine.operators.convolutions import LinearConvolutions
from spiritlevel.engine.operators.piecewise_linear import PiecewiseLinear
from spiritlevel.inputs.contents import Content, map_tensors
from spiritlevel.inputs.open_problem import OpenProblem

# Small steps cross no kink; large ones are for networks that compute some operations in float32 whatever they get.
# A network of hundreds of layers has so many kinks and so much curvature that only the last steps cross none of them.
STEPS = {torch.float64: (1e-6, 1e-8, 1e-9, 1e-4, 1e-3, 1e-2, 1e-10, 1e-11), torch.float32: (3e-3, 1e-2, 1e-3, 3e-2)}
# What derivatives may differ by: as long as differences are sharp, and at the most.
SHARP, TOLERANCE = 1e-5, {torch.float64: 2e-3, torch.float32: 0.1}
ROUNDINGS = 200.0
# How far the point lies from the parameters, in their own size: away from whatever is special about them, or so close
# that a function which asks for values takes the same branches as there.
AWAY, CLOSE_BY = 0.1, 1e-4
# Entries of tensors that are zero (biases, gates at the start) move by this much of one.
SMALLEST_SCALE = 1e-3
DRAWN = 65_537  # numbers, a prime: rows of no layer have that length


class GenericPoint:
    """Parameters moved a little, in one dtype, and a direction from there with entries of the parameters' own size.

    Both are made when they are asked for, tensor by tensor: of a large model nothing of its size is held in float64.
    """

    def __init__(self, problem: OpenProblem, dtype: torch.dtype, distance: float = AWAY) -> None:
        self.problem, self.dtype, self.distance = problem, dtype, distance
        self.in_part = False  # some operation was computed in another dtype
        chosen = problem.chosen_parameters
        fixed = {n: tensor.detach() for n, tensor in problem.model.named_parameters() if n not in chosen}
        self._fixed = {name: self._cast(tensor) for name, tensor in fixed.items()}
        self._buffers = {name: tensor.detach() for name, tensor in problem.model.named_buffers()}
        norms = [torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64) for tensor in problem.tensors]
        sizes = (
            torch.stack(norms) / torch.tensor([tensor.numel() for tensor in problem.tensors]).sqrt().to(norms[0])
        ).tolist()
        self.scales = {
            name: max(size, SMALLEST_SCALE) if size == size else SMALLEST_SCALE  # a tensor may hold no numbers
            for name, size in zip(problem.parameters, sizes)
        }
        # How many times further than its own size a tensor moves along the direction.
        self.further = dict.fromkeys(self.scales, 1.0)
        self._padding = padding_rows(problem)
        # No more than are needed for nothing to line up: drawing millions would take longer than the check.
        generator = seeded_generator(problem.seed, 7)
        drawn = torch.randn(2, min(problem.size, DRAWN), generator=generator, dtype=torch.float64)
        self._drawn = drawn.to(problem.device, dtype)
        places = itertools.accumulate((tensor.numel() for tensor in problem.tensors), initial=0)
        self._places = dict(zip(problem.parameters, places))

    def _numbers(self, name: str) -> Tensor:
        """Return (2, n) numbers for a tensor: how its entries move away, and along; taken again where they are more."""
        count, most = self.problem.chosen_parameters[name].numel(), self._drawn.shape[1]
        first = self._places[name] % most
        if first + count > most:
            return self._drawn.roll(-first, 1)[:, :count]
        return self._drawn[:, first : first + count]

    def direction(self, name: str) -> Tensor:
        """Return a tensor's part of the direction."""
        tensor = self.problem.chosen_parameters[name]
        along = torch.zeros(tensor.shape, dtype=self.dtype, device=tensor.device)
        _add_repeated(along, self.further[name] * self.scales[name] * self._numbers(name)[1])
        if name in self._padding:
            along[self._padding[name]] = 0.0
        return along

    def slopes(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the inner product of each tensor, such as its gradient, with its part of the direction."""
        return torch.stack([self._slope(name, part) for name, part in zip(self.scales, parts)])

    def _slope(self, name: str, part: Tensor) -> Tensor:
        if name in self._padding:
            part = part.clone()
            part[self._padding[name]] = 0.0
        drawn, flat = self._numbers(name)[1].to(part), part.reshape(-1)
        whole = len(flat) // max(len(drawn), 1) * len(drawn)
        found = (flat[:whole].view(-1, len(drawn)) @ drawn).sum() + torch.dot(flat[whole:], drawn[: len(flat) - whole])
        return self.further[name] * self.scales[name] * found.double()

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def cast(self, content: Content) -> Content:
        """Return a batch in this dtype."""
        return map_tensors(content, self._cast)

    def moved(self, step: float) -> dict[str, Tensor]:
        """Return the parameters a step along the direction."""
        return {name: self._moved(name, tensor, step) for name, tensor in self.problem.chosen_parameters.items()}

    def _moved(self, name: str, tensor: Tensor, step: float) -> Tensor:
        away, along = self._numbers(name)
        here = tensor.detach().to(self.dtype, copy=True, memory_format=torch.contiguous_format)
        away, along = self.scales[name] * self.distance * away, self.scales[name] * self.further[name] * step * along
        if name not in self._padding:
            _add_repeated(here, away + along)
            return here
        _add_repeated(here, away)
        row = here[self._padding[name]].clone()
        _add_repeated(here, along)
        here[self._padding[name]] = row
        return here

    def leaves(self, step: float = 0.0) -> dict[str, Tensor]:
        """Return the same as leaves that take gradients."""
        return {name: tensor.requires_grad_() for name, tensor in self.moved(step).items()}

    def outputs(self, content: Content, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the model's outputs at some parameters."""
        self.problem.watch.dtypes.clear()
        buffers = {name: self._cast(tensor).clone() for name, tensor in self._buffers.items()}
        with LinearConvolutions(), PiecewiseLinear():  # as products take them
            outputs = self.problem.outputs(content, {**self._fixed, **buffers, **parameters})
        self.in_part = bool(self.problem.watch.dtypes - {self.dtype})
        return outputs


def _add_repeated(tensor: Tensor, numbers: Tensor) -> None:
    """Add numbers to a tensor in place, from the first one again whenever they are used up."""
    if len(numbers) == 0:
        return
    flat = tensor.view(-1)
    whole = len(flat) // len(numbers) * len(numbers)
    flat[:whole].view(-1, len(numbers)).add_(numbers)
    flat[whole:].add_(numbers[: len(flat) - whole])


def padding_rows(problem: OpenProblem) -> dict[str, int]:
    """Return the rows of embeddings that do not move: torch sets their gradient to zero by definition."""
    found = {}
    for name, module in problem.model.named_modules():
        weight = f"{name}.weight" if name else "weight"
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and weight in problem.chosen_parameters:
            row = module.padding_idx
            if row is not None:
                found[weight] = int(row)
    return found

"""A generic point near the parameters and a direction from it, where derivatives are held against differences."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from spiritlevel.engine.estimators.probes import seeded_generator
from spiritlevel.engine.operators.convolutions import LinearConvolutions
from spiritlevel.engine.operators.pieces import LinearPieces
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
    """Parameters moved a little, in one dtype; ``direction`` has entries of the parameters' own size."""

    def __init__(self, problem: OpenProblem, dtype: torch.dtype, distance: float = AWAY) -> None:
        self.problem, self.dtype = problem, dtype
        self.in_part = False  # some operation was computed in another dtype
        model = problem.model
        chosen = problem.chosen_parameters
        self._fixed = {n: self._cast(tensor.detach()) for n, tensor in model.named_parameters() if n not in chosen}
        self._buffers = {name: tensor.detach() for name, tensor in model.named_buffers()}
        norms = [torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64) for tensor in problem.tensors]
        sizes = (
            torch.stack(norms) / torch.tensor([tensor.numel() for tensor in problem.tensors]).sqrt().to(norms[0])
        ).tolist()
        self.scales = {
            name: max(size, SMALLEST_SCALE) if size == size else SMALLEST_SCALE  # a tensor may hold no numbers
            for name, size in zip(problem.parameters, sizes)
        }
        self.point: dict[str, Tensor] = {}
        self.direction: dict[str, Tensor] = {}
        # All drawn at once: a GPU is handed them in one piece.  No more than are needed for nothing to line up: drawing
        # millions would take longer than the check.
        generator = seeded_generator(problem.seed, 7)
        drawn = torch.randn(2, min(problem.size, DRAWN), generator=generator, dtype=torch.float64)
        drawn = drawn.to(problem.device, dtype).repeat(1, -(-problem.size // DRAWN))[:, : problem.size]
        moved, along = (problem.unflatten(draw) for draw in drawn)
        for name, tensor in problem.chosen_parameters.items():
            self.point[name] = self._cast(tensor.detach()) + distance * self.scales[name] * moved[name]
            self.direction[name] = self.scales[name] * along[name]
        for name, row in padding_rows(problem).items():
            self.direction[name][row] = 0.0

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def cast(self, content: Content) -> Content:
        """Return a batch in this dtype."""
        return map_tensors(content, self._cast)

    def moved(self, step: float) -> dict[str, Tensor]:
        """Return the parameters a step along the direction."""
        return {name: tensor + step * self.direction[name] for name, tensor in self.point.items()}

    def leaves(self, step: float = 0.0) -> dict[str, Tensor]:
        """Return the same as leaves that take gradients."""
        return {name: tensor.requires_grad_() for name, tensor in self.moved(step).items()}

    def outputs(self, content: Content, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the model's outputs at some parameters."""
        self.problem.watch.dtypes.clear()
        buffers = {name: self._cast(tensor).clone() for name, tensor in self._buffers.items()}
        with LinearConvolutions(), LinearPieces():  # as products take them
            outputs = self.problem.outputs(content, {**self._fixed, **buffers, **parameters})
        self.in_part = bool(self.problem.watch.dtypes - {self.dtype})
        return outputs


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

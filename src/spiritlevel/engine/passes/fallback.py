"""Each sample's gradients without a rule: vectorised over samples, or one sample at a time where that fails."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.contents import map_tensors, slice_batch, tensors_of
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.survey import differ
from spiritlevel.inputs.torch_internals.backward import vjp
from spiritlevel.values.errors import SpiritlevelError

# Numbers of gradient formed at once, over all columns.
CHUNK_NUMBERS = 16_000_000


class Fallback:
    """Gradients of columns·outputs of each sample with respect to named parameters, by the general path."""

    def __init__(self, problem: OpenProblem, names: list[str]) -> None:
        self.problem = problem
        self.names = names
        self.vectorised = True  # until a model shows that it cannot be (LSTM and GRU raise under vmap)

    def gradients(self, batch: Batch, outputs: Tensor, columns: Tensor) -> Iterator[tuple[slice, dict[str, Tensor]]]:
        """Yield slices of the batch with their gradients {name: (K, b, *shape)} for columns (K, B, *outputs).

        A sample by itself must give the outputs it gives in its batch, and the samples' gradients must add up to the
        batch's own: torch's rules for mapping over samples are not right for every operation.
        """
        size = sum(self.problem.chosen_parameters[name].numel() for name in self.names)
        step = max(1, CHUNK_NUMBERS // (size * max(1, len(columns))))
        for start in range(0, batch.count, step):
            part = slice(start, min(start + step, batch.count))
            content, some = slice_batch(batch.content, part.start, part.stop), columns[:, part]
            yield part, self._of_slice(content, _Known(self, outputs, part, some), some)

    def _of_slice(self, content: Any, known: _Known, columns: Tensor) -> dict[str, Tensor]:
        if self.vectorised:
            try:
                with warnings.catch_warnings():
                    # torch warns where it would loop over the samples itself, one operation at a time.
                    warnings.filterwarnings("error", message=".*batching rule")
                    found, outputs = self._vectorised(content, columns)
                if known.agrees(found, outputs):
                    return found
            except Exception:  # vmap raises whatever the operation it cannot map raises
                pass
            self.vectorised = False
        found, outputs = self._one_by_one(content, columns)
        if not known.agrees(found, outputs):
            raise SpiritlevelError(
                "a sample alone gives other outputs or gradients than in its batch, so no sample has gradients of its "
                "own; make the model's outputs independent of the batch a sample comes in"
            )
        return found

    def _vectorised(self, content: Any, columns: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parameters = {name: self.problem.chosen_parameters[name].detach() for name in self.names}
        tensors = [tensor for tensor in tensors_of(content) if tensor.ndim]

        def one(column: Tensor, *values: Tensor) -> tuple[dict[str, Tensor], Tensor]:
            each = iter(values)
            again = map_tensors(content, lambda tensor: next(each)[None] if tensor.ndim else tensor)
            outputs, pull, *_ = torch.func.vjp(
                lambda chosen: _alone_in(self.problem.outputs(again, chosen)), parameters
            )
            return torch.func.vmap(lambda c: pull(c)[0])(column), outputs

        in_dims = (1, *([0] * len(tensors)))
        return torch.func.vmap(one, in_dims=in_dims, out_dims=(1, 0))(columns, *tensors)

    def _one_by_one(self, content: Any, columns: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        tensors = [self.problem.chosen_parameters[name] for name in self.names]
        rows: list[list[Tensor]] = []
        alone: list[Tensor] = []
        for i in range(columns.shape[1]):
            outputs = self._alone(slice_batch(content, i, i + 1), columns.shape[2:])
            per_column = [
                vjp(outputs, tensors, column[i], retain_graph=True, allow_unused=True, materialize_grads=True)
                for column in columns
            ]
            rows.append([torch.stack(parts) for parts in zip(*per_column)])
            alone.append(outputs.detach())
        gradients = {name: torch.stack([row[j] for row in rows], 1) for j, name in enumerate(self.names)}
        return gradients, torch.stack(alone)

    def _alone(self, sample: Any, shape: torch.Size) -> Tensor:
        """Return one sample's outputs; a model that drops a batch dimension of 1 (squeeze) sees the sample twice."""
        outputs = self.problem.outputs(sample)
        if outputs.shape == (1, *shape):
            return outputs[0]
        outputs = self.problem.outputs(map_tensors(sample, lambda t: torch.cat([t, t]) if t.ndim else t))
        if outputs.shape != (2, *shape):
            raise SpiritlevelError(
                f"the model gives outputs of shape {tuple(outputs.shape)} for two samples whose outputs have the shape "
                f"{tuple(shape)} in larger batches, so no sample stands alone; make it keep the batch dimension"
            )
        return outputs[0]


class _Known:
    """What the batch as a whole says of some of its samples: their outputs, and one sum of their gradients."""

    def __init__(self, fallback: Fallback, outputs: Tensor, part: slice, columns: Tensor) -> None:
        self.names = fallback.names
        self.outputs = outputs[part].detach()
        generator = torch.Generator().manual_seed(fallback.problem.seed)
        self.coefficients = torch.randn(columns.shape[:2], generator=generator).to(columns)
        combined = (columns * self.coefficients.reshape(*columns.shape[:2], *([1] * (columns.ndim - 2)))).sum(0)
        cotangent = torch.zeros_like(outputs)
        cotangent[part] = combined
        tensors = [fallback.problem.chosen_parameters[name] for name in self.names]
        self.sums = vjp(outputs, tensors, cotangent, retain_graph=True, allow_unused=True, materialize_grads=True)

    def agrees(self, found: Mapping[str, Tensor], outputs: Tensor) -> bool:
        """Whether gradients {name: (K, b, *shape)} and outputs are those of the batch."""
        if differ(outputs.detach(), self.outputs):
            return False
        expected = dict(zip(self.names, self.sums))
        if any(found[name].shape != (*self.coefficients.shape, *own.shape) for name, own in expected.items()):
            return False
        sums = {name: torch.tensordot(self.coefficients, found[name].detach(), dims=2) for name in self.names}
        return same_gradients([(sums[name], own) for name, own in expected.items()])


def same_gradients(pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Whether gradients agree with those expected, each to rounding against its own size.

    Gradients that are nothing but rounding (of biases in front of a normalisation) cannot agree in their digits.
    """
    pairs = [(found, expected) for found, expected in pairs if expected.numel()]
    if not pairs:
        return True
    floor = 1e-2 * torch.stack([expected.abs().max() for _, expected in pairs]).max()
    tolerance = 1e-3 if pairs[0][1].dtype == torch.float32 else 1e-10
    near = [(a - b).abs().max() <= tolerance * (b.abs().max() + floor) for a, b in pairs]
    return bool(torch.stack(near).all())


def _alone_in(outputs: Tensor) -> Tensor:
    """Return one sample's outputs; an entry that cannot be mapped, such as texts, would give those of a whole batch."""
    if len(outputs) != 1:
        raise ValueError(f"outputs of {len(outputs)} samples for one")
    return outputs[0]

"""Each sample's gradients without a rule: vectorised over samples, or one sample at a time where that fails."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from spiritlevel.data import map_tensors, slice_batch, tensors_of
from spiritlevel.errors import SpiritlevelError
from spiritlevel.problem import Batch, Problem

# Numbers of gradient formed at once, over all columns.
CHUNK_NUMBERS = 16_000_000


class Fallback:
    """Gradients of columns·outputs of each sample with respect to named parameters, by the general path."""

    def __init__(self, problem: Problem, names: list[str]) -> None:
        self.problem = problem
        self.names = names
        self.vectorised = True  # until a model shows that it cannot be (LSTM and GRU raise under vmap)

    def gradients(self, batch: Batch, columns: Tensor) -> Iterator[tuple[slice, dict[str, Tensor]]]:
        """Yield slices of the batch with their gradients {name: (K, b, *shape)} for columns (K, B, *outputs)."""
        size = sum(self.problem.chosen_parameters[name].numel() for name in self.names)
        step = max(1, CHUNK_NUMBERS // (size * max(1, len(columns))))
        for start in range(0, batch.count, step):
            part = slice(start, min(start + step, batch.count))
            content, some = slice_batch(batch.content, part.start, part.stop), columns[:, part]
            yield part, self._of_slice(content, some)

    def _of_slice(self, content: Any, columns: Tensor) -> dict[str, Tensor]:
        if self.vectorised:
            try:
                with warnings.catch_warnings():
                    # torch warns where it would loop over the samples itself, one operation at a time.
                    warnings.filterwarnings("error", message=".*batching rule")
                    return self._vectorised(content, columns)
            except Exception:  # vmap raises whatever the operation it cannot map raises
                self.vectorised = False
        return self._one_by_one(content, columns)

    def _vectorised(self, content: Any, columns: Tensor) -> dict[str, Tensor]:
        parameters = {name: self.problem.chosen_parameters[name].detach() for name in self.names}
        tensors = [tensor for tensor in tensors_of(content) if tensor.ndim]

        def one(column: Tensor, *values: Tensor) -> dict[str, Tensor]:
            each = iter(values)
            again = map_tensors(content, lambda tensor: next(each)[None] if tensor.ndim else tensor)
            _, pull, *_ = torch.func.vjp(lambda chosen: _alone_in(self.problem.outputs(again, chosen)), parameters)
            return torch.func.vmap(lambda c: pull(c)[0])(column)

        in_dims = (1, *([0] * len(tensors)))
        return torch.func.vmap(one, in_dims=in_dims, out_dims=1)(columns, *tensors)

    def _one_by_one(self, content: Any, columns: Tensor) -> dict[str, Tensor]:
        tensors = [self.problem.chosen_parameters[name] for name in self.names]
        rows: list[list[Tensor]] = []
        for i in range(columns.shape[1]):
            outputs = self._alone(slice_batch(content, i, i + 1), columns.shape[2:])
            per_column = [
                torch.autograd.grad(
                    outputs, tensors, column[i], retain_graph=True, allow_unused=True, materialize_grads=True
                )
                for column in columns
            ]
            rows.append([torch.stack(parts) for parts in zip(*per_column)])
        return {name: torch.stack([row[j] for row in rows], 1) for j, name in enumerate(self.names)}

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


def _alone_in(outputs: Tensor) -> Tensor:
    """Return one sample's outputs; an entry that cannot be mapped, such as texts, would give those of a whole batch."""
    if len(outputs) != 1:
        raise ValueError(f"outputs of {len(outputs)} samples for one")
    return outputs[0]

"""Each sample's gradients without a rule: vectorised over samples, or one sample at a time where that fails."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from spiritlevel.data import map_tensors, slice_batch
from spiritlevel.errors import SpiritlevelError
from spiritlevel.problem import Batch, Problem
from spiritlevel.survey import differ

# Numbers of gradient formed at once, over all columns.
CHUNK_NUMBERS = 16_000_000


class Fallback:
    """Gradients of columns·outputs of each sample with respect to named parameters, by the general path."""

    def __init__(self, problem: Problem, names: list[str]) -> None:
        self.problem = problem
        self.names = names
        self.vectorised = True  # until a model shows that it cannot be (LSTM and GRU raise under vmap)

    def gradients(self, batch: Batch, outputs: Tensor, columns: Tensor) -> Iterator[tuple[slice, dict[str, Tensor]]]:
        """Yield slices of the batch with their gradients {name: (K, b, *shape)} for columns (K, B, *outputs).

        A sample by itself must give the outputs it gives in its batch, or its gradients are of another function.
        """
        size = sum(self.problem.chosen_parameters[name].numel() for name in self.names)
        step = max(1, CHUNK_NUMBERS // (size * max(1, len(columns))))
        for start in range(0, batch.count, step):
            part = slice(start, min(start + step, batch.count))
            content, some = slice_batch(batch.content, part.start, part.stop), columns[:, part]
            yield part, self._of_slice(content, outputs[part].detach(), some)

    def _of_slice(self, content: Any, expected: Tensor, columns: Tensor) -> dict[str, Tensor]:
        if self.vectorised:
            try:
                with warnings.catch_warnings():
                    # torch warns where it would loop over the samples itself, one operation at a time.
                    warnings.filterwarnings("error", message=".*batching rule")
                    found, outputs = self._vectorised(content, columns)
                if not differ(outputs, expected):
                    return found
            except Exception:  # vmap raises whatever the operation it cannot map raises
                pass
            self.vectorised = False
        found, outputs = self._one_by_one(content, columns)
        if differ(outputs, expected):
            raise SpiritlevelError(
                "a sample alone gives other outputs than in its batch, so no sample has gradients of its own; "
                "make the model's outputs independent of the batch a sample comes in"
            )
        return found

    def _vectorised(self, content: Any, columns: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        parameters = {name: self.problem.chosen_parameters[name].detach() for name in self.names}
        is_mapping = isinstance(content, Mapping)
        keys = list(content) if is_mapping else range(len(content))
        mapped = [key for key in keys if isinstance(content[key], Tensor) and content[key].ndim]
        tensors = [content[key] for key in mapped]

        def one(column: Tensor, *values: Tensor) -> tuple[dict[str, Tensor], Tensor]:
            filled = dict(zip(mapped, (value[None] for value in values)))
            sample = {key: filled.get(key, content[key]) for key in keys}
            again = sample if is_mapping else tuple(sample[key] for key in keys)
            outputs, pull, *_ = torch.func.vjp(lambda chosen: self.problem.outputs(again, chosen)[0], parameters)
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
                torch.autograd.grad(
                    outputs, tensors, column[i], retain_graph=True, allow_unused=True, materialize_grads=True
                )
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

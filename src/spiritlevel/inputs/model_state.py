"""The user's model while it is measured: in the mode and with the gradients asked for, without hooks on gradients.

On leaving, everything about it is as it was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.inputs.torch_internals import hooks
from spiritlevel.values.errors import SpiritlevelError


class HeldModel:
    """A model held in one mode while it is entered; ``chosen`` are the parameters that take gradients."""

    def __init__(self, model: nn.Module, chosen: Iterable[Tensor], *, training: bool) -> None:
        self.model, self.training = model, training
        self._chosen = {id(tensor) for tensor in chosen}
        self.notes: list[str] = []

    def __enter__(self) -> HeldModel:
        modules = list(self.model.modules())
        parameters = dict(self.model.named_parameters())
        self._modes = [(module, module.training) for module in modules]
        self._gradients_on = [(tensor, tensor.requires_grad) for tensor in parameters.values()]
        # Beside buffers, embeddings with max_norm are written to by their own forward.
        rewritten = list(self.model.buffers())
        embeddings = [module for module in modules if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
        rewritten += [module.weight for module in embeddings if module.max_norm]
        self._sparse = [module for module in embeddings if module.sparse]
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in rewritten]
        self._hooks = self._without_gradient_hooks(modules, parameters)
        for module in modules:
            module.training = self.training
        for embedding in self._sparse:  # the same gradients in a form that can be added and differentiated again
            embedding.sparse = False
        for tensor, _ in self._gradients_on:
            tensor.requires_grad_(id(tensor) in self._chosen)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module, training in self._modes:
            module.training = training
        for tensor, required in self._gradients_on:
            tensor.requires_grad_(required)
        for embedding in self._sparse:
            embedding.sparse = True
        put_back(self._buffers)
        for table, own in self._hooks:
            table.update(own)

    def _without_gradient_hooks(
        self, modules: list[nn.Module], parameters: Mapping[str, Tensor]
    ) -> list[tuple[dict[int, Any], dict[int, Any]]]:
        """Empty the tables of hooks that change gradients; return them with what they held."""
        on_parameters = {name: table for name, tensor in parameters.items() if (table := hooks.gradient_table(tensor))}
        on_modules = [table for module in modules for table in hooks.backward_tables(module) if table]
        on_modules += [table for table in hooks.backward_tables_of_all_modules() if table]
        hidden = {name: tensor for name, tensor in parameters.items() if hooks.has_hidden_hooks(tensor)}
        if hidden:
            raise SpiritlevelError(
                f"gradient hooks on parameters ({_first_of(hidden)}) change gradients, and this release of torch does "
                "not show them, so they cannot be set aside; remove them before measuring"
            )
        if on_parameters:
            self.notes.append(
                f"Gradient hooks on parameters ({_first_of(on_parameters)}) were set aside while measuring: "
                "they change gradients, not the loss."
            )
        if on_modules:
            self.notes.append("Backward hooks on modules were set aside while measuring: they see or change gradients.")
        found = []
        for table in [*on_parameters.values(), *on_modules]:
            found.append((table, dict(table)))
            table.clear()  # the table itself stays: torch and the handles that remove hooks know it by identity
        return found


def _first_of(names: Mapping[str, Any]) -> str:
    first, *others = names
    return f"{first} and {len(others)} more" if others else first


class WeightsBefore:
    """The parameters before a model's first forward pass, to see whether it writes to them."""

    def __init__(self, model: nn.Module) -> None:
        # An embedding with max_norm does so by design; the rest of the session knows.
        known = {id(m.weight) for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.max_norm}
        self._before = {
            name: (tensor, tensor.detach().clone())
            for name, tensor in model.named_parameters()
            if id(tensor) not in known
        }
        self._buffers = {name: (buffer, buffer.detach().clone()) for name, buffer in model.named_buffers()}

    def written_buffers(self) -> dict[str, Tensor]:
        """Put back the buffers that the forward pass changed, and return them as they were."""
        changed = put_back(list(self._buffers.values()))
        return {name: before for (name, (_, before)), different in zip(self._buffers.items(), changed) if different}

    def refuse_changes(self) -> None:
        """Put back what the forward pass changed, and refuse a model that does so."""
        changed = self.put_back()
        if changed:
            raise SpiritlevelError(
                f"the model's forward writes to its own parameters ({changed[0]}: a clamp or the like in place), so "
                "its weights are not what it computes with; apply that once before measuring and take it out of forward"
            )

    def put_back(self) -> list[str]:
        """Give the parameters the values they had; return the names of those that had changed."""
        changed = put_back(list(self._before.values()))
        return [name for name, different in zip(self._before, changed) if different]


@torch.no_grad()
def put_back(tensors: list[tuple[Tensor, Tensor]]) -> list[bool]:
    """Give tensors the values they had before, where they have others now; say which.

    Only there: a graph that is still in use does not survive a write to a tensor it needs, whatever is written.
    """
    differ = [(tensor != before).logical_and(before == before).any() for tensor, before in tensors]
    if len({answer.device for answer in differ}) == 1:  # a GPU is waited for once
        differ = list(torch.stack(differ).tolist())
    for (tensor, before), different in zip(tensors, differ):
        if different:
            tensor.copy_(before)
    return [bool(different) for different in differ]

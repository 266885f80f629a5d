"""The parameters that may move: their names, their order in a flat vector, and the layers that own them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from spiritlevel.inputs.sharding import SHARDED, is_sharded
from spiritlevel.values.errors import SpiritlevelError, UsageError


@dataclass(frozen=True)
class Layer:
    """A module that owns parameters, by its path.

    Attributes
    ----------
    name : str
        The path.
    module : torch.nn.Module
        The module.
    parameters : dict of str to str
        From its own names to the network's names.
    """

    name: str
    module: nn.Module
    parameters: dict[str, str]


class ChosenParameters:
    """Parameters of a model by name, in the model's order."""

    model: nn.Module
    chosen_parameters: dict[str, Tensor]

    def refuse_shards(self, given: ChosenParameters) -> None:
        """Refuse parameters that are spread over several processes: all of them are needed in one."""
        if is_sharded(given.tensors):
            raise SpiritlevelError(SHARDED)

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters that may move, in the order of every flat vector."""
        return list(self.chosen_parameters)

    @property
    def tensors(self) -> list[Tensor]:
        """The parameters themselves, in the same order."""
        return list(self.chosen_parameters.values())

    @property
    def size(self) -> int:
        """The number P of parameters that may move."""
        return sum(tensor.numel() for tensor in self.tensors)

    @property
    def device(self) -> torch.device:
        """Where the model is, and so where the work is done."""
        return self.tensors[0].device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the model."""
        return self.tensors[0].dtype

    @cached_property
    def layers(self) -> dict[str, Layer]:
        """Modules that own chosen parameters, in the model's order; a tied parameter belongs to its first owner."""
        found: dict[str, Layer] = {}
        by_identity = {id(tensor): name for name, tensor in self.chosen_parameters.items()}
        for name, module in self.model.named_modules():
            own = {}
            for local, tensor in module.named_parameters(recurse=False, remove_duplicate=False):
                full = by_identity.get(id(tensor))
                if full is not None and full == (f"{name}.{local}" if name else local):
                    own[local] = full
            if own:
                found[name or "(model)"] = Layer(name or "(model)", module, own)
        return found

    @cached_property
    def weights(self) -> dict[str, str]:
        """Weights of two or more dimensions, by layer: what measures defined on weight matrices use.

        A layer with one such weight lends it its own name; where it has several (an LSTM) each is named in full.
        """
        found: dict[str, str] = {}
        for layer in self.layers.values():
            matrices = [full for full in layer.parameters.values() if self.chosen_parameters[full].ndim >= 2]
            for full in matrices:
                found[layer.name if len(matrices) == 1 else full] = full
        return found

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return one vector (P,) from tensors by parameter name.

        Parameters
        ----------
        tensors : mapping of str to Tensor
            A tensor for each name in `parameters`, of that parameter's shape.

        Returns
        -------
        Tensor
            The tensors' entries one after the other, in the order of `parameters`.
        """
        return torch.cat([tensors[name].reshape(-1) for name in self.parameters])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Return tensors by parameter name from a vector (P,), or with a last dimension K from (P, K).

        Parameters
        ----------
        vector : Tensor
            A vector (P,), such as an eigenvector, or several (P, K).

        Returns
        -------
        dict of str to Tensor
            A tensor of each parameter's shape, with a last dimension K where there were several.

        Raises
        ------
        UsageError
            The vector has not as many rows as the problem has parameters.
        """
        if vector.shape[0] != self.size:
            raise UsageError(
                f"the vector has {vector.shape[0]:,} rows, but the problem has {self.size:,} parameters: give as many"
            )
        parts = vector.split([tensor.numel() for tensor in self.tensors])
        tail = vector.shape[1:]
        return {
            name: part.reshape(tensor.shape + tail)
            for (name, tensor), part in zip(self.chosen_parameters.items(), parts)
        }

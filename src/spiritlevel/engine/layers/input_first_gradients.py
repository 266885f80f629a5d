"""The rule of a linear layer whose weight is stored with the inputs first, y = xW + b."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spiritlevel.engine.layers.rules import FromDeltas, Gradients
from spiritlevel.engine.layers.sample_gradients import DirectGradients, OuterGradients


class InputFirstGradients(OuterGradients):
    """Gradients M = Σ_t δ_t a_tᵀ of a weight that holds Mᵀ: matrices are the same, the parameter's layout is not."""

    def _form(self) -> DirectGradients:
        """Return the gradients in the parameter's layout."""
        turned = OuterGradients(self.inputs, self.deltas, torch.Size(reversed(self.shape)))
        return DirectGradients(turned.formed().values.transpose(-1, -2))

    def add_squares(self, into: Tensor, coefficients: Tensor) -> None:
        if self.one_position:
            super().add_squares(into.transpose(-1, -2), coefficients)
        else:
            self.formed().add_squares(into, coefficients)

    def combine(self, coefficients: Tensor) -> Tensor:
        if self._formed is not None:
            return self._formed.combine(coefficients)
        return OuterGradients(self.inputs, self.deltas, torch.Size(reversed(self.shape))).combine(coefficients).T

    def part(self, part: slice) -> OuterGradients:
        return InputFirstGradients(self.inputs[part], self.deltas[:, part], self.shape)


def input_first_rule(module: nn.Module, inputs: list[Tensor]) -> FromDeltas:
    """Return the rule of such a layer; its parameters may have any names."""
    names = {tensor.ndim: name for name, tensor in module.named_parameters(recurse=False)}
    shape = module.get_parameter(names[2]).shape
    joined = torch.cat([a.reshape(len(a), -1, a.shape[-1]) for a in inputs], 1)[:, None]

    def gradients(deltas: list[Tensor]) -> Gradients:
        delta = torch.cat([d.reshape(*d.shape[:2], -1, d.shape[-1]) for d in deltas], 2)
        found: Gradients = {names[2]: InputFirstGradients(joined, delta[:, :, None], shape)}
        if 1 in names:
            found[names[1]] = DirectGradients(delta.sum(2))
        return found

    return gradients

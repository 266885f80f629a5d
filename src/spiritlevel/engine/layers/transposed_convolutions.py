"""Each sample's gradient of a transposed convolution's weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.engine.layers.sample_gradients import DirectGradients, patches
from spiritlevel.engine.layers.summed_gradients import FormedGradients

TransposedConvolution = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


class TransposedConvolutionGradients(FormedGradients):
    """Gradients M = Σ_t a_t δ̃_tᵀ: each position of the input meets the patch δ̃ of the output that it was spread over.

    ``inputs`` (B, C, …) and ``deltas`` (K, B, C', …) are those of the module's calls.
    """

    def __init__(self, module: TransposedConvolution, inputs: list[Tensor], deltas: list[Tensor]) -> None:
        self.module, self.inputs, self.deltas = module, inputs, deltas
        self.shape = module.weight.shape
        self.columns, self.samples = deltas[0].shape[:2]

    def formed(self) -> DirectGradients:
        """Form the gradients."""
        first, *rest = (self._of_call(a, delta) for a, delta in zip(self.inputs, self.deltas))
        return DirectGradients(sum(rest, first))

    def part(self, part: slice) -> TransposedConvolutionGradients:
        """Return those of some samples."""
        inputs, deltas = [a[part] for a in self.inputs], [delta[:, part] for delta in self.deltas]
        return TransposedConvolutionGradients(self.module, inputs, deltas)

    def _of_call(self, inputs: Tensor, deltas: Tensor) -> Tensor:
        spread = patches(self.module, self._covered(deltas.flatten(0, 1), inputs.shape[2:]))
        by_group = inputs.reshape(len(inputs), self.module.groups, -1, inputs.shape[2:].numel())  # (B, G, I, T)
        found: Tensor = by_group @ spread.unflatten(0, deltas.shape[:2])  # (K, B, G, I, O·kernel)
        return found.reshape(*deltas.shape[:2], *self.shape)

    def _covered(self, deltas: Tensor, positions: torch.Size) -> Tensor:
        """Return gradients of the output at all places that the input was spread over, zeros where these were cut."""
        around = []
        module, cuts = self.module, map(int, self.module.padding)
        places = zip(positions, deltas.shape[2:], module.kernel_size, module.stride, module.dilation, cuts)
        for count, size, kernel, step, dilation, cut in places:
            covered = (count - 1) * step + dilation * (kernel - 1) + 1
            around.append((cut, covered - size - cut))  # negative where more was put out than anything was spread over
        return F.pad(deltas, [amount for pair in reversed(around) for amount in pair])

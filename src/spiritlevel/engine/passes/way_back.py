"""How columns are pulled back through a batch's network to its layers' gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from spiritlevel.engine.layers.rules import FromDeltas
from spiritlevel.engine.layers.sample_gradients import SampleGradients
from spiritlevel.engine.passes.recording import Recorder
from spiritlevel.engine.passes.stages import Stages
from spiritlevel.inputs.process.precision import coarse_float32


class Mixture:
    """One combination of all columns, of what came back of them: not of what would come back of it.

    Coarse arithmetic rounds a combination otherwise than its parts, and where samples are alike, so do all of them.
    """

    def __init__(self, signs: Tensor) -> None:
        self.signs = signs  # (parts, K, B)
        self.deltas: dict[str, list[Tensor]] = {}  # (parts, B, ...) a call

    def add(self, name: str, deltas: list[Tensor], chosen: list[int]) -> None:
        """Take in what came back of some columns."""
        signs = self.signs[:, chosen].permute(2, 0, 1)  # (B, parts, k)
        mixed = [
            (signs @ d.transpose(0, 1).flatten(2)).transpose(0, 1).unflatten(2, d.shape[2:] or (1,)) for d in deltas
        ]
        mixed = [m.reshape(len(m), *d.shape[1:]) for m, d in zip(mixed, deltas)]
        known = self.deltas.get(name)
        self.deltas[name] = mixed if known is None else [a.add_(b) for a, b in zip(known, mixed)]


@dataclass(frozen=True)
class WayBack:
    """A forward pass through which columns reach some layers; what comes back is put into the problem's ``dtype``.

    ``mixture``: products on the way may be in TF32, and it takes in what they give.
    """

    outputs: Tensor
    recorder: Recorder
    names: list[str]
    stages: Stages
    dtype: torch.dtype
    mixture: Mixture | None = None

    @cached_property
    def _rules(self) -> dict[str, FromDeltas]:
        return self.recorder.gradients_from_deltas(self.names, self.stages)

    def gradients(self, columns: Tensor, chosen: list[int]) -> Iterator[tuple[str, SampleGradients]]:
        """Yield each parameter of the layers with its gradients for some columns, the ``chosen`` among all."""
        arithmetic = contextlib.nullcontext() if self.mixture is None else coarse_float32()
        with arithmetic:
            columns = columns.to(self.outputs.dtype)
            pulled = self.recorder.pull_back_all(self.outputs, columns, self.names, self.stages)
        for name, raw in pulled.items():
            deltas = [delta.to(self.dtype) for delta in raw]
            if self.mixture is not None:
                self.mixture.add(name, deltas, chosen)
            yield from self._of_layer(name, deltas)

    def mixed_gradients(self) -> Iterator[tuple[str, SampleGradients]]:
        """Yield each parameter of the layers with the gradients of the mixture."""
        assert self.mixture is not None
        for name, deltas in self.mixture.deltas.items():
            yield from self._of_layer(name, deltas)

    def _of_layer(self, name: str, deltas: list[Tensor]) -> Iterator[tuple[str, SampleGradients]]:
        parameters = self.recorder.layers[name].parameters
        for local, gradients in self._rules[name](deltas).items():
            if local in parameters:
                yield parameters[local], gradients

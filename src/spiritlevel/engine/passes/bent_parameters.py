"""The remainder of parameters that go through a curved function before they meet samples, such as exp(log s).

With γ a sample's gradient of what is made, φ(θ), its Hessian has the term diag(γ φ''(θ)) in θ itself.  Each sample's is
known without sampling.  As a column it is √|γφ''| with signs of the sample's own, added to what is pulled back to θ
from other operations before anything is squared: what the two share is drawn as well.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from spiritlevel.engine.layers.sample_gradients import DirectGradients, SampleGradients
from spiritlevel.engine.layers.summed_gradients import summed
from spiritlevel.engine.operations.drawing import CurvedBatch
from spiritlevel.engine.passes.recording import Recorder, parameters_of
from spiritlevel.inputs.losses.signs import index_signs_in_parts
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.splitmix import splitmix64

_KEY = 2  # of the signs, after those of operations and of rows that are no sample's own


class BentParameters:
    """Those of one batch, with what is drawn for them."""

    def __init__(
        self,
        problem: OpenProblem,
        curved: CurvedBatch,
        recorder: Recorder,
        names: Iterable[str],
        outputs: Tensor,
    ) -> None:
        self.batch = curved.batch
        bent = [name for name in names if name in recorder.uses and recorder.uses[name].bent]
        deltas = recorder.pull_back(outputs, curved.slope, bent, retain_graph=True) if bent else {}
        self.curvatures = {parameters_of(problem, name)[0]: recorder.uses[name].bends(deltas[name]) for name in bent}

    def columns(self, seed: int, draws: range) -> dict[str, DirectGradients]:
        """Return s₊ and s₋ of some draws in turn, by parameter."""
        if not self.curvatures:
            return {}
        key = int(splitmix64(seed, torch.arange(_KEY + 1, device="cpu"))[_KEY])
        counts = [curvature[0].numel() for curvature in self.curvatures.values()]
        first = next(iter(self.curvatures.values()))
        indices = self.batch.indices.to(first.device)
        signs = index_signs_in_parts(key, len(draws), indices, counts, first_draw=draws.start, dtype=first.dtype)
        found = {}
        for (full, curvature), own in zip(self.curvatures.items(), signs):
            sides = [side.clamp(min=0).sqrt() * own.reshape(-1, *curvature.shape) for side in (curvature, -curvature)]
            found[full] = DirectGradients(torch.stack(sides, 1).flatten(0, 1))
        return found


def added(columns: dict[str, DirectGradients], full: str, pulled: SampleGradients) -> SampleGradients:
    """Return a parameter's gradients from columns that were pulled back with its own."""
    own = columns.get(full)
    return pulled if own is None else summed([pulled, own], own.values.shape[2:], len(own.values))

"""Losses at other parameters: several parameter sets in one sweep over the data, the model itself never touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from spiritlevel.engine.estimators.probes import seeded_generator
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.losses import labels_of
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.sweeping import SampleRows
from spiritlevel.values.errors import SpiritlevelError, UsageError

# Parameter sets are taken a few at a time, so that about this many replaced numbers are held at once.
HELD_NUMBERS = 200_000_000

_ELSEWHERE = "losses at other parameters"  # what a sweep of them is called

Parameters = Mapping[str, Tensor]  # the parameters that are replaced; the others stay what they are
Reading = Callable[[Tensor, Batch], Tensor]  # outputs of a batch and the batch -> one number a sample


class Perturbed:
    """The loss of a problem as a function of its parameters, by replacing them for one call of the model.

    Sets may be given lazily: as many as memory holds share one reading of the data.  Every reading first checks that
    the data still gives the losses of the first sweep.
    """

    def __init__(self, problem: OpenProblem) -> None:
        self.problem = problem

    def loss(self, sets: Iterable[Parameters]) -> Tensor:
        """Return the mean loss at each set, (K,) in float64."""
        survey = self.problem.survey
        return self.sample_losses(sets) @ survey.weights / survey.total_weight

    def rise(self, sets: Iterable[Parameters]) -> Tensor:
        """Return L(set) - L for each set, (K,): differences are taken sample by sample, where less cancels."""
        survey = self.problem.survey
        return (self.sample_losses(sets) - survey.losses) @ survey.weights / survey.total_weight

    def sample_losses(self, sets: Iterable[Parameters]) -> Tensor:
        """Return every sample's loss at each set, (K, N) in float64 on the CPU."""
        return self._per_sample(sets, self._loss_of)[0]

    def errors(self, sets: Iterable[Parameters]) -> Tensor:
        """Return the share of samples whose largest output is not their label, for each set, (K,)."""
        self._require_classes()
        return self._per_sample(sets, self._wrong)[0].mean(1)

    def errors_and_rises(self, sets: Iterable[Parameters]) -> tuple[Tensor, Tensor]:
        """Return the share of wrong samples and L(set) - L for each set, both (K,), from the same outputs."""
        self._require_classes()
        survey = self.problem.survey
        wrong, losses = self._per_sample(sets, self._wrong, self._loss_of)
        return wrong.mean(1), (losses - survey.losses) @ survey.weights / survey.total_weight

    def _per_sample(self, sets: Iterable[Parameters], *readings: Reading) -> list[Tensor]:
        """Return what each function reads off the outputs of every sample, one (K, N) in float64 on the CPU each."""
        problem = self.problem
        found = [[torch.zeros(0, problem.survey.count, dtype=torch.float64)] for _ in readings]
        last = self._channels_last
        for few in self._chunks(self._laid_out(one, last) for one in sets):
            rows = SampleRows(problem)
            with problem.sweep(_ELSEWHERE) as group, torch.no_grad():
                for batch in self._batches():
                    outputs = [problem.outputs(batch.content, one) for one in few]
                    read = [torch.stack([read(each, batch) for each in outputs], 1) for read in readings]
                    rows.add(batch, {str(place): own.double().cpu() for place, own in enumerate(read)})
            problem.spent["forward"] += len(few)
            for own, columns in zip(found, rows.united(group).values()):
                assert columns is not None
                own.append(columns.T)
        return [torch.cat(parts) for parts in found]

    @cached_property
    def _channels_last(self) -> bool:
        """Whether convolutions may have their channels last: on a CPU a forward pass is then up to a third faster.

        A model that asks for another layout raises, which the first batch tells.
        """
        problem = self.problem
        own = {name: tensor for name, tensor in problem.chosen_parameters.items() if tensor.ndim == 4}
        if not own or problem.device.type != "cpu" or problem.dtype != torch.float32:
            return False
        try:
            with problem.session(), torch.no_grad():
                batch = next(problem.batches())
                problem.agrees(batch, self._losses(batch, self._laid_out(own, True))[0])
        except (RuntimeError, SpiritlevelError):
            return False
        return True

    @staticmethod
    def _laid_out(parameters: Parameters, channels_last: bool) -> dict[str, Tensor]:
        # Clones: a weight with one input channel counts as laid out either way, and would be left as it is.
        layout = {4: torch.channels_last} if channels_last else {}
        return {
            name: tensor.detach().clone(memory_format=layout.get(tensor.ndim, torch.contiguous_format))
            for name, tensor in parameters.items()
        }

    def _loss_of(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.problem.loss.per_sample(outputs, batch.content)[0]

    @staticmethod
    def _wrong(outputs: Tensor, batch: Batch) -> Tensor:
        return outputs.argmax(1) != labels_of(batch.content)

    def _require_classes(self) -> None:
        if self.problem.survey.correct is None:
            raise SpiritlevelError(
                "the outputs are not scores of integer labels, so samples cannot be counted as right or wrong; "
                "pass class scores (N, C) and labels (N,)"
            )

    def loss_and_gradient(self, parameters: Parameters) -> tuple[float, dict[str, Tensor]]:
        """Return the mean loss at one set and its gradient in the replaced parameters, in float64."""
        losses, gradients = self.losses_and_gradients([parameters])
        return float(losses[0]), gradients[0]

    def losses_and_gradients(self, sets: Iterable[Parameters]) -> tuple[Tensor, list[dict[str, Tensor]]]:
        """Return the mean loss (K,) and the gradient at each set, both summed over the data in float64."""
        problem = self.problem
        losses_found, gradients_found = [], []
        for few in self._chunks(sets):
            leaves = [
                {name: tensor.requires_grad_() for name, tensor in self._laid_out(one, self._channels_last).items()}
                for one in few
            ]
            totals = [{n: torch.zeros_like(t, dtype=torch.float64) for n, t in one.items()} for one in few]
            values = torch.zeros(len(few), dtype=torch.float64)
            with problem.sweep(_ELSEWHERE) as group:
                for batch in self._batches():
                    for k, leaf in enumerate(leaves):
                        losses, weights = self._losses(batch, leaf)
                        share = weights.detach() / problem.survey.total_weight
                        values[k] += float((share * losses.detach()).sum(dtype=torch.float64))
                        parts = torch.autograd.grad(
                            (share * losses).sum(), list(leaf.values()), allow_unused=True, materialize_grads=True
                        )
                        for name, part in zip(leaf, parts):
                            totals[k][name] += part
            problem.spent["gradient"] += len(few)
            sums = {f"{k} {name}": part for k, own in enumerate(totals) for name, part in own.items()}
            united, _ = group.united({"losses": values, **sums}, device=problem.device)
            values = united["losses"]
            totals = [{name: united[f"{k} {name}"] for name in own} for k, own in enumerate(totals)]
            losses_found.append(values)
            gradients_found.extend(totals)
        return torch.cat(losses_found) if losses_found else torch.zeros(0, dtype=torch.float64), gradients_found

    def _batches(self) -> Iterator[Batch]:
        """Sweep the data inside a session of the caller's, which ends with the caller even where it is interrupted."""
        for batch in self.problem.batches(_ELSEWHERE):
            if batch.start == 0:
                self.problem.agrees(batch, self._losses(batch, None)[0])
            yield batch

    def _losses(self, batch: Batch, parameters: Parameters | None) -> tuple[Tensor, Tensor]:
        return self.problem.loss.per_sample(self.problem.outputs(batch.content, parameters), batch.content)

    def _chunks(self, sets: Iterable[Parameters]) -> Iterator[list[dict[str, Tensor]]]:
        stream = (self._placed(one) for one in sets)
        for first in stream:
            held = max(1, sum(tensor.numel() for tensor in first.values()))
            yield [first, *islice(stream, max(0, HELD_NUMBERS // held - 1))]

    def _placed(self, parameters: Parameters) -> dict[str, Tensor]:
        chosen = self.problem.chosen_parameters
        for name, tensor in parameters.items():
            if name not in chosen:
                raise UsageError(f"no parameter is named {name!r} among those of the problem")
            if tensor.shape != chosen[name].shape:
                raise UsageError(
                    f"parameter {name} has shape {tuple(chosen[name].shape)} and cannot be replaced by "
                    f"a tensor of shape {tuple(tensor.shape)}"
                )
        return {name: tensor.detach().to(chosen[name]) for name, tensor in parameters.items()}


def gaussian_noise(shapes: Mapping[str, torch.Size], *key: int) -> dict[str, Tensor]:
    """Return standard normal noise by parameter name, drawn on the CPU in float64 from the key alone."""
    generator = seeded_generator(*key)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        for name, shape in shapes.items()
    }


def moved(parameters: Parameters, step: Mapping[str, Tensor], size: float = 1.0) -> dict[str, Tensor]:
    """Return parameters + size * step, summed in the step's precision, for the parameters the step names."""
    return {
        name: parameters[name].detach().to(direction.device, direction.dtype) + size * direction
        for name, direction in step.items()
    }

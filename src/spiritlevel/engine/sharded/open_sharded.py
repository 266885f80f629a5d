"""A measurement of a sharded model under way: its parameters are the parts that lie here, its batches go in step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.engine.sharded.company import Company
from spiritlevel.engine.sharded.gathering import Gathering
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.chosen_parameters import ChosenParameters
from spiritlevel.inputs.contents import Content, count_of, map_tensors, slice_batch, tensors_of
from spiritlevel.inputs.fingerprints import Fingerprint
from spiritlevel.inputs.given import Given
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.opening import refuse_non_finite
from spiritlevel.inputs.sharding import Layout, layouts_of, put_at_rest
from spiritlevel.inputs.torch_internals.sharded_modules import without_sharding_hooks
from spiritlevel.values.errors import SpiritlevelError

SHARED = "Every rank was given the same data: its batches are divided among the ranks."


@dataclass(frozen=True)
class JointBatch:
    """A batch of each rank, worked on at once; a rank that has none left takes part without weight."""

    batch: Batch
    counts: bool  # whether this rank's batch is one of its data


class ShardedProblem(OpenProblem):
    """A measurement of a problem whose model is sharded over ranks.

    ``chosen_parameters`` are the parts that lie on this rank, as plain tensors that share their numbers with the
    model's; ``size`` is the number of parameters of the whole model.
    """

    def refuse_shards(self, given: ChosenParameters) -> None:
        """Take them: they are what this is for."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        put_at_rest(given.model)
        named = dict(given.model.named_parameters())
        self.layouts: dict[str, Layout] = layouts_of(named, given.parameters)
        parts = {name: named[name].to_local().detach() for name in self.layouts}  # type: ignore[attr-defined]
        self.chosen_parameters = {name: parts[name].requires_grad_() for name in given.parameters}
        self.company = Company(self.layouts.values(), self.device)
        names = {id(named[name]): name for name in self.layouts}
        self.gathering = Gathering(names, parts, self.layouts)
        self.joint_batches_a_sweep = 0  # once one was made
        self.data_fingerprint = ""  # of what all ranks were given, where that is the same
        self._writes_nothing = True  # what a forward writes to is a copy
        self._divided: bool | None = None  # whether all ranks were given the same data, once they were asked
        reason = ""
        try:
            refuse_non_finite(self.chosen_parameters)
        except SpiritlevelError as error:
            reason = str(error)
        self.company.refuse_together(reason)
        self.note(
            f"The model is sharded over {self.company.size} ranks; they went over the data in step, each over its own."
        )

    @property
    def size(self) -> int:
        """The number P of parameters that may move, on all ranks together."""
        return sum(self.layouts[name].shape.numel() for name in self.parameters)

    @property
    def local_size(self) -> int:
        """How many of them lie here."""
        return sum(part.numel() for part in self.tensors)

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Hold the model, with its parameters at rest and without the hooks that would make them whole."""
        if self._session_depth:
            yield
            return
        put_at_rest(self.model)
        with without_sharding_hooks(self.model), super().session():
            yield

    def _call(self, content: Content, parameters: Mapping[str, Tensor] | None) -> Tensor:
        """Run the model on parts, or on others in their place; each parameter is made whole where it is used."""
        with self.gathering.with_parameters(parameters or {}):
            outputs: Tensor = self._forward(content)
        return outputs

    # --- batches in step -------------------------------------------------------------------------------------------

    def joint_batches(self, what: str = "") -> Iterator[JointBatch]:
        """Sweep the data of all ranks, a batch of each at a time, until the last has none left."""
        own, number = self._own(), 0
        start, spare = 0, None
        total = self.known_survey.count if self.known_survey is not None else self.source.count or 0
        done = 0.0
        while True:
            content = next(own, None)
            count = 0 if content is None else count_of(content)
            going, done_now = self.company.over_data(torch.tensor([float(content is not None), float(count)])).tolist()
            if going == 0:
                break
            done += done_now
            if content is not None:
                spare = slice_batch(content, 0, 1) if spare is None else spare
                yield JointBatch(Batch(map_tensors(content, self._placed), start, count), True)
                start += count
            else:
                spare = self._first_sample() if spare is None else spare
                yield JointBatch(Batch(map_tensors(spare, self._placed), 0, 1), False)
            number += 1
            if self.progress is not None and what and self.company.rank == 0:
                self.progress(what, int(done), max(total, int(done)))
        if number == 0:
            raise SpiritlevelError("the data is empty: there is no sample to measure on")
        self.joint_batches_a_sweep = number
        self.spent.samples = max(self.spent.samples, int(done))

    def _own(self) -> Iterator[Content]:
        """Yield this rank's batches: those of its data, or every so many of what all ranks were given."""
        if self._divided is None:
            fingerprint = Fingerprint()
            for content in self.source.read():
                fingerprint.add(tensors_of(content))
            self._divided = self.company.size > 1 and len(set(self.company.told(str(fingerprint)))) == 1
            if self._divided:
                self.note(SHARED)
                self.data_fingerprint = str(fingerprint)
        for number, content in enumerate(self.source.read()):
            if count_of(content) and (not self._divided or number % self.company.size == self.company.rank):
                yield content

    def _first_sample(self) -> Content:
        return slice_batch(next(iter(self.source.read())), 0, 1)

    def _placed(self, tensor: Tensor) -> Tensor:
        tensor = tensor.clone() if tensor.is_inference() else tensor
        if not tensor.is_floating_point():
            return tensor.to(self.device, non_blocking=True)
        return tensor.to(self.device, self.dtype, non_blocking=True).detach()

    def shares(self, joint: JointBatch, weights: Tensor) -> Tensor:
        """Return each sample's share of the mean loss over the data of all ranks."""
        return weights.detach() / self.survey.total_weight if joint.counts else torch.zeros_like(weights)

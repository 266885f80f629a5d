"""The first sweep over the data: losses, accuracy, a fingerprint, and every check on what comes in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.choices import ask_for_labels, ask_which_token, choices_taken
from spiritlevel.inputs.contents import Content, slice_batch, tensors_of
from spiritlevel.inputs.fingerprints import Fingerprint
from spiritlevel.inputs.losses import CallableLoss, labels_of
from spiritlevel.inputs.losses.custom import coupled_in_words
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.process.ranks import Ranks
from spiritlevel.inputs.row_buffer import RowBuffer
from spiritlevel.inputs.sweeping import laid_out, swept_together
from spiritlevel.inputs.torch_internals.base_classes import BATCH_NORMS
from spiritlevel.values.errors import SpiritlevelError, UsageError

# Outputs of the first sweep are kept up to this many numbers, so that forward-only measures need no second sweep.
KEPT_OUTPUTS = 20_000_000
# A model may treat small batches as something else; checks and products work on batches of about these sizes.
SMALL_BATCHES = (8, 4, 2)
LOOKS = 4


@dataclass(frozen=True)
class Survey:
    """What the first sweep over the data found; every later sweep must agree with it."""

    count: int
    total_weight: float
    losses: Tensor  # (N,) float64: each sample's own loss
    weights: Tensor  # (N,) float64: L = sum of weights * losses / sum of weights
    correct: Tensor | None  # (N,) bool where outputs are class scores of the labels
    output_shape: tuple[int, ...]
    outputs: Tensor | None  # (N, ...) in the model's dtype, where they are few enough to keep
    coupled: bool  # a sample's outputs depend on the other samples of its batch
    fingerprint: str

    @property
    def loss(self) -> float:
        """The mean loss L over the data."""
        return float((self.weights * self.losses).sum() / self.total_weight)

    @property
    def accuracy(self) -> float | None:
        """The share of samples whose largest output is their label, where that has a meaning."""
        return None if self.correct is None else float(self.correct.double().mean())


def take_survey(problem: OpenProblem) -> Survey:
    """Sweep the data for the first time, with every check on what comes in."""
    surveyor = Surveyor(problem)
    with swept_together(problem, "first sweep") as group, torch.no_grad():
        for batch in problem.batches("first sweep"):
            outputs = checked_outputs(problem, batch)
            surveyor.add(batch, outputs)
            surveyor.look(batch, outputs)
    problem.spent["forward"] += 1
    surveyor.unite(group)
    return surveyor.survey()


class Surveyor:
    """Looks at every batch of a first sweep, be it one of its own or one that has more to do with the outputs."""

    def __init__(self, problem: OpenProblem) -> None:
        self.problem = problem
        self.coupled = False
        self._losses, self._weights, self._finite = RowBuffer(), RowBuffer(), RowBuffer()
        self._places = RowBuffer()  # of the samples taken in
        self._first_losses = torch.empty(0)
        self._correct: RowBuffer | None = RowBuffer()  # None where a batch cannot tell
        self._outputs: RowBuffer | None = RowBuffer()  # None where they are too many, or not of one shape
        self._shape = torch.Size()
        self._fingerprint = Fingerprint()

    def add(self, batch: Batch, outputs: Tensor) -> Tensor:
        """Take in one batch and its outputs; return the samples' weights in the mean loss."""
        problem, outputs = self.problem, outputs.detach()
        self._finite.add(torch.isfinite(outputs.reshape(batch.count, -1)).all(1))
        if batch.start == 0:
            ask_which_token(problem, batch.content, outputs)
            problem.notes += [text for text in choices_taken(problem, batch.content) if text not in problem.notes]
        try:
            losses, weights = problem.loss.per_sample(outputs, batch.content)
        except UsageError as error:
            raise UsageError(f"{error}{_what_was_taken(problem)}") from error
        if losses.shape != (batch.count,):
            raise UsageError(
                f"the loss gave values of shape {tuple(losses.shape)} for a batch of {batch.count}; "
                "it must give one loss a sample, of shape (B,) or (B, T)"
            )
        if not len(self._places):
            self._shape = outputs.shape[1:]
            # By themselves: a GPU compares them beside work on later batches, whose losses join the others meanwhile.
            self._first_losses = losses.detach().double()
        # All stays where it is until the sweep ends, so that a GPU does not wait for it.
        self._places.add(batch.indices)
        self._losses.add(losses.detach().double())
        self._weights.add(weights.detach().double())
        correct = _correct(outputs, batch.content)
        if correct is None:
            self._correct = None
        elif self._correct is not None:
            self._correct.add(correct)
        if (batch.start + batch.count) * self._shape.numel() > KEPT_OUTPUTS or outputs.shape[1:] != self._shape:
            self._outputs = None
        elif self._outputs is not None:
            self._outputs.add(outputs)
        self._fingerprint.add(tensors_of(batch.content), batch.indices)
        return weights.detach()

    def look(self, batch: Batch, outputs: Tensor) -> None:
        """Refuse a batch taken in that cannot be measured; a GPU's later ones are looked at when the sweep ends."""
        if batch.start == 0 or not outputs.is_cuda:
            self._refuse_not_finite(torch.isfinite(outputs.reshape(batch.count, -1)).all(1), batch.start)
        if batch.start == 0:
            self._look_twice(batch, outputs.detach())

    @torch.no_grad()
    def _look_twice(self, batch: Batch, outputs: Tensor) -> None:
        """Run parts of the first batch again, which may not change what its samples give, and where they do, all of it.

        What parts of it give again hangs neither on the other samples nor on chance.
        """
        problem = self.problem
        self._refuse_not_finite_losses(self._first_losses)  # NaN never equals itself, which is nobody's shuffling
        self.coupled = _depends_on_neighbours(problem, batch, outputs) or _has_coupled_losses(
            problem, batch, outputs, self._first_losses
        )
        if self.coupled or batch.count == 1:
            for _ in range(LOOKS):  # a hook that counts its calls acts on some of them only
                again, _ = problem.loss.per_sample(problem.outputs(batch.content), batch.content)
                if not _close(again, self._first_losses, problem.dtype):
                    raise SpiritlevelError(problem.disagreement())

    def unite(self, group: Ranks) -> None:
        """Take in what the other ranks found."""
        if not group.meets:
            return
        places = self._places.whole()
        known = (self.coupled, self._correct is None, self._outputs is None, self._shape if len(places) else None)
        coupled, no_classes, too_many, shapes = zip(*group.meet("the survey", known))
        self.coupled = any(coupled)
        given = dict.fromkeys(shape for shape in shapes if shape is not None)
        self._shape = next(iter(given))
        if any(no_classes):
            self._correct = None
        if any(too_many) or len(given) > 1:
            self._outputs = None
        fields = {
            "finite": self._finite,
            "losses": self._losses,
            "weights": self._weights,
            "correct": self._correct,
            "outputs": self._outputs,
        }
        taken = {name: own.whole() for name, own in fields.items() if own is not None and len(own)}
        rows = {name: laid_out(self.problem, own, places) for name, own in taken.items()}
        united, _ = group.united(rows, device=self.problem.device)
        for name, whole in united.items():
            buffer = RowBuffer()
            buffer.add(whole)
            setattr(self, f"_{name}", buffer)
        self._fingerprint.unite(self.problem, group)

    def survey(self) -> Survey:
        """Return what was found, after the last batch."""
        losses, weights = self._losses.whole(), self._weights.whole()
        self._refuse_not_finite(self._finite.whole())
        self._refuse_not_finite_losses(losses)
        if float(weights.sum()) <= 0:
            raise SpiritlevelError(
                "the loss gives every sample weight zero (all labels ignored?), so there is no mean loss to measure; "
                "give labels of which some count"
            )
        count, total_weight = len(losses), float(weights.sum())
        return Survey(
            count=count,
            total_weight=total_weight,
            losses=losses.cpu(),
            weights=weights.cpu(),
            correct=None if self._correct is None else self._correct.whole().cpu(),
            output_shape=tuple(self._shape),
            outputs=None if self._outputs is None else self._outputs.whole().cpu(),
            coupled=self.coupled,
            fingerprint=str(self._fingerprint),
        )

    def _refuse_not_finite(self, finite: Tensor, start: int = 0) -> None:
        if not bool(finite.all()):
            bad = self._index(int((~finite).nonzero()[0]) + start)
            raise SpiritlevelError(
                f"the model's outputs are not finite (first at sample {bad}); look for overflow or for bad inputs there"
            )

    def _refuse_not_finite_losses(self, losses: Tensor) -> None:
        if not bool(torch.isfinite(losses).all()):
            bad = self._index(int((~torch.isfinite(losses)).nonzero()[0]))
            raise SpiritlevelError(f"the loss is not finite at sample {bad}; look at that sample's input and label")

    def _index(self, place: int) -> int:
        return self.problem.source.index(place)


def checked_outputs(problem: OpenProblem, batch: Batch) -> Tensor:
    """Return the model's outputs on a batch, or say why there are none to be measured."""
    try:
        ask_for_labels(problem, batch.content)
        outputs = problem.outputs(batch.content)
    except SpiritlevelError:
        raise
    except Exception as error:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_of(batch.content))
        raise SpiritlevelError(
            f"the model could not be run on a batch of the data (tensors of shape {shapes}): "
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}; "
            f"{_way_out(error)}"
        ) from error
    if outputs.shape[:1] != (batch.count,):
        raise SpiritlevelError(
            f"the model gave outputs of shape {tuple(outputs.shape)} for a batch of {batch.count} samples; "
            "their first dimension must be the samples: give forward=function (model, batch) that returns them, not "
            f"their loss{_what_was_taken(problem)}"
        )
    return outputs


def _way_out(error: Exception) -> str:
    """Say what to look at where a model cannot be run."""
    if isinstance(error, IndexError) and "index out of range" in str(error):
        return "look for tokens beyond the model's vocabulary, and for sequences longer than its positions"
    return "pass data that the model takes as (inputs, labels) or by keyword, or forward=function (model, batch)"


def _has_coupled_losses(problem: OpenProblem, batch: Batch, outputs: Tensor, together: Tensor) -> bool:
    """Whether a user's loss gives a part of the batch other values alone than beside the rest, of the same outputs.

    In training mode it is then the loss of the batches as they come. Else it is refused: sweeps in other batches would
    find other losses, which is what shuffled data looks like.
    """
    half = batch.count // 2
    if not isinstance(problem.loss, CallableLoss) or not half:
        return False
    for part in (slice(0, half), slice(half, batch.count)):
        try:
            alone, _ = problem.loss.per_sample(outputs[part], slice_batch(batch.content, part.start, part.stop))
        except Exception:  # what the loss cannot do with fewer samples is said where that is asked of it
            return False
        if not _close(alone.detach().double(), together[part], problem.dtype):
            if problem.mode == "train":
                return True
            said = "a sample's loss is another when other samples of its batch are left away"
            raise SpiritlevelError(coupled_in_words(problem.loss.name, said))
    return False


def _depends_on_neighbours(problem: OpenProblem, batch: Batch, outputs: Tensor) -> bool:
    """Whether a sample's outputs depend on what is in its batch (BatchNorm in training mode), or on how much is."""
    if batch.count == 1:
        return any(
            isinstance(module, BATCH_NORMS) and (module.training or module.running_mean is None)
            for module in problem.model.modules()
        )
    half = (batch.count + 1) // 2
    for count in sorted({min(half, size) for size in SMALL_BATCHES}, reverse=True):
        try:
            alone = problem.outputs(slice_batch(batch.content, 0, count))
        except Exception:  # a model that needs its whole batch
            return True
        if differ(alone, outputs[:count]):
            return True
    return False


def differ(alone: Tensor, together: Tensor) -> bool:
    """Whether outputs differ by more than kernels do that sum in another order for another batch size."""
    if alone.shape != together.shape:
        return True
    scale = together.abs().max() + 1e-30
    return bool((alone - together).abs().max() > (1e-3 if together.dtype == torch.float32 else 1e-8) * scale)


def _what_was_taken(problem: OpenProblem) -> str:
    """Go on with the tensor that was taken of several the model returned, where a sentence ends with what is wrong."""
    taken = problem.output_taken
    return f"; {taken[0].lower()}{taken[1:].rstrip('.')}" if taken else ""


def _close(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    return bool(((a - b).abs() <= tolerance * (b.abs() + b.abs().mean() + 1e-12)).all())


def _correct(outputs: Tensor, content: Content) -> Tensor | None:
    """Return which samples are classified right, where outputs (B, C) are scores of integer labels (B,)."""
    try:
        labels = labels_of(content)
    except UsageError:  # a loss of the user's own may need no labels
        return None
    if outputs.ndim != 2 or outputs.shape[1] < 2 or labels.shape != outputs.shape[:1] or labels.is_floating_point():
        return None
    return outputs.argmax(1) == labels

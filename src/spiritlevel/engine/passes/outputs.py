"""What a forward pass alone tells of each sample: its loss, margins, softmax impurity and the size of its features.

The outputs kept by the first sweep are used where they are; the model runs again only where they were too many to
keep, or where the features of its last layer are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from spiritlevel.engine.passes.head import find_head, head_inputs
from spiritlevel.inputs.contents import Content, tensors_of
from spiritlevel.inputs.losses import CrossEntropy, NormalizedCrossEntropy, labels_of, softmax_impurity
from spiritlevel.inputs.losses.base import LABEL_KEYS
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.sweeping import SampleRows
from spiritlevel.values.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class OutputStats:
    """Numbers of every sample, in data order, as float64 vectors on the CPU; None where they have no meaning.

    Margins are signed, negative for a misclassified sample, and NaN for a sample whose label the loss ignores.
    """

    problem: OpenProblem = field(repr=False)
    weights: Tensor  # (N,): the samples' weights in the mean loss
    losses: Tensor
    labels: Tensor | None  # (N,) int64
    correct: Tensor | None  # (N,) bool
    output_margin: Tensor | None  # f_y - max_{j≠y} f_j
    softmax_margin: Tensor | None  # the same of the probabilities
    impurity: Tensor | None  # 1 - ‖p‖²
    one_minus_margin_squared: Tensor | None  # 1 - (softmax margin)²
    input_norm_squared: Tensor | None  # of the sample's floating-point input, where there is one
    head: str | None  # the linear layer whose output is the network's
    head_has_bias: bool  # False only for a head that was found and has none

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(self.losses)

    @cached_property
    def feature_norm_squared(self) -> Tensor | None:
        """‖φ‖² of the head's input, None where no linear layer gives the outputs; one more sweep, made when asked."""
        if self.head is None:
            return None
        return head_inputs(self.problem, self.head, lambda inputs: inputs.double().square().sum(1).cpu())


def forward_statistics(problem: OpenProblem) -> OutputStats:
    """Return the forward-only numbers of every sample; reads the data once and runs the model only where it must."""
    survey = problem.survey
    rows = SampleRows(problem)
    head: str | None = None
    with problem.sweep("margins") as group, torch.no_grad():
        for batch in problem.batches("margins"):
            if batch.start == 0:
                head = find_head(problem, batch)
            if survey.outputs is None:
                outputs = problem.outputs(batch.content)
            else:
                outputs = survey.outputs[batch.start : batch.start + batch.count].to(problem.device)
            # Labels read now must belong to the outputs kept from the first sweep.
            problem.agrees(batch, problem.loss.per_sample(outputs, batch.content)[0])
            rows.add(batch, _numbers(problem, outputs, batch.content))
    head = group.meet("the head", head)[0]
    if survey.outputs is None:
        problem.spent["forward"] += 1
    joined = rows.united(group)
    module = None if head is None else problem.model.get_submodule(head)
    return OutputStats(
        problem=problem,
        weights=survey.weights,
        losses=survey.losses,
        correct=survey.correct,
        head=head,
        head_has_bias=module is None or getattr(module, "bias", None) is not None,
        **joined,
    )


def _numbers(problem: OpenProblem, outputs: Tensor, content: Content) -> dict[str, Tensor | None]:
    found: dict[str, Tensor | None] = dict.fromkeys(
        ("labels", "output_margin", "softmax_margin", "one_minus_margin_squared", "impurity", "input_norm_squared")
    )
    inputs = _floating_input(content)
    if inputs is not None:
        found["input_norm_squared"] = inputs.double().reshape(len(inputs), -1).square().sum(1).cpu()
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        return found
    labels = _labels(content)
    if labels is not None and labels.shape == outputs.shape[:1] and not labels.is_floating_point():
        found["labels"] = labels.long().cpu()
        found.update(margins(outputs, labels))
        found["impurity"] = softmax_impurity(outputs).cpu()
    elif isinstance(problem.loss, (CrossEntropy, NormalizedCrossEntropy)):  # labels are probabilities
        found["impurity"] = softmax_impurity(outputs).cpu()
    return found


def margins(outputs: Tensor, labels: Tensor) -> dict[str, Tensor | None]:
    """Return the signed margins of scores (B, C) and of their softmax, and 1 - (softmax margin)², without cancelling.

    With j the strongest other class and γ = p_y - p_j: |γ| = max(p_y, p_j)·(1 - e^{-|f_y - f_j|}) keeps its digits
    however close the two are, and 1 - |γ| = Σ_{c≠argmax} p_c + min(p_y, p_j), a sum of small numbers, keeps them
    however far apart.  The larger of the two is the largest of all, whether the sample is classified right or wrong.
    """
    scores, classes = outputs.detach().double(), outputs.shape[1]
    labels = labels.to(scores.device)
    counted = (labels >= 0) & (labels < classes)
    own = labels.where(counted, 0).long()[:, None]
    rivals = scores.scatter(1, own, -torch.inf)
    rival = rivals.argmax(1, keepdim=True)
    gap = scores.gather(1, own) - scores.gather(1, rival)
    log_p = torch.log_softmax(scores, 1)
    log_own, log_rival = log_p.gather(1, own), log_p.gather(1, rival)
    top = own.where(gap >= 0, rival)
    size = torch.maximum(log_own, log_rival).exp() * -torch.expm1(-gap.abs())
    remainder = log_p.exp().scatter(1, top, 0.0).sum(1, keepdim=True) + torch.minimum(log_own, log_rival).exp()
    values = {
        "output_margin": gap,
        "softmax_margin": gap.sign() * size,
        "one_minus_margin_squared": (1 + size) * remainder,
    }
    return {name: value[:, 0].where(counted, torch.nan).cpu() for name, value in values.items()}


def _labels(content: Content) -> Tensor | None:
    try:
        return labels_of(content)
    except UsageError:  # the loss is a function of the batch and names no labels
        return None


def _floating_input(content: Content) -> Tensor | None:
    if isinstance(content, Mapping):
        inputs = [value for key, value in content.items() if key not in LABEL_KEYS]
    else:
        inputs = [content[0], *content[2:]]
    floating = [tensor for tensor in tensors_of(inputs) if tensor.is_floating_point() and tensor.ndim]
    return floating[0] if len(floating) == 1 else None

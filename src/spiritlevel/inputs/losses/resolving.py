"""From what a person writes for a loss (a name, a torch module, a function) to a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import nn

from spiritlevel.inputs.losses.base import Loss
from spiritlevel.inputs.losses.contrastive import ContrastivePairs
from spiritlevel.inputs.losses.cross_entropy import CrossEntropy, NextToken, SameToken
from spiritlevel.inputs.losses.custom import CallableLoss
from spiritlevel.inputs.losses.elementwise import BinaryCrossEntropy, MeanSquaredError
from spiritlevel.inputs.losses.gaussian import GaussianNLL
from spiritlevel.inputs.losses.normalized import NormalizedCrossEntropy
from spiritlevel.inputs.losses.of_model import loss_of_model
from spiritlevel.inputs.torch_internals.base_classes import LOSS_MODULES
from spiritlevel.values.errors import UsageError, near_names

# What a name stands for, and what it says of outputs and labels.
LOSSES: dict[str, tuple[Callable[[], Loss], str]] = {
    "cross_entropy": (
        CrossEntropy,
        "cross-entropy of class logits (B, C), or per position or pixel (B, C, H, W); integer labels, -100 is ignored",
    ),
    "binary_cross_entropy": (
        BinaryCrossEntropy,
        "cross-entropy of independent yes-or-no logits; labels from 0 to 1",
    ),
    "mean_squared_error": (
        MeanSquaredError,
        "squared error, averaged over a sample's outputs; labels of the shape of the outputs",
    ),
    "normalized_cross_entropy": (
        NormalizedCrossEntropy,
        "cross-entropy of standardised logits (Tsuzuku et al. 2019, eq. 20)",
    ),
    "next_token": (
        NextToken,
        "cross-entropy of logits (B, T, C) against the next label of a sequence (B, T); padding and -100 are ignored",
    ),
    "same_token": (
        SameToken,
        "cross-entropy of logits (B, T, C) against the label (B, T) at the same position, as of masked tokens; -100 is "
        "ignored",
    ),
    "gaussian_nll": (
        GaussianNLL,
        "likelihood of labels (B, D) under means and log-variances, the halves of outputs (B, 2D)",
    ),
    "contrastive_pairs": (
        ContrastivePairs,
        "distance of embeddings (B, 2, D) that are alike (label 1), nearness within 1 of those that are not (label 0)",
    ),
}
NAMES: dict[str, str] = {name: words for name, (_, words) in LOSSES.items()}
ALIASES = {
    "ce": "cross_entropy",
    "bce": "binary_cross_entropy",
    "mse": "mean_squared_error",
    "masked_token": "same_token",
}
OF_MODEL = "model"  # not a loss but the question which: answered by a Hugging Face model's class and config
_FUNCTIONS: dict[Any, str] = {
    F.cross_entropy: "cross_entropy",
    F.binary_cross_entropy_with_logits: "binary_cross_entropy",
    F.mse_loss: "mean_squared_error",
}


def resolve(loss: str | Loss | nn.Module | Callable[..., Any], model: nn.Module | None = None) -> Loss:
    """Loss for a name, a `Loss`, one of torch's loss modules or functions, or a callable (outputs, batch).

    Parameters
    ----------
    loss : str, Loss, torch loss module or callable
        A name or alias ("ce", "bce", "mse"), "model" for the loss that a Hugging Face model was made for, or the loss.
    model : torch.nn.Module
        The Hugging Face model, for "model".

    Returns
    -------
    Loss
        The loss.

    Raises
    ------
    UsageError
        There is no such loss, or torch's module has no loss of a sample.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> sl.losses.resolve("mse").name
    'mean_squared_error'
    >>> sl.losses.resolve(torch.nn.CrossEntropyLoss(label_smoothing=0.1)).label_smoothing
    0.1
    """
    if isinstance(loss, Loss):
        return loss
    if loss == OF_MODEL:
        return loss_of_model(model)
    if isinstance(loss, str):
        name = ALIASES.get(loss, loss)
        if name not in LOSSES:
            listed = f": the losses are {', '.join(NAMES)}, and {OF_MODEL!r} is a Hugging Face model's own"
            hint = near_names(loss, [*NAMES, *ALIASES, OF_MODEL]) or listed
            raise UsageError(f"There is no loss named {loss!r}{hint}")
        return LOSSES[name][0]()
    if isinstance(loss, LOSS_MODULES):
        return _from_torch(loss)
    if isinstance(loss, type) or not callable(loss):
        raise UsageError(
            f"loss is {loss!r}: pass a name ({', '.join(NAMES)}), a loss object, or a function (outputs, batch) that "
            "returns one loss per sample."
        )
    if loss in _FUNCTIONS:
        return LOSSES[_FUNCTIONS[loss]][0]()
    return CallableLoss(loss)


def _from_torch(module: nn.Module) -> Loss:
    kind = type(module).__name__
    if module.reduction == "sum":
        raise UsageError(
            f"{kind}(reduction='sum') grows with the number of samples: use reduction='mean', the loss measured here."
        )
    if isinstance(module, nn.CrossEntropyLoss):
        return CrossEntropy(module.label_smoothing, module.weight, module.ignore_index)
    if isinstance(module, nn.BCEWithLogitsLoss):
        if module.weight is not None:
            raise UsageError(
                "BCEWithLogitsLoss(weight=...) is bound to one batch: write a function (outputs, batch) that returns "
                "(losses, weights) instead."
            )
        return BinaryCrossEntropy(module.pos_weight)
    if isinstance(module, nn.MSELoss):
        return MeanSquaredError()
    if isinstance(module, nn.GaussianNLLLoss):
        raise UsageError(
            "GaussianNLLLoss takes the variance beside the outputs: let the model return means and log-variances in "
            "one tensor and pass loss='gaussian_nll', or write a function (outputs, batch)."
        )
    raise UsageError(
        f"torch.nn.{kind} is not among the losses known here: write a function (outputs, batch) that returns one loss "
        "per sample, for instance with reduction='none'."
    )

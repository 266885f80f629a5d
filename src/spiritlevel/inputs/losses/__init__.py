"""Losses as functions of the outputs: value per sample, and a factor of the second derivative Λ = ∂²ℓ/∂f²."""

from __future__ import annotations

from spiritlevel.inputs.contents import Content as Batch
from spiritlevel.inputs.losses.base import Factor, Loss, labels_of
from spiritlevel.inputs.losses.contrastive import ContrastivePairs
from spiritlevel.inputs.losses.cross_entropy import CrossEntropy, NextToken, SameToken
from spiritlevel.inputs.losses.custom import CallableLoss
from spiritlevel.inputs.losses.elementwise import BinaryCrossEntropy, MeanSquaredError
from spiritlevel.inputs.losses.gaussian import GaussianNLL
from spiritlevel.inputs.losses.normalized import NormalizedCrossEntropy
from spiritlevel.inputs.losses.resolving import ALIASES, NAMES, resolve
from spiritlevel.inputs.losses.signs import index_signs
from spiritlevel.inputs.losses.softmax import (
    one_minus_softmax_margin_squared,
    probabilities_and_tails,
    softmax_impurity,
)

__all__ = [
    "ALIASES",
    "NAMES",
    "Batch",
    "BinaryCrossEntropy",
    "CallableLoss",
    "ContrastivePairs",
    "CrossEntropy",
    "Factor",
    "GaussianNLL",
    "Loss",
    "MeanSquaredError",
    "NextToken",
    "NormalizedCrossEntropy",
    "SameToken",
    "index_signs",
    "labels_of",
    "one_minus_softmax_margin_squared",
    "probabilities_and_tails",
    "resolve",
    "softmax_impurity",
]

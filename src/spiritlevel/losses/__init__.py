"""Losses as functions of the outputs: value per sample, and a factor of the second derivative Λ = ∂²ℓ/∂f²."""

from __future__ import annotations

from .base import Batch, Factor, Loss, labels_of
from .cross_entropy import CrossEntropy, NextToken, SameToken
from .custom import CallableLoss
from .elementwise import BinaryCrossEntropy, MeanSquaredError
from .normalized import NormalizedCrossEntropy
from .resolving import ALIASES, NAMES, resolve
from .signs import index_signs
from .softmax import one_minus_softmax_margin_squared, probabilities_and_tails, softmax_impurity

__all__ = [
    "ALIASES",
    "NAMES",
    "Batch",
    "BinaryCrossEntropy",
    "CallableLoss",
    "CrossEntropy",
    "Factor",
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

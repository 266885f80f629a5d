"""The loss a Hugging Face model was made for, read from the name of its class and from its config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from spiritlevel.inputs.contents import Content
from spiritlevel.inputs.losses.base import Loss, labels_of
from spiritlevel.inputs.losses.cross_entropy import CrossEntropy, NextToken, SameToken
from spiritlevel.inputs.losses.elementwise import BinaryCrossEntropy, MeanSquaredError
from spiritlevel.values.errors import UsageError

# How Hugging Face names the classes whose outputs are scores of the next token.
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")
# Others whose loss compares scores with the label at the same position, or with one label a sample.
TOKEN_MODELS = ("ForMaskedLM", "ForTokenClassification")
SAMPLE_MODELS = ("ForSequenceClassification", "ForImageClassification")
WAY_OUT = (
    "pass loss=... as a name (next_token, same_token, cross_entropy, binary_cross_entropy, mean_squared_error) or as a "
    "function (outputs, batch) that returns one loss per sample"
)


@dataclass(frozen=True)
class _ClassIndices(CrossEntropy):
    """Cross-entropy where the config leaves the kind of problem open, as Hugging Face decides by the labels."""

    def _read(self, outputs: Tensor, batch: Content) -> tuple[Tensor, Tensor, int]:
        if labels_of(batch).is_floating_point():
            raise UsageError(
                "loss='model' found labels that are no integers, and the model's config.problem_type does not say what "
                "they are: pass loss='binary_cross_entropy' for several labels a sample, as Hugging Face takes them, "
                "or loss='cross_entropy' for probabilities."
            )
        return super()._read(outputs, batch)


def loss_of_model(model: nn.Module | None) -> Loss:
    """Return the named loss that a model's own is the mean of, which as one number for a batch hides its samples."""
    config = getattr(model, "config", None)
    if model is None or config is None:
        owner = "no model was given" if model is None else f"{type(model).__name__} has no config"
        raise UsageError(f"loss='model' is read from a Hugging Face model's class and config, and {owner}: {WAY_OUT}.")
    name = _class_name(model, config)
    if vars(model).get("_loss_function") is not None:
        raise UsageError(f"{name} was given a loss function of its own, which loss='model' cannot read: {WAY_OUT}.")
    if getattr(config, "output_router_logits", False):
        raise UsageError(
            f"{name} adds a loss of its router (config.output_router_logits), which is one number for a batch: set "
            f"that to False to measure the loss of its tokens, or {WAY_OUT}."
        )
    if name.endswith(LANGUAGE_MODELS):
        return NextToken()
    encoder_decoder = name.endswith("ForConditionalGeneration") and getattr(config, "is_encoder_decoder", False)
    if name.endswith(TOKEN_MODELS) or encoder_decoder:
        return SameToken()
    if name.endswith(SAMPLE_MODELS):
        return _of_samples(config)
    raise UsageError(f"loss='model' does not know the loss of {name}: {WAY_OUT}.")


def _class_name(model: nn.Module, config: Any) -> str:
    """The name that Hugging Face chooses a loss by: the config's, where it has one, before the class's."""
    named = getattr(config, "loss_type", None)
    return named if isinstance(named, str) and named else type(model).__name__


def _of_samples(config: Any) -> Loss:
    problem = getattr(config, "problem_type", None)
    known: dict[str, type[Loss]] = {
        "regression": MeanSquaredError,
        "single_label_classification": CrossEntropy,
        "multi_label_classification": BinaryCrossEntropy,
    }
    if problem is None:
        return MeanSquaredError() if getattr(config, "num_labels", None) == 1 else _ClassIndices()
    if problem not in known:
        raise UsageError(f"loss='model' does not know config.problem_type {problem!r}: {WAY_OUT}.")
    return known[problem]()

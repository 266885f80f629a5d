"""A Hugging Face model's own loss, told by the names and configs its classes have there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from spiritlevel.engine.problem import Problem
from spiritlevel.inputs import losses as sl
from spiritlevel.values.errors import UsageError


def named(name: str, **config: Any) -> nn.Module:
    """A model of a class of that name with a config, as far as a loss is told by them."""
    model: nn.Module = type(name, (nn.Linear,), {})(3, 3)
    model.config = SimpleNamespace(**config)  # type: ignore[assignment]
    return model


@pytest.mark.parametrize(
    ("name", "config", "loss"),
    [
        ("LlamaForCausalLM", {}, sl.NextToken()),
        ("GPT2LMHeadModel", {"loss_type": None}, sl.NextToken()),
        ("PeftModelForCausalLM", {}, sl.NextToken()),
        ("MixtralForCausalLM", {"output_router_logits": False}, sl.NextToken()),
        ("BertForMaskedLM", {}, sl.SameToken()),
        ("BertForTokenClassification", {"num_labels": 5}, sl.SameToken()),
        ("T5ForConditionalGeneration", {"is_encoder_decoder": True}, sl.SameToken()),
        ("BertForSequenceClassification", {"num_labels": 1, "problem_type": None}, sl.MeanSquaredError()),
        ("BertForSequenceClassification", {"num_labels": 3, "problem_type": "regression"}, sl.MeanSquaredError()),
        ("ViTForImageClassification", {"problem_type": "single_label_classification"}, sl.CrossEntropy()),
        ("BertForSequenceClassification", {"problem_type": "multi_label_classification"}, sl.BinaryCrossEntropy()),
        ("MyNetwork", {"loss_type": "ForMaskedLM"}, sl.SameToken()),
    ],
)
def test_the_loss_is_the_class_s(name: str, config: dict[str, Any], loss: sl.Loss) -> None:
    assert sl.resolve("model", named(name, **config)) == loss
    assert Problem(named(name, **config), (torch.ones(2, 3), torch.zeros(2)), "model").loss == loss


def test_labels_tell_where_the_config_does_not() -> None:
    loss = sl.resolve("model", named("BertForSequenceClassification", num_labels=3))
    outputs, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    expected = sl.CrossEntropy().per_sample(outputs, (None, labels))[0]
    torch.testing.assert_close(loss.per_sample(outputs, (None, labels))[0], expected)
    for call in (loss.per_sample, loss.factor):
        with pytest.raises(UsageError, match="pass loss='binary_cross_entropy'"):
            call(outputs, (None, torch.ones(4, 3)))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (None, "no model was given"),
        (nn.Linear(3, 3), "Linear has no config"),
        (named("BertForQuestionAnswering"), "does not know the loss of BertForQuestionAnswering"),
        (named("LlavaForConditionalGeneration"), "does not know the loss of LlavaForConditionalGeneration"),
        (named("BertForSequenceClassification", problem_type="ranking"), "problem_type 'ranking'"),
        (named("MixtralForCausalLM", output_router_logits=True), "a loss of its router"),
    ],
)
def test_what_is_not_known_is_refused_with_a_way_out(model: nn.Module | None, words: str) -> None:
    with pytest.raises(UsageError, match=f"{words}.*function \\(outputs, batch\\)"):
        sl.resolve("model", model)


def test_a_loss_function_set_on_the_model_is_not_overlooked() -> None:
    model = named("LlamaForCausalLM")
    model._loss_function = lambda logits, labels: logits.mean()  # type: ignore[assignment]
    with pytest.raises(UsageError, match="a loss function of its own"):
        sl.resolve("model", model)

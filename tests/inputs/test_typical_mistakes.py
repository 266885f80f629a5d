"""What a new user gets wrong with language models and others, and the sentence that says how to go on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.values.errors import SpiritlevelError

TOKENS, LENGTH = 7, 6


class Language(nn.Module):
    """Scores of the next token at each of at most so many positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(TOKENS, 4), nn.Embedding(LENGTH, 4)
        self.out = nn.Linear(4, TOKENS)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        places = torch.arange(input_ids.shape[1])
        return {"logits": self.out(torch.tanh(self.embedding(input_ids) + self.position(places)))}


class Headless(Language):
    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        return {"loss": None}


class LossOnly(Language):
    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        return super().forward(input_ids)["logits"].square().mean()


class Detached(Language):
    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        return {"logits": super().forward(input_ids)["logits"].detach()}


def ids(length: int = LENGTH, high: int = TOKENS) -> Tensor:
    return torch.randint(high, (8, length), generator=torch.Generator().manual_seed(0))


def texts(**other: Any) -> dict[str, Any]:
    return {"input_ids": ids(), "labels": ids(), **other}


def measure(model: Any, data: Any, loss: Any = "next_token", **options: Any) -> Any:
    return sl.measure(model, data, "hessian_trace", loss=loss, **options)


def scalar_loss(outputs: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())


def coupled_loss(outputs: Tensor, batch: Any) -> Tensor:
    pooled = F.normalize(outputs.mean(1), dim=1)
    return F.cross_entropy(pooled @ pooled.T, torch.arange(len(pooled)), reduction="none")


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


def with_nan() -> nn.Module:
    model = classifier()
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    return model


# What is done, and what is said: what was found, and how to go on.
MISTAKES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "the loss of a classifier for a language model": (
        lambda: measure(Language(), texts(), "cross_entropy"),
        r"labels are the inputs",
        r"say loss='next_token'",
    ),
    "no labels": (lambda: measure(Language(), {"input_ids": ids()}), r"no labels", r"name them one of"),
    "texts in place of tokens": (
        lambda: measure(Language(), {"input_ids": ["a text"] * 8, "labels": ids()}),
        r"could not be run",
        r"pass data that the model takes",
    ),
    "every label ignored": (
        lambda: measure(Language(), texts(labels=torch.full((8, LENGTH), -100))),
        r"weight zero",
        r"some count",
    ),
    "sequences longer than the model's": (
        lambda: measure(Language(), {"input_ids": ids(9), "labels": ids(9)}),
        r"could not be run.*\(8, 9\)",
        r"longer than its positions",
    ),
    "tokens beyond the vocabulary": (
        lambda: measure(Language(), {"input_ids": ids(high=50), "labels": ids(high=50)}),
        r"could not be run",
        r"beyond the model's vocabulary",
    ),
    "a model that returns no logits": (lambda: measure(Headless(), texts()), r"no output tensor", r"pass forward="),
    "a model that returns its loss": (lambda: measure(LossOnly(), texts()), r"shape \(\)", r"not their loss"),
    "outputs cut from the graph": (
        lambda: measure(Detached(), texts()),
        r"take no gradient",
        r"return them as they are computed",
    ),
    "a loss that is one number": (
        lambda: measure(Language(), texts(), scalar_loss),
        r"shape \(\)",
        r"one loss per sample",
    ),
    "a loss that couples the batch": (
        lambda: measure(Language(), texts(), coupled_loss),
        r"couples the samples of a batch",
        r"mode=.train.",
    ),
    "a generator for data": (
        lambda: measure(classifier(), ((X, Y) for _ in range(2)), "cross_entropy"),
        r"read only once",
        r"list",
    ),
    "half precision": (
        lambda: measure(classifier(), (X, Y), "cross_entropy", dtype="float16"),
        r"float16",
        r"'float32' or 'float64'",
    ),
    "no such precision": (
        lambda: measure(classifier(), (X, Y), "cross_entropy", precision="half"),
        r"'half'",
        r"tf32 or bfloat16",
    ),
    "no such time": (
        lambda: measure(classifier(), (X, Y), "cross_entropy", seconds=-1),
        r"not -1",
        r"must be a positive number",
    ),
    "no such tolerance": (
        lambda: measure(classifier(), (X, Y), "cross_entropy", tolerance=5),
        r"tolerance",
        r"between 0 and 1",
    ),
    "labels of more classes": (
        lambda: measure(classifier(), (X, Y + 5), "cross_entropy"),
        r"the label 5.*3 classes",
        r"must be 0 to 2",
    ),
    "inputs and labels in the wrong order": (
        lambda: measure(classifier(), (Y, X), "cross_entropy"),
        r"could not be run",
        r"\(inputs, labels\)",
    ),
    "a name misspelt": (lambda: measure(classifier(), (X, Y), "crossentropy"), r"crossentropy", r"did you mean"),
    "parameters misspelt": (
        lambda: measure(classifier(), (X, Y), "cross_entropy", parameters=["layer.*"]),
        r"layer\.\*",
        r"there are 0\.weight",
    ),
    "a class for a model": (lambda: measure(Language, texts()), r"must be a torch.nn.Module", r"make one, as Language"),
    "weights that diverged": (
        lambda: measure(with_nan(), (X, Y), "cross_entropy"),
        r"0\.weight",
        r"use a checkpoint from before",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_one_sentence_that_goes_on(name: str) -> None:
    torch.manual_seed(0)
    make, found, way_out = MISTAKES[name]
    with pytest.raises(SpiritlevelError) as caught:
        make()
    said = str(caught.value)
    assert re.search(found, said), said
    assert re.search(way_out, said), said
    assert "\n" not in said
    assert 40 < len(said) < 500

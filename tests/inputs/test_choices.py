"""Where a batch or a model can be read in two ways the tool asks, or says which one it took."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spiritlevel as sl
from spiritlevel.inputs.losses import CrossEntropy, SameToken, labels_of
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.reference.dense import Dense
from spiritlevel.values.errors import SpiritlevelError, UsageError
from tests.helpers import opened

COUNT, LENGTH, VOCABULARY = 6, 5, 7


# --- this token or the next ----------------------------------------------------------------------------------------


class Language(nn.Module):
    """A causal model of tokens: each output sees its own token and those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 3), nn.Linear(3, VOCABULARY)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(torch.relu(self.embed(input_ids).cumsum(1)))


class TinyForCausalLM(Language):
    """Named as Hugging Face names them."""


def language(kind: type[Language] = Language) -> Language:
    torch.manual_seed(0)
    return kind().double()


def tokens() -> Tensor:
    return torch.randint(0, VOCABULARY, (COUNT, LENGTH), generator=torch.Generator().manual_seed(3))


def padded(ids: Tensor) -> Tensor:
    labels = ids.clone()
    labels[1, 3:] = -100
    labels[4, :2] = -100
    return labels


def same_object() -> Any:
    ids = tokens()
    return [(ids, ids)]


EQUAL: dict[str, Callable[[], Any]] = {
    "tensors": lambda: (tokens(), tokens()),
    "one_tensor_twice": same_object,
    "padded": lambda: (tokens(), padded(tokens())),
    "other_integers": lambda: (tokens(), tokens().int()),
    "dict": lambda: {"input_ids": tokens(), "labels": padded(tokens())},
    "dict_batches": lambda: [{"input_ids": t, "attention_mask": t > 0, "labels": t} for t in tokens().split(4)],
    "nested": lambda: ((tokens(), tokens() > 0), tokens()),
    "loader": lambda: DataLoader(TensorDataset(tokens(), tokens()), batch_size=2, shuffle=True),
}


@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss(), CrossEntropy(class_axis=-1)])
@pytest.mark.parametrize("name", EQUAL)
def test_labels_that_are_the_inputs_are_asked_about(name: str, loss: Any) -> None:
    with pytest.raises(UsageError, match=r"labels are the inputs.*'next_token'.*'same_token'") as caught:
        opened(language(), EQUAL[name](), loss).survey  # noqa: B018
    assert "\n" not in str(caught.value)


def test_both_answers_give_the_number_they_name() -> None:
    model, ids = language(), tokens()
    logits = model(ids).detach()
    shifted = float(F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1)))
    unshifted = float(F.cross_entropy(logits.reshape(-1, VOCABULARY), ids.reshape(-1)))
    names = ["hessian_trace"]
    following = opened(model, (ids, ids), "next_token")
    assert following.survey.loss == pytest.approx(shifted, rel=1e-12)
    for loss in ("same_token", SameToken()):
        same = opened(model, (ids, ids), loss)
        assert same.survey.loss == pytest.approx(unshifted, rel=1e-12)
        assert sl.measure(same, names).header.loss_name == "same_token"
        assert float(Dense(same).ggn.trace()) != pytest.approx(float(Dense(following).ggn.trace()), rel=0.05)


def test_same_token_is_the_cross_entropy_at_each_position() -> None:
    ids = tokens()
    labels = padded((ids + 1) % VOCABULARY)
    plain, named = (sl.measure(opened(language(), (ids, labels), loss)) for loss in ("cross_entropy", "same_token"))
    for name in plain:
        torch.testing.assert_close(named[name].value, plain[name].value, equal_nan=True)


def test_labels_of_their_own_are_not_asked_about() -> None:
    ids = tokens()
    for data in ((ids[:, :-1], ids[:, 1:]), (ids, (ids + 1) % VOCABULARY), (ids, ids.clone().roll(1, 0))):
        assert opened(language(), data).survey.count == COUNT
    one_each = nn.Sequential(nn.Embedding(VOCABULARY, VOCABULARY), nn.Flatten(0, 1)).double()
    column = torch.arange(COUNT)[:, None] % VOCABULARY
    assert opened(one_each, (column, column[:, 0])).survey.count == COUNT  # a class a sample: no sequence


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_model_called_causal_is_asked_about(wrapped: bool) -> None:
    ids = tokens()
    model: nn.Module = language(TinyForCausalLM)
    model = nn.Sequential(model) if wrapped else model
    with pytest.raises(UsageError, match=r"TinyForCausalLM is a model of the next token.*'same_token'"):
        opened(model, (ids[:, :-1], ids[:, 1:])).survey  # noqa: B018
    for loss in ("same_token", "next_token", lambda outputs, batch: outputs.square().mean((1, 2))):
        assert opened(model, (ids[:, :-1], ids[:, 1:]), loss).survey.count == COUNT


# --- more than inputs and labels -----------------------------------------------------------------------------------


class Pooled(nn.Module):
    """Classes of padded sequences; without lengths the padding counts."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 6)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        hidden = torch.relu(self.body(x))
        if lengths is None:
            return self.head(hidden.mean(1))
        inside = torch.arange(x.shape[1]) < lengths[:, None]
        return self.head((hidden * inside[..., None]).sum(1) / lengths[:, None])


def pooled() -> Pooled:
    torch.manual_seed(1)
    return Pooled().double()


def sequences() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(9, 5, 3, generator=generator).double()
    return x, torch.tensor([5, 1, 2, 3, 4, 5, 2, 1, 3]), torch.randint(0, 6, (9,), generator=generator)


def with_lengths(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0], batch[1])


def on_the_last(outputs: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(outputs, batch[2], reduction="none")


THREE: dict[str, Callable[[], Any]] = {
    "tensors": sequences,
    "dataset": lambda: TensorDataset(*sequences()),
    "loader": lambda: DataLoader(TensorDataset(*sequences()), batch_size=4),
    "batches": lambda: [tuple(t[:5] for t in sequences()), [t[5:] for t in sequences()]],
    "nested_and_one_more": lambda: (sequences()[:2], sequences()[2], sequences()[2]),
}


@pytest.mark.parametrize("forward", [None, with_lengths])
@pytest.mark.parametrize("name", THREE)
def test_three_entries_are_asked_about(name: str, forward: Any) -> None:
    with pytest.raises(UsageError, match=r"3 entries of tensors.*\(\(inputs, \.\.\.\), labels\).*forward") as caught:
        opened(pooled(), THREE[name](), forward=forward).survey  # noqa: B018
    assert "\n" not in str(caught.value)


def test_every_answer_about_three_entries_measures_the_labels() -> None:
    x, lengths, y = sequences()
    model = pooled()
    expected = float(F.cross_entropy(model(x, lengths), y).detach())
    answers = {
        "nested": opened(model, ((x, lengths), y)),
        "named": opened(model, ({"x": x, "lengths": lengths}, y)),
        "dict": opened(model, {"x": x, "lengths": lengths, "labels": y}),
        "functions": opened(model, (x, lengths, y), on_the_last, forward=with_lengths),
    }
    traces = {name: sl.measure(problem, "hessian_trace")["hessian_trace"].value for name, problem in answers.items()}
    for name, problem in answers.items():
        assert problem.survey.loss == pytest.approx(expected, rel=1e-12), name
        assert traces[name] == pytest.approx(traces["dict"], rel=1e-9), name
    assert not answers["functions"].notes
    assert answers["functions"].survey.accuracy is None  # lengths are no labels


def test_a_function_of_three_entries_with_the_usual_forward_says_what_the_model_saw() -> None:
    problem = opened(pooled(), sequences(), on_the_last)
    x, _, y = sequences()
    assert problem.survey.loss == pytest.approx(float(F.cross_entropy(pooled()(x), y).detach()), rel=1e-12)
    report = sl.measure(problem, "output_margin")
    assert any("3 entries, of which the model is given the first" in note for note in report.header.notes)
    assert report["output_margin"].status == "not_applicable"


def test_entries_without_tensors_leave_no_choice() -> None:
    x, lengths, y = sequences()
    names = [f"sample {i}" for i in range(len(y))]
    batches = [(x[:5], y[:5], names[:5]), (x[5:], y[5:], names[5:])]
    problem = opened(pooled(), batches, batch_size=2)
    assert problem.survey.loss == pytest.approx(opened(pooled(), (x, y)).survey.loss, rel=1e-12)
    assert [batch.content[2] for batch in problem.batches()][:3] == [names[:2], names[2:4], names[4:5]]
    with pytest.raises(UsageError, match="labels are a list that is no tensor"):
        opened(pooled(), [(x, names, y)]).survey  # noqa: B018
    assert lengths.shape == y.shape


@pytest.mark.parametrize("keys", [("labels", "y"), ("label", "labels"), ("label", "y")])
def test_two_entries_that_may_be_labels_are_asked_about(keys: tuple[str, str]) -> None:
    x, lengths, y = sequences()
    data = {"x": x, keys[0]: lengths, keys[1]: y}
    with pytest.raises(UsageError, match=r"entries .* and .*, and each may be its labels"):
        opened(pooled(), data).survey  # noqa: B018

    def loss(outputs: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(outputs, batch[keys[1]], reduction="none")

    problem = opened(pooled(), data, loss)
    assert problem.survey.loss == pytest.approx(opened(pooled(), (x, y)).survey.loss, rel=1e-12)
    assert any("kept from the model" in note for note in problem.notes)


# --- several outputs -----------------------------------------------------------------------------------------------


class Several(nn.Module):
    """Returns what it is told to make of two tensors."""

    def __init__(self, make: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second, self.make = nn.Linear(3, 3), nn.Linear(3, 4), make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.first(x), self.second(x))


class Outputs(NamedTuple):
    aux: Tensor
    logits: Tensor


def several(make: Callable[[Tensor, Tensor], Any]) -> OpenProblem:
    torch.manual_seed(0)
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)).double()
    return opened(Several(make).double(), (x, torch.arange(8) % 3))


STATED: dict[str, tuple[Callable[[Tensor, Tensor], Any], str, str]] = {
    "tuple": (lambda a, b: (a, b), "first", "2 tensors (of shape (3,), (4,) a sample), of which the first is measured"),
    "list": (lambda a, b: [a, b, b], "first", "3 tensors"),
    "and_states": (lambda a, b: (a, (b, b)), "first", "3 tensors"),
    "five": (lambda a, b: (a, b, b, b, b), "first", "5 tensors (of shape (3,), (4,), (4,), (4,), … a sample)"),
    "named": (lambda a, b: Outputs(a, b), "second", "its logits are measured"),
}


@pytest.mark.parametrize("name", STATED)
def test_which_of_several_outputs_was_taken_is_stated(name: str) -> None:
    make, layer, words = STATED[name]
    problem = several(make)
    report = sl.measure(problem, "hessian_trace")
    assert sum(words in note for note in report.header.notes) == 1
    x, y = next(problem.source.read())
    expected = F.cross_entropy(getattr(problem.model, layer)(x), y)
    assert report.loss == pytest.approx(float(expected.detach()), rel=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: a,
        lambda a, b: (a,),
        lambda a, b: (None, a),
        lambda a, b: (a, None, "text"),
        lambda a, b: {"logits": a, "hidden": b},
        lambda a, b: SimpleNamespace(logits=a, hidden=b),
    ],
)
def test_one_output_needs_no_words(make: Any) -> None:
    problem = several(make)
    x, y = next(problem.source.read())
    expected = F.cross_entropy(problem.model.first(x), y)
    assert problem.survey.loss == pytest.approx(float(expected.detach()), rel=1e-12)
    assert not problem.notes


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: (a.mean(), b),
        lambda a, b: (a.sum(1), b),
        lambda a, b: (a[:, :, None].expand(-1, -1, 2), b),
        lambda a, b: (a.T, b),
    ],
)
def test_a_first_output_that_does_not_fit_is_asked_about(make: Any) -> None:
    with pytest.raises(SpiritlevelError, match=r"the model returns 2 tensors .* the first is measured; pass forward"):
        several(make).survey  # noqa: B018


def test_an_audit_of_several_outputs_through_a_forward_of_ones_own() -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    x = torch.randn(8, 3).double()
    problem = opened(inner, (x, torch.arange(8) % 3), forward=lambda model, batch: (model(batch[0]), batch[0]))
    audit = sl.audit(problem, ["hessian_trace"], strengths=("usual",), alphas=())
    assert "hessian_trace" in str(audit)
    assert any("2 tensors" in note for note in problem.notes)


# --- labels that are no numbers ------------------------------------------------------------------------------------


def with_nan(y: Tensor, at: int) -> Tensor:
    y = y.clone()
    y[at] = float("nan")
    return y


def squares(outputs: Tensor, batch: Any) -> Tensor:
    return (outputs - batch[1]).square().mean(1)


@pytest.mark.parametrize("at", [0, 3, 7])
@pytest.mark.parametrize("loss", ["cross_entropy", "mean_squared_error", squares])
def test_labels_that_are_not_finite_are_named_as_such(loss: Any, at: int) -> None:
    model = nn.Linear(3, 4).double()
    data = torch.randn(8, 3).double(), with_nan(torch.full((8, 4), 0.25).double(), at)
    for options in ({}, {"batch_size": 2}):
        with pytest.raises(SpiritlevelError, match=r"NaN or infinite at sample|not finite at sample") as caught:
            sl.measure(opened(model, data, loss, **options), "hessian_trace")
        assert "shuffled" not in str(caught.value)


def test_labels_of_reads_the_forms_it_names() -> None:
    labels = torch.tensor([1, 0])
    assert labels_of(((torch.zeros(2, 3), torch.zeros(2)), labels)) is labels
    assert labels_of((torch.zeros(2, 3), labels, torch.tensor(3.0))) is labels  # a number belongs to no sample
    with pytest.raises(UsageError, match="labels are a tuple that is no tensor"):
        labels_of((torch.zeros(2, 3), (labels, labels)))

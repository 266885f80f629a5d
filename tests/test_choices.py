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
from spiritlevel.errors import SpiritlevelError, UsageError
from spiritlevel.losses import CrossEntropy, SameToken, labels_of
from spiritlevel.problem import Problem
from spiritlevel.reference.dense import Dense

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
        Problem(language(), EQUAL[name](), loss).survey  # noqa: B018
    assert "\n" not in str(caught.value)


def test_both_answers_give_the_number_they_name() -> None:
    model, ids = language(), tokens()
    logits = model(ids).detach()
    shifted = float(F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1)))
    unshifted = float(F.cross_entropy(logits.reshape(-1, VOCABULARY), ids.reshape(-1)))
    names = ["hessian_trace"]
    following = Problem(model, (ids, ids), "next_token")
    assert following.survey.loss == pytest.approx(shifted, rel=1e-12)
    for loss in ("same_token", SameToken()):
        same = Problem(model, (ids, ids), loss)
        assert same.survey.loss == pytest.approx(unshifted, rel=1e-12)
        assert sl.measure(same, names).header["loss_name"] == "same_token"
        assert float(Dense(same).ggn.trace()) != pytest.approx(float(Dense(following).ggn.trace()), rel=0.05)


def test_same_token_is_the_cross_entropy_at_each_position() -> None:
    ids = tokens()
    labels = padded((ids + 1) % VOCABULARY)
    plain, named = (sl.measure(Problem(language(), (ids, labels), loss)) for loss in ("cross_entropy", "same_token"))
    for name in plain:
        torch.testing.assert_close(named[name].value, plain[name].value, equal_nan=True)


def test_labels_of_their_own_are_not_asked_about() -> None:
    ids = tokens()
    for data in ((ids[:, :-1], ids[:, 1:]), (ids, (ids + 1) % VOCABULARY), (ids, ids.clone().roll(1, 0))):
        assert Problem(language(), data).survey.count == COUNT
    one_each = nn.Sequential(nn.Embedding(VOCABULARY, VOCABULARY), nn.Flatten(0, 1)).double()
    column = torch.arange(COUNT)[:, None] % VOCABULARY
    assert Problem(one_each, (column, column[:, 0])).survey.count == COUNT  # a class a sample: no sequence


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_model_called_causal_is_asked_about(wrapped: bool) -> None:
    ids = tokens()
    model: nn.Module = language(TinyForCausalLM)
    model = nn.Sequential(model) if wrapped else model
    with pytest.raises(UsageError, match=r"TinyForCausalLM is a model of the next token.*'same_token'"):
        Problem(model, (ids[:, :-1], ids[:, 1:])).survey  # noqa: B018
    for loss in ("same_token", "next_token", lambda outputs, batch: outputs.square().mean((1, 2))):
        assert Problem(model, (ids[:, :-1], ids[:, 1:]), loss).survey.count == COUNT


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
        Problem(pooled(), THREE[name](), forward=forward).survey  # noqa: B018
    assert "\n" not in str(caught.value)


def test_every_answer_about_three_entries_measures_the_labels() -> None:
    x, lengths, y = sequences()
    model = pooled()
    expected = float(F.cross_entropy(model(x, lengths), y).detach())
    answers = {
        "nested": Problem(model, ((x, lengths), y)),
        "named": Problem(model, ({"x": x, "lengths": lengths}, y)),
        "dict": Problem(model, {"x": x, "lengths": lengths, "labels": y}),
        "functions": Problem(model, (x, lengths, y), on_the_last, forward=with_lengths),
    }
    traces = {name: sl.measure(problem, "hessian_trace")["hessian_trace"].value for name, problem in answers.items()}
    for name, problem in answers.items():
        assert problem.survey.loss == pytest.approx(expected, rel=1e-12), name
        assert traces[name] == pytest.approx(traces["dict"], rel=1e-9), name
    assert not answers["functions"].notes
    assert answers["functions"].survey.accuracy is None  # lengths are no labels


def test_a_function_of_three_entries_with_the_usual_forward_says_what_the_model_saw() -> None:
    problem = Problem(pooled(), sequences(), on_the_last)
    x, _, y = sequences()
    assert problem.survey.loss == pytest.approx(float(F.cross_entropy(pooled()(x), y).detach()), rel=1e-12)
    report = sl.measure(problem, "output_margin")
    assert any("3 entries, of which the model is given the first" in note for note in report.header["notes"])
    assert report["output_margin"].status == "not_applicable"


def test_entries_without_tensors_leave_no_choice() -> None:
    x, lengths, y = sequences()
    names = [f"sample {i}" for i in range(len(y))]
    batches = [(x[:5], y[:5], names[:5]), (x[5:], y[5:], names[5:])]
    problem = Problem(pooled(), batches, batch_size=2)
    assert problem.survey.loss == pytest.approx(Problem(pooled(), (x, y)).survey.loss, rel=1e-12)
    assert [batch.content[2] for batch in problem.batches()][:3] == [names[:2], names[2:4], names[4:5]]
    with pytest.raises(UsageError, match="labels are a list that is no tensor"):
        Problem(pooled(), [(x, names, y)]).survey  # noqa: B018
    assert lengths.shape == y.shape


@pytest.mark.parametrize("keys", [("labels", "y"), ("label", "labels"), ("label", "y")])
def test_two_entries_that_may_be_labels_are_asked_about(keys: tuple[str, str]) -> None:
    x, lengths, y = sequences()
    data = {"x": x, keys[0]: lengths, keys[1]: y}
    with pytest.raises(UsageError, match=r"entries .* and .*, and each may be its labels"):
        Problem(pooled(), data).survey  # noqa: B018

    def loss(outputs: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(outputs, batch[keys[1]], reduction="none")

    problem = Problem(pooled(), data, loss)
    assert problem.survey.loss == pytest.approx(Problem(pooled(), (x, y)).survey.loss, rel=1e-12)
    assert any("kept from the model" in note for note in problem.notes)


# --- nested inputs -------------------------------------------------------------------------------------------------


class TwoInputs(nn.Module):
    """A sum of two branches."""

    def __init__(self, smooth: bool = False) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 3)
        self.free = nn.Parameter(torch.randn(4))  # of no rule: gradients the general way
        self.smooth = smooth

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        hidden = (self.left(a) + self.right(b)) * self.free
        return self.head(torch.tanh(hidden) if self.smooth else torch.relu(hidden))


def two_inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    a, b = (torch.randn(11, width, generator=generator).double() for width in (3, 2))
    return a, b, torch.arange(11) % 3


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


def items(make: Callable[[Tensor, Tensor], Any]) -> list[Any]:
    return [(make(a, b), y) for a, b, y in zip(*two_inputs())]


class Items(torch.utils.data.Dataset):
    def __init__(self, make: Callable[[Tensor, Tensor], Any]) -> None:
        self.items = items(make)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def nested_batches(make: Callable[[Tensor, Tensor], Any]) -> list[Any]:
    a, b, y = two_inputs()
    return [(make(a[i : i + 4], b[i : i + 4]), y[i : i + 4]) for i in range(0, 11, 4)]


NESTED: dict[str, Callable[[], Any]] = {
    "tensors": lambda: (two_inputs()[:2], two_inputs()[2]),
    "lists": lambda: [list(two_inputs()[:2]), two_inputs()[2]],
    "arrays": lambda: (tuple(t.numpy() for t in two_inputs()[:2]), two_inputs()[2].numpy()),
    "named_tuple": lambda: (Pair(*two_inputs()[:2]), two_inputs()[2]),
    "keywords": lambda: (dict(zip("ba", two_inputs()[1::-1])), two_inputs()[2]),
    "batches": lambda: nested_batches(lambda a, b: (a, b)),
    "keyword_batches": lambda: nested_batches(lambda a, b: {"b": b, "a": a}),
    "dataset": lambda: Items(lambda a, b: (a, b)),
    "loader_of_dicts": lambda: DataLoader(Items(lambda a, b: {"a": a, "b": b}), batch_size=3, shuffle=True),
}


@pytest.mark.parametrize("samples", [None, 7])
@pytest.mark.parametrize("name", NESTED)
def test_nested_inputs_are_counted_cut_and_moved(name: str, samples: int | None) -> None:
    torch.manual_seed(0)
    model = TwoInputs().double()
    a, b, y = two_inputs()
    names = ["loss", "hessian_trace", "output_margin"]
    expected = sl.per_sample(Problem(model, {"a": a, "b": b, "y": y}, samples=samples), names)
    problem = Problem(model, NESTED[name](), samples=samples, batch_size=3)
    found = sl.per_sample(problem, names)
    for key, values in expected.items():
        torch.testing.assert_close(found[key], values, rtol=1e-9, atol=1e-12)
    assert any("given the 2 inputs of a batch's first entry" in note for note in problem.notes)


@pytest.mark.parametrize("smooth", [False, True])
def test_every_measure_takes_nested_inputs(smooth: bool) -> None:
    torch.manual_seed(0)
    model = TwoInputs(smooth).double()
    a, b, y = two_inputs()
    nested = sl.measure(Problem(model, ((a, b), y), batch_size=4), "papers", tolerance=0.3)
    flat = sl.measure(Problem(model, {"a": a, "b": b, "y": y}, batch_size=4), "papers", tolerance=0.3)
    for name, estimate in flat.items():
        assert nested[name].status == estimate.status, name
        torch.testing.assert_close(nested[name].value, estimate.value, rtol=1e-7, atol=0, equal_nan=True)
    trace = float(Dense(Problem(model, ((a, b), y))).hessian.trace())
    assert abs(nested["hessian_trace"].value - trace) <= 1e-9 + 5 * nested["hessian_trace"].stderr


def test_an_audit_takes_nested_inputs() -> None:
    torch.manual_seed(0)
    model = TwoInputs().double()
    a, b, y = two_inputs()
    for data in (((a, b), y), ({"b": b, "a": a}, y)):
        audit = sl.audit(sl.Problem(model, data), ["hessian_trace"], strengths=("usual",), alphas=())
        assert "hessian_trace" in str(audit)


class Scaled(nn.Module):
    """A parameter of no rule, so that gradients go the general way, below a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.head = nn.Parameter(torch.tensor([0.5, -2.0, 1.5])), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(x * self.free))


@pytest.mark.parametrize("samples", [None, 7])
def test_texts_are_cut_with_their_samples(samples: int | None) -> None:
    torch.manual_seed(0)
    model = Scaled().double()
    x, _, y = two_inputs()
    texts = [" ".join(map(repr, row)) for row in x.tolist()]

    def read(net: nn.Module, batch: Any) -> Tensor:
        return net(torch.tensor([[float(word) for word in text.split()] for text in batch[0]]).double())

    names = ["loss", "hessian_trace"]
    expected = sl.per_sample(Problem(model, (x.float().double(), y), samples=samples), names)
    for size in (None, 4):
        batches = [(texts, y)]
        found = sl.per_sample(Problem(model, batches, forward=read, samples=samples, batch_size=size), names)
        for key, values in expected.items():
            torch.testing.assert_close(found[key], values, rtol=1e-9, atol=1e-12)


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


def several(make: Callable[[Tensor, Tensor], Any]) -> Problem:
    torch.manual_seed(0)
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)).double()
    return Problem(Several(make).double(), (x, torch.arange(8) % 3))


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
    assert sum(words in note for note in report.header["notes"]) == 1
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
    problem = sl.Problem(inner, (x, torch.arange(8) % 3), forward=lambda model, batch: (model(batch[0]), batch[0]))
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
            sl.measure(Problem(model, data, loss, **options), "hessian_trace")
        assert "shuffled" not in str(caught.value)


def test_labels_of_reads_the_forms_it_names() -> None:
    labels = torch.tensor([1, 0])
    assert labels_of(((torch.zeros(2, 3), torch.zeros(2)), labels)) is labels
    assert labels_of((torch.zeros(2, 3), labels, torch.tensor(3.0))) is labels  # a number belongs to no sample
    with pytest.raises(UsageError, match="labels are a tuple that is no tensor"):
        labels_of((torch.zeros(2, 3), (labels, labels)))


# --- weights stored with the inputs first --------------------------------------------------------------------------


class Conv1D(nn.Module):
    """A linear layer as GPT-2 has it: weight (inputs, outputs)."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.nf = outputs
        self.weight, self.bias = nn.Parameter(torch.empty(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        size = (*x.size()[:-1], self.nf)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size)


class Turned(nn.Module):
    """The same under other names, without a bias."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.kernel


class Body(nn.Module):
    """Three layers of a kind, one of them square, at several positions or at one; a linear head."""

    def __init__(self, make: Callable[[int, int], nn.Module], activation: Any, positions: bool) -> None:
        super().__init__()
        self.c_fc, self.c_proj, self.square = make(6, 4), make(4, 6), make(4, 4)
        self.head, self.activation, self.positions = nn.Linear(4, 3), activation, positions

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.positions else x[:, 0]
        x = x + self.c_proj(self.activation(self.c_fc(x)))
        x = self.activation(self.square(x))
        return self.head(x.mean(1) if self.positions else x)


def pair_of_bodies(make: Callable[[int, int], nn.Module], activation: Any, positions: bool) -> tuple[Body, Body]:
    """The same network with weights inputs first, and with torch's linear layers."""
    generator = torch.Generator().manual_seed(7)
    turned = Body(make, activation, positions).double()
    with torch.no_grad():
        for parameter in turned.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=generator))
    with_bias = hasattr(turned.c_fc, "bias")
    plain = Body(lambda outputs, inputs: nn.Linear(inputs, outputs, with_bias), activation, positions).double()
    with torch.no_grad():
        for parameter, other in zip(plain.parameters(), turned.parameters()):
            parameter.copy_(other.T if other.ndim == 2 and parameter is not plain.head.weight else other)
    return turned, plain


def body_data(count: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(8)
    return torch.randn(count, 3, 4, generator=generator).double(), torch.arange(count) % 3


ON_MATRICES = [
    "hessian_trace", "kappa_tau_sum", "rho_sum", "rho_max", "relative_flatness", "normalized_sharpness",
    "matrix_normalized_sharpness", "spectral_complexity", "fisher_rao_norm", "aceht",
]  # fmt: skip


def assert_equal_reports(turned: Body, plain: Body, measures: Any) -> None:
    x, _ = body_data()
    data = x, plain(x).argmax(1)  # all right, so that margins are positive
    found, expected = (sl.measure(Problem(body, data, batch_size=5), measures) for body in (turned, plain))
    exact = {name for name, own in expected.items() if own.how == "exact" and own.ok}
    assert exact >= set(ON_MATRICES)
    for name, own in expected.items():
        assert (found[name].status, found[name].verified, found[name].how) == (own.status, own.verified, own.how), name
        # What is drawn at random follows the order a parameter is stored in, which is another one here.
        if name in exact:
            assert found[name].value == pytest.approx(own.value, rel=1e-7), name
        elif own.interval is not None:
            assert max(found[name].interval[0], own.interval[0]) <= min(found[name].interval[1], own.interval[1]), name
        elif own.stderr > 0 and name != "pac_bayes_terms":  # a search over noise, whose error is not all of its spread
            assert abs(found[name].value - own.value) <= 5 * (found[name].stderr ** 2 + own.stderr**2) ** 0.5, name
    for name in exact & expected.per_layer.keys():
        for layer, own in expected.per_layer[name].items():
            assert found.per_layer[name][layer].value == pytest.approx(own.value, rel=1e-7), (name, layer)
    assert not any("Read as matrices" in note for note in found.header["notes"])


@pytest.mark.parametrize(("make", "positions"), [(Conv1D, False), (Conv1D, True), (Turned, True)])
def test_a_weight_stored_inputs_first_gives_what_torchs_linear_layer_gives(make: Any, positions: bool) -> None:
    assert_equal_reports(*pair_of_bodies(make, torch.relu, positions), ON_MATRICES)


@pytest.mark.slow
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("make", [Conv1D, Turned])
def test_every_measure_of_a_weight_stored_inputs_first(make: Any, positions: bool) -> None:
    assert_equal_reports(*pair_of_bodies(make, torch.relu, positions), "papers")


@pytest.mark.parametrize("make", [Conv1D, Turned])
def test_a_last_layer_stored_inputs_first_is_the_head(make: Any) -> None:
    torch.manual_seed(0)
    last = make(3, 5)
    plain_last = nn.Linear(5, 3, bias=make is Conv1D)
    with torch.no_grad():
        for other, parameter in zip(last.parameters(), plain_last.parameters()):
            other.copy_(parameter.T if parameter.ndim == 2 else parameter)
    below = nn.Linear(4, 5)
    turned, plain = (nn.Sequential(below, nn.ReLU(), head).double() for head in (last, plain_last))
    x, y = body_data()
    names = ["feature_robustness", "aceht", "kappa_last", "kappa_tau_last", "relative_flatness"]
    found, expected = (
        sl.measure(Problem(model, (x[:, 0], y)), names, settings={"aceht.feature": "penultimate"})
        for model in (turned, plain)
    )
    for name in names:
        assert expected[name].ok
        assert found[name].value == pytest.approx(expected[name].value, rel=1e-2 if "robust" in name else 1e-9), name
    assert found["feature_robustness"].details["layer"] == "2"


def test_rows_of_a_conv1d_under_a_smooth_activation() -> None:
    turned, plain = pair_of_bodies(Conv1D, F.gelu, True)
    names = ["rho_sum", "relative_flatness"]
    found, expected = (sl.measure(Problem(body, body_data()), names).per_layer for body in (turned, plain))
    for name in names:
        for layer, own in expected[name].items():
            other = found[name][layer]
            assert abs(other.value - own.value) <= 5 * (other.stderr**2 + own.stderr**2) ** 0.5 + 1e-9, (name, layer)


def test_symmetries_of_a_conv1d_are_those_of_a_linear_layer() -> None:
    turned, plain = (
        nn.Sequential(first, nn.ReLU(), nn.Linear(6, 3)).double() for first in (Conv1D(6, 4), nn.Linear(4, 6))
    )
    with torch.no_grad():
        turned[0].weight.copy_(plain[0].weight.T)
        turned[0].bias.copy_(plain[0].bias)
        turned[2].load_state_dict(plain[2].state_dict())
    data = body_data()[0][:, 0], body_data()[1]
    audits = [
        sl.audit(Problem(body, data), ["rho_sum", "hessian_trace"], strengths=("usual",), alphas=())
        for body in (turned, plain)
    ]
    values = [sl.measure(Problem(body, data), ["rho_sum"])["rho_sum"].value for body in (turned, plain)]
    assert values[0] == pytest.approx(values[1], rel=1e-9)
    assert str(audits[0]).splitlines()[2:] == str(audits[1]).splitlines()[2:]


class Named(nn.Module):
    """What only looks alike: rules by name would take it for a Conv1D."""

    def __init__(self, rule: Callable[[Tensor, Tensor, Tensor], Tensor], square: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4) if square else torch.randn(3, 4))
        self.bias, self.rule = nn.Parameter(torch.randn(len(self.weight))), rule

    def forward(self, x: Tensor) -> Tensor:
        return self.rule(x, self.weight, self.bias)


Named.__name__ = "Conv1D"
LOOK_ALIKE: dict[str, Callable[[], nn.Module]] = {
    "outputs_first": lambda: Named(F.linear),
    "square_outputs_first": lambda: Named(F.linear, square=True),
    "normalised": lambda: Named(lambda x, w, b: F.linear(x, w / w.norm(dim=1, keepdim=True), b)),
    "rectified": lambda: Named(lambda x, w, b: F.linear(x, w, b).relu()),
    "rounding": lambda: Named(lambda x, w, b: F.linear(x.float().double(), w, b)),
}


@pytest.mark.parametrize("name", LOOK_ALIKE)
def test_a_layer_that_only_looks_like_one_keeps_its_rows(name: str) -> None:
    torch.manual_seed(0)
    layer = LOOK_ALIKE[name]()
    model = nn.Sequential(layer, nn.ReLU(), nn.Linear(len(layer.weight), 3)).double()
    x, y = body_data()
    found = sl.measure(Problem(model, (x[:, 0], y)), ["rho_sum", "kappa_tau_sum"])
    said = any("Read as matrices" in note and "0.weight" in note for note in found.header["notes"])
    assert said == (not name.endswith("outputs_first"))
    if name.endswith("outputs_first"):
        plain = nn.Linear(4, len(layer.weight)).double()
        plain.load_state_dict(layer.state_dict())
        expected = sl.measure(Problem(nn.Sequential(plain, *model[1:]), (x[:, 0], y)), ["rho_sum", "kappa_tau_sum"])
        assert found["rho_sum"].value == pytest.approx(expected["rho_sum"].value, rel=1e-9)


def test_zero_and_symmetric_weights_do_not_hide_the_layout() -> None:
    from spiritlevel.input_first import stored

    for fill in (nn.init.zeros_, nn.init.eye_):
        layers = Conv1D(4, 4), Named(F.linear, square=True)
        for layer in layers:
            fill(layer.weight.data)
        before = [layer.weight.clone() for layer in layers]
        assert [stored(layer) for layer in layers] == ["inputs first", "outputs first"]
        assert all(torch.equal(layer.weight, kept) for layer, kept in zip(layers, before))

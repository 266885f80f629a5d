"""Cross-entropy against torch's own values, dense Hessians and decimal arithmetic of 400 digits; sketches and names."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.inputs import losses as sl
from spiritlevel.values.errors import UsageError
from tests.inputs.losses.derivatives import (
    WEIGHTS,
    assert_second_derivative,
    assert_total,
    focal,
    randint,
    randn,
)
from tests.inputs.losses.sketches import assert_signs_belong_to_the_sample, assert_unbiased


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("shape", ["samples", "last", "second", "image", "soft"])
def test_cross_entropy_is_torchs(smoothing: float, weights: tuple[float, ...] | None, shape: str) -> None:
    loss = sl.CrossEntropy(smoothing, weights)
    outputs = {
        "samples": randn(6, 5),
        "last": randn(4, 3, 5),
        "second": randn(4, 5, 3),
        "image": randn(3, 5, 2, 3),
        "soft": randn(6, 5),
    }[shape]
    if shape == "soft":
        labels = torch.softmax(randn(6, 5, seed=2), -1)
    else:
        labels = randint(5, *(outputs.shape[:-1] if shape == "last" else (len(outputs), *outputs.shape[2:])))
        labels.view(-1)[1] = -100
        labels[2] = -100  # a whole sample that does not count
    torch_outputs = outputs.movedim(-1, 1) if shape == "last" else outputs
    torch_weights = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    expected = F.cross_entropy(torch_outputs, labels, weight=torch_weights, label_smoothing=smoothing)
    assert_total(loss, outputs, (None, labels), expected)
    assert_second_derivative(loss, outputs, (None, labels))
    if shape != "soft":
        value, weight = loss.per_sample(outputs, (None, labels))
        assert value[2] == weight[2] == 0
        assert loss.factor(outputs, (None, labels), limit=100).columns[:, 2].abs().max() == 0


def test_next_token_is_the_shifted_cross_entropy() -> None:
    outputs, labels = randn(3, 5, 5), randint(5, 3, 5)
    labels[0, 3:] = -100
    expected = F.cross_entropy(outputs[:, :-1].reshape(-1, 5), labels[:, 1:].reshape(-1))
    assert_total(sl.NextToken(), outputs, {"labels": labels}, expected)
    assert_second_derivative(sl.NextToken(), outputs, {"labels": labels})
    _, weights = sl.NextToken().per_sample(outputs, {"labels": labels})
    assert weights.tolist() == [2.0, 4.0, 4.0]


def test_padding_weighs_nothing_in_the_next_token() -> None:
    outputs, labels = randn(3, 5, 4), randint(4, 3, 5)
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    ignored = labels.masked_fill(mask == 0, -100)
    expected = F.cross_entropy(outputs[:, :-1].reshape(-1, 4), ignored[:, 1:].reshape(-1))
    for batch in ({"labels": labels, "attention_mask": mask}, ({"attention_mask": mask.bool()}, labels)):
        assert_total(sl.NextToken(), outputs, batch, expected)
        assert_second_derivative(sl.NextToken(), outputs, batch)
        assert sl.NextToken().per_sample(outputs, batch)[1].tolist() == [2.0, 3.0, 4.0]
        columns = sl.NextToken().factor(outputs, batch, limit=100).columns
        assert columns[:, 0, 2:].abs().max() == 0  # what they predict is padding
        assert columns[:, 0, :2].abs().max() > 0
    other = {"labels": labels, "attention_mask": torch.zeros(3, 7)}  # of other inputs: an encoder's
    plain = F.cross_entropy(outputs[:, :-1].reshape(-1, 4), labels[:, 1:].reshape(-1))
    assert_total(sl.NextToken(), outputs, other, plain)


def test_an_ignored_token_of_ones_own() -> None:
    outputs, labels = randn(3, 5, 4), randint(4, 3, 5)
    expected = F.cross_entropy(outputs[:, :-1].reshape(-1, 4), labels[:, 1:].reshape(-1), ignore_index=0)
    assert_total(sl.NextToken(ignore_index=0), outputs, (None, labels), expected)
    assert_second_derivative(sl.NextToken(ignore_index=0), outputs, (None, labels))


def test_masked_tokens_are_the_labels_that_count() -> None:
    outputs, tokens = randn(3, 5, 5), randint(5, 3, 5)
    labels = tokens.masked_fill(randint(2, 3, 5, seed=4) == 0, -100)
    loss = sl.resolve("masked_token")
    assert_total(loss, outputs, {"labels": labels}, F.cross_entropy(outputs.flatten(0, 1), labels.flatten()))
    assert_second_derivative(loss, outputs, {"labels": labels})
    assert torch.equal(loss.per_sample(outputs, {"labels": labels})[1], (labels != -100).sum(1).double())


def test_ignored_pixels_weigh_nothing() -> None:
    outputs, labels = randn(3, 4, 2, 3), randint(4, 3, 2, 3)
    labels[0, 1] = labels[1] = 255
    loss = sl.resolve(nn.CrossEntropyLoss(ignore_index=255))
    assert_total(loss, outputs, (None, labels), F.cross_entropy(outputs, labels, ignore_index=255))
    assert_second_derivative(loss, outputs, (None, labels))
    assert loss.per_sample(outputs, (None, labels))[1].tolist() == [3.0, 0.0, 6.0]
    for limit in (100, 1):
        columns = loss.factor(outputs, (None, labels), limit=limit).columns
        assert columns[:, 0, :, 1].abs().max() == columns[:, 1].abs().max() == 0
        assert columns[:, 0, :, 0].abs().max() > 0


def exact_softmax(logits: list[float]) -> list[Decimal]:
    exponentials = [Decimal(z).exp() for z in logits]
    total = sum(exponentials)
    return [e / total for e in exponentials]


@pytest.mark.parametrize("margin", [0.0, 1.0, 14.0, 40.0, 60.0, 300.0, 700.0])
@pytest.mark.parametrize("largest", [0, 2, 4])
def test_confident_softmax_keeps_its_digits(margin: float, largest: int) -> None:
    logits = randn(5, seed=3)
    logits[largest] = logits.max() + margin
    with localcontext() as context:
        context.prec = 400  # a tail of e^-700 beside 1, with digits to spare
        check_against_exact_softmax(logits, exact_softmax(logits.tolist()))


def check_against_exact_softmax(logits: Tensor, p: list[Decimal]) -> None:
    impurity = sum(q * (1 - q) for q in p)
    first, second = sorted(p)[:-3:-1]
    assert sl.softmax_impurity(logits).item() == pytest.approx(float(impurity), rel=2e-13, abs=0)
    assert sl.one_minus_softmax_margin_squared(logits).item() == pytest.approx(
        float(1 - (first - second) ** 2), rel=2e-13, abs=0
    )
    probabilities, tails = sl.probabilities_and_tails(logits)
    assert probabilities.tolist() == pytest.approx([float(q) for q in p], rel=2e-13, abs=0)
    assert tails.tolist() == pytest.approx([float(1 - q) for q in p], rel=2e-13, abs=0)
    factor = sl.CrossEntropy().factor(logits[None], (None, torch.tensor([1])))
    assert factor.columns.shape == (4, 1, 5)
    # Each entry to its own relative size, not to the size of the largest: rounding of 12 digits at e^-700.
    for i in range(5):
        for j in range(5):
            entry = p[i] * (1 - p[i]) if i == j else -p[i] * p[j]
            got = sum(Decimal(s[i].item()) * Decimal(s[j].item()) for s in factor.columns[:, 0])
            if abs(entry) > Decimal("1e-308"):  # a product of two tails has no float64 at margin 700
                assert abs(got - entry) <= abs(entry) * Decimal("2e-12")
    vector = randn(5, seed=4)
    product = sl.CrossEntropy().hessian_product(logits[None], (None, torch.tensor([1])), vector[None, None])[0, 0]
    mean = sum(q * Decimal(v) for q, v in zip(p, vector.tolist()))
    for got_entry, q, v in zip(product.tolist(), p, vector.tolist()):
        assert got_entry == pytest.approx(float(q * (Decimal(v) - mean)), rel=1e-11, abs=0)


def test_the_naive_factor_would_fail_that_test() -> None:
    logits = torch.tensor([60.0, 0.0, 1.0, -1.0], dtype=torch.float64)
    p = torch.softmax(logits, -1)
    naive = 1 - p.square().sum().item()
    truth = sl.softmax_impurity(logits).item()
    assert truth > 0
    assert abs(naive - truth) > 0.9 * truth
    columns = sl.CrossEntropy().factor(logits[None], (None, torch.tensor([0]))).columns
    assert columns.square().sum().item() == pytest.approx(truth, rel=1e-12, abs=0)


def test_factor_takes_the_dtype_of_the_outputs() -> None:
    outputs = (20 * randn(7, 4)).float()
    labels = randint(4, 7)
    factor = sl.CrossEntropy().factor(outputs, (None, labels))
    assert factor.columns.dtype == torch.float32
    expected = sl.softmax_impurity(outputs)
    torch.testing.assert_close(factor.columns.double().square().sum((0, 2)), expected, rtol=1e-6, atol=0)


def test_cross_entropy_sketches() -> None:
    outputs, labels = randn(5, 2, 3), randint(3, 5, 2)
    loss = sl.CrossEntropy(0.1, (1.0, 2.0, 0.5))
    assert_unbiased(loss, outputs, (None, labels))
    assert_signs_belong_to_the_sample(loss, outputs, lambda chosen: (None, labels[chosen]))


def test_draws_taken_a_few_at_a_time_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, batch = randn(5, 2, 3), (None, randint(3, 5, 2))
    whole = sl.CrossEntropy().factor(outputs, batch, limit=1, draws=7).columns
    monkeypatch.setattr("spiritlevel.inputs.losses.cross_entropy.ENTRIES_AT_ONCE", 2 * outputs.numel())
    torch.testing.assert_close(sl.CrossEntropy().factor(outputs, batch, limit=1, draws=7).columns, whole)
    assert whole.flatten(1).unique(dim=0).shape[0] == 7
    with pytest.raises(UsageError, match="0 draws"):
        sl.CrossEntropy().factor(outputs, batch, draws=0, limit=1)


def test_cross_entropy_of_several_networks_at_once() -> None:
    outputs, labels = randn(3, 6, 5), randint(5, 6)
    together = torch.func.vmap(lambda f: sl.CrossEntropy(0.1, WEIGHTS).per_sample(f, (None, labels))[0])(outputs)
    each = torch.stack([sl.CrossEntropy(0.1, WEIGHTS).per_sample(f, (None, labels))[0] for f in outputs])
    torch.testing.assert_close(together, each)


@pytest.mark.parametrize(
    ("outputs", "batch", "words"),
    [
        (randn(3, 4), (None, torch.tensor([0, 7, 1])), "label 7 at sample 1.*4 classes"),
        (randn(3, 4), (None, torch.tensor([0, 1, -1])), "label -1 at sample 2"),
        (randn(3, 4, 2), (None, torch.tensor([[0, 1], [1, 9], [1, 1]])), "label 9 at sample 1, position 1"),
        (randn(3, 4), (None, torch.zeros(3)), "float32.*integer class indices"),
        (randn(3, 4), (None, torch.zeros(3, 1, dtype=torch.int64)), r"\(3, 1\).*\(3, 4\)"),
        (randn(3, 4, 4), (None, torch.zeros(3, 4, dtype=torch.int64)), "class_axis=1"),
        (randn(3), (None, torch.zeros(3, dtype=torch.int64)), "binary_cross_entropy"),
        (randn(3, 1), (None, torch.zeros(3, dtype=torch.int64)), "binary_cross_entropy"),
        (randn(3, 4), {"x": 1}, "no labels"),
        (randn(3, 4), (None,), "second entry"),
        (randn(3, 4), randn(3, 4), "second entry"),
    ],
)
def test_cross_entropy_says_what_is_wrong(outputs: Tensor, batch: Any, words: str) -> None:
    for call in (sl.CrossEntropy().per_sample, sl.CrossEntropy().factor):
        with pytest.raises(UsageError, match=words):
            call(outputs, batch)


def test_class_axis_decides_a_square() -> None:
    outputs, labels = randn(3, 4, 4), randint(4, 3, 4)
    assert_total(sl.CrossEntropy(class_axis=1), outputs, (None, labels), F.cross_entropy(outputs, labels))
    assert_second_derivative(sl.CrossEntropy(class_axis=1), outputs, (None, labels))
    assert_total(sl.CrossEntropy(class_axis=-1), outputs, (None, labels), F.cross_entropy(outputs.mT, labels))


@pytest.mark.parametrize(
    "settings",
    [
        {"label_smoothing": -0.1},
        {"class_axis": 2},
        {"class_weights": (1.0, -1.0)},
        {"class_weights": (1.0, 0.0), "label_smoothing": 0.1},
    ],
)
def test_cross_entropy_refuses_impossible_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        sl.CrossEntropy(**settings)


def test_class_weights_of_the_wrong_length() -> None:
    with pytest.raises(UsageError, match=r"2 entries.*4 classes"):
        sl.CrossEntropy(class_weights=(1.0, 2.0)).per_sample(randn(3, 4), (None, randint(4, 3)))


def test_equal_losses_are_equal() -> None:
    assert sl.CrossEntropy(class_weights=torch.tensor([1.0, 2.0])) == sl.CrossEntropy(class_weights=[1.0, 2.0])
    assert len({sl.CrossEntropy(class_weights=torch.tensor([1.0, 2.0])), sl.CrossEntropy(class_weights=(1, 2))}) == 1


def test_labels_from_dicts_and_lists() -> None:
    labels = torch.tensor([1, 0])
    assert sl.labels_of({"y": [1, 0], "x": 3}).tolist() == [1, 0]
    with pytest.raises(UsageError, match="entries label and y, and each may be its labels"):
        sl.labels_of({"y": labels + 5, "label": labels})
    assert sl.labels_of([None, labels, "extra"]) is labels


@pytest.mark.parametrize(
    "loss", [sl.BinaryCrossEntropy(), sl.MeanSquaredError(), sl.NormalizedCrossEntropy(), sl.CallableLoss(focal)]
)
def test_sketches_of_the_other_losses(loss: sl.Loss) -> None:
    outputs = 2 * randn(5, 4)
    indexed = isinstance(loss, (sl.NormalizedCrossEntropy, sl.CallableLoss))
    labels = randint(4, 5) if indexed else randint(2, 5, 4)
    assert_unbiased(loss, outputs, (None, labels), draws=20_000)
    assert_signs_belong_to_the_sample(loss, outputs, lambda chosen: (None, labels[chosen]))
    assert loss.factor(outputs, (None, labels), limit=2).draws == 2


def test_later_draws_are_those_of_one_call() -> None:
    tokens = randint(3, 4, 5)
    cases: list[tuple[sl.Loss, Tensor, Tensor]] = [
        (sl.CrossEntropy(), randn(4, 40), randint(40, 4)),
        (sl.NextToken(), randn(4, 5, 3), tokens),
        (sl.BinaryCrossEntropy(), randn(4, 5), randint(2, 4, 5)),
        (sl.MeanSquaredError(), randn(4, 5), randn(4, 5)),
        (sl.NormalizedCrossEntropy(), randn(4, 6), randint(6, 4)),
        (sl.GaussianNLL(), randn(4, 6), randn(4, 3)),
        (sl.ContrastivePairs(), randn(4, 2, 3), randint(2, 4)),
        (sl.CallableLoss(focal), randn(4, 5), randint(5, 4)),
    ]
    for loss, outputs, labels in cases:
        whole = loss.factor(outputs, (None, labels), limit=1, draws=9, generator_seed=2)
        parts = [
            loss.factor(outputs, (None, labels), limit=1, draws=k, first_draw=j, generator_seed=2)
            for j, k in ((0, 1), (1, 5), (6, 3))
        ]
        torch.testing.assert_close(torch.cat([part.columns for part in parts]), whole.columns, rtol=1e-12, atol=1e-15)
        assert torch.equal(torch.cat([part.signs for part in parts]), whole.signs)
        exact = [loss.factor(outputs, (None, labels), limit=1000, first_draw=j).columns for j in (0, 3)]
        assert torch.equal(*exact)
        with pytest.raises(UsageError, match="counted from 0"):
            loss.factor(outputs, (None, labels), first_draw=-1)


def test_resolve() -> None:
    for name in sl.NAMES:
        assert sl.resolve(name).name == name
    for alias, name in sl.ALIASES.items():
        assert sl.resolve(alias) == sl.resolve(name)
    loss = sl.CrossEntropy(0.1)
    assert sl.resolve(loss) is loss
    weight = torch.tensor([1.0, 3.0])
    module = nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1, ignore_index=7)
    assert sl.resolve(module) == sl.CrossEntropy(0.1, (1.0, 3.0), 7)
    assert sl.resolve(nn.BCEWithLogitsLoss(pos_weight=weight)) == sl.BinaryCrossEntropy((1.0, 3.0))
    assert sl.resolve(nn.MSELoss()) == sl.MeanSquaredError()
    assert sl.resolve(F.cross_entropy) == sl.CrossEntropy()
    assert sl.resolve(focal) == sl.CallableLoss(focal)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("cross_entrpy", "did you mean cross_entropy"),
        ("zzz", "the losses are cross_entropy"),
        (3, "loss is 3"),
        (nn.CrossEntropyLoss, "loss is <class"),
        (nn.MSELoss(reduction="sum"), "grows with the number of samples"),
        (nn.L1Loss(), "torch.nn.L1Loss"),
        (nn.BCEWithLogitsLoss(weight=torch.ones(3)), "bound to one batch"),
    ],
)
def test_resolve_says_what_is_wrong(loss: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        sl.resolve(loss)

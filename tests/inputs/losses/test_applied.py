"""Losses written by hand with many outputs: their second derivative is applied, never formed, and sketched rightly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spiritlevel.inputs import losses as sl
from spiritlevel.inputs.losses import applied
from spiritlevel.values.errors import SpiritlevelError
from tests.inputs.losses.derivatives import assembled, dense_hessians, focal, randint, randn
from tests.inputs.losses.sketches import assert_signs_belong_to_the_sample, assert_unbiased


@pytest.fixture(autouse=True)
def never_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of many outputs is shown on few."""
    monkeypatch.setattr("spiritlevel.inputs.losses.custom.MOST_OUTPUTS", 1)


def tokens(outputs: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
    """A token loss as people write it: shifted, masked, smoothed."""
    losses = F.cross_entropy(
        outputs[:, :-1].flatten(0, 1), batch["y"][:, 1:].flatten(), reduction="none", label_smoothing=0.1
    )
    return losses.view(len(outputs), -1), batch["mask"][:, 1:].to(losses.dtype)


def token_batch(chosen: Tensor) -> dict[str, Tensor]:
    mask = torch.ones(5, 4, dtype=torch.int64)
    mask[0, 2:] = 0
    mask[3] = 0
    return {"y": randint(3, 5, 4)[chosen], "mask": mask[chosen]}


def tempered(outputs: Tensor, batch: Any) -> Tensor:
    """Convex and coupled within positions alone, but no softmax of the outputs themselves."""
    return F.cross_entropy(2 * outputs.flatten(0, 1), batch[1].flatten(), reduction="none").view(batch[1].shape)


def gaussian(outputs: Tensor, batch: Any) -> Tensor:
    """Mean and logarithm of the variance in two channels (B, 2, T)."""
    mean, log = outputs.unbind(1)
    return 0.5 * (log + (batch[1] - mean).square() * torch.exp(-log))


def smooth_chain(outputs: Tensor, batch: Any) -> Tensor:
    """Neighbouring positions pull at each other."""
    return focal(outputs, batch).mean(1) + outputs.diff(dim=1).square().square().sum((1, 2))


def robust(outputs: Tensor, batch: Any) -> Tensor:
    """Diagonal, of either sign."""
    return torch.log1p((outputs - batch[1]).square()).flatten(1).sum(1)


def plain(outputs: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(outputs, batch[1], reduction="none")


CASES: dict[str, tuple[Callable[..., Any], Tensor, Callable[[Tensor], Any], str]] = {
    "tokens": (tokens, randn(5, 4, 3), token_batch, "_of_softmax"),
    "classes": (plain, 2 * randn(5, 6), lambda i: (None, randint(6, 5)[i]), "_of_softmax"),
    "pixels": (plain, 2 * randn(5, 3, 2, 2), lambda i: (None, randint(3, 5, 2, 2)[i]), "_of_softmax"),
    "tempered": (tempered, randn(5, 3, 3), lambda i: (None, randint(3, 5, 3)[i]), "_of_positions"),
    "focal": (focal, 2 * randn(5, 3, 4), lambda i: (None, randint(4, 5, 3)[i]), "_of_positions"),
    "gaussian": (gaussian, randn(5, 2, 3), lambda i: (None, randn(5, 3, seed=2)[i]), "_of_positions"),
    "robust": (robust, 2 * randn(5, 3, 2), lambda i: (None, randn(5, 3, 2, seed=2)[i]), "_of_diagonal"),
    "chain": (smooth_chain, randn(5, 3, 2), lambda i: (None, randint(2, 5, 3)[i]), "_of_pairs"),
}


@pytest.mark.parametrize("small_positions", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_sketches_have_the_second_derivative_as_their_mean(
    name: str, small_positions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not small_positions:
        monkeypatch.setattr(applied, "MOST_OF_A_POSITION", 1)
    ways = ["_of_softmax", "_of_positions", "_of_diagonal", "_of_pairs"]
    taken: list[str] = []
    for way in ways:
        inner = getattr(applied, way)
        monkeypatch.setattr(applied, way, lambda *a, way=way, inner=inner: (taken.append(way), inner(*a))[1])
    fn, outputs, batch_of, expected_way = CASES[name]
    loss, everything = sl.CallableLoss(fn), torch.arange(5)
    batch = batch_of(everything)
    draws = 20_000 if expected_way in ("_of_softmax", "_of_diagonal") else 4_000  # a product each, without structure
    assert_unbiased(loss, outputs, batch, draws, dense_hessians(loss, outputs, batch))
    by_pairs = expected_way == "_of_pairs" or (expected_way == "_of_positions" and not small_positions)
    assert taken == [*dict.fromkeys((expected_way, *["_of_pairs"] * by_pairs))]
    assert_signs_belong_to_the_sample(loss, outputs, batch_of)


def test_a_softmax_of_confident_logits_in_single_precision_is_known() -> None:
    outputs = (30 * randn(6, 3, 40)).float()
    labels = randint(40, 6, 3)
    loss = sl.CallableLoss(lambda f, b: F.cross_entropy(f.mT, b[1], reduction="none"))
    found = loss.factor(outputs, (None, labels), limit=1, draws=4)
    expected = sl.SameToken().factor(outputs, (None, labels), limit=1, draws=4)
    assert found.psd
    torch.testing.assert_close(found.columns, expected.columns, rtol=1e-5, atol=1e-9)


def test_structure_that_almost_holds_is_not_taken() -> None:
    """A coupling of one pair of entries, of a millionth of the rest."""
    outputs, batch = randn(4, 3, 2), (None, randn(4, 3, 2, seed=3))

    def nearly(f: Tensor, b: Any) -> Tensor:
        return robust(f, b) + 1e-6 * f[:, 0, 0] * f[:, 2, 1]

    loss = sl.CallableLoss(nearly)
    assert not loss.factor(outputs, batch, limit=1, draws=2).psd
    assert_unbiased(loss, outputs, batch, 4_000, dense_hessians(loss, outputs, batch))
    columns = loss.factor(outputs, batch, limit=1, draws=1).columns[:, 0].flatten(1)
    own = sl.CallableLoss(robust).factor(outputs, batch, limit=1, draws=1).columns[:, 0].flatten(1)
    assert not torch.allclose(columns, own, atol=1e-3)


def test_no_curvature_gives_columns_of_zeros() -> None:
    loss = sl.CallableLoss(lambda f, b: f.abs().flatten(1).sum(1))
    factor = loss.factor(randn(3, 4, 2), (None,), draws=2, limit=1)
    assert factor.columns.abs().max() == 0
    assert torch.isfinite(factor.columns).all()


def test_a_language_models_own_loss_is_sketched_at_its_size() -> None:
    outputs, labels = randn(2, 16, 600).float(), randint(600, 2, 16)
    loss = sl.CallableLoss(tokens)
    batch = {"y": labels, "mask": torch.ones_like(labels)}
    factor = loss.factor(outputs, batch, draws=3)
    assert factor.columns.shape == (3, 2, 16, 600)
    impurity = sl.softmax_impurity(outputs[:, :-1]).mean(1)
    found = factor.columns.double().square().sum((2, 3)).mean(0)
    torch.testing.assert_close(found, impurity, rtol=0.05, atol=0)


def in_batch_contrast(outputs: Tensor, batch: Any) -> Tensor:
    """Each sample against all others of its batch."""
    return F.cross_entropy(outputs.flatten(1) @ outputs.flatten(1).T, torch.arange(len(outputs)), reduction="none")


@pytest.mark.parametrize("coupled", [in_batch_contrast, lambda f, b: (f - f.mean(0)).square().flatten(1).sum(1)])
def test_samples_that_couple_are_refused(coupled: Callable[..., Tensor]) -> None:
    with pytest.raises(SpiritlevelError, match="couples the samples of a batch"):
        sl.CallableLoss(coupled).factor(randn(3, 5, 2), (None,))


def test_the_assembled_draws_of_many_calls_are_those_of_one() -> None:
    for fn, outputs, batch_of, _ in CASES.values():
        loss, batch = sl.CallableLoss(fn), batch_of(torch.arange(5))
        whole = loss.factor(outputs, batch, limit=1, draws=7, generator_seed=3)
        parts = [
            loss.factor(outputs, batch, limit=1, draws=k, first_draw=j, generator_seed=3) for j, k in ((0, 2), (2, 5))
        ]
        torch.testing.assert_close(torch.cat([part.columns for part in parts]), whole.columns)
        assert torch.equal(torch.cat([part.signs for part in parts]), whole.signs)
        again = sum(part.draws * assembled(part) for part in parts) / 7
        torch.testing.assert_close(again, assembled(whole))

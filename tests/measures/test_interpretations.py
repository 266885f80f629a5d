"""What is said to move a measure, or not to, is shown on a small network."""

from __future__ import annotations

import copy
import statistics
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.measures.interpretation import (
    CONFIDENCE,
    FEWER_SAMPLES,
    INFLUENCES,
    INFLUENCES_IN_SHORT,
    Interpretation,
)
from spiritlevel.measures.interpretations import INTERPRETATIONS, interpretation_of
from spiritlevel.measures.registry import MEASURES
from spiritlevel.results import Report
from spiritlevel.values.estimate import Estimate
from tests.helpers import opened
from tests.measures.test_symmetry_claims import assert_claim
from tests.measures.trained import SETTINGS, reported, trained_conv, trained_mlp, uncertainty

MODES = ("eval", "train")


def of(name: str) -> Interpretation:
    found = interpretation_of(MEASURES[name])
    assert found is not None
    return found


WITH_A_RULE = [name for name, own in INTERPRETATIONS.items() if own.confidence != "no rule"]
WITH_AN_ANSWER = [name for name, own in INTERPRETATIONS.items() if own.fewer_samples != "no rule"]
Case = tuple[nn.Module, tuple[Tensor, Tensor]]
COPIES, UNITS, FACTOR, GROUPS, SPREAD = 4, 3.0, 3.0, 5, 6.0


def test_every_measure_is_interpreted() -> None:
    """A measure without an entry in ``interpretations.py`` fails here: say there how its values are to be read."""
    assert all(interpretation_of(own) for own in MEASURES.values())
    assert set(INTERPRETATIONS) <= {name for name, own in MEASURES.items() if own.interpretation is None}


@pytest.mark.parametrize("name", INTERPRETATIONS)
def test_every_interpretation_is_whole(name: str) -> None:
    own = of(name)
    for text in (own.conclude, own.beware):
        assert text[0].isupper(), text
        assert text.endswith("."), text
        assert len(text) < 500, "a few sentences"
    assert set(own.unmoved) | set(own.moved) <= set(INFLUENCES)
    assert not set(own.unmoved) & set(own.moved)
    assert set(INFLUENCES) == set(INFLUENCES_IN_SHORT)
    assert own.confidence in CONFIDENCE
    assert own.fewer_samples in FEWER_SAMPLES


# --- what keeps the function, or the network --------------------------------------------------------------------------


def labels() -> Case:
    model, (x, y) = trained_mlp()
    return model, (x, (y + 1) % 3)


def copied_units() -> Case:
    """Every hidden unit several times; what reads it shares its weight among the copies."""
    model, data = trained_mlp()
    wider = nn.Sequential(
        nn.Linear(4, 5 * COPIES), nn.ReLU(), nn.Linear(5 * COPIES, 4 * COPIES), nn.ReLU(), nn.Linear(4 * COPIES, 3)
    ).double()
    with torch.no_grad():
        for at, (rows, columns) in {0: (COPIES, 1), 2: (COPIES, COPIES), 4: (1, COPIES)}.items():
            wider[at].weight.copy_(model[at].weight.repeat(rows, columns) / columns)
            wider[at].bias.copy_(model[at].bias.repeat(rows))
    return wider, data


def input_units() -> Case:
    model, (x, y) = trained_mlp()
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed[0].weight.div_(UNITS)
    return changed, (UNITS * x, y)


CASES = {"labels": labels, "copied_units": copied_units, "input_units": input_units}


@cache
def influenced(influence: str) -> Report:
    model, data = CASES[influence]()
    before, (x, _) = trained_mlp()
    with torch.no_grad():
        torch.testing.assert_close(model(data[0]), before(x), rtol=1e-10, atol=1e-12)
    return sl.measure(opened(model, data), "all", settings=SETTINGS)


@pytest.mark.parametrize("name", INTERPRETATIONS)
@pytest.mark.parametrize("influence", INFLUENCES)
def test_every_influence_is_shown(name: str, influence: str) -> None:
    claim = of(name).answer(influence)
    after = influenced(influence)[name]
    if claim is False and not after.ok:  # no value any more is a change too
        assert after.reason
        return
    assert_claim(claim, reported("mlp")[name], after)


# --- confidence -------------------------------------------------------------------------------------------------------


def _continued(model: nn.Module, steps: int, smoothing: float = 0.0) -> nn.Module:
    _, (x, y) = trained_mlp()
    further = copy.deepcopy(model)
    optimizer = torch.optim.Adam(further.parameters(), 0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(further(x), y, label_smoothing=smoothing).backward()
        optimizer.step()
    optimizer.zero_grad()
    return further


@cache
def sureness(which: str) -> tuple[Report, Report]:
    """Two networks that get every training sample right, the second of them surer of itself."""
    start, (x, y) = trained_mlp()
    fitted = _continued(start, 100)
    if which == "longer training":
        pair = fitted, _continued(fitted, 300)
    elif which == "no label smoothing":
        pair = _continued(start, 400, smoothing=0.1), _continued(start, 400)
    else:
        scaled = copy.deepcopy(fitted)
        with torch.no_grad():
            scaled[4].weight.mul_(FACTOR)
            scaled[4].bias.mul_(FACTOR)
        pair = fitted, scaled
    for model in pair:
        assert bool((model(x).argmax(1) == y).all())
    less, more = (sl.measure(opened(model, (x, y)), WITH_A_RULE, settings=_settings(WITH_A_RULE)) for model in pair)
    assert more.loss < less.loss
    return less, more


@pytest.mark.parametrize("name", WITH_A_RULE)
@pytest.mark.parametrize("which", ["longer training", "no label smoothing", "outputs scaled up"])
def test_confidence_moves_it_as_is_said(name: str, which: str) -> None:
    less, more = (report[name] for report in sureness(which))
    rise = more.value - less.value
    assert (rise if of(name).confidence == "rises" else -rise) > 2 * _noise(less, more), (less, more)


def _settings(names: list[str]) -> dict[str, Any]:
    return {name: given for name, given in SETTINGS.items() if name in names}


def _noise(*estimates: Estimate) -> float:
    return sum(uncertainty(estimate) for estimate in estimates)


# --- fewer samples ----------------------------------------------------------------------------------------------------


@cache
def parts() -> list[Report]:
    model, (x, y) = trained_mlp()
    groups = [(x[part::GROUPS], y[part::GROUPS]) for part in range(GROUPS)]
    return [sl.measure(opened(model, group), WITH_AN_ANSWER, settings=_settings(WITH_AN_ANSWER)) for group in groups]


@pytest.mark.parametrize("name", WITH_AN_ANSWER)
def test_fewer_samples_do_what_is_said(name: str) -> None:
    whole, found = reported("mlp")[name], [report[name] for report in parts()]
    mean, noise = statistics.mean(each.value for each in found), _noise(whole, *found) + 1e-8 * abs(whole.value)
    said = of(name).fewer_samples
    if said == "not used":
        assert all(each.value == whole.value for each in found)
    elif said == "unbiased":
        assert abs(mean - whole.value) <= 4 * noise
    elif said == "too large":
        assert mean > whole.value + 2 * noise
    elif said == "too small":
        assert mean < whole.value - 2 * noise


# --- BatchNorm --------------------------------------------------------------------------------------------------------


@cache
def in_both_modes() -> tuple[Report, Report]:
    """A network whose statistics of training are no longer those of its data, as after a few steps on other images."""
    model, data = copy.deepcopy(trained_conv())
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.mul_(SPREAD)
    evaluated, trained = (sl.measure(opened(model, data, mode=mode), "all", settings=SETTINGS) for mode in MODES)
    return evaluated, trained


@pytest.mark.parametrize("name", INTERPRETATIONS)
def test_the_mode_of_batch_norm_moves_all_that_look_at_samples(name: str) -> None:
    evaluated, trained = (report[name] for report in in_both_modes())
    if of(name).fewer_samples == "not used":
        assert trained.value == evaluated.value
    elif trained.status == "not_applicable":
        assert "influence each other" in trained.reason
    else:
        assert abs(trained.value - evaluated.value) > 1e-3 * abs(evaluated.value) + _noise(evaluated, trained)

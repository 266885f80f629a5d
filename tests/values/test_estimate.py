"""An estimate says how far off it may be, or it cannot be made."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.engine.blocks import Blocks
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.results.numerals import residual_of, value_text
from spiritlevel.results.records import estimate_record, read_estimate
from spiritlevel.values.errors import UsageError
from spiritlevel.values.estimate import ANYWHERE, TINIEST, Estimate, at_least_rounding, not_applicable
from tests.helpers import opened


@pytest.mark.parametrize("stderr", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("status", ["ok", "budget_spent"])
def test_what_is_called_estimated_needs_an_error_or_an_interval(stderr: float, status: Any) -> None:
    with pytest.raises(
        UsageError, match=re.escape(f"is called estimated but has an error of {stderr} and no interval")
    ):
        Estimate(2.0, stderr, how="estimated", status=status)
    assert Estimate(2.0, stderr, interval=(1.0, 3.0), how="estimated", status=status).value == 2.0
    assert Estimate(2.0, 0.1, how="estimated", status=status).stderr == 0.1


def test_what_has_no_value_needs_no_error() -> None:
    assert Estimate(math.nan, how="estimated").status == "not_finite"
    assert not_applicable("no weight").stderr != 0
    assert Estimate(1.0, how="lower_bound").ok


def test_scaling_keeps_an_error_and_nothing_times_a_sample_is_exact() -> None:
    sampled = Estimate(2.0, 1e-10, how="estimated")
    assert sampled.scaled(3.0) == Estimate(6.0, 3e-10, how="estimated")
    assert sampled.scaled(1e-320).stderr == TINIEST
    assert (sampled.scaled(0.0).how, sampled.scaled(0.0).value) == ("exact", 0.0)
    assert Estimate(2.0, 0.1, how="lower_bound").scaled(0.0).how == "lower_bound"


def test_draws_that_agree_leave_their_rounding() -> None:
    assert at_least_rounding(0.25, 8.0, 1e-7) == 0.25
    assert at_least_rounding(0.0, 8.0, 1e-7) == pytest.approx(8e-7)
    assert at_least_rounding(0.0, 0.0, 1e-7) == TINIEST
    assert value_text(Estimate(0.0, TINIEST, how="estimated")) == "0"


@pytest.mark.parametrize(
    ("stored", "stderr", "interval"),
    [((0.0, None), TINIEST, None), ((None, None), math.nan, ANYWHERE), ((0.5, None), 0.5, None)],
)
def test_records_of_earlier_versions_are_still_read(
    stored: tuple[float | None, None], stderr: float, interval: tuple[float, float] | None
) -> None:
    record = {**estimate_record(Estimate(2.0, 1.0, how="estimated")), "stderr": stored[0], "interval": stored[1]}
    found = read_estimate(record)
    assert found.stderr == pytest.approx(stderr, nan_ok=True)
    assert found.interval == interval
    assert value_text(found).startswith("2.0")


def test_an_end_that_is_not_known_stays_unknown_in_a_file() -> None:
    half_open = Estimate(2.0, interval=(-math.inf, 3.0), how="estimated")
    again = read_estimate(json.loads(json.dumps(estimate_record(half_open), allow_nan=False)))
    assert again == half_open
    assert residual_of(again) == math.inf


def _curved(width: int = 1, **options: Any) -> OpenProblem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2)).double()
    return opened(model, (torch.randn(6, 2, dtype=torch.float64), torch.arange(6) % 2), **options)


def test_a_sampled_trace_of_one_parameter_has_the_error_of_its_rounding() -> None:
    """Random signs of a single parameter square to one, so all draws are equal."""
    alone = _curved(parameters=["0.bias"])
    trace = Blocks(alone).network_trace()
    assert trace.how == "estimated"
    assert 0 < trace.stderr <= 1e-14 * abs(trace.value)
    (value,) = sl.reference.Dense(alone).hessian.diagonal().tolist()
    assert trace.value == pytest.approx(value, rel=1e-12)


def test_one_probe_of_a_spectrum_leaves_its_error_open() -> None:
    found = sl.spectrum(_curved(3), probes=1, steps=3)
    assert found.frobenius_squared.interval == ANYWHERE
    assert found.effective_dimension().interval == ANYWHERE


def test_a_share_on_which_all_probes_agree_is_known_to_rounding() -> None:
    found = sl.spectrum(_curved(3), operator="ggn", probes=4, steps=3).negative_mass
    assert found.value == 0
    assert 0 < found.stderr <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_network_without_weights_has_numbers_that_say_what_they_are(dtype: torch.dtype) -> None:
    """All weights 0: draws agree, norms vanish, nothing is divided by them."""
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)).to(dtype)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    report = sl.measure(model, (torch.ones(4, 3, dtype=dtype), torch.arange(4) % 2), "all")
    for name, estimate in report.items():
        if estimate.how == "estimated" and estimate.status in ("ok", "budget_spent"):
            assert estimate.stderr > 0 or estimate.interval is not None, name

"""The best answer by a deadline: sooner where it is good enough, never late, and every number with an honest error.

The clock of these tests counts work: it moves on with every forward pass of the network, in proportion to the samples.
"""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.analyses.measuring import MeasuringInterrupted, measure
from spiritlevel.engine.passes.operation_sampling import OperationSampling
from spiritlevel.inputs import progress
from spiritlevel.inputs.deadline import Deadline, TimeSpent
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.reference import Dense
from spiritlevel.measures.registry import select
from spiritlevel.values.errors import SpiritlevelError, UsageError
from spiritlevel.values.estimate import Estimate
from tests.networks import SMOOTH

NETS = ("gelu", "layer_norm", "attention", "lstm")
SAMPLES = 24


class Work:
    """A clock that stands still but for forward passes: one over all samples takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    @contextmanager
    def counting(self, model: nn.Module) -> Iterator[None]:
        def move_on(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self.now += len(args[0]) / SAMPLES

        handle = model.register_forward_hook(move_on)
        try:
            yield
        finally:
            handle.remove()


@cache
def trained(name: str) -> tuple[nn.Module, Any]:
    return SMOOTH[name].trained(count=SAMPLES)


@cache
def dense(name: str) -> Dense:
    model, data = trained(name)
    return Dense(OpenProblem(sl.Problem(model, data)))


def measured(name: str, seconds: float, measures: Any = "default", **options: Any) -> tuple[sl.Report, float]:
    """The report by a deadline, and the time it took by the clock of work."""
    model, data = trained(name)
    clock = Work()
    with clock.counting(model):
        report = measure(sl.Problem(model, data), measures=measures, seconds=Deadline(seconds, clock), **options)
    return report, clock.now


def tells_truth(name: str, report: sl.Report, sigmas: float) -> bool:
    """Whether trace and top eigenvalue are within their errors of the dense ones; what has no number is not wrong."""
    truth = dense(name).hessian
    trace, top = report["hessian_trace"], report["hessian_top_eigenvalue"]
    values = torch.linalg.eigvalsh(truth)
    right = True
    if trace.status in ("ok", "budget_spent"):
        right &= abs(trace.value - float(truth.trace())) <= max(sigmas * trace.stderr, 1e-9)
    if top.status in ("ok", "budget_spent"):
        assert top.interval is not None
        low, high = top.interval
        rounding = 1e-9 * float(values.abs().max())
        right &= bool(((values >= low - rounding) & (values <= high + rounding)).any())
        right &= top.value <= float(values[-1]) + rounding
        if top.status == "ok":
            right &= top.how == "estimated" and high >= float(values[-1]) - rounding
        else:
            right &= top.how == "lower_bound"
    return right


def check_honest(report: sl.Report, seconds: float) -> None:
    """Every measure has a row; every number is finite and has an error; what was cut short says by what."""
    assert set(report) == {own.name for own in select("default")}
    for name, value in report.items():
        if value.status == "not_applicable":
            assert value.reason, name
            continue
        assert math.isfinite(value.value), name
        if value.how == "estimated":
            assert value.stderr > 0 or value.interval is not None, name
        if value.status == "budget_spent":
            assert f"the {seconds:g} seconds were spent" in value.reason, (name, value.reason)
    for layers in report.per_layer.values():
        assert all(math.isfinite(value.value) for value in layers.values() if value.ok)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("seconds", [6, 12, 25, 60])
def test_whatever_the_time_each_number_is_honest(name: str, seconds: int) -> None:
    report, took = measured(name, seconds)
    check_honest(report, seconds)
    assert tells_truth(name, report, sigmas=4)
    assert took <= 1.3 * seconds + 2


@pytest.mark.parametrize("seconds", [25, 60])
def test_what_ended_the_draws_of_many_samples_is_said(seconds: int) -> None:
    model, data = SMOOTH["layer_norm"].trained(count=100)  # enough to be drawn in strata
    clock = Work()
    with clock.counting(model):
        report = measure(sl.Problem(model, data), "hessian_trace", seconds=Deadline(seconds, clock), tolerance=1e-4)
    reason = report["hessian_trace"].reason
    assert "the standard error is above 0.01% of the value" in reason
    assert f"the {seconds} seconds were spent" in reason


def test_it_ends_as_soon_as_everything_is_known_well_enough() -> None:
    report, took = measured("gelu", 1e6)
    assert took < 1e4
    assert all(value.ok for value in report.values()), {name: value.reason for name, value in report.items()}
    assert report["hessian_trace"].stderr <= 0.05 * abs(report["hessian_trace"].value)


def test_more_time_makes_errors_smaller() -> None:
    errors = []
    for seconds in (20, 200):
        value = measured("attention", seconds, ["hessian_trace"], tolerance=1e-4)[0]["hessian_trace"]
        assert value.status == "budget_spent"
        errors.append(value.stderr)
    assert errors[1] < 0.7 * errors[0]


def test_the_value_furthest_from_its_tolerance_gets_the_time() -> None:
    report, _ = measured("attention", 120, ["hessian_trace", "hessian_top_eigenvalue", "kappa_tau_sum"])
    assert report["hessian_top_eigenvalue"].ok  # it asks for a thousandth, and would have none of the time if last


def test_too_little_for_one_look_is_one_sentence() -> None:
    with pytest.raises(TimeSpent, match=r"the 0.5 seconds .*; give more seconds, or fewer samples$"):
        measured("gelu", 0.5)
    with pytest.raises(SpiritlevelError):
        measured("gelu", 0.5)


def test_what_could_not_be_begun_has_a_row_with_the_reason() -> None:
    report, _ = measured("lstm", 6)
    missing = [value for value in report.values() if value.status == "not_applicable" and "seconds" in value.reason]
    assert missing
    assert all("the 6 seconds" in value.reason for value in missing)


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, True, "60"])
def test_what_is_no_time_is_refused(seconds: Any) -> None:
    model, data = trained("gelu")
    with pytest.raises(UsageError, match="seconds must be a positive number"):
        measure(sl.Problem(model, data), measures="cheap", seconds=seconds)


def test_without_a_deadline_nothing_is_different() -> None:
    model, data = trained("gelu")
    plain, known = (sl.measure(sl.Problem(model, data), "default", seed=3) for _ in range(2))
    assert {name: value.value for name, value in plain.items()} == pytest.approx(
        {name: value.value for name, value in known.items()}, nan_ok=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_errors_cover_over_fifty_seeds_whenever_it_ends(name: str) -> None:
    truth = float(dense(name).hessian.trace())
    scores = []
    for seed in range(50):
        value = measured(name, 12 + seed % 10, ["hessian_trace"], seed=seed)[0]["hessian_trace"]
        if value.status == "not_applicable" or value.how == "exact":
            continue
        scores.append((value.value - truth) / value.stderr)
    check_covers(scores)


def check_covers(scores: list[float]) -> None:
    z = torch.tensor(scores, dtype=torch.float64)
    assert len(z) >= 25
    assert abs(float(z.mean())) <= 0.5, z
    assert float(z.square().mean()) <= 2.0, z


# --- interrupted -----------------------------------------------------------------------------------------------------


def interrupted_at(name: str, moment: int) -> sl.Report:
    """The report of a measurement that is interrupted at a sweep's batch of that number."""
    model, data = trained(name)
    problem, count = OpenProblem(sl.Problem(model, data, batch_size=8)), 0

    def stop(what: str, done: int, total: int) -> None:
        nonlocal count
        count += 1
        if count == moment:
            raise KeyboardInterrupt

    problem.progress = stop
    with pytest.raises(MeasuringInterrupted) as caught:
        measure(problem)
    return caught.value.report


@pytest.mark.parametrize("moment", [7, 10, 13, 16, 19, 22])
def test_an_interruption_keeps_what_is_known(moment: int) -> None:
    report = interrupted_at("attention", moment)
    plain = measure(sl.Problem(*trained("attention")))
    assert list(report) == list(plain)
    assert tells_truth("attention", report, sigmas=4)
    assert "Interrupted after" in report.header.notes[-1]
    for value in report.values():
        if value.status == "not_applicable":
            assert "interrupted" in value.reason or value.reason == plain["output_margin"].reason
        elif not value.ok:
            assert "it was interrupted" in value.reason


def test_a_sweep_that_was_half_added_up_gives_no_number(monkeypatch: pytest.MonkeyPatch) -> None:

    model, data = trained("attention")
    original, calls = OperationSampling._take, 0

    def torn(self: OperationSampling, sweep: Any, draws: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            original(self, sweep, draws)
            return
        self.network.add(torch.full((draws,), 1e6, dtype=torch.float64), 0.0, 1e6)
        raise KeyboardInterrupt

    monkeypatch.setattr(OperationSampling, "_take", torn)
    with pytest.raises(MeasuringInterrupted) as caught:
        measure(sl.Problem(model, data), measures=["hessian_trace"], tolerance=1e-6)
    value: Estimate = caught.value.report["hessian_trace"]
    assert value.status == "not_applicable"
    assert "added up" in value.reason
    assert math.isnan(value.value)


# --- spectra, audits, comparisons ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [25, 40, 60, 10_000])
def test_a_spectrum_by_a_deadline(seconds: int) -> None:
    model, data = trained("gelu")
    clock = Work()
    with clock.counting(model):
        found = sl.spectrum(sl.Problem(model, data), 4, 20, keep_graphs=False, seconds=Deadline(seconds, clock))
    assert clock.now <= 1.3 * seconds + 2
    truth = dense("gelu").hessian
    values = torch.linalg.eigvalsh(truth)
    for estimate in (found.eigenvalue_max, found.eigenvalue_min):
        assert estimate.interval is not None
        low, high = estimate.interval
        assert bool(((values >= low - 1e-9) & (values <= high + 1e-9)).any())
    for estimate, true in ((found.trace, truth.trace()), (found.frobenius_squared, truth.square().sum())):
        if estimate.interval is None:
            assert abs(estimate.value - float(true)) <= 5 * estimate.stderr + 1e-9
    cut = found.nodes.numel() < 80
    assert cut == ("seconds were spent" in found.frobenius_squared.reason)
    assert cut == (found.frobenius_squared.status == "budget_spent")


@pytest.mark.parametrize("seconds", [9, 12, 10_000])
def test_eigenvalues_by_a_deadline(seconds: int) -> None:
    model, data = trained("attention")
    clock = Work()
    values = torch.linalg.eigvalsh(dense("attention").hessian)
    with clock.counting(model):
        found = sl.eigenvalues(
            sl.Problem(model, data), 2, tolerance=1e-8, keep_graphs=False, seconds=Deadline(seconds, clock)
        )
    for low, high in found.intervals.tolist():
        assert bool(((values >= low - 1e-9) & (values <= high + 1e-9)).any())
    assert (found.status == "ok") == (seconds == 10_000)
    assert ("seconds were spent" in found.reason) == (seconds < 10_000)


@pytest.mark.parametrize("seconds", [60, 10_000])
def test_an_audit_shares_its_time_and_calls_nothing_changed_that_is_not(seconds: int) -> None:
    model, data = SMOOTH["gelu"].trained(count=SAMPLES)
    clock = Work()
    given = ["hessian_trace", "hessian_top_eigenvalue", "kappa_tau_sum"]
    with clock.counting(model):
        found = sl.audit(
            sl.Problem(model, data), measures=given, alphas=(0.5,), dtype=None, seconds=Deadline(seconds, clock)
        )
    assert not found.contradictions
    assert found.verdicts["hessian_top_eigenvalue"]["permutation"].verdict != "changes"


@pytest.mark.parametrize("seconds", [30, 10_000])
def test_a_comparison_by_a_deadline_decides_nothing_wrongly(seconds: int) -> None:
    clock = Work()
    problems, tops = {}, {}
    model, data = trained("gelu")
    for label, factor in (("a", 1.0), ("b", 1.3)):
        problems[label] = sl.Problem(copy.deepcopy(model), data)
        with torch.no_grad():
            for parameter in list(problems[label].model.parameters())[-2:]:
                parameter.mul_(factor)
        tops[label] = float(torch.linalg.eigvalsh(Dense(OpenProblem(problems[label])).hessian)[-1])
    with clock.counting(problems["a"].model), clock.counting(problems["b"].model):
        found = sl.compare(problems, ["hessian_trace", "hessian_top_eigenvalue"], seconds=Deadline(seconds, clock))
    assert set(found.rows) == {"hessian_trace", "hessian_top_eigenvalue"}
    flattest = found.rows["hessian_top_eigenvalue"].flattest
    assert flattest in (None, min(tops, key=lambda label: tops[label]))


# --- told meanwhile --------------------------------------------------------------------------------------------------


def test_where_there_is_no_terminal_a_line_now_and_then_says_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    measured("attention", 100, ["hessian_trace"], tolerance=1e-4, progress=True)
    lines = capsys.readouterr().err.splitlines()
    told = [line for line in lines if line.startswith("hessian_trace ")]
    assert 2 <= len(told) <= len(lines) <= 12
    errors = [float(line.split(" ± ")[1].split(",")[0]) for line in told]
    assert errors[-1] < errors[0]
    assert all(line.endswith(" s left") for line in lines)


def test_without_a_deadline_a_pipe_is_told_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model, data = trained("gelu")
    sl.measure(sl.Problem(model, data), "hessian_trace", progress=True)
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_the_value_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    measured("attention", 100, ["hessian_trace"], tolerance=1e-4, progress=True)
    assert "hessian_trace" in shown.getvalue()
    assert "s left" in shown.getvalue()

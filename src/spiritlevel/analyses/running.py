"""One measure of a run: looked at, known better and better, and at any moment what is known of it so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spiritlevel.engine.blocks import OTHER_SIDE, TOLERANCE
from spiritlevel.inputs.deadline import TimeSpent
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.workbench import Workbench
from spiritlevel.results.numerals import residual_of, value_text
from spiritlevel.values.errors import SpiritlevelError, UsageError
from spiritlevel.values.estimate import Estimate, Result, not_applicable

# Not every measure's reason is worth a traceback: these are failures of the computation, told in the measure's row.
_TOLD_IN_ROW = (
    SpiritlevelError,
    torch.OutOfMemoryError,
    np.linalg.LinAlgError,
    torch.linalg.LinAlgError,  # type: ignore[attr-defined]  # documented, but torch's types do not export it
)


class MeasureRun:
    """One measure on one workbench, and its result as it stands."""

    def __init__(self, measure: Measure, bench: Workbench, settings: Mapping[str, Any]) -> None:
        self.measure, self.bench, self.settings = measure, bench, settings
        self._found: Result | None = None  # as the measure gave it, until it was looked at
        self._refused: Estimate | None = None  # in its place, why there is none
        self._passes = 0.0
        self._kinds: set[Any] = set()  # of forms that the value is made of
        self.unbegun = False  # for want of time, and of nothing else
        self.settled = False
        self.cut_short = False  # whether there was no time for something when it was last looked at

    @property
    def result(self) -> Result:
        """What is known: the value with its errors and its status, or why there is none."""
        if self._refused is not None or self._found is None:
            return Result(self._refused or not_applicable("it was interrupted before this was measured"))
        result = self._found
        if "blocks" in self.measure.needs:
            result = self.bench.blocks.judged_result(result)
        samples = result.value.samples or self.bench.problem.survey.count
        result = replace(result, value=replace(result.value, passes=self._passes, samples=samples))
        return self._with_time(result) if self.cut_short else result

    def _with_time(self, result: Result) -> Result:
        """Say of every value that is not known well enough what ended the work on it."""
        deadline = self.bench.problem.deadline
        assert deadline is not None

        def told(estimate: Estimate) -> Estimate:
            if estimate.status != "budget_spent":
                return estimate
            return replace(estimate, reason="; ".join(filter(None, (estimate.reason, deadline.words))))

        layers = {
            quantity: {layer: told(value) for layer, value in values.items()}
            for quantity, values in result.layers.items()
        }
        return replace(result, value=told(result.value), layers=layers)

    def look(self) -> None:
        """Take the measure's value from what is known, after a first look at what is not known yet."""
        measure, bench = self.measure, self.bench
        reason = _why_not(measure, bench.problem)
        if reason:
            self._refused = not_applicable(reason)
            return
        before, refused = self._spent, self._refusals
        if bench.known_blocks is not None:
            bench.known_blocks.asked.clear()
        try:
            found = _as_result(measure, measure(*(getattr(bench, need) for need in measure.needs), **self.settings))
            self._found, self._refused, self.unbegun = found, None, False
        except TimeSpent as error:  # an earlier value stays what it was
            self.unbegun = self._found is None
            self._refused = not_applicable(str(error)) if self.unbegun else None
        except UsageError as error:
            if not measure.builtin:
                raise
            self._refused = not_applicable(str(error))
        except _TOLD_IN_ROW as error:
            self._refused = not_applicable(str(error).splitlines()[0])
        if "blocks" in measure.needs and bench.known_blocks is not None:
            self._kinds = set(bench.known_blocks.asked)
        self._passes += self._spent - before + bench.claim(measure.needs)
        self.cut_short = self._refusals > refused
        if self._found is not None:
            self.bench.problem.latest = f"{measure.name} {_with_error(self._found.value)}"

    def lose(self, reason: str) -> None:
        """Give up what was found, for a reason."""
        self._found, self._refused = None, not_applicable(reason)

    def settle(self) -> None:
        """Look at the value, and go on until it is known as well as was asked for."""
        self.look()
        while "blocks" in self.measure.needs and self.improve():
            pass
        self.settled = True

    def improve(self) -> bool:
        """Let more be sampled or searched for this value, and look at it again; False where that is no use."""
        before, refused = self._spent, self._refusals
        by_blocks = "blocks" in self.measure.needs
        if self._refused is not None or self._found is None:
            better = self.unbegun
        elif by_blocks:
            better = self._sampled_more(self._found.value)
        else:
            better = bool({"eigen", "layer_eigen"} & set(self.measure.needs)) and self.bench.go_on()
        self._passes += self._spent - before
        self.cut_short = self._refusals > refused
        if not better:
            return False
        before = self._spent
        self.look()
        return self._spent > before or (by_blocks and not self.unbegun)

    def _sampled_more(self, value: Estimate) -> bool:
        self.bench.blocks.asked = set(self._kinds)
        try:
            return self.bench.blocks.improve(value)
        except TimeSpent:
            return False

    @property
    def _refusals(self) -> int:
        deadline = self.bench.problem.deadline
        return 0 if deadline is None else sum(deadline.refusals.values())

    @property
    def _spent(self) -> float:
        return float(sum(self.bench.problem.spent.values()))

    @property
    def distance(self) -> float:
        """How many times larger the value's error is than its tolerance; 0 where nothing more is wanted of it."""
        if self.unbegun:
            return math.inf
        value = self.result.value
        if value.status != "budget_spent":
            return 0.0
        error = max(value.stderr, abs(value.value - value.details.get(OTHER_SIDE, value.value)) / 2)
        error = max(error, value.details.get("residual", residual_of(value) or 0.0))
        tolerance = self.settings.get("tolerance") or self.bench.tolerance or TOLERANCE
        return error / (tolerance * abs(value.value)) if value.value else math.inf


def _with_error(value: Estimate) -> str:
    residual = value.details.get("residual")
    return f"{value_text(value)}{'' if residual is None else f' (residual {residual:.1e})'}"


def run_measure(measure: Measure, bench: Workbench, settings: Mapping[str, Any]) -> Result:
    """Run one measure until its value is known as well as was asked for; what stops it becomes its reason."""
    run = MeasureRun(measure, bench, settings)
    run.settle()
    return run.result


def _why_not(measure: Measure, problem: OpenProblem) -> str:
    if "classes" in measure.requires and problem.survey.correct is None:
        return "it needs class scores (B, C) and one integer label a sample"
    if "independent" in measure.requires and problem.survey.coupled:
        return "samples of a batch influence each other's outputs here (BatchNorm in training mode); use mode='eval'"
    return ""


def _as_result(measure: Measure, found: Any) -> Result:
    if isinstance(found, Result):
        return found
    if isinstance(found, Estimate):
        return Result(found)
    if isinstance(found, Tensor) and found.numel() == 1:
        found = found.item()
    if isinstance(found, (int, float, np.number)) and not isinstance(found, bool):
        return Result(Estimate(float(found)))
    raise UsageError(
        f"measure {measure.name} returned {type(found).__name__}; it must return a number, an Estimate or a Result"
    )

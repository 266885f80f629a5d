"""One product against central differences before any is trusted, and the path that products then take.

An operation without a second derivative does not always say so: a function marked ``once_differentiable`` or one that
cuts the graph in its backward gives products that are wrong by any amount, without an error.  So the first time a
product is asked for, H v and J v of a few samples are computed in float64 at a generic point near the parameters and
compared with central differences of the gradient and of the outputs.  A random combination of the outputs is added to
the loss, because at interpolation the loss alone shows nothing.  Piecewise-linear networks have kinks: a step that
crosses one sees more curvature than there is, so agreement at any one of several steps counts, tensor by tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import torch
from torch import Tensor

from spiritlevel.engine.estimators.probes import seeded_generator
from spiritlevel.engine.operators.differentiation import gradient_graph, hessian_vectors, push_forward
from spiritlevel.engine.operators.generic_point import ROUNDINGS, SHARP, STEPS, TOLERANCE, GenericPoint
from spiritlevel.inputs.contents import Content
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.values.errors import SpiritlevelError
from spiritlevel.values.estimate import Status

Kind = Literal["double backward", "finite differences"]
SAMPLES = 8  # drawn across the data


@dataclass
class Path:
    """How products are made for one problem: by differentiating twice, or by differences of gradients and outputs."""

    hessian: Kind = "double backward"
    push: Kind = "double backward"
    reason: str = ""
    wrong: frozenset[str] = frozenset()  # parameters whose second derivatives autograd gets wrong
    radius: float | None = None  # of the differences, once chosen
    gaps: dict[str, float] = field(default_factory=dict)  # largest between two steps of a kind of difference
    sizes: dict[str, float] = field(default_factory=dict)  # the largest such difference
    agreements: dict[str, bool] = field(default_factory=dict)  # strategies compared with the looped one

    @property
    def differences(self) -> bool:
        """Whether any product is a finite difference."""
        return "finite differences" in (self.hessian, self.push)

    def compare(self, kind: str, gap: float, size: float) -> None:
        """Note how far two steps of a difference lay apart, both for a vector of length one."""
        self.gaps[kind] = max(self.gaps.get(kind, 0.0), gap)
        self.sizes[kind] = max(self.sizes.get(kind, 0.0), size)

    @property
    def disagreement(self) -> float:
        """The largest gap between two steps against the largest product, as a residual against the norm."""
        return max((gap / (self.sizes[kind] or 1.0) for kind, gap in self.gaps.items()), default=0.0)

    @property
    def converged(self) -> bool:
        """Whether two steps of every difference agreed so far."""
        return self.disagreement <= 0.02

    @property
    def label(self) -> str:
        """The path in words, with the radius of differences once it is known."""
        if not self.differences:
            return "double backward"
        of = "gradients" if self.hessian == "finite differences" else "outputs"
        where = "" if self.radius is None else f", radius {self.radius:.2g}"
        tail = "" if self.converged else f", not converged (two steps disagree by {self.disagreement:.0%})"
        return f"finite differences of {of}{where}{tail}"

    def verdict(self, met: bool = True, shortfall: str = "") -> tuple[Status, str]:
        """Return the status and the reason of a number made of these products; ``shortfall`` says what was not met."""
        reasons = [] if met else [shortfall]
        if not self.converged:
            reasons.append(
                f"{self.label}: the value depends on the radius; use float64, or replace the operation without a "
                "second derivative"
            )
        return "budget_spent" if reasons else "ok", "; ".join(reasons)


Found = TypeVar("Found")


def path_of(problem: OpenProblem) -> Path:
    """Return the path of this problem's products, after checking one of them the first time."""
    if problem.derivatives is None:
        try:
            problem.derivatives = _checked_path(problem)
        except SpiritlevelError as error:
            problem.derivatives = error
    found: Path | SpiritlevelError = problem.derivatives
    if isinstance(found, SpiritlevelError):
        raise found
    return found


def require_true_gradient(problem: OpenProblem) -> None:
    """Refuse where the gradient that torch computes is not the derivative of the loss: the cheaper half of the check.

    It is all that is needed where every operation recorded is one of torch's own whose second derivatives are known.
    """
    if problem.derivatives is not None:
        path_of(problem)  # which raises where the gradient was found wrong
    elif not problem.gradient_is_true:
        _first_that_works(problem, _Check.require_slope)
        problem.gradient_is_true = True


def require_double_backward(problem: OpenProblem, what: str) -> None:
    """Refuse where second derivatives through autograd cannot be trusted and ``what`` has no other path."""
    path = path_of(problem)
    if path.differences:
        raise SpiritlevelError(f"{what} needs second derivatives through autograd, and {path.reason}")


def _checked_path(problem: OpenProblem) -> Path:
    path = _first_that_works(problem, _Check.path)
    if path.differences:
        problem.notes.append(f"Products with the Hessian are {path.label}, because {path.reason}.")
    return path


def _first_that_works(problem: OpenProblem, look: Callable[[_Check], Found]) -> Found:
    """Return what a look at a few samples finds in float64, or in the precision of a model that cannot be run so."""
    with problem.session():
        few = problem.on_few(SAMPLES)
        content = next(iter(few.batches())).content
        last: Exception | None = None
        for dtype in (torch.float64, problem.dtype):
            try:
                return look(_Check(problem, content, dtype))
            except SpiritlevelError:
                raise
            except (RuntimeError, TypeError, NotImplementedError) as error:
                last = error  # constants of another dtype inside the model, a device without float64
    raise SpiritlevelError(
        f"the gradient of the loss cannot be computed here ({type(last).__name__}: {_first_line(last)}), so there is "
        "no curvature to measure"
    )


class _Check:
    """The loss of a few samples as a function of all parameters, in one dtype, and its derivatives both ways."""

    def __init__(self, problem: OpenProblem, content: Content, dtype: torch.dtype) -> None:
        self.problem, self.dtype = problem, dtype
        self.at = GenericPoint(problem, dtype)
        self.content = self.at.cast(content)
        self.mixture: Tensor | None = None

    def _evaluate(self, chosen: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the outputs and the mean loss of the few samples plus a random combination of the outputs."""
        outputs = self.at.outputs(self.content, chosen)
        losses, weights = self.problem.loss.per_sample(outputs, self.content)
        if self.mixture is None:
            self.size = float(outputs.detach().abs().max()) or 1.0
            generator = seeded_generator(self.problem.seed, 8)
            drawn = torch.randn(outputs.shape, generator=generator, dtype=torch.float64).to(outputs.device, self.dtype)
            self.mixture = drawn / (self.size * len(outputs))
        loss = (weights.detach() * losses).sum() / weights.detach().sum().clamp_min(1e-30)
        return outputs, loss + (self.mixture * outputs).sum()

    def _gradient(self, step: float) -> tuple[Tensor, float, list[Tensor]]:
        leaves = self.at.leaves(step)
        outputs, loss = self._evaluate(leaves)
        tensors = list(leaves.values())
        gradient = torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)
        return outputs.detach(), float(loss.detach()), list(gradient)

    def _start(self) -> tuple[dict[str, Tensor], Tensor, Tensor, float, _Agreement]:
        """Return the point, its outputs and loss, the slope by the gradient, and where agreement is noted."""
        leaves = self.at.leaves()
        outputs, loss = self._evaluate(leaves)
        if not loss.requires_grad:
            raise SpiritlevelError(
                "the loss does not depend on the chosen parameters through autograd (a detach, or a conversion to "
                "numbers, lies between), so it has no derivatives to measure"
            )
        tensors = list(leaves.values())
        gradient = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True, materialize_grads=True)
        parts = [self.at.scales[n] * g.double().norm() for n, g in zip(leaves, gradient)]
        parts += [(g * self.at.direction[n]).double().sum() for n, g in zip(leaves, gradient)]
        found = _together(parts)
        size, slope = math.hypot(*found[: len(tensors)]), sum(found[len(tensors) :])
        return leaves, outputs, loss, slope, _Agreement(self.dtype, len(tensors), size)

    def _size_of(self, loss: Tensor) -> float:
        return self.size + abs(float(loss.detach()))  # the loss is rounded like the outputs it is made of

    def require_slope(self) -> None:
        """Refuse where the gradient is not the derivative of the loss."""
        _, _, loss, slope, agreement = self._start()
        for step in STEPS[self.dtype]:
            with torch.no_grad():
                ahead, behind = _together([self._evaluate(self.at.moved(size))[1] for size in (step, -step)])
            agreement.slope(slope, (ahead - behind) / (2 * step), step, self._size_of(loss))
            if agreement.slope_agrees and step != STEPS[self.dtype][0]:
                return
        agreement.require_slope()

    def path(self) -> Path:
        """Return which products agree with differences."""
        leaves, outputs, loss, slope, agreement = self._start()
        tensors, blocks = list(leaves.values()), [self.at.direction[name][None] for name in leaves]
        path = Path()
        second = _attempt(lambda: hessian_vectors(gradient_graph(loss, tensors), tensors, blocks), path)
        pushed = _attempt(lambda: [push_forward(outputs, tensors, blocks)], path)
        for step in STEPS[self.dtype]:
            ahead, behind = self._gradient(step), self._gradient(-step)
            agreement.slope(slope, (ahead[1] - behind[1]) / (2 * step), step, self._size_of(loss))
            if second is not None:
                difference = [(a - b) / (2 * step) for a, b in zip(ahead[2], behind[2])]
                agreement.second([p[0] for p in second], difference, list(self.at.scales.values()), step)
            if pushed is not None:
                agreement.push(pushed[0][0], (ahead[0] - behind[0]) / (2 * step), step, float(outputs.detach().norm()))
            if agreement.complete(second is not None, pushed is not None) and step != STEPS[self.dtype][0]:
                break  # not after the first: two tell how sharp they are
        agreement.require_slope()
        if second is None or not agreement.second_agrees:
            path.hessian = "finite differences"
        if pushed is None or not agreement.push_agrees:
            path.push = "finite differences"
        wrong = [name for name, right in zip(leaves, agreement.tensors) if not right]
        path.wrong = frozenset(wrong)
        if path.differences and not path.reason:
            where = f" (first seen in {wrong[0]})" if wrong else ""
            path.reason = (
                f"an operation gives a wrong second derivative without saying so{where}: a backward that is "
                "once_differentiable or cuts the graph"
            )
        return path


def _together(numbers: list[Tensor]) -> list[float]:
    """Return numbers as floats: a GPU is waited for once."""
    found: list[float] = torch.stack(numbers).tolist()
    return found


class _Agreement:
    """What has agreed with differences at some step so far, and what never will.

    Two steps that agree with each other tell how sharp a difference is.  A derivative that lies further from both than
    they from each other is wrong, and no later step, blurred by rounding, can save it.
    """

    def __init__(self, dtype: torch.dtype, count: int, gradient_size: float) -> None:
        self.tolerance = TOLERANCE[dtype]
        self.rounding = ROUNDINGS * torch.finfo(dtype).eps
        self.gradient_size = gradient_size
        self._verdicts: dict[tuple[str, int], _Verdict] = {}
        self._count = count

    @property
    def slope_agrees(self) -> bool:
        return self._verdict("slope").agrees

    @property
    def push_agrees(self) -> bool:
        return self._verdict("push").agrees

    @property
    def tensors(self) -> list[bool]:
        return [self._verdict("second", place).agrees for place in range(self._count)]

    @property
    def second_agrees(self) -> bool:
        return all(self.tensors)

    def _verdict(self, kind: str, place: int = 0) -> _Verdict:
        return self._verdicts.setdefault((kind, place), _Verdict())

    def complete(self, second: bool, push: bool) -> bool:
        return self.slope_agrees and (self.second_agrees or not second) and (self.push_agrees or not push)

    def slope(self, slope: float, difference: float, step: float, loss: float) -> None:
        found, expected = (torch.tensor(value, dtype=torch.float64) for value in (slope, difference))
        size = self.gradient_size
        allowed = 5 * self.tolerance * size  # along one direction; the gradient itself may be larger
        self._verdict("slope").look(found, expected, size, allowed, self.rounding * loss / step)

    def require_slope(self) -> None:
        if not self.slope_agrees:
            raise SpiritlevelError(
                "the gradient that torch computes is not the derivative of the loss (a detach, a straight-through "
                "estimator, a custom backward or half precision lies between), so there is no Hessian to measure; "
                "measure the network without that operation"
            )

    def push(self, pushed: Tensor, difference: Tensor, step: float, size: float) -> None:
        length = float(difference.norm())
        rounding = self.rounding * size / step
        self._verdict("push").look(pushed, difference, length, self.tolerance * length, rounding)

    def second(self, products: list[Tensor], differences: list[Tensor], scales: list[float], step: float) -> None:
        """Tensor by tensor, in units in which every tensor's entries are of order one."""
        total = float(torch.tensor([s * float(d.norm()) for s, d in zip(scales, differences)]).norm())
        rounding = self.rounding * self.gradient_size / step
        if step < 1e-9 and rounding > 0.05 * total:
            return  # nothing but rounding would be compared
        for place, (product, difference, scale) in enumerate(zip(products, differences, scales)):
            size = scale * max(float(product.norm()), float(difference.norm()))
            allowed = self.tolerance * size + 1e-3 * self.tolerance * total
            self._verdict("second", place).look(scale * product, scale * difference, size, allowed, rounding)


@dataclass
class _Verdict:
    """Whether one derivative agrees with its differences."""

    agrees: bool = False
    _refuted: bool = False
    _before: tuple[Tensor, float] | None = None  # the difference of the step before, and its rounding

    def look(self, found: Tensor, difference: Tensor, size: float, allowed: float, rounding: float) -> None:
        """Compare at one more step: ``allowed`` at the most, and what ``rounding`` makes of the difference."""
        gap = float((found - difference).norm())
        if self._before is not None:
            apart = float((difference - self._before[0]).norm())
            # Rounding shows between two steps as well; what the sharper one has of it is a bound for both.
            least = min(rounding, self._before[1])
            self._refuted |= gap > SHARP * size + 10 * apart + least
        self._before = difference, rounding
        self.agrees = not self._refuted and (self.agrees or gap <= allowed + rounding)


def _attempt(compute: Callable[[], list[Tensor]], path: Path) -> list[Tensor] | None:
    """Return what ``compute`` gives, or None with the reason noted where autograd refuses."""
    try:
        return compute()
    except (RuntimeError, NotImplementedError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        path.reason = f"autograd has no second derivative of an operation here ({_first_line(error)})"
        return None


def _first_line(error: BaseException | None) -> str:
    return " ".join(str(error).split())[:160] or "no message"

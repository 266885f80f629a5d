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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import torch
from torch import Tensor

from spiritlevel.engine.estimators.probes import seeded_generator
from spiritlevel.engine.operators.agreement import Agreement, at_once
from spiritlevel.engine.operators.differentiation import (
    gradient_and_products,
    gradient_graph,
    hessian_vectors,
    push_forward,
)
from spiritlevel.engine.operators.extrapolation import APART
from spiritlevel.engine.operators.generic_point import STEPS, GenericPoint
from spiritlevel.inputs.contents import Content
from spiritlevel.inputs.graph_size import saved_bytes
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.values.errors import SpiritlevelError
from spiritlevel.values.estimate import Status

DerivativeKind = Literal["double backward", "finite differences"]
SAMPLES = 8  # drawn across the data
# Of a model with more parameters than this, as few as have a graph no larger than the parameters: a check is to cost no
# more than a few gradients of a few samples, which may be books.
LARGE, FEWEST_SAMPLES = 1_000_000, 2

GRADIENT = "gradient"  # what is differentiated for products with the Hessian


@dataclass
class DerivativePath:
    """How products are made for one problem: by differentiating twice, or by differences of gradients and outputs."""

    hessian: DerivativeKind = "double backward"
    push: DerivativeKind = "double backward"
    reason: str = ""
    wrong: frozenset[str] = frozenset()  # parameters whose second derivatives autograd gets wrong
    radius: float | None = None  # of the differences, once chosen
    # By what was differentiated and where its batch begins, for a vector of length one:
    gaps: dict[tuple[str, int], float] = field(default_factory=dict)  # the largest between two steps
    sizes: dict[tuple[str, int], float] = field(default_factory=dict)  # the largest product
    agreements: dict[str, bool] = field(default_factory=dict)  # strategies compared with the looped one

    @property
    def differences(self) -> bool:
        """Whether any product is a finite difference."""
        return "finite differences" in (self.hessian, self.push)

    def compare(self, kind: tuple[str, int], gap: float, size: float) -> None:
        """Note how far two steps of a difference lay apart, both for a vector of length one."""
        self.gaps[kind] = max(self.gaps.get(kind, 0.0), gap)
        self.sizes[kind] = max(self.sizes.get(kind, 0.0), size)

    def negligible(self, kind: tuple[str, int]) -> float:
        """Return a gap that is nothing beside products known so far."""
        return APART * self.sizes.get(kind, 0.0)

    @property
    def disagreement(self) -> float:
        """The largest gap between two steps against the largest product, as a residual against the norm."""
        return max((gap / (self.sizes[kind] or 1.0) for kind, gap in self.gaps.items()), default=0.0)

    @property
    def error(self) -> float:
        """How far a product with a vector of length one may be off by its differences: a part of every residual."""
        return math.fsum(gap for (kind, _), gap in self.gaps.items() if kind == GRADIENT)

    @property
    def converged(self) -> bool:
        """Whether two steps of every difference agreed so far."""
        return self.disagreement <= APART

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


def path_of(problem: OpenProblem) -> DerivativePath:
    """Return the path of this problem's products, after checking one of them the first time."""
    if problem.derivatives is None:
        try:
            problem.derivatives = _checked_path(problem)
        except SpiritlevelError as error:
            problem.derivatives = error
    found: DerivativePath | SpiritlevelError = problem.derivatives
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


def _checked_path(problem: OpenProblem) -> DerivativePath:
    path = _first_that_works(problem, _Check.path)
    if path.differences:
        problem.notes.append(f"Products with the Hessian are {path.label}, because {path.reason}.")
    return path


def _first_that_works(problem: OpenProblem, look: Callable[[_Check], Found]) -> Found:
    """Return what a look at a few samples finds in float64, or in the precision of a model that cannot be run so."""
    with problem.session():
        few = problem.on_few(_samples_for(problem))
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


def _samples_for(problem: OpenProblem) -> int:
    if problem.size <= LARGE or problem.mode == "train":  # samples that influence each other are looked at as ever
        return SAMPLES
    one = problem.on_few(1)
    with one.session():
        content = next(iter(one.batches())).content
        each = saved_bytes(one, lambda: one.loss.per_sample(one.outputs(content), content))
    parameters = sum(tensor.numel() * tensor.element_size() for tensor in problem.tensors)
    return min(SAMPLES, max(FEWEST_SAMPLES, parameters // max(each, 1)))


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
        if outputs.dtype != self.dtype:
            raise TypeError(f"the model gives outputs of {outputs.dtype} whatever it is given")
        losses, weights = self.problem.loss.per_sample(outputs, self.content)
        if self.mixture is None:
            self.size = float(outputs.detach().abs().max()) or 1.0
            generator = seeded_generator(self.problem.seed, 8)
            drawn = torch.randn(outputs.shape, generator=generator, dtype=torch.float64).to(outputs.device, self.dtype)
            self.mixture = drawn / (self.size * len(outputs))
        loss = (weights.detach() * losses).sum() / weights.detach().sum().clamp_min(1e-30)
        return outputs, loss + (self.mixture * outputs).sum()

    def _gradient(self, step: float) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the outputs, the loss and its gradient a step along the direction."""
        leaves = self.at.leaves(step)
        outputs, loss = self._evaluate(leaves)
        tensors = list(leaves.values())
        gradient = torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)
        return outputs.detach(), loss.detach(), list(gradient)

    def _start(self) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return the point, its outputs and its loss."""
        leaves = self.at.leaves()
        outputs, loss = self._evaluate(leaves)
        if not loss.requires_grad:
            raise SpiritlevelError(
                "the loss does not depend on the chosen parameters through autograd (a detach, or a conversion to "
                "numbers, lies between), so it has no derivatives to measure"
            )
        return leaves, outputs, loss

    def _slope(self, gradient: Sequence[Tensor]) -> tuple[float, Agreement]:
        """Return the slope by the gradient, and where agreement is noted."""
        norms = torch.stack([g.double().norm() for g in gradient])
        sizes, slopes = torch.stack([norms, self.at.slopes(gradient).to(norms)]).tolist()  # a GPU is waited for once
        size = math.hypot(*(scale * norm for scale, norm in zip(self.at.scales.values(), sizes)))
        return sum(slopes), Agreement(self.dtype, len(gradient), size)

    def _size_of(self, loss: Tensor) -> float:
        return self.size + abs(float(loss.detach()))  # the loss is rounded like the outputs it is made of

    def require_slope(self) -> None:
        """Refuse where the gradient is not the derivative of the loss."""
        leaves, _, loss = self._start()
        gradient = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        slope, agreement = self._slope(gradient)
        for step in STEPS[self.dtype]:
            with torch.no_grad():
                ahead, behind = at_once([self._evaluate(self.at.moved(size))[1] for size in (step, -step)])
            agreement.slope(slope, (ahead - behind) / (2 * step), step, self._size_of(loss))
            if agreement.slope_agrees and step != STEPS[self.dtype][0]:
                return
        agreement.require_slope()

    def path(self) -> DerivativePath:
        """Return which products agree with differences."""
        path = DerivativePath()
        gradient, second, pushed, size, length = self._derivatives(path)
        slope, agreement = self._slope(gradient)
        del gradient
        for step in STEPS[self.dtype]:
            ahead, behind = self._gradient(step), self._gradient(-step)
            losses = at_once([ahead[1], behind[1]])
            agreement.slope(slope, (losses[0] - losses[1]) / (2 * step), step, size)
            if second is not None:
                difference = [a.sub_(b).div_(2 * step) for a, b in zip(ahead[2], behind[2])]
                agreement.second(second, difference, list(self.at.scales.values()), step)
            if pushed is not None:
                agreement.push(pushed, (ahead[0] - behind[0]) / (2 * step), step, length)
            if agreement.complete(second is not None, pushed is not None) and (
                agreement.sharp or step != STEPS[self.dtype][0]
            ):
                break  # not after the first unless all is sharp already: two tell how sharp they are
        agreement.require_slope()
        if second is None or not agreement.second_agrees:
            path.hessian = "finite differences"
        if pushed is None or not agreement.push_agrees:
            path.push = "finite differences"
        wrong = [name for name, right in zip(self.at.scales, agreement.tensors) if not right]
        path.wrong = frozenset(wrong)
        if path.differences and not path.reason:
            where = f" (first seen in {wrong[0]})" if wrong else ""
            path.reason = (
                f"an operation gives a wrong second derivative without saying so{where}: a backward that is "
                "once_differentiable or cuts the graph"
            )
        return path

    def _derivatives(
        self, path: DerivativePath
    ) -> tuple[list[Tensor], list[Tensor] | None, Tensor | None, float, float]:
        """Return the gradient, H v and J v, None where autograd refuses, and the sizes of the loss and the outputs.

        From one graph where autograd gives both, apart where it does not: either may be there without the other.
        """
        leaves, outputs, loss = self._start()
        tensors = list(leaves.values())
        size, length = self._size_of(loss), float(outputs.detach().norm())
        found = _attempt(
            lambda: gradient_and_products(loss, outputs, tensors, lambda parts: self.at.slopes(parts).sum()),
            DerivativePath(),
        )
        if found is not None:
            return *found, size, length
        del outputs, loss  # what was made of that graph may have freed parts of it
        outputs, loss = self._evaluate(leaves)
        gradient = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True, materialize_grads=True)
        blocks = [self.at.direction(name)[None] for name in leaves]
        second = _attempt(lambda: hessian_vectors(gradient_graph(loss, tensors), tensors, blocks), path)
        pushed = _attempt(lambda: push_forward(outputs, tensors, blocks), path)
        bent = None if second is None else [part[0] for part in second]
        return list(gradient), bent, None if pushed is None else pushed[0], size, length


def _attempt(compute: Callable[[], Found], path: DerivativePath) -> Found | None:
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

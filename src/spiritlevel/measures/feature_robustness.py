"""How much the loss can rise when every feature vector is moved by a small part of itself (Petzka et al. 2019)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from spiritlevel.engine.estimators.eigenvalues import top_eigenpairs
from spiritlevel.engine.estimators.probes import seeded_generator
from spiritlevel.engine.operators import LayerBlock
from spiritlevel.engine.passes.head import HeadLoss, is_linear
from spiritlevel.engine.passes.perturbed import Perturbed
from spiritlevel.engine.passes.recording import Recorder
from spiritlevel.inputs.input_first import is_input_first
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.costs import Cost
from spiritlevel.measures.declaration import declare
from spiritlevel.measures.reference import feature_robustness as reference
from spiritlevel.values.errors import UsageError, near_names
from spiritlevel.values.estimate import Estimate, not_applicable

# A search has ended when no matrix of norm at most 1 promises, to first order, more than this share of the rise found.
GAP = 1e-3
SMALLEST_STEP = 1 / 64


@declare(
    title="Feature robustness: the worst mean rise of the loss when features φ move to φ + δAφ",
    words="feature robustness",
    formula=r"\max_{\|A\|_2\le 1}\ \mathrm{mean}\,[\ell(\psi(\phi+\delta A\phi),y)-\ell(\psi(\phi),y)]",
    citation="Petzka et al. 2019, appendices C.1 and D.1",
    cost=Cost(forward=2, column="outputs - 1"),
    invariant=("layer_rescaling", "permutation"),
    not_invariant=("neuron_rescaling", "output_scaling"),
    wants=("transposed",),
    reference=reference.feature_robustness,
)
def feature_robustness(
    problem: OpenProblem,
    perturbed: Perturbed,
    blocks: Any,
    seed: int,
    *,
    layer: str = "last",
    delta: float = 1e-2,
    steps: int = 30,
    restarts: int = 8,
    draws: int = 16,
) -> Estimate:
    """Largest mean rise of the loss found when one matrix moves every feature by at most δ of its norm.

    The features are the inputs of ``layer``, by default of the last linear layer the network calls.  As W(φ + δAφ) =
    (W + δWA)φ, the features are moved by replacing the weight.  A layer that gives the network's outputs needs only
    its inputs, kept from one sweep; another layer takes up to 60 gradients.  The details hold the bound
    δ‖WᵀG‖_* + δ²/2 ‖W‖_F² λ_max, G the gradient in W: it holds up to terms in δ³, and without its first part only at
    a critical point; and the average over Haar-orthogonal A beside its prediction δ²/(2m) × relative flatness.
    """
    if not delta > 0 or steps < 2 or restarts < 1 or draws < 2:
        raise UsageError(
            "feature_robustness needs delta > 0, steps >= 2, restarts >= 1 and draws >= 2; "
            f"found {delta}, {steps}, {restarts}, {draws}"
        )
    name = _last_layer(problem) if layer == "last" else _named_layer(problem, layer)
    if name is None:
        return not_applicable("no linear layer with a weight of its own is called, so there are no features to move")
    count = problem.survey.count
    before = sum(problem.spent.values())
    parameter = problem.weights[name]
    moves = _Moves(problem, HeadLoss.of(problem, parameter) or perturbed, parameter, delta)
    bound, sharpest = _bound(problem, moves, seed)
    # Where the gradient points, both ways along the sharpest direction, and at random.
    starts = [_polar(moves.first), _polar(sharpest), -_polar(sharpest)]
    starts += [moves.haar(seed, k) for k in range(3, restarts)]
    found = [_Ascent(start) for start in starts[:restarts]]
    for _ in range(steps):
        active = [ascent for ascent in found if not ascent.ended]
        if not active:
            break
        heights, slopes = moves.rises_and_slopes([ascent.trial for ascent in active])
        for ascent, height, slope in zip(active, heights.tolist(), slopes):
            ascent.take(height, slope)
    rises = moves.rises([ascent.best for ascent in found])
    ended = all(ascent.ended for ascent in found)
    rise = max(float(rises.max()), 0.0)  # A = 0 is allowed
    return Estimate(
        value=rise,
        how="lower_bound",
        status="ok" if ended else "budget_spent",
        reason="" if ended else "a search was still rising when its steps were spent: raise steps",
        samples=count,
        details={
            "layer": name,
            "delta": delta,
            "features": moves.weight.shape[1],
            "rise_by_restart": rises.tolist(),
            **bound,
            "haar": _haar(moves, blocks, name, draws, seed),
        },
        passes=sum(problem.spent.values()) - before,
    )


def _last_layer(problem: OpenProblem) -> str | None:
    """Name the linear layer that is called last, or None; modules may be declared in another order than called."""
    with problem.session(), Recorder(problem) as recorder:
        problem.outputs(next(problem.batches()).content)
    suited = [name for name in recorder.inputs if name in problem.weights and not _unsuited(problem, name)]
    return suited[-1] if suited else None


def _named_layer(problem: OpenProblem, layer: str) -> str:
    if layer not in problem.weights:
        raise UsageError(f"no layer with a weight matrix is named {layer!r}{near_names(layer, problem.weights)}")
    reason = _unsuited(problem, layer)
    if reason:
        raise UsageError(f"feature_robustness.layer cannot be {layer!r}: {reason}; name a linear layer")
    return layer


def _unsuited(problem: OpenProblem, name: str) -> str:
    """Say why replacing this weight would not move the features alone, or nothing."""
    layer = problem.layers.get(name)
    if layer is None or not is_linear(layer.module):
        return "its weight does not multiply one feature vector"
    own = problem.chosen_parameters[problem.weights[name]]
    owners = sum(
        value is own
        for module in problem.model.modules()
        for _, value in module.named_parameters(recurse=False, remove_duplicate=False)
    )
    return "its weight is used by another layer too" if owners > 1 else ""


class _Moves:
    """The loss as a function of C with ‖C‖₂ ≤ 1: with Wᵀ = QR, A = QC gives WA = RᵀC, and no other A gives more."""

    def __init__(self, problem: OpenProblem, elsewhere: Perturbed | HeadLoss, parameter: str, delta: float) -> None:
        self.elsewhere, self.parameter, self.delta = elsewhere, parameter, delta
        self.stored = problem.chosen_parameters[parameter].detach().double()
        self.turned = is_input_first(problem.model.get_submodule(parameter.rpartition(".")[0]))
        self.weight = self.matrix(self.stored)  # (outputs, m)
        _, self.triangle = torch.linalg.qr(self.weight.T)  # (r, outputs)
        (self.loss,), (gradient,) = elsewhere.losses_and_gradients([{parameter: self.stored}])
        self.first = delta * self.triangle @ self.matrix(gradient[parameter])  # slope in C at C = 0

    def matrix(self, stored: Tensor) -> Tensor:
        """Return a tensor in the parameter's layout as (outputs, m), and one of those as it is stored."""
        return stored.T if self.turned else stored

    def _sets(self, moves: list[Tensor]) -> list[dict[str, Tensor]]:
        changed = (self.weight + self.delta * self.triangle.T @ move for move in moves)
        return [{self.parameter: self.matrix(weight)} for weight in changed]

    def rises(self, moves: list[Tensor]) -> Tensor:
        return self.elsewhere.rise(self._sets(moves))

    def rises_and_slopes(self, moves: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        losses, gradients = self.elsewhere.losses_and_gradients(self._sets(moves))
        return losses - self.loss, [self.delta * self.triangle @ self.matrix(g[self.parameter]) for g in gradients]

    def haar(self, *key: int) -> Tensor:
        """Draw QᵀA for A from the uniform distribution of orthogonal matrices: rows uniform among orthonormal ones."""
        shape = (self.weight.shape[1], self.triangle.shape[0])
        gaussian = torch.randn(shape, generator=seeded_generator(*key), dtype=torch.float64)
        frame, triangle = torch.linalg.qr(gaussian)
        # QR alone favours one sign of each column.
        drawn: Tensor = (frame * torch.where(triangle.diagonal() < 0, -1.0, 1.0)).T.to(self.weight.device)
        return drawn


class _Ascent:
    """One search: towards the matrix of norm 1 that promises most, in shorter steps where the rise falls short."""

    def __init__(self, start: Tensor) -> None:
        self.trial = self.best = self.target = start
        self.height, self.step, self.ended = -math.inf, 1.0, False

    def take(self, height: float, slope: Tensor) -> None:
        """Take in the rise and the slope at the trial point and choose the next."""
        if height > self.height:
            self.best, self.height, self.step = self.trial, height, 1.0
            self.target = _polar(slope)
            # Frank and Wolfe's gap: what the best matrix of norm 1 would add to first order.
            gap = float((slope * (self.target - self.best)).sum())
            self.ended = gap <= GAP * abs(height)
        else:
            # A convex loss never falls on the way to the target, so there rounding alone leads here.
            self.step /= 2
            self.ended = self.step < SMALLEST_STEP
        self.trial = self.best + self.step * (self.target - self.best)


def _polar(slope: Tensor) -> Tensor:
    """Return the matrix of operator norm 1 with the largest inner product with the slope."""
    left, _, right = torch.linalg.svd(slope, full_matrices=False)
    nearest: Tensor = left @ right
    return nearest


def _bound(problem: OpenProblem, moves: _Moves, seed: int) -> tuple[dict[str, Any], Tensor]:
    """Return the bound of C.1 with the first-order term missing there, and the slope along the top eigenvector."""
    block = moves.elsewhere if isinstance(moves.elsewhere, HeadLoss) else LayerBlock(problem, [moves.parameter])
    pairs = top_eigenpairs(
        block.matvec, block.size, tolerance=1e-2, max_sweeps=50, seed=seed, dtype=problem.dtype, device=problem.device
    )
    first = float(torch.linalg.matrix_norm(moves.first, "nuc"))
    top = max(0.0, float(pairs.values[0] + pairs.residuals[0]))
    second = moves.delta**2 / 2 * float(moves.weight.square().sum()) * top
    sharpest = moves.triangle @ moves.matrix(pairs.vectors[:, 0].reshape(moves.stored.shape)).to(moves.triangle)
    parts = {
        "bound": first + second,
        "bound_first_order": first,
        "bound_second_order": second,
        "lambda_max": float(pairs.values[0]),
        "lambda_max_residual": float(pairs.residuals[0]),
    }
    return parts, sharpest


def _haar(moves: _Moves, blocks: Any, layer: str, draws: int, seed: int) -> dict[str, Any]:
    """Return the average over orthogonal A, in pairs ±A that cancel the first order, and what curvature predicts."""
    pairs = [sign * moves.haar(seed, 0, draw) for draw in range(draws) for sign in (1, -1)]
    means = moves.rises(pairs).unflatten(0, (draws, 2)).mean(1)
    flatness = blocks.transposed(layer)
    factor = moves.delta**2 / (2 * moves.weight.shape[1])
    return {
        "mean": float(means.mean()),
        "stderr": float(means.std()) / math.sqrt(draws),
        "draws": draws,
        "prediction": factor * float(flatness) if math.isfinite(float(flatness)) else None,
    }

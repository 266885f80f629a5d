"""The PAC-Bayes view of flat minima (Tsuzuku et al. 2019): the terms of the bound, and sharpness without a Hessian."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spiritlevel.engine.passes.perturbed import Perturbed
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.weight_matrices import as_matrix
from spiritlevel.measures.costs import Cost
from spiritlevel.measures.declaration import declare
from spiritlevel.measures.noise_scales import Scales, balanced_scales, fitted_scales, noisy, weights_of
from spiritlevel.measures.reference import pac_bayes as reference
from spiritlevel.values.errors import UsageError
from spiritlevel.values.estimate import Estimate, not_applicable

# Streams of noise that must not share draws, as the second part of the seed's key.
CHOOSING, JUDGING, POOL, START = range(4)
NO_WEIGHT = (
    "no chosen parameter has two or more dimensions and differs from zero, so there is no weight to put noise on"
)
# Bits of a number that is paid for as it is stored.
BITS = 32
UNFELT_PAIRS = 1
UNFELT_RAISE = math.log(30.0)


@declare(
    title="PAC-Bayes bound on the error with the best row and column variances",
    formula=(
        r"\min_\lambda\ \mathrm{err}_S(Q_\lambda)"
        r"+\frac1\lambda\Big(\mathrm{KL}(Q_\lambda\|P_\lambda)+\ln\frac{K}{\delta}+\frac{\lambda^2}{2m}\Big)"
    ),
    citation="Tsuzuku et al. 2019, eqs. (1), (3), (4), (7), (17), (24)",
    cost=Cost(forward=80, gradient=2, column="outputs - 1"),
    invariant=("layer_rescaling", "neuron_rescaling", "permutation"),
    not_invariant=("output_scaling",),
    wants=("diagonal",),
    requires=("classes",),
    reference=reference.pac_bayes_terms,
)
def pac_bayes_terms(
    problem: OpenProblem,
    perturbed: Perturbed,
    blocks: Any,
    seed: int,
    *,
    delta: float = 0.05,
    grid: int = 8,
    draws: int = 8,
) -> Estimate:
    """The bound on the error of the network with noisy weights, and each of its terms; usually vacuous, then said so.

    Noise has the variances that minimise (17), and the prior the same variances around zero, so the divergence is
    Σ W²/(2σ²).  λ is the best of ``grid`` values, each paid for; noise is drawn only for those that can be the best,
    half as often as at the one that is chosen.  As in the paper the variances and the parameters that get no noise
    (biases, normalisation) count as given; ``bound_all_paid`` pays 32 bits for each of them instead.
    """
    if not 0 < delta < 1 or grid < 1 or draws < 2:
        raise UsageError(
            f"pac_bayes_terms needs 0 < delta < 1, grid >= 1 and draws >= 2; found {delta}, {grid}, {draws}"
        )
    survey = problem.survey
    if survey.correct is None:
        return not_applicable("the bound is for the share of wrong classes, and these outputs are no class scores")
    before = sum(problem.spent.values())
    unit = [
        balanced_scales(full, module, weight, blocks.diagonal(full).value, 0.5)
        for full, module, weight in weights_of(problem)
    ]
    if not unit:
        return not_applicable(NO_WEIGHT)
    lambdas = _lambdas(survey.count, grid)
    unit = _raised_where_unfelt(perturbed, unit, lambdas[0], seed)
    # One number for each row and column of each matrix, less the factor that can move between them.
    variances = sum(one.rows.numel() + one.columns.numel() - len(one.rows) for one in unit)
    silent = problem.size - sum(one.weight.numel() for one in unit)
    candidates = []
    for lam in lambdas:
        scales = _at(unit, lam)
        divergence = sum(one.penalty() for one in scales)
        slack = divergence + math.log(grid / delta) + lam**2 / (2 * survey.count)
        paid = slack + BITS * math.log(2) * (variances + silent)
        candidates.append(_Candidate(lam, scales, divergence, slack / lam, paid / lam))

    def error_of(candidate: _Candidate) -> float:
        if candidate.error is None:
            sets = _sets(candidate.scales, max(2, draws // 2), seed, CHOOSING)
            candidate.error = float(perturbed.errors(sets).mean())
        return candidate.error

    best, _ = _lowest(candidates, lambda one: one.slack, error_of)
    # The best of several noisy values is too good: its error and its loss are judged on other noise.
    judged = perturbed.errors_and_rises(_sets(best.scales, draws, seed, JUDGING))
    errors, rises = (values.unflatten(0, (draws, 2)).mean(1) for values in judged)
    best.error = float(errors.mean())
    _, all_paid = _lowest(candidates, lambda one: one.paid, error_of)
    error, value = float(errors.mean()), float(errors.mean()) + best.slack
    predicted = sum(
        float((blocks.diagonal(one.parameter).value.clamp(min=0) * one.deviations().square()).sum() / 2)
        for one in best.scales
    )
    vacuous = value >= 1
    return Estimate(
        value=value,
        # Where all draws agree, they tell the share of errors to one sample in all of them.
        stderr=float(errors.std()) / math.sqrt(draws) or 1 / (2 * draws * survey.count),
        how="estimated",
        reason="the bound is vacuous: it is at least 1, which no error exceeds" if vacuous else "",
        samples=survey.count,
        passes=sum(problem.spent.values()) - before,
        details={
            "vacuous": vacuous,
            "lambda": best.lam,
            "kl_nats": best.divergence,
            "kl_bits": best.divergence / math.log(2),
            "kl_constant": 0.0,  # ½Σ(r − 1 − ln r) with r = 1, the ratio of the two variances
            "kl_term": best.divergence / best.lam,
            "confidence_term": math.log(grid / delta) / best.lam,
            "psi_term": best.lam / (2 * survey.count),
            "error_with_noise": error,
            "error_without_noise": 1.0 - float(survey.correct.double().mean()),
            "loss_rise": float(rises.mean()),
            "loss_rise_stderr": float(rises.std()) / math.sqrt(draws),
            "loss_rise_predicted": predicted,
            "variance_parameters": variances,
            "noisy_parameters": problem.size - silent,
            "parameters_without_noise": silent,
            "bound_all_paid": all_paid,
            # Where no error was needed to see that another λ is better, the bound is at least what is added to it.
            "grid": [{"lambda": one.lam, "error": one.error, "added": one.slack} for one in candidates],
        },
    )


@dataclass
class _Candidate:
    """One λ of the grid: its noise, the divergence, what is added to the error, and the error where it was needed."""

    lam: float
    scales: list[Scales]
    divergence: float
    slack: float
    paid: float
    error: float | None = None


def _lowest(
    candidates: list[_Candidate], added: Callable[[_Candidate], float], error_of: Callable[[_Candidate], float]
) -> tuple[_Candidate, float]:
    """Return the candidate with the lowest error + added, and that sum; an error is at least 0, so few are needed."""
    ordered = sorted(candidates, key=added)
    best, lowest = ordered[0], error_of(ordered[0]) + added(ordered[0])
    for one in ordered[1:]:
        if added(one) >= lowest:
            break
        if error_of(one) + added(one) < lowest:
            best, lowest = one, error_of(one) + added(one)
    return best, lowest


def _lambdas(samples: int, grid: int) -> list[float]:
    """Return λ from √m to 2m in equal ratios: beyond 2m the bound exceeds 1 by λ/2m alone."""
    low, high = math.sqrt(samples), 2.0 * samples
    return [low * (high / low) ** (k / max(grid - 1, 1)) for k in range(grid)]


def _at(unit: list[Scales], lam: float) -> list[Scales]:
    """Return the scales that are best at λ = 1/2 as they are best at another λ."""
    return [one.shifted(-0.25 * math.log(2 * lam)) for one in unit]


def _raised_where_unfelt(perturbed: Perturbed, unit: list[Scales], lam: float, seed: int) -> list[Scales]:
    """Raise the noise of rows and columns the loss does not feel even amid all the noise, such as dead inputs.

    Their divergence nearly vanishes.  Any variances give a bound, so a line judged wrongly costs tightness, not truth.
    """
    _, gradients = perturbed.losses_and_gradients(_sets(_at(unit, lam), UNFELT_PAIRS, seed, START))
    raised = []
    for one in unit:
        felt = torch.stack([gradient[one.parameter].cpu().abs() for gradient in gradients]).sum(0)
        matrix = as_matrix(one.module, felt, one.weight).sum(-1)
        rows = torch.where(matrix.sum(2) == 0, one.rows + UNFELT_RAISE, one.rows)
        columns = torch.where(matrix.sum(1) == 0, one.columns + UNFELT_RAISE, one.columns)
        raised.append(Scales(one.parameter, one.module, one.weight, rows, columns))
    return raised


def _sets(scales: list[Scales], draws: int, seed: int, stream: int) -> Iterator[dict[str, Tensor]]:
    for draw in range(draws):
        for weights, _ in noisy(scales, seed, stream, draw):
            yield weights


# --- (62): the same minimum without a second-order approximation ------------------------------------------------------

CAP = math.log(30.0)  # how far the noise of a line may grow beyond the scale fitted to its weights
CAPPED_SHARE = 0.25  # of a layer's rows or columns; single lines may have little influence for good reasons
# The noise all steps share, so that mean objectives of whole passes through it differ by their scales alone.  A much
# smaller pool is fitted by the scales of a small network: they do well on it and on no other noise.
POOL_PAIRS = 64
STEP_PAIRS = 2
WINDOW = POOL_PAIRS // STEP_PAIRS  # steps whose objectives are averaged: one pass through the pool
START_GRID = tuple(float(k) for k in range(-6, 4))
SETTLED = 0.02
BALANCED = 0.2


@declare(
    title="Normalised sharpness by sampling the noise itself",
    formula=(
        r"\min_{\sigma,\sigma'}\ \mathbb{E}\,L(W+\sigma\sigma'\epsilon)-L"
        r"+\sum_{ij}\frac{W_{ij}^2}{2\lambda(\sigma_i\sigma'_j)^2}"
    ),
    citation="Tsuzuku et al. 2019, eq. (62)",
    cost=Cost(gradient=1200, forward=104),
    invariant=("layer_rescaling", "neuron_rescaling", "permutation"),
    not_invariant=("output_scaling",),
    reference=reference.normalized_sharpness_direct,
)
def normalized_sharpness_direct(
    problem: OpenProblem,
    perturbed: Perturbed,
    seed: int,
    *,
    lam: float | None = None,
    steps: int = 300,
    rate: float = 0.1,
    tolerance: float = 1e-3,
    draws: int = 32,
) -> Estimate:
    """Rise of the loss under the best row and column noise, plus what that noise costs, with no Hessian involved.

    ``lam`` is λ, by default the number of samples.  On a quadratic loss this is (17) at the same λ divided by √2, since
    (17) drops the half of the second order.  The minimisation can stop short of the minimum, and any noise gives at
    least the minimum, so the value, measured on noise the minimisation never saw, is an upper bound.
    """
    lam = float(problem.survey.count) if lam is None else float(lam)
    if not lam > 0 or steps < 2 * WINDOW or not rate > 0 or draws < 2:
        raise UsageError(
            f"normalized_sharpness_direct needs lam > 0, steps >= {2 * WINDOW}, rate > 0 and draws >= 2; "
            f"found {lam}, {steps}, {rate}, {draws}"
        )
    fits = [fitted_scales(*weight) for weight in weights_of(problem)]
    if not fits:
        return not_applicable(NO_WEIGHT)
    before = sum(problem.spent.values())
    search = _Descent(perturbed, fits, lam, seed)
    objectives = search.run(steps, rate, tolerance)
    scales = search.settled()
    penalty = sum(one.penalty() for one in scales) / lam
    rises = perturbed.rise(_sets(scales, draws, seed, JUDGING)).unflatten(0, (draws, 2)).mean(1)
    late = sum(objectives[-WINDOW:]) / WINDOW
    earlier = sum(objectives[-2 * WINDOW : -WINDOW]) / WINDOW
    capped, share = search.capped()
    reason = ""
    if share >= CAPPED_SHARE:
        reason = (
            f"degenerate: {capped} rows and columns reached the largest noise allowed, so the loss no longer "
            "answers the noise and the minimum says nothing; use a larger lam"
        )
    elif earlier - late > SETTLED * abs(late) or search.imbalance() > BALANCED:
        reason = "the objective was still falling when the steps were spent: raise steps"
    return Estimate(
        value=float(rises.mean()) + penalty,
        stderr=float(rises.std()) / math.sqrt(draws),
        how="upper_bound",
        status="budget_spent" if reason else "ok",
        reason=reason,
        samples=problem.survey.count,
        passes=sum(problem.spent.values()) - before,
        details={
            "lambda": lam,
            "loss_rise": float(rises.mean()),
            "noise_cost": penalty,
            "steps": len(objectives),
            "objective": late,
            "imbalance": search.imbalance(),
            "capped_lines": capped,
        },
    )


class _Descent:
    """Adam on the logarithms of all scales, with noise from one pool and a rate that falls like a cosine."""

    def __init__(self, perturbed: Perturbed, fits: list[Scales], lam: float, seed: int) -> None:
        self.perturbed, self.fits, self.lam, self.seed = perturbed, fits, lam, seed
        start = self._best_start()
        self.rows = [(one.rows + start).requires_grad_() for one in fits]
        self.columns = [one.columns.clone().requires_grad_() for one in fits]
        self.felt = [(torch.zeros_like(r), torch.zeros_like(c)) for r, c in zip(self.rows, self.columns)]
        self.kept: list[list[Tensor]] = []  # the last window's points
        self.slopes: list[list[tuple[float, float]]] = []  # by step and layer: of the loss and of the cost in log σ

    def _best_start(self) -> float:
        """Return the logarithm of the one noise-to-weight ratio that is best for the whole network."""

        def objective(ratio: float) -> float:
            scales = [one.shifted(ratio) for one in self.fits]
            rise = float(self.perturbed.rise(_sets(scales, STEP_PAIRS, self.seed, START)).mean())
            return rise + sum(one.penalty() for one in scales) / self.lam

        heights = {ratio: objective(ratio) for ratio in START_GRID}
        finite = {ratio: height for ratio, height in heights.items() if math.isfinite(height)}
        return min(finite, key=finite.__getitem__) if finite else START_GRID[0]

    def scales(self) -> list[Scales]:
        return [
            Scales(one.parameter, one.module, one.weight, rows.detach(), columns.detach())
            for one, rows, columns in zip(self.fits, self.rows, self.columns)
        ]

    def run(self, steps: int, rate: float, tolerance: float) -> list[float]:
        """Descend until, in the later half, the mean objectives of two windows agree; return the objectives."""
        optimiser = torch.optim.Adam([*self.rows, *self.columns], lr=rate, betas=(0.9, 0.99))
        objectives: list[float] = []
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * step / steps))
            objectives.append(self._differentiate(step))
            if not math.isfinite(objectives[-1]):
                break
            optimiser.step()
            self._hold_within_caps()
            self.kept = [*self.kept, [tensor.detach().clone() for tensor in (*self.rows, *self.columns)]][-WINDOW:]
            if step >= steps // 2 + 2 * WINDOW:
                late = sum(objectives[-WINDOW:])
                if abs(sum(objectives[-2 * WINDOW : -WINDOW]) - late) <= tolerance * abs(late):
                    break
        return objectives

    def _differentiate(self, step: int) -> float:
        """Set the gradients of the objective on this step's part of the pool and return its value."""
        scales, slopes = self.scales(), []
        pairs = [(STEP_PAIRS * step + k) % POOL_PAIRS for k in range(STEP_PAIRS)]
        drawn = [pair for index in pairs for pair in noisy(scales, self.seed, POOL, index)]
        losses, gradients = self.perturbed.losses_and_gradients([weights for weights, _ in drawn])
        for index, one in enumerate(scales):
            # d/d log σ: gradient · ε σ for the loss, −W²/(λσ²) for the cost of the noise.
            along = sum(g[one.parameter].cpu() * noise[one.parameter] for g, (_, noise) in zip(gradients, drawn))
            answer = as_matrix(one.module, along * one.deviations() / len(drawn), one.weight).sum(-1)
            cost = one.squared * (-2 * one.log_deviations).exp() / self.lam
            slopes.append((float(answer.sum()), float(cost.sum())))
            self.rows[index].grad = (answer - cost).sum(2)
            self.columns[index].grad = (answer - cost).sum(1)
            self.felt[index][0].add_(answer.abs().sum(2))
            self.felt[index][1].add_(answer.abs().sum(1))
        self.slopes = [*self.slopes, slopes][-WINDOW:]
        rise = float(losses.mean()) - self.perturbed.problem.survey.loss
        return rise + sum(one.penalty() for one in scales) / self.lam

    def imbalance(self) -> float:
        """Return the largest |slope of the loss − slope of the cost| of a layer's noise over that of the cost.

        At the minimum the two are equal in every line, hence also in every layer; a pass through the pool decides.
        """
        worst = 0.0
        for layer in zip(*self.slopes):
            answer, cost = (sum(column) for column in zip(*layer))
            worst = max(worst, abs(answer - cost) / cost)
        return worst

    def _hold_within_caps(self) -> None:
        for one, rows, columns in zip(self.fits, self.rows, self.columns):
            rows.data.clamp_(one.rows - 2 * CAP, one.rows + CAP)
            columns.data.clamp_(one.columns - 2 * CAP, one.columns + CAP)

    def capped(self) -> tuple[int, float]:
        """Count the lines at their cap whose noise the loss does feel, and the largest share of a layer's they make.

        Noise on a dead input may grow for ever.
        """
        count, share = 0, 0.0
        for one, rows, columns, (by_row, by_column) in zip(self.fits, self.rows, self.columns, self.felt):
            for now, fit, felt in ((rows, one.rows, by_row), (columns, one.columns, by_column)):
                at_cap = int(((now.detach() >= fit + CAP - 1e-9) & (felt > 0)).sum())
                count += at_cap
                share = max(share, at_cap / max(int((felt > 0).sum()), 1))
        return count, share

    def settled(self) -> list[Scales]:
        """Return the mean of the last window's logarithms, in which the noise of single steps averages out."""
        if not self.kept:
            return self.scales()
        means = [torch.stack(points).mean(0) for points in zip(*self.kept)]
        count = len(self.fits)
        return [
            Scales(one.parameter, one.module, one.weight, rows, columns)
            for one, rows, columns in zip(self.fits, means[:count], means[count:])
        ]

"""How the loss answers moves of finite size: averaged over Gaussian noise, and at its worst in a box."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from spiritlevel.engine.estimators.box_maximum import maximise_in_box
from spiritlevel.engine.estimators.probes import seeded_generator
from spiritlevel.engine.passes.perturbed import Perturbed, gaussian_noise, moved
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.costs import Cost
from spiritlevel.measures.declaration import declare
from spiritlevel.measures.over_samples import weighted_stderr
from spiritlevel.measures.reference import perturbation as reference
from spiritlevel.values.errors import SpiritlevelError, UsageError
from spiritlevel.values.estimate import Estimate, at_least_rounding

# Draws of noise of a few roundings' size: what they change in the loss is the rounding of the loss itself.
ROUNDING_DRAWS = 2
ROUNDINGS = 4
FEWER = 4  # the outer radii get this part of the middle radius's draws
ROUNDING_SHARE = 0.2  # of the value; beyond it the value is not to be used
# Entries of the random subspace's basis, which is held in memory.
LARGEST_BASIS = 500_000_000


@declare(
    title="Curvature seen by Gaussian noise of finite size",
    formula=r"\mathbb{E}_{\epsilon\sim N(0,I)}[L(\theta+s\epsilon)+L(\theta-s\epsilon)-2L(\theta)]/s^2",
    citation="Tsuzuku et al. 2019, left-hand side of eq. (5), at finite radius",
    cost=Cost(forward=52),
    invariant=("permutation",),
    not_invariant=("layer_rescaling", "neuron_rescaling", "output_scaling"),
    reference=reference.noise_curvature,
)
def noise_curvature(
    problem: OpenProblem,
    perturbed: Perturbed,
    seed: int,
    *,
    radii: Sequence[float] = (1e-3, 3e-3, 1e-2),
    draws: int = 16,
) -> Estimate:
    """Second difference of the loss over Gaussian noise, at three radii; the value is that of the middle one.

    On a piecewise-linear network noise of finite size crosses kinks and sees curvature the almost-everywhere Hessian
    does not have, so this is a quantity of its own with its radius, not a way to compute the trace.  The middle radius
    has ``draws`` pairs of noise, the others a quarter of them, the same ones.
    """
    radii = tuple(float(radius) for radius in radii)
    if not radii or any(not math.isfinite(radius) or radius <= 0 for radius in radii):
        raise UsageError(f"setting noise_curvature.radii must be positive numbers, not {radii}")
    if draws < 2:
        raise UsageError(f"setting noise_curvature.draws must be at least 2 to give a standard error, not {draws}")
    count = problem.survey.count
    before = problem.spent["forward"]
    squares = sum(float(tensor.detach().double().square().sum()) for tensor in problem.tensors)
    tiny = ROUNDINGS * torch.finfo(problem.dtype).eps * math.sqrt(squares / problem.size)
    # A step of a few roundings has no curvature left to show: its second difference is rounding alone.
    noise_of_loss = 0.0
    if tiny > 0:
        by_rounding, _ = _second_differences(problem, perturbed, tiny, ROUNDING_DRAWS, seed)
        noise_of_loss = float(by_rounding.square().mean().sqrt())
    at_middle = len(radii) // 2
    middle_draws, by_sample = _second_differences(problem, perturbed, radii[at_middle], draws, seed)
    middle_draws = middle_draws / radii[at_middle] ** 2
    rows = []
    for index, radius in enumerate(radii):
        value, stderr = float(middle_draws.mean()), float(middle_draws.std()) / math.sqrt(draws)
        if index != at_middle:
            fewer = max(2, draws // FEWER)
            own = _second_differences(problem, perturbed, radius, fewer, seed)[0] / radius**2
            value, stderr = _beside(own, middle_draws)
        rows.append({"radius": radius, "value": value, "stderr": stderr, "rounding": noise_of_loss / radius**2})
    middle = rows[at_middle]
    rounded = [row["radius"] for row in rows if row["rounding"] > ROUNDING_SHARE * abs(row["value"])]
    lost = middle["radius"] in rounded
    name = str(problem.dtype).removeprefix("torch.")
    return Estimate(
        value=middle["value"],
        # Rounding of L(θ) is common to all draws, so their spread does not show it.
        stderr=at_least_rounding(
            math.hypot(middle["stderr"], middle["rounding"]), middle["value"], torch.finfo(problem.dtype).eps
        ),
        stderr_data=_stderr_data(problem, by_sample / middle["radius"] ** 2),
        how="estimated",
        status="budget_spent" if lost else "ok",
        reason=(
            f"rounding of the loss in {name} is not small against the effect at radius {', '.join(map(str, rounded))}; "
            "use larger radii or dtype='float64'"
            if rounded
            else ""
        ),
        samples=count,
        passes=problem.spent["forward"] - before,
        details={"radius": middle["radius"], "radii": rows, "draws": draws},
    )


def _beside(own: Tensor, middle: Tensor) -> tuple[float, float]:
    """Return a radius's mean and standard error from few draws, the first of many made at the middle radius.

    Mostly the two radii differ far less, draw by draw, than the draws among each other: then the mean is the middle's
    plus the mean difference.  Otherwise the few draws stand for themselves.
    """
    count = len(own)
    difference = own - middle[:count]
    if float(difference.std()) < float(own.std()):
        # The two means share draws, so that their errors may add up.
        error = float(difference.std()) / math.sqrt(count) + float(middle.std()) / math.sqrt(len(middle))
        return float(middle.mean() + difference.mean()), error
    return float(own.mean()), float(own.std()) / math.sqrt(count)


def _second_differences(
    problem: OpenProblem, perturbed: Perturbed, radius: float, draws: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Return L(θ+sε) + L(θ−sε) − 2L(θ) of each draw (D,) and its mean over draws for each sample (N,)."""
    survey = problem.survey
    shapes = {name: tensor.shape for name, tensor in problem.chosen_parameters.items()}

    def pairs() -> Iterator[dict[str, Tensor]]:
        for draw in range(draws):
            # The same directions at every radius, so that radii differ by their radius alone.
            noise = gaussian_noise(shapes, seed, draw)
            for size in (radius, -radius):
                yield moved(problem.chosen_parameters, noise, size)

    # Sample by sample and in float64: the mean losses would agree in most of their digits.
    differences = perturbed.sample_losses(pairs()).sub_(survey.losses).unflatten(0, (draws, 2)).sum(1)
    return differences @ survey.weights / survey.total_weight, differences.mean(0)


def _stderr_data(problem: OpenProblem, values: Tensor) -> float | None:
    """Standard error of the weighted mean over samples, None where samples are coupled or too few."""
    survey = problem.survey
    if survey.coupled:
        return None
    share = survey.weights / survey.total_weight
    influence = values - float(share @ values)
    return weighted_stderr(share[share > 0].numpy(), influence[share > 0].numpy())


@declare(
    title="Keskar sharpness: the worst rise of the loss in a box",
    words="Keskar sharpness",
    formula=r"100\,\frac{\max_z L(w+Az)-L(w)}{1+L(w)},\quad |z_i|\le\epsilon(|(A^+w)_i|+1)",
    citation="Keskar et al. 2017, Metric 2.1; Granziol 2021, eq. (2)",
    cost=Cost(gradient=30, forward=10),
    invariant=("permutation",),
    not_invariant=("layer_rescaling", "neuron_rescaling", "output_scaling"),
    reference=reference.keskar_sharpness,
)
def keskar_sharpness(
    problem: OpenProblem,
    perturbed: Perturbed,
    seed: int,
    *,
    eps: float = 1e-3,
    subspace: int | None = None,
    restarts: int = 3,
    iterations: int = 10,
) -> Estimate:
    """Largest relative rise of the loss when every parameter may move a little; what was found is a lower bound.

    ``subspace`` is the number of random directions (columns of A, of unit length) to search in, None for all
    parameters.  ``restarts`` vertices of the box climb by changing signs, first the one the gradient at w points to (at
    w itself, a minimum, L-BFGS-B would stay and report 0); where that ends and the gradient still promises a rise,
    ``iterations`` steps of L-BFGS-B follow.  In a small box with half-widths b the rise is at most Σ b_i|g_i| + λ_max
    |b|²/2: the details give the first term, as it enters the value, and |b|².
    """
    if not eps > 0 or restarts < 1 or iterations < 1:
        raise UsageError(
            f"keskar_sharpness needs eps > 0, restarts >= 1 and iterations >= 1; found {eps}, {restarts}, {iterations}"
        )
    loss = problem.survey.loss
    before = dict(problem.spent)
    place, pull, half_widths = _search_space(problem, eps, subspace, seed)

    def value_and_gradient(z: Tensor) -> tuple[float, Tensor]:
        value, gradient = perturbed.loss_and_gradient(place(z))
        return value - loss, pull(problem.flatten(gradient).cpu())

    def rises(points: Tensor) -> Tensor:
        return perturbed.rise(place(point) for point in points)

    _, at_w = value_and_gradient(torch.zeros_like(half_widths))
    found = maximise_in_box(
        value_and_gradient, rises, half_widths, restarts=restarts, iterations=iterations, seed=seed, slope=at_w
    )
    rise = max(found.value, 0.0)  # z = 0 lies in the box
    spent = {kind: problem.spent[kind] - before.get(kind, 0) for kind in ("forward", "gradient")}
    return Estimate(
        value=100 * rise / (1 + loss),
        how="lower_bound",
        status="ok" if found.converged else "budget_spent",
        reason="" if found.converged else "a search ended where the loss could still rise: raise iterations",
        samples=problem.survey.count,
        passes=sum(spent.values()),
        details={
            "eps": eps,
            "dimensions": len(half_widths),
            "rise": rise,
            "first_order": 100 * float((half_widths * at_w.abs()).sum()) / (1 + loss),
            "box_norm_squared": float(half_widths.square().sum()),
            "at_vertex": found.at_vertex,
            "rise_by_restart": found.by_restart,
            "forward_passes": spent["forward"],
            "gradient_passes": spent["gradient"],
        },
    )


def _search_space(
    problem: OpenProblem, eps: float, subspace: int | None, seed: int
) -> tuple[Callable[[Tensor], dict[str, Tensor]], Callable[[Tensor], Tensor], Tensor]:
    """Return the map from z to parameters, its transpose on gradients, and the half-widths of the box of z."""
    here = problem.flatten({name: t.detach() for name, t in problem.chosen_parameters.items()}).double().cpu()
    if subspace is None:
        return lambda z: problem.unflatten(here + z), lambda g: g, eps * (here.abs() + 1)
    if not 1 <= subspace <= problem.size:
        raise UsageError(
            f"setting keskar_sharpness.subspace must lie between 1 and the number of parameters, {problem.size:,}; "
            f"found {subspace}"
        )
    if subspace * problem.size > LARGEST_BASIS:
        raise SpiritlevelError(
            f"{subspace} random directions of {problem.size:,} parameters do not fit in memory; ask for fewer, "
            "or leave subspace out to search in all parameters"
        )
    # A key of two, where the restarts' streams have one.
    generator = seeded_generator(seed, 0, 1)
    basis = torch.randn((problem.size, subspace), generator=generator, dtype=torch.float64)
    basis /= torch.linalg.vector_norm(basis, dim=0)
    coordinates = torch.linalg.lstsq(basis, here[:, None]).solution[:, 0]  # A⁺ w
    return lambda z: problem.unflatten(here + basis @ z), lambda g: basis.T @ g, eps * (coordinates.abs() + 1)

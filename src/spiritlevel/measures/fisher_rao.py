"""Fisher–Rao norms: how much a common scaling of all weights moves the loss (Liang et al. 2019)."""

from __future__ import annotations

import math

from spiritlevel.engine.passes.accumulating import CurvatureSums
from spiritlevel.engine.passes.radial import RadialStats
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.costs import Cost
from spiritlevel.measures.declaration import declare
from spiritlevel.measures.over_samples import Distribution
from spiritlevel.measures.reference import fisher_rao as reference
from spiritlevel.values.estimate import Estimate, Result

# θ and the gradient take opposite factors under a rescaling that keeps the function: each θ_i ∂_i ℓ stays as it is.
KEEPS_THE_FUNCTION = ("layer_rescaling", "neuron_rescaling", "permutation")


@declare(
    title="Fisher–Rao norm, squared",
    formula=r"\theta^\top F \theta = \frac{1}{n} \sum_i \langle \nabla_\theta \ell_i, \theta \rangle^2",
    citation="Liang et al. 2019, the definition of the Fisher–Rao norm",
    sharper_when="larger",
    cost=Cost(forward=1, gradient=1),
    invariant=KEEPS_THE_FUNCTION,
    not_invariant=("output_scaling",),
    reference=reference.fisher_rao_norm,
    per_sample=True,
    choices={"labels": ("observed", "model")},
)
def fisher_rao_norm(radial: RadialStats, *, labels: str = "observed") -> Result:
    """The mean squared change of a sample's loss when all parameters grow by a common small factor.

    ``labels="model"`` takes the labels' mean under the network's own softmax in place of those of the data: θᵀGθ with
    the Gauss–Newton matrix of the loss, which for cross-entropy is the Fisher information.
    """
    values = radial.loss_slope.square() if labels == "observed" else radial.curvature
    spread = Distribution(values, radial.weights)
    mean = spread.mean()
    details = {"norm": math.sqrt(mean.value) if mean.value >= 0 else None}
    estimate = Estimate(mean.value, stderr_data=mean.stderr, samples=spread.count, details=details)
    return Result(estimate, samples={"fisher_rao_norm": values})


@declare(
    title="Fisher–Rao norm, diagonal",
    formula=r"\sum_j \theta_j^2 \, \frac{1}{n} \sum_i (\partial_j \ell_i)^2",
    citation="Tsuzuku et al. 2019, eq. 25",
    sharper_when="larger",
    cost=Cost(forward=1, column=1),
    invariant=KEEPS_THE_FUNCTION,
    not_invariant=("output_scaling",),
    wants=("fisher",),
    reference=reference.fisher_rao_diagonal,
    layer_quantities=("fisher_rao_diagonal",),
    requires=("independent",),
)
def fisher_rao_diagonal(problem: OpenProblem, fisher: CurvatureSums) -> Result:
    """The Fisher–Rao norm with all parameters taken as independent: only the diagonal of the Fisher information.

    It changes where one weight is written as a sum of two, which the full norm does not.
    """
    parts: dict[str, float] = {}
    for name, tensor in problem.chosen_parameters.items():
        diagonal = fisher.parameters[name].diagonal
        assert diagonal is not None, "the sweep for the Fisher information is made with its diagonal"
        parts[name] = float((tensor.detach().double().square() * diagonal[0]).sum())
    count = problem.survey.count
    layers = {
        name: Estimate(sum(parts[full] for full in layer.parameters.values()), samples=count)
        for name, layer in problem.layers.items()
    }
    return Result(Estimate(sum(parts.values()), samples=count), layers={"fisher_rao_diagonal": layers})

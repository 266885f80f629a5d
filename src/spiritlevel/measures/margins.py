"""Margins and what a softmax says of flatness without a derivative (Lengyel, Jennings, Parpas and Kantas 2021).

For an affine classifier the trace of the Hessian is a function of the input's size and of the softmax alone (ACEHT),
and the softmax margin bounds it.  For other networks these are predictors of the trace, at the cost of a forward pass.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from spiritlevel.engine.passes.outputs import OutputStats
from spiritlevel.measures.costs import Cost
from spiritlevel.measures.declaration import declare
from spiritlevel.measures.over_samples import Distribution, SampleStatistic
from spiritlevel.measures.reference import margins as reference
from spiritlevel.values.estimate import Estimate, Result, not_applicable

PAPER = "Lengyel et al. 2021"
KEEPS_THE_FUNCTION = ("layer_rescaling", "neuron_rescaling", "permutation")
STATISTICS = ("median", "mean", "p10")
NO_CLASSES = "the labels are no classes: margins need outputs (samples, classes) and one whole-number label a sample"
NO_SOFTMAX = "the outputs are no class scores, of which a softmax could be taken"
NO_SAMPLE = "no sample has both a label that is a class and a weight in the loss"
NO_INPUT = "the samples have no floating-point input, or several, and the norm of one is meant"


@declare(
    title="Affine cross-entropy Hessian trace",
    formula=r"\frac{1}{n} \sum_x (\|x\|^2 + 1)\,(1 - \|p(x)\|^2)",
    citation=f"{PAPER}, Proposition 3.1",
    sharper_when="larger",
    cost=Cost(forward=1),
    invariant=KEEPS_THE_FUNCTION,
    not_invariant=("output_scaling",),
    reference=reference.aceht,
    per_sample=True,
    choices={"feature": ("input", "penultimate"), "bias": ("auto", True, False)},
)
def aceht(outputs: OutputStats, *, feature: str = "input", bias: str | bool = "auto") -> Result:
    """The Hessian's trace if the network were affine in its input: size of the input times uncertainty of the softmax.

    With ``feature="penultimate"`` the last layer's own input takes the input's place; the value is then the exact trace
    of that layer's block, and changes when the layers before it are rescaled.  The + 1 stands for the last layer's
    bias: ``bias="auto"`` drops it where that layer has none.
    """
    if outputs.impurity is None:
        return Result(not_applicable(NO_SOFTMAX))
    norms = outputs.input_norm_squared if feature == "input" else outputs.feature_norm_squared
    if norms is None:
        no_head = "the network's outputs are not those of one linear layer, so there are no penultimate features"
        return Result(not_applicable(NO_INPUT if feature == "input" else no_head))
    with_bias = outputs.head_has_bias if bias == "auto" else bool(bias)
    return _mean("aceht", (norms + float(with_bias)) * outputs.impurity, outputs, bias=with_bias)


@declare(
    title="Softmax-margin bound on the affine trace",
    formula=r"\frac{1}{n} \sum_x (\|x\|^2 + 1)\,(1 - \gamma(p(x), y)^2)",
    citation=f"{PAPER}, section 3.2, with the factor under which it is a bound",
    sharper_when="larger",
    cost=Cost(forward=1),
    invariant=KEEPS_THE_FUNCTION,
    not_invariant=("output_scaling",),
    reference=reference.margin_bound,
    per_sample=True,
    requires=("classes",),
    choices={"bound_norm": ("sq_plus_one", "sq", "l2")},
)
def margin_bound(outputs: OutputStats, *, bound_norm: str = "sq_plus_one") -> Result:
    """An upper bound on the affine trace (ACEHT) that needs only the input's norm and the softmax margin.

    1 - ‖p‖² ≤ 1 - max p² ≤ 1 - γ², for misclassified samples too.  ``bound_norm``: the factor ‖x‖² + 1, ``sq`` = ‖x‖²
    for a network without biases, ``l2`` = ‖x‖ as printed in the paper, which is not an upper bound.
    """
    if outputs.one_minus_margin_squared is None:
        return Result(not_applicable(NO_CLASSES))
    if outputs.input_norm_squared is None:
        return Result(not_applicable(NO_INPUT))
    squared = outputs.input_norm_squared
    size = {"sq_plus_one": squared + 1, "sq": squared, "l2": squared.sqrt()}[bound_norm]
    return _mean("margin_bound", size * outputs.one_minus_margin_squared, outputs)


@declare(
    title="Output margin",
    formula=r"\operatorname{median}_{(x,y)}\; f_y(x) - \max_{j \ne y} f_j(x)",
    citation=f"{PAPER}, sections 2 and 4",
    sharper_when="smaller",
    cost=Cost(forward=1),
    invariant=KEEPS_THE_FUNCTION,
    not_invariant=("output_scaling",),
    reference=reference.output_margin,
    per_sample=True,
    statistic="median",
    requires=("classes",),
    choices={"statistic": STATISTICS, "abs": (False, True)},
)
def output_margin(outputs: OutputStats, *, statistic: str = "median", abs: bool = False) -> Result:
    """How far the label's output stands above the strongest other one; negative for a misclassified sample.

    ``abs=True`` takes absolute values, as the paper writes it; the samples' own margins stay signed.
    """
    return _margin("output_margin", outputs.output_margin, outputs, statistic, abs)


@declare(
    title="Softmax margin",
    formula=r"\operatorname{median}_{(x,y)}\; p_y(x) - \max_{j \ne y} p_j(x)",
    citation=f"{PAPER}, section 2",
    sharper_when="smaller",
    cost=Cost(forward=1),
    invariant=KEEPS_THE_FUNCTION,
    not_invariant=("output_scaling",),
    reference=reference.softmax_margin,
    per_sample=True,
    statistic="median",
    requires=("classes",),
    choices={"statistic": STATISTICS, "abs": (False, True)},
)
def softmax_margin(outputs: OutputStats, *, statistic: str = "median", abs: bool = False) -> Result:
    """How far the label's probability stands above the largest other one; between -1 and 1."""
    return _margin("softmax_margin", outputs.softmax_margin, outputs, statistic, abs)


@declare(
    title="Skewness of the output margins",
    formula=r"\frac{1}{n} \sum_i \left( \frac{m_i - \bar m}{\sigma_m} \right)^3",
    citation=f"{PAPER}, section 4.2 and Figure 4",
    sharper_when="",
    cost=Cost(forward=1),
    # A standardised moment is the same for margins that are all multiplied by one factor.
    invariant=(*KEEPS_THE_FUNCTION, "output_scaling"),
    reference=reference.margin_skewness,
    statistic="skewness",
    requires=("classes",),
    choices={"form": ("standardized", "central"), "abs": (False, True)},
)
def margin_skewness(outputs: OutputStats, *, form: str = "standardized", abs: bool = False) -> Result:
    """Whether the margins' long tail is on the side of small margins (negative) or of large ones (positive).

    ``form="central"`` is the third central moment, not divided by σ³; it scales with the outputs.
    """
    if outputs.output_margin is None:
        return Result(not_applicable(NO_CLASSES))
    spread = Distribution(outputs.output_margin.abs() if abs else outputs.output_margin, outputs.weights)
    if spread.count == 0:
        return Result(not_applicable(NO_SAMPLE))
    standardized, central = spread.skewness(), spread.third_central_moment()
    if standardized is None:
        return Result(not_applicable("all margins are equal, so their distribution has no skewness"))
    details = {**spread.details(), "standardized": standardized.value, "central": central.value}
    found = standardized if form == "standardized" else central
    return _result("output_margin", found, spread, details, outputs.output_margin)


@declare(
    title="Softmax impurity",
    formula=r"\frac{1}{n} \sum_x 1 - \|p(x)\|^2",
    citation=f"{PAPER}, section 3.1 (1 - η)",
    sharper_when="larger",
    cost=Cost(forward=1),
    invariant=KEEPS_THE_FUNCTION,
    not_invariant=("output_scaling",),
    reference=reference.softmax_impurity,
    per_sample=True,
)
def softmax_impurity(outputs: OutputStats) -> Result:
    """How undecided the softmax is: the probability that two labels drawn from it differ (Gini impurity)."""
    if outputs.impurity is None:
        return Result(not_applicable(NO_SOFTMAX))
    return _mean("softmax_impurity", outputs.impurity, outputs)


def _margin(name: str, margins: Tensor | None, outputs: OutputStats, statistic: str, absolute: bool) -> Result:
    if margins is None:
        return Result(not_applicable(NO_CLASSES))
    spread = Distribution(margins.abs() if absolute else margins, outputs.weights)
    if spread.count == 0:
        return Result(not_applicable(NO_SAMPLE))
    return _result(name, spread.statistic(statistic), spread, spread.details(), margins)


def _mean(name: str, values: Tensor, outputs: OutputStats, **details: Any) -> Result:
    spread = Distribution(values, outputs.weights)
    if spread.count == 0:
        return Result(not_applicable(NO_SAMPLE))
    return _result(name, spread.mean(), spread, {**spread.details(), **details}, values)


def _result(of: str, found: SampleStatistic, spread: Distribution, details: dict[str, Any], samples: Tensor) -> Result:
    estimate = Estimate(found.value, stderr_data=found.stderr, samples=spread.count, details=details)
    return Result(estimate, samples={of: samples})

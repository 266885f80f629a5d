"""What may be concluded from each measure, and what not; tests show on a small network what is said to move it."""

from __future__ import annotations

from dataclasses import replace

from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.interpretation import INFLUENCES, Interpretation

_ALL = tuple(INFLUENCES)
_WRITTEN_DOWN = ("copied_units", "input_units")  # which keep the function

_EIGENVALUE = Interpretation(
    conclude=(
        "A step of size s along the sharpest direction raises the loss by s²/2 times this, to second order at a "
        "minimum. Plain gradient descent on all of the data is unstable where it exceeds 2/lr (Granziol 2021, section "
        "4)."
    ),
    beware=(
        "It is one direction among all: two networks with the same value may differ tenfold in trace. 2/lr is not the "
        "limit of momentum, of mini-batches or of Adam."
    ),
    moved=_ALL,
    fewer_samples="too large",
)
_SIZES = {
    "last": " The last layer is the one that the module declares last.",
    "max": " The largest of all layers may be another layer in the other network: see the layers.",
    "sum": " Layers of very different size are added up, and a deeper network has more of them: see the layers.",
}
_KAPPA = Interpretation(
    conclude=(
        "Moving a layer's weights by a share r of their norm, in the worst direction, raises the loss by r²/2 times "
        "its κ, to second order at a minimum. Between networks of one architecture a difference does not come from the "
        "scales of whole layers."
    ),
    beware="A difference may come from the scales of single neurons, which compute the same: an audit shows how much.",
    unmoved=_ALL,
    fewer_samples="too large",
)
_KAPPA_TAU = replace(
    _KAPPA,
    conclude=(
        "Moving a layer's n weights by a share r of their norm, in a random direction, raises the loss by r²/2n times "
        "its κτ on average, to second order at a minimum. Between networks of one architecture a difference does not "
        "come from the scales of whole layers."
    ),
    fewer_samples="unbiased",
)
_RHO = Interpretation(
    conclude=(
        "Multiplying a neuron's incoming weights by 1 + r raises the loss by r²/2 times its ρ, to second order at a "
        "minimum. A difference does not come from any scales of neurons."
    ),
    beware=(
        "It looks along the weights themselves alone and says nothing of any other direction. Its sum has one term for "
        "every neuron, so widths cannot be compared."
    ),
    unmoved=("labels", "input_units"),
    moved=("copied_units",),
)

INTERPRETATIONS: dict[str, Interpretation] = {
    "hessian_trace": Interpretation(
        conclude=(
            "Very small noise of standard deviation s on all parameters raises the loss by s²/2 times the trace on "
            "average, to second order (Tsuzuku et al. 2019, eq. (5), with the factor ½ it leaves out): between "
            "networks of one architecture, whose loss such noise raises more."
        ),
        beware=(
            "Rescaling changes it without changing the function, so a difference that a small rescaling reverses says "
            "nothing. At a small loss it says mostly how confident the network is. A ReLU network under noise of a "
            "size one can apply sees more: `noise_curvature`."
        ),
        unmoved=("labels",),
        moved=_WRITTEN_DOWN,
    ),
    "ggn_trace": Interpretation(
        conclude=(
            "It is the part of the trace that comes from the loss's own curvature, and all of it where the outputs are "
            "piecewise linear in every layer's weights (Granziol 2021, eq. (13), whose other term is then no part of "
            "the trace)."
        ),
        beware=(
            "On a smooth network the rest of the trace may have either sign, and is not small away from a minimum. "
            "What rescaling does to the trace it does to this as well."
        ),
        unmoved=("labels",),
        moved=_WRITTEN_DOWN,
    ),
    "hessian_top_eigenvalue": _EIGENVALUE,
    "hessian_spectral_norm": replace(
        _EIGENVALUE,
        conclude=(
            "Where the gradient vanishes, no step of size s changes the loss by more than s²/2 times this, up or down, "
            "to second order. Where it is larger than the top eigenvalue, negative curvature dominates, and the "
            "network is at no minimum."
        ),
    ),
    "hessian_frobenius": replace(
        _EIGENVALUE,
        conclude=(
            "It is at least the spectral norm and at most that times the root of the rank: close to it, one direction "
            "holds nearly all curvature."
        ),
        beware=(
            "It is no mean over directions. The numbers Granziol (2021) prints under this name are its square over the "
            "number of parameters: set `form`."
        ),
    ),
    "hessian_log_volume": Interpretation(
        conclude=(
            "Between networks of one architecture and with the same k: which one's basin is wider along its k sharpest "
            "directions. A difference of d is a factor of exp(−d/2) in the volume of the ellipsoid."
        ),
        beware=(
            "Its sign means nothing, for it depends on the units of the parameters. Values for different k cannot be "
            "compared, nor those of networks in which fewer than k eigenvalues are well above zero."
        ),
        moved=_ALL,
        fewer_samples="no rule",
    ),
    "noise_curvature": Interpretation(
        conclude=(
            "Gaussian noise of standard deviation s, the radius that stands beside it, raises the loss by exactly s²/2 "
            "times this, on average."
        ),
        beware=(
            "It is no estimate of the trace: on a ReLU network noise of finite size crosses kinks, behind which the "
            "gradient is another. Values at different radii cannot be compared, nor can networks whose weights differ "
            "in size."
        ),
        moved=_ALL,
    ),
    "keskar_sharpness": Interpretation(
        conclude="Somewhere in the box the loss does rise by so many per cent of 1 + L.",
        beware=(
            "It is a lower bound, so a smaller value may be a search that found less. The half-widths ε(|w| + 1) are "
            "partly absolute: rescaling moves the weights and not all of the box. Off a minimum most of it may be the "
            "gradient."
        ),
        moved=_ALL,
        fewer_samples="too large",
    ),
    "weight_norm": Interpretation(
        conclude=(
            "Beside a sharpness it says whether less curvature goes with larger weights, as it does when a network "
            "grows more confident (Granziol 2021, figures 6 to 8)."
        ),
        beware="It is no sharpness: larger is neither flatter nor sharper.",
        unmoved=("labels",),
        moved=_WRITTEN_DOWN,
        confidence="rises",
        fewer_samples="not used",
    ),
    "spectral_complexity": Interpretation(
        conclude=(
            "Between networks of one architecture: by how much the weights may stretch an input for the margin they "
            "reach (Bartlett et al. 2017, eq. 1.2)."
        ),
        beware=(
            "It is no bound on this network's error, for the theorem's factors are left out. There is none while the "
            "median margin is negative. Rescaling neurons changes it by orders of magnitude."
        ),
        moved=_ALL,
        confidence="no rule",
        fewer_samples="no rule",
    ),
    "aceht": Interpretation(
        conclude=(
            "It is the Hessian's trace of an affine classifier (Lengyel et al. 2021, proposition 3.1). In another "
            "network it may stand in for the order of the samples' traces, at the cost of a forward pass: how well, is "
            "in [margins-lenet-mnist](results/margins-lenet-mnist.md) and the studies beside it."
        ),
        beware=(
            "It knows no weights: networks with the same outputs have the same value, whatever their traces. The "
            "squared length of the input enters, so values on data that were scaled otherwise cannot be compared."
        ),
        unmoved=("labels", "copied_units"),
        moved=("input_units",),
    ),
    "margin_bound": Interpretation(
        conclude="It is at least `aceht`, sample by sample, and at most twice it as one class takes all probability.",
        beware="It bounds the trace of an affine classifier alone, of no other network.",
        unmoved=("copied_units",),
        moved=("labels", "input_units"),
    ),
    "output_margin": Interpretation(
        conclude=(
            "With the median m, at least half of the samples keep a right class while every output moves by less than "
            "m/2, if m is positive."
        ),
        beware=(
            "Multiplying the last layer multiplies it and changes no prediction: margins of networks that differ in "
            "confidence cannot be compared. It says nothing of how far an input would have to move."
        ),
        unmoved=_WRITTEN_DOWN,
        moved=("labels",),
        confidence="rises",
        fewer_samples="no rule",
    ),
    "softmax_margin": Interpretation(
        conclude="It says how confident the network is of the label of the median sample, in probabilities.",
        beware=(
            "Near 1 it tells nothing apart any more: use `output_margin` or `softmax_impurity` there. Confidence is no "
            "accuracy on other data."
        ),
        unmoved=_WRITTEN_DOWN,
        moved=("labels",),
        confidence="rises",
        fewer_samples="no rule",
    ),
    "margin_skewness": Interpretation(
        conclude="Negative: a few samples stand out by a small margin. Positive: a few stand out by a large one.",
        beware=(
            "A third moment rests on a few samples: read it with its error over samples. Larger is neither flatter nor "
            "sharper."
        ),
        unmoved=_WRITTEN_DOWN,
        moved=("labels",),
        confidence="no rule",
        fewer_samples="no rule",
    ),
    "softmax_impurity": Interpretation(
        conclude=(
            "It is the chance that two labels drawn from a sample's softmax differ: 0 where one class has all "
            "probability."
        ),
        beware="Labels do not enter: a network that is confident and wrong has as small a value as one that is right.",
        unmoved=_ALL,
    ),
    "matrix_normalized_sharpness": Interpretation(
        conclude=(
            "Between networks of one architecture: which is sharper once every layer has the scale of noise that suits "
            "it best. A difference does not come from the scales of whole layers."
        ),
        beware=(
            "It may come from the scales of single neurons. A deeper network has more terms in the sum. With "
            "cross-entropy it still falls as the network grows more confident: `--loss normalized_cross_entropy` takes "
            "that out."
        ),
        unmoved=_ALL,
        fewer_samples="too small",
    ),
    "normalized_sharpness": Interpretation(
        conclude=(
            "Between networks of one architecture: which is sharper once every row and column of every weight has the "
            "scale of noise that suits it best. A difference does not come from any scales of layers or neurons."
        ),
        beware=(
            "A deeper network has more terms in the sum. With cross-entropy it still falls as the network grows more "
            "confident: `--loss normalized_cross_entropy`, the paper's eq. (20), takes that out."
        ),
        unmoved=_ALL,
        fewer_samples="too small",
    ),
    "pac_bayes_terms": Interpretation(
        conclude=(
            "Below 1 it bounds the error on new data of the network with noise on its weights, with probability 1 − δ, "
            "counting the variances as given beforehand."
        ),
        beware=(
            "It bounds nothing of the network without noise. At 1 or more, as nearly always, it is vacuous, and an "
            "ordering by it says nothing of errors. The number of samples enters the bound itself."
        ),
        unmoved=("input_units",),
        moved=("labels",),
        confidence="no rule",
        fewer_samples="no rule",
    ),
    "normalized_sharpness_direct": Interpretation(
        conclude="It is what normalised sharpness stands for, with noise of finite size in place of the Hessian.",
        beware=(
            "Its number is not that of `normalized_sharpness`: its λ is the number of samples, and on a quadratic loss "
            "it is smaller by √2 at the same λ. What was found is an upper bound."
        ),
        unmoved=("input_units",),
        moved=("labels",),
        confidence="no rule",
        fewer_samples="no rule",
    ),
    "fisher_rao_norm": Interpretation(
        conclude=(
            "Multiplying all parameters by 1 + r changes a sample's loss by r times the root of this, in the root mean "
            "square, to first order."
        ),
        beware=(
            "It is a square of slopes, no curvature. In a chain without biases of L weight layers it grows with L² for "
            "the same outputs, so depths cannot be compared."
        ),
        unmoved=_WRITTEN_DOWN,
        moved=("labels",),
    ),
    "fisher_rao_diagonal": Interpretation(
        conclude=(
            "Multiplying every parameter by 1 + r times a random sign of its own changes a sample's loss by r times "
            "the root of this, in the root mean square, to first order."
        ),
        beware="It is a square of slopes, no curvature, and it falls when one weight is written as the sum of two.",
        unmoved=("input_units",),
        moved=("labels", "copied_units"),
    ),
    **{f"kappa_{which}": replace(_KAPPA, beware=_KAPPA.beware + more) for which, more in _SIZES.items()},
    **{f"kappa_tau_{which}": replace(_KAPPA_TAU, beware=_KAPPA_TAU.beware + more) for which, more in _SIZES.items()},
    "rho_max": replace(_RHO, fewer_samples="too large"),
    "rho_sum": _RHO,
    "relative_flatness": Interpretation(
        conclude=(
            "Moving the m features of the last layer by a share δ of their length, by random rotations, raises the "
            "loss by δ²/2m times this on average, to second order (Petzka et al. 2021, definition 3)."
        ),
        beware=(
            "It is that of the layer declared last alone, unless `layer` says otherwise. A difference may come from "
            "the scales of single neurons."
        ),
        unmoved=_ALL,
    ),
    "feature_robustness": Interpretation(
        conclude=(
            "There is one matrix A, of norm at most 1, that raises the loss so much by moving features φ to φ + δAφ."
        ),
        beware=(
            "It is a lower bound, for one δ. Off a minimum most of it may be the gradient and not the curvature: the "
            "details have both parts."
        ),
        unmoved=_WRITTEN_DOWN,
        moved=("labels",),
        fewer_samples="too large",
    ),
}
# The largest of several means is no mean.
INTERPRETATIONS["kappa_tau_max"] = replace(INTERPRETATIONS["kappa_tau_max"], fewer_samples="too large")


def interpretation_of(own: Measure) -> Interpretation | None:
    """Return how a measure's values are to be read: as its declaration says, or as it stands here."""
    return own.interpretation or INTERPRETATIONS.get(own.name)

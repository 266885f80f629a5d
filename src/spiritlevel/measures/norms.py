"""Sizes of the weights: norms, stable ranks, and the spectral complexity that divides them by the margin."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from spiritlevel.engine.passes.outputs import OutputStats
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.weight_matrices import as_matrix
from spiritlevel.measures.costs import Cost
from spiritlevel.measures.declaration import declare
from spiritlevel.measures.margins import NO_CLASSES, NO_SAMPLE
from spiritlevel.measures.over_samples import Distribution
from spiritlevel.measures.reference import norms as reference
from spiritlevel.values.estimate import Estimate, Result, not_applicable

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONV_CHOICES = ("reshaped", "fft")
# Up to this many rows or columns the largest singular value comes from a dense eigenvalue problem, beyond by Lanczos.
DENSE_SIDE = 2048


@declare(
    title="Norm of the weights",
    formula=r"\|\theta\|_2",
    citation="Granziol 2021, Figures 6 to 8",
    sharper_when="",
    invariant=("permutation",),
    not_invariant=("layer_rescaling", "neuron_rescaling", "output_scaling"),
    reference=reference.weight_norm,
    layer_quantities=("weight_norm", "frobenius", "spectral_norm", "stable_rank"),
    layer_titles={
        "frobenius": "Frobenius norm of the weight",
        "spectral_norm": "Spectral norm of the weight",
        "stable_rank": "Stable rank of the weight",
    },
    choices={"conv": CONV_CHOICES},
)
def weight_norm(problem: OpenProblem, *, conv: str = "reshaped") -> Result:
    """The Euclidean length of all parameters; by layer also the size and the stable rank of its weight matrix.

    The stable rank is ‖A‖_F² / ‖A‖_s².  ``conv="reshaped"`` reads a convolution's weight as the matrix (out, in ×
    positions); ``"fft"`` takes the whole linear map with circular padding (Sedghi et al. 2018), where its stride is 1.
    """
    squares = {name: float(t.detach().double().square().sum()) for name, t in problem.chosen_parameters.items()}
    layers: dict[str, dict[str, Estimate]] = {
        "weight_norm": {
            name: Estimate(math.sqrt(sum(squares[full] for full in layer.parameters.values())))
            for name, layer in problem.layers.items()
        },
        "frobenius": {},
        "spectral_norm": {},
        "stable_rank": {},
    }
    for name, sizes in matrix_sizes(problem, conv).items():
        details = {"read_as": sizes.read_as}
        layers["frobenius"][name] = Estimate(sizes.frobenius, details=details)
        layers["spectral_norm"][name] = Estimate(sizes.spectral, details=details)
        layers["stable_rank"][name] = (
            Estimate((sizes.frobenius / sizes.spectral) ** 2, details=details)
            if sizes.spectral > 0
            else not_applicable("the weight is all zeros, which has no rank")
        )
    return Result(Estimate(math.sqrt(sum(squares.values()))), layers=layers)


@declare(
    title="Spectral complexity over the margin",
    formula=r"\frac{1}{\gamma} \prod_i \|A_i\|_s \Big( \sum_i ( \|A_i^\top\|_{2,1} / \|A_i\|_s )^{2/3} \Big)^{3/2}",
    citation="Bartlett et al. 2017, eq. 1.2, with reference matrices 0",
    sharper_when="larger",
    cost=Cost(forward=1),
    # Scaling the last layer scales the product and the margin alike.  Rescaling of whole layers cancels in a chain of
    # weights, but not where a normalisation's γ, which is no matrix, takes up the factor: that stays unanswered.
    invariant=("output_scaling", "permutation"),
    not_invariant=("neuron_rescaling",),
    reference=reference.spectral_complexity,
    requires=("classes",),
    choices={"margin": ("median", "p10", "mean"), "conv": CONV_CHOICES},
)
def spectral_complexity(
    problem: OpenProblem, outputs: OutputStats, *, margin: str = "median", conv: str = "reshaped"
) -> Result:
    """How much the weights can stretch an input, with a correction for their rank, in units of the output margin.

    ``margin`` is the statistic of the output margins that γ stands for.  Only weight matrices enter, not biases or
    normalisations; skips are not followed.
    """
    sizes = matrix_sizes(problem, conv)
    if not sizes:
        return Result(not_applicable("no chosen parameter is a weight matrix"))
    zero = next((name for name, size in sizes.items() if size.spectral == 0), None)
    if zero is not None:
        return Result(not_applicable(f"the weight of layer {zero} is all zeros"))
    if outputs.output_margin is None:
        return Result(not_applicable(NO_CLASSES))
    spread = Distribution(outputs.output_margin, outputs.weights)
    if spread.count == 0:
        return Result(not_applicable(NO_SAMPLE))
    gamma = spread.statistic(margin)
    if gamma.value <= 0:
        reason = f"the {margin} output margin is {gamma.value:.3g}, and the complexity needs one above 0"
        return Result(not_applicable(reason))
    log_product = sum(math.log(size.spectral) for size in sizes.values())
    correction = 1.5 * math.log(sum((size.row_sum / size.spectral) ** (2 / 3) for size in sizes.values()))
    log_value = log_product + correction - math.log(gamma.value)
    value = math.exp(log_value) if log_value < 700 else math.inf
    estimate = Estimate(
        value,
        # 1/γ moves by its relative error.
        stderr_data=None if gamma.stderr is None or not math.isfinite(value) else value * gamma.stderr / gamma.value,
        samples=spread.count,
        details={
            "log": log_value,
            "log_spectral_product": log_product,
            "margin": gamma.value,
            "read_as": {name: size.read_as for name, size in sizes.items()},
        },
    )
    return Result(estimate)


@dataclass(frozen=True)
class MatrixSizes:
    """Norms of one layer's linear map, and how its weight was read."""

    frobenius: float
    spectral: float
    row_sum: float  # ‖Aᵀ‖_{2,1}: the sum over rows of A of their lengths
    read_as: str


def matrix_sizes(problem: OpenProblem, conv: str) -> dict[str, MatrixSizes]:
    """Return the norms of every weight of two or more dimensions, by layer."""
    owners = {full: layer.module for layer in problem.layers.values() for full in layer.parameters.values()}
    called = _input_sizes(problem) if conv == "fft" else {}
    return {
        name: _sizes(owners[full], problem.chosen_parameters[full].detach(), conv, called)
        for name, full in problem.weights.items()
    }


def _sizes(module: nn.Module, weight: Tensor, conv: str, called: dict[nn.Module, set[tuple[int, ...]]]) -> MatrixSizes:
    matrix = as_matrix(module, weight.double(), weight)  # (groups, out, in, positions)
    rows = matrix.flatten(2)
    frobenius, row_sum = float(rows.norm()), float(rows.norm(dim=2).sum())
    read_as = "matrix"
    if isinstance(module, CONVOLUTIONS):
        read_as = "matrix (out, in x positions)"
        if conv == "fft":
            size = next(iter(called.get(module, set())), ())
            obstacle = _why_not_circular(module, called.get(module, set()))
            if not obstacle:
                positions = math.prod(size)
                return MatrixSizes(
                    frobenius * math.sqrt(positions),
                    _circular_norm(module, matrix, size),
                    row_sum * positions,
                    f"circular convolution over {' x '.join(map(str, size))}",
                )
            read_as += f", because {obstacle}"
    # Groups are the blocks of a block-diagonal matrix.
    return MatrixSizes(frobenius, max(_largest_singular_value(block) for block in rows), row_sum, read_as)


def _largest_singular_value(matrix: Tensor) -> float:
    scale = float(matrix.abs().max())
    if scale == 0:
        return 0.0
    short = matrix / scale if matrix.shape[0] <= matrix.shape[1] else matrix.T / scale
    if len(short) <= DENSE_SIDE:
        return scale * math.sqrt(float(torch.linalg.eigvalsh(short @ short.T)[-1]))
    from scipy.sparse.linalg import LinearOperator, eigsh

    values = short.cpu().numpy()
    operator = LinearOperator((len(values),) * 2, matvec=lambda v: values @ (values.T @ v), dtype=values.dtype)
    start = np.random.default_rng(0).standard_normal(len(values))
    return scale * math.sqrt(float(eigsh(operator, k=1, tol=1e-10, v0=start, return_eigenvectors=False)[0]))


def _circular_norm(module: nn.Module, matrix: Tensor, size: tuple[int, ...]) -> float:
    """Return the largest singular value of the convolution with circular padding on an input of this spatial size.

    The Fourier transform makes that map block-diagonal, one (out, in) block a frequency (Sedghi et al. 2018).  A
    real kernel's blocks at opposite frequencies are conjugate, so half of the frequencies do.
    """
    assert isinstance(module, CONVOLUTIONS)
    kernel = matrix.reshape(*matrix.shape[:3], *module.kernel_size)
    spaced = kernel.new_zeros(*matrix.shape[:3], *_extent(module))
    strided = (slice(None),) * 3 + tuple(slice(None, None, step) for step in module.dilation)
    spaced[strided] = kernel
    axes = tuple(range(3, 3 + len(size)))
    blocks = torch.fft.rfftn(spaced, s=size, dim=axes).flatten(3).movedim(3, 0)
    return float(torch.linalg.svdvals(blocks).max())


def _extent(module: nn.Module) -> tuple[int, ...]:
    assert isinstance(module, CONVOLUTIONS)
    return tuple((k - 1) * step + 1 for k, step in zip(module.kernel_size, module.dilation))


def _why_not_circular(module: nn.Module, sizes: set[tuple[int, ...]]) -> str:
    assert isinstance(module, CONVOLUTIONS)
    if any(step != 1 for step in module.stride):
        return f"its stride is {' x '.join(map(str, module.stride))}, not 1"
    if len(sizes) != 1:
        return "it was not called on the data" if not sizes else "it is called on inputs of several sizes"
    if any(extent > size for extent, size in zip(_extent(module), next(iter(sizes)))):
        return "its kernel is larger than its input"
    return ""


def _input_sizes(problem: OpenProblem) -> dict[nn.Module, set[tuple[int, ...]]]:
    """Return the spatial sizes of each convolution's inputs, from running the model on the first batch."""
    found: dict[nn.Module, set[tuple[int, ...]]] = {}

    def hook(module: nn.Module, args: tuple[object, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            assert isinstance(module, CONVOLUTIONS)
            found.setdefault(module, set()).add(tuple(args[0].shape[-len(module.kernel_size) :]))

    convolutions = [module for module in problem.model.modules() if isinstance(module, CONVOLUTIONS)]
    if not convolutions:
        return found
    handles = [module.register_forward_pre_hook(hook) for module in convolutions]
    try:
        with problem.session(), torch.no_grad():
            problem.outputs(next(iter(problem.batches())).content)
    finally:
        for handle in handles:
            handle.remove()
    return found

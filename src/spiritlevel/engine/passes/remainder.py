"""The part of the Hessian that the Gauss–Newton matrix leaves out, R = H - G, sampled with random signs.

vᵀRv = vᵀHv - vᵀGv with the same probe v is unbiased, and near a minimum R is small, so that G serves as a control
variate.  The shape of the probe decides what is estimated: a sign for each entry gives the diagonal and its sums, one
for each row times that row's weights gives the quadratic forms of rows, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from spiritlevel.engine.estimators.probes import random_signs
from spiritlevel.engine.operators.derivative_check import require_double_backward
from spiritlevel.engine.operators.differentiation import derivative_along
from spiritlevel.engine.operators.products import sweep_products
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.process.composite_operations import ComposedLayerNorm
from spiritlevel.inputs.weight_matrices import as_matrix, from_matrix

KINDS = ("entries", "rows", "columns", "whole", "transposed")
BLOCK = 16  # probes that share one sweep
SMALL_SHARE = 0.02


@dataclass
class Running:
    """Mean and standard error of a tensor over probes, with two halves kept apart for cross-fitting."""

    count: int = 0
    total: Tensor = field(default_factory=lambda: torch.zeros(()))
    squares: Tensor = field(default_factory=lambda: torch.zeros(()))  # of the differences to the mean
    halves: Tensor = field(default_factory=lambda: torch.zeros(2))

    def add(self, draws: Tensor) -> None:
        """Take in draws (K, *shape); even ones belong to the first half, odd ones to the second."""
        if self.count == 0:
            self.total = torch.zeros_like(draws[0])
            self.squares = torch.zeros_like(draws[0])
            self.halves = torch.zeros_like(draws[:1]).repeat(2, *([1] * (draws.ndim - 1)))
        own = draws.mean(0)
        if self.count:  # two groups' squares about their own means, and about the common one
            shift = (own - self.mean).square() * (self.count * len(draws) / (self.count + len(draws)))
            self.squares += shift
        self.squares += (draws - own).square().sum(0)
        self.total += draws.sum(0)
        parity = (self.count + torch.arange(len(draws))) % 2
        for half in (0, 1):
            self.halves[half] += draws[parity == half].sum(0)
        self.count += len(draws)

    @property
    def mean(self) -> Tensor:
        """The mean over probes."""
        return self.total / self.count

    @property
    def stderr(self) -> Tensor:
        """The standard error of the mean over probes."""
        return (self.squares / max(self.count - 1, 1) / self.count).sqrt()

    @property
    def half_means(self) -> Tensor:
        """Means over the even and over the odd probes, (2, *shape): independent of each other."""
        counts = torch.tensor([(self.count + 1) // 2, self.count // 2], dtype=self.halves.dtype)
        return self.halves / counts.reshape(2, *([1] * (self.halves.ndim - 1))).to(self.halves)


@dataclass
class SampledForm:
    """One kind of quadratic form of R over the parameters it was sampled on."""

    sums: dict[str, Running]  # parameter -> the form summed over the parameter (trace, sum over rows, ...)
    parts: dict[str, Running]  # parameter -> entry by entry, row by row or column by column
    layers: dict[str, Running]  # layer -> summed over its parameters
    network: Running  # summed over all parameters
    probes: int = 0
    met: bool = True  # the sums reached the tolerance within the budget
    parts_met: bool = True  # and so did the parts


def sample_remainder(
    problem: OpenProblem,
    names: list[str],
    kind: str,
    *,
    base: Mapping[str, Tensor],
    keep_parts: bool,
    seed: int,
    tolerance: float,
    maximum: int,
    of: Literal["remainder", "hessian"],
    minimum: int = 2 * BLOCK,
) -> SampledForm:
    """Sample a quadratic form of R over ``names`` until its sums are known to ``tolerance`` of their own value.

    Parts that are kept are known, in norm, to the same tolerance.

    ``base`` holds the Gauss–Newton part of each parameter, entry by entry where ``keep_parts``: the tolerance refers to
    what is reported, that part with R added.  Where there is no such part the form is ``of`` H itself.
    """
    assert kind in KINDS, kind
    probe_of = _probe_maker(problem, names, kind, seed)
    reduce = _reducer(problem, kind)
    form = SampledForm(
        sums={name: Running() for name in names},
        parts={name: Running() for name in names} if keep_parts else {},
        layers={},
        network=Running(),
    )
    layers = _by_layer(problem, names)
    form.layers.update((layer, Running()) for layer in layers)
    # What is reported one by one: layers, and the weights that measures of weight matrices go by.
    weights = set(problem.weights.values())
    groups = [(own, form.layers[layer]) for layer, own in layers.items()]
    groups += [([name], form.sums[name]) for name in names if name in weights]
    if kind == "whole":
        return _whole_weights(problem, form, layers, probe_of(0, 1), of)
    while form.probes < maximum:
        count = min(BLOCK, maximum - form.probes)
        vectors = probe_of(form.probes, count)
        products = sweep_products(problem, vectors, of, what=f"sampling the remainder ({kind})")
        totals = {}
        for name, vector in vectors.items():
            parts = reduce(name, vector.double() * products[name])
            totals[name] = parts.reshape(count, -1).sum(1).cpu()
            form.sums[name].add(totals[name])
            if keep_parts:
                form.parts[name].add(parts)
        for layer, own in layers.items():
            form.layers[layer].add(torch.stack([totals[name] for name in own]).sum(0))
        form.network.add(torch.stack(list(totals.values())).sum(0))
        form.probes += count
        form.met = _sums_settled(form, base, groups, tolerance)
        form.parts_met = _parts_settled(form, base, tolerance)
        if form.probes >= minimum and form.met and form.parts_met:
            break
    return form


def _whole_weights(
    problem: OpenProblem,
    form: SampledForm,
    layers: Mapping[str, list[str]],
    weights: Mapping[str, Tensor],
    of: Literal["remainder", "hessian"],
) -> SampledForm:
    """Fill in wᵀRw of each whole weight w from a product with that weight alone: one number each, nothing to sample."""
    names = list(weights)
    for start in range(0, len(names), BLOCK):
        some = names[start : start + BLOCK]
        vectors = {
            name: torch.cat([weight if one == name else torch.zeros_like(weight) for one in some])
            for name, weight in weights.items()
        }
        products = sweep_products(problem, vectors, of, what="forms of whole weights")
        for k, name in enumerate(some):
            value = (vectors[name][k].double() * products[name][k]).sum().cpu()
            form.sums[name].add(value.expand(2))  # both halves know it
    for layer, own in layers.items():
        form.layers[layer].add(torch.stack([form.sums[name].mean for name in own]).sum().expand(2))
    form.network.add(torch.stack([form.sums[name].mean for name in names]).sum().expand(2))
    form.probes = len(names)
    return form


def _by_layer(problem: OpenProblem, names: list[str]) -> dict[str, list[str]]:
    groups = {
        name: [full for full in layer.parameters.values() if full in names] for name, layer in problem.layers.items()
    }
    return {name: group for name, group in groups.items() if group}


def _sums_settled(
    form: SampledForm, base: Mapping[str, Tensor], groups: list[tuple[list[str], Running]], tolerance: float
) -> bool:
    """Whether the sums are within tolerance by their standard errors (never by how little a running mean moved).

    A layer or weight whose own sum is a small share of the network's is measured against that share instead: it would
    otherwise hold up all the others, and its error bar says what is known of it.
    """
    value = sum(float(part.sum()) for part in base.values()) + float(form.network.mean)
    if float(form.network.stderr) > tolerance * abs(value):
        return False
    for names, sampled in groups:
        own = sum(float(base[name].sum()) for name in names) + float(sampled.mean)
        if float(sampled.stderr) > tolerance * max(abs(own), SMALL_SHARE * abs(value)):
            return False
    return True


def _parts_settled(form: SampledForm, base: Mapping[str, Tensor], tolerance: float) -> bool:
    """Whether the parts, as one long vector, are within tolerance of its length by their standard errors."""
    errors = sum(float(running.stderr.square().sum()) for running in form.parts.values())
    squares = sum(float((base[name].to(r.mean) + r.mean).square().sum()) for name, r in form.parts.items())
    return errors <= tolerance**2 * squares


def _probe_maker(
    problem: OpenProblem, names: list[str], kind: str, seed: int
) -> Callable[[int, int], dict[str, Tensor]]:
    """Return the function that makes probes ``first … first + count - 1`` as {name: (K, *shape)}."""
    own_seed = seed + 1_000_003 * KINDS.index(kind)
    tensors = {name: problem.chosen_parameters[name].detach() for name in names}
    owner = {full: layer.module for layer in problem.layers.values() for full in layer.parameters.values()}
    sizes: dict[str, int] = {}
    for name, tensor in tensors.items():
        groups, outputs, inputs, _ = as_matrix(owner[name], tensor, tensor).shape if tensor.ndim > 1 else (1, 1, 1, 1)
        sizes[name] = {
            "entries": tensor.numel(),
            "rows": groups * outputs,
            "columns": groups * inputs,
            "whole": 1,
            "transposed": tensor.numel(),
        }[kind]

    roots = {}
    if kind == "transposed":
        matrices = {name: as_matrix(owner[name], tensor, tensor).flatten(-2) for name, tensor in tensors.items()}
        roots = {name: _root(matrix @ matrix.mT) for name, matrix in matrices.items()}

    def make(first: int, count: int) -> dict[str, Tensor]:
        signs = random_signs(
            sum(sizes.values()), count, seed=own_seed, first=first, dtype=problem.dtype, device=problem.device
        ).T.split(list(sizes.values()), dim=1)
        return {name: shape(name, part) for (name, part) in zip(sizes, signs)}

    def shape(name: str, signs: Tensor) -> Tensor:
        tensor = tensors[name]
        if kind == "entries":
            return signs.reshape(-1, *tensor.shape)
        module = owner[name]
        matrix = as_matrix(module, tensor, tensor)  # (G, O, I, K)
        groups, outputs, inputs, kernel = matrix.shape
        if kind == "rows":
            probe = signs.reshape(-1, groups, outputs, 1, 1) * matrix
        elif kind == "columns":
            probe = signs.reshape(-1, groups, 1, inputs, 1) * matrix
        elif kind == "whole":
            probe = signs.reshape(-1, 1, 1, 1, 1) * matrix
        else:
            # (WWᵀ)^½ Ξ: its mean square in the form is Σ ⟨w_s, w_s'⟩ Tr R_ss', the relative flatness.
            mixed = roots[name] @ signs.reshape(-1, groups, outputs, inputs * kernel)
            probe = mixed.reshape(-1, groups, outputs, inputs, kernel)
        return from_matrix(module, probe, tensor)

    return make


def _root(gram: Tensor) -> Tensor:
    """Return the symmetric root of positive semidefinite matrices."""
    values: Tensor
    vectors: Tensor
    values, vectors = torch.linalg.eigh(gram.double())
    return ((vectors * values.clamp(min=0).sqrt()[..., None, :]) @ vectors.mT).to(gram)


def _reducer(problem: OpenProblem, kind: str) -> Callable[[str, Tensor], Tensor]:
    """Return the function from v∘Rv, (K, *shape), to the parts that are reported."""
    owner = {full: layer.module for layer in problem.layers.values() for full in layer.parameters.values()}

    def reduce(name: str, products: Tensor) -> Tensor:
        if kind == "entries":
            return products
        if kind in ("whole", "transposed"):
            return products.reshape(len(products), -1).sum(1)
        tensor = problem.chosen_parameters[name]
        matrix = as_matrix(owner[name], products, tensor)  # (K, G, O, I, kernel)
        return matrix.sum((-1, -2) if kind == "rows" else (-1, -3)).flatten(1)

    return reduce


@dataclass(frozen=True)
class SampleRemainders:
    """Each sample's Tr R_i (N,) over probes, with two independent halves of them."""

    mean: Tensor
    stderr: Tensor
    half_means: Tensor  # (2, N): over the even and over the odd probes


def sample_trace_remainders(problem: OpenProblem, names: list[str], *, probes: int, seed: int) -> SampleRemainders:
    """Sample each sample's Tr R_i over ``names``.

    The second derivative of every sample's loss along a probe comes from pushing the probe forward twice; samples do
    not mix, so one graph serves the whole batch.
    """
    require_double_backward(problem, "the remainder of each sample's trace")
    tensors = [problem.chosen_parameters[name] for name in names]
    make = _probe_maker(problem, names, "entries", seed)
    vectors = make(0, probes)
    total = torch.zeros(problem.survey.count, dtype=torch.float64)
    squares, halves = torch.zeros_like(total), torch.zeros(2, len(total), dtype=torch.float64)
    with problem.session():
        for batch in problem.batches("each sample's remainder"):
            with ComposedLayerNorm():  # pushing forward twice differentiates three times
                outputs = problem.outputs(batch.content)
            losses, _ = problem.loss.per_sample(outputs, batch.content)
            problem.agrees(batch, losses)
            place = slice(batch.start, batch.start + batch.count)
            for k in range(probes):
                probe = [vectors[name][k] for name in names]
                slope = derivative_along(losses, tensors, probe, create_graph=True)
                curvature = derivative_along(slope, tensors, probe)
                forward = derivative_along(outputs, tensors, probe)
                curved = problem.loss.hessian_product(outputs.detach(), batch.content, forward[None])[0]
                gauss_newton = (forward * curved).reshape(batch.count, -1).sum(1)
                draw = (curvature - gauss_newton).detach().double().cpu()
                total[place] += draw
                squares[place] += draw.square()
                halves[k % 2, place] += draw
    problem.spent["hessian product"] += probes
    problem.spent["ggn product"] += probes
    mean = total / probes
    spread = (squares / probes - mean.square()).clamp(min=0) / max(probes - 1, 1)
    stderr = spread.sqrt() if probes > 1 else torch.full_like(mean, math.inf)
    half_means = halves / torch.tensor([[(probes + 1) // 2], [max(probes // 2, 1)]])
    return SampleRemainders(mean, stderr, half_means)

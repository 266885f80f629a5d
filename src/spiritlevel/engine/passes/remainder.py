"""The part of the Hessian that the Gauss–Newton matrix leaves out, R = H - G, by probes of the parameters.

vᵀRv = vᵀHv - vᵀGv with the same probe v is unbiased, and near a minimum R is small, so that G serves as a control
variate.  The shape of the probe decides what is estimated: a sign for each entry gives the diagonal and its sums, one
for each row times that row's weights gives the quadratic forms of rows, and so on.  This is the way for parameters
whose operations are not known; where they are fewer than probes would be, their block is written out instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from spiritlevel.engine.estimators.probes import random_signs
from spiritlevel.engine.operators.derivative_check import path_of, require_double_backward
from spiritlevel.engine.operators.differentiation import derivative_along
from spiritlevel.engine.operators.products import sweep_products
from spiritlevel.engine.passes.sampled_form import Exact, KeptDraws, Running, SampledForm
from spiritlevel.inputs.deadline import TimeSpent
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.process.composite_operations import ComposedLayerNorm
from spiritlevel.inputs.weight_matrices import as_matrix, from_matrix

Kind = Literal["entries", "rows", "columns", "whole", "transposed"]
KINDS: tuple[Kind, ...] = ("entries", "rows", "columns", "whole", "transposed")
BLOCK = 16  # probes that share one sweep
# Before anybody looks at errors: of fewer, all may agree by chance where a row of R has one large entry.
FIRST_PROBES = 16
TOGETHER = 64  # unit vectors that do
# Parameters of which H itself is written out: without a Gauss–Newton part to take away, more probes would not do.
WRITTEN_OUT = 128
UNIT_PRODUCTS = "writing the remainder out"
# Probes that share a sweep, and the fewest whose spread is an error, where the time may not be enough for a block.
BLOCK_IN_TIME, FEWEST_PROBES = 4, 4


class ParameterSampling:
    """Quadratic forms of R over some parameters, from as many probes as were asked for so far.

    Where samples influence each other there is no Gauss–Newton part to take away, and the forms are ``of`` H itself.
    """

    def __init__(
        self,
        problem: OpenProblem,
        names: list[str],
        *,
        wants: frozenset[str],
        seed: int,
        of: Literal["remainder", "hessian"],
    ) -> None:
        self.problem, self.names, self.seed, self.of = problem, names, seed, of
        self.keep_diagonal = "diagonal" in wants
        self.kinds = 1 + len(wants & {"rows", "columns", "transposed"})  # that have probes of their own
        self.forms: dict[Kind, SampledForm] = {}
        self.size = sum(problem.chosen_parameters[name].numel() for name in names)
        self._block: Tensor | None = None  # (size, size) of R, once it was written out

    def names_for(self, kind: Kind) -> list[str]:
        """Return the parameters that have a form of a kind: all but the diagonal are of weight matrices."""
        weights = set(self.problem.weights.values())
        return self.names if kind == "entries" else [name for name in self.names if name in weights]

    def form(self, kind: Kind) -> SampledForm | None:
        """Return what is known of a kind of form, at first from one block of probes; None where there is none."""
        if not self.names_for(kind):
            return None
        if kind not in self.forms:
            self.more(kind, FIRST_PROBES)
        return self.forms[kind]

    @property
    def written_out(self) -> bool:
        """Whether nothing is left to sample."""
        return self._block is not None

    def writes_out(self, probes: int) -> bool:
        """Whether so many probes of each kind are as many as the unit vectors that serve all kinds, or no use."""
        return max(probes * self.kinds, WRITTEN_OUT if self.of == "hessian" else 0) >= self.size

    def more(self, kind: Kind, probes: int) -> None:
        """Add probes of one kind; where they would come to as many as there are parameters, write the block out."""
        shapes = ProbeShapes(self.problem, self.names_for(kind), kind)
        known = self.forms.get(kind)
        # One block serves all kinds.
        many = self.writes_out((0 if known is None else known.probes) + probes)
        in_time = self.problem.fitting(UNIT_PRODUCTS) >= self.size
        if kind != "whole" and self._block is None and many and in_time and not path_of(self.problem).differences:
            self._block = self._unit_products()
            self.forms = {one: form for one, form in self.forms.items() if one == "whole"}
        if self._block is not None:
            self.forms.setdefault(kind, self._exact_form(shapes, self._block))
        elif kind == "whole":
            self.forms.setdefault(kind, self._whole_weights(shapes))
        else:
            self.forms[kind] = self._sampled_form(shapes, known or self._empty_form(shapes), probes)

    def _sampled_form(self, shapes: ProbeShapes, form: SampledForm, probes: int) -> SampledForm:
        kind, end = shapes.kind, form.probes + probes
        what = f"sampling the remainder ({kind})"
        while form.probes < end:
            block = BLOCK if self.problem.deadline is None else BLOCK_IN_TIME
            count = min(block, end - form.probes)
            vectors = shapes.probes(form.probes, count, self.seed)
            try:
                products = sweep_products(self.problem, vectors, self.of, what=what)
            except TimeSpent:
                if form.probes < FEWEST_PROBES:
                    raise
                break
            with self.problem.adding_up:
                self._add(form, shapes, vectors, products)
        return form

    def _add(
        self, form: SampledForm, shapes: ProbeShapes, vectors: Mapping[str, Tensor], products: Mapping[str, Tensor]
    ) -> None:
        """Take in probes and what the remainder made of them."""
        kind, totals = shapes.kind, {}
        assert isinstance(form.joint, KeptDraws)
        count = len(next(iter(vectors.values())))
        for name, vector in vectors.items():
            parts = shapes.reduced(name, vector.double() * products[name])
            totals[name] = parts.reshape(count, -1).sum(1).cpu()
            form.joint.draws.setdefault(name, []).append(totals[name])
            _added(form.sums[name], totals[name])
            if self._keeps_parts(kind):
                _added(form.parts[name], parts)
        for layer, own in by_layer(self.problem, shapes.names).items():
            _added(form.layers[layer], torch.stack([totals[name] for name in own]).sum(0))
        _added(form.network, torch.stack(list(totals.values())).sum(0))
        form.probes += count

    def _keeps_parts(self, kind: Kind) -> bool:
        return kind in ("rows", "columns") or (kind == "entries" and self.keep_diagonal)

    def _empty_form(self, shapes: ProbeShapes) -> SampledForm:
        return SampledForm(
            sums={name: Running() for name in shapes.names},
            parts={name: Running() for name in shapes.names} if self._keeps_parts(shapes.kind) else {},
            layers={layer: Running() for layer in by_layer(self.problem, shapes.names)},
            network=Running(),
            joint=KeptDraws(),
        )

    def _whole_weights(self, shapes: ProbeShapes) -> SampledForm:
        """Find wᵀRw of each whole weight w from a product with it alone: one number each, nothing to sample."""
        weights = {name: shapes.shaped(name, self._one(name)) for name in shapes.names}
        found: dict[str, Tensor] = {}
        for start in range(0, len(weights), BLOCK):
            some = shapes.names[start : start + BLOCK]
            vectors = {
                name: torch.cat([weight if one == name else torch.zeros_like(weight) for one in some])
                for name, weight in weights.items()
            }
            products = sweep_products(self.problem, vectors, self.of, what="forms of whole weights")
            for k, name in enumerate(some):
                found[name] = (vectors[name][k].double() * products[name][k]).sum().cpu()
        return _exact(self.problem, found, {})

    def _one(self, name: str) -> Tensor:
        return self.problem.chosen_parameters[name].new_ones(1, 1)

    def _unit_products(self) -> Tensor:
        """Return R over the parameters, by products with unit vectors."""
        tensors = {name: self.problem.chosen_parameters[name] for name in self.names}
        rows = []
        for start in range(0, self.size, TOGETHER):
            unit = torch.eye(self.size, dtype=self.problem.dtype, device=self.problem.device)[start : start + TOGETHER]
            parts = unit.split([tensor.numel() for tensor in tensors.values()], 1)
            vectors = {name: part.reshape(-1, *t.shape) for (name, t), part in zip(tensors.items(), parts)}
            products = sweep_products(self.problem, vectors, self.of, what=UNIT_PRODUCTS)
            rows.append(torch.cat([products[name].reshape(len(unit), -1) for name in self.names], 1))
        return torch.cat(rows).double()

    def _exact_form(self, shapes: ProbeShapes, block: Tensor) -> SampledForm:
        sizes = [self.problem.chosen_parameters[name].numel() for name in self.names]
        places = dict(zip(self.names, torch.arange(self.size).split(sizes)))
        sums, parts = {}, {}
        for name in shapes.names:
            own = block[places[name][0] : places[name][-1] + 1, places[name][0] : places[name][-1] + 1]
            if shapes.kind == "entries":
                forms = own.diagonal().clone()
            else:
                unit = torch.eye(shapes.sizes[name], dtype=self.problem.dtype, device=self.problem.device)
                vectors = shapes.shaped(name, unit).flatten(1).double()
                forms = ((vectors @ own) * vectors).sum(1)
            sums[name] = forms.sum().cpu()
            if self._keeps_parts(shapes.kind):
                shape = self.problem.chosen_parameters[name].shape if shapes.kind == "entries" else forms.shape
                parts[name] = forms.reshape(shape)
        return _exact(self.problem, sums, parts)


def by_layer(problem: OpenProblem, names: list[str]) -> dict[str, list[str]]:
    """Return which of some parameters belong to which layer."""
    groups = {
        name: [full for full in layer.parameters.values() if full in names] for name, layer in problem.layers.items()
    }
    return {name: group for name, group in groups.items() if group}


def _added(sampled: object, draws: Tensor) -> None:
    assert isinstance(sampled, Running)
    sampled.add(draws)


def _exact(problem: OpenProblem, sums: Mapping[str, Tensor], parts: Mapping[str, Tensor]) -> SampledForm:
    layers = {
        layer: Exact(torch.stack([sums[name] for name in own]).sum())
        for layer, own in by_layer(problem, list(sums)).items()
    }
    return SampledForm(
        sums={name: Exact(value) for name, value in sums.items()},
        parts={name: Exact(value) for name, value in parts.items()},
        layers=layers,
        network=Exact(torch.stack(list(sums.values())).sum()),
    )


class ProbeShapes:
    """How signs become probes of one kind of form, and products with them the parts that are reported."""

    def __init__(self, problem: OpenProblem, names: list[str], kind: Kind) -> None:
        self.problem, self.names, self.kind = problem, names, kind
        self.owner = {full: layer.module for layer in problem.layers.values() for full in layer.parameters.values()}
        self.tensors = {name: problem.chosen_parameters[name].detach() for name in names}
        self.sizes: dict[str, int] = {}  # signs that a parameter takes
        for name, tensor in self.tensors.items():
            matrix = as_matrix(self.owner[name], tensor, tensor) if tensor.ndim > 1 else tensor.reshape(1, 1, 1, -1)
            groups, outputs, inputs, _ = matrix.shape
            self.sizes[name] = {
                "entries": tensor.numel(),
                "rows": groups * outputs,
                "columns": groups * inputs,
                "whole": 1,
                "transposed": tensor.numel(),
            }[kind]
        self._roots = {name: self._root_of_gram(name) for name in names} if kind == "transposed" else {}

    def _root_of_gram(self, name: str) -> Tensor:
        matrix = as_matrix(self.owner[name], self.tensors[name], self.tensors[name]).flatten(-2)
        return _root(matrix @ matrix.mT)

    def probes(self, first: int, count: int, seed: int) -> dict[str, Tensor]:
        """Return probes ``first … first + count - 1`` as {name: (K, *shape)}."""
        problem = self.problem
        signs = random_signs(
            sum(self.sizes.values()),
            count,
            seed=seed + 1_000_003 * KINDS.index(self.kind),
            first=first,
            dtype=problem.dtype,
            device=problem.device,
        ).T.split(list(self.sizes.values()), dim=1)
        return {name: self.shaped(name, part) for name, part in zip(self.sizes, signs)}

    def shaped(self, name: str, signs: Tensor) -> Tensor:
        """Return the probes (K, *shape) that signs (K, size) stand for."""
        tensor = self.tensors[name]
        if self.kind == "entries":
            return signs.reshape(-1, *tensor.shape)
        module = self.owner[name]
        matrix = as_matrix(module, tensor, tensor)  # (G, O, I, K)
        groups, outputs, inputs, kernel = matrix.shape
        if self.kind == "rows":
            probe = signs.reshape(-1, groups, outputs, 1, 1) * matrix
        elif self.kind == "columns":
            probe = signs.reshape(-1, groups, 1, inputs, 1) * matrix
        elif self.kind == "whole":
            probe = signs.reshape(-1, 1, 1, 1, 1) * matrix
        else:
            # (WWᵀ)^½ Ξ: its mean square in the form is Σ ⟨w_s, w_s'⟩ Tr R_ss', the relative flatness.
            mixed = self._roots[name] @ signs.reshape(-1, groups, outputs, inputs * kernel)
            probe = mixed.reshape(-1, groups, outputs, inputs, kernel)
        return from_matrix(module, probe, tensor)

    def reduced(self, name: str, products: Tensor) -> Tensor:
        """Return v∘Rv, (K, *shape), as the parts that are reported."""
        if self.kind == "entries":
            return products
        if self.kind in ("whole", "transposed"):
            return products.reshape(len(products), -1).sum(1)
        matrix = as_matrix(self.owner[name], products, self.tensors[name])  # (K, G, O, I, kernel)
        return matrix.sum((-1, -2) if self.kind == "rows" else (-1, -3)).flatten(1)


def _root(gram: Tensor) -> Tensor:
    """Return the symmetric root of positive semidefinite matrices."""
    values: Tensor
    vectors: Tensor
    values, vectors = torch.linalg.eigh(gram.double())
    return ((vectors * values.clamp(min=0).sqrt()[..., None, :]) @ vectors.mT).to(gram)


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
    vectors = ProbeShapes(problem, names, "entries").probes(0, probes, seed)
    total = torch.zeros(problem.survey.count, dtype=torch.float64)
    squares, halves = torch.zeros_like(total), torch.zeros(2, len(total), dtype=torch.float64)
    what = "each sample's remainder"
    with problem.sweep(what) as group:
        for batch in problem.batches(what):
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
    own = {"total": total, "squares": squares, "halves": halves}
    total, squares, halves = group.united(own, device=total.device)[0].values()
    mean = total / probes
    # As large as what it is divided into has a mean square of 1 by, as in Running.
    spread = (squares / probes - mean.square()).clamp(min=0) / (probes - 3 if probes > 3 else max(probes - 1, 1))
    stderr = spread.sqrt() if probes > 1 else torch.full_like(mean, math.inf)
    half_means = halves / torch.tensor([[(probes + 1) // 2], [max(probes // 2, 1)]])
    return SampleRemainders(mean, stderr, half_means)

"""What measures need of a changed network, as it follows from the network itself without another pass over the data.

A map θ' = Mθ that keeps the function for all parameters near turns the Hessian into M⁻ᵀHM⁻¹.  Sums over its diagonal,
its quadratic forms and its eigenvalues follow from the network's own; weights are those of the changed copy.  That this
is the copy's Hessian is not believed: a product with the copy's own Hessian of some samples is compared with it first,
parameter by parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spiritlevel.analyses.equivalents import Equivalents
from spiritlevel.analyses.parameter_maps import ByName, ParameterMap, Rescaling
from spiritlevel.analyses.running import run_measure
from spiritlevel.analyses.sample_groups import on_samples
from spiritlevel.engine.blocks import Blocks
from spiritlevel.engine.estimators.eigenvalues import Eigenpairs, EigenpairSearch, Which
from spiritlevel.engine.estimators.probes import random_signs
from spiritlevel.engine.estimators.scaled_eigenvalues import ScaledEigenpairs
from spiritlevel.engine.operators import HessianOperator
from spiritlevel.engine.operators.derivative_check import path_of
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.workbench import EIGEN_TOLERANCE, Workbench
from spiritlevel.values.errors import SpiritlevelError
from spiritlevel.values.estimate import Estimate

MOST_PARTS = 16  # of an eigenvector that are multiplied apart
# Samples of the comparison: so many from all over the data, and as many of the largest losses, for there curvature is.
SPREAD, HARDEST = 8, 8
# How far the two products may be apart, relative to a parameter's own, by what rounding does.
ALLOWED = {torch.float32: 2e-2, torch.float64: 1e-6}
# Of a parameter whose share of the whole product is smaller than this, rounding is all that is seen.
UNSEEN = {torch.float32: 1e-5, torch.float64: 1e-11}


class Rescaler:
    """One network's quantities, and what changed copies of it share: products, and the samples of the check."""

    def __init__(self, equivalents: Equivalents, bench: Workbench) -> None:
        self.equivalents, self.bench = equivalents, bench
        self.problem = equivalents.problem
        self._operator: HessianOperator | None = None
        self._scaled: ScaledEigenpairs | None = None
        self._own: tuple[ByName, ByName] | None = None  # a vector, and its product on few samples
        self._few: Tensor | None = None

    @property
    def follows(self) -> bool:
        """Whether a changed network's sums follow from this one's: nothing of them is sampled, or left out."""
        if self.equivalents.found.analysis is None:
            return False
        with self.problem.session():
            blocks = self.bench.blocks
        return blocks.exact and "diagonal" in blocks.wants

    def workbench(self, problem: OpenProblem, map: ParameterMap) -> ChangedWorkbench:
        """Return the quantities of a copy of the network, which the map makes of it."""
        return ChangedWorkbench(self, problem, map)

    def values(
        self, workbench: ChangedWorkbench, chosen: Sequence[Measure], settings: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Estimate]:
        """Return the measures' values on a changed network, without those that do not follow."""
        with workbench.problem.session():
            found = {own.name: run_measure(own, workbench, settings[own.name]).value for own in chosen}
        return {name: value for name, value in found.items() if value.status == "ok"}

    def release(self) -> None:
        """Let go of the graphs that products kept."""
        if self._operator is not None:
            self._operator.release()

    # --- the network's own Hessian ---------------------------------------------------------------------------------

    def matvec(self, vectors: Tensor) -> Tensor:
        """Return the product of the network's own Hessian with vectors (P, K)."""
        if self._operator is None:
            self._operator = HessianOperator(self.problem, keep_graphs=None)
        return self._operator.matvec(vectors)

    def search(self, matvec: Callable[[Tensor], Tensor], k: int, which: Which, tolerance: float) -> EigenpairSearch:
        """Return a search for eigenpairs of a matrix of the same order."""
        return EigenpairSearch(
            matvec,
            self.problem.size,
            k,
            which,
            tolerance=tolerance,
            seed=self.bench.seed,
            dtype=self.problem.dtype,
            device=self.problem.device,
        )

    def pairs(self, k: int, which: Which, tolerance: float) -> Eigenpairs:
        """Return the network's own eigenpairs."""
        return self.bench.eigen(k, which, tolerance)

    def scaled(
        self, rescaling: Rescaling, k: int, which: Which, tolerance: float, *, least: int, most: int
    ) -> Eigenpairs:
        """Return eigenpairs after a rescaling that is one of many, by products that all of them share."""
        scale = rescaling.scale(self.problem.chosen_parameters)
        return self._shared.find(scale, k, which, tolerance=tolerance, least=least, most=most)

    def prepare(self, rescalings: Sequence[Rescaling]) -> None:
        """Multiply the parts of the top eigenvector that these rescalings scale apart, all in one product.

        Where the eigenvector is Jᵀs, that of the rescaled network for the same s is one of their combinations.
        """
        top = self.bench.top_vectors
        if top is None:
            return
        parts: dict[bytes, Tensor] = {}
        for rescaling in rescalings:
            scale = rescaling.scale(self.problem.chosen_parameters)
            for value in scale.unique():
                mask = scale == value
                parts.setdefault(mask.cpu().numpy().tobytes(), top[:, 0] * mask)
        self._shared.extend(list(parts.values())[:MOST_PARTS])

    @property
    def _shared(self) -> ScaledEigenpairs:
        if self._scaled is None:
            self._scaled = ScaledEigenpairs(
                self.matvec,
                self.problem.size,
                span=self.bench.span,
                seed=self.bench.seed,
                dtype=self.problem.dtype,
                device=self.problem.device,
            )
        return self._scaled

    # --- the check -------------------------------------------------------------------------------------------------

    def agrees(self, problem: OpenProblem, map: ParameterMap) -> bool:
        """Return whether a copy's own Hessian of some samples is M⁻ᵀHM⁻¹, by the product with a random vector."""
        if self._own is None:
            signs = random_signs(
                self.problem.size, 1, seed=self.bench.seed, dtype=self.problem.dtype, device=self.problem.device
            )
            operator = self._on_few(self.problem)
            self._own = _one(operator.split(signs)), _one(operator.split(operator @ signs))
        vector, product = self._own
        operator = self._on_few(problem)
        moved = operator.join({name: part[None] for name, part in map.vector(vector).items()})
        found = _one(operator.split(operator @ moved))
        expected = map.product(product)
        # In the network's own coordinates, in which no factor makes a part of the product large or small.
        whole = max(float(part.norm()) for part in product.values())
        if whole == 0:  # where these samples have no curvature agreement would show nothing
            return False
        dtype = self.problem.dtype
        allowed, unseen = ALLOWED.get(dtype, ALLOWED[torch.float32]), UNSEEN.get(dtype, UNSEEN[torch.float32])
        apart = map.vector({name: found[name] - part for name, part in expected.items()})
        return all(
            float(apart[name].norm()) <= allowed * float(part.norm()) + unseen * whole for name, part in product.items()
        )

    def _on_few(self, problem: OpenProblem) -> HessianOperator:
        """Return the Hessian of the samples that are compared."""
        if self._few is None:
            survey = self.problem.survey
            self._few = torch.zeros(survey.count, dtype=torch.bool)
            self._few[torch.linspace(0, survey.count - 1, min(SPREAD, survey.count)).long()] = True
            self._few[survey.losses.cpu().topk(min(HARDEST, survey.count)).indices] = True
        few = on_samples(problem, self._few)
        few.deadline = None  # a check of a few samples is soon done
        few.derivatives = path_of(self.problem)  # of the same operations
        return HessianOperator(few)


def _one(parts: ByName) -> ByName:
    return {name: part[0] for name, part in parts.items()}


class ChangedWorkbench(Workbench):
    """The quantities of a changed network; what does not follow from those of the network itself is measured on it."""

    def __init__(self, rescaler: Rescaler, problem: OpenProblem, map: ParameterMap) -> None:
        bench = rescaler.bench
        blocks = bench.blocks
        assert blocks.sums is not None
        super().__init__(problem, blocks.wants, seed=bench.seed, tolerance=bench.tolerance)
        if problem.known_survey is None:
            problem.known_survey = rescaler.problem.survey  # the function is the same
        self.rescaler, self.map = rescaler, map
        self.searched: Eigenpairs | None = None  # the pairs that were asked for last
        self.known_blocks = Blocks(
            problem, blocks.wants, seed=bench.seed, tolerance=blocks.tolerance, sums=map.sums(blocks.sums)
        )

    @property
    def eigen(self) -> Callable[..., Eigenpairs]:
        """Extreme eigenpairs of the changed network's Hessian, from products with the network's own."""
        path = path_of(self.rescaler.problem)
        if path.differences:  # which are no products with a matrix
            return super().eigen
        self.problem.derivatives = path

        def find(k: int = 1, which: Which = "largest", tolerance: float | None = None) -> Eigenpairs:
            k, wanted = min(k, self.problem.size), tolerance or self.tolerance or EIGEN_TOLERANCE
            found = self.searched = self.found_pairs(k, which, wanted)
            if found.status != "ok":
                raise SpiritlevelError("eigenvalues of the changed network were not found from the network's own")
            return found

        return find

    def found_pairs(self, k: int, which: Which, tolerance: float) -> Eigenpairs:
        """Return eigenpairs of M⁻ᵀHM⁻¹."""
        own = self.rescaler
        return self.map.eigenpairs(own, own.problem.chosen_parameters, k, which, tolerance)


class SearchWorkbench(ChangedWorkbench):
    """The quantities of one of many networks along ways of rescaling, with so many products at least and at most."""

    def __init__(self, rescaler: Rescaler, problem: OpenProblem, map: Rescaling, least: int, most: int) -> None:
        super().__init__(rescaler, problem, map)
        self._rescaling, self._least, self._most = map, least, most

    def found_pairs(self, k: int, which: Which, tolerance: float) -> Eigenpairs:
        """Return eigenpairs of D⁻¹HD⁻¹ from the products made for all of them."""
        found = self.rescaler.scaled(self._rescaling, k, which, tolerance, least=self._least, most=self._most)
        # Without a product of its own it is a guess, and taken for one.
        return found if self._most else replace(found, status="ok")

"""What measures share: each quantity is computed once, when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from spiritlevel.blocks import MAXIMUM_PROBES, TOLERANCE, Blocks
from spiritlevel.estimate import Estimate
from spiritlevel.estimators.eigenvalues import Eigenpairs, top_eigenpairs
from spiritlevel.operators import HessianOperator
from spiritlevel.operators.layer_tops import top_eigenvalues
from spiritlevel.passes.curvature import CurvatureSums, curvature_sweep, fisher_columns
from spiritlevel.passes.gradient import GradientStats, mean_gradient
from spiritlevel.problem import Problem

EIGEN_TOLERANCE = 1e-3


class Workbench:
    """The quantities of one problem; attribute names are what a measure's positional arguments ask for."""

    def __init__(
        self,
        problem: Problem,
        wants: frozenset[str] = frozenset(),
        *,
        seed: int = 0,
        tolerance: float | None = None,
        maximum_probes: int = MAXIMUM_PROBES,
    ) -> None:
        self.problem = problem
        self.seed = seed
        self._wants = wants
        self._tolerance = tolerance
        self._maximum_probes = maximum_probes
        self._pairs: dict[tuple[int, str, float], Eigenpairs] = {}

    @cached_property
    def outputs(self) -> Any:
        """Per-sample numbers of the forward pass: losses, margins, norms."""
        from spiritlevel.passes.outputs import forward_statistics

        return forward_statistics(self.problem)

    @cached_property
    def gradient(self) -> GradientStats:
        """The gradient of the mean loss and its noise."""
        return mean_gradient(self.problem)

    @cached_property
    def blocks(self) -> Blocks:
        """Diagonal blocks of the Hessian, with everything the chosen measures want of them."""
        return Blocks(
            self.problem,
            self._wants,
            seed=self.seed,
            tolerance=self._tolerance or TOLERANCE,
            maximum_probes=self._maximum_probes,
        )

    @cached_property
    def fisher(self) -> CurvatureSums:
        """The empirical Fisher information's diagonal, from the blocks' sweep where there was one."""
        blocks = self.__dict__.get("blocks")
        if blocks is not None and blocks.sums is not None and blocks.sums.beside is not None:
            return blocks.sums.beside
        return curvature_sweep(self.problem, frozenset({"diagonal"}), columns_of=fisher_columns, verify=False)

    @cached_property
    def radial(self) -> Any:
        """Derivatives of each sample's outputs along the parameters themselves."""
        from spiritlevel.passes.radial import radial_statistics

        return radial_statistics(self.problem)

    @cached_property
    def perturbed(self) -> Any:
        """Losses and gradients at other parameters than the network's."""
        from spiritlevel.passes.perturbed import Perturbed

        return Perturbed(self.problem)

    @property
    def eigen(self) -> Callable[..., Eigenpairs]:
        """Extreme eigenpairs of the Hessian, found once for each request: ``eigen(k, which, tolerance)``."""

        def find(k: int = 1, which: str = "largest", tolerance: float = EIGEN_TOLERANCE) -> Eigenpairs:
            key = (k, which, tolerance)
            if key not in self._pairs:
                problem = self.problem
                matrix = HessianOperator(problem, keep_graphs=None)
                try:
                    self._pairs[key] = top_eigenpairs(
                        matrix.matvec,
                        problem.size,
                        min(k, problem.size),
                        which,  # type: ignore[arg-type]
                        tolerance=tolerance,
                        seed=self.seed,
                        dtype=problem.dtype,
                        device=problem.device,
                    )
                finally:
                    matrix.release()
            return self._pairs[key]

        return find

    @cached_property
    def layer_eigen(self) -> dict[str, Estimate]:
        """The largest eigenvalue of each weight's own block."""
        return top_eigenvalues(
            self.problem, self.problem.weights, tolerance=self._tolerance or EIGEN_TOLERANCE, seed=self.seed
        )

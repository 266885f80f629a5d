"""What measures share: each quantity is computed once, when it is first asked for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any

from torch import Tensor

from spiritlevel.engine.blocks import BUDGET, TOLERANCE, Blocks
from spiritlevel.engine.estimators.eigenvalues import USUAL_WIDTH, Eigenpairs, EigenpairSearch, Which
from spiritlevel.engine.operators import HessianOperator
from spiritlevel.engine.operators.layer_tops import top_eigenvalues
from spiritlevel.engine.passes.accumulating import CurvatureSums
from spiritlevel.engine.passes.curvature import COLUMN_LIMIT, SKETCH_DRAWS, curvature_sweep, fisher_columns
from spiritlevel.engine.passes.gradient import GradientStats, mean_gradient
from spiritlevel.engine.passes.operation_sampling import SAMPLING
from spiritlevel.engine.warm_start import mixed, warm_start
from spiritlevel.inputs.deadline import Deadline, TimeSpent
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.values.estimate import Estimate

EIGEN_TOLERANCE = 1e-3


class Workbench:
    """The quantities of one problem; attribute names are what a measure's positional arguments ask for."""

    def __init__(
        self,
        problem: OpenProblem,
        wants: frozenset[str] = frozenset(),
        *,
        seed: int = 0,
        tolerance: float | None = None,
        budget: float = BUDGET,
        eigenpairs: int = 1,
        start: Tensor | None = None,
    ) -> None:
        self.problem = problem
        self.seed = seed
        self._wants = wants
        self.tolerance = tolerance
        self._budget = budget
        self._eigenpairs = eigenpairs
        self._start = start  # vectors near the top eigenvectors
        self.span: tuple[Tensor, Tensor] | None = None  # vectors a search multiplied, with their products
        self.known_blocks: Blocks | None = None  # until they are first asked for
        self._unclaimed = 0.0  # passes made by the first sweep for what was not asked for yet
        self._pairs: dict[tuple[str, int], tuple[float, Eigenpairs]] = {}  # searches with their tolerances
        self._unfinished: dict[tuple[Which, int], EigenSearch] = {}  # those that ran out of time

    @cached_property
    def outputs(self) -> Any:
        """Per-sample numbers of the forward pass: losses, margins, norms."""
        from spiritlevel.engine.passes.outputs import forward_statistics

        return forward_statistics(self.problem)

    def begin(self, needs: Collection[str]) -> None:
        """Look at the data for the first time, together with the blocks' sweep where that will be needed anyway."""
        # By a deadline the survey comes first by itself: it is the least that anything can be said with.
        if self.problem.deadline is not None:
            self._expect(self.problem.deadline)
        elif "blocks" in needs and self.problem.may_be_surveyed_on_the_way:
            # What stops it is told where the blocks are asked for; what is wrong with the data, by the survey alone.
            with contextlib.suppress(Exception):
                self.blocks  # noqa: B018
                self._unclaimed = float(sum(self.problem.spent.values())) - 1  # less the survey's own
        self.problem.survey  # noqa: B018

    def _expect(self, deadline: Deadline) -> None:
        """Find out what forward passes and gradients take, by which it is known what cannot be begun in time."""
        survey = self.problem.survey
        deadline.expect("gradient", "first sweep", 1.5)
        self.gradient  # noqa: B018
        outputs = math.prod(survey.output_shape)
        columns = outputs - 1 if outputs <= COLUMN_LIMIT else SKETCH_DRAWS
        # At least, so that nothing is refused that would have been done.
        for kind, gradients in (("curvature", 0.3 * columns), (SAMPLING, 0.5), ("products", 1.0)):
            deadline.expect(kind, "gradient", gradients)

    def claim(self, needs: Collection[str]) -> float:
        """Return the passes that were made for these needs before anything asked for them, once."""
        if "blocks" not in needs:
            return 0.0
        passes, self._unclaimed = self._unclaimed, 0.0
        return passes

    @cached_property
    def gradient(self) -> GradientStats:
        """The gradient of the mean loss and its noise, from the blocks' sweep where it took them along."""
        blocks = self.known_blocks
        beside = None if blocks is None or blocks.sums is None else blocks.sums.beside
        if beside is not None and beside.mean is not None:
            return beside.mean
        return mean_gradient(self.problem)

    @property
    def blocks(self) -> Blocks:
        """Diagonal blocks of the Hessian, with everything the chosen measures want of them."""
        if self.known_blocks is None:
            self.known_blocks = Blocks(
                self.problem,
                self._wants,
                seed=self.seed,
                tolerance=self.tolerance or TOLERANCE,
                budget=self._budget,
            )
        return self.known_blocks

    @cached_property
    def fisher(self) -> CurvatureSums:
        """The empirical Fisher information's diagonal, from the blocks' sweep where there was one."""
        blocks = self.known_blocks
        if blocks is not None and blocks.sums is not None and blocks.sums.beside is not None:
            return blocks.sums.beside
        found = curvature_sweep(self.problem, frozenset({"diagonal"}), columns_of=fisher_columns, verify=False)
        assert found is not None  # measures of it require samples that do not influence each other
        return found

    @cached_property
    def radial(self) -> Any:
        """Derivatives of each sample's outputs along the parameters themselves."""
        from spiritlevel.engine.passes.radial import radial_statistics

        return radial_statistics(self.problem)

    @cached_property
    def perturbed(self) -> Any:
        """Losses and gradients at other parameters than the network's."""
        from spiritlevel.engine.passes.perturbed import Perturbed

        return Perturbed(self.problem)

    @property
    def eigen(self) -> Callable[..., Eigenpairs]:
        """Extreme eigenpairs of the Hessian: ``eigen(k, which, tolerance)``, from a search made before where it serves.

        A first search for the largest goes for as many pairs as any measure will ask for.  Without a tolerance whatever
        was found before will do.
        """

        def find(k: int = 1, which: Which = "largest", tolerance: float | None = None) -> Eigenpairs:
            k = min(k, self.problem.size)
            served = self._served(k, which, math.inf if tolerance is None else tolerance)
            if served is not None:
                return served
            tolerance = tolerance or self.tolerance or EIGEN_TOLERANCE
            if which == "magnitude" and k == 1 and not self._searches("largest"):
                find(k, "largest", tolerance)  # which most often is the same one
                return find(k, which, tolerance)
            together = which == "largest" and not self._searches(which) and k == 1
            count = min(self._eigenpairs, self.problem.size) if together else k
            found = self._search(count, which, tolerance)
            self._pairs[which, count] = (tolerance, found)
            return found.first(k, tolerance)

        return find

    @property
    def top_vectors(self) -> Tensor | None:
        """The top eigenvectors (P, k) that a search has found, None where there was none."""
        searches = self._searches("largest") or self._searches("magnitude")
        return searches[0][1].vectors if searches else None

    def _searches(self, which: Which) -> list[tuple[float, Eigenpairs]]:
        return [search for (end, _), search in self._pairs.items() if end == which]

    def _served(self, k: int, which: Which, tolerance: float) -> Eigenpairs | None:
        """Return pairs of an earlier search where it found them as closely as asked for.

        One pair alone, or pairs wanted at no tolerance, may come from a search for more; otherwise a number would
        depend on which other measures were chosen, if only within its interval.
        """
        searches = self._searches(which)
        if which == "magnitude":
            # A search for the largest looked at both ends: unless the lower one comes near, it found what is asked for.
            searches += [s for s in self._searches("largest") if k == 1 and -s[1].lowest < 0.5 * s[1].highest]
        for spent, known in searches:
            if len(known.values) != k and not (k == 1 or (tolerance == math.inf and len(known.values) > k)):
                continue
            found = known.first(k, tolerance)
            if found.status == "ok" or spent <= tolerance:
                return found
        return None

    def _search(self, k: int, which: Which, tolerance: float) -> Eigenpairs:
        search = self._unfinished.pop((which, k), None) or EigenSearch(
            self.problem, k, which, tolerance, self.seed, self._start
        )
        try:
            found = search.run()
            self.span = search.pairs.span
            return found
        except TimeSpent:
            unfinished = search.pairs.so_far()
            if unfinished is None:
                raise
            self._unfinished[which, k] = search
            return unfinished

    def go_on(self) -> bool:
        """Let searches that ran out of time go on where their pairs are asked for again; False where none did."""
        for key in self._unfinished:
            self._pairs.pop(key, None)
        layers = self.__dict__.get("layer_eigen", {})
        if unfinished := any(found.status != "ok" for found in layers.values()):
            del self.__dict__["layer_eigen"]
        return unfinished or bool(self._unfinished)

    @cached_property
    def layer_eigen(self) -> dict[str, Estimate]:
        """The largest eigenvalue of each weight's own block."""
        return top_eigenvalues(
            self.problem, self.problem.weights, tolerance=self.tolerance or EIGEN_TOLERANCE, seed=self.seed
        )


class EigenSearch:
    """A search for eigenpairs of a problem's Hessian, begun where it is told, or where those over few samples point."""

    def __init__(
        self, problem: OpenProblem, k: int, which: Which, tolerance: float, seed: int, start: Tensor | None = None
    ) -> None:
        near = start is not None and start.shape[1] >= k
        start = (
            mixed(start[:, :k], seed) if start is not None and near else warm_start(problem, k, which, tolerance, seed)
        )
        self.matrix = HessianOperator(problem, keep_graphs=None)
        self.matrix.products.usual = USUAL_WIDTH
        self.pairs = EigenpairSearch(
            self.matrix.matvec,
            problem.size,
            k,
            which,
            tolerance=tolerance,
            start=start,
            fresh=0 if near else 1,
            linear=not self.matrix.path.differences,
            seed=seed,
            dtype=problem.dtype,
            device=problem.device,
        )

    def run(self) -> Eigenpairs:
        """Search to the end, or from where it was left; the graphs that products kept go either way."""
        try:
            return self.pairs.run()
        finally:
            self.matrix.release()

"""Products of H and G with a block of vectors, one sweep over the data each, by the strategy that suits the device."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from spiritlevel.engine.operators.batch_products import (
    BatchProducts,
    ForwardOverReverse,
    RetainedGraph,
    hessian_by_forward,
)
from spiritlevel.engine.operators.batch_sums import BatchSums
from spiritlevel.engine.operators.derivative_check import SAMPLES, DerivativePath, path_of
from spiritlevel.engine.operators.differences import Differences
from spiritlevel.engine.operators.memory import GRAPH_SHARE, free_bytes, graph_bytes, room_for_graphs
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.values.errors import UsageError

Vectors = Mapping[str, Tensor]  # parameter name -> (K, *shape)
Matrix = Literal["hessian", "ggn", "remainder"]
Strategy = Literal["auto", "looped", "batched", "forward", "compiled", "finite differences"]
# A strategy's products on a few samples must agree with the looped one's to this many parts of its length.
AGREEMENT = {torch.float32: 1e-3, torch.float64: 1e-8}
SMALL_GRAPH = 2**21  # bytes
# Bytes of graph, times vectors, that a CPU works on at once: less would be all calls, more would leave its caches.
TOGETHER = 256 * 2**20
MOST_TOGETHER = 12  # vectors: more share no more
# Bytes of so many vectors up to which a CPU takes them together: every piece of a batch makes a product of that size.
LARGEST_BLOCK = 256 * 2**20


class Products:
    """Products with the Hessian and the Gauss–Newton matrix over some parameters of a problem.

    ``strategy``: "looped" (one retained graph a batch, vector after vector), "batched" (all vectors at once through
    that graph; on a CPU in pieces of a batch, as many samples and vectors as its caches hold), "forward" (forward mode
    over reverse: no retained graph), "compiled" (the same through torch.compile, on a GPU), "auto" (batched for blocks
    of vectors, looped for a few; forward where a graph does not fit).  Where double backward cannot be trusted every
    strategy gives way to finite differences.  ``keep_graphs`` keeps the graphs of batches alive between sweeps: all
    of them with True, none with False, with None as many as there is room for.  ``whole_batches`` never works on pieces
    of a batch.  Set ``usual`` to the number of vectors that most products will have, where the first has more.
    """

    def __init__(
        self,
        problem: OpenProblem,
        names: Sequence[str],
        *,
        strategy: Strategy = "auto",
        keep_graphs: bool | None = False,
        whole_batches: bool = False,
    ) -> None:
        if strategy not in get_args(Strategy):
            raise UsageError(f"strategy must be one of {', '.join(get_args(Strategy))}, not {strategy!r}")
        if strategy == "compiled" and problem.device.type != "cuda":
            raise UsageError("strategy 'compiled' needs a CUDA device; use 'looped' on a CPU")
        self.problem, self.names = problem, list(names)
        self.asked = strategy
        self.usual: int | None = None
        self.whole_batches = whole_batches
        self._keep = keep_graphs
        self._kept: list[BatchProducts] = []  # of the first batches, or pieces of them
        self._ends: list[int] = []  # the sample behind each
        self._complete = False  # what can be kept is kept
        self._all_kept = False  # and that is every batch of this rank
        self._width = 1  # vectors of the sweep that decided how batches are cut
        self._fitting = math.inf  # samples whose graph fits into memory, as that sweep found
        self._chosen: str | None = None
        self._compiled: Callable[..., dict[str, Tensor]] | None = None
        self._differences = DerivativePath("finite differences", "finite differences", "they were asked for")

    @property
    def path(self) -> DerivativePath:
        """How the products are made, after the check of one of them."""
        found = path_of(self.problem)
        return self._differences if self.asked == "finite differences" and not found.differences else found

    @property
    def strategy(self) -> str:
        """The strategy in use; before the first product, the one that would be used for one vector."""
        return self._chosen or self.strategy_for(1)

    @property
    def keeps_graphs(self) -> bool:
        """Whether the graphs of all batches stay alive between sweeps."""
        size, batches = graph_bytes(self.problem)
        return size * batches <= self._room

    @property
    def _room(self) -> float:
        """How many bytes of graphs may stay alive between sweeps."""
        if self._keep is None:
            if self.path.differences or self.strategy not in ("looped", "batched"):
                return 0.0
            return room_for_graphs(self.problem)[1]
        return math.inf if self._keep else 0.0

    def release(self) -> None:
        """Let go of the graphs that were kept."""
        self._kept, self._ends, self._complete, self._all_kept = [], [], False, False

    def sweep(self, count: int, what: str) -> Iterator[BatchProducts]:
        """Yield every batch's products in turn, for blocks of ``count`` vectors; one sweep over the data.

        The first sweep keeps the graphs of as many batches as there is room for; the others are built anew each time.
        """
        problem = self.problem
        with problem.session():
            if not self._kept:
                self._chosen, self._width = self.strategy_for(count), count
                self._complete = self._all_kept = False
                self._fitting = room_for_graphs(problem)[0] / self._bytes_a_sample
            total = problem.survey.count
            pace = None if problem.deadline is None else problem.deadline.pace(what, count, total)
            for part, end in zip(self._kept, self._ends):
                yield part
                if problem.progress is not None:
                    problem.progress(what, end, total)
                if pace is not None:
                    pace.after(end)
            first = self._ends[-1] if self._ends else 0
            room, kept_all = 0.0 if self._complete else self._room, self._all_kept or not self._complete
            for piece in () if self._all_kept else self._pieces_from(first, what):
                part = self._made(problem, piece, self.names, self.strategy)
                yield part
                room -= self._bytes_a_sample * piece.count
                kept_all = kept_all and room >= 0
                if room >= 0:
                    self._kept.append(part)
                    self._ends.append(piece.start + piece.count)
                if pace is not None:
                    pace.after(piece.start + piece.count)
            self._complete, self._all_kept = True, kept_all
            if pace is not None:
                pace.finish()

    def _pieces_from(self, first: int, what: str) -> Iterator[Batch]:
        for batch in self.problem.batches(what, units=0):
            if batch.start + batch.count > first:
                yield from (piece for piece in self._pieces(batch, self._width) if piece.start >= first)

    def multiply(self, vectors: Vectors, of: Matrix = "hessian", *, what: str = "products") -> dict[str, Tensor]:
        """Return the product with a matrix restricted to these parameters, summed over batches.

        In float64 where there is room for the sums, otherwise in the parameters' dtype.
        """
        sums = self._sums(vectors, of, what)
        if of == "remainder":
            return dict(zip(self.names, (h - g for h, g in zip(*(each.found() for each in sums)))))
        return dict(zip(self.names, sums[0].found()))

    def multiply_rounded(self, vectors: Vectors, of: Literal["hessian", "ggn"], to: torch.dtype) -> dict[str, Tensor]:
        """Return the product in a dtype: the same, and of one batch without a copy in between."""
        return dict(zip(self.names, self._sums(vectors, of, "products")[0].rounded(to)))

    def _sums(self, vectors: Vectors, of: Matrix, what: str) -> list[BatchSums]:
        wanted = ("hessian", "ggn") if of == "remainder" else (of,)  # the remainder takes both, from one sweep
        with self.problem.session():  # what is made here is of no use where inference mode is on
            blocks, count = self.blocks(vectors)
            sums = {matrix: BatchSums(blocks) for matrix in wanted}
            with self.problem.sweep(what) as group:
                for part in self.sweep(count, what):
                    for matrix, into in sums.items():
                        into.add(part.hessian(blocks) if matrix == "hessian" else part.ggn(blocks))
            for into in sums.values():
                into.unite(group)
        for matrix in wanted:
            self.problem.spent[f"{matrix} product"] += count
        return list(sums.values())

    def blocks(self, vectors: Vectors) -> tuple[list[Tensor], int]:
        """Return the vectors as blocks in the parameters' dtype and order, and how many they are."""
        blocks = [vectors[name].to(self.problem.chosen_parameters[name]) for name in self.names]
        blocks = [block.clone() if block.is_inference() else block for block in blocks]
        return blocks, len(blocks[0])

    # --- choosing ------------------------------------------------------------------------------------------------

    def strategy_for(self, count: int) -> str:
        """Return the strategy for blocks of so many vectors."""
        path = self.path
        if path.differences:
            return "finite differences"
        if self.asked == "auto":
            for strategy in self._preferred(count):
                if strategy == "looped" or self._agrees(strategy):
                    return strategy
            return "looped"
        return self.asked if self.asked == "looped" or self._agrees(self.asked) else "looped"

    def _preferred(self, count: int) -> list[str]:
        problem = self.problem
        size, _ = graph_bytes(problem)
        free = free_bytes(problem.device)
        fits = size if not self._may_cut else self._bytes_a_sample  # a batch is cut until it does
        if fits > GRAPH_SHARE * free and not problem.survey.coupled:
            return ["forward", "looped"]
        # A large graph keeps a CPU busy vector by vector; a small one is all overhead, which a block shares.
        together = problem.device.type == "cuda" or size <= SMALL_GRAPH or (count >= 4 and self._may_split)
        if together and count > 1 and size * (1 + count / 2) <= GRAPH_SHARE * free:
            return ["batched", "looped"]
        return ["looped"]

    @property
    def _may_cut(self) -> bool:
        """Whether parts of a batch can be taken apart from the rest of it."""
        return not self.whole_batches and not self.problem.survey.coupled

    @property
    def _may_split(self) -> bool:
        """Whether pieces of batches are quicker: on a CPU, where vectors are small beside what they go through."""
        numbers = sum(self.problem.chosen_parameters[name].numel() for name in self.names)
        small = MOST_TOGETHER * numbers * self.problem.tensors[0].element_size() <= LARGEST_BLOCK
        return self._may_cut and small and self.problem.device.type == "cpu"

    def _pieces(self, batch: Batch, count: int) -> Iterator[Batch]:
        """Yield a batch in the pieces that products with ``count`` vectors at once are fastest on, and that fit."""
        step = batch.count
        if self._chosen == "batched" and self._may_split:
            step = max(1, int(TOGETHER / (self._bytes_a_sample * min(self.usual or count, MOST_TOGETHER))))
        if self._may_cut and self._chosen in ("looped", "batched"):
            step = max(1, int(min(step, self._fitting)))
        yield from batch.pieces(step)

    @property
    def _bytes_a_sample(self) -> float:
        size, batches = graph_bytes(self.problem)
        return size * batches / self.problem.survey.count

    def _agrees(self, strategy: str) -> bool:
        """Whether a strategy gives the looped one's products on a few samples; asked once a problem."""
        known = self.path.agreements
        if strategy not in known:
            problem = self.problem
            few = problem if problem.survey.coupled else problem.on_few(SAMPLES)
            with problem.session(), few.session():
                batch = next(iter(few.batches()))
                generator = torch.Generator().manual_seed(0)
                names = problem.parameters
                blocks = [torch.randn((2, *t.shape), generator=generator).to(t) for t in problem.tensors]
                looped = RetainedGraph(few, batch, names).hessian(blocks)
                try:
                    found = self._made(few, batch, names, strategy).hessian(blocks)
                    gap = torch.stack([(a - b).double().norm() for a, b in zip(found, looped)]).norm()
                    size = torch.stack([b.double().norm() for b in looped]).norm()
                    known[strategy] = bool(gap <= AGREEMENT[problem.dtype] * size)
                    why = f"it differs by {float(gap / size):.1g} of the product"
                except Exception as error:  # a transform without a rule for an operation raises whatever it likes
                    known[strategy] = False
                    why = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
            if not known[strategy]:
                problem.notes.append(f"Products by strategy {strategy!r} were given up for 'looped': {why}.")
        return known[strategy]

    def _made(self, problem: OpenProblem, batch: Batch, names: Sequence[str], strategy: str) -> BatchProducts:
        """Return the products of a batch of this problem, or of the same on a few samples."""
        if strategy == "finite differences":
            return Differences(problem, batch, names, self.path)
        if strategy == "forward":
            return ForwardOverReverse(problem, batch, names)
        if strategy == "compiled":
            return ForwardOverReverse(problem, batch, names, function=self._by_compiled)
        together = 1
        if strategy == "batched":
            together = MOST_TOGETHER
            if self._may_split:
                together = max(2, min(together, round(TOGETHER / (self._bytes_a_sample * batch.count))))
        return RetainedGraph(problem, batch, names, together=together)

    def _by_compiled(self, problem: OpenProblem, *arguments: object) -> dict[str, Tensor]:
        """The forward-over-reverse product through torch.compile, which a problem's session otherwise switches off."""
        if self._compiled is None:
            self._compiled = torch.compile(functools.partial(hessian_by_forward, problem), dynamic=False)
        with torch.compiler.set_stance("default"):
            return self._compiled(*arguments)


def sweep_products(problem: OpenProblem, vectors: Vectors, of: Matrix, *, what: str = "products") -> dict[str, Tensor]:
    """Return products for vectors over some parameters, restricted to these parameters; one sweep over the data."""
    return Products(problem, list(vectors)).multiply(vectors, of, what=what)


def retained(problem: OpenProblem, batch: Batch) -> RetainedGraph:
    """Return one batch's graph over all chosen parameters, by the path that was found trustworthy."""
    path = path_of(problem)
    if path.differences:
        return Differences(problem, batch, problem.parameters, path)
    return RetainedGraph(problem, batch, problem.parameters)

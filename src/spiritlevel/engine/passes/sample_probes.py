"""The Hessian's traces by probes of every sample's own: q_n = v_nᵀ H_n v_n along a direction v_n of its own.

A probe of the parameters that all samples share has an error that does not fall with their number; signs at curved
operations deep in a network let through what cancels between them.  Here each sample moves along a direction of its
own, layer by layer (``MovedLayers``), and its loss is differentiated twice by the steps.  With one step for each
parameter p the second derivatives, summed over the other parameters, are v_pᵀ(H_n v)_p, whose mean over directions is
the trace of the parameter's block.  This is H itself: neither the Gauss–Newton part nor its sketch enters.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from spiritlevel.engine.estimators.probes import normal_like
from spiritlevel.engine.layers.directions import SampleDirections
from spiritlevel.engine.operators.memory import samples_that_fit
from spiritlevel.engine.passes.chosen_samples import DrawsInPart
from spiritlevel.engine.passes.graph import look_at
from spiritlevel.engine.passes.moved_layers import MovedLayers, movable_modules
from spiritlevel.engine.passes.remainder import by_layer
from spiritlevel.engine.passes.sample_spread import SampleSpread
from spiritlevel.engine.passes.sampled_form import Independent, Pooled, Running, SampledForm, SpreadOfDraws
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.contents import pick_samples
from spiritlevel.inputs.open_problem import OpenProblem

TRIED, TRIED_OF_LARGE, LARGE = (
    4,
    2,
    1_000_000,
)  # samples that are held against autograd, of networks of so many parameters
# Of the size of what is added up, for a parameter, and of that of all parameters: rounding of second derivatives.
TOLERANCE = {torch.float32: (2e-3, 1e-5), torch.float64: (1e-7, 1e-11)}
# Numbers in the outputs of layers that a CPU moves in one step, and how often a GPU holds such numbers, about.
TOGETHER_NUMBERS, COPIES_OF_OUTPUTS = 4_000_000, 6.0
PROBING = "probing samples' Hessians"  # what a sweep is called
TRIED_DRAW = 1 << 20  # the number of the draw that the check is made with, which no measurement comes to


class SampleProbes(DrawsInPart):
    """Probes of every sample's Hessian over the parameters whose tangents are known, as many as were asked for."""

    what = PROBING
    wants: frozenset[str] = frozenset()
    keeps_entries = False

    def __init__(self, problem: OpenProblem, seed: int) -> None:
        self.problem, self.seed = problem, seed
        self.names: list[str] = []
        self._every = {full: place for place, full in enumerate(problem.parameters)}
        self._agreed: dict[int, list[str]] = {}  # by the signature of a graph
        self.signature = 0  # of the last graph
        self._numbers = 0  # in the outputs that are moved, of a sample
        self._most: int | None = None  # samples that a GPU moves at once
        self.begin_whole()
        self.forget()
        with problem.session():
            batch = next(iter(problem.batches()))
            self.modules = movable_modules(problem, batch)
            covered = {full for one in self.modules for full in one.names.values()}
            self.names = [full for full in problem.parameters if full in covered]
            self.names = self._agreeing(batch)

    @property
    def members(self) -> list[str]:
        """The parameters."""
        return self.names

    def restrict(self, names: list[str]) -> bool:
        """Keep some parameters only; True where that cost draws."""
        if self.names == names:
            return False
        self.names = names
        self.forget()
        return True

    def forget(self) -> None:
        self.draws = self.freedom = 0
        self.sums: dict[str, Pooled] = {}
        self.by_layer: dict[str, Pooled] = {}
        self.network = Pooled()
        self.samples = Running()  # each sample's own trace
        self.spread: SampleSpread | None = None  # of one draw

    # --- which parameters ----------------------------------------------------------------------------------------

    def _agreeing(self, batch: Batch) -> list[str]:
        """Return the parameters whose second derivatives along directions are autograd's own, on a few samples.

        Each sample has its direction there too: rows that were given to another sample than theirs would show.
        """
        count = min(TRIED if self.problem.size <= LARGE else TRIED_OF_LARGE, batch.count)
        places = torch.linspace(0, batch.count - 1, count, device="cpu").long()
        few = Batch.of(pick_samples(batch.content, places), batch.indices[places])
        # What all samples share, as positions, may not bear to be another for each.
        for modules in (self.modules, [one for one in self.modules if one.rows]):
            self.modules = modules
            covered = {full for one in modules for full in one.names.values()}
            try:
                agreed = self._agreeing_on(few, [full for full in self.names if full in covered])
            except (RuntimeError, NotImplementedError) as error:  # or an operation has no second derivative
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                continue
            if agreed:
                return agreed
        return []

    def _agreeing_on(self, few: Batch, names: list[str]) -> list[str]:
        while names:
            moved, losses, _ = self._moved(few, range(TRIED_DRAW, TRIED_DRAW + 1), names, mixed=True)
            if not moved.failed:
                self._numbers = moved.numbers // few.count
                self._most = samples_that_fit(self.problem, COPIES_OF_OUTPUTS * self._numbers)
                agreed = self._confirmed(few, names, moved.directions, self._second(moved, losses))
                if agreed == names:
                    self._agreed[self.signature] = agreed
                return agreed
            names = [full for full in names if full not in moved.failed]
        return []

    def _confirmed(self, few: Batch, names: list[str], directions: SampleDirections, found: Tensor) -> list[str]:
        """Return the parameters for which v_pᵀ(H_n v)_p by products with each sample's Hessian is what was found."""
        tensors = [self.problem.chosen_parameters[full] for full in names]
        outputs = self.problem.outputs(few.content)
        losses = self._mixed(few, outputs)
        own_share, share_of_all = TOLERANCE[self.problem.dtype]
        agree = torch.ones(len(names), dtype=torch.bool, device=found.device)
        for n in range(few.count):
            own = [directions.dense(full, tensor.shape)[n] for full, tensor in zip(names, tensors)]
            slopes = torch.autograd.grad(
                losses[n], tensors, create_graph=True, allow_unused=True, materialize_grads=True
            )
            along = torch.stack([(slope * part).sum() for slope, part in zip(slopes, own)]).sum()
            if along.requires_grad:
                bends = torch.autograd.grad(
                    along, tensors, retain_graph=True, allow_unused=True, materialize_grads=True
                )
            else:
                bends = tuple(torch.zeros_like(tensor) for tensor in tensors)
            products = [(bend.double() * part).flatten() for bend, part in zip(bends, own)]
            expected = torch.stack([product.sum() for product in products])
            sizes = torch.stack([product.abs().sum() for product in products])
            agree &= (found[:, n] - expected).abs() <= own_share * sizes + share_of_all * sizes.sum()
        return [full for full, right in zip(names, agree.tolist()) if right]

    def _mixed(self, few: Batch, outputs: Tensor) -> Tensor:
        """Return a few samples' losses with a random combination of outputs: at interpolation the losses are flat."""
        losses, _ = self.problem.loss.per_sample(outputs, few.content)
        generator = torch.Generator(outputs.device).manual_seed(self.problem.seed)
        weights = normal_like(outputs.detach(), generator) / (outputs.detach().abs().max() + 1)
        return losses + (weights * outputs).reshape(len(losses), -1).sum(1)

    # --- probing -------------------------------------------------------------------------------------------------

    def _moved(
        self, batch: Batch, draws: range, names: list[str], mixed: bool = False
    ) -> tuple[MovedLayers, Tensor, Tensor]:
        """Run a batch, once for every draw, with its layers moved; return the losses, and the samples' weights."""
        indices = batch.indices.to(self.problem.device)
        directions = SampleDirections(self.seed, indices, draws, self._every, self.problem.dtype)
        content = batch.content
        if len(draws) > 1:
            content = pick_samples(content, torch.arange(batch.count, device="cpu").repeat(len(draws)))
        moved = MovedLayers(self.modules, names, directions)
        with moved.moving():
            outputs = self.problem.outputs(content)
        self.signature = look_at(outputs).signature
        if mixed:
            return moved, self._mixed(batch, outputs), outputs
        losses, weights = self.problem.loss.per_sample(outputs, content)
        return moved, losses, weights

    @staticmethod
    def _second(moved: MovedLayers, losses: Tensor) -> Tensor:
        """Return v_pᵀ(H_n v)_p of every parameter and sample, (parameters, samples)."""
        slopes = torch.autograd.grad(losses.sum(), moved.steps, create_graph=True)[0]
        if not slopes.requires_grad:
            return torch.zeros_like(moved.steps).double()
        bends = torch.autograd.grad(slopes.sum(), moved.steps, allow_unused=True, materialize_grads=True)[0]
        return bends.detach().double()

    def more(self, draws: int) -> None:
        """Add draws of every sample, in one sweep; a batch of another kind may cost parameters, and all draws."""
        while self.names and not self._swept(draws):
            self.forget()

    def _swept(self, draws: int) -> bool:
        problem, device = self.problem, self.problem.device
        spread = SampleSpread(self.names)
        count = problem.survey.count if self.chosen is None else len(self.chosen.places)
        totals = torch.zeros(len(self.names), draws, dtype=torch.float64, device=device)
        samples = torch.zeros(draws, count, dtype=torch.float64, device=device)
        names: list[str] | None = None  # of parameters, where a batch is of another kind
        with problem.sweep(PROBING) as group:
            for batch in self._batches(draws):
                spread.begin(batch.count, draws)
                places = self._places(batch)
                for folds, curvatures, losses, weights in self._probed(batch, draws):
                    problem.agrees(batch, losses[: batch.count])
                    names = self._other(batch)
                    if names is not None:
                        break
                    weighted = curvatures * weights[: batch.count].double()
                    spread.add_all("trace", folds, weighted)
                    totals[:, folds] += weighted.sum(2)
                    samples[folds.start : folds.stop, places] = curvatures.sum(0)
                if names is not None:
                    break
                spread.end()
        kept = [own for own in group.meet("parameters of a batch", names) if own is not None]
        if kept:
            self.names = [full for full in self.names if all(full in own for own in kept)]
            return False
        if group.meets:
            own = {"totals": totals, "samples": samples, **spread.sums()}
            found, _ = group.united(own, device=device)
            totals, samples = found["totals"], found["samples"]
            spread.take_over(found)
        self.spent["hessian product"] = self.spent.get("hessian product", 0.0) + self.share * draws
        with problem.adding_up:
            self._take(spread, totals.cpu(), samples.cpu(), draws)
        return True

    def _places(self, batch: Batch) -> Tensor:
        """Return where the samples of a batch stand among those that are probed."""
        places = batch.indices.cpu()
        return places if self.chosen is None else torch.searchsorted(self.chosen.places.cpu(), places)

    def _batches(self, draws: int) -> Iterator[Batch]:
        source = self.problem if self.chosen is None else self.chosen
        for batch in source.batches(PROBING, draws):
            yield from batch.pieces(self._most or batch.count)

    def _probed(self, batch: Batch, draws: int) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Yield which draws, what they found (parameters, draws, samples), the losses and the samples' weights."""
        most = self._most if self._most is not None else TOGETHER_NUMBERS // max(self._numbers, 1)
        together = max(1, most // batch.count)
        for start in range(0, draws, together):
            folds = slice(start, min(start + together, draws))
            moved, losses, weights = self._moved(
                batch, range(self.draws + folds.start, self.draws + folds.stop), self.names
            )
            found = self._second(moved, losses).unflatten(1, (folds.stop - folds.start, batch.count))
            yield folds, found, losses.detach(), weights.detach()

    def _other(self, batch: Batch) -> list[str] | None:
        """Return the parameters that agree on a batch of this kind, looked at once; None where all of them do."""
        signature = self.signature
        if signature not in self._agreed:
            self._agreed[signature] = self._agreeing(batch)
        agreeing = self._agreed[signature]
        return None if agreeing == self.names else [full for full in self.names if full in agreeing]

    def _take(self, spread: SampleSpread, totals: Tensor, samples: Tensor, draws: int) -> None:
        weight = self.problem.survey.total_weight
        spread, totals = spread.scaled(weight), totals / weight
        own, before = draws - 1, self.freedom
        self.spread = spread if self.spread is None else self.spread.pooled(before, spread, own)
        self.freedom += own
        traces, sharers = dict(zip(self.names, totals)), self.spread.sharers("trace")

        def add(pooled: Pooled, fulls: list[str]) -> None:
            variance = spread.variance("trace", dict.fromkeys(fulls, 1.0))
            pooled.add(torch.stack([traces[full] for full in fulls]).sum(0), variance, sharers)

        for full in self.names:
            add(self.sums.setdefault(full, Pooled()), [full])
        for layer, fulls in by_layer(self.problem, self.names).items():
            add(self.by_layer.setdefault(layer, Pooled()), fulls)
        add(self.network, self.names)
        self.samples.add(samples)
        self.draws += draws

    def form(self, kind: str) -> SampledForm:
        """Return the traces of all that was drawn."""
        return SampledForm(
            sums=dict(self.sums),
            parts={},
            layers=dict(self.by_layer),
            network=self.network,
            joint=SpreadOfDraws(self.spread, "trace", self.draws, self.freedom) if self.spread else Independent(),
            probes=self.draws,
        )

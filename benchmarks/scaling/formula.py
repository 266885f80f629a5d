"""Time, traffic and memory of measuring a transformer on many GPUs, as a formula of what measures declare to cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from spiritlevel.analyses.memory_plan import GRADIENT_VECTORS, basis_vectors
from spiritlevel.analyses.planning import WEIGHT
from spiritlevel.engine.operators.memory import GRAPH_FACTOR
from spiritlevel.engine.passes.curvature import SKETCH_DRAWS
from spiritlevel.engine.remainder import FIRST_DRAWS
from spiritlevel.measures.costs import Extent
from spiritlevel.measures.reductions import FLOAT64_BYTES, GRADIENT_SUMS, reduced_numbers, ring_bytes
from spiritlevel.measures.registry import MEASURES

FLOAT32_BYTES = 4
# Operations of a gradient for each parameter and token: two for the way forward, four for the way back.
OPERATIONS = 6
# Bytes of a float32 transformer's graph for each token, layer and unit of its width, attention's own aside.
GRAPH_BYTES = 68
# Times that a product takes every parameter in hand: forward, backward, and both again for the second derivative.
GATHERED = {"forward": 1, "gradient": 2, "column": 1, "product": 4}
LEAST_BASIS = 3  # vectors of a search for one pair where there is no room for more


@dataclass(frozen=True)
class Machines:
    """GPUs and what lies between them; all but the rate are assumed."""

    rate: float  # operations a second of one GPU in full float32, as measured
    memory: float = 141e9  # bytes of one GPU
    inside: float = 450e9  # bytes a second that a GPU sends to others of its machine
    between: float = 50e9  # and to other machines
    together: int = 8  # GPUs in a machine
    latency: float = 30e-6  # seconds of one step of a collective

    def sent(self, size: float, ranks: int) -> float:
        """Return the seconds of sending so many bytes from every rank."""
        return size / (self.inside if ranks <= self.together else self.between)


@dataclass(frozen=True)
class Transformer:
    """A decoder of so many parameters, as wide as such are built."""

    parameters: float

    @property
    def width(self) -> float:
        """Units of a layer's stream: layers grow with the width, 128 units each."""
        return (128 * self.parameters / 12) ** (1 / 3)

    @property
    def layers(self) -> float:
        """Layers, of 12 width² parameters."""
        return self.parameters / 12 / self.width**2


@dataclass(frozen=True)
class Prediction:
    """What measuring takes on every rank."""

    seconds: float
    computing: float  # seconds of it
    adding: float  # seconds of adding up over ranks
    gathering: float  # seconds of gathering sharded parameters
    bytes: float  # held on one GPU
    sharded: bool
    short: bool  # the search's basis is cut to the least

    def fits(self, machines: Machines) -> bool:
        """Whether a GPU holds it."""
        return self.bytes <= machines.memory


def sweeps_of(measure: str) -> dict[str, float]:
    """Return the sweeps of a measure on a smooth network with a large vocabulary, what every report shows included."""
    own = MEASURES[measure]
    found = own.cost.sweeps(Extent(SKETCH_DRAWS, 1, own.settings))
    if "blocks" in own.needs:  # below curved operations the rest is sampled, two columns a draw
        found["column"] = found.get("column", 0.0) + 2 * FIRST_DRAWS
        found["forward"] = found.get("forward", 0.0) + 1
    return {**found, "forward": found.get("forward", 0.0) + 1, "gradient": found.get("gradient", 0.0) + 1}


def passes_of(sweeps: Mapping[str, float]) -> float:
    """Return what sweeps cost in gradient passes."""
    return sum(WEIGHT[kind] * count for kind, count in sweeps.items())


def predicted(
    measure: str, model: Transformer, machines: Machines, *, ranks: int, samples: int, tokens: int
) -> Prediction:
    """Return what a measure takes; parameters are sharded where one GPU cannot hold its part otherwise."""
    whole = _predicted(measure, model, machines, ranks, samples * tokens, tokens, samples=samples, shards=1)
    if whole.fits(machines) or ranks == 1:
        return whole
    return _predicted(measure, model, machines, ranks, samples * tokens, tokens, samples=samples, shards=ranks)


def graph_of(model: Transformer, tokens: int) -> float:
    """Return the bytes of the graph of one sequence, while it is differentiated."""
    return GRAPH_FACTOR * GRAPH_BYTES * model.layers * model.width * tokens


def _predicted(
    measure: str,
    model: Transformer,
    machines: Machines,
    ranks: int,
    all_tokens: int,
    tokens: int,
    *,
    samples: int,
    shards: int,
) -> Prediction:
    own, size, sweeps = MEASURES[measure], model.parameters, sweeps_of(measure)
    busy = min(ranks, samples)  # a rank without a sample waits
    computing = passes_of(sweeps) * OPERATIONS * size * all_tokens / busy / machines.rate
    numbers = reduced_numbers(own, sweeps, samples=samples, parameters=int(size), weights=1) + GRADIENT_SUMS * size
    adding = 0.0
    if ranks > 1:
        steps = sum(sweeps.values()) * math.ceil(math.log2(ranks))
        reduced = FLOAT64_BYTES * numbers / shards  # a shard's sums are among those that hold it
        adding = machines.sent(ring_bytes(reduced, ranks), ranks) + steps * machines.latency
    graph = graph_of(model, tokens)
    held, short = vectors_held(own.needs, size / shards, machines.memory - graph)
    gathering = 0.0
    if shards > 1:
        room = max(machines.memory - held, graph)
        batches = math.ceil(samples / busy / max(1, int(room / 2 / graph)))
        gathers = batches * sum(GATHERED[kind] * count for kind, count in sweeps.items())
        gathering = machines.sent(gathers * FLOAT32_BYTES * size * (ranks - 1) / ranks, ranks)
    return Prediction(computing + adding + gathering, computing, adding, gathering, held + graph, shards > 1, short)


def vectors_held(needs: tuple[str, ...], size: float, room: float) -> tuple[float, bool]:
    """Return the bytes of the parameters and of all vectors of their size, and whether the basis is cut."""
    own = size * (2 * FLOAT32_BYTES + GRADIENT_VECTORS * FLOAT64_BYTES)  # weights, gradients, sums
    if "eigen" not in needs:
        return own, False
    own += size * (FLOAT32_BYTES + FLOAT64_BYTES)  # a product and its sum
    long, least = (size * FLOAT32_BYTES * vectors for vectors in (basis_vectors(26), 2 * LEAST_BASIS))
    return (own + long, False) if own + long <= room else (own + least, True)

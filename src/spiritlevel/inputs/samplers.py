"""Which samples a DataLoader chooses: found out from its sampler, and refused where they are not the same ones always.

The order of samples changes no measure, so a sampler that only shuffles is read in dataset order.  One that chooses is
held to its choice; one that chooses anew in each epoch defines no data to measure on.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from spiritlevel.inputs.process.random_state import seeded
from spiritlevel.values.errors import SpiritlevelError

EPOCHS = 3  # that a sampler nothing is known of must agree in
INSTEAD = (
    "pass the dataset itself for all of its samples (samples=N keeps one fixed draw of them), or "
    "torch.utils.data.Subset(dataset, indices) for some"
)


@dataclass(frozen=True)
class Choice:
    """What a loader reads: the dataset's keys, one a sample or in batches, None for all of them in dataset order."""

    keys: list[Any] | None = None
    batches: list[list[Any]] | None = None
    note: str = ""


def choice_of(loader: DataLoader[Any]) -> Choice:
    """Return what a DataLoader over a map-style dataset reads; one without fixed samples is refused."""
    total = len(loader.dataset) if isinstance(loader.dataset, Sized) else None
    by_batch = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    dropping = ""
    if type(by_batch) is BatchSampler:
        dropping = ", drop_last" if by_batch.drop_last else ""
        sampler: Iterable[Any] = by_batch.sampler
    elif loader.batch_sampler is not None:
        return _own_batches(loader.batch_sampler, total)
    else:
        sampler = by_batch  # batch_size=None: each key gives a whole batch
    chosen, name, note = _keys_of(sampler), type(sampler).__name__, ""
    everything = chosen == list(range(total or 0))
    if not everything:
        note = _choice_in_words(name, chosen, total, f"in dataset order{', nothing dropped' if dropping else ''}")
        if type(sampler) is DistributedSampler:
            note = _share_in_words(sampler, chosen)
    elif name != "SequentialSampler" or dropping:
        note = (
            f"The DataLoader's order ({name}{dropping}) is not used: every sample of its dataset is read once, in "
            "dataset order."
        )
    if loader.batch_sampler is None and type(by_batch) is BatchSampler:  # the dataset takes lists of indices
        size = by_batch.batch_size
        return Choice([chosen[start : start + size] for start in range(0, len(chosen), size)], note=note)
    return Choice(None if everything else chosen, note=note)


def _keys_of(sampler: Any) -> list[Any]:
    """Return the keys a sampler gives in any one epoch, sorted where they are numbers."""
    kind = type(sampler)  # a subclass may choose otherwise
    if kind is SequentialSampler:
        return list(range(len(sampler.data_source)))
    if kind is RandomSampler:
        size = len(sampler.data_source)
        if not sampler.replacement and sampler.num_samples == size:
            return list(range(size))
        how = "with replacement" if sampler.replacement else f"{sampler.num_samples:,} of {size:,}"
        raise _no_fixed_samples("RandomSampler", f"draws samples {how} anew in each epoch")
    if kind is WeightedRandomSampler:
        if not sampler.replacement and sampler.num_samples == len(sampler.weights):
            return list(range(sampler.num_samples))
        raise _no_fixed_samples(
            "WeightedRandomSampler",
            "draws samples by their weights anew in each epoch",
            "; weights belong in the loss, as class_weights or a function that returns (losses, weights)",
        )
    if kind is SubsetRandomSampler:
        return _sorted(list(sampler.indices))
    epochs = _epochs(sampler)
    if any(_counted(epoch) != _counted(epochs[0]) for epoch in epochs):
        raise _no_fixed_samples(kind.__name__, "gives other samples in each epoch")
    return _sorted(epochs[0])


def _own_batches(sampler: Any, total: int | None) -> Choice:
    """Return the batches a batch sampler of the user's own forms; it may have put together what fits together."""
    name = type(sampler).__name__
    epochs = _epochs(sampler)
    if any(_counted(epoch) != _counted(epochs[0]) for epoch in epochs):
        raise _no_fixed_samples(name, "gives other samples in each epoch")
    batches = [_sorted(list(batch)) for batch in epochs[0]]
    with contextlib.suppress(TypeError):  # keys of any type need no order
        batches.sort()
    keys = [key for batch in batches for key in batch]
    if _sorted(keys) == list(range(total or 0)):
        note = f"Every sample of the DataLoader's dataset is read once, in the batches that its {name} forms."
    else:
        note = _choice_in_words(name, keys, total, "in the batches it forms")
    return Choice(batches=batches, note=note)


def _epochs(sampler: Any) -> list[list[Any]]:
    """Return the keys of a few epochs; the sampler and all random states are left as they were."""
    name = type(sampler).__name__
    most = 1000 + 10 * len(sampler) if isinstance(sampler, Sized) and _has_length(sampler) else 10_000_000
    try:
        with seeded(0), _left_as_it_was(sampler):
            epochs = [list(islice(iter(sampler), most + 1)) for _ in range(EPOCHS)]
    except Exception as error:
        words = str(error).splitlines()[0] if str(error) else "no message"
        raise SpiritlevelError(
            f"the DataLoader's {name} could not be read ({type(error).__name__}: {words}); {INSTEAD}"
        ) from error
    if any(len(epoch) > most for epoch in epochs):
        raise _no_fixed_samples(name, "does not end")
    return epochs


def _has_length(sampler: Any) -> bool:
    try:
        return len(sampler) < 10**9
    except Exception:  # Sampler's own __len__ is not implemented
        return False


@contextlib.contextmanager
def _left_as_it_was(sampler: Any) -> Iterator[None]:
    """Put back what iterating may change: counters of epochs, and generators of the sampler's own."""
    inner = [sampler, *(value for value in getattr(sampler, "__dict__", {}).values() if isinstance(value, Sampler))]
    before = [(vars(each), dict(vars(each))) for each in inner if hasattr(each, "__dict__")]
    values = [value for _, known in before for value in known.values()]
    torch_states = [(value, value.get_state()) for value in values if isinstance(value, torch.Generator)]
    numpy_states = [
        (value.bit_generator, value.bit_generator.state) for value in values if isinstance(value, np.random.Generator)
    ]
    python_states = [(value, value.getstate()) for value in values if isinstance(value, random.Random)]
    try:
        yield
    finally:
        for now, known in before:
            now.clear()
            now.update(known)
        for generator, state in torch_states:
            generator.set_state(state)
        for bits, numpy_state in numpy_states:
            bits.state = numpy_state
        for python, python_state in python_states:
            python.setstate(python_state)


def _plain(key: Any) -> Any:
    if isinstance(key, (Tensor, np.integer, np.ndarray)):
        return key.item() if np.ndim(key) == 0 else key.tolist()
    return key


def _sorted(keys: list[Any]) -> list[Any]:
    plain = [_plain(key) for key in keys]
    return sorted(plain) if all(isinstance(key, int) for key in plain) else plain


def _counted(epoch: list[Any]) -> Counter[str]:
    """Count what an epoch reads, in whatever order and batches."""
    found: Counter[str] = Counter()
    for key in map(_plain, epoch):
        found.update(repr(_plain(each)) for each in (key if isinstance(key, list) else [key]))
    return found


def _choice_in_words(name: str, keys: list[Any], total: int | None, how: str) -> str:
    repeated = len(keys) - len({repr(key) for key in keys})
    of = f" of the {total:,} samples of its dataset" if total is not None else " samples"
    more = f" ({repeated:,} of them repetitions)" if repeated else ""
    return f"The DataLoader's {name} chooses {len(keys):,}{of}{more}: these are measured, {how}."


def _share_in_words(sampler: DistributedSampler[Any], keys: list[Any]) -> str:
    assert isinstance(sampler.dataset, Sized)  # a DistributedSampler has taken its length
    total = len(sampler.dataset)
    places = range(sampler.rank, sampler.total_size, sampler.num_replicas)
    padded = sum(place >= total for place in places)
    more = f", {padded:,} of them repeated so that all ranks have equally many" if padded else ""
    return (
        f"The DataLoader's DistributedSampler gives rank {sampler.rank} of {sampler.num_replicas} its share of the "
        f"data: {len(keys):,} of {total:,} samples are measured{more}; pass the dataset itself for all."
    )


def _no_fixed_samples(name: str, what: str, more: str = "") -> SpiritlevelError:
    return SpiritlevelError(
        f"the DataLoader's {name} {what}, so there is no fixed set of samples to measure on; {INSTEAD}{more}"
    )

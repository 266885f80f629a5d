"""Data in the forms people have it, read as batches that can be swept again and again in one fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, default_collate

from spiritlevel.inputs.contents import (
    Content,
    concatenate,
    count_of,
    pick_samples,
    slice_batch,
    tensors_of,
    with_tensors,
)
from spiritlevel.inputs.losses import labels_of
from spiritlevel.inputs.process.random_state import seeded
from spiritlevel.inputs.samplers import Choice, choice_of
from spiritlevel.values.errors import SpiritlevelError, UsageError

# Small enough that a batch of a small network stays in a processor's cache, which is where the time goes.
DEFAULT_BATCH_SIZE = 128


@dataclass(frozen=True)
class Source:
    """Data that can be swept repeatedly: ``read()`` starts a new sweep over the same samples in the same order."""

    read: Callable[[], Iterator[Content]]
    form: str
    resized: Callable[[int], Iterator[Content]] | None = None  # in other batches, where nobody fixed them
    count: int | None = None  # of samples, for data in memory: two sweeps over it cannot differ
    some: Callable[[Tensor], Source] | None = None  # of the samples at some places, where they are in memory
    pick: Callable[[list[int], int], Iterator[Content]] | None = None  # of some samples only, in batches of one size
    drawn_from: int | None = None  # how many samples there were, where ``samples`` chose among them
    indices: Tensor | None = None  # of the samples in the data as given, (N,) from 0; None for all of them in order
    notes: tuple[str, ...] = ()

    def index(self, place: int) -> int:
        """Return the index in the data as given of the sample that is read at a place."""
        return place if self.indices is None or place >= len(self.indices) else int(self.indices[place])

    def indices_of(self, count: int) -> Tensor:
        """Return the index in the data as given of each of the ``count`` samples that are read, (N,)."""
        if self.indices is None or len(self.indices) != count:  # a collate function may leave samples out
            return torch.arange(count)
        return self.indices


def open_source(data: Any, *, batch_size: int | None, samples: int | None, seed: int) -> Source:
    """Return the data as a re-readable source, reduced to a stratified choice of ``samples`` where asked for."""
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise UsageError(f"batch_size must be a positive whole number, not {batch_size!r}")
    if samples is not None and (not isinstance(samples, int) or samples < 1):
        raise UsageError(f"samples must be a positive whole number or None for all, not {samples!r}")
    source = _open(data, batch_size)
    if samples is None:
        return source
    with seeded(seed):  # a random augmentation of the chosen samples follows from the seed too
        return _choose(source, samples, seed, batch_size)


def _open(data: Any, batch_size: int | None) -> Source:
    if isinstance(data, DataLoader):
        return _open_loader(data, batch_size)
    arrays = _as_arrays(data)
    if arrays is not None:
        if count_of(arrays) == 0:
            raise SpiritlevelError("the data is empty: there is no sample to measure on")
        return _in_memory(arrays, "tensors", batch_size)
    if isinstance(data, IterableDataset):
        raise UsageError("an IterableDataset has no fixed batches of its own; wrap it in a DataLoader and pass that")
    if isinstance(data, Dataset) or (
        hasattr(data, "__getitem__") and isinstance(data, Sized) and not isinstance(data, (list, tuple, Mapping, str))
    ):
        return _open_dataset(data, None, Choice(), batch_size or DEFAULT_BATCH_SIZE, "dataset")
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes, Mapping)):
        if iter(data) is data:
            raise UsageError(
                "data is an iterator that can be read only once, and several sweeps are needed; "
                "pass list(data) or an object whose iter() starts anew"
            )
        return Source(lambda: _given_batches(data, batch_size), "batches as given")
    raise UsageError(
        f"data of type {type(data).__name__} is not understood; give (x, y) tensors, a Dataset, a DataLoader, "
        "or a list of (inputs, labels) or dict batches"
    )


def _in_memory(content: Content, form: str, batch_size: int | None, indices: Tensor | None = None) -> Source:
    """Return tensors that are all there, in batches of one size."""

    def some(places: Tensor) -> Source:
        own = places if indices is None else indices[places]
        return _in_memory(pick_samples(content, places), form, batch_size, own)

    return Source(
        lambda: _slices(content, batch_size or DEFAULT_BATCH_SIZE),
        form,
        resized=(lambda size: _slices(content, size)) if batch_size is None else None,
        count=count_of(content),
        some=some,
        indices=indices,
    )


def held(content: Content) -> Source:
    """Return one batch as data of its own."""
    return _in_memory(content, "one batch", count_of(content))


def _as_arrays(data: Any) -> Content | None:
    """Return in-memory tensors as one big batch, or None where the data is something else."""
    if isinstance(data, Mapping):
        content = with_tensors(data)
        return content if tensors_of(content) else None
    # A list of two tensors is (x, y) too; a list of batches holds tuples or dicts.
    if not isinstance(data, (tuple, list)) or len(data) < 2 or not any(map(_is_array, data)):
        return None
    content = tuple(with_tensors(list(data)))
    return content if all(tensors_of(value) for value in content) else None


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype != object)


def _slices(content: Content, size: int) -> Iterator[Content]:
    for start in range(0, count_of(content), size):
        yield slice_batch(content, start, start + size)


def _given_batches(data: Iterable[Any], batch_size: int | None, expected: int | None = None) -> Iterator[Content]:
    for content in _contents(data, expected):
        yield from [content] if batch_size is None else _slices(content, batch_size)


def _contents(batches: Iterable[Any], expected: int | None = None) -> Iterator[Content]:
    """Yield the batches of one sweep; whatever stops it before its end is said in one sentence."""
    read = 0
    try:
        for batch in batches:
            read += 1
            yield _as_content(batch)
    except SpiritlevelError:
        raise
    except Exception as error:
        words = str(error).splitlines()[0] if str(error) else "no message"
        raise SpiritlevelError(
            f"the data could not be read beyond {read:,} batches: {type(error).__name__}: {words}"
        ) from error
    if expected is not None and read < expected:  # to a loop over batches a StopIteration is their end
        raise SpiritlevelError(
            f"the data ended after {read:,} of {expected:,} batches, as if by a StopIteration from a next() in its "
            "__getitem__ or collate_fn, and a part would have passed for the whole; let it give every sample it counts"
        )


def _as_content(batch: Any) -> Content:
    content = _as_arrays(batch)
    if content is not None:
        return content
    if isinstance(batch, Mapping):
        return dict(batch)
    if hasattr(batch, "items") and hasattr(batch, "keys"):  # Hugging Face's BatchEncoding
        return with_tensors(dict(batch.items()))
    if isinstance(batch, (tuple, list)) and batch:
        content = tuple(with_tensors(list(batch)))
        if tensors_of(content):
            return content
    raise SpiritlevelError(
        f"a batch of type {type(batch).__name__} is not understood; "
        "each batch must be (inputs, labels) or a dict of tensors"
    )


def _open_loader(loader: DataLoader[Any], batch_size: int | None) -> Source:
    if isinstance(loader.dataset, IterableDataset):
        notes: tuple[str, ...] = ()
        stream = loader
        if loader.drop_last:
            stream = _like(loader, loader.dataset, batch_size=loader.batch_size)
            notes = ("The DataLoader's drop_last is not used: every sample of its stream is read.",)
        return Source(
            lambda: _given_batches(stream, batch_size), "DataLoader over a stream, in its own order", notes=notes
        )
    if type(loader).__iter__ is not DataLoader.__iter__:  # what it makes of its dataset only it can tell
        return Source(lambda: _given_batches(loader, batch_size), "batches as given")
    choice = choice_of(loader)
    if loader.batch_sampler is None:  # batch_size=None: each item of the dataset is a batch
        again = _like(loader, loader.dataset, batch_size=None, sampler=choice.keys)
        return Source(
            lambda: _given_batches(again, batch_size, len(again)),
            "DataLoader of whole batches",
            indices=_indices(choice.keys) if type(loader.sampler) is BatchSampler else None,  # else a key is a batch's
            notes=_said(choice),
        )
    size = batch_size or loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or DEFAULT_BATCH_SIZE
    if choice.batches is not None:
        batches = _like(loader, loader.dataset, batch_sampler=choice.batches)
        return Source(
            lambda: _given_batches(batches, batch_size, len(batches)),
            "DataLoader, in its own batches",
            indices=_indices(chain.from_iterable(choice.batches)),
            notes=_said(choice),
        )
    return _open_dataset(loader.dataset, loader, choice, size, "DataLoader, read in dataset order")


def _open_dataset(dataset: Any, loader: DataLoader[Any] | None, choice: Choice, size: int, form: str) -> Source:
    keys = choice.keys
    if (len(dataset) if keys is None else len(keys)) == 0:
        raise SpiritlevelError("the data is empty: there is no sample to measure on")

    def read() -> Iterator[Content]:
        batches = _like(loader, dataset, batch_size=size, sampler=keys)
        return _contents(batches, len(batches))

    def pick(places: list[int], size: int) -> Iterator[Content]:
        some = places if keys is None else [keys[place] for place in places]
        batches = _like(loader, dataset, batch_size=size, sampler=some)
        return _contents(batches, len(batches))

    return Source(read, form, pick=pick, indices=_indices(keys), notes=_said(choice))


def _indices(keys: Iterable[Any] | None) -> Tensor | None:
    """Return the keys of samples as their indices; keys of another kind have only the order they are read in."""
    if keys is None:
        return None
    each = [one for key in keys for one in (key if isinstance(key, list) else [key])]  # some datasets take lists
    return torch.tensor(each) if all(type(one) is int for one in each) else None


def _said(choice: Choice) -> tuple[str, ...]:
    return (choice.note,) if choice.note else ()


def _like(loader: DataLoader[Any] | None, dataset: Any, **how: Any) -> DataLoader[Any]:
    """Return a loader that reads a dataset as told, in order, and collates as the given one would."""
    return DataLoader(
        dataset,
        **how,
        num_workers=loader.num_workers if loader is not None else 0,
        collate_fn=loader.collate_fn if loader is not None else _collate,
        worker_init_fn=loader.worker_init_fn if loader is not None else None,
        generator=torch.Generator().manual_seed(0),  # leaves the global random state alone
    )


def _collate(items: list[Any]) -> Any:
    return default_collate([with_tensors(item) for item in items])


def _choose(source: Source, samples: int, seed: int, batch_size: int | None) -> Source:
    """Draw ``samples`` once, stratified by class, and keep them: random augmentation becomes one fixed draw."""
    labels, are_classes = _all_labels(source)
    total = len(labels)
    chosen = stratified_choice(labels, samples, seed)
    if source.pick is not None:  # reads only the chosen items
        batches = list(source.pick(chosen.tolist(), batch_size or DEFAULT_BATCH_SIZE))
    else:
        batches = list(_pick(source.read(), chosen))
    kept = concatenate(batches)
    indices = source.indices_of(total)[chosen]
    note = (
        f"Measured on {len(chosen):,} of {total:,} samples, drawn with seed {seed}"
        f"{', each class in its own proportion' if are_classes else ''}."
        if len(chosen) < total
        else f"samples={samples} asks for all {total:,} samples there are."
    )
    if kept is None:  # ragged batches cannot be joined; they are kept as they came
        return Source(
            lambda: iter(batches),
            source.form,
            count=len(chosen),
            drawn_from=total,
            indices=indices,
            notes=(*source.notes, note),
        )
    drawn = _in_memory(kept, source.form, batch_size, indices)
    return replace(drawn, drawn_from=total, notes=(*source.notes, note))


def _all_labels(source: Source) -> tuple[np.ndarray, bool]:
    """Return one class label a sample, or zeros where the labels are no classes (then the draw is plain)."""
    parts: list[np.ndarray] = []
    are_classes = True
    for content in source.read():
        count = count_of(content)
        try:
            labels = labels_of(content)
        except UsageError:  # a loss of the user's own may need no labels
            labels = torch.zeros(0)
        one_class = labels.ndim == 1 and len(labels) == count and not labels.is_floating_point()
        are_classes &= one_class
        parts.append(labels.cpu().numpy() if one_class else np.zeros(count, dtype=np.int64))
    if not parts:
        raise SpiritlevelError("the data is empty: there is no sample to measure on")
    return np.concatenate(parts), are_classes


def stratified_choice(labels: np.ndarray, samples: int, seed: int) -> np.ndarray:
    """Return sorted indices of ``samples`` entries with each class in its own proportion (largest remainders)."""
    total = len(labels)
    if samples >= total:
        return np.arange(total)
    generator = np.random.default_rng(seed)
    classes, counts = np.unique(labels, return_counts=True)
    quota = counts * samples / total
    take = np.floor(quota).astype(int)
    # Remainders are ranked with a random tie-break, so that equal classes are not favoured by their order.
    order = np.lexsort((generator.random(len(classes)), -(quota - take)))
    take[order[: samples - take.sum()]] += 1
    chosen = [generator.choice(np.flatnonzero(labels == c), n, replace=False) for c, n in zip(classes, take)]
    return np.sort(np.concatenate(chosen))


def _pick(batches: Iterator[Content], chosen: np.ndarray) -> Iterator[Content]:
    start = 0
    for content in batches:
        count = count_of(content)
        local = torch.from_numpy(chosen[(chosen >= start) & (chosen < start + count)] - start)
        start += count
        if len(local):
            yield pick_samples(content, local)

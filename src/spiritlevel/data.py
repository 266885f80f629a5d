"""Data in the forms people have it, read as batches that can be swept again and again in one fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from spiritlevel.errors import SpiritlevelError, UsageError
from spiritlevel.losses import labels_of
from spiritlevel.random_state import seeded

# Small enough that a batch of a small network stays in a processor's cache, which is where the time goes.
DEFAULT_BATCH_SIZE = 128
Content = Any  # a tuple (inputs, labels, ...) or a dict of keywords and labels; tensors share their first dimension


@dataclass(frozen=True)
class Source:
    """Data that can be swept repeatedly: ``read()`` starts a new sweep over the same samples in the same order."""

    read: Callable[[], Iterator[Content]]
    form: str
    resized: Callable[[int], Iterator[Content]] | None = None  # in other batches, where nobody fixed them
    count: int | None = None  # of samples, for data in memory: two sweeps over it cannot differ
    every: Callable[[int], Source] | None = None  # of every so many samples, where they are in memory
    drawn_from: int | None = None  # how many samples there were, where ``samples`` chose among them
    notes: tuple[str, ...] = ()


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
        return _choose(source, data, samples, seed, batch_size)


def count_of(content: Content) -> int:
    """Return the number of samples in a batch, refusing a batch whose tensors disagree about it."""
    sizes = {len(tensor) for tensor in tensors_of(content) if tensor.ndim > 0}
    if not sizes:
        raise SpiritlevelError(
            "a batch of the data holds no tensors; give batches (inputs, labels) or dicts of tensors"
        )
    if len(sizes) > 1:
        raise SpiritlevelError(
            f"the tensors of one batch have different first dimensions ({', '.join(map(str, sorted(sizes)))}); "
            "inputs and labels need one entry a sample"
        )
    return sizes.pop()


def tensors_of(content: Content) -> list[Tensor]:
    """Return the tensors of a batch, in its own order."""
    values = content.values() if isinstance(content, Mapping) else content
    return [value for value in values if isinstance(value, Tensor)]


def map_tensors(content: Content, function: Callable[[Tensor], Tensor]) -> Content:
    """Return the batch with ``function`` applied to each tensor; everything else is passed on."""
    if isinstance(content, Mapping):
        return {key: function(value) if isinstance(value, Tensor) else value for key, value in content.items()}
    return tuple(function(value) if isinstance(value, Tensor) else value for value in content)


def slice_batch(content: Content, start: int, stop: int) -> Content:
    """Return samples ``start`` to ``stop`` of a batch."""
    return map_tensors(content, lambda tensor: tensor[start:stop] if tensor.ndim else tensor)


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
        return _open_dataset(data, None, batch_size or DEFAULT_BATCH_SIZE, "dataset")
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


def _in_memory(content: Content, form: str, batch_size: int | None) -> Source:
    """Return tensors that are all there, in batches of one size."""

    def every(step: int) -> Source:
        chosen = map_tensors(content, lambda tensor: tensor[::step].contiguous() if tensor.ndim else tensor)
        return _in_memory(chosen, form, batch_size)

    return Source(
        lambda: _slices(content, batch_size or DEFAULT_BATCH_SIZE),
        form,
        resized=(lambda size: _slices(content, size)) if batch_size is None else None,
        count=count_of(content),
        every=every,
    )


def held(content: Content) -> Source:
    """Return one batch as data of its own."""
    return _in_memory(content, "one batch", count_of(content))


def _as_arrays(data: Any) -> Content | None:
    """Return in-memory tensors as one big batch, or None where the data is something else."""

    def as_tensor(value: Any) -> Any:
        return torch.from_numpy(value) if isinstance(value, np.ndarray) and value.dtype != object else value

    if isinstance(data, Mapping):
        content: Content = {key: as_tensor(value) for key, value in data.items()}
        return content if tensors_of(content) else None
    if isinstance(data, (tuple, list)) and len(data) >= 2:
        converted = [as_tensor(value) for value in data]
        # A list of two tensors is (x, y) too; a list of batches holds tuples or dicts.
        if all(isinstance(value, Tensor) for value in converted):
            return tuple(converted)
    return None


def _slices(content: Content, size: int) -> Iterator[Content]:
    for start in range(0, count_of(content), size):
        yield slice_batch(content, start, start + size)


def _given_batches(data: Iterable[Any], batch_size: int | None) -> Iterator[Content]:
    for batch in data:
        content = _as_content(batch)
        if batch_size is None or count_of(content) <= batch_size:
            yield content
        else:
            yield from _slices(content, batch_size)


def _as_content(batch: Any) -> Content:
    content = _as_arrays(batch)
    if content is not None:
        return content
    if isinstance(batch, Mapping):
        return dict(batch)
    if hasattr(batch, "items") and hasattr(batch, "keys"):  # Hugging Face's BatchEncoding
        return dict(batch.items())
    if isinstance(batch, (tuple, list)) and batch and any(isinstance(value, Tensor) for value in batch):
        return tuple(batch)
    raise SpiritlevelError(
        f"a batch of type {type(batch).__name__} is not understood; "
        "each batch must be (inputs, labels) or a dict of tensors"
    )


def _open_loader(loader: DataLoader, batch_size: int | None) -> Source:
    if isinstance(loader.dataset, IterableDataset):
        return Source(lambda: _given_batches(loader, batch_size), "DataLoader over a stream, in its own order")
    if loader.batch_sampler is None:  # batch_size=None: each item of the dataset is a batch
        again = _like(loader, loader.dataset, None)
        return Source(lambda: _given_batches(again, batch_size), "DataLoader of whole batches")
    size = batch_size or loader.batch_size or getattr(loader.batch_sampler, "batch_size", None) or DEFAULT_BATCH_SIZE
    return _open_dataset(loader.dataset, loader, size, "DataLoader, read in dataset order")


def _open_dataset(dataset: Any, loader: DataLoader | None, size: int, form: str) -> Source:
    if len(dataset) == 0:
        raise SpiritlevelError("the data is empty: there is no sample to measure on")
    notes = []
    if loader is not None:
        sampler = type(loader.sampler).__name__
        if sampler != "SequentialSampler" or loader.drop_last:
            notes.append(
                f"The DataLoader's order ({sampler}{', drop_last' if loader.drop_last else ''}) is not used: every "
                "sample of its dataset is read once, in dataset order."
            )

    def read() -> Iterator[Content]:
        return map(_as_content, _like(loader, dataset, size))

    return Source(read, form, notes=tuple(notes))


def _like(loader: DataLoader | None, dataset: Any, batch_size: int | None) -> DataLoader:
    """Return a loader that reads a dataset in order, as the given one would collate it."""
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=False,
        num_workers=loader.num_workers if loader is not None else 0,
        collate_fn=loader.collate_fn if loader is not None else None,
        worker_init_fn=loader.worker_init_fn if loader is not None else None,
        generator=torch.Generator().manual_seed(0),  # leaves the global random state alone
    )


def _choose(source: Source, data: Any, samples: int, seed: int, batch_size: int | None) -> Source:
    """Draw ``samples`` once, stratified by class, and keep them: random augmentation becomes one fixed draw."""
    size = batch_size or DEFAULT_BATCH_SIZE
    labels = _all_labels(source)
    total = len(labels)
    chosen = stratified_choice(labels, samples, seed)
    dataset = data.dataset if isinstance(data, DataLoader) else data
    by_index = source.form.startswith(("dataset", "DataLoader, read"))
    if by_index:  # reads only the chosen items
        loader = data if isinstance(data, DataLoader) else None
        batches = list(_open_dataset(Subset(dataset, chosen.tolist()), loader, size, "").read())
    else:
        batches = list(_pick(source.read(), chosen))
    kept = _concatenate(batches)
    note = (
        f"Measured on {len(chosen):,} of {total:,} samples, drawn with seed {seed}, each class in its own proportion."
        if len(chosen) < total
        else f"samples={samples} asks for all {total:,} samples there are."
    )
    if kept is None:  # ragged batches cannot be joined; they are kept as they came
        return Source(
            lambda: iter(batches), source.form, count=len(chosen), drawn_from=total, notes=(*source.notes, note)
        )
    return replace(_in_memory(kept, source.form, batch_size), drawn_from=total, notes=(*source.notes, note))


def _all_labels(source: Source) -> np.ndarray:
    """Return one class label a sample, or zeros where the labels are no classes (then the draw is plain)."""
    parts: list[np.ndarray] = []
    for content in source.read():
        try:
            labels = labels_of(content)
        except UsageError:  # a loss of the user's own may need no labels
            labels = torch.zeros(0)
        one_class = labels.ndim == 1 and len(labels) == count_of(content) and not labels.is_floating_point()
        parts.append(labels.cpu().numpy() if one_class else np.zeros(count_of(content), dtype=np.int64))
    if not parts:
        raise SpiritlevelError("the data is empty: there is no sample to measure on")
    return np.concatenate(parts)


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
            yield map_tensors(content, lambda tensor, local=local: tensor[local.to(tensor.device)])  # type: ignore[misc]


def _concatenate(batches: list[Content]) -> Content | None:
    first = batches[0]
    if isinstance(first, Mapping):
        keys = list(first)
        if any(list(batch) != keys or len(tensors_of(batch)) != len(keys) for batch in batches):
            return None
        joined = [_join([batch[key] for batch in batches]) for key in keys]
        return None if any(tensor is None for tensor in joined) else dict(zip(keys, joined))
    if any(len(batch) != len(first) or len(tensors_of(batch)) != len(batch) for batch in batches):
        return None
    joined = [_join([batch[i] for batch in batches]) for i in range(len(first))]
    return None if any(tensor is None for tensor in joined) else tuple(joined)


def _join(tensors: list[Tensor]) -> Tensor | None:
    if len({tensor.shape[1:] for tensor in tensors}) > 1:
        return None
    return torch.cat(tensors)

"""The files of ``torch.save`` read without running them: tensors stay descriptions until someone asks for one.

Both layouts are read: the zip archive (torch 1.6 and later: ``data.pkl`` beside one record of bytes per storage) and
the older stream of pickles followed by the storages. Unpickling yields `TensorRecord`s; only the tensors of the wanted
state dict are then fetched, so the optimiser's are never read, and every size, offset and stride is checked against the
bytes that are really there.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch

from spiritlevel.inputs.weights.archive_records import LONGEST_NOTE, ZIP_DAMAGE, ArchiveRecords
from spiritlevel.inputs.weights.bounded_pickle import Budget, end_of
from spiritlevel.inputs.weights.safe_pickle import (
    ArrayRecord,
    InertUnpickler,
    Placeholder,
    StandIn,
    in_words,
    open_regular,
    shown,
)
from spiritlevel.values.errors import SpiritlevelError

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
# Bytes of a torch.Tensor beside its elements, with the name it is found under.
_TENSOR_OBJECT = 1024


@dataclass(frozen=True, eq=False)
class StorageRecord:
    """A run of elements in the file: which storage, of which type, from which element on, how many."""

    key: str
    dtype: torch.dtype
    numel: int
    start: int = 0

    def __setstate__(self, state: object) -> None:
        """Refuse to be altered from inside a file."""


@dataclass(frozen=True, eq=False)
class TensorRecord:
    """A tensor as the file describes it, not yet believed and not yet read."""

    storage: object
    offset: object
    size: object
    stride: object
    dtype: object = None
    metadata: object = None

    def __setstate__(self, state: object) -> None:
        """Drop the state of tensor subclasses, and refuse to be altered from inside a file."""


@dataclass(frozen=True, eq=False)
class UnreadableTensor:
    """A tensor of a kind that is not rebuilt, such as a quantised one."""

    kind: str

    def __setstate__(self, state: object) -> None:
        """Refuse to be altered from inside a file."""


def _tensor(storage: object, offset: object, size: object, stride: object, *rest: object) -> TensorRecord:
    """Stand in for ``_rebuild_tensor`` and ``_rebuild_tensor_v2``: requires_grad and hooks are dropped."""
    return TensorRecord(storage, offset, size, stride, metadata=rest[2] if len(rest) > 2 else None)


def _tensor_of_type(storage: object, offset: object, size: object, stride: object, *rest: object) -> TensorRecord:
    """Stand in for ``_rebuild_tensor_v3``, whose storage is bytes and whose type stands beside it."""
    return TensorRecord(storage, offset, size, stride, rest[2], rest[3] if len(rest) > 3 else None)


def _first(data: object, *rest: object) -> object:
    """Stand in for everything that wraps a tensor: a parameter, or a copy from a device without storages."""
    return data


def _from_type(function: object, kind: object, arguments: object, state: object = None) -> object:
    """Stand in for the rebuilding of a tensor subclass: the tensor inside it."""
    if isinstance(function, StandIn) and function.name.startswith("_rebuild") and isinstance(arguments, tuple):
        return function(*arguments)
    return Placeholder()


def _unreadable(kind: str) -> Callable[..., UnreadableTensor]:
    return lambda *arguments: UnreadableTensor(kind)


def _torch_names() -> dict[tuple[str, str], object]:
    """Return the names by which torch describes tensors, storages and types."""
    rebuilders: dict[str, Callable[..., object]] = {
        "_rebuild_tensor": _tensor,
        "_rebuild_tensor_v2": _tensor,
        "_rebuild_tensor_v3": _tensor_of_type,
        "_rebuild_parameter": _first,
        "_rebuild_parameter_with_state": _first,
        "_rebuild_device_tensor_from_cpu_tensor": _first,
        "_rebuild_device_tensor_from_numpy": _first,
        "_rebuild_xla_tensor": _first,
        "_rebuild_qtensor": _unreadable("quantised"),
        "_rebuild_sparse_tensor": _unreadable("sparse"),
        "_rebuild_sparse_csr_tensor": _unreadable("sparse"),
        "_rebuild_nested_tensor": _unreadable("nested"),
        "_rebuild_meta_tensor_no_storage": _unreadable("meta, without data"),
        "_rebuild_wrapper_subclass": _unreadable("subclass, without data of its own"),
    }
    names: dict[tuple[str, str], object] = {
        ("torch._utils", name): StandIn(name, function) for name, function in rebuilders.items()
    }
    for module in ("torch._tensor", "torch.tensor"):
        for name in ("_rebuild_from_type", "_rebuild_from_type_v2"):
            names[module, name] = StandIn(name, _from_type)
    names["torch", "Size"] = StandIn("Size", tuple)
    # Which device a tensor was on decides nothing here.
    names["torch", "device"] = StandIn("device", lambda *parts: None)
    for module in ("torch.storage", "torch"):
        names[module, "UntypedStorage"] = torch.uint8
    # Types of whole bytes; quantised ones mean nothing without their scales.
    types = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
    types = {name: value for name, value in types.items() if not re.match(r"q|bits|u?int[1-7]\Z", name)}
    names |= {("torch", name): value for name, value in types.items()}
    # A storage class stands for the type of its elements.
    short = {"Double": "float64", "Float": "float32", "Half": "float16", "Long": "int64", "Int": "int32"}
    short |= {"Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "BFloat16": "bfloat16"}
    short |= {"ComplexDouble": "complex128", "ComplexFloat": "complex64"}
    for module in ("torch", "torch.cuda"):
        for name, dtype in short.items():
            names[module, f"{name}Storage"] = types[dtype]
    return names


_TORCH_NAMES = _torch_names()


@dataclass
class TorchFile:
    """The unpickled object of one file, and the way to the bytes of its storages."""

    root: object
    read_bytes: Callable[[str], bytearray]
    budget: Budget
    _storages: dict[str, bytearray] = field(default_factory=dict)

    def tensor(self, name: str, record: TensorRecord | UnreadableTensor | ArrayRecord) -> torch.Tensor:
        """Return the tensor that a record describes, after checking that it lies inside its storage."""
        self.budget.spend(_TENSOR_OBJECT + len(name))
        if isinstance(record, UnreadableTensor):
            raise SpiritlevelError(
                f"{name} is a tensor of a kind that is not read ({record.kind}); save the weights as dense tensors"
            )
        if isinstance(record, ArrayRecord):
            try:
                return torch.as_tensor(record.resolve(self.budget))
            except (SpiritlevelError, TypeError, ValueError, RuntimeError, OverflowError) as error:
                raise SpiritlevelError(f"{name} is an array that is not read: {in_words(error)}") from error
        storage = record.storage
        dtype = storage.dtype if record.dtype is None and isinstance(storage, StorageRecord) else record.dtype
        if not isinstance(storage, StorageRecord) or not isinstance(dtype, torch.dtype):
            raise SpiritlevelError(f"{name} has no storage of a known type, so it cannot be read")
        size, stride, offset = (
            _whole_numbers(record.size),
            _whole_numbers(record.stride),
            _whole_numbers((record.offset,)),
        )
        # torch's operations take at most 64 dimensions.
        if size is None or stride is None or offset is None or len(size) != len(stride) or len(size) > 64:
            raise SpiritlevelError(f"{name} has a shape that is not made of whole numbers, so the file is damaged")
        flat = self._elements(name, storage, dtype)
        last = offset[0] + sum((n - 1) * step for n, step in zip(size, stride)) if 0 not in size else -1
        if last >= len(flat):
            raise SpiritlevelError(
                f"{name} reaches to element {last} of a storage with {len(flat)} elements, so the file is damaged"
            )
        try:
            tensor = torch.zeros(size, dtype=dtype) if 0 in size else _strided(flat, size, stride, offset[0])
        except RuntimeError as error:
            raise SpiritlevelError(f"{name} has the impossible shape {size}, so the file is damaged") from error
        marks = record.metadata if isinstance(record.metadata, dict) else {}
        # Views cost nothing however much they repeat; these two make the elements they show.
        if marks.get("conj") is True:
            tensor = self._own(name, tensor).conj().resolve_conj()
        return self._own(name, tensor).neg() if marks.get("neg") is True else tensor

    def _own(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Charge for as many bytes as a tensor shows, of which an expanded view has more than the file."""
        try:
            self.budget.spend(tensor.numel() * tensor.element_size())
        except SpiritlevelError as error:
            raise SpiritlevelError(f"{name} cannot be read: {error}") from error
        return tensor

    def _elements(self, name: str, storage: StorageRecord, dtype: torch.dtype) -> torch.Tensor:
        """Return a storage as a flat tensor that shares its memory with every other tensor on that storage."""
        if storage.key not in self._storages:
            self._storages[storage.key] = self.read_bytes(storage.key)
        content = self._storages[storage.key]
        first, last = (n * storage.dtype.itemsize for n in (storage.start, storage.start + storage.numel))
        if last > len(content) or first % dtype.itemsize:
            raise SpiritlevelError(
                f"{name} needs {last} bytes where the file has {len(content)}, so the file is damaged"
            )
        last -= (last - first) % dtype.itemsize
        if first == last:
            return torch.zeros(0, dtype=dtype)
        return torch.frombuffer(content, dtype=torch.uint8)[first:last].view(dtype)


def _strided(flat: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> torch.Tensor:
    """Return a view into a flat tensor, which may itself begin somewhere inside its storage."""
    return flat.as_strided(size, stride, flat.storage_offset() + offset)


def _whole_numbers(value: object) -> tuple[int, ...] | None:
    """Return a tuple of integers that are not negative, or None where it is anything else."""
    if isinstance(value, tuple | list) and all(type(item) is int and 0 <= item < 1 << 62 for item in value):
        return tuple(value)
    return None


class _TorchUnpickler(InertUnpickler):
    """Unpickles one object of ``torch.save``, noting the storages that it mentions."""

    def __init__(self, stream: BinaryIO, budget: Budget) -> None:
        super().__init__(stream, _TORCH_NAMES, budget)
        self.storages: dict[str, StorageRecord] = {}

    def persistent_load(self, identifier: object) -> Any:
        """Return the record of a storage, or the class of a module saved whole with its source text."""
        # Six parts at most; a file may name a long tuple as often as it likes.
        kind, *data = identifier[:6] if isinstance(identifier, tuple) and identifier else ("",)
        if isinstance(kind, str) and kind == "module" and data:
            return data[0]
        if kind != "storage" or len(data) < 4:
            raise SpiritlevelError("the file refers to data in a way that torch.save does not")
        dtype, key, _location, numel = data[:4]
        if not isinstance(dtype, torch.dtype) or not isinstance(key, str) or _whole_numbers((numel,)) is None:
            # Quantised and unknown storages: refused when a tensor on them is wanted, harmless before.
            return Placeholder()
        whole = self.storages.setdefault(key, StorageRecord(key, dtype, numel))
        view = data[4] if len(data) > 4 else None
        if view is None:
            return StorageRecord(key, dtype, numel)
        part = _whole_numbers(view[1:4]) if isinstance(view, tuple | list) else None
        if part is None or len(part) != 2 or sum(part) > whole.numel:
            raise SpiritlevelError(f"the file describes a view outside its storage {shown(key)}, so it is damaged")
        return StorageRecord(key, dtype, part[1], part[0])


def _unpickle(stream: BinaryIO, path: Path, budget: Budget) -> tuple[Any, Mapping[str, StorageRecord]]:
    """Return the next object of a stream and the storages that it mentions."""
    try:
        unpickler = _TorchUnpickler(stream, budget)
        return unpickler.load(), unpickler.storages
    except SpiritlevelError as error:
        raise SpiritlevelError(f"{path} cannot be read: {error}") from error
    # A damaged pickle can raise almost anything, from IndexError to MemoryError.
    except Exception as error:
        raise SpiritlevelError(f"{path} is damaged ({in_words(error)}); copy or save it again") from error


@contextmanager
def open_zip(path: Path) -> Iterator[TorchFile]:
    """Open the zip archive that ``torch.save`` writes."""
    with open_regular(path) as stream:
        try:
            archive = zipfile.ZipFile(stream)
        except ZIP_DAMAGE as error:
            raise SpiritlevelError(
                f"{path} is a damaged or truncated archive ({in_words(error)}); copy it again"
            ) from error
        with archive:
            yield _torch_file(ArchiveRecords(archive, path, end_of(stream)))


def _torch_file(records: ArchiveRecords) -> TorchFile:
    """Return the object of an archive, and the way to its storages."""
    path, pickles = records.path, sorted(name for name in records.names if name.split("/", 1)[-1] == "data.pkl")
    if not pickles:
        raise SpiritlevelError(
            f"{path} is an archive, but not one of torch.save; save model.state_dict() with torch.save"
        )
    folder = pickles[0].removesuffix("data.pkl")
    if folder + "constants.pkl" in records.names:
        raise SpiritlevelError(
            f"{path} is a TorchScript program, not weights; load it with torch.jit.load and save its state_dict()"
        )
    records.forget_absent_checksums(folder + "version")
    order = folder + "byteorder"
    if order in records.names and records.read(order, LONGEST_NOTE) != b"little":
        raise SpiritlevelError(f"{path} was saved on a big-endian machine; save it again on a little-endian one")
    budget = Budget(records.size)
    root, _ = _unpickle(io.BytesIO(records.read(folder + "data.pkl")), path, budget)
    return TorchFile(root, lambda key: records.read(f"{folder}data/{key}"), budget)


@contextmanager
def open_stream(path: Path) -> Iterator[TorchFile]:
    """Open the stream of pickles that ``torch.save`` wrote before version 1.6."""
    with open_regular(path) as stream:
        budget = Budget(end_of(stream))
        if not _is_number(_unpickle(stream, path, budget)[0], _LEGACY_MAGIC):
            raise SpiritlevelError(
                f"{path} is a pickle, but not one of torch.save; save model.state_dict() with torch.save"
            )
        protocol, system = _unpickle(stream, path, budget)[0], _unpickle(stream, path, budget)[0]
        if not _is_number(protocol, _LEGACY_PROTOCOL) or not isinstance(system, dict):
            raise SpiritlevelError(
                f"{path} has an unknown layout (protocol {shown(protocol)}); save it again with torch.save"
            )
        if not system.get("little_endian", True):
            raise SpiritlevelError(f"{path} was saved on a big-endian machine; save it again on a little-endian one")
        root, storages = _unpickle(stream, path, budget)
        places = _places_in_stream(stream, path, storages, _unpickle(stream, path, budget)[0])

        def read_bytes(key: str) -> bytearray:
            if key not in places:
                raise SpiritlevelError(
                    f"{path} lacks the storage {shown(key)}, so it is damaged; copy or save it again"
                )
            start, length = places[key]
            stream.seek(start)
            return bytearray(stream.read(length))

        yield TorchFile(root, read_bytes, budget)


def _is_number(value: object, wanted: int) -> bool:
    """Say whether a value of unknown kind is this number, without comparing anything else with it."""
    return isinstance(value, int) and value == wanted


def _places_in_stream(
    stream: BinaryIO, path: Path, storages: Mapping[str, StorageRecord], keys: object
) -> dict[str, tuple[int, int]]:
    """Return where each storage begins and how many bytes it has: an element count, then the elements, one by one."""
    places: dict[str, tuple[int, int]] = {}
    end = end_of(stream)
    for key in keys if isinstance(keys, list) else ():
        count = int.from_bytes(stream.read(8), "little", signed=True)
        if not isinstance(key, str) or key not in storages or count != storages[key].numel:
            raise SpiritlevelError(
                f"{path} has a storage '{shown(key)}' that is not as described; copy or save it again"
            )
        start, length = stream.tell(), count * storages[key].dtype.itemsize
        if start + length > end:
            raise SpiritlevelError(f"{path} ends inside its storage {shown(key)}, so it is truncated; copy it again")
        places[key] = (start, length)
        stream.seek(start + length)
    return places

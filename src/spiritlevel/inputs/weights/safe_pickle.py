"""Reading pickles without running them: known data is rebuilt, every other object becomes an inert placeholder.

A pickle is a small program whose only way out is ``find_class``, which turns a name in the file into something that is
then called. Here no name is ever imported. Data types are answered with the stand-ins of this file, whose arguments are
checked before use, and everything else with a placeholder that keeps what it was given and does nothing with it.

Stand-ins outlive one file, and the BUILD instruction may write into any object that lacks ``__setstate__``: everything
handed to an unpickler therefore defines it, or is immutable.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np

from spiritlevel.inputs.weights.bounded_pickle import BoundedUnpickler, Budget, end_of
from spiritlevel.values.errors import SpiritlevelError

# Booleans, integers, floats, complex numbers and fixed-width strings; never "O", whose elements are objects, nor "V".
_PLAIN_DTYPE = re.compile(r"[<>=|]?(?:[biufc]\d{1,2}|[SU][1-9]\d{0,8}|\?)\Z")


class StandIn:
    """A function that may be called from a pickle in place of the one the file names."""

    __slots__ = ("function", "name")

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        """Call the function in its place."""
        return self.function(*arguments)

    def __setstate__(self, state: object) -> None:
        """Refuse to be altered from inside a file."""


class Entries(dict[Any, Any]):
    """The entries of a dictionary of any kind; attributes that the file sets on it are dropped."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        """Drop attributes such as the version numbers of a state dict."""


class DefaultEntries(Entries):
    """The entries of a ``defaultdict``, without its factory."""

    __slots__ = ()

    def __init__(self, *factory: object) -> None:
        super().__init__()


class Placeholder:
    """An object of a type that is not rebuilt: it keeps the state and items found in the file and runs nothing."""

    __slots__ = ("entries", "state")

    def __new__(cls, *arguments: object, **keywords: object) -> Placeholder:
        """Ignore the construction arguments."""
        made = super().__new__(cls)
        made.state, made.entries = None, None
        return made

    state: object
    entries: dict[Any, Any] | None

    def __setstate__(self, state: object) -> None:
        """Keep the state as it is: many objects may share one, and a copy for each would be without bound."""
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        if self.entries is None:
            self.entries = {}
        self.entries[key] = value

    def __call__(self, *arguments: object, **keywords: object) -> Placeholder:
        """Do nothing: what an unknown object would have returned is unknown too."""
        return Placeholder()

    def append(self, item: object) -> None:
        """Drop an item of a list-like object."""

    def extend(self, items: object) -> None:
        """Drop the items of a list-like object."""

    def add(self, item: object) -> None:
        """Drop an item of a set-like object."""


def placeholder_parts(placeholder: Placeholder) -> dict[str, Any]:
    """Return what a placeholder was given by name: its attributes and its items with string keys.

    Attributes are a dictionary, or a dictionary beside one of slots.
    """
    state = placeholder.state if isinstance(placeholder.state, tuple) else (placeholder.state,)
    parts = (part for part in (*state[:2], placeholder.entries) if isinstance(part, dict))
    return {name: value for part in parts for name, value in part.items() if isinstance(name, str)}


class DtypeRecord:
    """A NumPy data type as the file describes it, not yet believed."""

    __slots__ = ("byte_order", "code")

    def __init__(self, code: object = "", *flags: object) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else code
        self.byte_order = "|"

    def __setstate__(self, state: object) -> None:
        """Keep the byte order, the only part of the state that plain types have."""
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else "|"
        self.byte_order = order.decode("ascii") if isinstance(order, bytes) else order

    def resolve(self) -> np.dtype[Any]:
        """Return the data type, or refuse anything but numbers and fixed-width text."""
        if not isinstance(self.code, str) or not _PLAIN_DTYPE.match(self.code):
            raise SpiritlevelError(
                f"the file holds a NumPy array of type '{shown(self.code)}', and only numbers and text are read"
            )
        plain = np.dtype(self.code)
        return plain.newbyteorder(">") if self.byte_order == ">" else plain


class ArrayRecord:
    """A NumPy array or scalar as the file describes it; `resolve` checks it and builds it."""

    __slots__ = ("axes", "dtype", "order", "raw", "scalar", "shape")

    def __init__(self, *reconstruct_arguments: object) -> None:
        self.describe((), None, None)

    def describe(
        self, shape: object, dtype: object, raw: object, order: object = "C", axes: object = None, scalar: bool = False
    ) -> ArrayRecord:
        """Keep the parts of the array as found."""
        self.shape, self.dtype, self.raw, self.order, self.axes, self.scalar = shape, dtype, raw, order, axes, scalar
        return self

    def __setstate__(self, state: object) -> None:
        """Keep the state of an ndarray: version, shape, dtype, Fortran order, raw bytes."""
        if isinstance(state, tuple) and len(state) == 5:
            self.describe(state[1], state[2], state[4], "F" if state[3] else "C")

    def resolve(self, budget: Budget) -> Any:
        """Return the array, or the scalar, after checking that its bytes are exactly what its shape needs."""
        if not isinstance(self.dtype, DtypeRecord):
            raise SpiritlevelError("the file holds a NumPy array without a data type, so it is damaged")
        dtype = self.dtype.resolve()
        raw = self.raw.encode("latin1") if isinstance(self.raw, str) else self.raw
        if not isinstance(raw, bytes | bytearray):
            raise SpiritlevelError("the file holds a NumPy array of Python objects, and only numbers and text are read")
        shape = (self.shape,) if isinstance(self.shape, int) else self.shape
        # NumPy has at most 64 axes; without a bound on the sizes their product could be a number of megabytes.
        if (
            not isinstance(shape, tuple)
            or len(shape) > 64
            or not all(isinstance(size, int) and 0 <= size < 1 << 62 for size in shape)
        ):
            raise SpiritlevelError("the file holds a NumPy array whose shape is not one, so it is damaged")
        count = 1
        for size in shape:
            count *= size
        if count * dtype.itemsize != len(raw):
            raise SpiritlevelError(
                f"the file holds {len(raw)} bytes for a NumPy array of shape {shape}, so it is damaged"
            )
        # Several arrays may name the same bytes; each gets a copy of its own.
        budget.spend(2 * len(raw))
        flat = np.frombuffer(bytes(raw), dtype) if raw else np.zeros(count, dtype)
        if self.order == "K" and isinstance(self.axes, tuple):
            array = flat.reshape(shape).transpose(self.axes)
        else:
            array = flat.reshape(shape, order="F" if self.order == "F" else "C")
        return array[()] if self.scalar else array.copy(order="K")


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """Stand in for ``_codecs.encode``, by which Python 3 writes bytes into old pickle protocols."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise SpiritlevelError("the file encodes text in a way that no pickle of plain data uses")
    return text.encode("latin1")


def _byte_array(content: object = b"", encoding: object = "latin1") -> bytearray:
    """Stand in for ``bytearray``, which given a number would claim that much memory."""
    return bytearray(content if isinstance(content, bytes | bytearray) else _encode(content, encoding))


def _array_from_buffer(raw: object, dtype: object, shape: object, order: object, axes: object = None) -> ArrayRecord:
    return ArrayRecord().describe(shape, dtype, raw, order, axes)


def _scalar(dtype: object, raw: object = b"") -> ArrayRecord:
    return ArrayRecord().describe((), dtype, raw, scalar=True)


def _data_names() -> dict[tuple[str, str], object]:
    """Return the names that plain data needs, under the modules that Python 2, NumPy 1 and NumPy 2 give them."""
    names: dict[tuple[str, str], object] = {
        ("_codecs", "encode"): StandIn("encode", _encode),
        ("collections", "OrderedDict"): Entries,
        ("numpy", "ndarray"): StandIn("ndarray", ArrayRecord),
        ("numpy", "dtype"): StandIn("dtype", DtypeRecord),
    }
    for module in ("numpy.core", "numpy._core"):
        names[f"{module}.multiarray", "_reconstruct"] = StandIn("_reconstruct", ArrayRecord)
        names[f"{module}.multiarray", "scalar"] = StandIn("scalar", _scalar)
        names[f"{module}.numeric", "_frombuffer"] = StandIn("_frombuffer", _array_from_buffer)
    for module in ("builtins", "__builtin__"):
        for kind in (set, frozenset, list, tuple, dict, complex):
            names[module, kind.__name__] = StandIn(kind.__name__, kind)
        names[module, "bytearray"] = StandIn("bytearray", _byte_array)
        # Python 3 writes empty bytes into old protocols as a call without arguments.
        names[module, "bytes"] = StandIn("bytes", lambda *content: bytes(_byte_array(*content)))
    return names


DATA_NAMES: Mapping[tuple[str, str], object] = _data_names()


def _reconstructor(kind: object, *arguments: object) -> object:
    """Stand in for ``copyreg._reconstructor``, by which protocols 0 and 1 create an object before its state."""
    return kind() if isinstance(kind, type) and issubclass(kind, Placeholder) else Placeholder()


class _DataUnpickler(BoundedUnpickler):
    """Calls stand-ins only after the keys of dictionaries and sets that they would make were checked."""

    def call(self, function: Any, arguments: tuple[Any, ...]) -> object:
        """Call a stand-in or a placeholder."""
        made = function.function if isinstance(function, StandIn) else function
        content = arguments[0] if arguments else ()
        if made is set or made is frozenset:
            members = list(content)
            return made(member for member, allowed in zip(members, self.keys(members)) if allowed)
        if made is dict or made is Entries:
            pairs = [(key, value) for key, value in (content.items() if isinstance(content, dict) else content)]
            allowed = self.keys([key for key, _ in pairs])
            return made(pair for pair, quick in zip(pairs, allowed) if quick)
        return function(*arguments)


class InertUnpickler(_DataUnpickler):
    """Unpickles data and the names it is given; any other name becomes a placeholder."""

    def __init__(self, stream: BinaryIO, names: Mapping[tuple[str, str], object], budget: Budget) -> None:
        super().__init__(stream, budget, "latin1")
        self._names = {
            **DATA_NAMES,
            ("collections", "defaultdict"): DefaultEntries,
            ("collections", "Counter"): Entries,
            ("copyreg", "_reconstructor"): StandIn("_reconstructor", _reconstructor),
            ("copy_reg", "_reconstructor"): StandIn("_reconstructor", _reconstructor),
            **names,
        }

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a name, importing nothing."""
        return self._names.get((module, name), Placeholder)


class _StrictUnpickler(_DataUnpickler):
    """Unpickles arrays, text, bytes, numbers and containers of these, and refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a data type or stop."""
        known = DATA_NAMES.get((module, name))
        if known is None:
            asked = shown(f"{module}.{name}")
            raise SpiritlevelError(
                f"the pickle asks for {asked}, and only arrays, text, numbers and containers of these are read"
            )
        return known

    def refused_key(self, key: object) -> None:
        """Refuse keys that are not short text or numbers, rather than lose an entry of the data."""
        raise SpiritlevelError(f"the pickle has a {type(key).__name__} for a key, and only short text and numbers are")

    def persistent_load(self, identifier: object) -> Any:
        """Refuse references to something outside the file."""
        raise SpiritlevelError("the pickle refers to data outside itself, so it cannot be read as plain data")


def safe_unpickle(file: str | os.PathLike[str] | BinaryIO, encoding: str = "latin1") -> Any:
    """Read a pickle of arrays, text, bytes, numbers, lists, tuples, sets and dictionaries, executing nothing.

    ``encoding`` says how strings of Python 2 are read: ``"latin1"`` as text, ``"bytes"`` as bytes.
    """
    if isinstance(file, str | os.PathLike):
        try:
            with open_regular(file) as stream:
                return safe_unpickle(stream, encoding)
        except OSError as error:
            raise SpiritlevelError(f"{os.fspath(file)} cannot be read: {error.strerror or error}") from error
    try:
        budget = Budget(end_of(file) - file.tell())
        return _plain(_StrictUnpickler(file, budget, encoding).load(), {}, budget)
    except SpiritlevelError:
        raise
    # A damaged pickle can raise almost anything, from IndexError to MemoryError.
    except Exception as error:
        raise SpiritlevelError(f"the file is not a readable pickle ({in_words(error)}); fetch it again") from error


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; a pipe would make the reader wait, a device has no end."""
    # Without O_NONBLOCK the opening of a pipe already waits, for a writer that may never come.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SpiritlevelError(
                f"{os.fspath(path)} is a pipe, a device or a folder, not a regular file; copy what it holds to one"
            )
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _plain(value: Any, done: dict[int, Any], budget: Budget) -> Any:
    """Replace the records in a value by what they describe; shared and circular references stay shared."""
    if isinstance(value, str | bytes | bytearray | int | float | complex) or value is None:
        return value
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, ArrayRecord):
        result = value.resolve(budget)
    elif isinstance(value, list):
        result = done[id(value)] = []
        result.extend(_plain(item, done, budget) for item in value)
    elif isinstance(value, dict):
        result = done[id(value)] = {}
        result.update((_plain(key, done, budget), _plain(item, done, budget)) for key, item in value.items())
    elif isinstance(value, tuple | set | frozenset):
        result = type(value)(_plain(item, done, budget) for item in value)
    else:
        raise SpiritlevelError("the pickle holds a type where data was expected, so it cannot be read as plain data")
    done[id(value)] = result
    return result


def in_words(error: BaseException) -> str:
    """Return an exception's message on one line, or its name where it has none."""
    return shown(" ".join(str(error).split())) or type(error).__name__


def shown(value: object, most: int = 200) -> str:
    """Return a text or number from a file as part of a sentence: on one line, printable, not without end."""
    if not isinstance(value, str):
        return repr(value) if isinstance(value, int) and -(1 << 64) < value < 1 << 64 else f"a {type(value).__name__}"
    cut = value[:most]
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)
    return clean + ("…" if len(value) > most else "")

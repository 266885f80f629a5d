"""Unpickling within bounds: what a file may claim of memory and time is tied to the file's own size.

A pickle is a program, and even one that may call nothing of its choice can ask for more than its reader has: one byte
makes an empty set of 216, three bytes copy a list of millions once more, a tuple that holds another twice, sixty times
over, takes for ever to hash. Honest pickles describe each thing about once. So every instruction is charged for what
it makes, copies are charged by their length, and only keys that are quick to hash become keys.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from spiritlevel.values.errors import SpiritlevelError

# What a file may claim: a multiple of its size, and as much again as any small file may need.
TIMES_ITS_SIZE = 16
ANY_FILE = 64 << 20
# A minute of reading; the largest honest pickles, beside which tensors lie in records of their own, have a tenth.
MOST_INSTRUCTIONS = 1 << 26
_LONGEST_KEY = 1 << 16
# An entry of a dictionary or set, the growth of its table included.
ENTRY = 64
_MEMO_ENTRY = 112

# Bytes that an instruction leaves behind in this reader; those that are not named push something small.
_PUSHED = 8
_COSTS = {
    pickle.MARK: 72,
    pickle.EMPTY_LIST: 64,
    pickle.LIST: 64,
    pickle.EMPTY_DICT: 72,
    pickle.DICT: 72,
    pickle.EMPTY_SET: 224,
    pickle.FROZENSET: 224,
    pickle.TUPLE: 48,
    pickle.TUPLE1: 56,
    pickle.TUPLE2: 64,
    pickle.TUPLE3: 72,
    pickle.REDUCE: 200,
    pickle.NEWOBJ: 200,
    pickle.NEWOBJ_EX: 200,
    pickle.OBJ: 200,
    pickle.INST: 200,
    pickle.BINPERSID: 200,
    # APPEND makes room for several.
    pickle.APPEND: 40,
    pickle.BINUNICODE: 48,
    pickle.SHORT_BINUNICODE: 48,
    pickle.SHORT_BINBYTES: 32,
    pickle.SHORT_BINSTRING: 48,
    pickle.BINFLOAT: 24,
    pickle.LONG1: 32,
    pickle.BYTEARRAY8: 64,
    # The memo is a dictionary too, and its keys are numbers of their own.
    pickle.MEMOIZE: _MEMO_ENTRY,
    pickle.BINPUT: _MEMO_ENTRY,
    pickle.LONG_BINPUT: _MEMO_ENTRY,
    pickle.PUT: _MEMO_ENTRY,
}


class BudgetSpent(SpiritlevelError):
    """A file claims more than its size allows; the message lacks the file's name."""


class Budget:
    """How many bytes reading one file may still claim."""

    def __init__(self, file_bytes: int) -> None:
        self.left = TIMES_ITS_SIZE * file_bytes + ANY_FILE
        self.instructions = MOST_INSTRUCTIONS

    def spend(self, amount: int) -> None:
        """Take from what is left, or refuse the file."""
        self.left -= amount
        if self.left < 0:
            raise BudgetSpent(
                f"the file claims more than {TIMES_ITS_SIZE} times its own size in memory, as no weights or data do"
            )


class _Charged(dict[int, Callable[[Any], None]]):
    """The instructions of an unpickler, each charged to a budget as it is looked up to be carried out."""

    def __init__(self, instructions: dict[int, Callable[[Any], None]], budget: Budget) -> None:
        super().__init__(instructions)
        self._budget = budget
        self._costs = dict.fromkeys(range(256), _PUSHED) | {code[0]: cost for code, cost in _COSTS.items()}

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        budget = self._budget
        budget.instructions -= 1
        budget.left -= self._costs[code]
        if budget.instructions < 0:
            raise SpiritlevelError(
                f"the file has more than {MOST_INSTRUCTIONS:,} instructions, which no weights or data need"
            )
        if budget.left < 0:
            budget.spend(0)
        return super().__getitem__(code)


class BoundedUnpickler(pickle._Unpickler):
    """Python's own unpickler in Python, whose instructions are charged to a budget and whose keys are checked.

    The one in C gives no say over the memo, the keys and the copies.
    """

    # What the unpickler works on, which its type declarations leave out.
    stack: list[Any]
    memo: dict[int, Any]
    append: Callable[[Any], None]
    read: Callable[[int], bytes]
    readline: Callable[[], bytes]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, stream: BinaryIO, budget: Budget, encoding: str) -> None:
        super().__init__(stream, encoding=encoding)
        self.budget = budget
        self.dispatch = _Charged(_INSTRUCTIONS, budget)  # type: ignore[misc]  # the class's own has no budget
        self._stream, self._end = stream, end_of(stream)
        self._file_read, self._file_readline = self._read_in_full, self._read_line

    def _read_in_full(self, length: int) -> bytes:
        # A buffered file makes room for all that is asked for before it looks what is left.
        if length > 1 << 16 and length > self._end - self._stream.tell():
            raise EOFError(f"{length} bytes announced, fewer left")
        content = self._stream.read(length)
        if len(content) < length:
            raise EOFError("it ends too early")
        return content

    def _read_line(self) -> bytes:
        line = self._stream.readline()
        if not line.endswith(b"\n"):
            raise EOFError("it ends too early")
        return line

    def call(self, function: Any, arguments: tuple[Any, ...]) -> object:
        """Call what the file asks for; a reader that lets it make dictionaries or sets checks their keys first."""
        return function(*arguments)

    def _instantiate(self, kind: Any, arguments: list[Any]) -> None:
        self.append(self.call(kind, self.copied(tuple(arguments))))

    def refused_key(self, key: object) -> None:
        """Hear of a key that is not short text or a number; it is left out with its entry, unless this raises."""

    def keys(self, keys: Iterable[Any]) -> list[bool]:
        """Say for each key whether it may become one, and charge for its entry."""
        allowed = [_is_quick(key) for key in keys]
        self.budget.spend(ENTRY * len(allowed))
        for key, quick in zip(keys, allowed):
            if not quick:
                self.refused_key(key)
        return allowed

    def copied(self, arguments: object) -> tuple[Any, ...]:
        """Return the arguments of a call after charging for them and for copies of what they hold."""
        if not isinstance(arguments, tuple):
            raise SpiritlevelError("the file calls something without a tuple of arguments, so it is damaged")
        # Each is looked at below, which takes longer than its copy.
        self.budget.spend(ENTRY * len(arguments))
        for argument in arguments:
            if isinstance(argument, str | bytes | bytearray):
                self.budget.spend(2 * len(argument))
            elif isinstance(argument, list | tuple):
                self.budget.spend(16 * len(argument))
            elif isinstance(argument, dict | set | frozenset):
                self.budget.spend(ENTRY * len(argument))
        return arguments


def end_of(stream: BinaryIO) -> int:
    """Return where a stream ends, and leave it where it stands."""
    here = stream.tell()
    end = stream.seek(0, io.SEEK_END)
    stream.seek(here)
    return end


def _is_quick(key: object) -> bool:
    """Say whether a key hashes in no time and cannot be chosen to collide with others: only text can be long.

    Python hashes integers by their remainder, complex numbers and tuples by sums that anyone can solve for.
    """
    if isinstance(key, str | bytes):
        return len(key) <= _LONGEST_KEY
    if isinstance(key, int):
        return -(1 << 60) < key < 1 << 60
    return key is None or isinstance(key, float)


def _reduce(reader: BoundedUnpickler) -> None:
    arguments = reader.copied(reader.stack.pop())
    reader.stack[-1] = reader.call(reader.stack[-1], arguments)


def _new(reader: BoundedUnpickler) -> None:
    arguments = reader.copied(reader.stack.pop())
    kind = reader.stack.pop()
    reader.append(kind.__new__(kind, *arguments))


def _new_with_keywords(reader: BoundedUnpickler) -> None:
    # Keywords never reach plain data, and placeholders ignore them.
    reader.stack.pop()
    _new(reader)


def _set_items(reader: BoundedUnpickler) -> None:
    items = reader.pop_mark()
    target = reader.stack[-1]
    for index, allowed in enumerate(reader.keys(items[0::2])):
        if allowed:
            target[items[2 * index]] = items[2 * index + 1]


def _set_item(reader: BoundedUnpickler) -> None:
    value, key = reader.stack.pop(), reader.stack.pop()
    if reader.keys((key,))[0]:
        reader.stack[-1][key] = value


def _dict(reader: BoundedUnpickler) -> None:
    items = reader.pop_mark()
    allowed = reader.keys(items[0::2])
    reader.append({items[2 * index]: items[2 * index + 1] for index, quick in enumerate(allowed) if quick})


def _add_items(reader: BoundedUnpickler) -> None:
    items = reader.pop_mark()
    for item, allowed in zip(items, reader.keys(items)):
        if allowed:
            reader.stack[-1].add(item)


def _frozen_set(reader: BoundedUnpickler) -> None:
    items = reader.pop_mark()
    reader.append(frozenset(item for item, allowed in zip(items, reader.keys(items)) if allowed))


def _put(reader: BoundedUnpickler) -> None:
    reader.memo[_memo_index(reader.readline())] = reader.stack[-1]


def _get(reader: BoundedUnpickler) -> None:
    reader.append(reader.memo[_memo_index(reader.readline())])


def _memo_index(line: bytes) -> int:
    index = int(line[:20])
    if not 0 <= index < 1 << 32:
        raise SpiritlevelError(
            f"the file keeps something under number {index}, which no pickle reaches, so it is damaged"
        )
    return index


def _byte_array(reader: BoundedUnpickler) -> None:
    # The usual way makes the array before it has seen that many bytes.
    length = int.from_bytes(reader.read(8), "little")
    reader.append(bytearray(reader.read(length)))


def _refuse_extension(reader: BoundedUnpickler) -> None:
    # Codes stand for real classes that other libraries registered in this process.
    raise SpiritlevelError("the file refers to Python's extension registry, which weights and data never do")


_INSTRUCTIONS: dict[int, Callable[[Any], None]] = {
    **pickle._Unpickler.dispatch,
    pickle.REDUCE[0]: _reduce,
    pickle.NEWOBJ[0]: _new,
    pickle.NEWOBJ_EX[0]: _new_with_keywords,
    pickle.SETITEMS[0]: _set_items,
    pickle.SETITEM[0]: _set_item,
    pickle.DICT[0]: _dict,
    pickle.ADDITEMS[0]: _add_items,
    pickle.FROZENSET[0]: _frozen_set,
    pickle.PUT[0]: _put,
    pickle.GET[0]: _get,
    pickle.BYTEARRAY8[0]: _byte_array,
    pickle.EXT1[0]: _refuse_extension,
    pickle.EXT2[0]: _refuse_extension,
    pickle.EXT4[0]: _refuse_extension,
}

"""Pickles and ``torch.save`` files written instruction by instruction, as no honest pickler would write them."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Mapping

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
SYSTEM = {"protocol_version": PROTOCOL, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}


def text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def number(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + struct.pack("<i", len(raw)) + raw


def put(index: int) -> bytes:
    return b"r" + struct.pack("<I", index)


def get(index: int) -> bytes:
    return b"j" + struct.pack("<I", index)


def several(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def whole_numbers(*values: int) -> bytes:
    return several(*map(number, values))


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def call(module: str, attribute: str, *arguments: bytes) -> bytes:
    return name(module, attribute) + several(*arguments) + b"R"


def entries(*pairs: tuple[bytes, bytes]) -> bytes:
    return b"}(" + b"".join(key + value for key, value in pairs) + b"u"


def weights(**named: bytes) -> bytes:
    return entries(*((text(key), value) for key, value in named.items()))


def storage(kind: str = "Float", elements: int = 1, key: str = "0") -> bytes:
    parts = text("storage"), name("torch", f"{kind}Storage"), text(key), text("cpu"), number(elements)
    return several(*parts) + b"Q"


def tensor(place: bytes, size: bytes, stride: bytes, marks: bytes | None = None, offset: bytes = number(0)) -> bytes:
    hooks = call("collections", "OrderedDict")
    more = () if marks is None else (marks,)
    return call("torch._utils", "_rebuild_tensor_v2", place, offset, size, stride, b"\x89", hooks, *more)


def scalar(kind: str = "Float") -> bytes:
    """An honest tensor of one element, so that the rest of the file decides what happens."""
    return tensor(storage(kind), whole_numbers(1), whole_numbers(1))


def module(parameters: bytes, modules: bytes) -> bytes:
    state = entries((text("_parameters"), parameters), (text("_buffers"), b"}"), (text("_modules"), modules))
    return name("torch.nn", "Module") + b")\x81" + state + b"b"


def doubled(inner: bytes, times: int, first: int = 100, opening: bytes = b"(", closing: bytes = b"t") -> bytes:
    """A value that holds the one before it twice, over and over: small to write, without end to walk."""
    program = inner + put(first)
    for index in range(first, first + times):
        program += b"0" + opening + get(index) * 2 + closing + put(index + 1)
    return program


def zipped(program: bytes, records: Mapping[str, bytes] | None = None, compressed: tuple[str, ...] = ()) -> bytes:
    """A torch.save archive whose pickle is the program given; storage 0 is eight bytes unless given."""
    target = io.BytesIO()
    records = {"data.pkl": program, "version": b"3\n", "byteorder": b"little", "data/0": bytes(8), **(records or {})}
    with zipfile.ZipFile(target, "w") as archive:
        for record, content in records.items():
            how = zipfile.ZIP_DEFLATED if record in compressed else zipfile.ZIP_STORED
            archive.writestr(f"w/{record}", content, how)
    return target.getvalue()


def streamed(program: bytes, keys: bytes | None = None, storages: bytes | None = None, protocol: bytes = b"") -> bytes:
    """The older layout around the program given; storage 0 is one float unless given."""
    head = pickle.dumps(MAGIC, 2) + (protocol or pickle.dumps(PROTOCOL, 2)) + pickle.dumps(SYSTEM, 2)
    named = pickle.dumps(["0"] if b"FloatStorage" in program else [], 2) if keys is None else keys
    content = struct.pack("<q", 1) + bytes(4) if storages is None else storages
    return head + program + named + content

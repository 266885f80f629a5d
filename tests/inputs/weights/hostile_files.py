"""Weight files made to exhaust whoever reads them: a few bytes to a few megabytes that ask for far more."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import safetensors.torch
import torch

from tests.inputs.weights.pickle_assembler import (
    call,
    doubled,
    entries,
    get,
    module,
    name,
    number,
    put,
    scalar,
    several,
    storage,
    streamed,
    tensor,
    text,
    weights,
    whole_numbers,
    zipped,
)

MARKED = entries((text("neg"), b"\x88"))
CONJUGATE = entries((text("conj"), b"\x88"))
BILLION = 1 << 30
# Python's hash of an integer is its remainder by this prime.
HASH_PRIME = (1 << 61) - 1


def _array(shape: bytes, code: bytes, raw: bytes) -> bytes:
    kind = (
        call("numpy", "dtype", code, b"\x89", b"\x88") + several(number(3), text("<"), b"NNNJ\xff\xff\xff\xff") + b"b"
    )
    made = call("numpy.core.multiarray", "_reconstruct", name("numpy", "ndarray"), whole_numbers(0), text("b"))
    return made + several(number(1), shape, kind, b"\x89", raw) + b"b"


def _repeated(first: bytes, step: bytes, times: int) -> bytes:
    """A value kept as number 1, then a step over and over whose results go into one list, beside honest weights."""
    return b"](" + first + put(1) + step * times + b"e0" + weights(w=scalar())


def _module_doubling(parameters: bytes) -> bytes:
    program = module(parameters, b"}") + put(1)
    for index in range(1, 60):
        both = entries((text("a"), get(index)), (text("b"), get(index)))
        program += b"0" + module(b"}", both) + put(index + 1)
    return program


def _own_entries() -> bytes:
    own = entries(*((text(entry), get(1)) for entry in ("state_dict", "model_state_dict", "model", "net")))
    filler = b"(" + b"".join(text(str(n)) + b"N" for n in range(3000)) + b"u"
    return b"}" + put(1) + own[1:] + filler + b"(" + b"".join(text(f"x{n}") + get(1) for n in range(3000)) + b"u"


def _long_names() -> bytes:
    """A chain of modules with long names over a module with many tensors, whose full names are the product of both."""
    program = module(entries(*((text(f"w{n}"), scalar()) for n in range(1000))), b"}") + put(1)
    for index in range(1, 400):
        program += b"0" + module(b"}", entries((text("x" * 900), get(index)))) + put(index + 1)
    return program


def _with_key(key: bytes) -> dict[str, bytes]:
    """Every way by which a value becomes a key of a dictionary or a member of a set."""
    kept = key + put(1)
    after = b"0" + weights(w=scalar())
    return {
        "setitems": kept + b"0}(" + get(1) + b"Nu" + after,
        "setitem": kept + b"0}" + get(1) + b"Ns" + after,
        "dict": kept + b"0(" + get(1) + b"Nd" + after,
        "additems": kept + b"0\x8f(" + get(1) + b"\x90" + after,
        "frozenset": kept + b"0(" + get(1) + b"\x91" + after,
        "set called": kept + b"0" + call("builtins", "set", b"](" + get(1) + b"e") + after,
        "frozenset called": kept + b"0" + call("builtins", "frozenset", several(get(1))) + after,
        "dict called": kept + b"0" + call("builtins", "dict", several(several(get(1), b"N"))) + after,
        "ordered": kept + b"0" + call("collections", "OrderedDict", several(several(get(1), b"N"))) + after,
        "ordered new": kept + b"0" + name("collections", "OrderedDict") + b")\x81" + get(1) + b"Ns" + after,
        "counter": kept + b"0" + call("collections", "Counter", several(several(get(1), b"N"))) + after,
        "object": kept + b"0" + name("some", "Thing") + b")\x81" + get(1) + b"Ns" + after,
    }


def programs() -> dict[str, bytes]:
    """Pickles that are read in both layouts of torch.save."""
    deep = b"N" + b"\x85" * 300_000
    found = {
        "memo index of a billion": b"Nr" + struct.pack("<I", 10**9) + b"0" + weights(w=scalar()),
        "memo index in text": b"Np4000000000\n0" + weights(w=scalar()),
        "memo indices that collide": b"N" + b"".join(b"p%d\n" % (n * HASH_PRIME) for n in range(1, 30_000)),
        "negated view": weights(w=tensor(storage(), whole_numbers(BILLION), whole_numbers(0), MARKED)),
        "conjugated view": weights(
            w=tensor(storage("ComplexFloat"), whole_numbers(BILLION), whole_numbers(0), CONJUGATE)
        ),
        "tensor of many dimensions": weights(
            w=tensor(storage(), b"(" + b"K\x01" * 200_000 + b"t", b"(" + b"K\x00" * 200_000 + b"t")
        ),
        "module doubled sixty times": _module_doubling(weights(w=scalar())),
        "module doubled without tensors": _module_doubling(b"}"),
        "one module under many entries": module(weights(**{f"w{n}": scalar() for n in range(1500)}), b"}")
        + put(1)
        + b"0"
        + entries(*((text(f"e{n}"), get(1)) for n in range(20_000))),
        "entries that hold themselves": _own_entries(),
        "long names times many tensors": _long_names(),
        "a thousand wrappers in a name": weights(**{"net." * 16_000 + "w": scalar(), "net." * 16_000 + "v": scalar()}),
        "an endless name": weights(**{"w" * 3_000_000: scalar()}),
        "a name of two lines": weights(**{"w\nTraceback\x1b[31m\ud800": scalar()}),
        "lists as a device": weights(w=scalar(), d=call("torch", "device", doubled(b"]", 60, 1, b"](", b"e"))),
        "tuples as a shape": weights(w=_array(doubled(b"N", 60), text("f4"), b"C\x04abcd")),
        "lists as a type": weights(w=_array(whole_numbers(1), doubled(b"]", 60, 1, b"](", b"e"), b"C\x04abcd")),
        "a shape of enormous numbers": weights(
            w=_array(number(1 << 800_000) + put(1) + b"0(" + get(1) * 3000 + b"t", text("f4"), b"C\x04abcd")
        ),
        "copies of a list": _repeated(b"](" + b"N" * 20_000 + b"e", call("builtins", "list", get(1)), 20_000),
        "copies of a tuple": _repeated(b"](" + b"N" * 20_000 + b"e", call("torch", "Size", get(1)), 20_000),
        "copies of a text": _repeated(text("w" * 300_000), call("builtins", "bytearray", get(1), text("latin1")), 9000),
        "copies of a state": _repeated(
            entries(*((text(f"s{n}"), b"N") for n in range(5000))),
            name("some", "Thing") + b")\x81" + get(1) + b"b",
            9000,
        ),
        "copies of an array": b"B"
        + struct.pack("<I", 400_000)
        + bytes(400_000)
        + put(1)
        + b"0"
        + weights(**{f"w{n}": _array(whole_numbers(100_000), text("f4"), get(1)) for n in range(8000)}),
        "wide arguments over and over": _repeated(b"(" + b"N" * 300_000 + b"t", name("a", "b") + get(1) + b"R", 60_000),
        "wide references over and over": _repeated(b"(" + b"N" * 300_000 + b"t", get(1) + b"Q", 60_000),
        "enormous number hashed over and over": b"}"
        + number(1 << 4_000_000)
        + put(1)
        + b"Ns("
        + (get(1) + b"N") * 50_000
        + b"u",
        "number keys that collide": b"}(" + b"".join(number(n * HASH_PRIME) + b"N" for n in range(1, 60_000)) + b"u",
        "complex keys that collide": b"}("
        + b"".join(call("builtins", "complex", number(10**12 - 1000003 * n), number(n)) + b"N" for n in range(25_000))
        + b"u",
        "empty sets": b"(" + b"\x8f" * 1_000_000 + b"1" + weights(w=scalar()),
        "empty dictionaries": b"(" + b"}" * 3_000_000 + b"1" + weights(w=scalar()),
        "marks": b"(" * 3_000_000,
        "memo of one thing": b"N" + b"\x94" * 3_000_000 + b"0" + weights(w=scalar()),
        "names by the hundred thousand": b"("
        + b"".join(name("a", f"b{n}") for n in range(100_000))
        + b"1"
        + weights(w=scalar()),
        "objects by the million": b"("
        + name("a", "b")
        + put(1)
        + (get(1) + b")\x81") * 500_000
        + b"1"
        + weights(w=scalar()),
        "text of 2^40": b"\x8d" + struct.pack("<Q", 1 << 40) + b"w",
        "bytes of 2^32": b"B" + struct.pack("<I", (1 << 32) - 1) + b"w",
        "buffer of 2^32": b"\x96" + struct.pack("<Q", 1 << 32) + b"w",
        "number of 2^31 bytes": b"\x8b" + struct.pack("<i", (1 << 31) - 1) + b"w",
        "number of negative length": b"\x8b" + struct.pack("<i", -5) + b"w",
        "frame of 2^33": b"\x80\x04\x95" + struct.pack("<Q", 1 << 33) + b"N.",
        "decimal number without end": b"L" + b"9" * 2_000_000 + b"L\n",
        "float without end": b"F" + b"x" * 3_000_000 + b"\n",
        "deep tuple as a value": deep + put(1) + b"0" + weights(w=scalar(), v=get(1)),
        "deep lists": b"]" * 300_000 + b"a" * 299_999 + put(1) + b"0" + weights(w=scalar(), v=get(1)),
        "deep objects": b"N"
        + (put(1) + b"0" + name("a", "b") + b")\x81" + get(1) + b"b") * 100_000
        + put(2)
        + b"0"
        + weights(w=scalar(), v=get(2)),
        "deep modules": b"}" + put(1) + (b"0" + module(b"}", entries((text("m"), get(1)))) + put(1)) * 5000,
        "types of types": weights(
            w=name("torch._tensor", "_rebuild_from_type_v2")
            + put(1)
            + (b"(" + get(1) + b"N") * 3000
            + b")"
            + b"Nt" * 3000
            + b"R"
        ),
        "storage of 2^61": weights(w=tensor(storage(elements=1 << 61), whole_numbers(1), whole_numbers(1))),
        "extension registry": b"\x82\xf0)R",
        "reference in text": b"Pstorage\n",
        "shape of 2^61 by nothing": weights(w=tensor(storage(), whole_numbers(0, 1 << 61), whole_numbers(1, 1))),
        "stack that is not there": b"0" * 50,
    }
    found |= {f"doubled tuple as key: {way}": program for way, program in _with_key(doubled(b"N", 60)).items()}
    found |= {f"deep tuple as key: {way}": program for way, program in _with_key(deep).items()}
    return {title: program + b"." for title, program in found.items()}


def _overlapping() -> bytes:
    """A thousand storages that are nearly the same bytes: each record holds the headers after it, and the data."""
    keys = [str(n) for n in range(1000)]
    whole, data = whole_numbers(1 << 18), bytes(1 << 20)
    named = {f"w{n}": tensor(storage(elements=1 << 18, key=n), whole, whole_numbers(1)) for n in keys}
    contents = {"w/data.pkl": weights(**named) + b".", "w/version": b"3\n"}
    records = b""
    directory: list[tuple[str, int, int]] = []
    sized = {name: len(content) for name, content in contents.items()}
    sized |= {f"w/data/{key}": sum(37 + len(k) for k in keys[at + 1 :]) + len(data) for at, key in enumerate(keys)}
    for title, size in sized.items():
        directory.append((title, size, len(records)))
        # No checksum is right, which reads as an archive written without them.
        records += struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 33, 1, size, size, len(title), 0) + title.encode()
        records += contents.get(title, b"")
    records += data
    start = len(records)
    for title, size, at in directory:
        fields = 20, 20, 0, 0, 0, 33, 1, size, size, len(title), 0, 0, 0, 0, 0, at
        records += struct.pack("<4s6H3I5H2I", b"PK\1\2", *fields) + title.encode()
    count = len(directory)
    return records + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, len(records) - start, start, 0)


def _claims(content: bytes, record: bytes, at: int, value: bytes) -> bytes:
    """An archive whose directory lies about one record: from byte 20 on about its sizes, at 42 about its place."""
    entry = content.index(record, content.index(b"PK\x01\x02")) - 46
    return content[: entry + at] + value + content[entry + at + len(value) :]


def _twice(content: bytes) -> bytes:
    """The same record name twice, of which two readers may take two different ones."""
    return content.replace(b"w/data/1", b"w/data/0")


def archives() -> dict[str, bytes]:
    """Zip archives whose directory lies, and whose records are compressed or the same bytes many times."""
    honest = weights(w=scalar()) + b"."
    plain = zipped(honest)
    large, medium = bytes(120 << 20), bytes(8 << 20)
    many = {
        f"w{n}": tensor(storage(elements=1 << 18), whole_numbers(1 << 18), whole_numbers(1), MARKED)
        for n in range(2000)
    }
    views = {f"w{n}": tensor(storage(elements=1 << 18), whole_numbers(1 << 18), whole_numbers(1)) for n in range(5000)}
    return {
        "compressed pickle": zipped(b"X" + struct.pack("<I", len(large)) + large + b".", compressed=("data.pkl",)),
        "compressed version": zipped(honest, {"version": large}, compressed=("version",)),
        "compressed byte order": zipped(honest, {"byteorder": medium}, compressed=("byteorder",)),
        "compressed storage": zipped(honest, {"data/0": medium}, compressed=("data/0",)),
        "negated views of one storage": zipped(weights(**many) + b".", {"data/0": bytes(1 << 20)}),
        "views of one storage": zipped(weights(**views) + b".", {"data/0": bytes(1 << 20)}),
        "overlapping records": _overlapping(),
        "size of 4 GB": _claims(plain, b"w/data/0", 24, struct.pack("<I", 0xFFFFFFF0)),
        "both sizes of 4 GB": _claims(plain, b"w/data/0", 20, struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)),
        "place outside the file": _claims(plain, b"w/data/0", 42, struct.pack("<I", 0xFFFFFFF0)),
        "directory of 4 GB": plain[:-10] + struct.pack("<I", 0xFFFFFFF0) + plain[-6:],
        "pickle that says it is empty": _claims(plain, b"w/data.pkl", 20, bytes(8)),
        "record twice": _twice(zipped(honest, {"data/1": bytes(8)})),
        "pickle twice": zipped(honest, {"data.pkx": b"N."}).replace(b"w/data.pkx", b"w/data.pkl"),
        "encrypted": _claims(plain, b"w/data.pkl", 8, b"\x01\x00"),
        "no records": zipped(b""),
    }


def streams() -> dict[str, bytes]:
    """The older layout, where lies are possible about the protocol, the keys and the number of elements."""
    honest = weights(w=scalar()) + b"."
    return {
        "protocol of doubled tuples": streamed(honest, protocol=doubled(b"N", 60) + b"."),
        "keys of doubled tuples": streamed(honest, keys=b"](" + doubled(b"N", 60) + b"e."),
        "keys by the million": streamed(honest, keys=b"](" + text("0") + put(1) + get(1) * 100_000 + b"e."),
        "elements of 2^62": streamed(honest, storages=struct.pack("<q", 1 << 62)),
        "elements below zero": streamed(honest, storages=struct.pack("<q", -1)),
    }


def _header(header: str, data: bytes = b"") -> bytes:
    raw = header.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw + data


def _tensor_entry(shape: object, start: int, end: int, kind: str = "F32") -> dict[str, object]:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, end]}


def safetensors_files() -> dict[str, bytes]:
    """Headers that promise what the file does not have."""
    named = {
        "overlap": {"a": _tensor_entry([1], 0, 4), "b": _tensor_entry([1], 0, 4)},
        "reach outside": {"a": _tensor_entry([1 << 40], 0, 1 << 42)},
        "product that overflows": {"a": _tensor_entry([1 << 32, 1 << 32, 0], 0, 0)},
        "shape of nothing by 2^63": {"a": _tensor_entry([0, (1 << 63) - 1], 0, 0)},
        "shape of nothing by 2^64": {"a": _tensor_entry([0, (1 << 64) - 1], 0, 0)},
        "a thousand dimensions": {"a": _tensor_entry([1] * 1000, 0, 4)},
        "backwards": {"a": _tensor_entry([1], 4, 0)},
        "negative shape": {"a": _tensor_entry([-1], 0, 4)},
        "unknown type": {"a": _tensor_entry([1], 0, 4, "Q9")},
        "types of less than a byte": {"a": _tensor_entry([8], 0, 4, "F4")},
        "name of two lines": {"a\nb\x1b[31m": _tensor_entry([1], 0, 4)},
    }
    found = {title: _header(json.dumps(header), bytes(4)) for title, header in named.items()}
    return found | {
        "header of 2^63": struct.pack("<Q", 1 << 63) + b"{}",
        "header of 90 MB": struct.pack("<Q", 90_000_000) + b"{}",
        "nested header": _header('{"a":' + "[" * 100_000),
        "number without end": _header('{"a":' + "9" * 100_000 + "}"),
        "nothing": _header("{}"),
        "names that are halves of letters": _header(
            '{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)
        ),
    }


def write_folders(place: Path) -> None:
    """Hugging Face folders whose index points elsewhere."""
    outside = place.parent / "outside.safetensors"
    safetensors.torch.save_file({"w": torch.zeros(2)}, outside)
    indices = {
        "above": {"w": "../outside.safetensors"},
        "absolute": {"w": str(outside)},
        "itself": {"w": "model.safetensors.index.json"},
        "folder": {"w": ".."},
        "here": {"w": "."},
        "pipe": {"w": "pipe.safetensors"},
        "linked pipe": {"w": "linked.safetensors"},
        "null": {"w": "a\0b"},
        "half letter": {"w": "\ud800"},
        "no text": {"w": 3},
        "long": {"w": "x" * 100_000},
        "two lines": {"w": "a\nb\x1b[31m"},
        "device": {"w": "/dev/zero"},
    }
    texts = {title: json.dumps({"weight_map": index}) for title, index in indices.items()}
    texts |= {"nested": "[" * 200_000, "number": '{"weight_map": ' + "9" * 100_000 + "}", "not text": "\x00\x01"}
    for title, content in texts.items():
        folder = place / f"folder: {title}"
        folder.mkdir()
        (folder / "model.safetensors.index.json").write_text(content)
        os.mkfifo(folder / "pipe.safetensors")
        (folder / "linked.safetensors").symlink_to("pipe.safetensors")
    only_pipes = place / "folder: of pipes"
    only_pipes.mkdir()
    for file in ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"):
        os.mkfifo(only_pipes / file)


def write_special(place: Path) -> None:
    """What opens like a file and is none."""
    os.mkfifo(place / "pipe.pt")
    os.mkfifo(place / "pipe.safetensors")
    (place / "link to a pipe.pt").symlink_to("pipe.pt")
    (place / "link to itself.pt").symlink_to("link to itself.pt")
    for device in ("zero", "null", "tty", "full"):
        (place / f"device {device}.pt").symlink_to(f"/dev/{device}")


# Large attacks that run every time; the others of their kind are left to the slow tests.
CHOSEN = (
    "deep tuple as key: setitems",
    "empty sets",
    "memo of one thing",
    "wide arguments over and over",
    "deep lists",
)
LARGE = 250_000


def write_small(place: Path) -> None:
    """Write the hostile files that are read in no time, and a few of the others."""
    for title, program in programs().items():
        if len(program) < LARGE or title in CHOSEN:
            (place / f"{title}.pt").write_bytes(zipped(program))
        if len(program) < LARGE:
            (place / f"{title}.old.pt").write_bytes(streamed(program))
    for suffix, group in ((".zip.pt", archives()), (".stream.pt", streams()), (".safetensors", safetensors_files())):
        for title, content in group.items():
            (place / f"{title}{suffix}").write_bytes(content)
    write_folders(place)
    write_special(place)


def write_large(place: Path) -> None:
    """Write the hostile files of megabytes, in both layouts."""
    for title, program in programs().items():
        if len(program) >= LARGE:
            (place / f"{title}.pt").write_bytes(zipped(program))
            (place / f"{title}.old.pt").write_bytes(streamed(program))

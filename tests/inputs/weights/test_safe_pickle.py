"""Plain pickles: data is read, objects are refused, damage is told."""

from __future__ import annotations

import io
import os
import pathlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spiritlevel.inputs.weights.safe_pickle import safe_unpickle
from spiritlevel.values.errors import SpiritlevelError
from tests.inputs.weights.saved_networks import Runs, Settings

PLAIN = {
    "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big": np.arange(3, dtype=">i4"),
    "axes": np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0),
    "text": np.array(["a", "bcd"]),
    "flags": np.array([True, False]),
    "none": np.zeros((0, 3)),
    "labels": [3, 1, 2],
    "name": b"batch 1",
    "tuple": (1, 2.5, "x", None, True, 2 + 1j),
    "set": {1, 2},
    "number": np.float32(1.5),
    "nested": {"a": [{"b": ()}]},
    "buffer": bytearray(b"xyz"),
}


@pytest.mark.parametrize("protocol", range(6))
def test_plain_pickles(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(PLAIN, protocol))
    found = safe_unpickle(path)
    assert found.keys() == PLAIN.keys()
    for name, value in PLAIN.items():
        assert type(found[name]) is type(value)
        np.testing.assert_array_equal(found[name], value)
    assert found["big"].dtype == np.dtype(">i4")
    found["data"][0, 0] = 9
    shared: list[Any] = [1]
    shared.append(shared)
    again = safe_unpickle(io.BytesIO(pickle.dumps(shared, protocol)))
    assert again[1] is again


def test_python_2_pickles_as_cifar_has_them() -> None:
    # What Python 2 wrote for {"labels": [6], "data": numpy.array([[59, 255]], dtype=uint8)}, protocol 2.
    content = (
        b"\x80\x02}q\x01(U\x06labels]K\x06aU\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        b"K\x00\x85U\x01b\x87R(K\x01K\x01K\x02\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x02\x3b\xfftbu."
    )
    for encoding, key in (("latin1", "data"), ("bytes", b"data")):
        found = safe_unpickle(io.BytesIO(content), encoding=encoding)
        np.testing.assert_array_equal(found[key], np.array([[59, 255]], dtype=np.uint8))
        assert found[key].dtype == np.uint8


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (pathlib.PurePosixPath("x"), "asks for pathlib"),
        (Settings(), "asks for .*Settings"),
        (np.array([None]), "'O8'"),
        (np.zeros(2, dtype=[("a", "f4")]), "'V4'"),
        (np.ndarray, "a type where data was expected"),
        (np.dtype("f4"), "a type where data was expected"),
        (Runs(bytearray, 10**15), "encodes text"),
        (Runs(os.getcwd), "asks for posix.getcwd"),
    ],
)
def test_plain_pickles_refuse_objects(value: object, words: str) -> None:
    with pytest.raises(SpiritlevelError, match=words):
        safe_unpickle(io.BytesIO(pickle.dumps(value, 4)))


def test_damaged_plain_pickles(tmp_path: Path) -> None:
    whole = pickle.dumps(PLAIN, 2)
    for length in range(0, len(whole), 37):
        with pytest.raises(SpiritlevelError, match="not a readable pickle"):
            safe_unpickle(io.BytesIO(whole[:length]))
    with pytest.raises(SpiritlevelError, match="cannot be read"):
        safe_unpickle(tmp_path / "absent")
    array = pickle.dumps(np.arange(4, dtype=np.uint8), 2)
    with pytest.raises(SpiritlevelError, match=r"4 bytes for a NumPy array of shape \(9,\)"):
        safe_unpickle(io.BytesIO(array.replace(b"K\x04\x85", b"K\x09\x85")))

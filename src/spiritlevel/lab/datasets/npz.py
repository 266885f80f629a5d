"""A user's own arrays: an .npz file with x and y."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch

from spiritlevel.lab.datasets.labelled import LabelledData
from spiritlevel.values.errors import SpiritlevelError, UsageError

# What zipfile and NumPy raise for a file that is damaged, locked, packed in another way or no .npz at all.
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)


def from_npz(path: str | Path) -> LabelledData:
    """Return the arrays x and y of an .npz file; nothing pickled in it is read.

    Bytes (uint8) are taken for pixels and divided by 255; other floating inputs become float32, integers stay integers
    (tokens). The shape of x is kept.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    LabelledData
        The data, with a note of what was done to it.

    Raises
    ------
    UsageError
        There is no such file, or its arrays are not x and y of the same samples.
    SpiritlevelError
        The file cannot be read.

    Examples
    --------
    >>> import numpy as np
    >>> import spiritlevel as sl
    >>> np.savez("data.npz", x=np.zeros((6, 4), dtype=np.float32), y=np.arange(6) % 3)
    >>> data = sl.datasets.from_npz("data.npz")
    >>> tuple(data.x.shape), data.classes
    ((6, 4), 3)
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"There is no file {file}: give an .npz file with arrays x and y.")
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            missing = [key for key in ("x", "y") if key not in arrays]
            if missing:
                held = ", ".join(sorted(arrays)) or "nothing"
                raise UsageError(
                    f"{file} has no array {missing[0]!r}, it holds {held}: save it with np.savez(F, x=…, y=…)."
                )
            x, y = arrays["x"], arrays["y"]
    except UsageError:
        raise
    except EOFError as error:
        raise SpiritlevelError(f"{file} is empty or cut short: save it again with np.savez(F, x=…, y=…).") from error
    except _UNREADABLE as error:
        raise SpiritlevelError(f"{file} cannot be read as an .npz file of plain arrays ({error}).") from error
    if x.ndim < 2 or len(x) != len(np.atleast_1d(y)) or x.size == 0 or y.size == 0:
        raise UsageError(
            f"{file} holds x of shape {x.shape} and y of shape {y.shape}: both need the same samples first."
        )
    for key, array in (("x", x), ("y", y)):
        if array.dtype.kind not in "fiub":
            raise UsageError(f"{file} holds {key} of type {array.dtype}: give real numbers.")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UsageError(f"{file} holds values in {key} that are not finite: remove those samples.")
    notes: tuple[str, ...] = ()
    if x.dtype == np.uint8:
        inputs = torch.from_numpy(x).float().div_(255.0)
        notes = ("x held bytes, divided by 255",)
    elif x.dtype.kind == "f":
        inputs = torch.from_numpy(x.astype(np.float32))
    else:
        inputs = torch.from_numpy(x.astype(np.int64))
    if y.dtype.kind == "f":
        return LabelledData(inputs, torch.from_numpy(y.astype(np.float32)), file.name, "", 0, notes)
    labels = torch.from_numpy(y.astype(np.int64))
    return LabelledData(inputs, labels, file.name, "", int(labels.max()) + 1, notes)

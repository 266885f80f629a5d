"""Reports of many networks, written before a change that may move no number, and compared after it.

    python -m tests.stored_reports write FOLDER
    python -m tests.stored_reports compare FOLDER

On one machine and with one torch every number must come back: exact ones to 1e-12, sampled ones to the last digit.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import spiritlevel as sl
from tests.helpers import Case
from tests.networks import PIECEWISE_LINEAR, SMOOTH

# Entries of saved results that differ from run to run.
CLOCKS = ("seconds", "free_bytes", "wall", "elapsed", "created", "version", "date", "time", "peak")
REPORTED = (
    "affine", "mlp", "two_classes", "conv1d_reflect", "conv2d_strided_padded", "conv3d", "conv_transposed", "max_pool",
    "avg_pool", "residual", "concatenation", "batch_norm_1d", "batch_norm_2d", "embedding", "prelu", "parallel_twice",
    "functional", "after_layer_norm", "gelu", "tanh", "layer_norm", "attention", "lstm", "weight_norm", "tied", "glu",
    "custom_function",
)  # fmt: skip


def _case(name: str) -> Case:
    return {**PIECEWISE_LINEAR, **SMOOTH}[name]


def _report(name: str, dtype: torch.dtype) -> Any:
    case = _case(name)
    inputs, labels = case.data(12)
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    return sl.measure(sl.Problem(case.model().to(dtype), (inputs, labels), batch_size=5), "all")


def _trained(name: str, seed: int) -> tuple[nn.Module, Any]:
    return _case(name).trained(seed=seed)


def _comparison(name: str) -> Any:
    (one, data), (other, _) = _trained(name, 0), _trained(name, 1)
    return sl.compare({"one": sl.Problem(one, data), "other": sl.Problem(other, data)})


def works() -> dict[str, Callable[[], Any]]:
    """Return every stored result by name."""
    found: dict[str, Callable[[], Any]] = {}
    for number, name in enumerate(REPORTED):
        dtype = torch.float32 if number % 3 == 2 else torch.float64
        found[f"report-{name}"] = lambda name=name, dtype=dtype: _report(name, dtype)
    for name in ("mlp", "gelu", "batch_norm_1d"):
        found[f"comparison-{name}"] = lambda name=name: _comparison(name)
        found[f"audit-{name}"] = lambda name=name: sl.audit(sl.Problem(*_trained(name, 0)))
        found[f"spectrum-{name}"] = lambda name=name: sl.spectrum(sl.Problem(*_trained(name, 0)))
        found[f"eigenvalues-{name}"] = lambda name=name: sl.eigenvalues(sl.Problem(*_trained(name, 0)), 4)
        found[f"samples-{name}"] = lambda name=name: {
            key: value.tolist() for key, value in sl.per_sample(sl.Problem(*_trained(name, 0)), "hessian_trace").items()
        }
    return found


def content(result: Any) -> Any:
    """Return a result as plain JSON, without what a clock says."""
    if hasattr(result, "save"):
        with tempfile.TemporaryDirectory() as folder:
            result.save(Path(folder) / "result.json")
            plain = json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))
    elif hasattr(result, "values") and isinstance(result.values, torch.Tensor):
        plain = {"values": result.values.tolist(), "residuals": result.residuals.tolist()}
    else:
        plain = result
    return _without_clocks(json.loads(json.dumps(plain)))


def _without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_clocks(one) for key, one in value.items() if not any(word in key.lower() for word in CLOCKS)
        }
    return [_without_clocks(one) for one in value] if isinstance(value, list) else value


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Name every place where two contents differ by more than rounding."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            if key not in before or key not in after:
                yield f"{where}.{key}: only {'after' if key in after else 'before'}"
            else:
                yield from differences(before[key], after[key], f"{where}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after)):
            yield from differences(one, other, f"{where}[{number}]")
    elif isinstance(before, float) and isinstance(after, float):
        if not (before == after or (math.isnan(before) and math.isnan(after))):
            gap = abs(before - after) / max(abs(before), abs(after))
            if not gap <= 1e-12:
                yield f"{where}: {before} before, {after} after ({gap:.1e})"
    elif before != after:
        yield f"{where}: {str(before)[:200]!r} before, {str(after)[:200]!r} after"


def main() -> int:
    what, folder = sys.argv[1], Path(sys.argv[2])
    chosen = sys.argv[3:]
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    bad = 0
    for name, make in works().items():
        if chosen and not any(word in name for word in chosen):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = content(make())
        path = folder / f"{name}.json"
        if what == "write":
            path.write_text(json.dumps(found, indent=1), encoding="utf-8")
            print(name, path.stat().st_size, flush=True)
            continue
        gaps = list(differences(json.loads(path.read_text(encoding="utf-8")), json.loads(json.dumps(found))))
        bad += bool(gaps)
        print(name, "as before" if not gaps else f"{len(gaps)} differences", flush=True)
        for gap in gaps[:5]:
            print("   ", gap)
    print(f"{bad} of {len(works())} differ" if what == "compare" else f"{len(works())} written")
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main())

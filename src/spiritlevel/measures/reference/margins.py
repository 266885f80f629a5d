"""Margins and softmax quantities of a small problem, sample by sample as the definitions read."""

from __future__ import annotations

import math

import torch
from torch import nn

from spiritlevel.inputs.losses import labels_of
from spiritlevel.measures.reference.dense import Dense


def aceht(dense: Dense, feature: str = "input", bias: str | bool = "auto") -> float:
    """Return the mean of (‖x‖² + 1)(1 - ‖p‖²); with penultimate features, from the dense Hessian's last block."""
    name, head = [(n, m) for n, m in dense.model.named_modules() if isinstance(m, nn.Linear)][-1]
    with_bias = head.bias is not None if bias == "auto" else bool(bias)
    if feature == "penultimate":
        weight = f"{name}.weight" if name else "weight"
        return float(dense.block(weight).trace()) + with_bias * softmax_impurity(dense)
    return _mean(dense, [(n + with_bias) * g for n, g in zip(_input_norms_squared(dense), _impurities(dense))])


def margin_bound(dense: Dense, bound_norm: str = "sq_plus_one") -> float:
    """Return the mean of the size of the input times 1 - (softmax margin)²."""
    sizes = [{"sq_plus_one": n + 1, "sq": n, "l2": math.sqrt(n)}[bound_norm] for n in _input_norms_squared(dense)]
    return _mean(dense, [size * (1 - m * m) for size, m in zip(sizes, _softmax_margins(dense))])


def output_margin(dense: Dense, statistic: str = "median", abs: bool = False) -> float:
    """Return a statistic of f_y - max of the other outputs."""
    return _statistic(dense, _margins(dense, dense.logits.tolist()), statistic, abs)


def softmax_margin(dense: Dense, statistic: str = "median", abs: bool = False) -> float:
    """Return a statistic of p_y - max of the other probabilities."""
    return _statistic(dense, _softmax_margins(dense), statistic, abs)


def margin_skewness(dense: Dense, form: str = "standardized", abs: bool = False) -> float:
    """Return the third moment of the output margins about their mean."""
    margins = _margins(dense, dense.logits.tolist())
    margins = [math.fabs(m) for m in margins] if abs else margins
    mean = _mean(dense, margins)
    third = _mean(dense, [(m - mean) ** 3 for m in margins])
    return third if form == "central" else third / _mean(dense, [(m - mean) ** 2 for m in margins]) ** 1.5


def softmax_impurity(dense: Dense) -> float:
    """Return the mean of 1 - ‖p‖²."""
    return _mean(dense, _impurities(dense))


def _mean(dense: Dense, values: list[float]) -> float:
    return math.fsum(w * v for w, v in zip(dense.weights.tolist(), values) if w > 0)


def _statistic(dense: Dense, values: list[float], statistic: str, absolute: bool) -> float:
    values = [math.fabs(v) for v in values] if absolute else values
    if statistic == "mean":
        return _mean(dense, values)
    level = {"median": 0.5, "p10": 0.1}[statistic]
    # Walk up the sorted samples; each stands at the middle of its own share, with straight lines between.
    below = 0.0
    previous: tuple[float, float] | None = None
    shares: list[float] = dense.weights.tolist()
    for value, weight in sorted((v, w) for v, w in zip(values, shares) if w > 0):
        middle = below + weight / 2
        if middle >= level:
            if previous is None:
                return value
            at, before = previous
            return before + (value - before) * (level - at) / (middle - at)
        below, previous = below + weight, (middle, value)
    assert previous is not None
    return previous[1]


def _impurities(dense: Dense) -> list[float]:
    return [1 - math.fsum(p * p for p in row) for row in dense.logits.softmax(1).tolist()]


def _softmax_margins(dense: Dense) -> list[float]:
    return _margins(dense, dense.logits.softmax(1).tolist())


def _margins(dense: Dense, scores: list[list[float]]) -> list[float]:
    labels = torch.cat([labels_of(content) for content in dense.batches]).tolist()
    return [
        row[label] - max(value for c, value in enumerate(row) if c != label) if label >= 0 else math.nan
        for row, label in zip(scores, labels)
    ]


def _input_norms_squared(dense: Dense) -> list[float]:
    return [float((content[0] ** 2).sum()) for content in dense.samples]

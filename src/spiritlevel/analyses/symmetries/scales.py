"""Scale variables and the equations between them: what may be multiplied by what, without changing the function.

Every entry of every tensor in the graph carries a *label*, an integer naming its scale s > 0. Operations say which
labels are equal (a residual sum), fixed at 1 (the input of a GELU), or tied by a product (s_c = s_a·s_b). What is left
over is free, and each free scale is one symmetry of the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]
Epsilon = Literal["kept", "ignored"]  # of normalisations
FIXED = 0  # the label of everything whose scale is 1: inputs, constants, what a non-homogeneous operation sees
OUTPUT = 1  # the label of the network's outputs: scale 1, or α under T_α


class Conflict(Exception):
    """The factors asked for contradict the equations; ``classes`` are the ones that cannot move."""

    def __init__(self, classes: Iterable[int]) -> None:
        self.classes = set(classes)
        super().__init__(str(sorted(self.classes)))


@dataclass
class Equations:
    """The equations between scales, collected while walking over the graph."""

    count: int = 2
    equal: list[tuple[Labels, Labels]] = field(default_factory=list)
    products: list[tuple[tuple[int, ...], Labels]] = field(default_factory=list)
    approximate: list[tuple[Labels, str]] = field(default_factory=list)
    read: list[Labels] = field(default_factory=list)

    def fresh(self, *shape: int) -> Labels:
        """Return new labels, free until an equation says otherwise."""
        size = math.prod(shape)
        labels = np.arange(self.count, self.count + size, dtype=np.int64).reshape(shape)
        self.count += size
        return labels

    def same(self, first: Labels, second: Labels | int) -> None:
        """Demand equal scales, entry by entry after broadcasting."""
        a, b = np.broadcast_arrays(first, np.asarray(second, dtype=np.int64))
        self.equal.append((a.ravel(), b.ravel()))

    def product(self, signs: tuple[int, ...], *labels: Labels) -> None:
        """Demand Π s^sign = 1, entry by entry after broadcasting."""
        columns = np.stack([each.ravel() for each in np.broadcast_arrays(*labels)], axis=1)
        self.products.append((signs, np.unique(columns, axis=0)))

    def normalised(self, labels: Labels, epsilon: float | None, name: str) -> None:
        """Say that a normalisation removes these scales: exactly with ε = 0, else they are free but for its ε."""
        self.read.append(labels.ravel())
        if epsilon != 0:
            size = f", ε = {epsilon:g}" if epsilon else ""
            self.approximate.append((labels.ravel(), f"{name} divides by √(variance + ε){size}"))

    def settled(self, epsilon: Epsilon = "kept") -> Classes:
        """Gather labels of equal scale into classes; the ε of normalisations fixes a scale unless it is ignored."""
        pairs = list(self.equal)
        if epsilon == "kept":
            pairs += [(labels, np.full_like(labels, FIXED)) for labels, _ in self.approximate]
        of_label = _components(self.count, pairs)
        rows: list[dict[int, int]] = []
        while True:  # a product of two classes may only say that they are equal, or of one that it is fixed
            rows, pairs_of_classes = _reduced(self.products, of_label)
            if not pairs_of_classes:
                return Classes(of_label, rows)
            merged = np.array(pairs_of_classes, dtype=np.int64)
            of_label = _components(int(of_label.max()) + 1, [(merged[:, 0], merged[:, 1])])[of_label]


@dataclass(frozen=True)
class Classes:
    """Labels gathered into classes of equal scale, and the products that remain between classes."""

    of_label: Labels
    rows: list[dict[int, int]]

    @property
    def fixed(self) -> int:
        """The class whose scale is 1."""
        return int(self.of_label[FIXED])

    @property
    def output(self) -> int:
        """The class of the network's outputs."""
        return int(self.of_label[OUTPUT])

    def movable(self, labels: Labels) -> list[int]:
        """Return the classes among these labels that are neither fixed nor the output's, in order of appearance."""
        classes = dict.fromkeys(self.of_label[labels.ravel()].tolist())
        return [each for each in classes if each not in (self.fixed, self.output)]

    def dependent(self, given: Iterable[int] = ()) -> dict[int, dict[int, Fraction]]:
        """Solve the products: each dependent class as exponents of independent ones; classes given stay independent."""
        keep = {*given, self.fixed, self.output}
        solved: dict[int, dict[int, Fraction]] = {}
        for row in self.rows:
            terms: dict[int, Fraction] = {}
            for each, exponent in row.items():
                for other, power in solved.get(each, {each: Fraction(1)}).items():
                    terms[other] = terms.get(other, Fraction(0)) + exponent * power
            terms = {each: power for each, power in terms.items() if power and each != self.fixed}
            free = [each for each in terms if each not in keep]
            if not terms:
                continue
            if not free:
                solved[-len(solved) - 1] = terms  # a demand on given classes alone, checked when values are known
                continue
            pivot = max(free)
            power = terms.pop(pivot)
            value = {each: -term / power for each, term in terms.items()}
            for target in solved.values():
                if pivot in target:
                    factor = target.pop(pivot)
                    for each, term in value.items():
                        target[each] = target.get(each, Fraction(0)) + factor * term
            solved[pivot] = value
        return solved

    def solve(self, given: Mapping[int, float]) -> NDArray[np.float64]:
        """Return one scale per label: those given, 1 for every other independent class, dependent ones computed."""
        values = {self.fixed: 1.0, self.output: 1.0}
        for each, factor in given.items():
            if values.setdefault(each, factor) != factor and not (each == self.output != self.fixed):
                raise Conflict({each})
            values[each] = factor
        logs: dict[int, float] = {each: math.log(value) for each, value in values.items()}
        for each, terms in self.dependent(given).items():
            log = sum(float(exponent) * logs.get(other, 0.0) for other, exponent in terms.items())
            if each < 0 and abs(log) > 1e-12:
                raise Conflict(terms)
            if each >= 0:
                values[each] = math.exp(log)
        scales = np.ones(int(self.of_label.max()) + 1)
        for each, value in values.items():
            scales[each] = value
        return scales[self.of_label]


def _components(count: int, pairs: list[tuple[Labels, Labels]]) -> Labels:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not pairs:
        return np.arange(count, dtype=np.int64)
    first = np.concatenate([a for a, _ in pairs])
    second = np.concatenate([b for _, b in pairs])
    graph = coo_array((np.ones(len(first), dtype=np.int8), (first, second)), shape=(count, count))
    components = connected_components(graph, directed=False)[1].astype(np.int64)
    # Number the classes by their first label, so that earlier layers come first.
    _, order = np.unique(components, return_index=True)
    numbered: Labels = np.argsort(np.argsort(order))[components]
    return numbered


def _reduced(
    products: list[tuple[tuple[int, ...], Labels]], of_label: Labels
) -> tuple[list[dict[int, int]], list[tuple[int, int]]]:
    fixed = int(of_label[FIXED])
    rows: list[dict[int, int]] = []
    pairs: list[tuple[int, int]] = []
    for signs, columns in products:
        for classes in np.unique(of_label[columns], axis=0).tolist():
            row: dict[int, int] = {}
            for each, sign in zip(classes, signs):
                row[each] = row.get(each, 0) + sign
            row = {each: sign for each, sign in row.items() if sign and each != fixed}
            if len(row) == 1:
                pairs.append((next(iter(row)), fixed))
            elif len(row) == 2 and sum(row.values()) == 0:
                first, second = row
                pairs.append((first, second))
            elif row:
                rows.append(row)
    return rows, pairs

"""What sampling a part of the Hessian gives: means with their errors, by parameter, by layer and in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from spiritlevel.engine.passes.sample_spread import SampleSpread, students_variance


class Sampled(Protocol):
    """A sampled tensor: its mean, its standard error, and two halves that are independent of each other."""

    @property
    def mean(self) -> Tensor:
        """The mean over draws."""

    @property
    def stderr(self) -> Tensor:
        """The standard error of the mean."""

    @property
    def half_means(self) -> Tensor:
        """Means over the even and over the odd draws, (2, *shape)."""


@dataclass
class Running:
    """Mean and standard error of a tensor over probes, with two halves kept apart for cross-fitting."""

    count: int = 0
    total: Tensor = field(default_factory=lambda: torch.zeros(()))
    squares: Tensor = field(default_factory=lambda: torch.zeros(()))  # of the differences to the mean
    halves: Tensor = field(default_factory=lambda: torch.zeros(2))

    def add(self, draws: Tensor) -> None:
        """Take in draws (K, *shape); even ones belong to the first half, odd ones to the second."""
        if self.count == 0:
            self.total = torch.zeros_like(draws[0])
            self.squares = torch.zeros_like(draws[0])
            self.halves = torch.zeros_like(draws[:1]).repeat(2, *([1] * (draws.ndim - 1)))
        own = draws.mean(0)
        if self.count:  # two groups' squares about their own means, and about the common one
            shift = (own - self.mean).square() * (self.count * len(draws) / (self.count + len(draws)))
            self.squares += shift
        self.squares += (draws - own).square().sum(0)
        self.total += draws.sum(0)
        parity = (self.count + torch.arange(len(draws))) % 2
        for half in (0, 1):
            self.halves[half] += draws[parity == half].sum(0)
        self.count += len(draws)

    @property
    def mean(self) -> Tensor:
        """The mean over probes."""
        return self.total / self.count

    @property
    def stderr(self) -> Tensor:
        """The standard error of the mean over probes.

        As large as what it is divided into has a mean square of 1 by: few draws know their own spread badly, and the
        quotient is Student's, whose variance is f/(f - 2) with f degrees of freedom.
        """
        freedom = max(self.count - 1, 1)
        return (self.squares / (freedom - 2 if freedom > 2 else freedom) / self.count).sqrt()

    @property
    def half_means(self) -> Tensor:
        """Means over the even and over the odd probes, (2, *shape): independent of each other."""
        counts = torch.tensor([(self.count + 1) // 2, self.count // 2], dtype=self.halves.dtype)
        return self.halves / counts.reshape(2, *([1] * (self.halves.ndim - 1))).to(self.halves)


@dataclass
class Pooled:
    """A sum over samples whose draws are independent from sample to sample: its error comes from within these."""

    draws: Running = field(default_factory=Running)
    variance: float = 0.0  # of one draw, times the degrees of freedom it was found with
    freedom: int = 0
    sharers: float = 1.0  # samples that share the variance

    def add(self, draws: Tensor, variance: float, sharers: float) -> None:
        """Take in draws (K,), the variance of one, and how many samples share the variance of all."""
        self.draws.add(draws)
        self.variance += variance * (len(draws) - 1)
        self.freedom += len(draws) - 1
        self.sharers = sharers

    @property
    def mean(self) -> Tensor:
        """The mean over draws."""
        return self.draws.mean

    @property
    def stderr(self) -> Tensor:
        """The standard error of the mean, which few samples with few draws know badly."""
        of_mean = self.variance / self.freedom / self.draws.count
        return torch.tensor(students_variance(of_mean, self.sharers * self.freedom) ** 0.5, dtype=torch.float64)

    @property
    def half_means(self) -> Tensor:
        """Means over the even and over the odd draws."""
        return self.draws.half_means


@dataclass(frozen=True)
class Exact:
    """What was found without drawing anything."""

    value: Tensor

    @property
    def mean(self) -> Tensor:
        """The value."""
        return self.value

    @property
    def stderr(self) -> Tensor:
        """Zeros."""
        return torch.zeros_like(self.value)

    @property
    def half_means(self) -> Tensor:
        """The value twice."""
        return torch.stack([self.value, self.value])


class Joint(Protocol):
    """What tells the error of a sum over parameters that share their draws."""

    def variance(self, factors: Mapping[str, float]) -> float:
        """Return the squared standard error of a sum over parameters, each with its factor."""


@dataclass
class KeptDraws:
    """The draws of each parameter's sum."""

    draws: dict[str, list[Tensor]] = field(default_factory=dict)  # parameter -> (K,) of every sweep

    def variance(self, factors: Mapping[str, float]) -> float:
        """The mean's, from how far the sum lies apart over draws."""
        own = [factor * torch.cat(self.draws[full]) for full, factor in factors.items() if full in self.draws]
        if not own:
            return 0.0
        running = Running()
        running.add(torch.stack(own).sum(0))
        return float(running.stderr) ** 2


@dataclass(frozen=True)
class SpreadOfDraws:
    """How far draws lie apart within samples."""

    spread: SampleSpread
    form: str
    draws: int
    freedom: int

    def variance(self, factors: Mapping[str, float]) -> float:
        """The mean's over all draws."""
        freedom = self.spread.sharers(self.form) * self.freedom
        return students_variance(self.spread.variance(self.form, factors) / self.draws, freedom)


@dataclass(frozen=True)
class Independent:
    """Several that have nothing to do with each other; none where nothing was drawn."""

    parts: Sequence[Joint] = ()

    def variance(self, factors: Mapping[str, float]) -> float:
        """The parts' added up."""
        return sum(part.variance(factors) for part in self.parts)


@dataclass(frozen=True)
class Added:
    """The sum of things that were sampled independently of each other."""

    parts: list[Sampled]

    @property
    def mean(self) -> Tensor:
        """The sum of the means."""
        return torch.stack([part.mean.cpu() for part in self.parts]).sum(0)

    @property
    def stderr(self) -> Tensor:
        """The standard error of the sum."""
        return torch.stack([part.stderr.cpu() for part in self.parts]).square().sum(0).sqrt()

    @property
    def half_means(self) -> Tensor:
        """The sums of the halves."""
        return torch.stack([part.half_means.cpu() for part in self.parts]).sum(0)


@dataclass(frozen=True)
class Gathered:
    """Rows of their own, each part's at its places."""

    parts: Sequence[tuple[Tensor, Sampled]]

    def _at(self, rows: list[Tensor]) -> Tensor:
        places = torch.cat([own for own, _ in self.parts])
        joined = torch.cat([row.cpu() for row in rows], -1)
        return joined[..., places.argsort()]

    @property
    def mean(self) -> Tensor:
        """The parts' means."""
        return self._at([part.mean for _, part in self.parts])

    @property
    def stderr(self) -> Tensor:
        """The parts' standard errors."""
        return self._at([part.stderr for _, part in self.parts])

    @property
    def half_means(self) -> Tensor:
        """The parts' halves."""
        return self._at([part.half_means for _, part in self.parts])


@dataclass
class SampledForm:
    """One kind of quadratic form of R over the parameters it was sampled on."""

    sums: Mapping[str, Sampled]  # parameter -> the form summed over the parameter (trace, sum over rows, ...)
    parts: Mapping[str, Sampled]  # parameter -> entry by entry, row by row or column by column
    layers: Mapping[str, Sampled]  # layer -> summed over its parameters
    network: Sampled  # summed over all parameters
    joint: Joint = field(default_factory=Independent)
    probes: int = 0

"""How far draws lie apart within each sample: the standard error of sums whose signs are every sample's own.

The draws of two samples are independent, so the variances add up, and a few draws of many samples tell as much of the
error as many draws would.  Parameters share their draws, so it is covariances that are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def column_form(kind: str) -> str:
    """Return what a kind of form is called where columns are added up."""
    return "trace" if kind == "entries" else kind


def students_variance(variance: float, freedom: float) -> float:
    """Return an estimated variance as large as what it is divided into has a mean square of 1 by.

    The quotient is Student's, whose variance is f/(f - 2) with f degrees of freedom.
    """
    return variance * freedom / max(freedom - 2, 1.0)


class SampleSpread:
    """Covariances over draws between some parameters' forms, summed over samples, by form."""

    def __init__(self, names: Iterable[str]) -> None:
        self.places = {full: place for place, full in enumerate(names)}
        self.covariances: dict[str, Tensor] = {}
        self.squares: dict[str, Tensor] = {}  # of each sample's variance of the sum over all parameters, summed
        self._draws: dict[str, Tensor] = {}  # (parameters, F, B) of the present batch, by form
        self._size = (0, 0)

    def variance(self, form: str, factors: Mapping[str, float]) -> float:
        """Return the variance of a sum over parameters, each with its factor."""
        covariance = self.covariances.get(form)
        if covariance is None:
            return 0.0
        weights = torch.zeros(len(self.places), dtype=torch.float64)
        for full, factor in factors.items():
            if full in self.places:
                weights[self.places[full]] = factor
        return max(float(weights @ covariance @ weights), 0.0)

    def sharers(self, form: str) -> float:
        """Return how many samples share the variance: all of them where theirs are alike, one where it holds it all.

        With so many times a sample's degrees of freedom the variance is known (Welch and Satterthwaite).
        """
        whole = self.variance(form, dict.fromkeys(self.places, 1.0))
        squares = float(self.squares[form]) if form in self.squares else 0.0
        return whole**2 / squares if squares > 0 else 1.0

    def sums(self) -> dict[str, Tensor]:
        """Return by name what adds up over parts of the data."""
        named = {"covariance": self.covariances, "squares": self.squares}
        return {f"{kind} of {form}": values for kind, own in named.items() for form, values in own.items()}

    def take_over(self, sums: Mapping[str, Tensor]) -> None:
        """Hold such sums, among others, instead of one's own."""
        self.covariances, self.squares = (
            {name.removeprefix(kind): values for name, values in sums.items() if name.startswith(kind)}
            for kind in ("covariance of ", "squares of ")
        )

    def scaled(self, total_weight: float) -> SampleSpread:
        """Return the covariances of one draw of means over all samples."""
        found = SampleSpread(self.places)
        found.covariances = {form: value.cpu() / total_weight**2 for form, value in self.covariances.items()}
        found.squares = {form: value.cpu() / total_weight**4 for form, value in self.squares.items()}
        return found

    def pooled(self, own: int, other: SampleSpread, others: int) -> SampleSpread:
        """Return the mean of two that were found with so many degrees of freedom each."""
        found = SampleSpread(self.places)
        found.covariances = {
            form: (own * value + others * other.covariances[form]) / (own + others)
            for form, value in self.covariances.items()
        }
        found.squares = {
            form: (own * value + others * other.squares[form]) / (own + others) for form, value in self.squares.items()
        }
        return found

    def begin(self, count: int, folds: int) -> None:
        """Begin a batch."""
        self._size = (folds, count)

    def add(self, form: str, full: str, folds: slice, place: slice, values: Tensor) -> None:
        """Add some columns' weighted values (F, b) of some draws."""
        self._of(form, values)[self.places[full], folds, place] += values

    def add_all(self, form: str, folds: slice, values: Tensor) -> None:
        """Add those of all parameters and samples, (parameters, F, B)."""
        self._of(form, values)[:, folds] += values

    def _of(self, form: str, like: Tensor) -> Tensor:
        if form not in self._draws:
            size = (len(self.places), *self._size)
            self._draws[form] = torch.zeros(size, dtype=torch.float64, device=like.device)
        return self._draws[form]

    def end(self) -> None:
        """Take the batch's draws together."""
        for form, together in self._draws.items():
            apart = together - together.mean(1, keepdim=True)
            of_samples = apart.sum(0).square().sum(0) / (self._size[0] - 1)
            squares = of_samples.square().sum()
            apart = apart.flatten(1)
            covariance = apart @ apart.T / (self._size[0] - 1)
            if form in self.covariances:
                covariance, squares = self.covariances[form] + covariance, self.squares[form] + squares
            self.covariances[form], self.squares[form] = covariance, squares
        self._draws = {}

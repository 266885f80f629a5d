"""Gaussian noise on weight matrices, with one scale for each row times one for each column (Tsuzuku et al. 2019)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spiritlevel.engine.estimators.balancing import balance
from spiritlevel.engine.passes.perturbed import gaussian_noise
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.weight_matrices import as_matrix, from_matrix

# A line without weight has its optimum at vanishing noise; it gets the noise at which it costs this share of the rest.
VOID_SHARE = 1e-3


@dataclass(frozen=True)
class Scales:
    """The noise of one weight: the standard deviation of entry (g, o, i, k) is σ = exp(rows_go + columns_gi)."""

    parameter: str
    module: nn.Module
    weight: Tensor  # the parameter in float64 on the CPU
    rows: Tensor  # (G, O)
    columns: Tensor  # (G, I)

    @property
    def squared(self) -> Tensor:
        """W² with kernel positions summed, which share their scales, (G, O, I)."""
        return as_matrix(self.module, self.weight.square(), self.weight).sum(-1)

    @property
    def log_deviations(self) -> Tensor:
        """log σ, (G, O, I)."""
        return self.rows[:, :, None] + self.columns[:, None, :]

    def deviations(self) -> Tensor:
        """Return σ in the shape of the weight."""
        kernel = as_matrix(self.module, self.weight, self.weight).shape[-1]
        spread = self.log_deviations.exp()[..., None].expand(*self.log_deviations.shape, kernel)
        return from_matrix(self.module, spread, self.weight)

    def penalty(self) -> float:
        """Return Σ W² / (2σ²): the divergence of the noisy weights from noise of the same size around zero."""
        return float((self.squared * (-2 * self.log_deviations).exp()).sum() / 2)

    def shifted(self, amount: float) -> Scales:
        """Return the same scales with every σ multiplied by exp(amount)."""
        return Scales(self.parameter, self.module, self.weight, self.rows + amount, self.columns)


def weights_of(problem: OpenProblem) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Yield the name, module and value of every chosen weight of two or more dimensions that is not all zero."""
    for full in problem.weights.values():
        module = next(layer.module for layer in problem.layers.values() if full in layer.parameters.values())
        weight = problem.chosen_parameters[full].detach().double().cpu()
        if bool((weight != 0).any()):
            yield full, module, weight


def fitted_scales(parameter: str, module: nn.Module, weight: Tensor) -> Scales:
    """Return scales whose products fit |W|, by means of log |W|: they follow W when its lines are rescaled."""
    size = as_matrix(module, weight.square(), weight).mean(-1).sqrt()
    present = size > 0
    logs = torch.where(present, size, 1.0).log()

    def mean(dim: tuple[int, ...]) -> Tensor:
        counts = present.sum(dim, keepdim=True)
        means = logs.sum(dim, keepdim=True) / counts.clamp(min=1)
        # A line of zeros says nothing of its scale: it takes the others' mean.
        return torch.where(counts > 0, means, logs.sum() / present.sum())

    rows, columns = mean((2,))[:, :, 0], mean((1,)) - mean((1, 2))
    return Scales(parameter, module, weight, rows, columns[:, 0, :])


def balanced_scales(parameter: str, module: nn.Module, weight: Tensor, diagonal: Tensor, lam: float) -> Scales:
    """Return the minimiser of Σ h σ² + W²/(2λσ²), eq. (17), for a diagonal h whose negative entries count as zero."""
    w2 = as_matrix(module, weight.square(), weight).sum(-1)
    h = as_matrix(module, diagonal.clamp(min=0), weight).sum(-1)
    fit = fitted_scales(parameter, module, weight)
    rows, columns = torch.zeros_like(fit.rows), torch.zeros_like(fit.columns)
    for group in range(len(w2)):
        solved = balance(h[group], w2[group])
        # σ² = u v / √(2λ): the balance is for λ = 1/2.
        own_rows, own_columns = solved.u.log() / 2 - 0.25 * math.log(2 * lam), solved.v.log() / 2
        wanted = fit.log_deviations[group]
        if bool(solved.kept.any()):
            wanted = wanted + (own_rows[:, None] + own_columns - wanted)[solved.kept].median()
        cost = VOID_SHARE * solved.value
        _fill(own_rows, own_columns, ~solved.kept.any(1), ~solved.kept.any(0), wanted, w2[group], h[group], cost)
        _fill(
            own_columns,
            own_rows,
            ~solved.kept.any(0),
            torch.zeros(len(own_rows)) > 0,
            wanted.T,
            w2[group].T,
            h[group].T,
            cost,
        )
        rows[group], columns[group] = own_rows, own_columns
    return Scales(parameter, module, weight, rows, columns)


def _fill(
    own: Tensor, across: Tensor, void: Tensor, void_across: Tensor, wanted: Tensor, w2: Tensor, h: Tensor, cost: float
) -> None:
    """Give lines outside the balance their noise, where its optimum is infinite or vanishes.

    A line with weight but no curvature gets the noise its size asks for by the median of the others: infinite noise
    would wake a dead unit.  One with curvature but no weight gets so little that it costs next to nothing.
    """
    alone = bool(void_across.all())
    for line in void.nonzero().flatten().tolist():
        heavy = w2[line] > 0
        if bool(heavy.any()):
            met = heavy if alone or not bool((heavy & ~void_across).any()) else heavy & ~void_across
            own[line] = (wanted[line] - across)[met].mean()
        elif float(h[line].sum()) > 0 and cost > 0:
            own[line] = math.log(cost / float((h[line] * (2 * across).exp()).sum())) / 2


def noisy(scales: list[Scales], *key: int) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Yield W + σε and then W − σε by parameter name, each with its own signed ε, for the noise of a key."""
    noise = gaussian_noise({one.parameter: one.weight.shape for one in scales}, *key)
    for sign in (1.0, -1.0):
        signed = {name: sign * tensor for name, tensor in noise.items()}
        yield {one.parameter: one.weight + one.deviations() * signed[one.parameter] for one in scales}, signed

"""Normalised sharpness as Tsuzuku et al. 2019, algorithm 1, estimates it: differences of gradients, then clipping."""

from __future__ import annotations

import math

import torch

from spiritlevel.engine.estimators.balancing import balance
from spiritlevel.engine.passes.perturbed import Perturbed, gaussian_noise, moved
from spiritlevel.engine.problem import Problem
from spiritlevel.inputs.open_problem import open_problem
from spiritlevel.inputs.weight_matrices import as_matrix


def sharpness_by_differences(problem: Problem, *, radius: float = 1e-2, draws: int = 8, seed: int = 0) -> float:
    """Return normalised sharpness from ε∘(∇L(θ+rε) − ∇L(θ−rε))/2r, averaged over draws and clipped at 0.

    r of each weight is ``radius`` times its root mean square, the scale the paper asks for; all weights move at once.
    The variances are then chosen exactly. On a piecewise-linear network this is curvature at that radius, not the
    Hessian's diagonal.
    """
    perturbed = Perturbed(open_problem(problem))
    weights = set(problem.weights.values())
    parameters = problem.chosen_parameters
    steps = {
        name: radius * float(tensor.detach().double().square().mean().sqrt())
        for name, tensor in parameters.items()
        if name in weights
    }
    diagonal = {name: torch.zeros_like(parameters[name], dtype=torch.float64) for name in steps}
    shapes = {name: parameters[name].shape for name in steps}
    for draw in range(draws):
        noise = {name: value.to(parameters[name]) for name, value in gaussian_noise(shapes, seed, draw).items()}
        scaled = {name: steps[name] * noise[name] for name in steps}
        _, above = perturbed.loss_and_gradient(moved(parameters, scaled, 1.0))
        _, below = perturbed.loss_and_gradient(moved(parameters, scaled, -1.0))
        for name, step in steps.items():
            if step > 0:
                difference = (above[name].double() - below[name].double()).to(diagonal[name].device)
                diagonal[name] += noise[name].double() * difference / (2 * step * draws)
    total = 0.0
    for layer in problem.layers.values():
        for name in layer.parameters.values():
            if name not in steps:
                continue
            weight = parameters[name].detach().double().cpu()
            h = as_matrix(layer.module, diagonal[name].cpu().clamp(min=0), weight).sum(-1)
            squared = as_matrix(layer.module, weight.square(), weight).sum(-1)
            total += sum(balance(h_group, w_group).value for h_group, w_group in zip(h, squared, strict=True))
    return total if math.isfinite(total) else math.nan

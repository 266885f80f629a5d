"""The largest eigenvalue of every weight's own block, from one graph of all layers."""

from __future__ import annotations

import torch
from torch import Tensor

from spiritlevel.engine.estimators.lanczos import Lanczos, lanczos_in_time
from spiritlevel.engine.estimators.probes import random_signs
from spiritlevel.engine.operators.certified_eigenvalue import stopped_in_time
from spiritlevel.engine.operators.derivative_check import path_of
from spiritlevel.engine.operators.products import Products
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.process.ranks import ranks
from spiritlevel.values.estimate import Estimate

# Blocks this small are written out and diagonalised.
DENSE_SIZE = 48
# Numbers the Lanczos bases of one group of layers may take.
BASIS_NUMBERS = 200_000_000


def top_eigenvalues(
    problem: OpenProblem, names: dict[str, str], *, tolerance: float = 1e-3, steps: int = 100, seed: int = 0
) -> dict[str, Estimate]:
    """Return {layer: λ_max of its weight's block of the Hessian} with residuals; ``names`` maps layers to weights."""
    sizes = {layer: problem.chosen_parameters[full].numel() for layer, full in names.items()}
    found: dict[str, Estimate] = {}
    # Graphs that stay make a layer's products cost nothing but themselves, so each layer stops where it is done; where
    # they do not fit, all layers share the sweep that builds them.
    products = Products(problem, list(dict.fromkeys(names.values())), keep_graphs=None)
    with problem.session():
        for layer in names:
            if sizes[layer] <= DENSE_SIZE:
                found[layer] = _dense(products, names[layer])
        group: list[str] = []
        keeps_graphs = ranks().everywhere(products.keeps_graphs)
        for layer in sorted((layer for layer in names if layer not in found), key=lambda name: sizes[name]):
            if group and (keeps_graphs or sizes[layer] * (len(group) + 1) * steps > BASIS_NUMBERS):
                found.update(_together(products, {name: names[name] for name in group}, tolerance, steps, seed))
                group = []
            group.append(layer)
        if group:
            found.update(_together(products, {name: names[name] for name in group}, tolerance, steps, seed))
    products.release()
    return {layer: found[layer] for layer in names}


def _dense(products: Products, full: str) -> Estimate:
    problem = products.problem
    tensor = problem.chosen_parameters[full]
    identity = torch.eye(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    block = block_products(products, [full] * tensor.numel(), list(identity))
    matrix = torch.stack(block).double().cpu()
    values = torch.linalg.eigvalsh((matrix + matrix.T) / 2)
    radius = float((matrix - matrix.T).norm()) + 8 * torch.finfo(tensor.dtype).eps * float(values.abs().max())
    top = float(values[-1])
    path = path_of(problem)
    radius += path.error
    status, reason = path.verdict()
    return Estimate(
        top,
        interval=(top - radius, top + radius),
        how="estimated" if path.differences else "exact",
        status=status,
        reason=reason,
        samples=problem.survey.count,
        details={"path": path.label},
    )


def _together(
    products: Products, names: dict[str, str], tolerance: float, steps: int, seed: int
) -> dict[str, Estimate]:
    """Run Lanczos on blocks of different sizes at once: column l holds layer l's vector, filled up with zeros.

    A product keeps the zeros, so each column's recurrence is that of its own block.
    """
    problem = products.problem
    fulls = list(names.values())
    sizes = [problem.chosen_parameters[full].numel() for full in fulls]
    start = torch.zeros(max(sizes), len(fulls), dtype=problem.dtype, device=problem.device)
    for column, size in enumerate(sizes):
        signs = random_signs(size, 1, seed=seed, first=column, dtype=problem.dtype, device=problem.device)
        start[:size, column] = signs[:, 0]

    def matvec(columns: Tensor) -> Tensor:
        parts = block_products(products, fulls, [columns[:size, c] for c, size in enumerate(sizes)])
        product = torch.zeros_like(columns)
        for c, part in enumerate(parts):
            product[: sizes[c], c] = part
        return product

    def converged(run: Lanczos) -> bool:
        bounds, scale = run.residual_bounds[:, -1], run.ritz_values.abs().amax(1)
        return run.steps >= 3 and bool((bounds <= tolerance * scale).all())

    run = lanczos_in_time(matvec, start, min(steps, max(sizes)), callback=converged, seed=seed)
    found = {}
    for column, layer in enumerate(names):
        value, radius = float(run.ritz_values[column, -1]), float(run.residual_bounds[column, -1])
        met = radius <= tolerance * float(run.ritz_values[column].abs().max())
        path = path_of(problem)
        radius += path.error
        status, reason = path.verdict(met, f"the residual is {radius:.2g} after {run.steps} Lanczos steps")
        known = Estimate(
            value,
            interval=(value - radius, value + radius),
            how="estimated",
            stderr=0.0,
            status=status,
            reason=reason,
            samples=problem.survey.count,
            passes=float(run.steps),
            details={"residual": radius, "path": path.label},
        )
        found[layer] = known if met else stopped_in_time(known, problem)
    return found


def block_products(products: Products, fulls: list[str], vectors: list[Tensor]) -> list[Tensor]:
    """Return H_pp v for each (parameter, vector) pair, flat, from one graph a batch and one sweep over the data."""
    problem = products.problem
    tensors = [problem.chosen_parameters[full] for full in fulls]
    totals = [torch.zeros(tensor.numel(), dtype=torch.float64, device=tensor.device) for tensor in tensors]
    shaped = [vector.reshape(tensor.shape).to(tensor) for tensor, vector in zip(tensors, vectors)]
    what = "layers' eigenvalues"
    with problem.sweep(what) as group:
        for part in products.sweep(1, what):
            for full, vector, total in zip(fulls, shaped, totals):
                total += part.own_block(products.names.index(full), vector).detach().reshape(-1)
    problem.spent["hessian product"] += len(fulls)
    found, _ = group.united({str(place): total for place, total in enumerate(totals)}, device=problem.device)
    return [total.to(problem.dtype) for total in found.values()]

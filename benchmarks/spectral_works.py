"""Works around the spectrum: every layer's largest eigenvalue, the top five, the density."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from benchmarks import material, peers
from benchmarks.exact import PlainHessian, distance, gradient_pass
from benchmarks.material import Data
from benchmarks.timing import Contender, Work, best_setting
from spiritlevel.engine.estimators.eigenvalues import USUAL_WIDTH, top_eigenpairs
from spiritlevel.engine.estimators.lanczos import lanczos
from spiritlevel.engine.estimators.probes import random_signs
from spiritlevel.engine.estimators.quadrature import counted_quadrature
from spiritlevel.engine.operators import HessianOperator
from spiritlevel.engine.operators.layer_tops import top_eigenvalues
from spiritlevel.inputs.open_problem import open_problem

TOLERANCE = 1e-3
DRAWS = 5


def layer_tops(device: torch.device, samples: int) -> Work:
    """The largest eigenvalue of every layer's own block."""
    model, data = material.on(device, material.lenet5(), material.images(samples))
    names = [name for name, tensor in model.named_parameters() if tensor.ndim >= 2]
    exact = np.array([PlainHessian(model, data, [name]).top(1)[0] for name in names])

    def error(found: Any) -> float:
        return float(np.max(np.abs(np.asarray(found, dtype=float) / exact - 1)))

    def ours() -> list[float]:
        problem = open_problem(sl.Problem(model, data))
        return [estimate.value for estimate in top_eigenvalues(problem, problem.weights, tolerance=TOLERANCE).values()]

    contenders = [Contender("Spiritlevel", ours, error, f"from one graph, to a residual of {TOLERANCE:g}")]
    if peers.installed("curvlinops"):

        def by_curvlinops() -> list[float]:
            operators = (peers.curvlinops_hessian(model, data, [name]) for name in names)
            return [float(peers.curvlinops_top(operator, 1, TOLERANCE)[0][0]) for operator in operators]

        contenders.append(Contender("curvlinops with eigsh", by_curvlinops, error, "layer after layer"))
    if peers.installed("pyhessian"):

        def by_pyhessian() -> list[float]:
            torch.manual_seed(0)
            return [peers.PyHessian(model, data, [n]).eigenpairs(1, TOLERANCE, 100)[0][0] for n in names]

        contenders.append(
            Contender("PyHessian eigenvalues", by_pyhessian, error, "layer after layer; its default stop")
        )
    return Work(
        "layer_tops",
        f"λ_max of every layer's block, LeNet-5, {samples:,} images",
        gradient_pass(model, data),
        contenders,
        unavailable={k: v for k, v in peers.missing().items() if k not in ("BackPACK", "nngeometry")},
        error_meaning="largest relative error of an eigenvalue",
    )


def top_five(device: torch.device, samples: int) -> Work:
    """The five largest eigenvalues, each to a true residual of 1e-3 of the largest."""
    model, data = material.on(device, material.lenet5(), material.images(samples))
    plain = PlainHessian(model, data)
    scale = float(plain.top(1)[0])

    def error(found: tuple[Any, Tensor]) -> float:
        return plain.residual(found[1].cpu()) / scale

    def ours() -> tuple[Any, Tensor]:
        problem = sl.Problem(model, data)
        operator = HessianOperator(problem, keep_graphs=None)
        operator.products.usual = USUAL_WIDTH
        pairs = top_eigenpairs(
            operator.matvec, problem.size, 5, tolerance=TOLERANCE, dtype=problem.dtype, device=problem.device
        )
        operator.release()
        return pairs.values, pairs.vectors

    contenders = [Contender("Spiritlevel", ours, error, "Davidson's method with thick restart")]
    met: Callable[[Any], bool] = lambda found: error(found) <= TOLERANCE  # noqa: E731
    if peers.installed("curvlinops"):

        def by_curvlinops(tolerance: float) -> tuple[Any, Tensor]:
            return peers.curvlinops_top(peers.curvlinops_hessian(model, data), 5, tolerance)

        settings = {f"tol={tolerance:g}": functools.partial(by_curvlinops, tolerance) for tolerance in (1e-2, 1e-3)}
        name, run = best_setting(settings, device, met)
        contenders.append(Contender("curvlinops with eigsh", run, error, name))
    if peers.installed("pyhessian"):

        def by_pyhessian(tolerance: float) -> tuple[Any, Tensor]:
            torch.manual_seed(0)
            return peers.PyHessian(model, data).eigenpairs(5, tolerance, 300)

        tolerance = next((t for t in (1e-3, 1e-4, 1e-5) if met(by_pyhessian(t))), 1e-6)
        contenders.append(
            Contender(
                "PyHessian eigenvalues",
                lambda: by_pyhessian(tolerance),
                error,
                f"tol={tolerance:g}, the first of 1e-3 … 1e-6 that reaches the residual, at most 300 steps each",
            )
        )
    return Work(
        "top_five",
        f"Five largest eigenvalues to a residual of 1e-3·λ_max, LeNet-5, {samples:,} images",
        gradient_pass(model, data),
        contenders,
        {"PyHessian eigenvalues": 5.0},
        {k: v for k, v in peers.missing().items() if k not in ("BackPACK", "nngeometry")},
        "largest true residual over λ_max",
    )


def _our_density(model: nn.Module, data: Data, probes: int, steps: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    problem = open_problem(sl.Problem(model, data))
    operator = HessianOperator(problem, keep_graphs=None)
    start = random_signs(problem.size, probes, seed=seed, dtype=problem.dtype, device=problem.device)
    with problem.session():  # as ``spectrum`` does
        found = counted_quadrature(lanczos(operator.matvec, start, steps))
    operator.release()
    return found.nodes, found.weights


class EagerLoop:
    """The plain way: a gradient's graph, kept, and differentiated again for one vector after another."""

    def __init__(self, model: nn.Module, data: Data) -> None:
        self.tensors = list(model.parameters())
        loss = F.cross_entropy(model(data[0]), data[1])
        self.gradient = torch.autograd.grad(loss, self.tensors, create_graph=True)

    def product(self, vector: Tensor) -> Tensor:
        """Return H v for a vector (P,)."""
        parts = vector.split([tensor.numel() for tensor in self.tensors])
        shaped = [part.reshape(tensor.shape) for part, tensor in zip(parts, self.tensors)]
        found = torch.autograd.grad(self.gradient, self.tensors, shaped, retain_graph=True)
        return torch.cat([part.reshape(-1) for part in found])

    def density(self, steps: int, probes: int) -> tuple[Tensor, Tensor]:
        """Return nodes and weights of all probes, by the three-term recurrence without re-orthogonalisation."""
        nodes, weights = [], []
        for _ in range(probes):
            size = sum(tensor.numel() for tensor in self.tensors)
            current = torch.randint(0, 2, (size,)).mul(2).sub(1).to(self.tensors[0]) / size**0.5
            before, alphas, betas = torch.zeros_like(current), [], [torch.zeros((), device=current.device)]
            for _ in range(steps):
                new = self.product(current)
                alphas.append(new @ current)
                new = new - alphas[-1] * current - betas[-1] * before
                betas.append(new.norm())
                before, current = current, new / betas[-1]
            off = torch.stack(betas[1:-1]).double().cpu()
            matrix = torch.stack(alphas).double().cpu().diag() + off.diag(1) + off.diag(-1)
            values, vectors = torch.linalg.eigh(matrix)
            nodes.append(values)
            weights.append(vectors[0].square())
        return torch.stack(nodes), torch.stack(weights)


def density(device: torch.device, samples: int, probes: int, steps: int) -> Work:
    """The spectral density by stochastic Lanczos quadrature."""
    model, data = material.on(device, material.lenet5(), material.images(samples))
    plain = PlainHessian(model, data)
    ends = (float(plain.top(1, "SA")[0]), float(plain.top(1)[0]))
    # How true a density is shows on a network whose whole spectrum is known.
    small, small_data = material.on(device, material.small(), material.images(300, size=8))
    spectrum = torch.linalg.eigvalsh(PlainHessian(small, small_data).dense())
    small_ends = (float(spectrum[0]), float(spectrum[-1]))

    def of_small(run: Callable[[int], tuple[Tensor, Tensor]]) -> float:
        """Return the root mean square over a few draws: one draw of the probes would be luck."""
        found = [run(seed) for seed in range(DRAWS)]
        away = [distance(nodes.reshape(-1).cpu(), weights.reshape(-1).cpu(), spectrum) for nodes, weights in found]
        return math.sqrt(sum(one**2 for one in away) / DRAWS)

    own_error = of_small(lambda seed: _our_density(small, small_data, probes, steps, seed))
    contenders = [
        Contender(
            "Spiritlevel",
            lambda: _our_density(model, data, probes, steps),
            lambda found: own_error,
            "all probes advance together; outliers are counted",
        )
    ]
    run_probes = max(1, probes // 5)

    def add(name: str, run: Callable[[nn.Module, Data, int], tuple[Tensor, Tensor]], note: str = "") -> None:
        def seeded(seed: int) -> tuple[Tensor, Tensor]:
            torch.manual_seed(seed)
            return run(small, small_data, probes)

        def part() -> tuple[Tensor, Tensor]:
            torch.manual_seed(0)
            return run(model, data, run_probes)

        error = of_small(seeded)
        how = f"probe after probe; {run_probes} of {probes} run{note}"
        contenders.append(Contender(name, part, lambda found: error, how, lambda found: probes / run_probes))

    add(
        "eager reverse-over-reverse loop",
        lambda model, data, count: EagerLoop(model, data).density(steps, count),
        "; one retained graph, no re-orthogonalisation"
        + ("; convolutions in TF32, torch's default" if device.type == "cuda" else ""),
    )
    if peers.installed("curvlinops"):

        def by_curvlinops(own: nn.Module, data: Data, count: int) -> tuple[Tensor, Tensor]:
            told = small_ends if own is small else ends
            return peers.curvlinops_density(peers.curvlinops_hessian(own, data), steps, count, told)

        add("curvlinops lanczos_approximate_spectrum", by_curvlinops, "; told the ends of the spectrum")
    if peers.installed("pyhessian"):
        add("PyHessian density", lambda model, data, count: peers.PyHessian(model, data).density(steps, count))
    return Work(
        "density",
        f"Spectral density, {probes} probes of {steps} steps, LeNet-5, {samples:,} images",
        gradient_pass(model, data),
        contenders,
        {
            "PyHessian density": 2.5,
            "curvlinops lanczos_approximate_spectrum": 1.7,
            **({"eager reverse-over-reverse loop": 2.0} if device.type == "cuda" else {}),
        },
        {k: v for k, v in peers.missing().items() if k not in ("BackPACK", "nngeometry")},
        f"distance (Wasserstein-1 over the range) from the known spectrum of a network of 1,482 parameters, root mean "
        f"square over {DRAWS} draws of the probes",
    )

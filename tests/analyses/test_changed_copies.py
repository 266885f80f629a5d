"""Values that follow for a changed copy are those measured on it, and a copy that only looks changed is found out."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.analyses.auditing import ALSO, STRENGTHS
from spiritlevel.analyses.changed_copies import ChangedCopies
from spiritlevel.analyses.changed_workbench import Rescaler
from spiritlevel.analyses.equivalents import Equivalents
from spiritlevel.analyses.measuring import measured
from spiritlevel.analyses.trials import TRIALS, Change
from spiritlevel.measures.registry import select
from tests.helpers import opened


def dense_network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.LeakyReLU(0.1), nn.Linear(7, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.first, self.second, self.head = (
            nn.Linear(6, 5), nn.Linear(5, 9), nn.Linear(9, 5), nn.Linear(5, 3)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.inside(x)
        x = x + self.second(torch.relu(self.first(x)))
        found: Tensor = self.head(torch.relu(x))
        return found


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (dense_network, (6,)),
    "convolutional": (convolutional, (1, 6, 6)),
    "residual": (Residual, (6,)),
}


def copies_of(model: nn.Module, x: Tensor, names: list[str]) -> tuple[ChangedCopies, list]:  # type: ignore[type-arg]
    y = torch.arange(len(x)) % 3
    problem = opened(model, (x, y))
    chosen = select(names)
    report, bench = measured(problem, chosen, settings={}, seed=0, tolerance=None, also=ALSO)
    return ChangedCopies(Rescaler(Equivalents(problem, None), bench), report, {}), chosen


def changes_of(copies: ChangedCopies) -> list[Change]:
    return [change for changes in TRIALS for change in changes(copies.equivalents, STRENGTHS, 0)]


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_what_follows_is_what_is_measured(kind: str, dtype: torch.dtype) -> None:
    make, shape = NETWORKS[kind]
    torch.manual_seed(0)
    model, x = make().to(dtype).eval(), torch.randn(40, *shape, dtype=dtype)
    names = [
        "hessian_trace", "ggn_trace", "hessian_top_eigenvalue", "hessian_spectral_norm", "hessian_log_volume",
        "matrix_normalized_sharpness", "normalized_sharpness", "kappa_tau_sum", "rho_max", "rho_sum", "output_margin",
        "weight_norm",
    ]  # fmt: skip
    copies, chosen = copies_of(model, x, names)
    assert copies.rescaler.follows
    usable = {name for name in names if copies.base[name].ok}
    assert len(usable) >= len(names) - 1  # so small a network may have fewer positive eigenvalues than are asked for
    seen = set()
    for change in changes_of(copies):
        assert change.map is not None
        problem = change.make()
        assert copies.rescaler.agrees(problem, change.map), (change.symmetry, change.strength)
        settings = copies.settings_for(chosen, closely=True)
        before = sum(problem.spent.values())
        follow = copies.rescaler.values(copies.rescaler.workbench(problem, change.map), chosen, settings)
        assert sum(problem.spent.values()) - before <= 1  # outputs, where margins want them
        assert usable - set(follow) <= {"hessian_log_volume"}, change.symmetry  # a search that gave up is made again
        direct, _ = copies.measured(change.make(), chosen, settings)
        for name in follow:
            allowed = 1e-8 if dtype == torch.float64 else 3e-3
            halves = [(e.interval[1] - e.interval[0]) / 2 for e in (follow[name], direct[name]) if e.interval]
            bound = allowed * abs(direct[name].value) + sum(half for half in halves if math.isfinite(half))
            assert abs(follow[name].value - direct[name].value) <= bound, (name, change.symmetry, change.strength)
        seen.add(change.symmetry)
    assert seen == {"layer_rescaling", "neuron_rescaling", "permutation"}


def test_what_does_not_follow_is_measured() -> None:
    torch.manual_seed(1)
    copies, chosen = copies_of(dense_network().double(), torch.randn(30, 6).double(), ["relative_flatness", "rho_sum"])
    (change,) = [c for c in changes_of(copies) if (c.symmetry, c.strength) == ("neuron_rescaling", "usual")]
    trials = {trial.measure: trial for trial in copies.tried(change, chosen)}
    direct = sl.measure(change.make(), "relative_flatness")["relative_flatness"]
    assert trials["relative_flatness"].after.value == pytest.approx(direct.value, rel=1e-9)
    assert trials["relative_flatness"].verdict == "changes"
    assert trials["rho_sum"].verdict == "invariant"


class Sly(nn.Module):
    """Once its first layer is large it is another function, with the same values where that is ten times larger."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8).double(), nn.Linear(8, 3).double()
        self.grown = 10 * float(self.first.weight.detach().norm())

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        if not torch.compiler.is_compiling() and float(self.first.weight.detach().norm()) > self.grown / 2:
            hidden = hidden * (self.first.weight.norm() / self.grown).square()
        found: Tensor = self.second(hidden)
        return found


def test_a_copy_that_keeps_its_outputs_alone_is_measured_and_not_believed() -> None:
    torch.manual_seed(0)
    model, x = Sly(), torch.randn(30, 6).double()
    copies, chosen = copies_of(model, x, ["rho_sum", "hessian_trace"])
    large, small = (copies.equivalents.rescaling(layers={"first": factor}) for factor in (10.0, 0.1))
    grown = copies.equivalents.layers_rescaled({"first": 10.0})
    assert not copies.rescaler.agrees(grown, large)
    assert copies.rescaler.agrees(copies.equivalents.layers_rescaled({"first": 0.1}), small)
    trials = {t.measure: t for t in copies.tried(Change("layer_rescaling", "usual", lambda: grown, large), chosen)}
    for name, trial in trials.items():
        direct = sl.measure(grown, name)[name]
        assert trial.after.value == pytest.approx(direct.value, abs=6 * (direct.stderr + trial.after.stderr), rel=1e-9)
        assert trial.verdict == "changes"  # which for ρ no closed form would tell


def test_samples_without_curvature_vouch_for_nothing() -> None:
    torch.manual_seed(0)
    copies, _ = copies_of(dense_network().double(), torch.randn(30, 6).double(), ["hessian_trace"])
    (change,) = [c for c in changes_of(copies) if (c.symmetry, c.strength) == ("layer_rescaling", "usual")]
    assert change.map is not None
    problem = change.make()
    assert copies.rescaler.agrees(problem, change.map)
    vector, product = copies.rescaler._own  # type: ignore[misc]
    copies.rescaler._own = vector, {name: torch.zeros_like(part) for name, part in product.items()}
    assert not copies.rescaler.agrees(problem, change.map)


def test_a_sampled_network_is_measured_on_every_copy() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 3)).double()
    copies, chosen = copies_of(model, torch.randn(30, 6).double(), ["hessian_trace"])
    assert not copies.rescaler.follows
    (change,) = [c for c in changes_of(copies) if (c.symmetry, c.strength) == ("layer_rescaling", "usual")]
    (trial,) = copies.tried(change, chosen)
    direct = sl.measure(change.make(), "hessian_trace")["hessian_trace"]
    assert trial.after.value == direct.value

"""A torch that has renamed its insides: the package loads, and every number stays right, whatever is missing."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import spiritlevel as sl
from spiritlevel.engine.operators import convolution_blocks, pooling_blocks
from spiritlevel.engine.passes.graph import look_at
from spiritlevel.engine.passes.recording import Recorder
from spiritlevel.engine.passes.rules import _candidates
from spiritlevel.inputs.torch_internals import (
    aten,
    checkpointing,
    forward_mode,
    hooks,
    levels,
    modules,
    nodes,
    tensors,
    trees,
    weight_norms,
)
from spiritlevel.measures.reference import Dense
from tests.helpers import opened

Missing = Callable[[pytest.MonkeyPatch], None]


def under_other_names(patch: pytest.MonkeyPatch) -> None:
    original = nodes.name_of
    patch.setattr(nodes, "name_of", lambda node: original(node).replace("Backward", "Pullback"))


def without_hooks(patch: pytest.MonkeyPatch) -> None:
    for name in ("_FORWARD", "_BACKWARD", "_BACKWARD_OF_ALL"):
        patch.setattr(hooks, name, ("_gone",))
    patch.setattr(hooks, "_OF_TENSOR", "_gone")


def without_weight_norms(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(weight_norms, "_parametrization", None)
    patch.setattr(weight_norms, "_hook", None)


def without_counters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tensors, "_VERSION", "_gone")
    patch.setattr(tensors, "_BASE", "_gone")


def without_tables(patch: pytest.MonkeyPatch) -> None:
    for name in ("_UNSAVED", "_PARAMETERS", "_REPEATED_PADDING"):
        patch.setattr(modules, name, "_gone")


MISSING: dict[str, Missing] = {
    "names of nodes": under_other_names,
    "what nodes keep": lambda patch: patch.setattr(nodes, "_SAVED", "_gone_"),
    "shapes of nodes": lambda patch: patch.setattr(nodes, "_SHAPES", "_gone"),
    "parameters of nodes": lambda patch: patch.setattr(nodes, "_VARIABLE", "_gone"),
    "functions of nodes": lambda patch: patch.setattr(nodes, "_FUNCTION", "_gone"),
    "vmap's levels": lambda patch: patch.setattr(levels, "_functorch", None),
    "forward mode's level": lambda patch: patch.setattr(
        forward_mode, "forward_ad", SimpleNamespace(make_dual=forward_ad.make_dual)
    ),
    "tables of hooks": without_hooks,
    "trees": lambda patch: patch.setattr(trees, "_known", None),
    "kernels": lambda patch: patch.setattr(aten, "_kernels", SimpleNamespace()),
    "counters of writes": without_counters,
    "tables of modules": without_tables,
    "weight normalisation": without_weight_norms,
}


def everything(patch: pytest.MonkeyPatch) -> None:
    for remove in MISSING.values():
        remove(patch)


MISSING_OR_ALL = {**MISSING, "everything": everything}


def network() -> nn.Module:
    """A small network with every layer that has a quick way: convolution, BatchNorm, ReLU, max-pooling, linear."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 2, 3, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2, 3),
    ).double()
    with torch.no_grad():
        model[1].running_mean.normal_()
        model[1].running_var.uniform_(0.5, 2.0)
    return model.eval()


class Tied(nn.Module):
    """One layer used twice, the second time through a function that no hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.shared(x).relu(), self.shared.weight)


class Smooth(nn.Sequential):
    """A curved operation between two layers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))


def samples(count: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 2, 6, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, 3, (count,), generator=generator)


@pytest.mark.parametrize("missing", MISSING_OR_ALL)
def test_the_exact_trace_of_a_convolutional_network_is_right(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = Dense(sl.Problem(network(), samples()))
    MISSING_OR_ALL[missing](monkeypatch)
    problem = sl.Problem(network(), samples(), batch_size=4)
    report = sl.measure(problem, ["hessian_trace", "hessian_top_eigenvalue"])
    assert report["hessian_trace"].how == "exact"
    assert report["hessian_trace"].value == pytest.approx(float(truth.hessian.trace()), rel=1e-10)
    top = float(torch.linalg.eigvalsh(truth.hessian)[-1])
    assert report["hessian_top_eigenvalue"].value == pytest.approx(top, rel=1e-6)
    vectors = torch.randn(problem.size, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = truth.hessian @ vectors
    assert torch.allclose(problem.hessian @ vectors, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("missing", MISSING_OR_ALL)
@pytest.mark.parametrize("case", [Tied, Smooth])
def test_networks_without_a_quick_way_stay_right(
    case: type[nn.Module], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, data = case().double(), (torch.randn(7, 4).double(), torch.randint(0, 4, (7,)))
    truth = Dense(sl.Problem(model, data))
    MISSING_OR_ALL[missing](monkeypatch)
    problem = sl.Problem(model, data, batch_size=4)
    vectors = torch.randn(problem.size, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(problem.hessian @ vectors, truth.hessian @ vectors, rtol=1e-8, atol=1e-10)
    trace = sl.measure(problem, "hessian_trace")["hessian_trace"]
    assert trace.how in ("estimated", "exact")
    assert abs(trace.value - float(truth.hessian.trace())) <= 5 * trace.stderr + 1e-9 * abs(trace.value)


# --- piece by piece ---------------------------------------------------------------------------------------------------


def test_blocks_inside_vmap_go_by_torchs_own_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x, w, b, g = (
        torch.randn(s, generator=generator) for s in ((5, 4, 3, 6, 6), (5, 2, 3, 3, 3), (5, 2), (5, 4, 2, 4, 4))
    )
    _, places = F.max_pool2d(x[0], 2, return_indices=True)
    pooled = torch.randn(5, 4, 3, 3, 3, generator=generator)
    options, window = ([1, 1], [0, 0], [1, 1], 1), ([2, 2], [2, 2], [0, 0], [1, 1], False)

    def everything_at_once(x: Tensor, w: Tensor, b: Tensor, g: Tensor, pooled: Tensor) -> tuple[Tensor, ...]:
        return (
            convolution_blocks.convolve(x, w, b, options),
            convolution_blocks.pull_to_input(g, w, [3, 6, 6], options),
            convolution_blocks.pull_to_weight(g, x, [3, 3], options),
            pooling_blocks.gather_places(x, places),
            pooling_blocks.scatter_places(pooled, places, [6, 6], window),
        )

    arguments = (x, w, b, g, pooled)
    expected = torch.func.vmap(everything_at_once)(*arguments)
    one_by_one = [everything_at_once(*(each[k] for each in arguments)) for k in range(5)]
    monkeypatch.setattr(levels, "_functorch", None)
    found = torch.func.vmap(everything_at_once)(*arguments)
    for place in range(5):
        torch.testing.assert_close(found[place], expected[place])
        torch.testing.assert_close(found[place], torch.stack([one[place] for one in one_by_one]))


def test_no_layer_goes_by_its_rule_where_uses_of_parameters_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_VARIABLE", "_gone")
    assert not nodes.parameters_are_told()
    problem = opened(network(), samples())
    with problem.session(), Recorder(problem) as recorder:
        outputs = problem.outputs(samples())
        assert _candidates(problem, outputs, recorder, look_at(outputs)) == []


def test_hooks_on_modules_are_set_aside_by_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = sl.measure(network(), samples(), "hessian_trace")["hessian_trace"].value
    without_hooks(monkeypatch)
    model, calls = network(), []
    model[0].register_full_backward_hook(lambda *arguments: calls.append(1))
    model[8].register_full_backward_pre_hook(lambda module, gradient: (gradient[0] * 2,))
    report = sl.measure(model, samples(), "hessian_trace")
    assert report["hessian_trace"].value == pytest.approx(expected, rel=1e-12)
    assert not calls
    assert len(model[0]._backward_hooks) == len(model[8]._backward_pre_hooks) == 1


def test_hooks_on_parameters_that_cannot_be_seen_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    model[4].weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    without_hooks(monkeypatch)
    with pytest.raises(sl.SpiritlevelError, match=r"gradient hooks on parameters \(4\.weight\).*remove them"):
        sl.measure(model, samples(), "hessian_trace")


class Recomputed(nn.Module):
    """A part that is recomputed in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 4)
        self.recomputed = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        part = lambda h: self.middle(h).tanh()  # noqa: E731
        return self.last(checkpoint(part, hidden, use_reentrant=False) if self.recomputed else part(hidden))


def test_checkpoints_that_cannot_be_taken_away_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, data = Recomputed().double(), (torch.randn(7, 4).double(), torch.randint(0, 4, (7,)))
    truth = Dense(sl.Problem(model, data)).hessian
    model.recomputed = True
    monkeypatch.setattr(checkpointing, "AROUND", "_gone")
    assert [name for _, name in checkpointing.places()] == [checkpointing.REENTRANT]
    assert_right_or_refused(sl.Problem(model, data, batch_size=4), truth)


def test_a_fused_weight_normalisation_of_another_name_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    first = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
    model, data = (
        nn.Sequential(first, nn.Tanh(), nn.Linear(5, 4)).double(),
        (
            torch.randn(7, 4).double(),
            torch.randint(0, 4, (7,)),
        ),
    )
    truth = Dense(sl.Problem(model, data)).hessian
    monkeypatch.setattr(weight_norms, "_OPERATION", "_gone")
    assert weight_norms.fused_weight_norm() is None
    assert_right_or_refused(sl.Problem(model, data, batch_size=4), truth)


def assert_right_or_refused(problem: sl.Problem, truth: Tensor) -> None:
    """Numbers may have the error of differences, and may be refused; they may not be wrong."""
    vector = torch.randn(len(truth), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with contextlib.suppress(sl.SpiritlevelError):
        product = problem.hessian @ vector
        assert float((product - truth @ vector).norm() / (truth @ vector).norm()) < 1e-4
    with contextlib.suppress(sl.SpiritlevelError):
        trace = sl.measure(problem, "hessian_trace")["hessian_trace"]
        if trace.status in ("ok", "budget_spent"):
            assert abs(trace.value - float(truth.trace())) <= 5 * trace.stderr + 1e-4 * abs(trace.value)


@pytest.mark.parametrize("missing", ["trees", "tables of hooks", "kernels", "weight normalisation"])
def test_symmetries_are_found_without(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example = samples()[0]
    expected = str(sl.symmetries.find(network(), example))
    MISSING[missing](monkeypatch)
    assert str(sl.symmetries.find(network(), example)) == expected


def test_no_freedom_is_claimed_of_operations_that_do_not_tell_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aten, "schema_of", lambda operation: None)
    found = sl.symmetries.find(network(), samples()[0])
    assert not list(found)
    assert ("8 (Linear): linear", "linear is not an operation whose effect on scales is known") in found.left_alone


# --- before anything of ours is loaded --------------------------------------------------------------------------------

REMOVED = """
import torch, torch.func, torch.utils.checkpoint, torch.nn.utils.parametrizations, torch.nn.utils.weight_norm, sys
import torch._functorch.functional_call, torch._functorch.apis, torch._functorch.vmap, torch._functorch.eager_transforms
import torch.fx.experimental.symbolic_shapes

functorch = torch._C._functorch
for name in ("maybe_get_level", "get_unwrapped", "maybe_get_bdim"):
    delattr(functorch, name)
sys.modules["torch.utils._pytree"] = None
del torch.utils._pytree
del torch._weight_norm
del torch.nn.utils.parametrizations._WeightNorm
del sys.modules["torch.nn.utils.weight_norm"].WeightNorm
del torch.utils.checkpoint._checkpoint_without_reentrant_generator
for module, names in {
    torch.nn.modules.batchnorm: ("_BatchNorm", "_NormBase"),
    torch.nn.modules.loss: ("_Loss", "_WeightedLoss"),
}.items():
    for name in names:
        delattr(module, name)
"""
LOADED = """
import importlib, pkgutil, spiritlevel

for found in pkgutil.walk_packages(spiritlevel.__path__, "spiritlevel."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
"""
MEASURED = """
import pytest, sys
sys.path.insert(0, sys.argv[1])
from tests.inputs.torch_internals.test_torch_without_internals import *

assert levels._functorch is trees._known is weight_norms._parametrization is weight_norms.fused_weight_norm() is None
for missing in ("trees", "everything"):  # what was removed above, and all the rest
    with pytest.MonkeyPatch.context() as patch:
        test_the_exact_trace_of_a_convolutional_network_is_right(missing, patch)
"""


@pytest.mark.parametrize("then", [LOADED, MEASURED], ids=["loaded", "measured"])
def test_the_whole_package_without_names_that_are_gone_before(then: str) -> None:
    here = str(Path(__file__).parents[3])
    done = subprocess.run([sys.executable, "-c", REMOVED + then, here], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

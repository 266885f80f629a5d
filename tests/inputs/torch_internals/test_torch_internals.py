"""Every private name of torch that is used works on the torch at hand, and says what the public way says.

A test that fails here names what a release of torch has changed; nothing else breaks by it.  On 2.11, 2.13 and 2.15 all
of them hold.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import OrderedDict, deque, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

import spiritlevel
from spiritlevel.inputs.torch_internals import (
    aten,
    base_classes,
    checkpointing,
    compiling,
    forward_mode,
    hooks,
    levels,
    modules,
    tensors,
    trees,
    weight_norms,
)
from tests.inputs.torch_internals.leaves import leaf

ROOT = Path(spiritlevel.__file__).parent


# --- no private name stands anywhere else -----------------------------------------------------------------------------


# Names that files hold, which are read without asking torch for them.
OF_FILES = {"inputs/weights/torch_files.py", "inputs/weights/state_dicts.py"}


# Of torch's modules, and of its modules' and tensors' and nodes' attributes.
OF_TORCH = re.compile(r"(torch|nn|F|functional|forward_ad|checkpoint)\.(\w+\.)*_[A-Za-z]\w*|torch\.ops\.aten.*")
ATTRIBUTES = re.compile(
    r"_saved_\w+|_input_metadata|_forward_cls|_schema|_version|_base|_modules|_parameters|_buffers|_orig_mod|"
    r"_(global_)?(forward|backward)_(pre_)?hooks|_non_persistent_buffers_set|_reversed_padding_repeated_twice|"
    r"_current_level|_weight_norm|_checkpoint_\w+|\w+Backward\d|torch\._\w+"
)


def private_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            written = ast.unparse(node)
            if OF_TORCH.fullmatch(written) or (ATTRIBUTES.fullmatch(node.attr) and written != f"self.{node.attr}"):
                yield written
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            yield from (part for part in (node.module or "").split(".") if part.startswith("_"))
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and ATTRIBUTES.fullmatch(node.value):
            yield node.value


def test_private_names_stand_in_one_room() -> None:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if not place.startswith("inputs/torch_internals/") and place not in OF_FILES:
            found[place] = list(private_names(path))
    assert not {place: names for place, names in found.items() if names}


# --- vmap and forward mode --------------------------------------------------------------------------------------------


def test_blocks_inside_vmap_are_opened_and_closed() -> None:
    block = leaf(5, 3, 2).detach()
    seen = []

    def inside(vector: Tensor) -> Tensor:
        level = levels.level_of(vector)
        seen.append((level >= 0, levels.level_of(block)))
        behind, dim = levels.opened(vector)
        assert torch.equal(behind, block)
        return levels.closed(2 * behind, dim, level)

    for dim in (0, 1):
        assert torch.equal(torch.func.vmap(inside, in_dims=dim, out_dims=dim)(block), 2 * block)
    assert seen == [(True, -1)] * 2


def test_forward_mode_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Renamed:
        make_dual = staticmethod(forward_ad.make_dual)

    for _ in range(2):
        assert not forward_mode.in_forward_mode()
        with forward_ad.dual_level():
            assert forward_mode.in_forward_mode()
        found, _ = torch.func.jvp(lambda x: x * forward_mode.in_forward_mode(), (torch.ones(1),), (torch.ones(1),))
        assert found == 1
        monkeypatch.setattr(forward_mode, "forward_ad", Renamed)  # and once more by trying


# --- kernels ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["kernel", "public"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "public":
        monkeypatch.setattr(aten, "_kernels", object())
    return str(request.param)


def test_a_rectifiers_backward(kernels: str) -> None:
    values, gradient = torch.tensor([-1.0, 0.0, 2.0, torch.nan, 3.0]), torch.tensor([5.0, 6.0, torch.nan, 7.0, -8.0])
    found = aten.rectifier_backward(gradient, values.relu())
    leaf_values = values.clone().requires_grad_()
    (expected,) = torch.autograd.grad(leaf_values.relu(), leaf_values, gradient)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "window", [([2, 2], [2, 2], [0, 0], [1, 1], False), ([3, 2], [2, 1], [1, 1], [1, 1], True)], ids=["apart", "over"]
)
def test_max_pooling_and_its_backward(kernels: str, window: Any) -> None:
    values = leaf(2, 3, 7, 6)
    expected, places = F.max_pool2d(values, *window, return_indices=True)
    found, where = aten.max_pool_2d(values.detach(), *window)
    assert torch.equal(found, expected)
    assert torch.equal(where, places)
    gradient = torch.randn_like(found)
    (pulled,) = torch.autograd.grad(expected, values, gradient)
    torch.testing.assert_close(aten.max_pool_2d_backward(gradient, [7, 6], places, *window), pulled)


def test_convolutions_and_their_adjoints_are_torchs_own() -> None:
    assert aten.convolutions_are_offered()
    options = ([1, 2], [1, 0], [1, 1], 2)
    x, w, b = leaf(2, 4, 6, 5), leaf(6, 2, 3, 2), leaf(6)
    expected = F.conv2d(x, w, b, *options)
    assert torch.equal(aten.convolution(x, w, b, *options), expected)
    gradient = torch.randn_like(expected)
    for which, pulled in enumerate(torch.autograd.grad(expected, [x, w], gradient)):
        torch.testing.assert_close(aten.convolution_adjoint(which, gradient, x, w, *options), pulled)


def test_operations_of_a_traced_graph_tell_their_names_and_arguments() -> None:
    program = torch.export.export(nn.Sequential(nn.Conv2d(1, 2, 2)), (torch.zeros(1, 1, 3, 3),), strict=False)
    (operation,) = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert aten.operation_name(operation) == "conv2d"
    schema: Any = aten.schema_of(operation)
    assert schema.name == "aten::conv2d"
    assert [each.name for each in schema.arguments][:3] == ["input", "weight", "bias"]
    assert aten.schema_of(len) is None


# --- hooks ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["named", "searched"])
def naming(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "searched":
        for name in ("_FORWARD", "_BACKWARD", "_BACKWARD_OF_ALL"):
            monkeypatch.setattr(hooks, name, ("_gone",))
    return str(request.param)


def test_hooks_are_found_in_their_tables(naming: str) -> None:
    module = nn.Linear(2, 2)

    def hook(*arguments: Any) -> None:
        return None

    assert hooks.forward_hooks(module) == []
    module.register_forward_hook(hook)
    module.register_forward_pre_hook(hook)
    assert hooks.forward_hooks(module) == [hook, hook]
    assert not any(hooks.backward_tables(module))
    module.register_full_backward_hook(hook)
    module.register_full_backward_pre_hook(hook)
    assert [list(table.values()) for table in hooks.backward_tables(module) if table] == [[hook], [hook]]
    handle = nn.modules.module.register_module_full_backward_hook(hook)
    try:
        assert [list(table.values()) for table in hooks.backward_tables_of_all_modules() if table] == [[hook]]
    finally:
        handle.remove()


def test_hooks_on_tensors_are_shown_or_their_effect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, halved, clipped = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(1))
    halved.register_hook(lambda gradient: gradient / 2)
    clipped.register_hook(lambda gradient: gradient.clamp(-1, 1))
    assert not hooks.gradient_table(plain)
    assert len(hooks.gradient_table(halved) or {}) == 1
    assert not any(map(hooks.has_hidden_hooks, (plain, halved, clipped)))
    monkeypatch.setattr(hooks, "_OF_TENSOR", "_gone")
    clipped.requires_grad_(False)
    assert [hooks.has_hidden_hooks(tensor) for tensor in (plain, halved, clipped)] == [False, True, True]
    assert not clipped.requires_grad
    assert hooks.gradient_table(halved) is None


# --- trees ------------------------------------------------------------------------------------------------------------


Pair = namedtuple("Pair", ["first", "second"])
TREES = [
    3,
    None,
    [],
    (1, [2, {"a": 3, "b": (4, 5)}], None),
    {"x": Pair(1, [2, 3]), "y": OrderedDict(c=4, a=5)},
    [deque([1, 2]), ((),), "text"],
]


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_trees_are_taken_apart_alike_with_and_without_torch(tree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def all_ways() -> list[Any]:
        leaves, layout = trees.flatten(tree)
        doubled = trees.mapped(lambda each: [each], tree)
        listed = trees.leaves(tree, is_leaf=lambda each: isinstance(each, dict))
        return [leaves, trees.leaves(tree), trees.unflatten(leaves, layout), doubled, listed]

    assert trees._known is not None, f"torch {torch.__version__} has no torch.utils._pytree with these names"
    expected = all_ways()
    monkeypatch.setattr(trees, "_known", None)
    assert all_ways() == expected
    assert expected[2] == tree


def test_layouts_differ_in_words_where_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        words = {str(trees.flatten(tree)[1]) for tree in TREES}
        assert len(words) == len(TREES) - 1  # a number and nothing are both one leaf
        monkeypatch.setattr(trees, "_known", None)


# --- modules, tensors, classes ----------------------------------------------------------------------------------------


def test_writes_to_a_tensor_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.zeros(3)
    before = tensors.version_of(values)
    assert tensors.version_of(values) == before
    values.add_(1)
    assert tensors.version_of(values) != before
    monkeypatch.setattr(tensors, "_VERSION", "_gone")
    assert tensors.version_of(values) != tensors.version_of(values)


def test_a_view_tells_what_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.zeros(3)
    part = whole[1:]
    assert tensors.viewed(part) is whole
    assert tensors.viewed(whole) is whole
    monkeypatch.setattr(tensors, "_BASE", "_gone")
    assert tensors.viewed(part) is part


@pytest.mark.parametrize("table", ["_non_persistent_buffers_set", "_gone"])
def test_buffers_that_are_not_saved(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "_UNSAVED", table)
    module = nn.Sequential(nn.BatchNorm1d(2))
    module.register_buffer("kept", torch.zeros(1))
    module.register_buffer("left_out", torch.zeros(1), persistent=False)
    assert modules.unsaved_buffers(module) == {"left_out"}
    assert modules.unsaved_buffers(module[0]) == set()


@pytest.mark.parametrize("table", ["_parameters", "_gone"])
def test_a_copy_with_other_parameters_leaves_the_module_alone(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "_PARAMETERS", table)
    module = nn.Linear(2, 3)
    module.register_forward_hook(lambda *arguments: 1 / 0)
    before = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    trial = modules.with_parameters(module, {"weight": torch.ones(3, 2), "bias": torch.ones(3)})
    assert torch.equal(trial.forward(torch.ones(1, 2)), torch.full((1, 3), 3.0))
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.named_parameters())


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("kept", ["_reversed_padding_repeated_twice", "_gone"])
@pytest.mark.parametrize(
    "module",
    [
        nn.Conv1d(1, 1, 4, padding="same"),
        nn.Conv2d(1, 1, (2, 3), padding=(1, 2)),
        nn.Conv2d(1, 1, (4, 3), padding="same", dilation=(1, 2)),
        nn.Conv2d(1, 1, 3, padding="valid"),
        nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular"),
        nn.Conv3d(1, 1, (1, 2, 3), padding=(0, 1, 2)),
    ],
    ids=str,
)
def test_the_padding_around_a_convolution(module: Any, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hasattr(module, modules._REPEATED_PADDING), f"torch {torch.__version__} keeps it elsewhere"
    monkeypatch.setattr(modules, "_REPEATED_PADDING", kept)
    inputs = torch.randn(2, 1, *([7] * len(module.kernel_size)))
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    padded = F.pad(inputs, modules.padding_around(module), mode=mode)
    convolve = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(module.kernel_size)]
    found = convolve(padded, module.weight, module.bias, dilation=module.dilation)
    torch.testing.assert_close(found, module(inputs))


def test_classes_that_layers_share() -> None:
    assert (nn.modules.batchnorm._BatchNorm,) == base_classes.BATCH_NORMS
    assert (nn.modules.batchnorm._NormBase,) == base_classes.NORMS
    assert (nn.modules.loss._Loss,) == base_classes.LOSS_MODULES


def test_classes_that_share_nothing_stand_for_themselves() -> None:
    assert base_classes.shared_base(nn.Linear, nn.Conv2d) == (nn.Linear, nn.Conv2d)
    assert base_classes.shared_base(nn.Linear, nn.Bilinear, nn.Linear) == (nn.Linear, nn.Bilinear, nn.Linear)
    assert base_classes.shared_base(nn.Linear) == (nn.Linear,)


# --- what torch wraps a network in ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_weight_normalisation_of_both_kinds_is_seen() -> None:
    new = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    old = nn.utils.weight_norm(nn.Linear(2, 2))
    assert [weight_norms.may_normalise_weights(module) for module in new.modules()].count(True) == 1
    assert weight_norms.may_normalise_weights(old)
    assert not weight_norms.may_normalise_weights(nn.Linear(2, 2))
    fused = weight_norms.fused_weight_norm()
    assert fused is not None, f"torch {torch.__version__} has no torch._weight_norm"
    direction, length = torch.randn(3, 2), torch.rand(3, 1)
    torch.testing.assert_close(fused(direction, length, 0), length * F.normalize(direction))


@pytest.mark.parametrize("name", [compiling.WRAPPED, "_gone"])
def test_the_network_inside_a_compiled_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(nn.Linear(2, 2))
    compiled: Any = torch.compile(network)
    monkeypatch.setattr(compiling, "WRAPPED", name)
    assert compiling.network_inside(compiled) is network
    assert compiling.network_inside(network) is None
    assert compiling.may_be_compiled()


def test_a_model_may_be_compiled_once_the_compiler_is_loaded_or_where_it_has_another_name() -> None:
    code = (
        "import torch, sys; from spiritlevel.inputs.torch_internals import compiling; "
        "assert 'torch._dynamo' in sys.modules or not compiling.may_be_compiled(); "
        "compiling._compiler_is_known.cache_clear(); compiling._COMPILER = 'torch._gone'; "
        "assert compiling.may_be_compiled()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_recomputes_activations_is_found() -> None:
    found = {name for _, name in checkpointing.places()}
    assert found == {checkpointing.AROUND, checkpointing.REENTRANT}, f"torch {torch.__version__} has other names"

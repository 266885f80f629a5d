"""The code in CONTRIBUTING, and the block that shows all of Python's, is run as it stands there."""

from __future__ import annotations

import copy
import importlib
import math
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.engine.blocks import Blocks
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.reference import Dense
from spiritlevel.measures.registry import MEASURES
from tests.helpers import opened
from tests.inputs.losses import derivatives
from tests.measures import test_all_measures as registry_wide
from tests.measures import test_interpretations, test_symmetry_claims, trained

ROOT = Path(__file__).parent.parent
PACKAGE = Path(sl.__file__).parent
NUMBERS = {"one": 1, "two": 2, "three": 3}


class Block(NamedTuple):
    """Some lines of Python, the file they belong to, and the table in it that they are a line of."""

    file: str
    table: str
    code: str

    @property
    def module(self) -> str:
        return self.file.removeprefix("src/").removesuffix(".py").replace("/", ".")


@cache
def sections() -> dict[str, str]:
    """The parts of CONTRIBUTING by heading."""
    parts = re.split(r"^#{2,3} (.+)$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


@cache
def examples() -> dict[str, list[Block]]:
    """The blocks of every worked example, by what it adds."""
    found = {}
    for heading, text in sections().items():
        blocks = re.findall(r"^```python\n# (src/\S+?\.py)(?:, in (\w+))?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        if blocks:
            found[heading] = [Block(*block) for block in blocks]
    return found


def apply(heading: str, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put an example's blocks where they say they belong, and return the names they define."""
    defined: dict[str, Any] = {}
    (blocks,) = [blocks for name, blocks in examples().items() if name.startswith(heading)]
    for block in blocks:
        if not (ROOT / block.file).exists():
            module = ModuleType(block.module)
            patch.setitem(sys.modules, block.module, module)
            defined[block.module.rpartition(".")[2]] = module
        else:
            module = importlib.import_module(block.module)
        if block.table:
            _add_to_table(module, block, defined, patch)
            continue
        names = dict(vars(module))
        exec(compile(block.code, block.file, "exec"), names)
        for name, value in names.items():
            if vars(module).get(name) is not value and name != "__builtins__":
                patch.setattr(module, name, value, raising=False)
                defined[name] = value
    return defined


def _add_to_table(module: ModuleType, block: Block, defined: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
    table = getattr(module, block.table)
    names = {**vars(module), **defined}
    if isinstance(table, tuple):
        patch.setattr(module, block.table, (*table, *eval(f"({block.code})", names)))
        return
    try:
        entries = eval(f"{{{block.code}}}", names)
        entries = entries if isinstance(entries, dict) else {each.name: each for each in entries}
    except SyntaxError as error:
        raise AssertionError(f"{block.file}: {block.code} is no line of {block.table}") from error
    for key, value in entries.items():
        assert key not in table
        patch.setitem(table, key, value)


# --- what the file says of itself ----------------------------------------------------------------------------------


def test_every_kind_of_addition_has_an_example() -> None:
    assert [heading.partition(" (")[0] for heading in examples()] == [
        "A measure",
        "A loss",
        "A layer rule",
        "A data source",
        "A symmetry",
        "A section of the page",
    ]


def test_the_headings_say_how_many_files_are_touched() -> None:
    for heading, blocks in examples().items():
        (said,) = re.findall(r"\((\w+) files?\)", heading)
        assert NUMBERS[said] == len({block.file for block in blocks}), heading
        assert len(re.findall("```python", sections()[heading])) == len(blocks), f"{heading}: a block without a file"


def test_the_way_from_command_to_table_names_every_file_once() -> None:
    named = re.findall(r"`([\w/]+\.py)`", sections()["From the command to the table"])
    assert len(named) > 20
    assert len(named) == len(set(named))
    for file in named:
        assert (PACKAGE / file).is_file(), file
    rooms = [file.partition("/")[0] for file in named]
    first = list(dict.fromkeys(rooms))
    assert first == ["cli", "lab", "inputs", "engine", "analyses", "measures", "values", "results"]


# --- the measure ---------------------------------------------------------------------------------------------------


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Measure:
    defined = apply("A measure", monkeypatch)
    (own,) = [each for each in defined.values() if isinstance(each, Measure)]
    own = replace(own, builtin=True)
    monkeypatch.setitem(MEASURES, own.name, own)
    return own


@pytest.mark.parametrize("net", trained.NETS)
def test_the_measure_agrees_with_its_brute_force(measure: Measure, net: str) -> None:
    registry_wide.test_every_measure_is_described(measure.name)
    model, data = trained.NETS[net]()
    before = copy.deepcopy(model.state_dict())
    found = registry_wide.run_alone(measure, opened(model, data))
    assert measure.reference is not None
    truth = measure.reference(registry_wide.dense_of(net), **measure.settings)
    registry_wide.assert_agrees(found, truth)
    assert found.how == ("lower_bound" if net == "gelu" else "exact")
    again, batched = (
        registry_wide.run_alone(measure, opened(model, data, **options)) for options in ({}, {"batch_size": 7})
    )
    assert again == found
    assert batched.value == pytest.approx(found.value, rel=1e-6)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_measure_spends_no_more_than_it_declares(measure: Measure) -> None:
    registry_wide.test_no_more_passes_are_spent_than_declared(measure.name)
    problem = opened(*trained.trained_gelu())
    problem.survey  # noqa: B018
    problem.spent.clear()
    registry_wide.run_alone(measure, problem, probes=6)
    assert problem.spent["hessian product"] + problem.spent["ggn product"] <= 12
    planned = sl.plan(problem, [measure], settings={f"{measure.name}.probes": 6})
    assert planned.measures[0].sweeps["product"] == 12


def test_the_measure_is_interpreted(measure: Measure) -> None:
    test_interpretations.test_every_measure_is_interpreted()
    test_interpretations.test_every_interpretation_is_whole(measure.name)
    before = registry_wide.run_alone(measure, opened(*trained.trained_mlp()))
    for influence, case in test_interpretations.CASES.items():
        claim = test_interpretations.of(measure.name).answer(influence)
        test_symmetry_claims.assert_claim(claim, before, registry_wide.run_alone(measure, opened(*case())))


@pytest.mark.parametrize("symmetry", registry_wide.SYMMETRIES)
def test_the_measure_keeps_its_claims(measure: Measure, symmetry: str) -> None:
    model, data = trained.trained_mlp()
    changed = test_symmetry_claims.TRANSFORMS[symmetry](model)
    before, after = (registry_wide.run_alone(measure, opened(net, data)) for net in (model, changed))
    test_symmetry_claims.assert_claim(measure.invariances[symmetry], before, after)


def test_the_largest_of_sampled_traces_is_not_too_large_on_average(measure: Measure) -> None:
    """The maximum of sampled traces itself is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    data = torch.randn(30, 4).double() * 1.5, torch.arange(30) % 3
    truth = float(max(Dense(sl.Problem(model, data)).sample_hessian(i).trace() for i in range(30)))
    naive, found = [], []
    for seed in range(12):
        problem = opened(model, data)
        naive.append(float(Blocks(problem, seed=seed).sample_traces(8).value.max()))
        found.append(registry_wide.run_alone(measure, problem, seed=seed, probes=8))
    assert {each.how for each in found} == {"lower_bound"}
    assert all(each.stderr > 0 for each in found)
    values = torch.tensor([each.value for each in found])
    assert float(values.mean()) <= truth + 2 * float(values.std()) / math.sqrt(len(values))
    assert sum(naive) / len(naive) > float(values.mean())


def test_the_measure_is_one_of_all_in_a_report(measure: Measure) -> None:
    problem = sl.Problem(*trained.trained_mlp())
    report = sl.measure(problem, ["hessian_trace", measure])
    samples = sl.per_sample(problem, measure.name)[measure.name]
    assert report[measure.name].value == float(samples.max())
    assert report[measure.name].details["sample"] == int(samples.argmax())
    assert "Largest per-sample trace" in str(report)


# --- the others ----------------------------------------------------------------------------------------------------


def test_the_loss_has_the_second_derivative_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = apply("A loss", monkeypatch)["LogCosh"]()
    for shape in ((5,), (4, 1), (3, 4), (2, 3, 2)):
        outputs, labels = derivatives.randn(*shape), derivatives.randn(*shape, seed=1)
        derivatives.assert_second_derivative(loss, outputs, (None, labels))
        expected = (outputs - labels).cosh().log().mean()
        derivatives.assert_total(loss, outputs, (None, labels), expected)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    problem = sl.Problem(model, (torch.randn(9, 3).double(), torch.randn(9, 2).double()), "log_cosh")
    report = sl.measure(problem, "hessian_trace, hessian_top_eigenvalue, normalized_sharpness")
    dense = Dense(problem)
    for name, found in report.items():
        registry_wide.assert_agrees(found, MEASURES[name].reference(dense, **MEASURES[name].settings))  # type: ignore[misc]
    assert report["hessian_trace"].how == "exact"


def _normalised() -> OpenProblem:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.InstanceNorm2d(3, affine=True), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
    )
    nn.init.uniform_(net[1].weight)
    return opened(net.double(), (torch.randn(10, 1, 6, 6).double(), torch.arange(10) % 3))


def test_the_layer_rule_gives_what_the_slower_way_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    slower = Blocks(_normalised())
    assert {"1.weight", "1.bias"} <= set(slower.sums.fallback)
    apply("A layer rule", monkeypatch)
    problem = _normalised()
    faster = Blocks(problem)
    assert not {"1.weight", "1.bias"} & set(faster.sums.fallback)
    diagonal = Dense(problem).hessian.diagonal()
    truth = sum(float(diagonal[Dense(problem).slices[name]].sum()) for name in ("1.weight", "1.bias"))
    for blocks in (slower, faster):
        trace = blocks.layer_trace("1")
        assert trace.how == "exact"
        assert trace.value == pytest.approx(truth, rel=1e-9)


def test_the_data_source_is_found_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from spiritlevel.lab import datasets

    apply("A data source", monkeypatch)
    folder = tmp_path / "KMNIST" / "raw"
    folder.mkdir(parents=True)
    for name, kind, shape in (("images-idx3", 3, (5, 28, 28)), ("labels-idx1", 1, (5,))):
        size = b"".join(number.to_bytes(4, "big") for number in shape)
        content = b"\0\0\x08" + bytes([kind]) + size + bytes(math.prod(shape))
        (folder / f"t10k-{name}-ubyte").write_bytes(content)
    data = datasets.open_data("kmnist:test", root=tmp_path)
    assert (data.x.shape, data.name, data.split) == ((5, 1, 28, 28), "kmnist", "test")
    with pytest.raises(sl.SpiritlevelError, match="kmnist was not found under"):
        datasets.load("kmnist", root=tmp_path / "elsewhere")


def test_the_symmetry_is_tried_by_an_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    from spiritlevel.analyses import auditing, trials
    from spiritlevel.values import symmetries

    apply("A symmetry", monkeypatch)
    monkeypatch.setattr(auditing, "TRIALS", trials.TRIALS)
    monkeypatch.setitem(symmetries.SYMMETRY_WORDS, "sign_flip", symmetries.SYMMETRIES["sign_flip"].words)
    asked = [
        replace(MEASURES[name], invariances={**MEASURES[name].invariances, "sign_flip": None})
        for name in ("hessian_trace", "weight_norm")
    ]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    problem = sl.Problem(model, (torch.randn(8, 3).double(), torch.arange(8) % 3))
    audit = sl.audit(problem, asked, alphas=())
    assert audit.verdict("weight_norm", "sign_flip") == "invariant"
    assert audit.verdict("hessian_trace", "sign_flip") in ("invariant", "undecided")  # it is sampled below a tanh
    assert not audit.refused
    assert "flipping signs" in str(audit)


def test_the_section_stands_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    from spiritlevel import page
    from spiritlevel.page import builder

    apply("A section", monkeypatch)
    with_rho = sl.measure(sl.Problem(*trained.trained_mlp()), "rho_max")
    (found,) = [each for each in builder.page_of(page.of_reports(with_rho)).sections if each.name == "neurons"]
    assert found.summary == "the largest ρ of 3 layers"
    without = sl.measure(sl.Problem(*trained.trained_mlp()), "weight_norm")
    assert not any(each.name == "neurons" for each in builder.page_of(page.of_reports(without)).sections)


# --- what Python has, at a glance ----------------------------------------------------------------------------------


def test_the_block_that_shows_all_of_python_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "at-a-glance.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.M)
    monkeypatch.chdir(tmp_path)
    model, (x, y) = trained.trained_mlp()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[4].weight.mul_(1.5)
    size = sum(parameter.numel() for parameter in model.parameters())
    names = {"model": model, "x": x, "y": y, "other": sl.Problem(other, (x, y)), "v": torch.ones(size).double()}
    exec(compile(code, "at-a-glance.md", "exec"), names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.json"]

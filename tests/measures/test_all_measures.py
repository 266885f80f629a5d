"""Every declared measure: brute force, declared cost, seeds, batch sizes, words."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch

import spiritlevel as sl
from spiritlevel.analyses.measure_settings import chosen_settings
from spiritlevel.analyses.measuring import run_measure
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.declaration import SYMMETRIES, Measure
from spiritlevel.measures.reference import Dense
from spiritlevel.measures.registry import DEFAULT, GROUPS, MEASURES, select
from spiritlevel.measures.workbench import Workbench
from spiritlevel.results import Report
from spiritlevel.values.estimate import Estimate
from tests.helpers import opened
from tests.measures.trained import NETS, SETTINGS, reported, trained_mlp, uncertainty

FIRST_BLOCK = """hessian_trace hessian_top_eigenvalue hessian_spectral_norm hessian_frobenius hessian_log_volume
ggn_trace noise_curvature weight_norm aceht margin_bound output_margin softmax_margin margin_skewness softmax_impurity
matrix_normalized_sharpness normalized_sharpness normalized_sharpness_direct pac_bayes_terms fisher_rao_norm
fisher_rao_diagonal kappa_last kappa_max kappa_sum kappa_tau_last kappa_tau_max kappa_tau_sum rho_max rho_sum
relative_flatness feature_robustness keskar_sharpness spectral_complexity"""


@cache
def dense_of(net: str, loss: str = "cross_entropy") -> Dense:
    model, data = NETS[net]()
    return Dense(opened(model, data, loss))


def run_alone(own: Measure, problem: OpenProblem, seed: int = 0, **settings: Any) -> Estimate:
    values = chosen_settings([own], {own.name: {**SETTINGS.get(own.name, {}), **settings}})[own.name]
    with problem.session():
        return run_measure(own, Workbench(problem, own.wanted(values), seed=seed), values).value


def assert_agrees(found: Estimate, truth: float) -> None:
    """Hold an estimate to what it says of itself."""
    scale = abs(truth) + 1e-12
    assert found.status in ("ok", "budget_spent"), found.reason
    if found.interval is not None:
        low, high = found.interval
        assert low - 1e-9 * scale <= truth <= high + 1e-9 * scale, (found, truth)
    elif found.how == "exact":
        assert abs(found.value - truth) <= 1e-8 * scale, (found, truth)
    elif found.how == "estimated":
        assert abs(found.value - truth) <= 4 * found.stderr + 1e-8 * scale, (found, truth)
    elif found.how == "lower_bound":
        assert found.value <= truth + 3 * found.stderr + 1e-8 * scale, (found, truth)
        assert found.value >= 0.8 * truth - 3 * found.stderr, (found, truth)
    else:
        assert found.value >= truth - 3 * found.stderr - 1e-8 * scale, (found, truth)
        assert found.value <= 1.25 * truth + 3 * found.stderr, (found, truth)


# --- declarations --------------------------------------------------------------------------------------------------


def test_the_first_block_is_complete() -> None:
    assert set(FIRST_BLOCK.split()) <= set(MEASURES)
    assert GROUPS["default"] == DEFAULT
    assert set(GROUPS["papers"]) == set(MEASURES) - {"normalized_sharpness_direct"}
    assert set(GROUPS["cheap"]) >= {"output_margin", "softmax_margin", "margin_skewness", "softmax_impurity"}


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_is_described(name: str) -> None:
    own = MEASURES[name]
    assert own.name == name
    assert own.builtin
    for words in (own.title, own.meaning, own.formula, own.citation):
        assert words.strip()
    assert own.meaning.endswith(".")
    assert own.meaning.strip(".") != own.title
    assert any(character.isdigit() for character in own.citation), "a citation has a year"
    assert own.sharper_when in ("larger", "smaller", "")
    assert set(own.invariances) == set(SYMMETRIES)
    assert own.invariances["permutation"] is True
    assert sum(answer is not None for answer in own.invariances.values()) >= 3
    assert own.reference is not None
    for setting, choices in own.choices.items():
        assert own.settings[setting] in choices
    assert str(own.cost)


def test_selecting_by_group_glob_and_comma() -> None:
    assert [own.name for own in select("kappa_tau_*")] == ["kappa_tau_last", "kappa_tau_max", "kappa_tau_sum"]
    assert [own.name for own in select("rho_sum, aceht")] == ["rho_sum", "aceht"]
    assert [own.name for own in select(["default", "rho_max"])] == [*DEFAULT, "rho_max"]
    with pytest.raises(sl.UsageError, match="there is no measure named 'hesian_trace'; did you mean hessian_trace"):
        select("hesian_trace")
    with pytest.raises(sl.UsageError, match="no measure was asked for"):
        select([])


# --- brute force ---------------------------------------------------------------------------------------------------


# The brute force of these two writes out noise for weights of two dimensions only.
MATRICES_ONLY = {"pac_bayes_terms", "normalized_sharpness_direct"}


# The brute force of these takes many draws; one network by default, the others with the slow tests.
LONG = {"normalized_sharpness_direct", "noise_curvature"}


def _pairs() -> list[Any]:
    return [
        pytest.param(name, net, marks=[pytest.mark.slow] if name in LONG and net != "mlp" else [])
        for net in NETS
        for name in MEASURES
        if not (net == "conv" and name in MATRICES_ONLY)
    ]


@pytest.mark.parametrize(("name", "net"), _pairs())
def test_every_measure_agrees_with_brute_force(name: str, net: str) -> None:
    own = MEASURES[name]
    assert own.reference is not None
    settings = {**own.settings, **SETTINGS.get(name, {})}
    assert_agrees(reported(net)[name], own.reference(dense_of(net), **settings))


# Where the loss has negative curvature of its own, and what the definitions clip matters.
@pytest.mark.parametrize(
    "name", [n for n, own in MEASURES.items() if {"blocks", "fisher", "radial", "eigen"} & set(own.needs)]
)
def test_measures_of_curvature_agree_under_the_normalised_loss(name: str) -> None:
    own = MEASURES[name]
    if name in ("hessian_log_volume", "pac_bayes_terms", "feature_robustness"):
        found = reported("mlp", "normalized_cross_entropy")[name]
        assert math.isfinite(found.value) or found.reason
        return
    assert own.reference is not None
    truth = own.reference(dense_of("mlp", "normalized_cross_entropy"), **{**own.settings, **SETTINGS.get(name, {})})
    assert_agrees(reported("mlp", "normalized_cross_entropy")[name], truth)


def _variants() -> list[tuple[str, str, Any]]:
    found = []
    for name, own in MEASURES.items():
        for setting, default in own.settings.items():
            values = own.choices.get(setting, (True, False) if isinstance(default, bool) else ())
            found.extend((name, setting, value) for value in values if value != default)
    return found


@pytest.mark.parametrize(("name", "setting", "value"), _variants())
def test_every_choice_of_every_setting_agrees_with_brute_force(name: str, setting: str, value: Any) -> None:
    own = MEASURES[name]
    model, data = trained_mlp()
    found = run_alone(own, opened(model, data), **{setting: value})
    if (name, setting, value) == ("normalized_sharpness", "variant", "icml"):
        # Another definition: at most the root of the number of rows away from half the first one.
        assert 0 < found.value < reported("mlp")[name].value
        return
    assert own.reference is not None
    assert_agrees(found, own.reference(dense_of("mlp"), **{**own.settings, **SETTINGS.get(name, {}), setting: value}))


def test_a_wrong_setting_is_refused_with_near_names() -> None:
    model, data = trained_mlp()
    problem = opened(model, data)
    with pytest.raises(sl.UsageError, match=r"has no setting 'neurons'.*did you mean neuron"):
        sl.measure(problem, "rho_sum", settings={"rho_sum.neurons": "in"})
    with pytest.raises(sl.UsageError, match=r"setting rho_sum.neuron must be one of 'in', 'out', 'layer', not 'up'"):
        sl.measure(problem, "rho_sum", settings={"rho_sum": {"neuron": "up"}})
    with pytest.raises(sl.UsageError, match="which does not exist"):
        sl.measure(problem, "rho_sum", settings={"rho_sun.neuron": "in"})


def test_layers_samples_and_neurons_agree_with_brute_force() -> None:
    report, dense = reported("mlp"), dense_of("mlp")
    problem = dense.problem
    for layer, own in problem.layers.items():
        expected = sum(float(dense.hessian.diagonal()[dense.slices[full]].sum()) for full in own.parameters.values())
        assert report.per_layer["hessian_trace"][layer].value == pytest.approx(expected, rel=1e-8)
    for layer, full in problem.weights.items():
        weight, block = dense.tensor(full), dense.block(full)
        norm = float(weight.square().sum())
        assert report.per_layer["kappa_tau"][layer].value == pytest.approx(norm * float(block.trace()), rel=1e-8)
        low, high = report.per_layer["kappa"][layer].interval
        assert low <= norm * float(torch.linalg.eigvalsh(block)[-1]) <= high
        rows = torch.einsum("ia,iaib,ib->i", weight, block.reshape(*weight.shape, *weight.shape), weight)
        torch.testing.assert_close(torch.tensor(report.per_neuron["rho"][layer]).double(), rows, rtol=1e-6, atol=1e-12)
        assert report.per_layer["rho_sum"][layer].value == pytest.approx(float(rows.sum()), rel=1e-8)
        assert report.per_layer["rho_max"][layer].value == pytest.approx(float(rows.max()), rel=1e-8)
    traces = torch.stack([dense.sample_hessian(i).trace() for i in range(20)])
    torch.testing.assert_close(report.per_sample["hessian_trace"], traces, rtol=1e-8, atol=1e-12)


# --- cost, seeds, batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MEASURES)
def test_no_more_passes_are_spent_than_declared(name: str) -> None:
    own = MEASURES[name]
    model, data = trained_mlp()
    problem = opened(model, data, batch_size=7)
    problem.survey  # noqa: B018
    problem.spent.clear()
    settings = {**own.settings, **SETTINGS.get(name, {}), **({"draws": 16} if name == "noise_curvature" else {})}
    found = run_alone(own, problem, **settings)
    words = {
        "outputs - 1": 2,
        "layers × Lanczos steps": 100 * len(problem.weights),
        "the top pairs and probes": 10 * problem.size + settings.get("max_probes", 0),
        "up to 2 × probes": 2 * settings.get("probes", 0),
        "until the residual is met": 10 * problem.size,
        "until the residuals are met": 10 * problem.size,
    }

    def limit(kind: str) -> float:
        declared = getattr(own.cost, kind)
        return words[declared] if isinstance(declared, str) else float(declared)

    spent = problem.spent
    assert spent["forward"] <= limit("forward"), spent
    assert spent["gradient"] <= limit("gradient"), spent
    assert spent["column"] <= limit("column"), spent
    assert spent["hessian product"] + spent["ggn product"] <= limit("product"), spent
    assert set(spent) <= {"forward", "gradient", "column", "hessian product", "ggn product"}
    assert found.passes == sum(spent.values())


def test_a_plan_names_every_measure_before_any_pass_of_its_own() -> None:
    model, data = trained_mlp()
    problem = opened(model, data)
    planned = sl.plan(problem, ["hessian_trace", "kappa_tau_sum", "hessian_top_eigenvalue", "output_margin"])
    assert planned.measures[0].name == "hessian_trace"
    assert planned.measures[0].sweeps == {"forward": 1.0, "column": 2.0}
    assert planned.measures[1].sweeps == {}  # shares the first one's sweep
    assert planned.seconds >= sum(each.seconds for each in planned.measures)  # with what every report shows
    assert planned.memory_bytes > 0
    assert "hessian_top_eigenvalue" in str(planned)
    assert set(problem.spent) == {"forward"}
    assert len(sl.plan(problem, "all").measures) == len(MEASURES)


def _numbers(report: Report) -> dict[str, Any]:
    return {
        "network": {name: (e.value, e.stderr, e.interval, e.how, e.status) for name, e in report.items()},
        "layers": {q: {layer: (e.value, e.stderr) for layer, e in own.items()} for q, own in report.per_layer.items()},
        "neurons": report.per_neuron,
        "samples": {name: values.tolist() for name, values in report.per_sample.items()},
    }


@pytest.mark.parametrize("net", ["mlp", "gelu"])
def test_the_same_seed_gives_the_same_bits(net: str) -> None:
    model, data = NETS[net]()
    torch.manual_seed(12345)  # the caller's random state has no say
    again = sl.measure(opened(model, data), "all", settings=SETTINGS)
    assert repr(_numbers(again)) == repr(_numbers(reported(net)))


def test_another_seed_changes_only_what_is_sampled() -> None:
    one, other = reported("mlp"), reported("mlp", seed=1)
    changed = {name for name in one if one[name].value != other[name].value}
    assert all(one[name].how != "exact" for name in changed)
    assert "noise_curvature" in changed


def test_a_frobenius_norm_of_more_parameters_than_probes_is_sampled_with_its_error() -> None:
    model, data = NETS["mlp"]()
    truth = MEASURES["hessian_frobenius"].reference(dense_of("mlp"))
    found = [
        run_alone(MEASURES["hessian_frobenius"], opened(model, data), seed, max_probes=16, k=3) for seed in range(6)
    ]
    assert len({estimate.value for estimate in found}) == 6
    for estimate in found:
        assert estimate.how == "estimated"
        assert abs(estimate.value - truth) <= 5 * estimate.stderr


@pytest.mark.parametrize("net", ["mlp", "gelu"])
def test_the_batch_size_changes_nothing(net: str) -> None:
    model, data = NETS[net]()
    small = sl.measure(opened(model, data, batch_size=7), "all", settings=SETTINGS)
    for name, before in reported(net).items():
        slack = 2 * uncertainty(before) if before.interval is not None else 0.0
        assert abs(small[name].value - before.value) <= 1e-6 * abs(before.value) + slack, name
        assert small[name].how == before.how


def test_measuring_together_gives_what_measuring_alone_gives() -> None:
    model, data = trained_mlp()
    for name in MEASURES:
        alone = run_alone(MEASURES[name], opened(model, data))
        together = reported("mlp")[name]
        assert alone.value == pytest.approx(together.value, rel=1e-9 if alone.how == "exact" else 1e-6), name


def test_a_users_measure_joins_in() -> None:
    @sl.declare(
        title="Mean absolute weight", formula="mean |w|", citation="a test of 2026", not_invariant=("layer_rescaling",)
    )
    def mean_absolute(problem: OpenProblem, *, power: float = 1.0) -> float:
        """Average size of a weight."""
        return float(torch.cat([t.detach().abs().reshape(-1) for t in problem.tensors]).pow(power).mean())

    model, data = trained_mlp()
    report = sl.measure(opened(model, data), [mean_absolute, "weight_norm"], settings={"mean_absolute.power": 2.0})
    size = sum(parameter.numel() for parameter in model.parameters())
    assert report["mean_absolute"].value == pytest.approx(report["weight_norm"].value ** 2 / size, rel=1e-10)
    with pytest.raises(sl.UsageError, match="which is no quantity"):
        sl.declare(title="t", formula="f", citation="c")(lambda weights: 0.0)

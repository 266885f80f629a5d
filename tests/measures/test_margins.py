"""Margins and softmax quantities against brute force, and their errors against simulation."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from spiritlevel.engine.passes.outputs import forward_statistics, margins
from spiritlevel.engine.passes.radial import radial_statistics
from spiritlevel.measures.margins import (
    aceht,
    margin_bound,
    margin_skewness,
    output_margin,
    softmax_impurity,
    softmax_margin,
)
from spiritlevel.measures.over_samples import Distribution
from spiritlevel.measures.reference.dense import Dense
from spiritlevel.values.errors import SpiritlevelError
from tests.helpers import opened
from tests.measures.classifiers import data, network, problems

FORWARD = [
    (measure, settings)
    for measure, choices in (
        (aceht, [{}, {"feature": "penultimate"}, {"bias": False}, {"feature": "penultimate", "bias": True}]),
        (margin_bound, [{}, {"bound_norm": "sq"}, {"bound_norm": "l2"}]),
        (output_margin, [{}, {"statistic": "mean"}, {"statistic": "p10"}, {"abs": True}]),
        (softmax_margin, [{}, {"statistic": "mean"}, {"statistic": "p10"}, {"abs": True}]),
        (margin_skewness, [{}, {"form": "central"}, {"abs": True}]),
        (softmax_impurity, [{}]),
    )
    for settings in choices
]


@pytest.mark.parametrize("which", ["relu", "class weights"])
@pytest.mark.parametrize(("measure", "settings"), FORWARD, ids=lambda value: getattr(value, "name", str(value)))
def test_forward_measures_equal_their_reference(which, measure, settings):
    problem = problems()[which]
    found = measure(forward_statistics(problem), **measure.checked_settings(settings))
    expected = measure.reference(Dense(problem), **settings)
    assert float(found.value) == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert found.value.how == "exact"
    assert found.value.stderr == 0
    assert found.value.stderr_data is None or found.value.stderr_data > 0
    (samples,) = found.samples.values()
    assert samples.shape == (41,)


def test_slopes_of_very_confident_samples_keep_their_digits():
    """At a margin of 60 the gradient p - e_y of the label has no digit left in float32, and none in float64."""
    model = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[60.0], [0.0], [-1.0]]))
    problem = opened(model, (torch.ones(2, 1), torch.tensor([0, 0])))
    f = [60.0, 0.0, -1.0]
    expected = sum(math.exp(v - 60) * (v - 60) for v in f)  # Σ p_j (f_j - f_y)
    assert float(radial_statistics(problem).loss_slope[0]) == pytest.approx(expected, rel=1e-6)


def test_aceht_is_the_exact_trace_of_an_affine_classifier_and_of_any_last_layer():
    for bias in (True, False):
        torch.manual_seed(2)
        problem = opened(nn.Linear(5, 4, bias=bias).double(), data())
        stats = forward_statistics(problem)
        assert stats.head_has_bias is bias
        assert float(aceht(stats).value) == pytest.approx(float(Dense(problem).hessian.trace()), rel=1e-12)
    problem = opened(network("relu"), data())
    stats, dense = forward_statistics(problem), Dense(problem)
    last = dense.block("2.weight").trace() + dense.block("2.bias").trace()
    assert float(aceht(stats, feature="penultimate").value) == pytest.approx(float(last), rel=1e-12)


def test_the_printed_bound_is_no_upper_bound_and_ours_is():
    problem = opened(network("relu"), data(count=200))
    stats = forward_statistics(problem)
    exact = aceht(stats).samples["aceht"]
    ours = margin_bound(stats).samples["margin_bound"]
    printed = margin_bound(stats, bound_norm="l2").samples["margin_bound"]
    assert not bool(stats.correct.all())
    assert bool((ours >= exact).all())
    assert bool((printed < exact).any())
    assert float(margin_bound(stats, bound_norm="l2").value) < float(aceht(stats).value)


def test_margins_from_0_to_60_in_float32_keep_six_digits():
    from decimal import Decimal, getcontext

    getcontext().prec = 60
    generator = torch.Generator().manual_seed(0)
    gaps = torch.linspace(0, 60, 121)
    scores = torch.randn(121, 5, generator=generator) - 3
    scores[:, 2] = scores.max(1).values + gaps
    scores[1::40, 2] = scores[1::40].amax(1) + 1e-3
    labels = torch.full((121,), 2)
    labels[60:] = 1  # confidently wrong ones too
    found = margins(scores, labels)
    problem = opened(nn.Linear(5, 5), (scores, labels), forward=lambda model, batch: batch[0] + 0 * model(batch[0]))
    impurity = forward_statistics(problem).impurity
    for i, (row, label) in enumerate(zip(scores.tolist(), labels.tolist())):
        powers = [Decimal(value).exp() for value in row]
        p = [power / sum(powers) for power in powers]
        gap = Decimal(row[label]) - max(Decimal(v) for c, v in enumerate(row) if c != label)
        gamma = p[label] - max(v for c, v in enumerate(p) if c != label)
        assert float(found["output_margin"][i]) == pytest.approx(float(gap), rel=1e-6)
        assert float(found["softmax_margin"][i]) == pytest.approx(float(gamma), rel=1e-6)
        assert float(found["one_minus_margin_squared"][i]) == pytest.approx(float(1 - gamma**2), rel=1e-6)
        assert float(impurity[i]) == pytest.approx(float(1 - sum(v * v for v in p)), rel=1e-6)


def test_batch_size_changes_nothing_and_outputs_need_not_be_kept():
    whole = forward_statistics(opened(network("relu"), data(), batch_size=41))
    problem = opened(network("relu"), data(), batch_size=3)
    problem.known_survey = replace(problem.survey, outputs=None)  # as where they are too many to keep
    parts = forward_statistics(problem)
    for name in ("output_margin", "softmax_margin", "impurity", "one_minus_margin_squared", "feature_norm_squared"):
        assert torch.allclose(getattr(whole, name), getattr(parts, name), rtol=1e-13, atol=0)
    assert whole.problem.spent["forward"] == 2  # the first sweep, and the one for the features
    assert parts.problem.spent["forward"] == 3
    radial = [radial_statistics(opened(network("relu"), data(), batch_size=size)) for size in (41, 3)]
    assert torch.allclose(radial[0].loss_slope, radial[1].loss_slope, rtol=1e-12, atol=1e-15)
    assert torch.allclose(radial[0].curvature, radial[1].curvature, rtol=1e-12, atol=1e-15)


def test_data_that_comes_in_another_order_is_refused():
    x, y = data()
    rng = np.random.default_rng(0)

    class Shuffled:
        def __iter__(self):
            order = rng.permutation(len(x))
            return iter([(x[order], y[order])])

    problem = opened(network("relu"), Shuffled())
    assert problem.survey.count == 41
    with pytest.raises(SpiritlevelError, match="two sweeps over the same data disagree"):
        forward_statistics(problem)
    with pytest.raises(SpiritlevelError, match="two sweeps over the same data disagree"):
        radial_statistics(problem)


def test_ignored_labels_do_not_count():
    x, y = data()
    ignored = y.clone()
    ignored[::3] = -100
    stats = forward_statistics(opened(network("relu"), (x, ignored)))
    kept = forward_statistics(opened(network("relu"), (x[ignored >= 0], y[ignored >= 0])))
    for measure in (output_margin, softmax_margin, margin_skewness, margin_bound, aceht, softmax_impurity):
        assert float(measure(stats).value) == pytest.approx(float(measure(kept).value), rel=1e-12)
        assert measure(stats).value.samples == int((ignored >= 0).sum())
    assert bool(stats.output_margin[::3].isnan().all())


def test_what_has_no_meaning_says_why():
    x, _ = data()
    regression = forward_statistics(opened(network("relu"), (x, x[:, :4]), "mse"))
    for measure in (output_margin, softmax_margin, margin_skewness, margin_bound):
        found = measure(regression).value
        assert found.status == "not_applicable"
        assert "labels are no classes" in found.reason
    assert "no class scores" in aceht(regression).value.reason
    assert "no class scores" in softmax_impurity(regression).value.reason

    soft = forward_statistics(opened(network("relu"), (x, x[:, :4].softmax(1))))
    assert soft.output_margin is None
    assert softmax_impurity(soft).value.ok

    tokens = torch.randint(0, 9, (12, 3))
    embedded = nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(6, 4), nn.LogSoftmax(1)).double()
    stats = forward_statistics(opened(embedded, (tokens, torch.randint(0, 4, (12,)))))
    assert "no floating-point input" in aceht(stats).value.reason
    assert "not those of one linear layer" in aceht(stats, feature="penultimate").value.reason

    constant = nn.Linear(5, 4).double()
    nn.init.zeros_(constant.weight)
    flat = forward_statistics(opened(constant, (x, torch.zeros(len(x), dtype=torch.long))))
    assert "all margins are equal" in margin_skewness(flat).value.reason


def test_an_in_place_activation_does_not_hide_that_the_outputs_are_no_linear_layer():
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True)).double()
    assert forward_statistics(opened(model, data())).head is None


def test_the_model_comes_back_as_it_was():
    model = network("relu").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    problem = opened(model, data())
    forward_statistics(problem).feature_norm_squared  # noqa: B018
    radial_statistics(problem)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("statistic", "truth"), [("mean", 1.0), ("median", math.log(2)), ("p10", -math.log(0.9))])
def test_errors_over_samples_cover_the_truth(statistic, truth, weighted):
    """Exponential samples, a skewed law: intervals of ±1.96 errors should hold the truth in about 95% of draws."""
    rng, hits, draws = np.random.default_rng(7), 0, 400
    for _ in range(draws):
        found = drawn(rng.exponential(size=300), rng, weighted).statistic(statistic)
        hits += abs(found.value - truth) <= 1.96 * found.stderr
    assert 0.91 <= hits / draws <= 0.985  # 400 draws have an error of 1.1%


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("statistic", ["skewness", "third_central_moment"])
@pytest.mark.parametrize("law", ["normal", "exponential"])
def test_errors_of_third_moments_are_their_spread_over_draws(statistic, law, weighted):
    rng = np.random.default_rng(8)
    found = [getattr(drawn(getattr(rng, law)(size=400), rng, weighted), statistic)() for _ in range(400)]
    spread = np.std([each.value for each in found])
    typical = math.sqrt(np.mean([each.stderr**2 for each in found]))
    assert typical == pytest.approx(spread, rel=0.2)
    if law == "normal":
        assert 0.9 <= np.mean([abs(each.value) <= 1.96 * each.stderr for each in found]) <= 0.985


def drawn(values: np.ndarray, rng: np.random.Generator, weighted: bool) -> Distribution:
    weights = rng.uniform(0.5, 2.0, len(values)) if weighted else np.ones(len(values))
    return Distribution(torch.from_numpy(values), torch.from_numpy(weights))


def test_quantiles_are_the_usual_ones_and_too_few_samples_have_no_error():
    values = torch.randn(37, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spread = Distribution(values, torch.full((37,), 2.0))
    for level in (0.1, 0.25, 0.5, 0.75):
        assert spread.quantile(level).value == pytest.approx(np.quantile(values, level, method="hazen"), rel=1e-13)
    few = Distribution(values[:20], torch.ones(20))
    assert few.statistic("p10").stderr is None  # its lower order statistic would lie below the smallest sample
    assert few.statistic("median").stderr is not None
    assert Distribution(values[:1], torch.ones(1)).mean().stderr is None
    assert Distribution(values[:3], torch.ones(3)).skewness().stderr is None
    one_apart = Distribution(torch.tensor([1.0, 1.0, 1.0, 1.0, 2.0]), torch.ones(5))
    assert one_apart.skewness().stderr is None  # without the last sample there is no skewness


def test_scaling_the_outputs_does_what_is_declared():
    x, y = data()
    model = network("relu")
    problem = opened(model, (x, y))
    scaled = network("relu")
    with torch.no_grad():
        scaled[2].weight *= 3
        scaled[2].bias *= 3
    before, after = forward_statistics(problem), forward_statistics(opened(scaled, (x, y)))
    for measure in (aceht, margin_bound, output_margin, softmax_margin, margin_skewness, softmax_impurity):
        same = float(measure(before).value) == pytest.approx(float(measure(after).value), rel=1e-10)
        assert same is measure.invariances["output_scaling"], measure.name

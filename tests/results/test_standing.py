"""Three answers to "at a minimum?": lack of power is never a yes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import spiritlevel as sl
from spiritlevel.results.header import Header
from spiritlevel.results.standing import at_minimum, standing_of, standing_words
from spiritlevel.results.terminal import as_text, rows_table
from tests.analyses.made_reports import made


def test_a_long_gradient_is_a_no_and_a_short_one_a_yes_on_all_data_only() -> None:
    assert at_minimum(0.5, 0.1, 1000, 1000) is False
    assert at_minimum(0.1, 0.1, 1000, 1000) is True
    assert at_minimum(0.1, 0.1, 1000, 5000) is None
    assert at_minimum(0.5, 0.1, 1000, 5000) is False
    assert at_minimum(0.1, None, 1, 1) is None
    assert at_minimum(0.0, 0.0, 10, 10) is True
    assert at_minimum(0.15, 0.1, 1000, 1000) is None


def test_a_plateau_is_no_minimum_unless_something_brought_the_network_there() -> None:
    assert at_minimum(0.07, 0.08, 1000, 1000) is True
    assert at_minimum(0.07, 0.08, 1000, 1000, guessing=True) is None
    assert at_minimum(1e-3, 0.08, 1000, 1000, guessing=True) is True


@pytest.mark.parametrize("name", ["digits_mlp", "digits_cnn"])
@pytest.mark.parametrize("seed", range(3))
def test_networks_as_initialised_are_never_called_at_a_minimum(name: str, seed: int) -> None:
    problem = sl.Problem(sl.nets.build(name, seed=seed), sl.datasets.load("digits"))
    assert standing_of(sl.measure(problem, "weight_norm").header) != "yes"


@pytest.mark.parametrize("samples", [8, 30, 100, 300])
def test_few_samples_never_make_a_minimum_of_a_slope(samples: int) -> None:
    # Each sample's gradient leans by a third of its spread: over enough samples that is a long way from a minimum.
    rng = np.random.default_rng(samples)
    for _ in range(300):
        gradients = rng.standard_normal((samples, 50)) / math.sqrt(50)
        gradients[:, 0] += 1 / 3
        mean = gradients.mean(0)
        noise = math.sqrt(((gradients - mean) ** 2).sum() / (samples - 1) / samples)
        assert at_minimum(float(np.linalg.norm(mean)), noise, samples, samples) is not True


@pytest.mark.parametrize("samples", [60, 150, 200, None])
def test_weights_that_are_no_minimum_are_never_called_one(samples: int | None) -> None:
    torch.manual_seed(0)
    x = torch.randn(400, 6)
    y = x[:, :3].argmax(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    for few in (20, 400):
        report = sl.measure(
            sl.Problem(model, (x[:few], y[:few]), samples=samples if few == 400 else None), "weight_norm"
        )
        assert standing_of(report.header) in ("no", "not told")
        assert standing_words(report.header)


def test_a_minimum_of_all_data_is_one_and_of_a_draw_is_not_told() -> None:
    torch.manual_seed(1)
    x, y = torch.randn(300, 4), torch.randint(2, (300,))
    model = torch.nn.Linear(4, 2)
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=200, tolerance_grad=1e-7)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimiser.step(closure)
    whole = sl.measure(sl.Problem(model, (x, y)), "weight_norm").header
    assert (standing_of(whole), standing_words(whole)) == ("yes", "at a minimum")
    drawn = sl.measure(sl.Problem(model, (x, y), samples=100), "weight_norm").header
    assert standing_words(drawn) == "not distinguishable from noise at 100 samples"


def test_files_of_earlier_versions_are_read_by_what_they_know() -> None:
    assert standing_of(Header()) is None
    assert standing_of(Header(at_minimum=True, samples=10, samples_total=10, gradient_noise=0.1)) == "yes"
    assert standing_of(Header(at_minimum=True, samples=10, samples_total=20, gradient_noise=0.1)) == "not told"


def test_a_table_of_several_marks_each_answer() -> None:
    reports = {
        label: made(label, {}, at_minimum=answer, gradient_norm=0.3, gradient_noise=0.2)
        for label, answer in (("slope", False), ("noise", None), ("minimum", True))
    }
    text = as_text(rows_table(reports))
    assert all(mark in text for mark in ("0.300*", "0.300?", "* the gradient is not small", "? the gradient is not"))

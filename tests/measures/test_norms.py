"""Norms, stable ranks and spectral complexity against matrices written out in full."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spiritlevel.engine.passes.outputs import forward_statistics
from spiritlevel.measures import norms as norms_module
from spiritlevel.measures.norms import matrix_sizes, spectral_complexity, weight_norm
from spiritlevel.measures.reference.dense import Dense
from spiritlevel.measures.reference.norms import layer_matrices
from tests.helpers import opened


def images(count: int = 20) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 2, 6, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (count,), generator=generator)


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 6, (3, 2), groups=2, dilation=(1, 2)),
        nn.ReLU(),
        nn.Conv2d(6, 2, 2, stride=2),
        nn.Flatten(),
        nn.Linear(4, 3),
    ).double()


def right_labels(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).argmax(1)


@pytest.mark.parametrize("conv", ["reshaped", "fft"])
def test_layer_norms_are_those_of_the_matrix_written_out(conv):
    problem = opened(convolutional(), images(), batch_size=8)
    expected = layer_matrices(Dense(problem), conv)
    found = weight_norm(problem, conv=conv)
    assert float(found.value) == pytest.approx(weight_norm.reference(Dense(problem)), rel=1e-14)
    assert set(found.layers) == set(weight_norm.layer_quantities)
    for layer, full in problem.weights.items():
        values = np.linalg.svd(expected[full], compute_uv=False)
        assert float(found.layers["spectral_norm"][layer]) == pytest.approx(values[0], rel=1e-12)
        assert float(found.layers["frobenius"][layer]) == pytest.approx(math.sqrt((values**2).sum()), rel=1e-12)
        rank = (values**2).sum() / values[0] ** 2
        assert float(found.layers["stable_rank"][layer]) == pytest.approx(rank, rel=1e-12)
    squares = sum(float(value) ** 2 for value in found.layers["weight_norm"].values())
    assert squares == pytest.approx(float(found.value) ** 2, rel=1e-13)


def test_a_convolution_that_has_no_circular_form_says_why():
    problem = opened(convolutional(), images())
    read_as = {name: sizes.read_as for name, sizes in matrix_sizes(problem, "fft").items()}
    assert read_as["0"] == "circular convolution over 6 x 5"
    assert "its stride is 2 x 2" in read_as["4"]
    assert read_as["6"] == "matrix"
    small = nn.Sequential(nn.Conv2d(2, 3, 7, padding=3), nn.Flatten(), nn.Linear(90, 3)).double()
    assert "larger than its input" in matrix_sizes(opened(small, images()), "fft")["0"].read_as


@pytest.mark.parametrize("kind", [nn.ConvTranspose2d, nn.Conv2d])
def test_circular_norm_of_a_transposed_convolution_is_that_of_its_transpose(kind):
    torch.manual_seed(3)
    model = nn.Sequential(kind(2, 2, 3, padding=1), nn.Flatten(), nn.Linear(60, 3)).double()
    weight = model[0].weight.detach()
    sizes = matrix_sizes(opened(model, images()), "fft")["0"]
    forward = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Flatten(), nn.Linear(60, 3)).double()
    with torch.no_grad():
        forward[0].weight.copy_(weight)
    matrix = layer_matrices(Dense(opened(forward, images())), "fft")["0.weight"]
    assert sizes.spectral == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-12)


@pytest.mark.parametrize("shape", [(40, 90), (90, 40)])
def test_large_matrices_go_by_lanczos_to_the_same_value(shape, monkeypatch):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = float(torch.linalg.matrix_norm(matrix, 2))
    assert norms_module._largest_singular_value(matrix) == pytest.approx(expected, rel=1e-13)
    monkeypatch.setattr(norms_module, "DENSE_SIDE", 10)
    assert norms_module._largest_singular_value(matrix) == pytest.approx(expected, rel=1e-9)
    assert norms_module._largest_singular_value(matrix * 1e-200) == pytest.approx(expected * 1e-200, rel=1e-9)


def test_the_two_by_two_example_of_tsuzuku_et_al():
    """Appendix A.1, with the printed values that are wrong put right: ‖W1‖ = 5.465, ‖W2‖ = 13.19; 50.00 and 86.03."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False)).double()
    x, y = torch.randn(4, 2, dtype=torch.float64), torch.tensor([0, 1, 0, 1])
    for first, second, spectral in (
        ([[1, 2], [3, 4]], [[5, 6], [7, 8]], (5.465, 13.19)),
        ([[10, 20], [30, 40]], [[0.5, 0.6], [0.7, 0.8]], (54.65, 1.319)),
        ([[0.1, 0.2], [30, 40]], [[50, 0.6], [70, 0.8]], (50.00, 86.03)),
    ):
        with torch.no_grad():
            model[0].weight.copy_(torch.tensor(first))
            model[2].weight.copy_(torch.tensor(second))
        found = weight_norm(opened(model, (x, y))).layers
        assert [float(found["spectral_norm"][name]) for name in ("0", "2")] == pytest.approx(spectral, rel=1e-3)
    # Rescaling single neurons drives the stable rank towards 1.
    assert float(found["stable_rank"]["2"]) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("conv", ["reshaped", "fft"])
@pytest.mark.parametrize("margin", ["median", "p10", "mean"])
def test_spectral_complexity_equals_its_reference(conv, margin):
    model = convolutional()
    x, _ = images()
    problem = opened(model, (x, right_labels(model, x)), batch_size=7)
    found = spectral_complexity(problem, forward_statistics(problem), margin=margin, conv=conv).value
    expected = spectral_complexity.reference(Dense(problem), margin=margin, conv=conv)
    assert found.ok
    assert float(found) == pytest.approx(expected, rel=1e-12)
    assert math.exp(found.details["log"]) == pytest.approx(expected, rel=1e-12)
    assert (found.stderr_data is None) is (margin == "p10")  # twenty samples do not bound a tenth percentile


def test_spectral_complexity_needs_a_margin_above_zero_and_weights():
    model = convolutional()
    x, _ = images()
    wrong = opened(model, (x, (right_labels(model, x) + 1) % 3))
    found = spectral_complexity(wrong, forward_statistics(wrong)).value
    assert found.status == "not_applicable"
    assert found.reason.startswith("the median output margin is -")
    biases = opened(model, (x, right_labels(model, x)), parameters="*.bias")
    assert (
        "no chosen parameter is a weight matrix" in spectral_complexity(biases, forward_statistics(biases)).value.reason
    )
    with torch.no_grad():
        model[4].weight.zero_()
    empty = opened(model, (x, right_labels(model, x)))
    assert "layer 4 is all zeros" in spectral_complexity(empty, forward_statistics(empty)).value.reason
    rank = weight_norm(empty).layers["stable_rank"]["4"]
    assert rank.status == "not_applicable"


def test_spectral_complexity_too_large_for_a_number_is_reported_by_its_logarithm():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(3, 3, bias=False) for _ in range(3)]).double()
    with torch.no_grad():
        for layer in model:
            layer.weight *= 1e140
    x = torch.randn(9, 3, dtype=torch.float64) * 1e-306
    problem = opened(model, (x, right_labels(model, x)))
    found = spectral_complexity(problem, forward_statistics(problem)).value
    assert found.status == "not_finite"
    assert found.details["log"] > 700


def test_declared_answers_hold_on_a_chain():
    torch.manual_seed(0)
    x = torch.randn(30, 4, dtype=torch.float64)

    def chain() -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()

    def values(model: nn.Module, labels: Tensor) -> tuple[float, float]:
        problem = opened(model, (x, labels))
        complexity = spectral_complexity(problem, forward_statistics(problem)).value
        return float(weight_norm(problem).value), float(complexity)

    labels = right_labels(chain(), x)
    before = values(chain(), labels)
    neurons = torch.tensor([0.1, 1.0, 3.0, 10.0, 0.5], dtype=torch.float64)
    order = torch.tensor([2, 0, 1, 4, 3])
    changed = {name: chain() for name in ("neuron_rescaling", "output_scaling", "permutation", "layer_rescaling")}
    with torch.no_grad():
        model = changed["neuron_rescaling"]
        model[0].weight *= neurons[:, None]
        model[0].bias *= neurons
        model[2].weight /= neurons
        for parameter in changed["output_scaling"][2].parameters():
            parameter *= 4
        model = changed["permutation"]
        model[0].weight.copy_(model[0].weight[order])
        model[0].bias.copy_(model[0].bias[order])
        model[2].weight.copy_(model[2].weight[:, order])
        model = changed["layer_rescaling"]
        model[0].weight *= 7
        model[0].bias *= 7
        model[2].weight /= 7
    for name, model in changed.items():
        after = values(model, labels)
        for measure, old, new in zip((weight_norm, spectral_complexity), before, after):
            answer = measure.invariances[name]
            if answer is None:  # whole layers cancel in a chain, which this is
                answer = True
            assert (new == pytest.approx(old, rel=1e-10)) is answer, (measure.name, name)

"""The audit reproduces what the papers prove about their measures, and catches a measure that says otherwise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.analyses.auditing import chosen_strengths, judge_trial
from spiritlevel.analyses.equivalents import Equivalents
from spiritlevel.results.audits import Audit
from spiritlevel.values.estimate import Estimate
from tests.helpers import opened

# Written down from Petzka et al. 2019 (table 1, theorems 2 and 3, appendix B) and Tsuzuku et al. 2019 (sections 4, 5
# and 7), not read from the declarations.
FUNCTION_ONLY = {"aceht", "margin_bound", "output_margin", "softmax_margin", "margin_skewness", "softmax_impurity"}
KEEPS_NEURON_SCALES = {"normalized_sharpness", "rho_max", "rho_sum", "fisher_rao_norm", "fisher_rao_diagonal"}
KEEPS_LAYER_SCALES = {
    "kappa_last", "kappa_max", "kappa_sum", "kappa_tau_last", "kappa_tau_max", "kappa_tau_sum",
    "matrix_normalized_sharpness", "relative_flatness",
}  # fmt: skip
NO_INVARIANCE = {
    "hessian_trace", "ggn_trace", "hessian_top_eigenvalue", "hessian_spectral_norm", "hessian_frobenius",
    "hessian_log_volume", "keskar_sharpness", "weight_norm",
}  # fmt: skip
SAMPLED = {"noise_curvature"}  # its error may be as large as a change
SHARPNESS = KEEPS_NEURON_SCALES | KEEPS_LAYER_SCALES
KNOWN = FUNCTION_ONLY | SHARPNESS | NO_INVARIANCE | SAMPLED | {"spectral_complexity"}


def confident(model: nn.Module, x: Tensor, wrong: int = 1) -> sl.Problem:
    """Return a problem whose labels are the network's own answers but for a few."""
    model = model.double().eval()
    with torch.no_grad():
        y = model(x).argmax(1)
        y[:wrong] = (y[:wrong] + 1) % model(x).shape[1]
    return opened(model, (x, y))


def mlp() -> sl.Problem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return confident(model, torch.randn(30, 4, dtype=torch.float64))


def conv_bn() -> sl.Problem:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 3, 2, bias=False), nn.BatchNorm2d(3), nn.ReLU(),
        nn.Flatten(), nn.Linear(3 * 2 * 2, 3),
    )  # fmt: skip
    x = torch.randn(30, 1, 5, 5, dtype=torch.float64)
    model.double()(x)  # running statistics of its own
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 2.0)
                module.bias.normal_()
    return confident(model, x)


@pytest.fixture(scope="module", params=[mlp, conv_bn], ids=["mlp", "conv_bn"])
def audited(request: Any) -> tuple[str, Audit]:
    problem = request.param()
    # With every eigenvalue counted the Frobenius norm is exact, so that "invariant" can be told from "undecided".
    exact = {"hessian_frobenius": {"k": 400, "probes": 2}, "hessian_log_volume": {"k": 3, "tolerance": 1e-8}}
    return request.param.__name__, sl.audit(problem, "papers", strengths=("usual",), alphas=(10.0,), settings=exact)


def verdicts(audit: Audit, symmetry: str) -> dict[str, str]:
    found = {name: audit.verdict(name, symmetry) for name in audit.verdicts if name in KNOWN}
    assert all(found.pop(name) != "invariant" for name in SAMPLED)
    return found


def test_every_measure_is_judged_and_none_contradicts_its_declaration(audited: tuple[str, Audit]) -> None:
    _, audit = audited
    assert set(audit.verdicts) >= KNOWN
    assert audit.contradictions == []
    assert audit.refused == {}


def test_layer_rescaling_column_is_that_of_the_papers(audited: tuple[str, Audit]) -> None:
    kind, audit = audited
    found = verdicts(audit, "layer_rescaling")
    kept = FUNCTION_ONLY | SHARPNESS
    # A chain of weights hands every factor on; a normalisation's weight, which is no matrix, does not.
    changed = NO_INVARIANCE | ({"spectral_complexity"} if kind == "conv_bn" else set())
    kept = kept | ({"spectral_complexity"} - changed)
    assert {name for name, verdict in found.items() if verdict == "invariant"} == kept
    assert {name for name, verdict in found.items() if verdict == "changes"} == changed


def test_neuron_rescaling_column_is_that_of_the_papers(audited: tuple[str, Audit]) -> None:
    _, audit = audited
    found = verdicts(audit, "neuron_rescaling")
    assert {name for name, verdict in found.items() if verdict == "invariant"} == FUNCTION_ONLY | KEEPS_NEURON_SCALES
    changed = NO_INVARIANCE | KEEPS_LAYER_SCALES | {"spectral_complexity"}
    assert {name for name, verdict in found.items() if verdict == "changes"} == changed


def test_reordering_units_changes_nothing(audited: tuple[str, Audit]) -> None:
    _, audit = audited
    found = {name: audit.verdict(name, "permutation") for name in KNOWN}
    # Noise and searches of finite size see other directions after a reordering, within their own error.
    sampled = {"noise_curvature", "keskar_sharpness"}
    assert {name for name, verdict in found.items() if verdict == "invariant"} >= set(found) - sampled
    assert all(found[name] != "changes" for name in sampled)


def test_scaling_outputs_changes_all_but_what_divides_by_it(audited: tuple[str, Audit]) -> None:
    _, audit = audited
    found = verdicts(audit, "output_scaling")
    kept = {"margin_skewness", "spectral_complexity"}
    assert {name for name, verdict in found.items() if verdict == "invariant"} == kept
    assert {name for name, verdict in found.items() if verdict == "changes"} == set(found) - kept


def test_normalised_loss_makes_sharpness_invariant_to_the_outputs_scale() -> None:
    given = mlp()
    problem = opened(given.model, next(given.source.read()), "normalized_cross_entropy")
    names = sorted(SHARPNESS - {"relative_flatness"})
    audit = sl.audit(problem, names, strengths=("usual",), alphas=(10.0,))
    assert {audit.verdict(name, "output_scaling") for name in names} == {"invariant"}
    assert len(audit.unchanged_here) == len(names)
    assert audit.contradictions == []


def test_stable_rank_goes_to_one_beside_a_neuron_rescaled_ever_further(audited: tuple[str, Audit]) -> None:
    kind, audit = audited
    assert audit.one_neuron[""]["factor"] == [1.0, 10.0, 100.0, 1000.0]
    if kind == "conv_bn":  # BatchNorm's weight takes up the factor of the first group
        return
    after = audit.one_neuron["2"]
    assert after["stable_rank"][0] > 1.1
    assert after["stable_rank"][-1] == pytest.approx(1.0, abs=1e-4)
    assert after["spectral_norm"][-1] > 100 * after["spectral_norm"][0]


def test_mild_and_extreme_factors_agree_with_the_usual_ones() -> None:
    audit = sl.audit(mlp(), ["hessian_trace", "rho_sum", "normalized_sharpness", "kappa_tau_sum"], alphas=())
    for symmetry in ("layer_rescaling", "neuron_rescaling"):
        for row in audit.verdicts.values():
            strengths = {trial.strength: trial.verdict for trial in row[symmetry].trials}
            assert list(strengths) == ["mild", "usual", "extreme"]
            assert len(set(strengths.values())) == 1
    assert audit.verdict("hessian_trace", "output_scaling") == "not found"


def planted(invariant: tuple[str, ...]) -> Any:
    @sl.declare(title="Squared length", formula="|w|^2", citation="a test", invariant=invariant)
    def squared_length(problem: sl.Problem) -> float:
        """Squared length of all parameters, which every rescaling changes."""
        return sum(float(tensor.detach().square().sum()) for tensor in problem.tensors)

    return squared_length


def test_a_measure_falsely_declared_invariant_is_a_contradiction() -> None:
    audit = sl.audit(mlp(), [planted(("layer_rescaling", "permutation"))], strengths=("usual",), alphas=())
    assert len(audit.contradictions) == 1
    assert audit.contradictions[0].startswith("squared_length is declared invariant to rescaling layers, but went from")
    assert "CONTRADICTION: squared_length" in str(audit)
    assert audit.verdict("squared_length", "permutation") == "invariant"
    assert sl.audit(mlp(), [planted(())], strengths=("usual",), alphas=()).contradictions == []


def test_float32_networks_are_audited_on_a_float64_copy_where_asked_for_and_it_is_said() -> None:
    given = mlp()
    x, y = next(given.source.read())
    model = given.model.float()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    problem = opened(model, (x.float(), y))
    audit = sl.audit(problem, ["hessian_trace", "rho_sum"], strengths=("extreme",), alphas=(), dtype="float64")
    assert audit.base.header.dtype == "float64"
    assert "Audited on a float64 copy of the float32 network." in str(audit)
    assert audit.verdict("rho_sum", "neuron_rescaling") == "invariant"
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    own = sl.audit(problem, ["rho_sum"], strengths=("usual",), alphas=())
    assert own.base.header.dtype == "float32"
    assert "copy" not in str(own)
    assert own.verdict("rho_sum", "neuron_rescaling") == "invariant"


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (Estimate(1.0), Estimate(1.0 + 1e-9), "invariant"),
        (Estimate(1.0), Estimate(1.0 + 1e-5), "changes"),
        (Estimate(1.0, stderr=0.1), Estimate(1.2, stderr=0.1), "undecided"),
        (Estimate(1.0, stderr=0.001), Estimate(1.001, stderr=0.001), "invariant"),
        (Estimate(1.0, stderr=0.1), Estimate(4.0, stderr=0.3), "changes"),
        (Estimate(1.0, interval=(0.9, 1.1)), Estimate(1.15, interval=(1.05, 1.25)), "undecided"),
        (Estimate(1.0, how="lower_bound"), Estimate(1.05, how="lower_bound"), "undecided"),
        (Estimate(1.0, how="lower_bound"), Estimate(1.5, how="lower_bound"), "changes"),
        (Estimate(0.0), Estimate(0.0), "invariant"),
        (Estimate(math.nan, status="not_applicable", reason="no"), Estimate(1.0), "not measured"),
    ],
)
def test_a_change_is_judged_against_its_error(before: Estimate, after: Estimate, verdict: str) -> None:
    assert judge_trial("m", "layer_rescaling", "usual", before, after).verdict == verdict


def sweep_of(wrong: int) -> Audit:
    given = mlp()
    problem = confident(given.model, next(given.source.read())[0], wrong)
    grid = (1e4, 1e5)
    settings = {"hessian_frobenius": {"k": 400, "probes": 2}}
    chosen = ["hessian_trace", "hessian_frobenius"]
    return sl.audit(problem, chosen, strengths=("usual",), alphas=grid, settings=settings)


def test_scaled_outputs_flatten_the_hessian_only_where_every_point_is_right() -> None:
    right, some_wrong = sweep_of(0).sweep, sweep_of(5).sweep
    assert right is not None
    assert some_wrong is not None
    # Lengyel et al. 2021, Corollary 5.2: with all points right everything goes to 0 ...
    for name in ("hessian_trace", "hessian_top_eigenvalue", "hessian_frobenius"):
        values = [estimate.value for estimate in right.values[name]]
        assert abs(values[-1]) < 1e-6 * values[0], name
    # ... with wrong ones the trace of a piecewise-linear network still does, but λ₁ and ‖H‖_F grow like α.
    trace = [estimate.value for estimate in some_wrong.values["hessian_trace"]]
    assert abs(trace[-1]) < 1e-6 * trace[0]
    for name in ("hessian_top_eigenvalue", "hessian_frobenius"):
        values = [estimate.value for estimate in some_wrong.values[name]]
        assert values[-1] / values[-2] == pytest.approx(10.0, rel=1e-3), name


def test_running_example_of_tsuzuku_with_the_norms_corrected() -> None:
    """Appendix A.1: W1 = [[1, 2], [3, 4]], W2 = [[5, 6], [7, 8]]; the first neuron by 10, the second by 0.1."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        model[2].weight.copy_(torch.tensor([[5.0, 6.0], [7.0, 8.0]]))
    x = torch.tensor([[1.0, 0.5], [-0.2, 1.0], [0.3, 0.3]], dtype=torch.float64)
    problem = opened(model, (x, torch.tensor([0, 1, 0])))

    def sizes(of: sl.Problem) -> dict[str, dict[str, float]]:
        layers = sl.measure(of, measures=["weight_norm"]).per_layer
        return {
            quantity: {layer: estimate.value for layer, estimate in layers[quantity].items()}
            for quantity in ("frobenius", "spectral_norm", "stable_rank")
        }

    before = sizes(problem)
    assert before["frobenius"]["0"] == pytest.approx(math.sqrt(30))
    assert before["spectral_norm"]["0"] == pytest.approx(5.465, abs=5e-4)  # 5.48 in the paper is √30
    assert before["spectral_norm"]["2"] == pytest.approx(13.19, abs=5e-3)
    # Rows of W1 are divided by 10 and 0.1, columns of W2 multiplied.
    rescaled = Equivalents(problem).neurons_rescaled(factors={"0": torch.tensor([0.1, 10.0], dtype=torch.float64)})
    torch.testing.assert_close(
        rescaled.chosen_parameters["2.weight"].detach(),
        torch.tensor([[50.0, 0.6], [70.0, 0.8]], dtype=torch.float64),
    )
    after = sizes(rescaled)
    assert after["frobenius"]["0"] == pytest.approx(math.sqrt(2500.05))
    assert after["spectral_norm"]["0"] == pytest.approx(50.00, abs=5e-3)
    assert after["frobenius"]["2"] == pytest.approx(math.sqrt(7401.00))  # not √6101.13
    assert after["spectral_norm"]["2"] == pytest.approx(86.03, abs=5e-3)  # not 78.11
    assert after["stable_rank"]["2"] == pytest.approx(1.0, abs=1e-3)


class TwoBranches(nn.Module):
    """f(x) = V relu(W₁ x) + V relu(W₂ x), with the common output matrix fixed."""

    def __init__(self, first: Tensor, second: Tensor, out: Tensor) -> None:
        super().__init__()
        self.a, self.b = (nn.Linear(w.shape[1], w.shape[0], bias=False).double() for w in (first, second))
        with torch.no_grad():
            self.a.weight.copy_(first)
            self.b.weight.copy_(second)
        self.register_buffer("out", out)

    def forward(self, x: Tensor) -> Tensor:
        return (self.a(x).relu() + self.b(x).relu()) @ self.out.T


def test_two_branches_double_the_diagonal_fisher_rao_norm_and_keep_the_full_one() -> None:
    """Section 7.3 of Tsuzuku et al. the right way round: from (W/2, W/2) to (W, 0) eq. (25) doubles."""
    generator = torch.Generator().manual_seed(0)
    weight, out = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((4, 3), (3, 4)))
    x = torch.randn((25, 3), generator=generator, dtype=torch.float64)
    y = torch.randint(3, (25,), generator=generator)
    names = ["fisher_rao_diagonal", "fisher_rao_norm", "matrix_normalized_sharpness", "normalized_sharpness"]
    # A trace of W in place of 0 keeps the activation pattern of the second branch, on which the example rests.
    tiny = 1e-9
    halves = sl.measure(opened(TwoBranches(weight / 2, weight / 2, out), (x, y)), measures=names)
    whole = sl.measure(opened(TwoBranches(weight * (1 - tiny), weight * tiny, out), (x, y)), measures=names)
    assert whole["fisher_rao_diagonal"].value == pytest.approx(2 * halves["fisher_rao_diagonal"].value, rel=1e-6)
    for name in names[1:]:
        assert whole[name].value == pytest.approx(halves[name].value, rel=1e-6), name


def test_audits_are_saved_and_read_again(tmp_path: Path) -> None:
    audit = sl.audit(mlp(), ["hessian_trace", "output_margin"], strengths=("usual",), alphas=(10.0,))
    audit.save(tmp_path / "audit.json")
    again = Audit.load(tmp_path / "audit.json")
    assert str(again) == str(audit)
    assert again.verdict("hessian_trace", "layer_rescaling") == "changes"


def test_wrong_requests_are_refused_in_one_sentence() -> None:
    with pytest.raises(sl.UsageError, match="no strength 'usuall'; did you mean usual"):
        chosen_strengths(["usuall"])
    with pytest.raises(sl.UsageError, match="range of positive factors"):
        chosen_strengths({"mine": (-1.0, 2.0)})
    with pytest.raises(sl.UsageError, match="positive finite"):
        sl.audit(mlp(), ["hessian_trace"], alphas=(0.0,))
    with pytest.raises(sl.UsageError, match="dtype must be"):
        sl.audit(mlp(), ["hessian_trace"], dtype="float16")


def test_a_network_without_symmetries_says_so() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)).double()
    x = torch.randn(20, 3, dtype=torch.float64)
    audit = sl.audit(opened(model, (x, torch.arange(20) % 2)), ["rho_sum"], strengths=("usual",), alphas=())
    assert audit.verdict("rho_sum", "layer_rescaling") == "not found"
    assert any("gelu" in line for line in audit.left_alone)


def test_a_forward_of_the_users_own_is_followed() -> None:
    given = mlp()
    x, y = next(given.source.read())
    problem = opened(given.model, {"pixels": x, "labels": y}, forward=lambda model, batch: model(batch["pixels"]))
    audit = sl.audit(problem, ["hessian_trace", "rho_sum"], strengths=("usual",), alphas=())
    assert audit.verdict("hessian_trace", "layer_rescaling") == "changes"
    assert audit.verdict("rho_sum", "layer_rescaling") == "invariant"

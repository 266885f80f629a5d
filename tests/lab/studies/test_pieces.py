"""The pieces the studies are made of, each against a dense computation or a formula of its own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from spiritlevel.analyses.measuring import measure
from spiritlevel.engine.problem import Problem
from spiritlevel.lab.datasets import LabelledData
from spiritlevel.lab.studies import Place, RunStore, Table, make_record, run_study, studies, study_named
from spiritlevel.lab.studies.false_friend.stability import variance_eigenvalue
from spiritlevel.lab.studies.material import crossed, held_out_data, images, sample_indices, training_data
from spiritlevel.lab.studies.nfm.finite_difference import sharpness_by_differences
from spiritlevel.lab.studies.noisy_trace import affine_draw, stopped_traces, trained_draw
from spiritlevel.lab.studies.petzka.robustness import haar
from spiritlevel.lab.studies.spectra_of import norm_of_weights, spectrum_row, top_eigenvalue, without_dropout
from spiritlevel.lab.studies.study import FinishedRun
from spiritlevel.values.errors import SpiritlevelError


def _net(activation: type[nn.Module] = nn.ReLU, batch_norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(5)] if batch_norm else []
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), *middle, activation(), nn.Linear(5, 3)).double()


def _data(count: int = 24) -> LabelledData:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 1, 2, 2, generator=generator, dtype=torch.float64)
    return LabelledData(x, torch.randint(3, (count,), generator=generator), "random", "train", 3)


def _dense_hessian(model: nn.Module, data: LabelledData) -> torch.Tensor:
    names = list(dict(model.named_parameters()))
    shapes = [parameter.shape for parameter in model.parameters()]
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    def loss(vector: torch.Tensor) -> torch.Tensor:
        parts = vector.split([math.prod(shape) for shape in shapes])
        values = {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes)}
        return functional.cross_entropy(torch.func.functional_call(model, values, (data.x,)), data.y)

    return torch.autograd.functional.hessian(loss, flat)


def test_a_stopped_trace_ends_where_its_mean_stands_still():
    values = iter([4.0, 4.001, 8.0, 8.0])
    mean, used = stopped_traces(lambda which, generator: torch.full((len(which),), next(values)), 1)
    # The second draw moves the mean by 1e-4 of itself, so the rule stops there and never sees the 8.
    assert used.item() == 2
    assert mean.item() == pytest.approx(4.0005)
    long, used = stopped_traces(lambda w, g: torch.randn(len(w), generator=g) ** 2, 50, maximum=20)
    assert used.max() <= 20
    assert used.min() >= 2
    assert long.mean() == pytest.approx(1.0, abs=0.3)


def test_draws_have_the_trace_as_their_mean():
    data = _data(6)
    affine = nn.Linear(4, 3).double()
    p = torch.softmax(affine(data.x.flatten(1)), 1).detach()
    exact = (data.x.flatten(1).square().sum(1) + 1) * (1 - p.square().sum(1))
    generator = torch.Generator().manual_seed(0)
    draw = affine_draw(data.x.flatten(1), p)
    mean = torch.stack([draw(torch.arange(6), generator) for _ in range(1500)]).mean(0)
    assert torch.allclose(mean, exact, rtol=0.2)


def test_a_trained_draw_is_the_quadratic_form_of_the_samples_own_hessian():
    model, data = _net(nn.Tanh), _data(3)
    draw = trained_draw(model, data.x, data.y)
    generator, same = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    found = draw(torch.tensor([1, 2]), generator)
    signs = [torch.randint(2, (2, *p.shape), generator=same).mul_(2).sub_(1).double() for p in model.parameters()]
    for place, sample in enumerate((1, 2)):
        hessian = _dense_hessian(model, data.subset([sample]))
        v = torch.cat([sign[place].flatten() for sign in signs])
        assert found[place].item() == pytest.approx(float(v @ hessian @ v), rel=1e-9)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_spectrum_rows_match_the_dense_hessian(mode):
    model, data = _net(nn.ReLU, batch_norm=True).eval(), _data()
    row = spectrum_row(model, data, mode=mode, batch_size=len(data))
    model.train(mode == "train")
    with torch.no_grad():
        buffers = [buffer.clone() for buffer in model.buffers()]
    hessian = _dense_hessian(model, data)
    for buffer, before in zip(model.buffers(), buffers):
        buffer.copy_(before)
    values = torch.linalg.eigvalsh(hessian)
    assert row["top_eigenvalue"] == pytest.approx(float(values[-1]), rel=2e-2)
    assert row["frobenius"] == pytest.approx(float(hessian.norm()), rel=0.4)
    assert row["frobenius_squared_per_parameter"] == pytest.approx(row["frobenius"] ** 2 / len(values))
    assert top_eigenvalue(Problem(model.eval(), data.tensors)) > 0


def test_dropout_is_taken_out_of_a_copy_only():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    still = without_dropout(model)
    assert still[1].p == 0.0
    assert model[1].p == 0.5
    assert norm_of_weights(model) == pytest.approx(
        math.sqrt(sum(float(p.detach().square().sum()) for p in model.parameters()))
    )


def test_the_variance_of_mini_batch_hessians_has_the_dense_top_eigenvalue():
    model, data = _net(), _data(24)
    parts = [_dense_hessian(model, data.subset(slice(6 * k, 6 * k + 6))) for k in range(4)]
    mean = torch.stack(parts).mean(0)
    variance = torch.stack([part @ part for part in parts]).mean(0) - mean @ mean
    found = variance_eigenvalue(model, data, batch_size=6, batches=4)
    assert found == pytest.approx(float(torch.linalg.eigvalsh(variance)[-1]), rel=0.05)


def test_algorithm_one_approaches_normalised_sharpness_on_a_smooth_network():
    model, data = _net(nn.Softplus), _data(40)
    problem = Problem(model, data.tensors)
    exact = float(measure(problem, measures=["normalized_sharpness"])["normalized_sharpness"])
    found = sharpness_by_differences(problem, radius=1e-3, draws=500)
    assert found == pytest.approx(exact, rel=0.2)


def test_haar_matrices_are_orthogonal_and_differ():
    generator = torch.Generator().manual_seed(0)
    first, second = haar(5, generator), haar(5, generator)
    assert torch.allclose(first @ first.T, torch.eye(5, dtype=torch.float64), atol=1e-12)
    assert not torch.allclose(first, second)
    average = torch.stack([haar(3, generator) for _ in range(3000)]).mean(0)
    assert float(average.abs().max()) < 0.06  # the mean of the uniform distribution is zero


def test_parts_of_data_are_never_silently_smaller():
    assert len(images("digits", "train", Place(), first=100)) == 100
    whole = images("digits", "train", Place())
    assert torch.equal(images("digits", "train", Place(), last=7).x, whole.x[-7:])
    with pytest.raises(SpiritlevelError, match="the run needs 2,000"):
        images("digits", "train", Place(), first=2000)
    settings = {"data": "digits", "net": "softmax_regression", "images": 10, "test_images": 5}
    assert training_data(settings, Place()).size == 28
    assert len(held_out_data(settings, Place())) == 5
    assert sample_indices(10, 20, 0).tolist() == list(range(10))
    assert crossed(a=[1, 2], b="xy") == [{"a": a, "b": b} for a in (1, 2) for b in "xy"]


def test_the_beginning_of_a_split_serves_where_the_whole_is_missing(tmp_path):
    x = np.random.default_rng(0).integers(256, size=(6, 3, 32, 32), dtype=np.uint8)
    np.savez(tmp_path / "cifar10-train.npz", x=x, y=np.arange(6) % 3)
    found = images("cifar10", "train", Place(data_root=str(tmp_path)), first=4)
    assert found.name == "cifar10"
    assert torch.allclose(found.x, torch.from_numpy(x[:4]).float() / 255)
    with pytest.raises(SpiritlevelError, match="has 6 images here"):
        images("cifar10", "train", Place(data_root=str(tmp_path)), first=7)


def test_tables_select_and_split():
    table = Table(
        [FinishedRun(str(k), {"seed": k, "arm": "ab"[k % 2]}, [{"value": k}, {"value": None}], {}) for k in range(4)]
    )
    assert len(table) == 8
    assert table.where(arm="a").values("seed") == [0, 2]
    assert len(table.where(arm="a").runs) == 2
    assert [name for name, _ in table.by("arm")] == ["a", "b"]
    column = table.where(seed=3).column("value")
    assert column[0] == 3
    assert math.isnan(column[1])


@pytest.mark.parametrize("name", ["nfm-a1", "false-friend-counterexample", "false-friend-deep-linear"])
def test_formulas_of_the_papers_are_decided(name, tmp_path):
    own, store = study_named(name), RunStore(tmp_path)
    run_study(own, "smoke", store)
    verdicts = {
        each.claim.name: each.verdict for each in make_record(own, "smoke", store.table(own, "smoke")).judgements
    }
    assert "undecided" not in verdicts.values()
    expected_to_fail = {
        "nfm-a1": {"spectral-w1", "frobenius-w2-after", "spectral-w2-after", "fisher-rao-halves"},
        "false-friend-counterexample": {"theorem-as-stated"},
        "false-friend-deep-linear": {"trace-formula", "trace-is-eigenvalue"},
    }[name]
    assert {claim for claim, verdict in verdicts.items() if verdict == "does not hold"} == expected_to_fail


@pytest.mark.slow
@pytest.mark.parametrize("name", list(studies()))
def test_every_study_runs_from_digits_alone(name, tmp_path):
    own, store = study_named(name), RunStore(tmp_path)
    run_study(own, "smoke", store, place=Place("cpu", str(tmp_path)))
    record = make_record(own, "smoke", store.table(own, "smoke"))
    assert record.finished == record.planned > 0
    for draw in own.figures.values():
        assert draw(record.table) is not None

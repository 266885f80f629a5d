"""The benchmarks' own instruments: exact answers, answer checks, the table made from results.  No time is judged."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import __main__ as entry
from benchmarks import growth, tables
from benchmarks.exact import PlainHessian, diagonals, distance, gradient_pass
from benchmarks.measure_works import descend, from_one_pass
from benchmarks.timing import Contender, Work, best_setting, measure, number, spread
from spiritlevel.engine.estimators.balancing import balance

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    return model, (torch.randn(12, 5, dtype=torch.float64), torch.randint(3, (12,)))


def dense_hessian(model, data):
    names = [name for name, _ in model.named_parameters()]
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in model.parameters()])
    shapes = [tensor.shape for tensor in model.parameters()]

    def loss(vector):
        parts = vector.split([shape.numel() for shape in shapes])
        chosen = {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes)}
        return F.cross_entropy(torch.func.functional_call(model, chosen, (data[0],)), data[1])

    return torch.autograd.functional.hessian(loss, flat)


def test_exact_diagonal_and_traces_are_those_of_the_dense_hessian(small):
    model, data = small
    diagonal, traces = diagonals(model, data, chunk=5)
    assert torch.allclose(diagonal, dense_hessian(model, data).diagonal(), atol=1e-12)
    for index in (0, 7):
        own = dense_hessian(model, (data[0][index : index + 1], data[1][index : index + 1]))
        assert float(traces[index]) == pytest.approx(float(own.trace()), rel=1e-9)


def test_plain_products_give_the_dense_eigenvalues_and_true_residuals(small):
    model, data = small
    hessian = dense_hessian(model, data)
    values, vectors = torch.linalg.eigh(hessian)
    plain = PlainHessian(model, data)
    assert torch.allclose(plain.dense(), hessian, atol=1e-12)
    assert plain.top(2) == pytest.approx(values[[-1, -2]].numpy(), rel=1e-8)
    assert plain.residual(vectors[:, -2:]) < 1e-12
    assert plain.residual((vectors[:, -1:] + vectors[:, :1]) / 2**0.5) > 0.1 * float(values[-1])


def test_a_wrong_answer_shows_beside_its_speed_and_a_failure_becomes_a_reason(small):
    model, data = small
    exact = float(dense_hessian(model, data).trace())

    def refuses():
        raise RuntimeError("no rule for this layer")

    def error(value):
        return abs(value / exact - 1)

    work = Work(
        "trace",
        "Trace",
        gradient_pass(model, data),
        [
            Contender("ours", lambda: sl.curvature(sl.Problem(model, data)).trace.value, error),
            Contender("twice", lambda: 2 * exact, error, parts=lambda value: 10.0),
            Contender("refuses", refuses, error),
        ],
        targets={"twice": 1e9},
        limits={"passes": 1e9},
    )
    found = measure(work, 2, CPU, lambda line: None)
    ours, twice = found["rows"]
    assert ours["error"] < 1e-10
    assert twice["error"] == pytest.approx(1.0)
    assert ours["ratios"] == [1.0, 1.0]
    assert len(twice["seconds"]) == 2
    assert "no rule for this layer" in found["unavailable"]["refuses"]
    page = tables.section({"machine": _machine("CPU"), "works": [found]})
    assert "Wanted: at least 1.0e+09 times as fast as twice. **Missed.**" in page
    assert "Wanted: at most 1.0e+09 gradient passes. Met." in page
    assert "Where our time goes" in page
    assert 0 < sum(share for _, share in found["profile"]) <= 1
    assert found["arithmetic"] > 0
    assert "refuses has no row: RuntimeError: no rule for this layer" in page
    assert ("as torch runs them" in page) == any(name in ("mm", "addmm", "bmm") for name, _ in found["profile"])
    assert "seconds" not in page
    assert "| seconds |" in tables.section({"machine": _machine("A GPU"), "works": [found]})


def _machine(device):
    return {
        "device": device, "processor": "a processor", "threads": 1, "python": "3", "torch": "2",
        "peers": {"One": "1.0", "Other": None},
    }  # fmt: skip


def test_the_page_holds_every_machine_and_says_what_was_missing(tmp_path):
    entry = {
        "axis": "samples N", "values": [10, 20], "seconds": [1.0, 2.0], "megabytes": [3.0, 3.0],
        "time_exponent": 1.0, "memory_exponent": 0.0,
    }  # fmt: skip
    results = [{"machine": _machine(name), "works": [], "growth": [entry]} for name in ("CPU", "A GPU")]
    page = tmp_path / "docs" / "performance.md"
    tables.write_page(results, page)
    text = page.read_text(encoding="utf-8")
    assert text.index("## CPU") < text.index("## A GPU")
    assert "Not installed: Other." in text
    assert "1.00, 2.00 | 1.00 | 3, 3 | 0.00 |" in text
    assert list(page.parent.iterdir()) == [page]


def test_works_run_again_take_their_places_among_those_kept():
    before = {"machine": _machine("CPU"), "works": [{"name": "a", "v": 1}, {"name": "b", "v": 1}], "growth": []}
    now = {"machine": _machine("CPU"), "works": [{"name": "c", "v": 2}, {"name": "a", "v": 2}]}
    found = tables.merged(before, now, ["c", "a", "b"])
    assert [(work["name"], work["v"]) for work in found["works"]] == [("c", 2), ("a", 2), ("b", 1)]
    with pytest.raises(SystemExit, match="another machine"):
        tables.merged(before, {**now, "machine": _machine("A GPU")}, [])


def test_the_best_setting_is_the_fastest_whose_answer_is_accepted():
    slow = {"wrong": lambda: 0, "right": lambda: sum(range(20_000)) and 1}
    assert best_setting(slow, CPU, lambda answer: answer == 1)[0] == "right"

    def fails():
        raise ValueError

    assert best_setting({"fails": fails, "runs": lambda: 1}, CPU)[0] == "runs"


def test_distance_of_spectra():
    eigenvalues = torch.tensor([0.0, 0.0, 0.0, 4.0], dtype=torch.float64)
    nodes, weights = torch.tensor([0.0, 4.0]).double(), torch.tensor([0.75, 0.25]).double()
    assert distance(nodes, weights, eigenvalues) == pytest.approx(0.0, abs=1e-12)
    assert distance(nodes + 1, weights, eigenvalues) == pytest.approx(0.25)


def test_gradient_descent_reaches_the_minimum_that_balancing_finds():
    generator = torch.Generator().manual_seed(0)
    h, w2 = (torch.rand(4, 5, generator=generator, dtype=torch.float64) + 0.1 for _ in range(2))
    value = balance(h, w2).value
    found, steps = descend([(h, w2)], [value], 0.5, 0.0, 5000)
    assert value * (1 - 1e-9) <= found <= value * (1 + 1e-6)
    assert 1 < steps < 5000


def test_growth_exponents_and_numbers():
    assert growth.exponent([1, 2, 4, 8], [3, 12, 48, 192]) == pytest.approx(2.0)
    assert number(1234.5) == "1,230"
    assert number(0.01234) == "0.0123"
    assert number(math.nan) == "not a number"
    assert number(math.inf) == "–"
    assert spread([1.0, 3.0, 2.0]) == "2.00 (1.00–3.00)"


def test_measures_from_one_pass_leave_out_products_and_searches():
    names = from_one_pass()
    assert "normalized_sharpness" in names
    assert not {"hessian_top_eigenvalue", "hessian_frobenius", "keskar_sharpness"} & set(names)


@pytest.mark.parametrize("name", ["layer_tops", "top_five", "density", "sample_traces_fcnbn"])
def test_our_own_way_runs_and_is_right(name, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.installed", lambda peer: False)
    sizes = {**entry.QUICK, "layers": 8, "top": 8, "density": 8, "fcnbn": 8}
    work = entry.works(torch.device("cpu"), sizes)[name]()
    for contender in work.contenders[:2]:  # ours, and the same without its checks
        if contender.name.startswith("Spiritlevel"):
            assert contender.error(contender.run()) < 0.05

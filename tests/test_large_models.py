"""The benchmark of large networks: its units, its rows, its processes and its part of the page.  No time is judged."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import large_models, tables
from benchmarks.exact import PlainHessian
from benchmarks.large import material, page, plain, rivals, rows
from benchmarks.large.networks import NETWORKS, NextTokenLoss, Prepared

CPU = torch.device("cpu")


@pytest.fixture
def prepared():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
    x = torch.randn(12, 4, dtype=torch.float64)
    model(x)  # statistics of its own
    return Prepared(NETWORKS["vit"], model.eval(), x, torch.randint(3, (12,)), {})


def keeper(into):
    return lambda **facts: into.update(facts)


def test_probes_are_those_of_the_dense_hessian_whatever_fits_at_once(prepared):
    dense = PlainHessian(prepared.model, (prepared.x, prepared.y)).dense()
    signs = [plain._signs(list(prepared.model.parameters()), number) for number in (3, 4)]
    vectors = [torch.cat([part.reshape(-1) for part in one]) for one in signs]
    assert all(set(vector.tolist()) == {-1.0, 1.0} for vector in vectors)
    expected = [float(vector @ dense @ vector) for vector in vectors]
    for at_once in (12, 5):
        assert plain.probes(prepared, 3, 2, at_once) == pytest.approx(expected, rel=1e-9)


def test_a_training_step_leaves_weights_and_statistics_as_they_were(prepared):
    before = {name: tensor.clone() for name, tensor in prepared.model.state_dict().items()}
    _, peak, at_once = plain.training_step(prepared, CPU)
    assert peak > 0
    assert at_once == 12
    after = prepared.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not prepared.model.training
    assert all(parameter.grad is None for parameter in prepared.model.parameters())


def test_what_does_not_fit_is_halved_until_it_does():
    tried = []

    def attempt(size):
        tried.append(size)
        if size > 3:
            raise torch.OutOfMemoryError("too much")
        return "done"

    assert plain.halving(attempt, 10) == ("done", 3)
    assert tried == [10, 5, 3]
    with pytest.raises(torch.OutOfMemoryError):
        plain.halving(lambda size: attempt(10), 2)


def test_our_rows_hold_values_errors_passes_and_products(prepared):
    hessian = PlainHessian(prepared.model, (prepared.x, prepared.y))
    exact = float(hessian.dense().trace())
    known: rows.Facts = {}
    for name in rows.ROWS:
        own: rows.Facts = {}
        rows.ROWS[name](prepared, CPU, 20.0, known, keeper(own))
        known[name] = own
    trace, top, truth = known["trace"], known["top"], known["truth"]
    assert abs(trace["value"] - exact) <= 4 * trace["stderr"] + 1e-9 * exact
    assert trace["passes"] == pytest.approx(trace["seconds"] / known["gradient"]["seconds"])
    assert trace["peak_over_training_step"] > 0
    assert trace["forward_calls_by_batch_size"]
    assert abs(top["value"] - hessian.top()[0]) <= top["residual"] + 1e-9
    assert top["products"] == top["vectors_multiplied"] + top["vectors_multiplied_on_a_part"]
    assert top["seconds_before_first_product"] < top["seconds"]
    assert set(known["default"]["measures"]) >= {"hessian_trace", "hessian_top_eigenvalue"}
    assert truth["probes"]["count"] >= 4
    assert abs(truth["probes"]["value"] - exact) <= 5 * truth["probes"]["stderr"]


def test_a_row_whose_time_is_over_says_so_and_keeps_its_costs(prepared, monkeypatch):
    def endless(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.large.rows.sl.measure", endless)
    own: rows.Facts = {}
    rows.trace(prepared, CPU, 1.0, {"gradient": {"seconds": 1.0}}, keeper(own))
    assert "stopped when the row's" in own["stopped"]
    assert own["peak_bytes"] > 0
    assert "value" not in own


@pytest.mark.parametrize("name", list(rivals.RIVALS))
def test_peers_give_the_trace_and_the_eigenvalue_where_they_are_installed(name, prepared):
    kind = rivals.RIVALS[name]
    pytest.importorskip(kind.module)
    prepared.model.float()
    found = Prepared(prepared.network, prepared.model, prepared.x.float(), prepared.y, {})
    hessian = PlainHessian(found.model, (found.x, found.y))
    exact, highest = float(hessian.dense().trace()), float(hessian.top()[0])
    known = {"trace": {"value": exact, "stderr": 0.01 * exact}, "top": {"value": highest}}
    own: rows.Facts = {}
    rivals.rival(name)(found, CPU, 30.0, known, keeper(own))
    if name != "BackPACK":  # its matrix is G, which in this network is another
        assert abs(own["probes_value"] - exact) <= 5 * own["probes_stderr"]
        assert own["top_error"] < 0.1
    assert own["goal"] == pytest.approx(0.01)
    expected = own["spread_from"] * (own["probes_stderr"] / exact / 0.01) ** 2
    assert own["probes_to_goal"] == pytest.approx(max(1.0, expected))
    assert all(parameter.grad is None for parameter in found.model.parameters())


def test_tokens_of_the_library_and_images_of_a_file(tmp_path):
    assert material.numbered(["b", "a", "a", "c"], 3).tolist() == [2, 1, 1, 0]
    tokens = material.source_tokens(16, 50, 100_000)
    assert tokens.shape[1] == 16
    assert 0 <= int(tokens.min()) < int(tokens.max()) < 50
    x, y = material.prose_or_code(16, 200, 100_000)
    assert y[:4].tolist() == [1, 0, 1, 0]
    assert len(x) == len(y)
    np.savez(tmp_path / "c.npz", x=np.full((2, 32, 32, 3), 255, np.uint8), y=np.array([3, 99]))
    x, y, what = material.cifar(tmp_path / "c.npz", 1000)
    assert (what, y.tolist(), tuple(x.shape)) == ("CIFAR-100", [30, 990], (2, 3, 32, 32))
    scaled = material.upscaled(x, 64)
    assert scaled.shape == (2, 3, 64, 64)
    assert float(scaled[0, 0, 0, 0]) == pytest.approx((1 - material.MEAN[0]) / material.DEVIATION[0])
    assert "in place of CIFAR-100 (FileNotFoundError" in material.cifar(tmp_path / "none.npz", 20)[2]


def test_next_token_loss_is_that_of_the_named_loss():
    from spiritlevel.inputs.losses import NextToken

    outputs, tokens = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    losses, _ = NextToken().per_sample(outputs, (tokens, tokens))
    assert float(NextTokenLoss()(outputs, tokens)) == pytest.approx(float(losses.mean()), rel=1e-6)


def test_every_row_of_a_trial_is_in_the_record_and_on_the_page(tmp_path):
    out = tmp_path / "record.json"
    arguments = ["--smoke", "--only", "bert", "--rows", "gradient", "top", "curvlinops", "--device", "cpu"]
    arguments += ["--out", str(out), "--folder", str(tmp_path / "nets"), "--budget", "60", "--least", "15"]
    large_models.main(arguments)
    record = json.loads(out.read_text())
    entry = record["networks"][0]
    assert set(entry["rows"]) == {"gradient", "top", "curvlinops"}
    assert entry["training"]["steps"] == 6
    assert entry["rows"]["top"]["status"] == "ok"
    text = page.section(record)
    assert "A trial with tiny sizes" in text
    assert "BERT-base, 2 classes" in text
    # The same trained network again: earlier rows stay.
    large_models.main([*arguments, "--rows", "gradient"])
    again = json.loads(out.read_text())["networks"]
    assert len(again) == 1
    assert again[0]["training"]["from_checkpoint"]
    assert again[0]["rows"]["top"] == entry["rows"]["top"]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; sys.stdin.readline(); print('no kernel image'); sys.exit(3)", "its process ended with 3"),
        ("import time; time.sleep(60)", "ended by force"),
    ],
)
def test_a_process_that_dies_or_hangs_takes_down_its_row_alone(program, said, tmp_path, monkeypatch):
    start = subprocess.Popen
    monkeypatch.setattr(
        large_models.subprocess, "Popen", lambda command, **rest: start([sys.executable, "-c", program], **rest)
    )
    monkeypatch.setattr(large_models, "GRACE", 0.2)
    monkeypatch.setattr(large_models, "START_UP", 0.5)
    asked = argparse.Namespace(folder="", images="", device="cpu", peers=None, smoke=True)
    worker = large_models.Worker(asked, tmp_path)
    worker.answer.with_suffix(".partial").write_text("{}")
    row = worker.do({"row": "trace"}, 0.3)
    assert said in row["failed"]
    assert not worker.alive
    if "3" in said:
        assert "no kernel image" in row["where"]


def _made_up():
    estimate = {"how": "estimated", "status": "ok", "reason": "", "interval": None}
    return {
        "machine": {"device": "A GPU", "python": "3", "torch": "2", "peers": {"PyHessian": "0.1", "curvlinops": None}},
        "smoke": False,
        "networks": [
            {
                "name": "gpt2", "title": "GPT-2 124M", "provider": "transformers", "parameters": 124_000_000,
                "samples": 32, "data": "tokens",
                "training": {"steps": 300, "first_loss": 10.8, "last_loss": 3.0},
                "rows": {
                    "gradient": {"seconds": 0.1, "default_seconds": 0.05, "step_peak_bytes": 2 * 2**30},
                    "trace": {**estimate, "value": 200.0, "stderr": 8.0, "seconds": 5.0, "peak_bytes": 5 * 2**30},
                    "default": {"seconds": 9.0, "measures": {
                        "hessian_trace": {**estimate, "value": 200.0, "stderr": 8.0},
                        "rho_sum": {**estimate, "value": math.nan, "stderr": math.nan, "status": "not_applicable",
                                    "reason": "no labels"},
                    }},
                    "truth": {"probes": {"count": 64, "value": 210.0, "stderr": 6.0, "seconds": 3.0, "z": [1.0]}},
                    "PyHessian": {
                        "trace_words": "trace()", "trace_value": 180.0, "trace_stderr": 20.0, "trace_products": 7,
                        "trace_seconds": 2.0, "trace_cut_short": False, "trace_off_ours": 0.1, "our_trace_value": 200.0,
                        "goal_is": "our standard error", "probes_to_goal": 900.0, "seconds_to_goal": 270.0,
                        "top_reason": "OutOfMemoryError: too much",
                    },
                    "curvlinops": {"failed": "ModuleNotFoundError: not installed here"},
                },
            }
        ],
    }  # fmt: skip


def test_the_page_shows_the_large_networks_where_there_is_a_record_of_them(tmp_path):
    record, performance = tmp_path / "large_models.json", tmp_path / "performance.md"
    tables.write_page([], performance, record)
    assert "Large networks" not in performance.read_text(encoding="utf-8")
    record.write_text(json.dumps(_made_up()), encoding="utf-8")
    tables.write_page([], performance, record)
    text = performance.read_text(encoding="utf-8")
    assert "## Large networks, A GPU" in text
    assert "| Spiritlevel | 200 | ± 4.00% | 5.00 | 50.0 | 2.50 | ok |" in text
    assert "| plain probes | 210 | ± 2.86% | 3.00 | 30.0 | – | 64 probes; z = 1.0 |" in text
    assert "± 10.0%, off 10.0% | 2.00 | 20.0 | – | trace(); 7 products; to our error: 900 probes, 270 s |" in text
    assert "| `rho_sum` | – |  | not applicable: no labels |" in text
    assert "PyHessian, largest eigenvalue: OutOfMemoryError: too much." in text
    assert "curvlinops: ModuleNotFoundError: not installed here." in text
    assert tables.stored(tmp_path) == []

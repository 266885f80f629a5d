"""``spiritlevel audit`` and ``spiritlevel compare``: tables, files, exit codes and refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from spiritlevel.analyses.auditing import ALPHAS, STRENGTHS, work_of_audit
from spiritlevel.analyses.comparison import work_of_comparison
from spiritlevel.cli import main
from spiritlevel.inputs import steps
from spiritlevel.lab import datasets, nets, training
from spiritlevel.results.audits import Audit
from spiritlevel.results.compared import Comparison

COMMON = ("--data", "digits", "--samples", "200", "--model-args", "widths=[6,5]", "--quiet")
FEW = ("--measures", "hessian_trace,rho_sum,output_margin")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("weights")
    data = datasets.load("digits", "train")
    for name, batch_size in (("small", 16), ("large", 256)):
        model = nets.build("digits_mlp", seed=0, widths=(6, 5))
        training.train(model, data, batch_size=batch_size, steps=200, lr=0.1)
        torch.save(model.state_dict(), place / f"{name}.pt")
    return place


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    return found.err


def test_compare_checkpoints(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(folder / f"{name}.pt") for name in ("small", "large")]
    target = tmp_path / "c.json"
    code = main(["compare", "digits_mlp", *files, *COMMON, *FEW, "--test", "digits:test", "--json", str(target)])
    shown = capsys.readouterr().out
    assert code == 0
    assert shown.splitlines()[0] == "small.pt against large.pt"
    assert "digits_mlp on digits (train), 200 of 1,437 samples" in shown
    assert "test accuracy" in shown
    found = Comparison.load(target)
    assert found.labels == ["small.pt", "large.pt"]
    assert found.reports["small.pt"].header.weights == files[0]
    # The two files were loaded into one network in turn; each kept its own numbers.
    assert found.reports["small.pt"].loss != found.reports["large.pt"].loss
    assert found.rows["hessian_trace"].holding.kind in ("reversible", "undecided")


def test_compare_saved_reports_as_json(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name in ("small", "large"):
        files.append(str(tmp_path / f"{name}.json"))
        options = [*COMMON, *FEW, "--json", files[-1]]
        assert main(["measure", "digits_mlp", str(folder / f"{name}.pt"), *options]) == 0
    capsys.readouterr()
    assert main(["compare", *files, "--json", "-"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["kind"] == "comparison"
    assert record["labels"] == ["small.json", "large.json"]
    assert len(record["reading"]) == 2
    assert main(["compare", *files, "--data", "digits"]) == 2
    assert "--data needs the networks" in one_line(capsys)


def test_reports_on_other_data_are_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / f"{split}.json") for split in ("train", "test")]
    for split, file in zip(("train", "test"), files):
        arguments = ["measure", "digits_mlp", str(folder / "small.pt"), "--data", f"digits:{split}", "--samples", "100"]
        assert main([*arguments, "--model-args", "widths=[6,5]", "-q", "-m", "rho_sum", "--json", file]) == 0
    capsys.readouterr()
    assert main(["compare", *files]) == 2
    assert "were measured on different data" in one_line(capsys)


def test_an_untrained_network_is_headed_as_such(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / "trained.json"), str(tmp_path / "initialised.json")]
    for weights, file in (([str(folder / "small.pt")], files[0]), ([], files[1])):
        assert main(["measure", "digits_mlp", *weights, *COMMON, "-m", "rho_sum", "--json", file]) == 0
    capsys.readouterr()
    assert main(["compare", *files]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "initialised.json is a network as initialised, so these numbers do not compare trained minima." in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "digits_mlp", "{folder}/small.pt", "--data", "digits"], "two or more weights files"),
        (["compare", "digits_mlp", "{folder}/small.pt", "{folder}/none.pt", "--data", "digits"], "no weights file"),
        (["compare", "digits_mlp", "{folder}/small.pt", "{folder}/large.pt"], "no data was given"),
        (["compare", "{folder}/a.json", "{folder}/b.json"], "there is no file"),
        (["compare", "a.json", "b.json", "--json", "{folder}/no/c.json"], "there is no folder"),
        (["audit", "digits_mlp", "{folder}/small.pt", "{folder}/large.pt", "--data", "digits"], "audit looks at one"),
        (["audit", "digits_mlp", "--data", "digits", "--strengths", "wild"], "no strength 'wild'"),
        (["audit", "digits_mlp", "--data", "digits", "--alphas", "1,x"], "must be numbers"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("{folder}", str(folder)) for word in arguments]) == 2
    assert words in one_line(capsys)


def test_audit_prints_verdicts_and_saves_them(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "audit.json"
    options = [*COMMON, *FEW, "--strengths", "usual", "--alphas", "10", "--json", str(target), "--strict"]
    assert main(["audit", "digits_mlp", str(folder / "small.pt"), *options]) == 0
    shown = capsys.readouterr().out
    assert "eval mode · float32" in shown
    assert "digits_mlp with" in shown
    audit = Audit.load(target)
    assert audit.verdict("hessian_trace", "layer_rescaling") == "changes"
    assert audit.verdict("rho_sum", "neuron_rescaling") == "invariant"


def test_audit_without_weights_says_so_first(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["audit", "digits_mlp", *COMMON, "-m", "rho_sum", "--strengths", "usual", "--alphas", "none"])
    assert code == 0
    assert capsys.readouterr().out.startswith("No weights given: this is the network as initialised")


def test_a_contradiction_is_loud_and_strict_exits_with_3(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ACEHT of the penultimate features is not what its declaration, made for inputs, speaks of."""
    setting = ["--set", "aceht.feature=penultimate", "--strengths", "usual", "--alphas", "none"]
    arguments = ["audit", "digits_mlp", str(folder / "small.pt"), *COMMON, "-m", "aceht", *setting]
    assert main(arguments) == 0
    assert "spiritlevel: CONTRADICTION: aceht is declared invariant" in capsys.readouterr().err
    assert main([*arguments, "--strict"]) == 3


def test_dry_runs_print_the_cost_and_measure_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(folder / f"{name}.pt") for name in ("small", "large")]
    assert main(["compare", "digits_mlp", *files, *COMMON, *FEW, "--dry-run"]) == 0
    said = capsys.readouterr().out
    work = work_of_comparison(2, 3)
    assert f"A comparison of 2 networks comes to about {work:.0f} such measurements: " in said
    assert main(["audit", "digits_mlp", files[0], *COMMON, *FEW, "--dry-run"]) == 0
    work = work_of_audit(len(STRENGTHS), len(ALPHAS))
    assert f"An audit comes to about {work:.0f} such measurements: " in capsys.readouterr().out
    assert main(["audit", "digits_mlp", files[0], *COMMON, *FEW, "--dry-run", "--seconds", "0.001"]) == 0
    assert "measurements: under a second" in capsys.readouterr().out


def test_an_audit_tells_its_steps_and_the_time_left(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "LINE_SECONDS", 0.0)
    files = [str(folder / f"{name}.pt") for name in ("small", "large")]
    told_of = [word for word in (*COMMON, *FEW) if word != "--quiet"]
    assert main(["audit", "digits_mlp", files[0], *told_of]) == 0
    told = capsys.readouterr().err
    for step in ("measuring the network", "scaling the outputs by 3", "trying rescaling layers usual", "s left"):
        assert step in told
    assert main(["compare", "digits_mlp", *files, *told_of]) == 0
    told = capsys.readouterr().err
    for step in ("measuring small", "measuring groups of samples", "trying rescalings", "comparing by Hessian trace"):
        assert step in told
    assert main(["audit", "digits_mlp", files[0], *COMMON, *FEW]) == 0
    assert "measuring" not in capsys.readouterr().err

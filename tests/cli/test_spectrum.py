"""The command ``spectrum``: its table, its JSON, its image, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from spiritlevel.cli import main
from spiritlevel.lab import nets
from spiritlevel.results.spectrum_result import Spectrum
from spiritlevel.results.wording import UNTRAINED

FAST = ["--samples", "40", "--probes", "2", "--steps", "4"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_table_json_and_figure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(nets.build("digits_mlp", seed=3).state_dict(), folder / "weights.pt")
    code = main(
        ["spectrum", "digits_mlp", "weights.pt", "--data", "digits", *FAST, "--json", "s.json", "--figure", "s.png"]
    )
    shown = capsys.readouterr()
    assert code == 0
    assert "Largest eigenvalue" in shown.out
    assert "digits_mlp with weights.pt on digits" in shown.out
    assert "products by double backward" in shown.out
    assert "all 2 probes together" in shown.err  # the plan, before the run
    assert "Largest eigenvalue" not in shown.err
    found = Spectrum.load(folder / "s.json")
    assert found.header.weights == "weights.pt"
    assert found.header.samples == 40
    assert found.nodes.shape == (2, 4)
    assert found.classes == 10
    assert (folder / "s.png").stat().st_size > 5000


def test_json_to_stdout_is_json_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["spectrum", "digits_mlp", "--data", "digits", *FAST, "--operator", "ggn", "--json", "-", "--seed", "5"]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert record["operator"] == "ggn"
    assert record["settings"]["seed"] == 5
    assert record["estimates"]["trace"]["how"] == "exact"
    assert UNTRAINED in shown.err


def test_without_weights_the_first_line_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spectrum", "digits_mlp", "--data", "digits", *FAST, "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == UNTRAINED
    assert shown.err == ""


def test_dry_run_prints_the_plan_and_computes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spectrum", "digits_mlp", "--data", "digits", *FAST, "--dry-run", "--json", "s.json"]) == 0
    shown = capsys.readouterr()
    assert "4 sweeps over the data, 8 products" in shown.out
    assert not (folder / "s.json").exists()


def test_a_layers_block_and_strict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layer = next(name for name, module in nets.build("digits_mlp").named_modules() if hasattr(module, "weight"))
    common = ["spectrum", "digits_mlp", "--data", "digits", *FAST, "--quiet", "--operator", layer]
    assert main(common) == 0
    assert main([*common, "--strict"]) == 3  # four steps do not certify the smallest eigenvalue
    assert "--strict was given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--operator", "hesian"], 2, "there is no matrix 'hesian'"),
        (["--figure", "s.txt"], 2, "must end in .png, .pdf or .svg"),
        (["--figure", "nowhere/s.png"], 2, "there is no folder nowhere"),
        (["--json", "nowhere/s.json"], 2, "there is no folder nowhere"),
        (["--probes", "0"], 2, "at least one probe"),
        (["--strategy", "magic"], 2, "strategy must be one of"),
        (["--strategy", "compiled"], 2, "needs a CUDA device"),
        (["--tolerance", "3"], 2, "tolerance must lie between 0 and 1"),
        (["--weights", "a.pt"], 2, "there is no weights file a.pt"),
    ],
)
def test_misuse_is_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int, words: str
) -> None:
    assert main(["spectrum", "digits_mlp", "--data", "digits", "--samples", "40", "--steps", "2", *more]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert not list(folder.iterdir())


def test_two_weights_files_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.pt", "b.pt"):
        torch.save(nets.build("digits_mlp").state_dict(), folder / name)
    assert main(["spectrum", "digits_mlp", "a.pt", "b.pt", "--data", "digits"]) == 2
    assert "spectrum looks at one network" in capsys.readouterr().err

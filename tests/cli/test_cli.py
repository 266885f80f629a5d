"""The command line: what it prints where, and its exit codes."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import spiritlevel
from spiritlevel.cli.demonstration import _one_thread
from spiritlevel.lab import nets
from spiritlevel.results import Report, load_reports
from spiritlevel.results.wording import UNTRAINED
from tests.cli.material import CHEAP, Run, digest, strict

SOURCE = str(Path(spiritlevel.__file__).resolve().parents[1])


# --- what works ------------------------------------------------------------------------------------------------------


def test_table_to_stdout_notes_to_stderr(run: Run, weights: Path) -> None:
    ran = run("measure", "mine:Net", weights, "--data", "mine:pair", "--samples", 20)
    assert ran.code == 0
    assert UNTRAINED not in ran.out
    assert "20 of 40 samples" in " ".join(ran.out.split())  # a long path may break the line
    assert "Hessian trace" in ran.out
    assert "hessian_trace" in ran.out
    assert "exact (verified)" in ran.out
    assert "drawn with seed 0" in ran.err
    assert "drawn with seed 0" not in ran.out
    assert run("measure", "mine:Net", weights, "--data", "mine:pair", "--samples", 20, "--quiet").err == ""


def test_first_line_without_weights(run: Run) -> None:
    assert run("measure", "mine:Net", *CHEAP).out.splitlines()[0] == UNTRAINED


@pytest.mark.parametrize("model", ["mine:Net", "mine:make_net", "mine:ready", "mine.py:Net", "./mine.py:make_net"])
def test_a_module_in_the_current_directory(run: Run, weights: Path, model: str) -> None:
    ran = run("measure", model, weights, *CHEAP, "--json", "-")
    assert ran.code == 0
    expected = run("measure", "mine:Net", "--weights", weights, *CHEAP, "--json", "-")
    assert strict(ran.out)["measures"] == strict(expected.out)["measures"]
    assert strict(ran.out)["header"]["model"] == model


@pytest.mark.parametrize("data", ["mine:batches", "mine.py:part", "mine:pair"])
def test_every_form_of_data_gives_the_same_numbers(run: Run, weights: Path, data: str) -> None:
    ran = run("measure", "mine:Net", weights, "--data", data, "--measures", "hessian_trace", "--json", "-")
    expected = run("measure", "mine:Net", weights, "--data", "mine:pair", "--measures", "hessian_trace", "--json", "-")
    ours, theirs = (strict(r.out)["measures"]["hessian_trace"]["value"] for r in (ran, expected))
    assert ours == pytest.approx(theirs, rel=1e-6)


def test_arguments_for_model_and_data(run: Run) -> None:
    ran = run(
        "measure", "mine:Net", "--data", "mine:part", "--model-args", "width=9", "--data-args", "count=30",
        "--measures", "output_margin", "--json", "-",
    )  # fmt: skip
    header = strict(ran.out)["header"]
    assert header["parameters"] == 4 * 9 + 9 + 9 * 3 + 3
    assert header["samples"] == 30
    refused = run("measure", "mine:ready", *CHEAP, "--model-args", "width=9")
    assert refused.code == 2
    assert "takes no --model-args" in refused.sentence


def test_json_on_stdout_is_strict_and_alone(run: Run, weights: Path) -> None:
    ran = run("measure", "mine:Net", weights, "--data", "mine:regression", "--loss", "mse", "--json", "-", "-m", "all")
    record = strict(ran.out)
    assert ran.code == 0
    assert record["schema_version"] == 1
    margin = record["measures"]["output_margin"]
    assert (margin["value"], margin["status"]) == (None, "not_applicable")
    assert "class" in margin["reason"]
    assert record["header"]["loss_name"] == "mean_squared_error"


def test_a_glob_of_five_checkpoints_has_a_row_each(run: Run, here: Path) -> None:
    for epoch in range(5):
        torch.manual_seed(epoch)
        model = nn.ModuleDict({"hidden": nn.Linear(4, 6), "head": nn.Linear(6, 3)})
        torch.save({"state_dict": model.state_dict()}, here / f"epoch{epoch}.pt")
    files = sorted(here.glob("epoch*.pt"))
    before = digest(here)
    ran = run("measure", "mine:Net", *files, *CHEAP, "--json", "all.json", "--per-sample", "{name}.npz")
    assert ran.code == 0
    assert all(sum(f"epoch{epoch}.pt" in line for line in ran.out.splitlines()) == 1 for epoch in range(5))
    reports = load_reports("all.json")
    assert [report.header.weights for report in reports] == [str(file) for file in files]
    assert len({report["output_margin"].value for report in reports}) == 5
    assert len({report.fingerprint for report in reports}) == 1
    assert np.load(here / "epoch3.npz")["output_margin"].shape == (40,)
    alone = strict(run("measure", "mine:Net", files[3], *CHEAP, "--json", "-").out)
    assert alone["measures"] == reports[3].record()["measures"]
    run("measure", "mine:Net", *files, *CHEAP, "--json", "{name}.json", "--quiet")
    assert Report.load("epoch3.json")["output_margin"] == reports[3]["output_margin"]
    assert {name: value for name, value in digest(here).items() if name in before} == before


def test_shuffled_and_augmented_loader_with_samples(run: Run, weights: Path, here: Path) -> None:
    other = here / "other.pt"
    torch.save({key: 2 * value for key, value in torch.load(weights).items()}, other)
    options = ("--data", "mine:loader", "--samples", 24, "--measures", "hessian_trace")
    ran = run("measure", "mine:Net", weights, other, *options, "--json", "-")
    assert ran.code == 0
    first, second = strict(ran.out)["reports"]
    assert first["header"]["samples"] == 24
    assert first["header"]["fingerprint"] == second["header"]["fingerprint"]
    assert second["header"]["samples_total"] == 40
    # The same seed gives the same draw of the augmentation in another run.
    again = strict(run("measure", "mine:Net", weights, *options, "--json", "-").out)
    assert again["measures"]["hessian_trace"] == first["measures"]["hessian_trace"]


def test_augmentation_without_samples_is_refused(run: Run, weights: Path) -> None:
    refused = run("measure", "mine:Net", weights, "--data", "mine:loader")
    assert refused.code == 1
    assert "pass --samples N to keep one fixed draw" in refused.sentence


def test_a_built_in_net_is_fitted_to_the_data(run: Run, here: Path) -> None:
    generator = np.random.default_rng(0)
    np.savez(here / "tiny.npz", x=generator.random((12, 3, 6, 6)), y=np.arange(12) % 4)
    ran = run("measure", "digits_cnn", "--data", "tiny.npz", "-m", "output_margin", "--json", "-")
    header = strict(ran.out)["header"]
    assert ran.code == 0
    assert any("resized from 6x6 to 8x8" in text for text in header["notes"])
    assert header["parameters"] == sum(
        p.numel() for p in nets.build("digits_cnn", channels=3, size=8, classes=4).parameters()
    )
    assert (header["data"], header["split"]) == ("tiny.npz", None)


def test_named_data_and_split(run: Run) -> None:
    ran = run("measure", "digits_mlp", "--data", "digits:test", "--samples", 50, "-m", "output_margin", "--json", "-")
    header = strict(ran.out)["header"]
    assert (header["data"], header["split"], header["samples"], header["samples_total"]) == ("digits", "test", 50, 360)
    assert ran.err.startswith(UNTRAINED)


def test_layers(run: Run, weights: Path) -> None:
    ran = run("measure", "mine:Net", weights, "--data", "mine:pair", "-m", "hessian_trace", "--layers")
    assert "│ hidden │" in ran.out
    assert "│ head   │" in ran.out


def test_settings_tolerance_and_parameters(run: Run, weights: Path) -> None:
    ran = run(
        "measure", "mine:Net", weights, "--data", "mine:pair", "-m", "hessian_top_eigenvalue,output_margin",
        "--tolerance", "1e-4", "--set", "output_margin.statistic=p10", "--parameters", "head.*", "--dtype", "float64",
        "--json", "-",
    )  # fmt: skip
    record = strict(ran.out)
    assert record["settings"]["hessian_top_eigenvalue"]["tolerance"] == 1e-4
    assert record["settings"]["output_margin"]["statistic"] == "p10"
    assert record["header"]["parameters"] == 21
    assert record["header"]["dtype"] == "float64"


def test_per_sample_files(run: Run, weights: Path, here: Path) -> None:
    for file in ("s.npz", "s.csv"):
        assert run("measure", "mine:Net", weights, *CHEAP, "--per-sample", file).code == 0
    with (here / "s.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["output_margin"]) for row in rows] == np.load(here / "s.npz")["output_margin"].tolist()
    refused = run("measure", "mine:Net", weights, *CHEAP, "--per-sample", "s.txt")
    assert refused.code == 2
    assert "must end in .npz or .csv" in refused.sentence


def test_dry_run_prints_the_plan_and_measures_nothing(run: Run, weights: Path, here: Path) -> None:
    ran = run("measure", "mine:Net", weights, "--data", "mine:pair", "--dry-run", "--json", "r.json")
    assert ran.code == 0
    assert "40 samples, 51 parameters" in ran.out
    assert "hessian_top_eigenvalue" in ran.out
    assert "│" not in ran.out
    assert not (here / "r.json").exists()


def test_config_file_under_the_command_line(run: Run, weights: Path, here: Path) -> None:
    (here / "run.toml").write_text(
        'model = "mine:Net"\nweights = ["net.pt"]\ndata = "mine:pair"\nmeasures = "output_margin, hessian_trace"\n'
        'samples = 30\nbatch-size = 7\n[settings.output_margin]\nstatistic = "mean"\n[data_args]\n',
        encoding="utf-8",
    )
    record = strict(run("measure", "--config", "run.toml", "--json", "-").out)
    assert list(record["measures"]) == ["output_margin", "hessian_trace"]
    assert record["header"]["samples"] == 30
    assert record["settings"]["output_margin"]["statistic"] == "mean"
    over = strict(run("measure", "--config", "run.toml", "--samples", 10, "-m", "output_margin", "--json", "-").out)
    assert over["header"]["samples"] == 10
    assert list(over["measures"]) == ["output_margin"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sample = 3", "unknown key 'sample'; did you mean samples?"),
        ("samples = 'many'", "samples must be a int"),
        ("samples = ", "not readable TOML"),
    ],
)
def test_bad_config(run: Run, here: Path, text: str, words: str) -> None:
    (here / "run.toml").write_text(text, encoding="utf-8")
    ran = run("measure", "mine:Net", *CHEAP, "--config", "run.toml")
    assert ran.code == 2
    assert words.removesuffix("?") in ran.sentence


def test_like_an_earlier_report(run: Run, weights: Path) -> None:
    run(
        "measure", "mine:Net", weights, *CHEAP, "--samples", 25, "--seed", 4, "--dtype", "float64",
        "--set", "output_margin.statistic=p10", "--json", "first.json",
    )  # fmt: skip
    first = Report.load("first.json")
    again = strict(
        run("measure", "mine:Net", weights, "--data", "mine:pair", "--like", "first.json", "--json", "-").out
    )
    assert again["measures"] == first.record()["measures"]
    assert again["header"]["fingerprint"] == first.fingerprint
    other = run(
        "measure", "mine:Net", weights, "--data", "mine:part", "--data-args", "count=30", "--like", "first.json"
    )
    assert other.code == 0
    assert "the fingerprints differ" in other.err


def test_strict_exits_with_three(run: Run, weights: Path) -> None:
    words = ("measure", "mine:Net", weights, "--data", "mine:regression", "--loss", "mse", "-m", "output_margin")
    assert run(*words).code == 0
    ran = run(*words, "--strict")
    assert ran.code == 3
    assert "output_margin is not ok" in ran.sentence
    assert "not applicable" in ran.out


def test_report_shows_saved_files_without_measuring(run: Run, weights: Path, here: Path) -> None:
    measured = run("measure", "mine:Net", weights, "--data", "mine:pair", "--json", "a.json")
    (here / "mine.py").unlink()
    weights.unlink()
    shown = run("report", "a.json", "--csv", "rows.csv")
    assert shown.code == 0
    assert shown.out.rstrip().startswith(measured.out.rstrip())
    with (here / "rows.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    trace = Report.load("a.json")["hessian_trace"].value
    assert [float(row["value"]) for row in rows if row["measure"] == "hessian_trace"] == [trace]
    (here / "b.json").write_bytes((here / "a.json").read_bytes())
    several = run("report", "a.json", "b.json", "--layers")
    assert "│ a.json" in several.out
    assert "│ b.json" in several.out


@pytest.mark.parametrize(("what", "words"), [("measures", "hessian_trace"), ("nets", "lenet5"), ("data", "cifar100")])
def test_lists(run: Run, what: str, words: str) -> None:
    ran = run("list", what)
    assert ran.code == 0
    assert words in ran.out


def test_one_measure_is_listed_in_full(run: Run) -> None:
    ran = run("list", "measures", "normalized_sharpness")
    assert ran.code == 0
    assert "eq. (17)" in ran.out
    assert "lam=0.5" in ran.out
    assert run("list", "nets", "lenet5").code == 2


def test_data_get_of_what_is_built_in(run: Run) -> None:
    assert run("data", "get", "digits").code == 0
    refused = run("data", "get", "digit")
    assert refused.code == 2
    assert "digits" in refused.sentence


def test_doctor_finds_this_machine_sound(run: Run) -> None:
    ran = run("doctor")
    assert ran.code == 0
    assert torch.__version__.partition("+")[0] in ran.out
    assert ran.out.count("ok\n") >= 16
    assert "TOO LARGE" not in ran.out


def test_the_demo_gives_the_threads_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        with _one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_demo_trains_measures_and_saves(run: Run, here: Path) -> None:
    ran = run("demo", "--steps", 60, "--quiet")
    assert ran.code == 0
    assert ran.err == ""
    for words in ("small batch", "large batch", "test accuracy", "Hessian trace", "skewness", "█", "To try next"):
        assert words in ran.out
    assert sorted(os.listdir(here / "spiritlevel-demo")) == [
        "comparison.json", "large-batch.json", "large-batch.pt", "page.html", "small-batch.json", "small-batch.pt",
    ]  # fmt: skip
    saved = Report.load(here / "spiritlevel-demo" / "small-batch.json")
    again = run(
        "measure", "digits_mlp", "spiritlevel-demo/small-batch.pt", "--data", "digits", "-m", "output_margin",
        "--json", "-",
    )  # fmt: skip
    assert strict(again.out)["measures"]["output_margin"]["value"] == saved["output_margin"].value


# --- the command as a process ----------------------------------------------------------------------------------------


def process(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-P", "-m", "spiritlevel", *words]  # -P: as installed, without the current directory
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_as_a_process_on_a_module_in_the_current_directory(here: Path, weights: Path) -> None:
    ran = process(here, "measure", "mine:Net", "net.pt", *CHEAP, "--json", "-")
    assert ran.returncode == 0, ran.stderr
    assert strict(ran.stdout)["header"]["weights"] == "net.pt"


def test_as_a_process_refusing(here: Path) -> None:
    ran = process(here, "measure", "mine:Bare", *CHEAP)
    assert ran.returncode == 1
    assert ran.stderr.startswith("spiritlevel: Bare has no parameters")
    assert ran.stderr.count("\n") == 1
    assert ran.stdout == ""


def test_help_loads_neither_torch_nor_numpy(here: Path) -> None:
    loaded = "print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    code = f"import sys; from spiritlevel.cli import main; main(['--help']); {loaded}"
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=here, env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.rstrip().endswith("[]")


def test_a_dry_run_refuses_what_cannot_fit(run: Run, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRITLEVEL_MEMORY", "500 B")
    ran = run("measure", "mine:Net", weights, "--data", "mine:pair", "--dry-run")
    assert ran.code == 1
    assert "500 bytes free on cpu" in ran.out
    assert "choose fewer of them by a pattern as --parameters 'head.*'" in ran.err
    assert len(ran.err.splitlines()) == 1

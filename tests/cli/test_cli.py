"""The command line: what it prints where, its exit codes, and one sentence for each thing that cannot be done."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import spiritlevel
from spiritlevel.cli import main
from spiritlevel.cli.values import parse_pairs, parse_value
from spiritlevel.lab import nets
from spiritlevel.results import Report, load_reports
from spiritlevel.results.wording import UNTRAINED

SOURCE = str(Path(spiritlevel.__file__).resolve().parents[1])
MODULE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Net(nn.Module):
    def __init__(self, width=6, classes=3):
        super().__init__()
        self.hidden = nn.Linear(4, width)
        self.head = nn.Linear(width, classes)
    def forward(self, x):
        return self.head(torch.relu(self.hidden(x)))

class Dropping(Net):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
    def forward(self, x):
        return self.head(self.drop(torch.relu(self.hidden(x))))

class Bare(nn.Module):
    def forward(self, x):
        return x[:, :3]

class Poisoned(Net):
    def __init__(self):
        super().__init__()
        self.hidden.weight.data[0, 0] = float("nan")

def make_net(width=6):
    return Net(width=int(width))

def broken():
    raise RuntimeError("the disk is on fire\\nsecond line")

generator = torch.Generator().manual_seed(0)
x = torch.randn(40, 4, generator=generator)
y = torch.randint(0, 3, (40,), generator=generator)
pair = (x, y)
ready = Net()

def wrong_labels():
    return x, torch.full((40,), 7)

def empty():
    return x[:0], y[:0]

def part(count=40):
    return x[:count], y[:count]

class Jittered(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return x[index] + 0.1 * torch.randn(4), y[index]

def loader():
    return DataLoader(Jittered(), batch_size=8, shuffle=True, drop_last=True)

def batches():
    return [{"x": x[:25], "labels": y[:25]}, {"x": x[25:], "labels": y[25:]}]

def regression():
    return x, torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
"""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The last line on stderr, where a failure is told."""
        return self.err.strip().splitlines()[-1]


Run = Callable[..., Ran]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a user's module in it, as the current directory; imports from it are forgotten afterwards."""
    (tmp_path / "mine.py").write_text(textwrap.dedent(MODULE), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name == "mine" or name.startswith("_spiritlevel_user_"):
            del sys.modules[name]


@pytest.fixture
def run(here: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process and return what it printed."""

    def call(*words: str | Path) -> Ran:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def weights(here: Path) -> Path:
    """Weights of the user's network."""
    torch.manual_seed(3)
    model = nn.ModuleDict({"hidden": nn.Linear(4, 6), "head": nn.Linear(6, 3)})
    torch.save(model.state_dict(), here / "net.pt")
    return here / "net.pt"


def digest(folder: Path) -> dict[str, str]:
    """Return a hash of every file there is, but for Python's own cache."""
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    }


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not strict JSON")

    return json.loads(text, parse_constant=refuse)


CHEAP = ("--data", "mine:pair", "--measures", "output_margin")


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
    assert "samples=N" in refused.sentence


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


# --- what cannot be done: one sentence, the right exit code, no traceback, nothing written ---------------------------


def corrupt(folder: Path) -> None:
    whole = (folder / "net.pt").read_bytes()
    (folder / "cut.pt").write_bytes(whole[: len(whole) // 2])
    (folder / "text.pt").write_text("no weights", encoding="utf-8")
    torch.save({"hidden.weight": torch.zeros(6, 4)}, folder / "less.pt")
    (folder / "broken.py").write_text("import torch\nraise ValueError('not today')\n", encoding="utf-8")
    (folder / "needs.py").write_text("import a_package_nobody_has\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("mine:Dropping", *CHEAP, "--mode", "train"), 1, "dropout is active in training mode (drop)"),
        (("mine:Net", "--data", "mine:wrong_labels"), 2, "7"),
        (("mine:Net", "--data", "mine:empty"), 1, "the data is empty"),
        (("mine:Poisoned", *CHEAP), 1, "parameter hidden.weight holds 1 values that are NaN"),
        (("mine:Bare", *CHEAP), 1, "Bare has no parameters"),
        (("mine:Net", "less.pt", *CHEAP), 1, "less.pt does not fit the Net"),
        (("mine:Net", "cut.pt", *CHEAP), 1, "cut.pt"),
        (("mine:Net", "text.pt", *CHEAP), 1, "text.pt is not a weights file"),
        (("mine:Net", "nett.pt", *CHEAP), 2, "there is no weights file nett.pt; did you mean net.pt"),
        (("mine:Net", "net.pt", "./net.pt", *CHEAP), 2, "named twice"),
        (("mine:Net", *CHEAP, "--json", "missing/r.json"), 2, "there is no folder missing"),
        (("mine:Net", *CHEAP, "--json", "."), 2, "is a folder"),
        (("mine:Net", *CHEAP, "--json", "net.pt/r.json"), 2, "net.pt"),
        (("mine:Net", "--data", "mine:pair", "-m", "hesian_trace"), 2, "did you mean hessian_trace"),
        (("mine:Net", *CHEAP, "--set", "output_margin.statistc=p10"), 2, "did you mean statistic"),
        (("mine:Net", *CHEAP, "--set", "output_margin.statistic=p11"), 2, "'p10'"),
        (("mine:Net", *CHEAP, "--set", "hessian_trace.probes=3"), 2, "not among the chosen measures"),
        (("mine:Net", *CHEAP, "--set", "statistic=p10"), 2, "must name a measure and its setting"),
        (("mine:Net", *CHEAP, "--model-args", "width"), 2, "key=value"),
        (("mine:Net", *CHEAP, "--model-args", "depth=2"), 1, "unexpected keyword argument 'depth'"),
        (("lenet", "--data", "digits"), 2, "did you mean lenet5"),
        (("mine:Nett", *CHEAP), 2, "mine has no 'Nett'; did you mean Net"),
        (("mien:Net", *CHEAP), 2, "there is no module 'mien'"),
        (("mien.py:Net", *CHEAP), 2, "there is no file mien.py; did you mean mine.py"),
        (("broken.py:Net", *CHEAP), 1, "broken.py could not be imported: ValueError: not today"),
        (("needs:Net", *CHEAP), 1, "a_package_nobody_has"),
        (("mine:broken", *CHEAP), 1, "RuntimeError: the disk is on fire"),
        (("mine:pair", *CHEAP), 2, "gave a tuple"),
        (("mine:Net", "--data", "digit"), 2, "did you mean digits"),
        (("mine:Net", "--data", "digits:valid"), 2, "'valid'"),
        (("mine:Net", "--data", "none.npz"), 2, "There is no file none.npz"),
        (("mine:Net", "--data", "digits"), 1, "the model could not be run on a batch"),
        (("mine:Net",), 2, "no data was given"),
        ((), 2, "no MODEL was given"),
        (("mine:Net", *CHEAP, "--samples", "-3"), 2, "samples must be a positive whole number"),
        (("mine:Net", *CHEAP, "--samples", "many"), 2, "'--samples'"),
        (("mine:Net", *CHEAP, "--loss", "cross_entrpy"), 2, "did you mean cross_entropy"),
        (("mine:Net", *CHEAP, "--dtype", "float16"), 2, "float16"),
        (("mine:Net", *CHEAP, "--device", "gpu"), 2, "gpu"),
        (("mine:Net", *CHEAP, "--parameters", "heads.*"), 2, "no parameter is named 'heads.*'"),
        (("mine:Net", *CHEAP, "--like", "nothing.json"), 2, "there is no file nothing.json"),
        (("mine:Net", *CHEAP, "--nonsense"), 2, "--nonsense"),
        (("mine:Net", *CHEAP, "--tolerance", "3"), 2, "tolerance must lie between 0 and 1"),
    ],
)  # fmt: skip
def test_refused_in_one_sentence(
    run: Run, weights: Path, here: Path, words: tuple[str, ...], code: int, sentence: str
) -> None:
    corrupt(here)
    before = digest(here)
    ran = run("measure", *words)
    assert ran.code == code, ran.err
    assert sentence in ran.sentence
    assert ran.sentence.startswith("spiritlevel: ")
    assert len(ran.err.strip().splitlines()) == 1
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert digest(here) == before


@pytest.mark.parametrize(("model", "package"), [("timm:resnet18", "timm"), ("hf:folder", "transformers")])
def test_a_missing_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, model: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    ran = run("measure", model, "--data", "digits")
    assert ran.code == 2
    assert ran.err.strip() == (
        f"spiritlevel: {model} needs the package {package}, which is not installed; run pip install {package}"
    )


def test_networks_of_other_packages(run: Run, weights: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Classifier(nn.Module):
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.hidden, self.head = nn.Linear(4, config.width), nn.Linear(config.width, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.hidden(x)))

    def from_pretrained(folder: str, local_files_only: bool) -> SimpleNamespace:
        assert (folder, local_files_only) == ("saved", True)
        return SimpleNamespace(architectures=["Classifier"], width=6)

    config = SimpleNamespace(from_pretrained=from_pretrained)
    transformers = SimpleNamespace(__name__="transformers", AutoConfig=config, Classifier=Classifier)
    timm = SimpleNamespace(__name__="timm", create_model=lambda name, width: Classifier(SimpleNamespace(width=width)))
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.setitem(sys.modules, "timm", timm)
    (here / "saved").mkdir()
    (here / "saved" / "pytorch_model.bin").write_bytes(weights.read_bytes())
    ran = run("measure", "hf:saved", *CHEAP, "--json", "-")
    expected = strict(run("measure", "mine:Net", weights, *CHEAP, "--json", "-").out)
    assert strict(ran.out)["measures"] == expected["measures"]
    assert strict(ran.out)["header"]["weights"] == "saved"
    assert UNTRAINED not in ran.err
    made = run("measure", "timm:small", weights, *CHEAP, "--model-args", "width=6", "--json", "-")
    assert strict(made.out)["measures"] == expected["measures"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("1e-3", 1e-3), ("True", True), ("none", None), ("[8, 8]", [8, 8]), ("relu", "relu"),
        ("(0.1,0.2)", (0.1, 0.2)), ("'3'", "3"), ("__import__('os')", "__import__('os')"),
    ],
)  # fmt: skip
def test_values_are_read_and_never_executed(text: str, value: Any) -> None:
    assert parse_value(text) == value
    assert parse_pairs([f"a={text}", "b=1,c=x"], "--model-args") == {"a": value, "b": 1, "c": "x"}


def test_wrong_commands(run: Run) -> None:
    assert run("mesure").code == 2
    assert run("list", "measure").sentence.startswith("spiritlevel: there is no list of 'measure'; did you mean")
    assert run("report", "nothing.json").code == 2
    assert "Usage" in run().out
    assert run("--version").out == f"spiritlevel {spiritlevel.__version__}\n"


def test_finished_work_is_kept_when_a_later_file_fails(run: Run, weights: Path, here: Path) -> None:
    corrupt(here)
    ran = run("measure", "mine:Net", "net.pt", "cut.pt", *CHEAP, "--json", "all.json")
    assert ran.code == 1
    assert "cut.pt" in ran.sentence
    assert "net.pt" in ran.out
    assert [report.header.weights for report in load_reports("all.json")] == ["net.pt"]


def test_an_interruption_keeps_finished_work(
    run: Run, weights: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spiritlevel.cli import subject

    (here / "late.pt").write_bytes(weights.read_bytes())
    load = subject.load_weights

    def interrupted(model: nn.Module, path: str, key: str | None) -> Any:
        if path == "late.pt":
            raise KeyboardInterrupt
        return load(model, path, key)

    monkeypatch.setattr(subject, "load_weights", interrupted)
    ran = run("measure", "mine:Net", "net.pt", "late.pt", *CHEAP, "--json", "all.json")
    assert ran.code == 130
    assert ran.sentence == (
        "spiritlevel: interrupted; 1 of 2 networks are finished in all.json, and the same command measures the rest"
    )
    assert len(load_reports("all.json")) == 1


def test_an_unexpected_failure_is_one_line_and_debug_shows_where(
    run: Run, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spiritlevel.cli import subject

    def explode(*args: Any, **settings: Any) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(subject, "measure", explode)
    ran = run("measure", "mine:Net", weights, *CHEAP)
    assert ran.code == 1
    assert ran.err.strip() == (
        "spiritlevel: unexpected failure, ZeroDivisionError: surprise; run again with --debug to see where"
    )
    assert "Traceback" in run("--debug", "measure", "mine:Net", weights, *CHEAP).err


def test_hidden_files_are_not_taken_for_misspelt_weights(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / ".a.pt").touch()
    assert main(["measure", "mine:Net", "a.pt", *CHEAP]) == 2
    said = capsys.readouterr().err
    assert "there is no weights file a.pt" in said
    assert ".a.pt" not in said


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

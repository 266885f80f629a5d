"""What cannot be done: one sentence, the right exit code, no traceback, nothing written, finished work kept."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import spiritlevel
from spiritlevel.cli import main
from spiritlevel.cli.values import parse_pairs, parse_value
from spiritlevel.results import load_reports
from spiritlevel.results.wording import UNTRAINED
from tests.cli.material import CHEAP, Run, digest, strict


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
        (("mine:Net", *CHEAP, "--precision", "half"), 2, "precision must be float32, tf32 or bfloat16, not 'half'"),
        (("mine:Net", *CHEAP, "--precision", "tf32", "--dtype", "float64"), 2, "leave one of them out"),
        (("mine:Net", *CHEAP, "--seconds", "-3"), 2, "seconds must be a positive number, not -3"),
        (("mine:Net", "--data", "text.jsonl"), 2, "--task says what is done with it: causal-lm, masked-lm"),
        (("mine:Net", "--data", "text.jsonl", "--task", "translation"), 2, "translation"),
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


@pytest.mark.parametrize(
    ("model", "package", "extra"), [("timm:resnet18", "timm", "timm"), ("hf:folder", "transformers", "hf")]
)
def test_a_missing_extra_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, model: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    ran = run("measure", model, "--data", "digits")
    assert ran.code == 2
    assert ran.err.strip() == (
        f"spiritlevel: {model} needs {package}, which is not installed; run pip install 'spiritlevel[{extra}]'"
    )


def test_networks_of_other_packages(run: Run, weights: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Classifier(nn.Module):
        def __init__(self, config: Any) -> None:
            super().__init__()
            self.config = config
            self.hidden, self.head = nn.Linear(4, config.width), nn.Linear(config.width, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.hidden(x)))

    def read_config(folder: str, local_files_only: bool, trust_remote_code: bool, **values: Any) -> SimpleNamespace:
        assert (folder, local_files_only, trust_remote_code) == ("saved", True, False)
        return SimpleNamespace(architectures=["Classifier"], width=6, **values)

    def from_pretrained(name: None, config: Any, state_dict: Any, **how: Any) -> Any:
        assert how == {"output_loading_info": True, "attn_implementation": "eager"}
        model = Classifier(config)
        model.load_state_dict(state_dict)
        return model, {"missing_keys": set(), "unexpected_keys": set()}

    Classifier.from_pretrained = staticmethod(from_pretrained)
    loud = SimpleNamespace(level=30, bars=True, CRITICAL=50)
    loud.get_verbosity, loud.set_verbosity = lambda: loud.level, lambda level: setattr(loud, "level", level)
    loud.is_progress_bar_enabled = lambda: loud.bars
    loud.enable_progress_bar = lambda: setattr(loud, "bars", True)
    loud.disable_progress_bar = lambda: setattr(loud, "bars", False)
    transformers = SimpleNamespace(
        __name__="transformers",
        AutoConfig=SimpleNamespace(from_pretrained=read_config),
        Classifier=Classifier,
        utils=SimpleNamespace(logging=loud),
    )

    def create_model(name: str, pretrained: bool, width: int) -> Classifier:
        assert (name, pretrained) == ("small", False)
        return Classifier(SimpleNamespace(width=width))

    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(__name__="timm", create_model=create_model))
    (here / "saved").mkdir()
    (here / "saved" / "config.json").write_text("{}")
    (here / "saved" / "pytorch_model.bin").write_bytes(weights.read_bytes())
    ran = run("measure", "hf:saved", *CHEAP, "--json", "-")
    expected = strict(run("measure", "mine:Net", weights, *CHEAP, "--json", "-").out)
    assert strict(ran.out)["measures"] == expected["measures"]
    assert strict(ran.out)["header"]["weights"] == "saved"
    assert UNTRAINED not in ran.err
    assert (loud.level, loud.bars) == (30, True)  # as they were
    made = run("measure", "timm:small", weights, *CHEAP, "--model-args", "width=6", "--json", "-")
    assert strict(made.out)["measures"] == expected["measures"]
    unknown = run("measure", "timm:smal", weights, *CHEAP)
    assert unknown.sentence.startswith("spiritlevel: timm could not build timm:smal: TypeError: ")


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

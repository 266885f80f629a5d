"""A glob of checkpoints that is stopped at any moment: what was finished is on disk, whole, and the rest is resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import spiritlevel
from spiritlevel.lab import nets
from spiritlevel.results import load_reports
from tests.cli.material import Run

SOURCE = str(Path(spiritlevel.__file__).resolve().parents[1])
COUNT = 8
GLOB = [f"e{number}.pt" for number in range(COUNT)]
COMMAND = ["measure", "digits_mlp", *GLOB, "--data", "digits", "--samples", "100", "-m", "output_margin"]
CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129, "SIGKILL": -9}

# Forks a child for each moment, so that torch is loaded once; each child is a whole run of the command line.
DRIVER = """
import json, os, random, signal, sys, time
import torch
torch.set_num_threads(1)
from spiritlevel.cli import main
main([*COMMAND, "--quiet", "--json", "loaded.json"])  # what a run imports is there when children are forked

def start(target):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(writer, 2)
        os.close(reader)
        os._exit(main([*COMMAND, "--json", target]))
    os.close(writer)
    return child, os.fdopen(reader)

def end(child, stream):
    said = stream.read()
    stream.close()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, said

def saved(target):
    if not os.path.exists(target):
        return []
    reports = json.load(open(target, encoding="utf-8"))["reports"]  # raises where the file is not whole
    return [[r["header"]["weights"], r["header"].get("identity"), r["measures"], r["samples"]] for r in reports]

child, stream = start("whole.json")
stream.readline()
began = time.monotonic()
end(child, stream)
span = time.monotonic() - began
draw = random.Random(7)
found = []
for name in SIGNALS:
    for _ in range(MOMENTS):
        target = f"{name}.json"
        if os.path.exists(target):
            os.unlink(target)
        child, stream = start(target)
        first = stream.readline()
        time.sleep(draw.random() * span)
        os.kill(child, getattr(signal, name))
        code, said = end(child, stream)
        kept = saved(target)
        left = sorted(each for each in os.listdir(".") if each.endswith(".part"))
        for each in left:
            os.unlink(each)
        again = end(*start(target))
        found.append({"signal": name, "code": code, "said": first + said, "kept": kept, "left": left,
                      "again": again, "final": saved(target)})
print(json.dumps({"whole": saved("whole.json"), "found": found}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with eight checkpoints."""
    place = tmp_path_factory.mktemp("glob")
    for number, name in enumerate(GLOB):
        torch.save(nets.build("digits_mlp", seed=number).state_dict(), place / name)
    return place


def driven(folder: Path, signals: list[str], moments: int) -> dict[str, Any]:
    script = f"COMMAND, SIGNALS, MOMENTS = {COMMAND!r}, {signals!r}, {moments}\n{DRIVER}"
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", script]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def check_stopped(result: dict[str, Any]) -> None:
    whole = result["whole"]
    assert [entry[0] for entry in whole] == GLOB
    for found in result["found"]:
        name, kept = found["signal"], found["kept"]
        finished = [entry for entry in kept if entry[1]]
        assert found["code"] in (CODES[name], 0), found["said"]
        # What is on disk is what an undisturbed run gives, in its order, and nothing finished is missing.
        assert finished == whole[: len(finished)]
        begun = sum(f" of {COUNT}: e" in line for line in found["said"].splitlines())
        assert len(finished) >= begun - 1
        if name != "SIGKILL":
            assert not found["left"]
            assert "Traceback" not in found["said"]
            if found["code"]:
                words = f"spiritlevel: interrupted; {len(finished)} of {COUNT} networks are finished in {name}.json"
                words = words if len(finished) < COUNT else "spiritlevel: interrupted"  # after the last word
                assert words in found["said"].splitlines()[-1], found["said"]
        code, said = found["again"]
        assert code == 0
        assert found["final"] == whole
        measured = [line for line in said.splitlines() if f" of {COUNT}: e" in line]
        assert len(measured) == COUNT - len(finished)
        assert (f"{len(finished)} of {COUNT} kept from {name}.json" in said) == bool(finished)


def test_a_killed_and_a_terminated_glob_is_resumed(folder: Path) -> None:
    check_stopped(driven(folder, ["SIGKILL", "SIGTERM"], 1))


@pytest.mark.slow
def test_every_signal_at_ten_moments(folder: Path) -> None:
    check_stopped(driven(folder, list(CODES), 10))


# --- in this process -------------------------------------------------------------------------------------------------

CHEAP = ("--data", "digits", "--samples", "100", "-m", "output_margin")


@pytest.fixture
def here(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in GLOB[:3]:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    return tmp_path


def glob(*more: str, data: tuple[str, ...] = CHEAP) -> tuple[str, ...]:
    return ("measure", "digits_mlp", *GLOB[:3], *data, *more)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_a_command_with_its_code_and_gives_the_handlers_back(
    run: Run, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    from spiritlevel.cli import subject

    def stopped(*args: Any, **settings: Any) -> None:
        os.kill(os.getpid(), number)
        time.sleep(5)

    def uncaught(*_: Any) -> None:  # so that a signal that is not caught does not end the tests
        pytest.fail("the signal was not caught")

    monkeypatch.setattr(subject, "measure", stopped)
    before = signal.signal(number, uncaught)
    try:
        code, out, err = run("measure", "digits_mlp", "e0.pt", *CHEAP)
        assert signal.getsignal(number) is uncaught
    finally:
        signal.signal(number, before)
    assert code == 128 + number
    assert err.splitlines()[-1] == "spiritlevel: interrupted"
    assert out == ""


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    from spiritlevel.cli.signals import watched

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with watched():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_user_code_swallows_stops_at_the_next_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from spiritlevel.cli import subject

    honest = subject.measure

    def swallowing(*args: Any, **settings: Any) -> Any:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except BaseException:
            pass
        return honest(*args, **settings)

    monkeypatch.setattr(subject, "measure", swallowing)
    code, _, err = run(*glob("--json", "all.json"))
    assert code == 143
    assert "1 of 3 networks are finished in all.json" in err.splitlines()[-1]
    assert len(load_reports("all.json")) == 1


@pytest.mark.parametrize("files", [1, 3])
def test_an_interruption_that_comes_out_as_a_failure(run: Run, monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    from spiritlevel.cli import subject

    def wrapping(*args: Any, **settings: Any) -> Any:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt as error:
            raise RuntimeError("the forward pass failed") from error

    monkeypatch.setattr(subject, "measure", wrapping)
    code, _, err = run("measure", "digits_mlp", *GLOB[:files], *CHEAP, "--json", "all.json")
    assert code == 130
    assert err.splitlines()[-1].startswith("spiritlevel: interrupted")
    assert not os.path.exists("all.json")


@pytest.mark.parametrize("target", ["all.json", "{name}.json"])
def test_only_what_is_missing_or_different_is_measured(run: Run, here: Path, target: str) -> None:
    def measured(err: str) -> list[str]:
        return [line.partition(": ")[2] for line in err.splitlines() if " of 3: " in line]

    assert measured(run(*glob("--json", target))[2]) == GLOB[:3]
    before = {file.name: file.read_bytes() for file in here.glob("*.json")}
    code, out, err = run(*glob("--json", target))
    assert (code, measured(err)) == (0, [])
    assert err.startswith(f"3 of 3 kept from {target}, where the same weights, data and settings were measured before")
    assert all(name in out for name in GLOB[:3])
    assert {file.name: file.read_bytes() for file in here.glob("*.json")} == before
    # Other weights under the same name.
    (here / "e1.pt").write_bytes((here / "e0.pt").read_bytes())
    assert measured(run(*glob("--json", target))[2]) == ["e1.pt"]
    # Other settings, and other data: nothing is kept, and that is said.
    for data in (("--data", "digits", "--samples", "90", "-m", "output_margin"), ("--data", "digits:test", *CHEAP[2:])):
        _, _, err = run(*glob("--json", target, data=data))
        assert measured(err) == GLOB[:3]
        assert "kept" not in err
        assert f"3 in {target}, unfinished or of other weights, data or settings, will be replaced." in err


def test_data_that_changed_behind_the_same_name_is_measured_anew(run: Run, here: Path) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 1, 8, 8)).astype("float32"), rng.integers(0, 10, 40)
    command = glob("--json", "all.json", data=("--data", "d.npz", "-m", "output_margin"))
    np.savez(here / "d.npz", x=x, y=y)
    run(*command)
    assert "3 of 3 kept" in run(*command)[2]
    np.savez(here / "d.npz", x=x + 1, y=y)
    _, _, err = run(*command)
    assert "kept" not in err
    assert "1 of 3: e0.pt" in err


def test_code_that_changed_is_measured_anew(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured() -> int:
        _, _, err = run("measure", "net.py:make", *GLOB[:2], *CHEAP, "--json", "all.json")
        return sum(" of 2: " in line for line in err.splitlines())

    source = """
        import typer
        from spiritlevel.lab import nets
        from stopping_helper import seed
        make = lambda: nets.build('digits_mlp', seed=seed)
    """
    (here / "net.py").write_text(textwrap.dedent(source), encoding="utf-8")
    (here / "stopping_helper.py").write_text("seed = 0\n", encoding="utf-8")
    path = list(sys.path)
    try:
        assert measured() == 2
        assert measured() == 0
        (here / "stopping_helper.py").write_text("seed = 0  # and more\n", encoding="utf-8")
        assert measured() == 2
        assert measured() == 0
        monkeypatch.setattr("typer.__version__", "another one of a package that the code imports")
        assert measured() == 2
    finally:
        sys.path[:] = path
        sys.modules.pop("stopping_helper", None)


# --- one bad file ----------------------------------------------------------------------------------------------------


@pytest.fixture
def bad(here: Path) -> Path:
    """A corrupt file, one that does not fit and one whose numbers are not finite, in the middle of the glob."""
    (here / "e1.pt").write_bytes((here / "e0.pt").read_bytes()[:3000])
    torch.save({"a.weight": torch.zeros(2, 2)}, here / "misfit.pt")
    state = torch.load(here / "e0.pt")
    torch.save({name: tensor * float("nan") for name, tensor in state.items()}, here / "nan.pt")
    return here


def test_one_bad_file_is_a_row_with_its_reason(run: Run, bad: Path) -> None:
    files = ["e0.pt", "e1.pt", "misfit.pt", "nan.pt", "e2.pt"]
    code, out, err = run("measure", "digits_mlp", *files, *CHEAP, "--json", "all.json", "--html", "p.html")
    assert code == 1
    assert err.splitlines()[-1].startswith("spiritlevel: 3 of 5 weights files could not be measured, the first: e1.pt")
    rows = [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│") and ".pt" in line]
    assert rows == files  # in the order of the command
    for words in ("e1.pt is a damaged or truncated archive", "misfit.pt does not fit", "values that are NaN"):
        assert words in " ".join(out.split())
    record = json.loads((bad / "all.json").read_text(encoding="utf-8"))
    assert [report["header"]["weights"] for report in record["reports"]] == ["e0.pt", "e2.pt"]
    assert [failure["weights"] for failure in record["failures"]] == ["e1.pt", "misfit.pt", "nan.pt"]
    assert all(failure["reason"] for failure in record["failures"])
    page = (bad / "p.html").read_text(encoding="utf-8")
    assert "misfit.pt was not measured" in page
    # The saved file shows the same, and its rows too.
    code, out, _ = run("report", "all.json", "--csv", "o.csv", "--html", "again.html")
    assert code == 0
    assert "misfit.pt" in out
    lines = (bad / "o.csv").read_text(encoding="utf-8").splitlines()
    assert sum("not_measured" in line and "misfit.pt" in line for line in lines) == 1
    assert len(lines) == 1 + 2 + 3
    # What could not be measured is tried again.
    assert "2 of 5 kept" in run("measure", "digits_mlp", *files, *CHEAP, "--json", "all.json")[2]


def test_a_file_for_each_network_says_why_there_is_no_report(run: Run, bad: Path) -> None:
    code, _, _ = run("measure", "digits_mlp", "e0.pt", "e1.pt", *CHEAP, "--json", "{name}.json")
    assert code == 1
    assert len(load_reports("e0.json")) == 1
    code, _, err = run("measure", "digits_mlp", "e0.pt", *CHEAP, "--like", "e1.json")
    assert code == 1
    assert "e1.json holds no report: e1.pt was not measured" in err
    assert run("report", "e0.json", "e1.json")[0] == 0


def test_nothing_but_bad_files(run: Run, bad: Path) -> None:
    code, out, err = run("measure", "digits_mlp", "e1.pt", "misfit.pt", *CHEAP, "--json", "a.json", "--html", "p.html")
    assert code == 1
    assert "2 of 2 weights files could not be measured" in err
    assert json.loads((bad / "a.json").read_text(encoding="utf-8"))["reports"] == []
    assert not (bad / "p.html").exists()
    code, out, err = run("measure", "digits_mlp", "e1.pt", "misfit.pt", *CHEAP, "--json", "-")
    assert code == 1
    assert len(json.loads(out)["failures"]) == 2


def test_a_request_that_is_wrong_is_refused_once(run: Run) -> None:
    code, _, err = run(*glob("--parameters", "heads.*"))
    assert code == 2
    assert err.splitlines()[-1].startswith("spiritlevel: no parameter is named 'heads.*'")
    assert "2 of 3" not in err


def test_text_of_many_reports_is_that_of_the_whole() -> None:
    from spiritlevel.results import Report
    from spiritlevel.results.collecting import Failure, several_text
    from spiritlevel.results.header import Header
    from spiritlevel.results.records import strict_dumps
    from spiritlevel.values.estimate import Estimate

    report = Report({"a": Estimate(1.5)}, header=Header(notes=("line\nend\u2028\x85", "bad\udcff")))
    text = strict_dumps(report.record())
    record = json.loads(text)
    several = {"schema_version": 1, "reports": [record, record]}
    assert several_text([text, text]) == strict_dumps(several)
    failed = {**several, "reports": [], "failures": [{"weights": "w", "reason": '"reports": []'}]}
    assert several_text([], [Failure("w", '"reports": []')]) == strict_dumps(failed)

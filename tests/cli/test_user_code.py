"""The user's code beside the command line: it may print, exit and have any name, and changes nothing of the result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import spiritlevel
from spiritlevel.cli import main

SOURCE = str(Path(spiritlevel.__file__).resolve().parents[1])
MODULE = """
import atexit
import os
import sys
import torch
from torch import nn
from torch.utils.data import Dataset

print("imported")
os.write(1, b"straight to the descriptor\\n")
if "SAY_AT_THE_END" in os.environ:
    atexit.register(lambda: os.write(1, b"at the end\\n"))

class Loud(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        print("made")
    def forward(self, x):
        print("run")
        os.system("echo a process of its own")
        sys.__stdout__.write("by another name\\n")
        return self.head(x)

class Quiet(nn.Module):
    def __init__(self, leave=False):
        super().__init__()
        self.head = nn.Linear(4, 3)
        if leave:
            sys.exit(0)
    def forward(self, x):
        return self.head(x)

class Leaving(Quiet):
    def forward(self, x):
        raise SystemExit(CODE)

class LeavingWithZeros(Quiet):
    def forward(self, x):
        if not self.head.weight.any():
            sys.exit(0)
        return self.head(x)

class Rows(Dataset):
    def __len__(self):
        return 30
    def __getitem__(self, index):
        print("read")
        return torch.randn(4, generator=torch.Generator().manual_seed(index)), index % 3

class LeavingRows(Rows):
    def __getitem__(self, index):
        if index == 20:
            quit()
        return super().__getitem__(index)

CODE = 0
data = Rows()
leaving_data = LeavingRows()
"""
CHEAP = ("--data", "usercode:data", "-m", "output_margin", "--batch-size", "15")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "usercode.py").write_text(textwrap.dedent(MODULE), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        torch.manual_seed(number)
        torch.save(nn.ModuleDict({"head": nn.Linear(4, 3)}).state_dict(), f"e{number}.pt")
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name in ("usercode", "leaver") or name.startswith("_spiritlevel_user_"):
            del sys.modules[name]


def process(here: Path, *words: str, safe: bool = True, shell: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command as a process; ``shell`` follows it in a shell's line."""
    environment = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONIOENCODING": "utf-8", "SAY_AT_THE_END": "1"}
    command = [sys.executable, *(["-P"] if safe else []), "-m", "spiritlevel", *words]
    line = ["bash", "-c", f'set -o pipefail; "$@" {shell}', "bash", *command]
    return subprocess.run(
        line if shell else command, cwd=here, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


# --- standard output -------------------------------------------------------------------------------------------------


def test_json_is_alone_on_standard_output_whatever_the_code_prints(here: Path) -> None:
    for name in ("statistics", "queue", "safetensors", "usercode_free"):  # Python's, and an installed package
        (here / f"{name}.py").write_text("raise RuntimeError('this file stood in for another one')", encoding="utf-8")
    ran = process(here, "measure", "usercode:Loud", "e0.pt", *CHEAP, "--json", "-", safe=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["header"]["weights"] == "e0.pt"
    for words in ("imported", "straight to the", "made", "run", "a process of", "by another", "read", "at the end"):
        assert words in ran.stderr


@pytest.mark.parametrize("command", ["measure", "compare", "audit", "spectrum"])
def test_json_is_alone_with_every_command(here: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    weights = ["e0.pt", "e1.pt"] if command == "compare" else ["e0.pt"]
    words = [*CHEAP[:2], "--batch-size", "15", *(["--steps", "5"] if command == "spectrum" else CHEAP[2:4])]
    assert main([command, "usercode:Loud", *weights, *words, "--json", "-", "--quiet"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["schema_version"] == 1
    assert "made" in said.err
    print("given back")
    assert capsys.readouterr().out == "given back\n"


def test_a_reader_that_has_gone_or_was_never_there(here: Path) -> None:
    ran = process(here, "--help", shell="| head -1")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("\n") == 1
    ran = process(here, "measure", "--help", shell=">&-")
    assert (ran.returncode, ran.stderr) == (0, "")
    if os.path.exists("/dev/full"):
        ran = process(here, "list", "nets", shell="> /dev/full")
        assert ran.returncode == 1
        assert ran.stderr == "spiritlevel: standard output could not be written: No space left on device\n"


def test_a_closed_screen_loses_no_file_and_no_exit_code(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("bad.pt").write_bytes(b"PK nothing")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        command = ["measure", "usercode:Quiet", "e0.pt", "bad.pt", *CHEAP, "--json", "all.json", "--html", "p.html"]
        assert main(command) == 1
    assert len(json.loads(Path("all.json").read_text(encoding="utf-8"))["reports"]) == 1
    assert Path("p.html").exists()


def test_a_broken_pipe_of_the_users_own_is_no_closed_reader(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("piped.py").write_text(
        "def data():\n    raise BrokenPipeError(32, 'the server went away')\n", encoding="utf-8"
    )
    assert main(["measure", "usercode:Quiet", "e0.pt", "--data", "piped.py:data", "-m", "output_margin"]) == 1
    assert "the server went away" in capsys.readouterr().err


# --- code that ends the program --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("usercode:Leaving", "e0.pt", *CHEAP), "ended the program with SystemExit(0)"),
        (("usercode:Quiet", "e0.pt", "--data", "usercode:leaving_data", *CHEAP[2:]), "SystemExit(None)"),
        (("usercode:Quiet", "e0.pt", "--model-args", "leave=true", *CHEAP), "calling Quiet(leave=True)"),
        (("leaver:net", "e0.pt", *CHEAP), "leaver could not be imported: SystemExit: 0"),
    ],
)
@pytest.mark.parametrize("target", ["-", "r.json"])
def test_code_that_exits_is_a_failure(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str, target: str
) -> None:
    Path("leaver.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    assert main(["measure", *words, "--json", target]) == 1
    said = capsys.readouterr()
    assert says in said.err.splitlines()[-1]
    assert said.err.splitlines()[-1].startswith("spiritlevel: ")
    assert target == "r.json" or said.out == ""
    assert not Path("r.json").exists()


@pytest.mark.parametrize("code", [1, 3, "a text"])
def test_the_code_of_an_exit_does_not_matter(
    here: Path, capsys: pytest.CaptureFixture[str], code: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("leaver.py").write_text(
        f"from usercode import *\nimport usercode\nusercode.CODE = {code!r}\n", encoding="utf-8"
    )
    assert main(["measure", "leaver:Leaving", "e0.pt", *CHEAP]) == 1
    assert f"SystemExit({code!r})" in capsys.readouterr().err


def test_an_exit_with_one_of_several_files_is_its_row(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"head.weight": torch.zeros(3, 4), "head.bias": torch.zeros(3)}, "zero.pt")
    assert main(["measure", "usercode:LeavingWithZeros", "e0.pt", "zero.pt", "e1.pt", *CHEAP, "--json", "a.json"]) == 1
    record = json.loads(Path("a.json").read_text(encoding="utf-8"))
    assert [report["header"]["weights"] for report in record["reports"]] == ["e0.pt", "e1.pt"]
    assert "SystemExit(0)" in record["failures"][0]["reason"]


# --- names -----------------------------------------------------------------------------------------------------------


def test_the_current_directory_is_importable_and_comes_last(here: Path) -> None:
    os.makedirs("package/inner")
    Path("package/__init__.py").touch()
    Path("package/inner/__init__.py").write_text("from usercode import Quiet\n", encoding="utf-8")
    first = list(sys.path)
    assert main(["measure", "package.inner:Quiet", "e0.pt", *CHEAP]) == 0
    assert sys.path[: len(first)] == first
    assert str(here) in sys.path[len(first) :]
    for name in ("package", "package.inner"):
        sys.modules.pop(name)


def test_a_name_that_python_or_a_package_has_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("statistics", "rich"):
        Path(f"{name}.py").write_text("from usercode import Quiet\n", encoding="utf-8")
        assert main(["measure", f"{name}:Quiet", "e0.pt", *CHEAP]) == 2
        assert f"name the file itself, as {name}.py:Quiet" in capsys.readouterr().err
        assert main(["measure", f"{name}.py:Quiet", "e0.pt", *CHEAP]) == 0

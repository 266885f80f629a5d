"""Outputs that would destroy something are refused before any work is done; what is written appears whole."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from spiritlevel.cli import main
from spiritlevel.lab import nets
from spiritlevel.results import Report
from spiritlevel.results.header import Header
from spiritlevel.results.writing import replacing
from spiritlevel.values.errors import SpiritlevelError
from spiritlevel.values.estimate import Estimate

Refused = Callable[..., str]
CHEAP = ("--samples", "60", "-m", "output_margin")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with everything a command may read."""
    monkeypatch.chdir(tmp_path)
    source = """
        from spiritlevel.lab import datasets
        from spiritlevel.lab import nets
        from output_helper import SEED

        def net():
            return nets.build("digits_mlp", seed=SEED)

        def data():
            return datasets.load("digits", "train").tensors
    """
    Path("output_module.py").write_text(textwrap.dedent(source), encoding="utf-8")
    Path("output_helper.py").write_text("SEED = 0\n", encoding="utf-8")
    Path("options.toml").write_text("seed = 0\n", encoding="utf-8")
    rng = np.random.default_rng(0)
    np.savez("d.npz", x=rng.normal(size=(60, 1, 8, 8)).astype("float32"), y=rng.integers(0, 10, 60))
    for number in (0, 1):
        torch.save(nets.build("digits_mlp", seed=number).state_dict(), f"e{number}.pt")
    Report({"output_margin": Estimate(1.0)}, header=Header(seed=0)).save("earlier.json")
    os.mkdir("folder")
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith(("output_", "_spiritlevel_user_")):
            del sys.modules[name]


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return kind and content of everything in a folder, but for Python's own cache."""
    return {
        str(file): (stat.S_IFMT(file.lstat().st_mode), file.read_bytes() if file.is_file() else b"")
        for file in sorted(folder.rglob("*"))
        if "__pycache__" not in file.parts
    }


@pytest.fixture
def refused(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Run a command that must be refused as misuse before the first pass, with nothing changed; return the sentence."""
    from spiritlevel.inputs.open_problem import OpenProblem

    def no_pass(*args: object, **settings: object) -> None:
        raise AssertionError("a pass over the data was made")

    def call(*words: str) -> str:
        before = state_of(here)
        monkeypatch.setattr(OpenProblem, "batches", no_pass)
        capsys.readouterr()
        code = main(list(words))
        said = capsys.readouterr().err
        assert code == 2, said
        assert said.startswith("spiritlevel: ")
        assert said.count("\n") == 1
        assert state_of(here) == before
        return said

    return call


def measuring(*more: str, model: str = "output_module:net", data: str = "output_module:data") -> tuple[str, ...]:
    return ("measure", model, "e0.pt", "--data", data, *CHEAP, *more)


# --- what is read is never written to --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (measuring("--json", "e0.pt"), "--json e0.pt is the weights file e0.pt, which would be lost"),
        (measuring("--json", "folder/../e0.pt"), "the weights file"),
        (measuring("--html", "e0.pt"), "--html e0.pt is the weights file"),
        (measuring("--json", "output_module.py"), "the network's source"),
        (measuring("--json", "output_module.py", model="output_module.py:net"), "the network's source"),
        (measuring("--json", "output_module.py", model="digits_mlp"), "the data's source"),
        (measuring("--json", "output_helper.py"), "the user's own code"),
        (measuring("--json", "options.toml", "--config", "options.toml"), "the file of options"),
        (measuring("--json", "earlier.json", "--like", "earlier.json"), "the earlier report"),
        (measuring("--per-sample", "d.npz", data="d.npz", model="digits_mlp"), "the data file"),
        (("measure", "digits_mlp", "e0.pt", "e1.pt", "--data", "digits", *CHEAP, "--json", "e1.pt"), "e1.pt"),
        (("measure", "digits_mlp", "e0.pt", "e1.pt", "--data", "digits", "--json", "{name}.pt"), "e0.pt"),
        (("compare", "digits_mlp", "e0.pt", "e1.pt", "--data", "digits", "--json", "e1.pt"), "e1.pt"),
        (("compare", "digits_mlp", "e0.pt", "e1.pt", "--data", "digits", "--test", "d.npz", "--html", "d.npz"), "data"),
        (("compare", "earlier.json", "earlier.json", "--html", "earlier.json"), "the report earlier.json"),
        (("audit", "digits_mlp", "e0.pt", "--data", "digits", "--json", "e0.pt"), "the weights file"),
        (("audit", "output_module:net", "--data", "digits", "--html", "output_helper.py"), "the user's own code"),
        (("spectrum", "digits_mlp", "e0.pt", "--data", "digits", "--json", "e0.pt"), "the weights file"),
        (("spectrum", "digits_mlp", "e0.pt", "--data", "digits", "--json", "a.svg", "--figure", "a.svg"), "one file"),
        (("report", "earlier.json", "--csv", "earlier.json"), "the report earlier.json"),
        (("report", "earlier.json", "--html", "folder/../earlier.json"), "the report earlier.json"),
        (measuring("--json", "one", "--html", "one"), "--json one and --html one are one file"),
        (measuring("--json", "one", "--html", "folder/../one"), "are one file"),
        (measuring("--json", "one.csv", "--per-sample", "one.csv"), "are one file"),
        (("report", "earlier.json", "--csv", "one", "--html", "one"), "are one file"),
    ],
)  # fmt: skip
def test_an_output_that_would_destroy_something(refused: Refused, words: tuple[str, ...], what: str) -> None:
    assert what in refused(*words)


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_links_are_seen_through(refused: Refused, here: Path, link: Callable[[str, str], None]) -> None:
    link("e0.pt", "other.json")
    assert "is the weights file" in refused(*measuring("--json", "other.json"))
    Path("a.json").touch()
    link("a.json", "b.html")
    assert "are one file" in refused(*measuring("--json", "a.json", "--html", "b.html"))
    # The input may be named through the link as well.
    os.symlink("e1.pt", "named.pt")
    assert "the weights file" in refused("measure", "digits_mlp", "named.pt", "--data", "digits", "--json", "e1.pt")


def test_only_regular_files_are_replaced(refused: Refused, here: Path) -> None:
    os.mkfifo("pipe")
    assert "--json pipe is a named pipe" in refused(*measuring("--json", "pipe"))
    os.symlink("pipe", "to_pipe")
    assert "is a named pipe" in refused(*measuring("--html", "to_pipe"))
    assert "is a folder; name a file in it" in refused(*measuring("--json", "folder"))
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        assert "is a socket" in refused(*measuring("--json", "socket"))
    os.symlink("loop", "loop")
    assert "loop" in refused(*measuring("--json", "loop"))
    assert "study" not in refused("study", "show", "--all", "--html", "pipe")
    assert "is a named pipe" in refused("study", "export", "--all", "--csv", "pipe")
    assert "is a named pipe" in refused("report", "earlier.json", "--csv", "pipe")
    os.mkdir("demo")
    os.mkfifo("demo/comparison.json")
    assert "is a named pipe" in refused("demo", "--folder", "demo", "--steps", "1")


def test_a_device_is_not_replaced(refused: Refused, here: Path) -> None:
    try:
        os.mknod("null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except OSError:
        pytest.skip("only root may make a device")
    assert "--json null is a device" in refused(*measuring("--json", "null"))
    with pytest.raises(SpiritlevelError, match="it is a device"):
        Report({}).save("null")


def test_the_file_that_standard_output_goes_to(here: Path) -> None:
    from spiritlevel.cli.request import Request
    from spiritlevel.cli.user_code import inputs_of

    kept = os.dup(1)
    try:
        os.dup2(os.open("said.txt", os.O_CREAT | os.O_WRONLY), 1)
        named = [os.path.realpath(file) for _, file in inputs_of(Request(), config=None, like=None)]
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    assert str(here / "said.txt") in named


# --- how files are written -------------------------------------------------------------------------------------------


def test_a_link_stays_and_what_it_points_to_is_replaced(here: Path) -> None:
    Path("real.json").write_text("old", encoding="utf-8")
    os.symlink("real.json", "link.json")
    os.symlink("not_yet.json", "dangling.json")
    assert main(list(measuring("--json", "link.json", "--per-sample", "s.npz", model="digits_mlp", data="d.npz"))) == 0
    assert os.readlink("link.json") == "real.json"
    assert json.loads(Path("real.json").read_text(encoding="utf-8"))["schema_version"] == 1
    Report({}).save("dangling.json")
    assert os.readlink("dangling.json") == "not_yet.json"
    assert not Path("not_yet.json").is_symlink()
    assert Report.load("not_yet.json").header.seed is None


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_permissions_of_a_file_are_kept(here: Path, mode: int) -> None:
    Path("r.json").write_text("old", encoding="utf-8")
    os.chmod("r.json", mode)
    Report({}).save("r.json")
    assert stat.S_IMODE(os.stat("r.json").st_mode) == mode
    before = os.umask(0o027)
    try:
        Report({}).save("new.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat("new.json").st_mode) == 0o640


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError(28, "No space left on device")])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(here: Path, error: BaseException) -> None:
    Path("r.json").write_text("old", encoding="utf-8")
    before = state_of(here)

    def write() -> None:
        with replacing("r.json") as stream:
            stream.write("half")
            raise error

    with pytest.raises((KeyboardInterrupt, ValueError, SpiritlevelError)):
        write()
    assert state_of(here) == before


def test_a_long_name_that_is_possible_is_written(here: Path) -> None:
    name = "r" * 250 + ".json"
    Report({}).save(name)
    assert Report.load(name).header.seed is None
    with pytest.raises(SpiritlevelError):
        Report({}).save("r" * 300 + ".json")


def test_every_writer_of_the_package_goes_through_the_safe_one() -> None:
    """No other code opens a file for writing; the data cache, which checks what it fetched, is the exception."""
    import ast

    import spiritlevel

    root = Path(spiritlevel.__file__).parent
    found = []
    for file in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            writes = name in ("open", "fdopen") and any(
                set(text) <= set("wxab+t") and set(text) & set("wxa") for text in texts
            )
            if name in ("write_text", "write_bytes", "mkstemp", "NamedTemporaryFile") or writes:
                found.append(f"{file.relative_to(root)}:{name}")
    assert found == [
        "cli/standard_output.py:fdopen",
        "lab/datasets/fetch.py:write_bytes",
        "lab/datasets/fetch.py:write_bytes",
    ]

"""A name that stands alone on the command line is looked for in the Python files beside it, which are only read."""

from __future__ import annotations

from pathlib import Path

import pytest

from spiritlevel.cli.places import place_hint, places_of
from tests.cli.material import Run

PROJECT = """
raise RuntimeError("this file was imported")


class MyNet:
    class Inner: ...


def build_my_net():
    def within(): ...


def train_data(): ...


my_ready: object = None
my_other = MyNet
_hidden = 1
"""


@pytest.fixture(autouse=True)
def project(here: Path) -> Path:
    (here / "my_project.py").write_text(PROJECT, encoding="utf-8")
    (here / "broken.py").write_text("class MyNet(:\n", encoding="utf-8")
    (here / "binary.py").write_bytes(b"\xff\xfe\x00class MyNet")
    return here


@pytest.mark.parametrize("name", ["MyNet", "build_my_net", "train_data", "my_ready", "my_other"])
def test_what_a_file_defines_is_found_without_importing_it(name: str) -> None:
    assert places_of(name) == [f"my_project.py:{name}"]


@pytest.mark.parametrize("name", ["Inner", "within", "_hidden", "resnet50", "os"])
def test_what_no_file_defines_at_its_top_is_not(name: str) -> None:
    assert places_of(name) == []
    assert place_hint(name) == ""


def test_a_misspelt_name_is_found_and_every_file_that_has_it(project: Path) -> None:
    assert places_of("mynet") == ["my_project.py:MyNet"]
    assert places_of("MyNett") == ["my_project.py:MyNet"]
    (project / "older.py").write_text("def MyNet(): ...\n", encoding="utf-8")
    assert place_hint("MyNet") == "; did you mean my_project.py:MyNet or older.py:MyNet?"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("MyNet", "--data", "mine:pair"), "my_project.py:MyNet"),
        (("no_such_module:MyNet", "--data", "mine:pair"), "my_project.py:MyNet"),
        (("mine:Net", "--data", "train_data"), "my_project.py:train_data"),
        (("mine:Net", "--data", "mine:pair", "--forward", "build_my_net"), "my_project.py:build_my_net"),
    ],
)
def test_a_command_suggests_it(run: Run, words: tuple[str, ...], meant: str) -> None:
    ran = run("measure", *words)
    assert ran.code == 2
    assert ran.sentence.endswith(f"did you mean {meant}?")

"""The extras: named in one place as pyproject.toml has them, and alike in every hint of the tool and the documents."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

import spiritlevel
from spiritlevel.cli.doctor_checks import extra_lines
from spiritlevel.values.errors import SpiritlevelError, UsageError
from spiritlevel.values.extras import EXTRAS, need_of_extra

ROOT = Path(__file__).parents[2]
PACKAGE = Path(spiritlevel.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def name_of(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return found[0].lower()


def test_the_extras_are_those_of_the_project() -> None:
    declared = {
        name: {name_of(each) for each in requirements}
        for name, requirements in PROJECT["optional-dependencies"].items()
    }
    assert {name: {package.lower() for package in extra.packages} for name, extra in EXTRAS.items()} == declared


def test_doctor_says_of_every_extra_what_it_is_for_and_how_it_is_got(monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in EXTRAS.values():
        monkeypatch.setitem(sys.modules, next(iter(extra.packages.values())), None)
    lines = extra_lines()
    assert [line.split()[0] for line in lines] == list(EXTRAS)
    for line, extra in zip(lines, EXTRAS.values()):
        assert extra.adds in line
        assert f"without {next(iter(extra.packages))}" in line
        assert line.endswith(f": pip install 'spiritlevel[{extra.name}]'")


def hints() -> list[tuple[str, str]]:
    """Every text in the package that says how something is installed, with its place."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = node.value if isinstance(node, ast.Constant) else ""
            if isinstance(text, str) and re.search(r"\binstall(ed by)? ", text):
                found.append((f"{path.relative_to(PACKAGE)}:{node.lineno}", text))
    return found


def test_every_hint_is_made_in_one_place() -> None:
    """No module writes how an extra is installed but the one that knows them all."""
    assert hints()
    for place, text in hints():
        if "pip install" in text:
            assert place.startswith("values/extras.py"), f"{place}: {text}"


def test_every_module_of_an_extra_is_asked_for_by_the_extra_that_has_it() -> None:
    asked = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "need_of_extra":
                module, _, extra = node.args[:3]
                if isinstance(module, ast.Constant) and isinstance(extra, ast.Constant):
                    asked.append((module.value, extra.value))
    assert len(asked) >= 6
    for module, extra in asked:
        assert module.partition(".")[0] in EXTRAS[extra].packages.values(), (module, extra)


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))], ids=str)
def test_documents_name_extras_that_exist(path: Path) -> None:
    for named in re.findall(r"(?:spiritlevel|\.)\[([\w, ]+)\]", path.read_text(encoding="utf-8")):
        assert {name.strip() for name in named.split(",")} <= set(EXTRAS), named


def test_what_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(SpiritlevelError) as refused:
        need_of_extra("vl_convert", "a page", "page", instead="leave it out")
    assert str(refused.value) == (
        "a page needs vl-convert-python, which is not installed; run pip install 'spiritlevel[page]', or leave it out"
    )
    with pytest.raises(UsageError):
        need_of_extra("vl_convert", "a page", "page", UsageError)


def test_a_package_that_lacks_another_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "timm.py").write_text("import no_such_package\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(SpiritlevelError, match="cannot be imported because no_such_package is missing"):
        need_of_extra("timm", "timm:x", "timm")

"""What the project's own files say of it agrees: its version, the Pythons it runs under, what its workflow runs."""

import re
import tomllib
from pathlib import Path

import spiritlevel

ROOT = Path(__file__).parent.parent


def test_citation_names_the_version_of_the_package() -> None:
    (version,) = re.findall(r'^version: "(.+)"$', _text("CITATION.cff"), re.MULTILINE)
    assert version == spiritlevel.__version__


def test_continuous_integration_runs_every_python_the_package_names() -> None:
    classifiers = tomllib.loads(_text("pyproject.toml"))["project"]["classifiers"]
    before = "Programming Language :: Python :: "
    named = [each.removeprefix(before) for each in classifiers if each.startswith(before)]
    workflow = _text(".github/workflows/ci.yml")
    (run,) = re.findall(r"^ +python: \[(.+)\]$", workflow, re.MULTILINE)
    assert [version.strip('"') for version in run.split(", ")] == named
    assert "- run: .ci/run\n" in workflow


def test_the_lowest_torch_is_found_where_the_workflow_looks_for_it() -> None:
    assert len(re.findall(r'^ *"torch>=.*",$', _text("pyproject.toml"), re.MULTILINE)) == 1


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")

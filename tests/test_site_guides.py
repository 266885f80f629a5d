"""The how-to guides and the pages of questions: all in the navigation, all listed, each with code that is run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.hooks.blocks import Block, blocks_of

ROOT = Path(__file__).parent.parent
FOLDERS = ("how-to", "questions")
PAGES = sorted(path for folder in FOLDERS for path in (ROOT / "docs" / folder).glob("*.md") if path.name != "index.md")


def executed(text: str) -> list[Block]:
    return [block for block in blocks_of(text) if block.language in ("python", "sh") and not block.title]


def test_files_that_are_shown_and_other_languages_are_not_taken_for_code_that_is_run() -> None:
    text = '```python title="a.py"\n1\n```\n```toml\na = 1\n```\n```text\nb\n```\n'
    assert not executed(text)
    assert len(executed(text + "```sh\ntrue\n```\n")) == 1


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_navigation_has_every_page_of_the_folder_once(folder: str) -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = re.findall(rf"{folder}/[\w-]+\.md", navigation)
    assert sorted(named) == sorted(f"{folder}/{path.name}" for path in (ROOT / "docs" / folder).glob("*.md"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_index_leads_to_every_page_of_the_folder(folder: str) -> None:
    index = (ROOT / "docs" / folder / "index.md").read_text(encoding="utf-8")
    missing = [path.name for path in PAGES if path.parent.name == folder and f"]({path.name})" not in index]
    assert not missing


@pytest.mark.parametrize("path", PAGES, ids=[f"{path.parent.name}/{path.name}" for path in PAGES])
def test_a_page_shows_code_that_is_run_and_what_it_printed(path: Path) -> None:
    blocks = executed(path.read_text(encoding="utf-8"))
    assert blocks, "no block of this page is run"
    shown = [block.shown for block in blocks if block.shown is not None]
    assert shown, "no block of this page shows its output"
    assert all(text.strip() for text in shown), "an output is empty: run make docs"
    fences = re.findall(r"^```text$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == len(shown), "an output stands below no code that is run"


def test_a_question_is_answered_first() -> None:
    for path in PAGES:
        if path.parent.name == "questions":
            title, _, answer = path.read_text(encoding="utf-8").split("\n", 2)
            assert title.startswith("# "), path.name
            assert answer.startswith("**"), f"{path.name} does not begin with its answer"

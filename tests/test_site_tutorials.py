"""The tutorials and the example pages: all in the navigation, run from top to bottom, open about what follows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.hooks.blocks import blocks_of, drawn_images, renewed

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted(path for path in (ROOT / "docs" / "tutorials").glob("*.md") if path.name != "index.md")
EXAMPLES = ROOT / "docs" / "examples" / "index.md"


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_every_tutorial_is_in_the_navigation_and_in_the_index() -> None:
    navigation = text_of(ROOT / "mkdocs.yml").partition("\nnav:\n")[2]
    index = text_of(ROOT / "docs" / "tutorials" / "index.md")
    assert len(TUTORIALS) == 5
    for path in TUTORIALS:
        assert navigation.count(f"tutorials/{path.name}") == 1, path.name
        assert index.count(f"]({path.name})") == 1, path.name


@pytest.mark.parametrize("path", TUTORIALS, ids=[path.stem for path in TUTORIALS])
def test_a_tutorial_ends_with_what_follows_and_what_does_not(path: Path) -> None:
    headings = re.findall(r"^## (.+)$", text_of(path), re.MULTILINE)
    assert headings[-1] == "What may be concluded, what not"
    conclusions = text_of(path).partition(f"## {headings[-1]}\n")[2]
    assert len(re.findall(r"^- \*\*", conclusions, re.MULTILINE)) >= 3
    assert re.search(r"\bno\b|\bnot\b|^- \*\*Not", conclusions, re.IGNORECASE | re.MULTILINE)


@pytest.mark.parametrize("path", TUTORIALS, ids=[path.stem for path in TUTORIALS])
def test_what_a_tutorial_shows_was_printed(path: Path) -> None:
    shown = [block.shown for block in blocks_of(text_of(path)) if block.shown is not None]
    assert len(shown) >= 3
    assert all(text.strip() for text in shown), "an output is empty: run make docs"
    # Output that stands below no code would be typed in.
    fences = re.findall(r"^```text$", text_of(path), re.MULTILINE)
    assert len(fences) == len(shown)


def test_an_image_that_a_page_draws_is_renewed_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("docs.hooks.blocks.IMAGES", tmp_path)
    page = (
        "```python\nfrom pathlib import Path\nfor name in ('a.svg', 'b.svg'):\n    Path(name).write_text(name)\n"
        "print(1)\n```\n\n```text\n```\n\n![shown](../images/a.svg) ![drawn elsewhere](../images/c.png)\n"
    )
    assert "```text\n1\n```" in renewed(page)
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]
    assert (tmp_path / "a.svg").read_text() == "a.svg"


def test_images_that_tutorials_draw_are_kept(tmp_path: Path) -> None:
    drawn = {name for path in TUTORIALS for name in re.findall(r"savefig\(\"([^\"]+)\"", text_of(path))}
    assert drawn
    for name in drawn:
        (tmp_path / name).touch()
        assert (ROOT / "docs" / "images" / name).stat().st_size < 60_000, name
    assert {name for path in TUTORIALS for name in drawn_images(text_of(path), tmp_path)} == drawn


def test_the_page_of_examples_leads_to_every_page_that_its_commands_write() -> None:
    pages = re.findall(r"(?:--html |mv \S+ )([\w-]+\.html)", text_of(EXAMPLES))
    assert len(pages) == len(set(pages)) >= 5
    assert re.findall(r"\]\(([\w-]+\.html)\)", text_of(EXAMPLES)) == pages

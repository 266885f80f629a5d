"""The documentation as a site: built strictly, with nothing fetched, and its formulas drawn."""

from __future__ import annotations

import html
import inspect
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from spiritlevel.measures.registry import MEASURES
from tests.test_reference import of_path, public_names, sections

ROOT = Path(__file__).parent.parent
# Elements that load what an attribute of theirs names; an address in <a href> is only followed by a click.
LOADING = {
    "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src", "embed": "src",
    "link": "href", "object": "data", "use": "href", "image": "href",
}  # fmt: skip


class Loaded(HTMLParser):
    """Collects what a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if tag in LOADING and re.match(r"(https?:)?//", found.get(LOADING[tag]) or ""):
            self.addresses.append(f"<{tag}> {found[LOADING[tag]]}")
        self.addresses += re.findall(r"url\((?:https?:)?//[^)]*\)", found.get("style") or "")


def loaded_from_elsewhere(page: str) -> list[str]:
    reader = Loaded()
    reader.feed(page)
    styles = "".join(re.findall(r"<style[^>]*>(.*?)</style>", page, re.DOTALL))
    return reader.addresses + from_elsewhere_in_css(styles)


def from_elsewhere_in_css(text: str) -> list[str]:
    return re.findall(r"(?:url\(\s*[\"']?|@import\s*[\"'])(?:https?:)?//[^\"')]*", text)


def test_what_a_page_would_fetch_is_found() -> None:
    assert loaded_from_elsewhere('<script src="https://a.b/c.js"></script><a href="https://a.b">to click</a>')
    assert loaded_from_elsewhere('<link rel="preconnect" href="//fonts.example">')
    assert loaded_from_elsewhere("<style>@import 'https://a.b/c.css';</style>")
    assert not loaded_from_elsewhere(
        '<img src="images/a.png"><style>p { background: url(data:image/png;base64,A) }</style>'
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        assert not loaded_from_elsewhere(page.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        assert not from_elsewhere_in_css(style.read_text(encoding="utf-8")), style


@pytest.mark.slow
def test_every_formula_is_drawn_without_a_script(site: Path) -> None:
    text = (site / "measures.html").read_text(encoding="utf-8")
    assert text.count("<math") == len(MEASURES)
    for page in site.glob("*.html"):
        assert "$$" not in page.read_text(encoding="utf-8"), page


@pytest.mark.slow
def test_example_pages_are_in_the_site_and_hold_their_own_data(site: Path) -> None:
    said = {}
    for name in re.findall(r"\]\(([\w-]+\.html)\)", (ROOT / "docs/examples/index.md").read_text(encoding="utf-8")):
        page = (site / "examples" / name).read_text(encoding="utf-8")
        assert 300_000 < len(page) < 2_000_000, name
        (data,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
        assert json.loads(data), name
        said[name] = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "flatter than" in said["comparison.html"]
    assert "rescaling neurons" in said["audit.html"]
    assert "epoch" in said["runs.html"]


@pytest.mark.slow
def test_the_reference_says_of_every_parameter_what_help_says(site: Path) -> None:
    shown = {}
    for page in (site / "reference").glob("*.html"):
        for part in page.read_text(encoding="utf-8").split("<h2 id=")[1:]:
            text = html.unescape(re.sub(r"<[^>]+>", "", part))
            shown[part.split('"')[1]] = " ".join(text.replace("*", "").split())
    missing = []
    for path in sorted(public_names()):
        for line in sections(inspect.getdoc(of_path(path)) or "").get("Parameters", []):
            said = " ".join(line.replace("`", "").replace("*", "").split())
            if line.startswith("    ") and said not in shown[path]:
                missing.append(f"{path}: {said}")
    assert missing == []

"""The pages that the tool writes are part of the site: made by the commands that stand on the page of examples."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[2]))
from docs.hooks.blocks import run_page

PAGE = "examples/index.md"


def on_files(files: Files, config: Any) -> Files:
    """Add what the page of examples makes, beside it."""
    page = files.get_file_from_path(PAGE)
    assert page is not None, f"{PAGE} is missing"
    for name, content in made_by(page.content_string).items():
        files.append(File.generated(config, f"{Path(PAGE).parent}/{name}", content=content))
    return files


@functools.cache
def made_by(text: str) -> dict[str, str]:
    """Run a page's blocks; return the HTML files they leave, by name."""
    made = {}

    def take(folder: Path) -> None:
        made.update({file.name: file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.html"))})

    run_page(text, take)
    return made

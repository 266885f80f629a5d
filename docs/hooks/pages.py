"""Pages of the site that are made from what exists elsewhere: README, CONTRIBUTING, the list of studies."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
# Where the files beside docs/ stand in the site.
BESIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_config(config: Any) -> Any:
    """List every study's page in the navigation, under its own title."""
    results = {"The papers' claims": "results/claims.md"}
    for path in sorted((ROOT / "docs" / "results").glob("*.md")):
        if path.name not in ("claims.md", "modern.md"):
            results[path.stem] = f"results/{path.name}"
    for entry in config.nav:
        if entry == {"Studies": []}:
            entry["Studies"] = [{title: place} for title, place in results.items()]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for name, place in BESIDE.items():
        files.append(File.generated(config, place, content=_moved((ROOT / name).read_text(encoding="utf-8"))))
    return files


def _moved(text: str) -> str:
    """Return a file of the root with its links as they are from within docs/."""
    text = text.replace("](docs/", "](")
    for name, place in BESIDE.items():
        text = text.replace(f"]({name})", f"]({place})")
    return re.sub(r"\[([^]]+)\]\(LICENSE\)", r"\1", text)

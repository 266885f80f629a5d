"""Figures and their data as one JSON text, and the one script that draws them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

from spiritlevel.page.extras import need
from spiritlevel.page.palette import ON_PAGE
from spiritlevel.page.parts import Figure

# Only what draws is taken from the bundle: specifications are compiled here, so the page needs no compiler.
_ONLY_VEGA = (
    'import {{View, parse}} from "https://cdn.jsdelivr.net/npm/vega@{version}/+esm.js";window.vega = {{View, parse}};'
)
_ALL_OF_VEGA = "window.vega = vegaEmbed.vega;"


@lru_cache(maxsize=1)
def drawing_script() -> str:
    """Return Vega as one script, from the copy that vl-convert carries; nothing is fetched."""
    converter = need("vl_convert")
    try:
        text = converter.javascript_bundle(_ONLY_VEGA.format(version=converter.get_vega_version()))
    except ValueError:  # another vl-convert may keep its copy under another name
        text = converter.javascript_bundle(_ALL_OF_VEGA)
    return inside_script(text)


def page_script() -> str:
    """Return the page's own script."""
    return inside_script(asset("page.js"))


def asset(name: str) -> str:
    """Return a file that stands beside the templates."""
    return resources.files("spiritlevel.page").joinpath("templates", name).read_text(encoding="utf-8")


def inside_script(text: str) -> str:
    """Return script text that cannot end its element early."""
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def hash_of(script: str) -> str:
    """Return the hash by which the page allows this script and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def compiled(figure: Figure) -> dict[str, Any]:
    """Return a figure's Vega specification without its data."""
    specification = figure.without_data(ON_PAGE).to_dict()
    # The compiler needs no rows; they are joined again on the page.
    specification["datasets"] = {rows.name: [] for rows in figure.data}
    found: dict[str, Any] = need("vl_convert").vegalite_to_vega(specification, vl_version=grammar_version())
    for source in found.get("data", []):
        if source.get("name") in specification["datasets"]:
            source.pop("values", None)
    found.pop("$schema", None)
    return found


def grammar_version() -> str:
    """Return the version of Vega-Lite that Altair writes, as vl-convert names it, or the newest it knows."""
    written = ".".join(need("altair").SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    known = need("vl_convert").get_vegalite_versions()
    return written if written in known else known[-1]


def as_columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return rows as columns, in which names are said once."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


def figure_data(figures: Iterable[Figure]) -> dict[str, Any]:
    """Return all figures and each of their data sets once."""
    datasets: dict[str, Any] = {}
    specifications: dict[str, Any] = {}
    for figure in figures:
        specifications[figure.name] = compiled(figure)
        datasets |= {rows.name: as_columns(rows.values) for rows in figure.data}
    return {"datasets": datasets, "figures": specifications}


def as_safe_json(value: Mapping[str, Any]) -> str:
    """Return JSON that is inert inside HTML: no character of it can open or close an element."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text

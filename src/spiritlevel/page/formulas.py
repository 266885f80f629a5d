"""Formulas as MathML, which browsers draw themselves; what cannot be converted stays as its source."""

from __future__ import annotations

from functools import lru_cache
from xml.etree import ElementTree

from spiritlevel.page.extras import need

_SPACE = "http://www.w3.org/1998/Math/MathML"
# A formula may come from a user's own declaration: only drawing is let through.
_TAGS = frozenset(
    [
        "math",
        "mrow",
        "mi",
        "mo",
        "mn",
        "mtext",
        "mspace",
        "msub",
        "msup",
        "msubsup",
        "munder",
        "mover",
        "munderover",
        "mfrac",
        "msqrt",
        "mroot",
        "mstyle",
        "mtable",
        "mtr",
        "mtd",
        "mpadded",
        "mphantom",
        "menclose",
    ]
)
_ATTRIBUTES = frozenset(
    [
        "display",
        "stretchy",
        "fence",
        "separator",
        "form",
        "accent",
        "accentunder",
        "minsize",
        "maxsize",
        "linethickness",
        "mathvariant",
        "movablelimits",
        "displaystyle",
        "scriptlevel",
        "width",
        "height",
        "depth",
        "lspace",
        "rspace",
        "columnalign",
        "rowspacing",
        "columnspacing",
    ]
)


@lru_cache(maxsize=1024)
def as_mathml(source: str) -> str | None:
    """Return LaTeX as MathML text that holds nothing but drawing elements, or None where that fails."""
    convert = need("latex2mathml.converter").convert
    try:
        root = ElementTree.fromstring(convert(source))
    except Exception:  # the converter raises many kinds on what it does not know
        return None
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{_SPACE}}}")
        if element.tag not in _TAGS:
            return None
        element.attrib = {key: value for key, value in element.attrib.items() if key in _ATTRIBUTES}
        if "\\" in (element.text or ""):  # a command that was not understood
            return None
    root.set("xmlns", _SPACE)
    return ElementTree.tostring(root, encoding="unicode")

"""From results to one self-contained HTML file."""

from __future__ import annotations

import base64
import os
from typing import Any

from spiritlevel.page import embedding, formulas, opening
from spiritlevel.page.content import PageContent
from spiritlevel.page.extras import check_extras, need
from spiritlevel.page.palette import LIGHT
from spiritlevel.page.parts import CommandLines, Figure, Page, PageTable, Picture, Words
from spiritlevel.page.sections import (
    audit,
    claims,
    epochs,
    layers,
    margins,
    measures,
    ranking,
    samples,
    settings,
    spectrum,
)
from spiritlevel.results.writing import replacing
from spiritlevel.values.cleaning import cleaned_for_page
from spiritlevel.values.errors import UsageError, near_names
from spiritlevel.values.version import __version__

# In the order in which the sections stand.
SECTIONS = (
    ranking.section,
    measures.section,
    margins.section,
    samples.section,
    spectrum.section,
    layers.section,
    audit.section,
    audit.sweep_section,
    epochs.section,
    claims.section,
    settings.section,
)
FORMATS = ("png", "svg", "pdf")


def page_of(content: PageContent) -> Page:
    """Return everything a page shows, without markup; text from outside is cleaned here, before any of it is used."""
    content = cleaned_for_page(content)
    first = opening.first_screen(content)
    found = [section(content) for section in SECTIONS]
    return Page(first, [section for section in found if section is not None])


def html(content: PageContent) -> str:
    """Return the page as the text of one HTML file."""
    check_extras()
    page = page_of(content)
    jinja2, markupsafe = need("jinja2"), need("markupsafe")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(embedding.asset),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.tests |= {
        name: (lambda part, kind=kind: isinstance(part, kind))
        for name, kind in (
            ("figure", Figure),
            ("table", PageTable),
            ("words", Words),
            ("command", CommandLines),
            ("picture", Picture),
        )
    }

    scripts = (embedding.drawing_script(), embedding.page_script())
    text: str = environment.get_template("page.html").render(
        page=page,
        first=page.first,
        style=embedding.asset("page.css"),
        scripts=scripts,
        hashes=[embedding.hash_of(text) for text in scripts],
        data=embedding.as_safe_json(embedding.figure_data(page.figures.values())),
        mathml=formulas.as_mathml,
        broken=lambda text: markupsafe.Markup("_<wbr>").join(text.split("_")),
        base64=lambda png: base64.b64encode(png).decode("ascii"),
        version=__version__,
    )
    return text


def write(content: PageContent, path: str | os.PathLike[str]) -> None:
    """Write the page; the file appears whole or not at all."""
    text = html(content)
    with replacing(path) as stream:
        stream.write(text)


def figures(content: PageContent) -> dict[str, Figure]:
    """Return all figures of a page by name."""
    return page_of(content).figures


def figure(content: PageContent, name: str) -> Any:
    """Return one figure, by default the first, as an Altair chart, which notebooks show and ``chart.save`` writes."""
    found = figures(content)
    if not found:
        raise UsageError(
            "these results have no figure; measure what has values by layer or sample, such as hessian_trace"
        )
    chosen = name or next(iter(found))
    if chosen not in found:
        known = ", ".join(found)
        raise UsageError(f"there is no figure {name!r}{near_names(name, found)}; these results have: {known}")
    return found[chosen].chart(LIGHT)


def image(drawn: Figure, form: str) -> bytes:
    """Return a figure as PNG, SVG or PDF bytes, made without a browser."""
    converter, version = need("vl_convert"), embedding.grammar_version()
    specification = drawn.without_data(LIGHT).to_dict()
    specification["datasets"] = {rows.name: rows.values for rows in drawn.data}
    if form == "svg":
        return str(converter.vegalite_to_svg(specification, vl_version=version)).encode("utf-8")
    if form == "pdf":
        return bytes(converter.vegalite_to_pdf(specification, vl_version=version))
    return bytes(converter.vegalite_to_png(specification, vl_version=version, scale=2))


def save_figures(content: PageContent, folder: str | os.PathLike[str], forms: tuple[str, ...] = FORMATS) -> list[str]:
    """Write every figure into a folder, once in each form, and return the names of the files."""
    check_extras()
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder {os.fspath(folder)} cannot be made: {error.strerror or error}") from error
    written = []
    for name, drawn in figures(content).items():
        for form in forms:
            file = os.path.join(folder, f"{name}.{form}")
            with replacing(file, "wb") as stream:
                stream.write(image(drawn, form))
            written.append(file)
    return written

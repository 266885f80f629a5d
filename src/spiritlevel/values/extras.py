"""The extras: packages that are installed for what not everybody does, each with what it is for and how it is got."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spiritlevel.values.errors import SpiritlevelError


@dataclass(frozen=True)
class Extra:
    """One of the extras of pyproject.toml: what it adds, and its packages with the module of each."""

    name: str
    adds: str
    packages: Mapping[str, str]

    @property
    def command(self) -> str:
        """The command that installs it, beside the package as it is installed."""
        return f"pip install 'spiritlevel[{self.name}]'"

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [package for package, module in self.packages.items() if not _is_there(module)]


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of what stands before a dot
        return False


_PANDAS = {"pandas": "pandas"}
_DRAWN = {"matplotlib": "matplotlib"}
_PAGE = {
    "altair": "altair",
    "vl-convert-python": "vl_convert",
    "jinja2": "jinja2",
    "latex2mathml": "latex2mathml",
}
_BENCHED = {
    name: name.replace("-", "_") for name in ("einops", "einconv", "unfoldNd", "linear_operator", "opt-einsum", "tqdm")
}
EXTRAS = {
    extra.name: extra
    for extra in (
        Extra("page", "pages, figures and data frames: --html, --figures, to_pandas()", {**_PAGE, **_DRAWN, **_PANDAS}),
        Extra(
            "studies",
            "figures and rows of the studies, spiritlevel data get cifar10",
            {**_PANDAS, **_DRAWN, "pillow": "PIL", "pyarrow": "pyarrow"},
        ),
        Extra("ray", "several machines: measure --ray, study run --engine ray", {"ray": "ray"}),
        Extra("hf", "MODEL hf:FOLDER, text by --task", {"transformers": "transformers", "tokenizers": "tokenizers"}),
        Extra("timm", "MODEL timm:NAME", {"timm": "timm"}),
        Extra(
            "docs",
            "the documentation as a site: make site",
            {"mkdocs-material": "material", "mkdocstrings": "mkdocstrings"},
        ),
        Extra("bench", "benchmarks beside other tools: make bench", _BENCHED),
        Extra(
            "test",
            "the tests: make test",
            {
                "pytest": "pytest", "pytest-xdist": "xdist", "ruff": "ruff", "mypy": "mypy", "pyyaml": "yaml",
                "import-linter": "importlinter", **_PAGE, **_DRAWN, **_PANDAS, "pillow": "PIL",
                "playwright": "playwright", "nbclient": "nbclient", "ipykernel": "ipykernel", **_BENCHED,
            },
        ),
    )
}  # fmt: skip


def not_installed(package: str, wanted_by: str, extra: str) -> str:
    """Return the one sentence that says which package is missing, for what, and how to get it."""
    needs = "need" if " and " in wanted_by else "needs"
    return f"{wanted_by} {needs} {package}, which is not installed; run {EXTRAS[extra].command}"


def need_of_extra(
    module: str, wanted_by: str, extra: str, error: type[SpiritlevelError] = SpiritlevelError, instead: str = ""
) -> Any:
    """Return a module of an extra, or say in one sentence how to get it; ``instead`` is another way out."""
    try:
        return importlib.import_module(module)
    except ImportError as failure:
        top = module.partition(".")[0]
        package = next((name for name, own in EXTRAS[extra].packages.items() if own == top), top)
        if failure.name is not None and failure.name.partition(".")[0] != top and _is_there(top):
            raise error(
                f"{wanted_by} needs {package}, which is installed and cannot be imported because {failure.name} is "
                f"missing; run pip install {failure.name}"
            ) from failure
        raise error(not_installed(package, wanted_by, extra) + (f", or {instead}" if instead else "")) from failure

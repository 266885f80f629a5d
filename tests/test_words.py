"""The field's words: phrases that misled or that nobody uses stand in nothing that is printed, drawn or written."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel import page
from spiritlevel.results.terminal import as_text

ROOT = Path(__file__).parent.parent
# What was said, and why not.
BANNED = {
    r"rescaling of \d+/\d+": "reads as a fraction: layers 1 and 3",
    r"rescaling of \{": "the same, where it is put together",
    r"no rescaling (found|of|could)[^.]* could say otherwise": "invariant to every rescaling found",
    r"upright lines?\b": "vertical",
    r"turned over": "inverted",
    r"not above zero": "zero or negative",
    r"curvature of a slope": "a network that is not at a minimum",
    r"\b\d+(\.\d+)? column, |\bcolumn, \d+(\.\d+)? product": "VJPs and HVPs",
    r"\breorder": "permuting, its one name",
    r"\b1e\+2\b": "100",
    r"\d+/\d+ reverses it": "layers by name and arrow",
}


def misused(text: str) -> list[str]:
    found = []
    for pattern, instead in BANNED.items():
        found += [f"{match.group(0)!r} ({instead})" for match in re.finditer(pattern, text, re.IGNORECASE)]
    return found


@pytest.mark.parametrize(
    "said",
    [
        "a ×1.93 rescaling of 1/3 reverses it",
        "for 2 of the 7 no rescaling found in these networks could say otherwise",
        "Upright lines mark the medians",
        "9 column, 40 product",
        "reordering units",
        "1e+2",
    ],
)
def test_what_was_said_is_found(said: str) -> None:
    assert misused(said)


def test_no_text_in_the_source_has_them() -> None:
    found = []
    for file in sorted((ROOT / "src" / "spiritlevel").rglob("*")):
        if file.suffix in (".html", ".js"):
            found += [f"{file.name}: {each}" for each in misused(file.read_text(encoding="utf-8"))]
        if file.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):  # put together, with a mark where something is put in
                text = "".join(part.value if isinstance(part, ast.Constant) else "{" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            found += [f"{file.relative_to(ROOT)}:{node.lineno}: {each}" for each in misused(text)]
    assert found == []


def problem(seed: int) -> sl.Problem:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    return sl.Problem(model, (x, torch.arange(60) % 3))


def test_nothing_that_is_generated_has_them() -> None:
    one, other = problem(0), problem(1)
    results = {
        "comparison": sl.compare({"a": one, "b": other}, ["hessian_trace", "rho_sum", "kappa_tau_sum"], groups=3),
        "audit": sl.audit(one, ["hessian_trace", "rho_sum"], strengths=["usual"], alphas=(0.1, 10.0)),
        "spectrum": sl.spectrum(one, probes=2, steps=5),
        "report": sl.measure(one, ["default", "aceht"]),
    }
    assert "reversible" in {row.holding.kind for row in results["comparison"].rows.values()}
    for name, result in results.items():
        for text in (as_text(result.table(), 400), page.html(page.together([result])).partition("<script")[0]):
            assert misused(text) == [], name
    networks = {f"net-{seed}": sl.measure(problem(seed), ["hessian_trace", "weight_norm"]) for seed in range(6)}
    many = sl.compare(networks)
    assert misused(as_text(many.table(), 400)) == []
    assert misused(page.html(page.of_comparison(many)).partition("<script")[0]) == []


def test_no_page_of_measures_has_them() -> None:
    for file in (ROOT / "docs").glob("*.md"):
        assert misused(re.sub(r"`[^`]*`", "", file.read_text(encoding="utf-8"))) == [], file.name

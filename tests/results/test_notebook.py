"""A notebook is run in a real kernel: what every result shows there, and that figures come as charts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

FIRST = """
import spiritlevel as sl

data = sl.datasets.load("digits", "train")
x, y = (part[:120] for part in data.tensors)
problems = {}
for seed in (0, 1):
    model = sl.nets.build("digits_mlp", seed=seed)
    sl.training.train(model, data, lr=0.1, batch_size=32, steps=100, seed=seed)
    problems[f"seed {seed}"] = sl.Problem(model, (x, y))
problem = problems["seed 0"]
problem
"""
SHOWN = {
    "report": 'report = sl.measure(problem, "hessian_trace, output_margin")\nreport',
    "comparison": 'comparison = sl.compare(problems, "hessian_trace, rho_sum")\ncomparison',
    "audit": 'sl.audit(problem, "hessian_trace, rho_sum", alphas=())',
    "spectrum": "sl.spectrum(problem, 2, 8)",
    "eigenvalues": "eigenvalues = sl.eigenvalues(problem, 2)\neigenvalues",
}
FIGURES = ["report.figure()", "comparison.figure()", "eigenvalues.figure()"]
EXPECTED = {
    "report": ("hessian_trace", "exact (verified)"),
    "comparison": ("seed 1 ÷ seed 0", "does the ordering hold?"),
    "audit": ("rescaling layers", "invariant"),
    "spectrum": ("Largest eigenvalue", "probes of 8 steps"),
    "eigenvalues": ("Eigenvalue 2 of the Hessian", "residual"),
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    import nbformat
    from nbclient import NotebookClient

    folder = tmp_path_factory.mktemp("notebook")
    codes = [FIRST, *SHOWN.values(), *FIGURES, 'report.to_pandas("layer")']
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in codes])
    source = str(Path(__file__).parents[2] / "src")
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]))
    patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    with patch.context():
        client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}})
        client.execute()
    patch.undo()
    return [list(cell.outputs) for cell in notebook.cells]


def result_of(outputs: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [output["data"] for output in outputs if output["output_type"] == "execute_result"]
    return found


def test_a_problem_is_one_line(outputs: list[list[dict[str, Any]]]) -> None:
    found = result_of(outputs[0])
    assert set(found) == {"text/plain"}
    assert found["text/plain"].startswith("<Problem: Sequential of 3,466 parameters on 120 samples, cross_entropy")


@pytest.mark.parametrize("kind", SHOWN)
def test_every_result_is_a_table_and_one_line(outputs: list[list[dict[str, Any]]], kind: str) -> None:
    found = result_of(outputs[1 + list(SHOWN).index(kind)])
    assert set(found) == {"text/html", "text/plain"}
    html = found["text/html"]
    assert "<table" in html
    assert "<script" not in html
    assert "<pre" not in html
    for words in EXPECTED[kind]:
        assert words in html
    assert "\n" not in found["text/plain"]
    assert found["text/plain"].startswith("<")


@pytest.mark.parametrize("place", range(len(FIGURES)))
def test_figures_are_charts(outputs: list[list[dict[str, Any]]], place: int) -> None:
    found = result_of(outputs[1 + len(SHOWN) + place])
    charts = [value for name, value in found.items() if "vega" in name or name == "text/html"]
    assert charts
    assert "vega-lite" in str(charts[0])
    assert "datasets" in str(charts[0])


def test_data_frames_are_pandas_own(outputs: list[list[dict[str, Any]]]) -> None:
    assert "dataframe" in result_of(outputs[-1])["text/html"]

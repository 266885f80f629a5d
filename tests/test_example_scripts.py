"""The example scripts run, at a reduced size, and the command that they print next does what they say."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import spiritlevel

ROOT = Path(__file__).parent.parent
SOURCE = str(Path(spiritlevel.__file__).resolve().parents[1])


def run(*words: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_gpt_is_trained_and_the_printed_command_measures_it(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = ("--width", "16", "--layers", "1", "--vocabulary", "300", "--length", "32")
    small = ("--steps", "30", "--rate", "1e-2", *sizes)
    said = run(str(ROOT / "examples" / "tiny_gpt.py"), *small, folder=tmp_path)
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in said.splitlines() if line.startswith("step ")]
    assert losses[-1] < losses[0] - 0.5
    command = shlex.split(said.splitlines()[-1])
    assert command[:2] == ["spiritlevel", "measure"]
    words = (*command[1:], "--measures", "output_margin", "--samples", "20", "--json", "-")
    report = json.loads(run("-m", "spiritlevel", *words, folder=tmp_path))
    assert report["header"]["loss_name"] == "next_token"
    assert abs(report["header"]["loss"] - losses[-1]) < 0.7  # of the trained network, on other text of the same kind
    assert any(note.endswith("for causal-lm.") for note in report["header"]["notes"])


def test_the_full_size_is_two_million_parameters() -> None:
    """As the script's defaults have it: embeddings, four layers of twelve squares, biases and norms."""
    text = (ROOT / "examples" / "tiny_gpt.py").read_text(encoding="utf-8")
    defaults = re.findall(r'"--(\w+)", type=int, default=(\d+)', text)
    found = {name: int(value) for name, value in defaults}
    width = found["width"]
    layer = 12 * width**2 + 13 * width
    count = (found["vocabulary"] + found["length"]) * width + found["layers"] * layer + 2 * width
    assert 1.9e6 < count < 2.1e6

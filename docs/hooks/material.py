"""What the commands on a page ask for, beside what the page itself shows: example files under the names it uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_PROJECT = '''"""A network and its data, as a project of one's own has them."""

from torch import nn

import spiritlevel as sl


class MyNet(nn.Sequential):
    """A small classifier of the digits."""

    def __init__(self) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
        )


def train_data():
    """The first digits."""
    return tuple(part[:200] for part in sl.datasets.load("digits", "train").tensors)
'''
_CHECKPOINTS = ("weights.pt", "w.pt", "a.pt", "b.pt")
# What is too long to run is only looked at: whether make has the target, pip the extra, and studies the name and size.
_COMMANDS = {
    "make": """case "$1" in
  demo) words=$(command make --no-print-directory -n -C {root} demo | tail -n 1); eval "${{words#*/bin/}}" ;;
  *) exec {make} -n -C {root} "$@" >/dev/null ;;
esac""",
    "pip": 'exec {python} {root}/docs/hooks/material.py "$@"',
    "spiritlevel": """case "$1 $2 $*" in
  "data get "*) exec {python} -m spiritlevel data get --help >/dev/null ;;
  "study run "*--size*) exec {python} -m spiritlevel study show "${{@:3}}" ;;
  *) exec {python} -m spiritlevel "$@" ;;
esac""",
}


def lay_out(folder: Path, text: str) -> dict[str, str]:
    """Write the files a page names, and return the environment its commands run in."""
    if any(name in text for name in ("my_project", *_CHECKPOINTS)):
        _train_checkpoints(folder)
    if "hf:" in text:
        _make_language_models(folder)
    commands = folder / ".commands"
    commands.mkdir()
    make = _which("make")
    for name, body in _COMMANDS.items():
        script = body.format(root=ROOT, python=sys.executable, make=make).replace("command make", make)
        (commands / name).write_text(f"#!/usr/bin/env bash\n{script}\n", encoding="utf-8")
        (commands / name).chmod(0o755)
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "ignore"}


def names_for(folder: Path, text: str) -> dict[str, Any]:
    """Return what a page's Python takes for granted: a trained network, its data, another network, a vector."""
    names: dict[str, Any] = {"__name__": "__page__"}
    if "my_project" in text:
        import torch

        import spiritlevel as sl

        x, y = (part[:200] for part in sl.datasets.load("digits", "train").tensors)
        model, other = sl.nets.build("digits_mlp"), sl.nets.build("digits_mlp")
        sl.load_weights(model, folder / "a.pt")
        sl.load_weights(other, folder / "b.pt")
        size = sum(parameter.numel() for parameter in model.parameters())
        names |= {"model": model, "x": x, "y": y, "other": sl.Problem(other, (x, y)), "v": torch.ones(size)}
    return names


def _which(name: str) -> str:
    import shutil

    found = shutil.which(name)
    assert found is not None, f"{name} is not installed"
    return found


def _train_checkpoints(folder: Path) -> None:
    import torch

    import spiritlevel as sl

    (folder / "my_project.py").write_text(_PROJECT, encoding="utf-8")
    data = sl.datasets.load("digits", "train")
    for seed, name in enumerate(_CHECKPOINTS):
        model = sl.nets.build("digits_mlp", seed=seed)
        sl.training.train(model, data, lr=0.1, batch_size=32, steps=400, seed=seed)
        torch.save(model.state_dict(), folder / name)


def _make_language_models(folder: Path) -> None:
    """Train a tiny GPT-2 by the example script, and lay a classifier of the same size beside it."""
    script = str(ROOT / "examples" / "tiny_gpt.py")
    sizes = ["--width", "16", "--layers", "1", "--vocabulary", "300", "--length", "32", "--steps", "20"]
    subprocess.run([sys.executable, script, "--folder", "my-gpt", *sizes], cwd=folder, capture_output=True, check=True)
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder / "my-gpt", num_labels=2)
    config.pad_token_id = config.eos_token_id
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder / "my-classifier")
    transformers.AutoTokenizer.from_pretrained(folder / "my-gpt").save_pretrained(folder / "my-classifier")
    (folder / "held-out.txt").write_text("import this\n" * 60, encoding="utf-8")
    lines = [f'{{"text": "review {number}", "label": {number % 2}}}' for number in range(12)]
    (folder / "reviews.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _asked_extras(words: list[str]) -> None:
    """Stop unless every extra of ``spiritlevel[…]`` or ``.[…]`` in a pip command exists."""
    import re
    import tomllib

    with (ROOT / "pyproject.toml").open("rb") as stream:
        known = tomllib.load(stream)["project"]["optional-dependencies"]
    for extras in re.findall(r"(?:spiritlevel|\.)\[([^]]+)\]", " ".join(words)):
        assert set(extras.split(",")) <= set(known), f"no such extra: {extras}"


if __name__ == "__main__":
    _asked_extras(sys.argv[1:])

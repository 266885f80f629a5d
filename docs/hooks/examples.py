"""The examples in docstrings, each run in a folder of its own; ``make docs`` renews what stands below them.

An example is lines after ``>>>`` and ``...``; what it printed follows up to an empty line, as Python's doctest has it.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
from docs.hooks.blocks import differences, tidied
from docs.hooks.material import ROOT

SOURCE = ROOT / "src" / "spiritlevel"
_COLUMNS = "88"  # of what is printed: it stands indented in lines of at most 120
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Documented:
    """The examples of one docstring, and the line of the file that its first line is."""

    path: Path
    name: str
    line: int
    examples: list[doctest.Example]

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} {self.name}"


def documented(path: Path) -> Iterator[Documented]:
    """Yield every docstring of a file that has examples."""
    text = path.read_text(encoding="utf-8")
    if ">>>" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and (docstring := ast.get_docstring(node, clean=False)):
            examples = doctest.DocTestParser().get_examples(docstring)
            if examples:
                yield Documented(path, getattr(node, "name", path.stem), node.body[0].lineno, examples)


def everywhere() -> list[Documented]:
    """Return all docstrings of the package that have examples."""
    return [found for path in sorted(SOURCE.rglob("*.py")) for found in documented(path)]


def printed(found: Documented) -> list[str]:
    """Run the examples one after the other in names and a folder of their own; return what each printed."""
    outputs, names = [], {"__name__": "__example__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), _columns():
        for example in found.examples:
            out = io.StringIO()
            with contextlib.redirect_stdout(out), warnings.catch_warnings():
                warnings.simplefilter("error")
                exec(compile(example.source, str(found), "single"), names)
            outputs.append(tidied(out.getvalue(), Path(folder)) if out.getvalue().strip() else "")
    return outputs


@contextlib.contextmanager
def _columns() -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _COLUMNS
    try:
        yield
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)


def wrong(found: Documented) -> list[str]:
    """Run the examples; return in what their outputs are not those that are shown, but for rounding."""
    said = []
    for example, now in zip(found.examples, printed(found)):
        shown = example.want.replace("<BLANKLINE>", "")
        if bool(shown) != bool(now):
            said.append(f"{example.source.strip()} shows {shown!r} and printed {now!r}")
        else:
            said += [f"{example.source.strip()}: {each}" for each in differences(shown, now)]
    return said


def renew(path: Path) -> None:
    """Write below the examples of a file what they print now."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for found in sorted(documented(path), key=lambda each: -each.line):
        started = time.perf_counter()
        outputs = printed(found)
        print(f"{found}  {time.perf_counter() - started:.1f} s", flush=True)
        for example, now in reversed(list(zip(found.examples, outputs))):
            first = found.line - 1 + example.lineno + example.source.count("\n")
            shown = [" " * example.indent + (line or "<BLANKLINE>") + "\n" for line in now.splitlines()]
            lines[first : first + example.want.count("\n")] = shown
    path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:] or dict.fromkeys(str(found.path) for found in everywhere()):
        renew(Path(name).resolve())

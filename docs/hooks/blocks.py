"""The code blocks of a page, run from top to bottom in one folder; ``make docs`` renews what stands below them.

A block is run by the language of its fence: ``python`` in one namespace a page, ``sh`` by bash.  One with a
``title="FILE"`` is that file.  A ``text`` block right below one that was run is what it printed; a line ``…`` in it
leaves lines out.  Other languages are not run.  An image that the page shows from ``images/`` and draws itself, under
that name, is renewed with the outputs.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
from docs.hooks.material import ROOT, lay_out, names_for

_FENCE = re.compile(r"^```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"[-+−]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
_IMAGE = re.compile(r"\]\((?:\.\./)*images/([^)/]+)\)")
IMAGES = ROOT / "docs" / "images"
_COLUMNS = "110"
_LIMIT = 600  # seconds for a command
TOLERANCE = 0.03  # training on another processor rounds otherwise
# Words after a number that say it is a time or a memory, which differs from run to run.
_TIMES = re.compile(r"(?:about |in )?[\d.,]+ ?(?:ms|s|seconds|min|minutes|MB|GB|MiB|GiB)\b(?: \d+ s\b)?")


@dataclass(frozen=True)
class Block:
    """A fenced block, and the output that stands below it."""

    language: str
    title: str
    code: str
    shown: str | None = None
    place: tuple[int, int] = (0, 0)  # of the shown output in the page


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of a page in order, each with its output."""
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(text):
        follows = found and found[-1].language in ("python", "sh") and not found[-1].title
        if match["language"] == "text" and follows and not text[end : match.start()].strip():
            found[-1] = replace(found[-1], shown=match["code"], place=match.span("code"))
        else:
            title = re.search(r'title="([^"]+)"', match["info"])
            found.append(Block(match["language"], title[1] if title else "", match["code"]))
        end = match.end()
    return found


def run_page(text: str, keep: Callable[[Path], None] | None = None) -> list[tuple[Block, str]]:
    """Run a page's blocks in a folder of their own; return those with an output, and what they printed now.

    ``keep`` is given the folder when all have run, before it is removed.
    """
    printed = []
    blocks = blocks_of(text)
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name), _importable(name):
        folder = Path(name)
        environment = lay_out(folder, text)
        names: dict[str, Any] = names_for(folder, text)
        for block in blocks:
            if block.title:
                place = folder / block.title
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(block.code, encoding="utf-8")
            elif block.language in ("python", "sh"):
                out = _python(block, names) if block.language == "python" else _shell(block, environment)
                if block.shown is not None:
                    printed.append((block, tidied(out, folder)))
        if keep is not None:
            keep(folder)
    return printed


@contextlib.contextmanager
def _importable(folder: str) -> Iterator[None]:
    """Let a page's Python import the files it shows, as a script beside them would; forget them afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(f"{folder}{os.sep}"):
                del sys.modules[name]


def _python(block: Block, names: dict[str, Any]) -> str:
    out = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _COLUMNS
    try:
        # What others' code warns of is no output, and torch warns only once a process.
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(block.code, "<page>", "exec"), names)
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    return out.getvalue()


def _shell(block: Block, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-e", "-c", block.code],
        env={**environment, "COLUMNS": _COLUMNS},
        capture_output=True,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode} of\n{block.code}{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def tidied(out: str, folder: Path) -> str:
    """Return an output without the folder it was made in, trailing spaces and colours."""
    out = re.sub(r"\x1b\[[0-9;]*m", "", out).replace(f"{folder}/", "")
    return "\n".join(line.rstrip() for line in out.strip("\n").splitlines()) + "\n"


# --- comparing -----------------------------------------------------------------------------------------------------


def differences(shown: str, printed: str) -> list[str]:
    """Return in what the output that is shown differs from the one just printed, but for rounding and times."""
    lines, wrong, start = printed.splitlines(), [], 0
    for segment in segments(shown):
        words, best = _words(segment), None
        for at in range(start, len(lines) - len(segment) + 1):
            now = _words(lines[at : at + len(segment)])
            apart = _apart(words, now)
            if best is None or len(apart) < len(best[1]):
                best = (at, apart)
            if not apart:
                break
        if best is None:
            return [*wrong, f"{len(segment)} lines are shown, fewer were printed"]
        wrong += best[1]
        start = best[0] + len(segment)
    if not _elided(shown) and len(shown.splitlines()) != len(lines):
        wrong.append(f"{len(shown.splitlines())} lines are shown, {len(lines)} were printed")
    return wrong


def segments(shown: str) -> list[list[str]]:
    """Return the runs of lines between the lines left out."""
    parts = re.split(r"^…\n", shown, flags=re.MULTILINE)
    return [part.splitlines() for part in parts if part.strip()]


def _elided(shown: str) -> bool:
    return bool(re.search(r"^…$", shown, re.MULTILINE))


def _words(lines: list[str]) -> list[str]:
    text = _TIMES.sub("TIME", "\n".join(lines))
    return re.sub(r"[─-╿]+|[█-▏]+", " ", text).split()


def _apart(old: list[str], new: list[str]) -> list[str]:
    found = [f"{a} is shown, {b} was printed" for a, b in zip(old, new) if not _alike(a, b)]
    return found + ([f"{len(old)} words are shown, {len(new)} were printed"] if len(old) != len(new) else [])


def _alike(old: str, new: str) -> bool:
    if _NUMBER.sub("#", old) != _NUMBER.sub("#", new):
        return False
    pairs = zip(_NUMBER.findall(old), _NUMBER.findall(new))
    return all(_near(*(float(x.replace(",", "").replace("−", "-")) for x in pair), pair[0]) for pair in pairs)


def _near(old: float, new: float, written: str) -> bool:
    mantissa, _, exponent = written.partition("e")
    last = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(old - new) <= max(TOLERANCE * abs(old), 1.01 * last)


# --- renewing ------------------------------------------------------------------------------------------------------


def drawn_images(text: str, folder: Path) -> list[str]:
    """Return the images that a page shows and its blocks have drawn in the folder."""
    return [name for name in _IMAGE.findall(text) if (folder / name).is_file()]


def renewed(text: str) -> str:
    """Return a page with the outputs it has now; what it draws is kept in ``docs/images``."""

    def keep(folder: Path) -> None:
        for name in drawn_images(text, folder):
            shutil.copyfile(folder / name, IMAGES / name)

    for block, printed in reversed(run_page(text, keep)):
        assert block.shown is not None
        new = _elide_alike(block.shown, printed) if _elided(block.shown) else printed
        text = text[: block.place[0]] + new + text[block.place[1] :]
    return text


def _elide_alike(shown: str, printed: str) -> str:
    """Leave out of an output what was left out before, by its lines' likeness to those that were shown."""
    lines, kept, start = printed.splitlines(), [], 0
    if shown.startswith("…\n"):
        kept.append("…")
    for segment in segments(shown):
        first = _most_alike(segment[0], lines, start)
        last = _most_alike(segment[-1], lines, first)
        kept += [*lines[first : last + 1], "…"]
        start = last + 1
    return "\n".join(kept if shown.rstrip().endswith("…") else kept[:-1]) + "\n"


def _most_alike(line: str, lines: list[str], start: int) -> int:
    wanted = _NUMBER.sub("#", line)
    return max(
        range(start, len(lines)),
        key=lambda at: (SequenceMatcher(None, wanted, _NUMBER.sub("#", lines[at])).ratio(), -at),
    )


def pages() -> list[Path]:
    """Return all pages with blocks, but for those of the studies, whose commands take a GPU hours."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if "results" not in path.parts and blocks_of(path.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    for path in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        before = path.read_text(encoding="utf-8")
        if any(block.shown is not None for block in blocks_of(before)):
            print(path.relative_to(ROOT), flush=True)
            path.write_text(renewed(before), encoding="utf-8")

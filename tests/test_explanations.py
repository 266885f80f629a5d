"""Numbers that the explanations give are those of the code, and the tests they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spiritlevel.engine import blocks, warm_start
from spiritlevel.engine.operators import memory
from spiritlevel.engine.passes import curvature, reduced_precision, rules, strata
from spiritlevel.inputs import survey
from spiritlevel.inputs.losses import custom
from spiritlevel.results import standing
from tests.attack import test_corpus as attack

ROOT = Path(__file__).parent.parent
WORDS = {2: "two", 4: "four", 8: "eight", 200: "two hundred", 2000: "two thousand"}
HOW, VERIFIED, READ = "how-it-works", "verified", "how-to-read"
SAID = {
    (HOW, f"({blocks.TOLERANCE:.0%} unless said otherwise)"),
    (HOW, f"At most {blocks.BUDGET:.0f} gradients' worth is spent on the remainder"),
    (HOW, f"{strata.FEWEST} samples or more are parted into {WORDS[len(strata.ENDS)]} strata"),
    (HOW, f"With more than {curvature.COLUMN_LIMIT} output entries a sample"),
    (HOW, f"{WORDS[curvature.SKETCH_DRAWS]} draws a sweep until their error is small enough"),
    (HOW, f"over {4 * warm_start.FEWEST:,} samples or more"),
    (HOW, f"a twentieth of them, at least {warm_start.FEWEST}, and one random direction"),
    (HOW, f"With fewer than {WORDS[reduced_precision.FEWEST_COLUMNS]} columns, or on fewer than "
          f"{reduced_precision.FEWEST} samples"),
    (HOW, f"kept graphs take {memory.KEPT_SHARE:g}"),
    (HOW, f"a training step on {memory.STEP_SAMPLES} samples"),
    (HOW, f"up to {custom.MOST_OUTPUTS} outputs a sample"),
    (VERIFIED, f"autograd: {WORDS[rules.TRIED]} samples of each new sequence of operations"),
    (VERIFIED, "the first {}, {} and {} samples of the first batch".format(*map(WORDS.get, survey.SMALL_BATCHES))),
    (VERIFIED, f"the whole batch again {WORDS[survey.LOOKS]} times"),
    (VERIFIED, f"{WORDS[attack.FAST].capitalize()} run in `make test`, {WORDS[attack.SLOW]} in `make test-all`"),
    (READ, "longer than twice its noise"),
}  # fmt: skip


def text_of(page: str) -> str:
    """Return a page on one line."""
    return " ".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize(("page", "words"), sorted(SAID))
def test_a_number_that_is_explained_is_that_of_the_code(page: str, words: str) -> None:
    assert words in text_of(page)


def test_twice_the_noise_is_what_decides() -> None:
    assert standing.NOISE == 2.0


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", text_of(VERIFIED)))
    written = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(named) > 20
    assert named <= written

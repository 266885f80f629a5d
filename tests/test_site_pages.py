"""Every page of the site and the README: their code runs, and prints what stands below it."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.hooks.blocks import ROOT, differences, pages, run_page


def test_another_number_or_word_is_a_difference_and_rounding_is_none() -> None:
    assert not differences("trace 12.345 in 3.1 s\n", "trace 12.346 in 0.4 s\n")
    assert differences("trace 12.345\n", "trace 14.345\n")
    assert differences("flatter: a\n", "flatter: b\n")
    assert differences("one line\n", "one line\nand another\n")
    assert not differences("first\n…\nlast\n", "first\nbetween\nlast\n")


@pytest.mark.slow
@pytest.mark.parametrize("path", pages(), ids=[str(path.relative_to(ROOT)) for path in pages()])
def test_what_a_page_shows_is_what_its_code_prints(path: Path) -> None:
    wrong = [
        each for block, printed in run_page(path.read_text(encoding="utf-8"))
        for each in differences(block.shown or "", printed)
    ]  # fmt: skip
    assert not wrong, "\n".join(["the page shows something else: run make docs", *wrong])

"""What a question of several measurements tells while it is under way."""

from __future__ import annotations

import sys

import pytest

from spiritlevel.inputs import steps
from spiritlevel.inputs.steps import Steps, told_steps


def test_time_left_follows_from_what_was_done() -> None:
    now = 0.0
    told: list[str] = []
    work = Steps(4.0, lambda each: told.append(f"{each.words} {each.words_of_time}".strip()), clock=lambda: now)
    work.begin("measuring a", 1.0)
    assert work.left is None
    work.hook("curvature", 250, 500)
    now = 10.0
    work.begin("measuring b", 1.0)
    assert work.left == pytest.approx(30.0)
    now = 20.0
    work.begin("trying rescalings", 3.0)  # more than was expected
    assert work.total == 5.0
    assert work.left == pytest.approx(30.0)
    assert told == [
        "measuring a", "measuring a · curvature 250/500", "measuring b about 30 s left",
        "trying rescalings about 30 s left",
    ]  # fmt: skip


def test_lines_are_told_where_there_is_no_terminal_and_nothing_where_it_is_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "LINE_SECONDS", 0.0)
    assert not sys.stderr.isatty()
    with told_steps(True, 2.0) as work:
        work.begin("measuring a", 1.0)
        work.begin("measuring b\x1b[2J", 1.0)
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "measuring a"
    assert told[1].startswith("measuring b")
    assert "\x1b" not in told[1]
    assert told[1].endswith("s left")
    with told_steps(False, 2.0) as work:
        work.begin("measuring a", 1.0)
    assert capsys.readouterr().err == ""

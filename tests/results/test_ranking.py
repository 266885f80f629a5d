"""Many networks in the order of a measure: letters are the verdicts of the pairs, tables stay readable."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

import spiritlevel as sl
from spiritlevel.results.compared import Comparison
from spiritlevel.results.contrasts import largest_of
from spiritlevel.results.terminal import as_text
from spiritlevel.values.estimate import Estimate
from tests.analyses.made_reports import made, made_runs


def shared(a: str, b: str) -> bool:
    """Return whether two networks share a letter, however it is written."""

    def places(letters: str) -> set[int]:
        found: set[int] = set()
        for part in letters.split(", "):
            if "–" in part:
                low, high = (int(end) if end.isdigit() else ord(end) for end in part.split("–"))
                found |= set(range(low, high + 1))
            elif part.isdigit():
                found.add(int(part))
            else:
                found |= set(map(ord, part))
        return found

    return bool(places(a) & places(b))


@pytest.mark.parametrize("networks", [3, 12, 60, 200])
def test_letters_are_the_verdicts_of_all_pairs(networks: int) -> None:
    values = [1.03**place for place in range(networks)]
    reports = {
        f"n{place}": made("w", {"rho_sum": Estimate(value, stderr=0.01 * value * (1 + place % 4), how="estimated")})
        for place, value in enumerate(values)
    }
    found = sl.compare(reports)
    row, ranking = found.rows["rho_sum"], found.rankings["rho_sum"]
    assert list(ranking.order) == list(reports)
    decided = {frozenset((each.first, each.second)): each.decided for each in row.contrasts}
    assert len(decided) == networks * (networks - 1) // 2
    for a, b in combinations(reports, 2):
        assert shared(ranking.letters[a], ranking.letters[b]) != decided[frozenset((a, b))]
    tied = [label for label in reports if label == "n0" or not decided[frozenset(("n0", label))]]
    assert ranking.best_of(reports) == tied


def test_what_smaller_is_sharper_of_is_ranked_from_the_largest() -> None:
    found = sl.compare({label: made(label, {"output_margin": Estimate(v)}) for label, v in zip("abc", (1.0, 3.0, 2.0))})
    assert found.rankings["output_margin"].order == ("b", "c", "a")
    assert found.rankings["output_margin"].letters == {"b": "a", "c": "b", "a": "c"}


def test_the_largest_contrast_is_the_largest_of_any_pair() -> None:
    found = sl.compare(made_runs())
    values = [report["rho_sum"].value for report in found.reports.values()]
    largest = largest_of(found.rows["rho_sum"].contrasts)
    assert largest is not None
    assert largest.factor == pytest.approx(max(values) / min(values))
    wide = as_text(found.table(), 400)
    assert re.search(r"rho sum .*kind-0/seed-0 at epoch 1 ÷ kind-1/seed-1 at epoch 12: 60\.0 ", wide)


@pytest.mark.parametrize("width", [80, 120])
def test_two_hundred_networks_are_a_table_that_fits(width: int) -> None:
    reports = made_runs(runs=20, epochs=10)
    text = as_text(sl.compare(reports).table(), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if re.match(r"│ kind-\d/seed-\d epoch \d+ ", line)]
    portions = len(rows) / len(reports)
    assert portions == int(portions) <= 3, "every network has one row in each part of the table, unbroken"
    for report in list(reports.values())[::17]:
        assert any(f"{report['rho_sum'].value:.5g}"[:6] in line for line in rows)
    assert "hold with 95% for all 19,900 pairs of a measure at once" in " ".join(text.split())


def test_letters_stand_beside_the_values_and_numbers_in_brackets() -> None:
    few = {label: made(label, {"rho_sum": Estimate(v)}) for label, v in zip("abcde", (1.0, 2.0, 3.0, 4.0, 4.0))}
    text = as_text(sl.compare(few).table())
    assert re.search(r"│ b .*2\.0000 b │", text)
    assert re.search(r"│ e .*4\.0000 d │", text)
    many = {f"n{place}": made("w", {"rho_sum": Estimate(1.0 + place)}) for place in range(30)}
    assert re.search(r"│ n7 .*8\.0000 \(8\) │", as_text(sl.compare(many).table()))


def test_a_comparison_read_again_ranks_alike() -> None:
    found = sl.compare(made_runs(2, 3))
    again = Comparison.from_record(found.record())
    assert again.answer == found.answer != []
    assert again.rankings == found.rankings


def test_three_networks_show_their_letters_beside_their_ratios() -> None:
    values = {"x": Estimate(1.0, stderr=0.1, how="estimated"), "y": Estimate(1.3, stderr=0.1, how="estimated")}
    found = sl.compare({label: made(label, {"rho_sum": e}) for label, e in (values | {"z": Estimate(9.0)}).items()})
    text = " ".join(as_text(found.table(), 200).split())
    assert "x a, y a, z b" in text
    assert "intervals are 95% for all 3 pairs of a measure at once" in text
    two = " ".join(str(sl.compare({k: found.reports[k] for k in "xy"})).split())
    assert "at once" not in two, "of two networks there is one pair"


def test_the_figure_of_many_networks_is_their_curves_or_their_order() -> None:
    pytest.importorskip("altair")
    for reports, name in (
        (made_runs(2, 3), "curves"),
        ({f"n{k}": made("w", {"rho_sum": Estimate(k)}) for k in range(5)}, "ranks"),
    ):
        assert name in sl.compare(reports).figure().to_dict()["datasets"]


def test_a_file_of_an_earlier_version_is_read_by_what_its_intervals_hold_for() -> None:
    record = sl.compare(made_runs(2, 3)).record()
    del record["answer"]
    old = Comparison.from_record(record)
    text = " ".join(str(old).split())
    assert text.startswith(old.reading[0])
    assert "Letters and intervals hold with 95% for each pair by itself." in text
    assert "at once" not in text

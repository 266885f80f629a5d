"""Which of many networks is flattest, and where in which run it stands, in sentences that say ties as ties."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.registry import DEFAULT, words_of
from spiritlevel.results import Report
from spiritlevel.results.compared import Comparison
from spiritlevel.results.numerals import percent, plain
from spiritlevel.results.ranking import Ranking, at_minimum_or_untold, left_out_words, test_accuracies
from spiritlevel.results.runs import Runs

MOST_NAMED = 2


def answer_of_many(compared: Comparison, measures: Mapping[str, Measure]) -> list[str]:
    """Return the answer: the flattest by most measures, that at the runs' ends, and where test accuracy is highest.

    The default measures count, or where none of them is there all that were compared.
    """
    rankings = {name: ranking for name, ranking in compared.rankings.items() if name in DEFAULT} or compared.rankings
    if not rankings:
        return []
    reports, runs = compared.reports, compared.runs
    found, kept = [], at_minimum_or_untold(reports)
    left_out = len(reports) - len(kept)
    aside = ""
    if not kept:
        aside = "though none of these networks is at a minimum"
    elif left_out:
        aside = f"leaving out the {left_out:,} of {len(reports):,} networks that {left_out_words(reports)}"
    flattest = _flattest(rankings, kept or list(reports), runs, reports)
    found.append(_sentence(aside, flattest))
    ends = [label for label in runs.ends.values() if label in kept] or list(runs.ends.values())
    if 1 < len(ends) < len(reports):
        whole = (
            "the runs" if len(ends) == len(runs.ends) else f"the {len(ends)} of {len(runs.ends)} runs that are left in"
        )
        at_end = _flattest(rankings, ends, runs, reports)
        found.append(_sentence(f"at the end of {whole}", "the same holds" if at_end == flattest else at_end))
    first = next(iter(rankings))
    words = measures[first].words if first in measures else words_of(first, compared.rows[first].title)
    return [*found, *_by_test_accuracy(compared, rankings[first], words)]


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _sentence(aside: str, rest: str) -> str:
    return f"{aside[0].upper()}{aside[1:]}, {rest}." if aside else f"{rest}."


def _flattest(
    rankings: Mapping[str, Ranking], among: Collection[str], runs: Runs, reports: Mapping[str, Report]
) -> str:
    """Say which network is the flattest, or not told apart from it, by most measures."""
    count = len(rankings)
    best = [ranking.best_of(among) for ranking in rankings.values()]
    best = [each for each in best if each]
    alone = {label: sum(each == [label] for each in best) for label in among}
    shared = {label: sum(label in each and len(each) > 1 for each in best) for label in among}
    orders = [ranking.order for ranking in rankings.values()]
    places = {label: sum(order.index(label) for order in orders if label in order) for label in among}
    ordered = sorted(among, key=lambda label: (-alone[label] - shared[label], -alone[label], places[label]))
    leader = ordered[0]
    a, b = alone[leader], shared[leader]
    equal = [label for label in ordered[1:] if (alone[label], shared[label]) == (a, b)]
    whole = "the only measure" if count == 1 else f"all {count} measures"
    # A network that has learnt nothing yet can be the flattest, which its loss shows.
    loss = reports[leader].header.loss
    who = runs.where(leader) + ("" if loss is None else f" (loss {plain(loss, 3)})")
    if a:
        said = f"{who} is the flattest by {whole if a == count else f'{a} of {count} measures'}"
        said += f" and not told apart from the flattest by {b} more" if b else ""
    else:
        said = f"{who} is not told apart from the flattest by {whole if b == count else f'{b} of {count} measures'}"
    return f"{said}; {_named(equal, runs)} by as many" if equal else said


def _named(labels: Sequence[str], runs: Runs) -> str:
    if len(labels) > MOST_NAMED:
        return f"so {_are(len(labels))} {len(labels):,} others"
    return " and ".join(runs.where(label) for label in labels)


def _by_test_accuracy(compared: Comparison, ranking: Ranking, words: str) -> list[str]:
    """Say where test accuracy is highest, and which place that has by the first measure, ``words``."""
    runs, test = compared.runs, compared.test
    found = test_accuracies(compared.reports, test)
    if len(found) < 2:
        return []
    highest = max(found.values())
    first, *others = [label for label, value in found.items() if value == highest]
    samples = test.get(first, {}).get("samples")
    error = math.sqrt(highest * (1 - highest) / samples) if samples else 0.0
    sized = f"{percent(highest)}" + (f" ± {percent(error)} over {samples:,} samples" if error else "")
    and_others = f" and {len(others)} other{'s' if len(others) > 1 else ''}" if others else ""
    place = f"place {ranking.order.index(first) + 1:,} of {len(ranking.order):,} by {words}"
    where = f"; {'the first of them' if others else 'it'} is in {place}" if first in ranking.order else ""
    return [f"Test accuracy is highest ({sized}) for {runs.where(first)}{and_others}{where}."]

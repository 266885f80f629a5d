"""A comparison in two sentences: counts, names and factors that are in its numbers, and nothing beyond them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from spiritlevel.results.contrasts import Contrast
from spiritlevel.results.numerals import at_least


@dataclass(frozen=True)
class Finding:
    """What the sentences need of one measure: who is flatter by it, and whether a rescaling could say otherwise."""

    words: str  # the measure as it stands inside a sentence
    flatter: str | None  # the one that is flatter than all others, None where there is none
    largest: Contrast | None = None  # of the pairs that are told apart, or where none is, of all
    decided: int = 0  # pairs that are told apart
    pairs: int = 1
    holds: str = ""  # invariant, scales_with_logits, reversible, changes, not_tried, or "" where undecided
    checked: bool = True  # by measuring on rescaled copies; otherwise only declared
    factor: float | None = None  # the rescaling that reverses it
    kind: str = ""  # "layers" or "neurons"
    layers: int = 2  # whose weights it multiplies, where it rescales layers


def reading_of(
    labels: Sequence[str],
    findings: Sequence[Finding],
    *,
    untrained: str = "",
    not_at_minimum: Sequence[str] = (),
) -> list[str]:
    """Return two sentences: who is flatter by how many measures, and what could say otherwise.

    Networks that are ``not_at_minimum`` are named in the first.  What is said of ``untrained`` ones takes the place of
    the second, because it changes the meaning of every number.
    """
    if not findings:
        first = "None of these measures says which network is flatter"
        return [f"{first}{_though(labels, not_at_minimum)}.", *([untrained] if untrained else [])]
    first = f"{_who_is_flatter(labels, findings)}{_though(labels, not_at_minimum)}."
    otherwise, largest = _what_could_say_otherwise(findings), _largest_difference(findings)
    if len(labels) == 2:
        return [first, untrained or otherwise or largest]
    return [first, *([untrained or otherwise] if untrained or otherwise else []), largest]


def _though(labels: Sequence[str], not_at_minimum: Sequence[str]) -> str:
    if not not_at_minimum:
        return ""
    if set(not_at_minimum) >= set(labels):
        return f", though {'neither' if len(labels) == 2 else 'none'} is at a minimum"
    if len(not_at_minimum) > 3:
        return f", though {len(not_at_minimum)} of them are not at a minimum"
    several = len(not_at_minimum) > 1
    return f", though {' and '.join(not_at_minimum)} {'are' if several else 'is'} not at a minimum"


def _who_is_flatter(labels: Sequence[str], findings: Sequence[Finding]) -> str:
    wins = Counter(finding.flatter for finding in findings if finding.flatter is not None)
    count, undecided = len(findings), sum(finding.flatter is None for finding in findings)
    measures = "measure" if count == 1 else "measures"
    if not wins:
        return _no_flattest(labels, findings)
    (leader, most), *others = wins.most_common()
    rival = _rival(labels, leader)
    than = f"{leader} is flatter than {rival}" if len(labels) == 2 else f"{leader} is the flattest of {len(labels)}"
    whole = "the only measure" if count == 1 else f"all {count} measures"
    by = f"by {whole}" if most == count else f"by {most} of {count} {measures}"
    against = ", ".join(f"{label} by {number}" for label, number in others)
    open_ = "undecided" if len(labels) == 2 else f"{'names' if undecided == 1 else 'name'} no single one"
    rest = (f", {against}" if against else "") + (f" ({undecided} {open_})" if undecided else "")
    return f"{than} {by}{rest}; {_how_many_survive(leader, most, findings)}"


def _no_flattest(labels: Sequence[str], findings: Sequence[Finding]) -> str:
    """Say what is told apart where no measure has a network that is flatter than all others."""
    count, decided = len(findings), sum(finding.decided for finding in findings)
    pairs = sum(finding.pairs for finding in findings)
    within = (
        "the difference is within its error" if pairs == 1 else f"all {pairs:,} differences are within their errors"
    )
    if len(labels) == 2:
        return f"No measure tells {labels[0]} and {labels[1]} apart: {within}"
    if not decided:
        return f"No measure tells any two of the {len(labels)} networks apart: {within}"
    telling = sum(finding.decided > 0 for finding in findings)
    some = (
        "the only measure tells" if count == 1 else f"{telling} of {count} measures tell{'s' if telling == 1 else ''}"
    )
    return (
        f"No measure names one network flatter than all {len(labels) - 1} others, but {some} some of them apart: "
        f"{decided:,} of {pairs:,} differences {'is' if decided == 1 else 'are'} larger than their errors"
    )


def _how_many_survive(leader: str, most: int, findings: Sequence[Finding]) -> str:
    won = [finding for finding in findings if finding.flatter == leader]
    surviving = sum(finding.holds == "invariant" for finding in won)
    by_logits = sum(finding.holds == "scales_with_logits" for finding in won)
    checked = all(finding.checked for finding in won)
    if any(finding.holds == "not_tried" for finding in won):
        return "no rescaling was found in these networks to try on it"
    found = "rescaling found in these networks" if checked else "rescaling (as declared, not checked here)"
    if surviving == most:
        which = "it is" if most == 1 else f"{'both' if most == 2 else f'all {most}'} are"
        return f"{which} invariant to every {found}"
    if surviving:
        return f"{surviving} of the {most} {'is' if surviving == 1 else 'are'} invariant to every {found}"
    if by_logits == most:
        return f"{'it scales' if most == 1 else 'they scale'} with the logits"
    if by_logits:
        return "none of them is beyond a rescaling of the weights or of the outputs"
    return f"a rescaling of the weights that keeps the function changes {'it' if most == 1 else 'every one of them'}"


def _what_could_say_otherwise(findings: Sequence[Finding]) -> str:
    reversed_by = [finding for finding in findings if finding.flatter is not None and finding.factor is not None]
    if reversed_by:
        # Those whose ordering looks clearest come first: they are what a reader would trust.
        loudest = sorted(reversed_by, key=_clarity, reverse=True)[:2]
        names = " and ".join(finding.words for finding in loudest)
        factor = max(finding.factor for finding in loudest if finding.factor is not None)
        kinds = {finding.kind for finding in loudest}
        what = "weights" if len(kinds) > 1 else "neurons" if kinds == {"neurons"} else "layers"
        if what == "layers" and all(finding.layers == 2 for finding in loudest):
            what = "one pair of layers"
        size = at_least(factor, 2)
        one = len(loudest) == 1
        at_most = "" if one else "at most "
        favour = {finding.flatter for finding in loudest}
        says = f"favour{'s' if one else ''} {next(iter(favour))}" if len(favour) == 1 else "disagree"
        return (
            f"{_capital(names)} {says}, but rescaling {what} by {at_most}{size} reverses {'it' if one else 'each'} "
            "without changing a single prediction."
        )
    changing = [f for f in findings if f.flatter is not None and f.holds in ("changes", "reversible")]
    if changing:
        names = " and ".join(finding.words for finding in changing[:2])
        verb = "changes" if len(changing) == 1 else "change"
        return f"{_capital(names)} {verb} when weights are rescaled, though no reversal was found here."
    return ""


def _largest_difference(findings: Sequence[Finding]) -> str:
    """Say the largest ratio over all measures and pairs: of those that are told apart, where there are any."""
    known = [finding for finding in findings if finding.largest is not None and finding.largest.factor > 0]
    if not known:
        return "No ratio can be given, because a value may be zero or negative."
    decided = [finding for finding in known if finding.largest is not None and finding.largest.decided]
    finding = max(decided or known, key=_clarity)
    assert finding.largest is not None
    pair = finding.largest
    value, _, interval = pair.words.partition(" (")
    ratio = f"{pair.second} ÷ {pair.first} = {value}" + (f" (95% interval {interval}" if interval else "")
    return f"The largest difference is in {finding.words}: {ratio}{'' if decided else ', within its error'}."


def _clarity(finding: Finding) -> float:
    return finding.largest.factor if finding.largest is not None else 0.0


def _rival(labels: Sequence[str], leader: str) -> str:
    return next((label for label in labels if label != leader), leader)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text[:1].isascii() else text

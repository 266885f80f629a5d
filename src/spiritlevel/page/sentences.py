"""The answer in two sentences, generated from the numbers and never beyond them."""

from __future__ import annotations

from collections.abc import Mapping

from spiritlevel.measures.registry import MEASURES
from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.heat import factor_text
from spiritlevel.page.figures.shares import shares_of
from spiritlevel.page.sections.layers import INVARIANT, TRACE
from spiritlevel.results import Report
from spiritlevel.results.numerals import plain, value_text
from spiritlevel.results.standing import size_words, standing_of, untold_words
from spiritlevel.results.wording import UNTRAINED, matrix_words
from spiritlevel.values.symmetries import RESCALINGS, SYMMETRIES

AnswerSentences = tuple[str, str]  # the bold sentence and the one after it
MEASURED = ("ok", "budget_spent")


def answer_of_one(content: PageContent) -> AnswerSentences:
    """Return the answer of a page about one network: nothing about flat or sharp, which needs a second one."""
    report = content.first
    rest = layer_sentence(content, report) or value_sentence(content, report)
    if report.header.trained is False:
        return UNTRAINED, rest
    standing = standing_of(report.header)
    if standing == "no":
        return not_at_minimum([report]), rest
    if standing == "not told":
        size, words = size_words(report.header), untold_words(report.header)
        untold = f"Whether this is a minimum cannot be told: the gradient ({size}) is {words}."
        rest = f"{rest} {untold}".strip()
    return rescaling_sentence(report), rest


def of_several(content: PageContent, places: Mapping[str, float] | None, unit: str) -> AnswerSentences:
    """Return the answer of a page about several networks that were not compared: where values began and ended."""
    reports = list(content.reports.values())
    if len({report.fingerprint for report in reports}) > 1:
        return (
            f"These {len(reports)} reports were not measured on the same samples, so no difference between them is "
            "a difference between the networks alone.",
            "They are shown side by side and nothing is concluded.",
        )
    labels = list(content.reports) if places is None else sorted(content.reports, key=lambda label: places[label])
    first, last = content.reports[labels[0]], content.reports[labels[-1]]
    shared = [
        name
        for name in content.measures
        if name in first and name in last and first[name].status in MEASURED and last[name].status in MEASURED
    ][:2]
    standings = [standing_of(report.header) for report in reports]
    away, untold = standings.count("no"), standings.count("not told")
    aside = f"; {away} of the {len(reports)} networks {'is' if away == 1 else 'are'} not at a minimum" if away else ""
    aside += f"; of {untold} it cannot be told from noise whether they are" if untold else ""
    ends = {content.words(name): f"{value_text(first[name])} to {value_text(last[name])}" for name in shared}
    if not ends:
        strong = f"{len(reports)} reports, with no measure in common."
    elif places is None:
        said = ", ".join(f"{title} {both.replace(' to ', ' / ')}" for title, both in ends.items())
        strong = f"In {labels[0]} and {labels[-1]}: {said}; which is flatter is for a comparison to say."
    else:
        said = " and ".join(f"{title} went from {both}" for title, both in ends.items())
        strong = f"From {unit} {places[labels[0]]:g} to {places[labels[-1]]:g}, {said}."
    if places is None:
        return strong, f"Their losses are {plain(first.loss, 3)} and {plain(last.loss, 3)}{aside}."
    return strong, f"The loss went from {plain(first.loss, 3)} to {plain(last.loss, 3)}{aside}."


def of_runs(content: PageContent, ends: Mapping[str, str], places: Mapping[str, float], unit: str) -> AnswerSentences:
    """Return the answer of a page about several runs: where each of them ended, and between what."""
    last = {run: content.reports[label] for run, label in ends.items()}
    if len({report.fingerprint for report in last.values()}) > 1:
        return (
            f"These {len(last)} runs were not measured on the same samples, so no difference between them is a "
            "difference between the networks alone.",
            "They are shown side by side and nothing is concluded.",
        )
    said = []
    for name in content.measures[:2]:
        found = {run: r[name] for run, r in last.items() if name in r and r[name].status in MEASURED}
        if len(found) > 1:
            low, high = min(found, key=lambda run: found[run].value), max(found, key=lambda run: found[run].value)
            between = " and ".join(f"{value_text(found[run])} ({run})" for run in (low, high))
            said.append(f"{content.words(name)} lies between {between}")
    reached = sorted({places[label] for label in ends.values()})
    where = f" ({unit} {reached[0]:g})" if len(reached) == 1 and unit != "report" else ""
    strong = (
        f"At the end of the {len(last)} runs{where}, {', and '.join(said)}."
        if said
        else (f"{len(last)} runs, with no measure in common.")
    )
    losses = [report.loss for report in last.values() if report.loss is not None]
    own = f"Their last losses lie between {plain(min(losses), 3)} and {plain(max(losses), 3)}. " if losses else ""
    return strong, f"{own}Which is flatter is for a comparison to say."


def answer_of_comparison(content: PageContent) -> AnswerSentences:
    """Return the two sentences the comparison itself makes of its numbers."""
    assert content.comparison is not None
    strong, *rest = content.comparison.reading
    return strong, " ".join(rest)


def answer_of_audit(content: PageContent) -> AnswerSentences:
    """Return the answer of an audit: how many measures kept their value, and which changed most."""
    audit = next(iter(content.audits.values()))
    verdicts = {
        name: [row[s].verdict for s in RESCALINGS if s in row and row[s].verdict not in ("not found", "not measured")]
        for name, row in audit.verdicts.items()
    }
    tried = {name: found for name, found in verdicts.items() if found}
    if not tried:
        return (
            "No rescaling of layers or neurons was found in this network, so none could be tried.",
            "What the measures declare about rescaling is neither confirmed nor contradicted here.",
        )
    kept = sum(all(v == "invariant" for v in found) for found in tried.values())
    changed = sum("changes" in found for found in tried.values())
    undecided = len(tried) - kept - changed
    strong = (
        f"{kept} of {len(tried)} measure{'s' if len(tried) > 1 else ''} kept {'its' if kept == 1 else 'their'} value "
        f"under every rescaling found in this network, {changed} changed"
        + (f" and {undecided} {'is' if undecided == 1 else 'are'} undecided" if undecided else "")
        + ", while every prediction stayed the same."
    )
    if audit.contradictions:
        count = len(audit.contradictions)
        return (
            strong,
            f"{count} declared invariance{'s are' if count > 1 else ' is'} contradicted: {audit.contradictions[0]}.",
        )
    factors = [
        (max(f, 1 / f), f, name, s)
        for name, row in audit.verdicts.items()
        for s in RESCALINGS
        if s in row and (f := row[s].factor) is not None and f > 0
    ]
    if not factors:
        return strong, "No declared invariance is contradicted."
    _, factor, name, symmetry = max(factors)
    return strong, (
        f"The largest change shown is that of {content.words(name)}, multiplied by {factor_text(factor)} "
        f"when {SYMMETRIES[symmetry].kind} were rescaled."
    )


def answer_of_spectrum(content: PageContent) -> AnswerSentences:
    """Return the answer of a spectrum: its ends, and where the largest stands against 2/lr."""
    spectrum = next(iter(content.spectra.values()))
    largest, smallest = spectrum.eigenvalue_max, spectrum.eigenvalue_min
    ends = f"{plain(smallest.value, 3)} and {plain(largest.value, 3)}"
    strong = f"The eigenvalues of the {matrix_words(spectrum.operator)} lie between {ends}."
    if not (largest.ok and smallest.ok):
        strong = strong[:-1] + ", as far as the search got before its budget was spent."
    outliers = spectrum.outliers
    apart = f"{outliers.count} stand{'s' if outliers.count == 1 else ''} apart from the bulk"
    if outliers.classes:
        apart += f" (there are {outliers.classes} classes)"
    if content.learning_rate is None:
        return strong, f"{apart[0].upper()}{apart[1:]}."
    line = 2 / content.learning_rate
    low, high = largest.interval or (largest.value - 2 * largest.stderr, largest.value + 2 * largest.stderr)
    side = "below" if high < line else "above" if low > line else "within its error of"
    return strong, f"The largest is {side} the line 2/lr = {plain(line, 3)}, and {apart}."


def answer_of_studies(content: PageContent) -> AnswerSentences:
    """Return the answer of studies: how many claims hold, at which size."""
    judged: list[str] = [each.verdict for record in content.studies if record.finished for each in record.judgements]
    unrun = sum(len(record.judgements) for record in content.studies if not record.finished)
    total = len(judged) + unrun
    counts = {verdict: judged.count(verdict) for verdict in ("holds", "does not hold", "undecided")}
    words = [
        f"{counts['holds']} hold{'s' if counts['holds'] == 1 else ''}",
        f"{counts['does not hold']} {'does' if counts['does not hold'] == 1 else 'do'} not hold",
        f"{counts['undecided']} {'is' if counts['undecided'] == 1 else 'are'} undecided",
    ]
    if unrun:
        words.append(f"{unrun} {'was' if unrun == 1 else 'were'} not run")
    sizes = ", ".join(dict.fromkeys(record.size for record in content.studies))
    finished, planned = (sum(getattr(r, part) for r in content.studies) for part in ("finished", "planned"))
    strong = f"Of {total} claim{'s' if total != 1 else ''}, {', '.join(words)}."
    return (
        strong,
        f"This is size {sizes}, with {finished:,} of {planned:,} runs finished; no verdict speaks of another size.",
    )


def not_at_minimum(reports: list[Report]) -> str:
    """Say that a gradient is not small against its noise."""
    head = reports[0].header
    noise = head.gradient_noise
    against = f" against its noise {plain(noise, 2)}" if noise is not None else ""
    return (
        f"Not at a minimum: the gradient norm {plain(head.gradient_norm, 2)} is not small{against}, so these "
        "numbers describe a point on the way to one."
    )


def rescaling_sentence(report: Report) -> str:
    """Say how many of the measures rescaling can change, as they declare it."""
    measured = [name for name, estimate in report.items() if estimate.status in MEASURED]
    kept, moved = [], []
    for name in measured:
        answers = [MEASURES[name].invariances[s] for s in RESCALINGS] if name in MEASURES else []
        if answers and all(answers):
            kept.append(name)
        elif False in answers:
            moved.append(name)
    count = len(measured)
    if not measured:
        return "None of the measures asked for could be computed; the reasons are below."
    if count == 1:
        name = measured[0]
        what = "cannot be changed" if kept else "can be changed" if moved else "may or may not be changed"
        return (
            f"{report.title(name)} is {value_text(report[name])}, a number that {what} by rescaling layers or neurons."
        )
    rest = count - len(kept) - len(moved)
    words = f"{len(kept)} of {count} measures cannot be changed by rescaling layers or neurons and {len(moved)} can"
    words += f" ({rest} {'does' if rest == 1 else 'do'} not say)" if rest else ""
    return f"{words}; one network alone is neither flat nor sharp."


def layer_sentence(content: PageContent, report: Report) -> str:
    """Say where the trace sits, and what share of an invariant quantity that layer has."""
    if TRACE not in report.per_layer:
        return ""
    shares = shares_of({k: e.value for k, e in report.per_layer[TRACE].items() if e.status in MEASURED})
    if len(shares) < 2:
        return ""
    layer = max(shares, key=lambda name: shares[name])
    words = f"Layer {layer} holds {_share(shares[layer])} of the {content.words(TRACE)}"
    for quantity in INVARIANT:
        others = shares_of({k: e.value for k, e in report.per_layer.get(quantity, {}).items() if e.status in MEASURED})
        if layer in others:
            return (
                f"{words}, which rescaling could move to another, and {_share(others[layer])} of "
                f"{content.words(quantity)}, which it could not."
            )
    return f"{words}, which rescaling could move to another."


def value_sentence(content: PageContent, report: Report) -> str:
    """Say the first two values."""
    said = [
        f"{content.words(name)} is {value_text(estimate)}"
        for name, estimate in report.items()
        if estimate.status in MEASURED
    ][:2]
    return f"Here {' and '.join(said)}." if said else ""


def _share(value: float) -> str:
    return f"{100 * value:.0f}%"

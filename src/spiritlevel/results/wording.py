"""What a report says in words around its numbers: the lines above the table and the reasons below it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from spiritlevel.results.numerals import percent, plain
from spiritlevel.results.standing import standing_words
from spiritlevel.values.estimate import Estimate

if TYPE_CHECKING:
    from spiritlevel.results.report import Report

_MATRICES = {
    "hessian": "Hessian", "ggn": "Gauss–Newton matrix", "batch_variance": "variance of the Hessian over batches"
}  # fmt: skip
UNTRAINED = "No weights given: this is the network as initialised, not a trained minimum."


def header_lines(report: Report) -> list[str]:
    """Return what was measured and where the network stands, in two or three lines."""
    head = report.header
    lines = [UNTRAINED] if head.trained is False else []
    subject = head.model or "network"
    if head.weights:
        subject += f" with {head.weights}"
    return [*lines, f"{subject} on {data_words(report)}", state_words(report)]


def data_words(report: Report) -> str:
    """Return the data, how much of it, and how the network was run on it."""
    head = report.header
    data = head.data or "data"
    if head.split:
        data += f" ({head.split})"
    count, total = head.samples, head.samples_total
    if count is not None:
        data += f", {count:,} of {total:,} samples" if total is not None else f", {count:,} samples"
    coarser = f"Gauss–Newton sums in {head.precision}" if head.precision else None
    facts = [data, head.loss_name, f"{head.mode} mode" if head.mode else None, head.dtype, coarser]
    return " · ".join(fact for fact in facts if fact)


def state_words(report: Report) -> str:
    """Return loss, accuracy and gradient norm, and whether the network is at a minimum."""
    head = report.header
    parts = [f"loss {plain(head.loss)}"]
    if report.accuracy is not None:
        parts.append(f"accuracy {percent(report.accuracy)}")
    if report.gradient_norm is not None:
        gradient = f"gradient norm {plain(report.gradient_norm, 3)}"
        if head.gradient_noise is not None:
            gradient += f" (its noise {plain(head.gradient_noise, 3)})"
        parts.append(gradient)
    parts += [standing_words(head)] if standing_words(head) else []
    return " · ".join(parts)


def subject_words(report: Report) -> str:
    """Return the network, its weights and how many samples of which data, for one line."""
    head = report.header
    weights = f" with {head.weights}" if head.weights else ""
    data = f" on {head.data}" if head.data else ""
    count = f", {head.samples:,} samples" if head.samples is not None else ""
    return f"{head.model or 'a network'}{weights}{data}{count}"


def number_of(count: int, word: str) -> str:
    """Return a count with its word, in the plural where it is one."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word[:-1] + 'ies' if word.endswith('y') else word + 's'}"


def matrix_words(operator: str) -> str:
    """Return a matrix in words by its name: one of those of all parameters, or the block of a layer or a parameter."""
    return _MATRICES.get(operator, f"block of {operator}")


class Footnotes:
    """Reasons below a table, each said once, marked by its number, with those it holds for."""

    def __init__(self) -> None:
        self.reasons: dict[str, dict[str, None]] = {}

    def mark(self, estimate: Estimate, subject: str = "") -> str:
        """Return the mark of an estimate that needs a word, or nothing; ``subject`` says whose value it is."""
        if estimate.ok:
            return ""
        reason = estimate.reason or f"no reason was given for the status {estimate.status}"
        subjects = self.reasons.setdefault(reason, {})
        if subject:
            subjects[subject] = None
        return f"[{list(self.reasons).index(reason) + 1}]"

    def lines(self) -> list[str]:
        """Return the reasons with their numbers."""
        lines = []
        for number, (reason, subjects) in enumerate(self.reasons.items(), 1):
            named = list(subjects)[:3]
            rest = f" and {len(subjects) - 3} more" if len(subjects) > 3 else ""
            lines.append(f"[{number}] {reason}" + (f" ({', '.join(named)}{rest})" if named else ""))
        return lines


def shared_prefix_removed(names: Iterable[str]) -> list[str]:
    """Return file names without the folder they all share, as a shell glob gives them."""
    texts = list(names)
    parts = [(text.replace("\\", "/") if os.sep == "\\" else text).split("/") for text in texts]
    shared = 0
    while len(texts) > 1 and all(len(part) > shared + 1 for part in parts):
        if len({part[shared] for part in parts}) > 1:
            break
        shared += 1
    return ["/".join(part[shared:]) for part in parts]

"""Saved results of any kind, told apart by what their files say they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from spiritlevel.page.content import (
    PageContent,
    of_audit,
    of_comparison,
    of_eigenvalues,
    of_reports,
    of_spectrum,
    rate_of,
)
from spiritlevel.results import Report
from spiritlevel.results.audits import Audit
from spiritlevel.results.base import Shown
from spiritlevel.results.collecting import Failure, FilePath, load_saved
from spiritlevel.results.compared import Comparison
from spiritlevel.results.eigenpairs import Eigenvalues
from spiritlevel.results.saving import read_record
from spiritlevel.results.spectrum_result import Spectrum
from spiritlevel.values.errors import UsageError

LoadedResult = Report | Comparison | Audit | Spectrum | Failure


def kind_of(path: FilePath) -> str:
    """Return what a file holds: report, comparison, audit or spectrum."""
    if not os.path.exists(path):
        raise UsageError(f"there is no file {path}; give a file saved with --json")
    record = read_record(path, "result")
    return str(record.get("kind") or "report") if isinstance(record, dict) else "report"


def load_results(path: FilePath) -> list[LoadedResult]:
    """Return the results in a file; only reports may be several, some of them failures."""
    kind = kind_of(path)
    for own in (Comparison, Audit, Spectrum):
        if kind == own.kind:
            return [own.load(path)]
    reports, failures = load_saved(path)
    return [*reports, *failures]


def together(
    results: Sequence[Shown | Failure],
    learning_rate: float | None = None,
    labels: Sequence[str] = (),
    beside: Comparison | None = None,
) -> PageContent:
    """Return the content of one page from results of several kinds; a comparison leads.

    Reports are called by ``labels`` where they are given, else by their weights files; ``beside`` is what they say of
    each other, where it is known.
    """
    reports = [result for result in results if isinstance(result, Report)]
    comparisons = [result for result in results if isinstance(result, Comparison)]
    if len(comparisons) > 1 or (comparisons and reports):
        raise UsageError("a page holds one comparison, or reports beside each other; give one file with a comparison")
    audits = {result.base.header.label: result for result in results if isinstance(result, Audit)}
    spectra = {result.header.label: result for result in results if isinstance(result, Spectrum)}
    if comparisons:
        content = of_comparison(comparisons[0])
    elif reports:
        named = dict(zip(labels, reports)) if labels and len(reports) > 1 else reports
        content = of_reports(reports[0] if len(reports) == 1 else named, learning_rate, beside)
    elif audits:
        content = of_audit(next(iter(audits.values())))
    elif spectra:
        content = of_spectrum(next(iter(spectra.values())), learning_rate)
    elif results and isinstance(results[0], Eigenvalues):
        return of_eigenvalues(results[0], learning_rate)
    else:
        raise UsageError("there is nothing to make a page of; give a file saved with --json")
    rate = rate_of((), learning_rate) if learning_rate is not None else content.learning_rate
    return replace(content, audits=audits, spectra=spectra, learning_rate=rate)

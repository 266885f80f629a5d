"""What a page is made from: reports, a comparison, an audit, a spectrum, the record of a study, whichever there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from spiritlevel.results import Report
from spiritlevel.results.cost import ResultCost
from spiritlevel.results.header import Headed
from spiritlevel.results.runs import Runs, runs_of
from spiritlevel.results.wording import shared_prefix_removed
from spiritlevel.values.errors import UsageError

if TYPE_CHECKING:
    from spiritlevel.results.audits import Audit
    from spiritlevel.results.compared import Comparison
    from spiritlevel.results.eigenpairs import Eigenvalues
    from spiritlevel.results.spectrum_result import Spectrum

PageKind = Literal["report", "reports", "comparison", "audit", "spectrum", "eigenvalues", "study"]
MOST_ONE_BY_ONE = 4
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class StudyRecord(Protocol):
    """What a page shows of a study: any record that has this, wherever studies are kept."""

    @property
    def study(self) -> Any: ...

    @property
    def size(self) -> str: ...

    @property
    def table(self) -> Any: ...

    @property
    def planned(self) -> int: ...

    @property
    def analysis(self) -> Mapping[str, Any]: ...

    @property
    def judgements(self) -> tuple[Any, ...]: ...

    @property
    def command(self) -> str: ...

    @property
    def finished(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    def behind(self, judgement: Any) -> str: ...


@dataclass(frozen=True)
class PageContent:
    """The results one page shows; sections appear for what is there.

    ``learning_rate`` draws the line 2/lr, above which gradient descent does not settle.
    """

    reports: Mapping[str, Report] = field(default_factory=dict)  # by label
    comparison: Comparison | None = None
    audits: Mapping[str, Audit] = field(default_factory=dict)
    spectra: Mapping[str, Spectrum] = field(default_factory=dict)
    eigenvalues: Mapping[str, Eigenvalues] = field(default_factory=dict)
    studies: tuple[StudyRecord, ...] = ()
    learning_rate: float | None = None
    failures: Mapping[str, str] = field(default_factory=dict)  # networks that could not be measured, and why
    beside: Comparison | None = None  # what the values of reports on the same samples say of each other

    @property
    def kind(self) -> PageKind:
        """What the first screen is about."""
        if self.comparison is not None:
            return "comparison"
        if self.several:
            return "reports"
        if self.reports and any(audit.base is self.first for audit in self.audits.values()):
            return "audit"
        if self.spectra and not self.reports:
            return "spectrum"
        if self.reports:
            return "report"
        if self.eigenvalues:
            return "eigenvalues"
        if self.studies:
            return "study"
        raise UsageError("there is nothing to make a page of; give a report, a comparison, an audit or a spectrum")

    @cached_property
    def runs(self) -> Runs:
        """Which runs the networks are of, and where in them."""
        return runs_of(self.reports)

    @property
    def one_training(self) -> bool:
        """Whether the networks are of one run, so that the first leads to the last."""
        return self.runs.in_training and not self.runs.several

    @property
    def ranked(self) -> Comparison | None:
        """The networks held against each other, where they are too many to stand side by side."""
        if self.comparison is not None:
            return self.comparison if len(self.reports) > MOST_ONE_BY_ONE else None
        return self.beside

    @property
    def several(self) -> bool:
        """Whether there is more than one network."""
        return len(self.reports) > 1

    @property
    def first(self) -> Report:
        """The first report."""
        return next(iter(self.reports.values()))

    @property
    def measures(self) -> list[str]:
        """All measures, in the order of the reports."""
        return list(dict.fromkeys(name for report in self.reports.values() for name in report))

    @property
    def cost_of_whole(self) -> list[ResultCost]:
        """What the comparison and the audits cost in all, where they were made and not only read from reports."""
        return [each.cost for each in (self.comparison, *self.audits.values()) if each is not None and each.cost]

    @property
    def cost(self) -> ResultCost:
        """What everything on the page cost; the report an audit or a comparison began with is part of it."""
        counted = {id(audit.base) for audit in self.audits.values() if audit.cost is not None}
        if self.comparison is not None and self.comparison.cost is not None:
            counted |= {id(report) for report in self.reports.values()}
        reports = [*self.reports.values(), *(audit.base for audit in self.audits.values())]
        alone = {id(each): each.header.cost for each in reports if id(each) not in counted}
        spectral: list[Headed] = [*self.spectra.values(), *self.eigenvalues.values()]
        alone |= {id(each): each.header.cost for each in spectral}
        return ResultCost.of_all([*self.cost_of_whole, *alone.values()])

    @property
    def letters(self) -> dict[str, str]:
        """A letter for each network, where names are too long."""
        return {label: LETTERS[i] if i < len(LETTERS) else str(i + 1) for i, label in enumerate(self.reports)}

    @property
    def shown(self) -> dict[str, Report]:
        """The networks that are shown one by one: all of a few, of many the first and the last.

        That is in training where they are of one run, else by the first measure that ranks them.
        """
        if self.kind in ("reports", "comparison") and len(self.reports) > MOST_ONE_BY_ONE:
            rankings = {} if self.ranked is None or self.one_training else self.ranked.rankings
            labels = next((ranking.order for ranking in rankings.values()), tuple(self.reports))
            return {label: self.reports[label] for label in (labels[0], labels[-1])}
        return dict(self.reports)

    def title(self, name: str) -> str:
        """Return a measure or layer quantity in words."""
        for report in self.reports.values():
            if name in report.titles:
                return report.titles[name]
        from spiritlevel.measures.registry import MEASURES

        return MEASURES[name].title if name in MEASURES else name.replace("_", " ")

    def words(self, name: str) -> str:
        """Return a measure or layer quantity as it stands inside a sentence."""
        from spiritlevel.measures.registry import words_of

        return words_of(name, self.title(name))


def of_reports(
    reports: Report | Iterable[Report] | Mapping[str, Report],
    learning_rate: float | None = None,
    beside: Comparison | None = None,
) -> PageContent:
    """Return the content of one report or of several; ``beside`` is what they say of each other, where it is known."""
    if isinstance(reports, Report):
        return PageContent({reports.header.label: reports}, learning_rate=rate_of([reports], learning_rate))
    if isinstance(reports, Mapping):
        labelled = dict(reports)
    else:
        found = list(reports)
        labelled = dict(zip(distinct_labels([report.header.label for report in found]), found))
    if not labelled:
        raise UsageError("there is no report to make a page of; give at least one")
    rate = rate_of(labelled.values(), learning_rate)
    from spiritlevel.analyses.beside import ranked_beside

    return PageContent(labelled, learning_rate=rate, beside=beside or ranked_beside(labelled))


def of_comparison(comparison: Comparison) -> PageContent:
    """Return the content of a comparison and of the reports in it."""
    return PageContent(comparison.reports, comparison=comparison, learning_rate=rate_of(comparison.reports.values()))


def of_audit(audit: Audit) -> PageContent:
    """Return the content of an audit and of the report it began with."""
    label = audit.base.header.label
    return PageContent({label: audit.base}, audits={label: audit})


def of_spectrum(spectrum: Spectrum, learning_rate: float | None = None) -> PageContent:
    """Return the content of a spectrum."""
    rate = learning_rate if learning_rate is not None else spectrum.header.learning_rate
    return PageContent(spectra={spectrum.header.label: spectrum}, learning_rate=_checked(rate))


def of_eigenvalues(found: Eigenvalues, learning_rate: float | None = None) -> PageContent:
    """Return the content of some eigenvalues."""
    return PageContent(eigenvalues={found.header.label: found}, learning_rate=_checked(learning_rate))


def of_studies(records: Iterable[StudyRecord]) -> PageContent:
    """Return the content of studies."""
    return PageContent(studies=tuple(records))


def rate_of(reports: Iterable[Report], given: float | None = None) -> float | None:
    """Return the learning rate that was given, or the one all reports name."""
    if given is not None:
        return _checked(given)
    found = {report.header.learning_rate for report in reports}
    return _checked(found.pop()) if len(found) == 1 else None


def _checked(rate: Any) -> float | None:
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < float("inf"):
        raise UsageError(f"the learning rate must be a positive number, not {rate!r}")
    return float(rate)


def distinct_labels(labels: list[str]) -> list[str]:
    """Return labels that are all different, without the folders they share."""
    if len(set(labels)) == len(labels):
        return shared_prefix_removed(labels)
    return [f"{position + 1}: {label}" for position, label in enumerate(labels)]

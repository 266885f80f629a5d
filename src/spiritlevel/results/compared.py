"""A finished comparison: every measure side by side, who is flatter, whether that holds; as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from spiritlevel.results import Report, levels, records
from spiritlevel.results.base import ResultBase
from spiritlevel.results.contrasts import contrast_words
from spiritlevel.results.cost import ResultCost, read_cost
from spiritlevel.results.numerals import MISSING, percent, plain, value_text
from spiritlevel.results.ranking import Ranking, ranking_of
from spiritlevel.results.rows import ComparisonRow, Margins, read_row
from spiritlevel.results.runs import Runs, runs_of
from spiritlevel.results.wording import Footnotes, data_words, number_of
from spiritlevel.values.cleaning import Cleaned, for_terminal
from spiritlevel.values.rich_tables import new_table

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_SIDE_BY_SIDE = 4  # networks as columns; more of them are rows


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(ResultBase):
    """Two or more networks on the same data, measure by measure.

    Printed, it is the table a terminal shows; ``figure()`` draws the ratios, of many networks their curves or their
    order.

    Attributes
    ----------
    reports : dict of str to Report
        The networks' reports, by label.
    rows : dict of str to ComparisonRow
        By measure, the contrasts of all pairs and whether the ordering holds under rescaling.
    reading : list of str
        The comparison in two sentences.
    headings : list of str
        What must be said before any number.
    notes : list of str
        What must be known beside the numbers.
    agreement : dict
        How many pairs of decided measures name one network.
    margin_bins : list of float
        The edges of the bins of output margins.
    margins : dict of str to Margins
        The distribution of each network's output margins on these bins.
    test : dict
        Loss and accuracy of each network on test data, where it was given.
    answer : list of str
        Which of three networks or more is flattest, with ties.
    cost : ResultCost
        Of the whole comparison; a report's header has that of its own measurement.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> data = sl.datasets.load("digits").subset(range(100))
    >>> networks = {f"seed {seed}": sl.nets.build("digits_mlp", seed=seed) for seed in (0, 1)}
    >>> reports = {name: sl.measure(net, data, "cheap") for name, net in networks.items()}
    >>> found = sl.compare(reports)
    >>> found
    <Comparison of seed 0 against seed 1: 8 measures, told apart by 2>
    >>> found.labels, found.flatter("aceht")
    (['seed 0', 'seed 1'], None)
    >>> found.rows["aceht"].between("seed 0", "seed 1").words
    '0.999 (0.995 to 1.00)'
    """

    kind: ClassVar[str] = "comparison"
    main_figure: ClassVar[str] = "ratios"
    levels = levels.COMPARISON
    reports: dict[str, Report]
    rows: dict[str, ComparisonRow]
    reading: list[str]
    headings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    agreement: dict[str, Any] = field(default_factory=dict)
    margin_bins: list[float] = field(default_factory=list)
    margins: dict[str, Margins] = field(default_factory=dict)
    test: dict[str, dict[str, Any]] = field(default_factory=dict)
    answer: list[str] = field(default_factory=list)
    cost: ResultCost | None = None  # of the whole comparison; a report's header has that of its own measurement

    @property
    def labels(self) -> list[str]:
        """The networks' names; ratios are each of the others over the first."""
        return list(self.reports)

    @cached_property
    def runs(self) -> Runs:
        """Which runs the networks are of, and where in them."""
        return runs_of(self.reports)

    @cached_property
    def rankings(self) -> dict[str, Ranking]:
        """The networks in the order of each measure that has a direction, with letters for ties."""
        found = {name: ranking_of(name, self.reports, row.contrasts) for name, row in self.rows.items()}
        return {name: ranking for name, ranking in found.items() if ranking is not None}

    @property
    def together(self) -> str:
        """For how many pairs of a measure an interval holds at once, in words that follow "95%"; nothing for one."""
        pairs = max((len(row.contrasts) for row in self.rows.values()), default=0)
        if pairs <= 1:
            return ""
        if not self.answer and self.rankings:  # a file of version 0.2
            return " for each pair by itself"
        return f" for all {pairs:,} pairs of a measure at once (Bonferroni)"

    def flatter(self, measure: str) -> str | None:
        """Return the network that is flatter than all others by a measure, None where that is not decided.

        Parameters
        ----------
        measure : str
            The measure.

        Returns
        -------
        str or None
            The network's label.
        """
        return self.rows[measure].flattest

    def _usual_figure(self) -> str:
        if len(self.labels) <= MOST_SIDE_BY_SIDE:
            return self.main_figure
        return "curves" if self.runs.in_training else "ranks"

    # --- for the eye -----------------------------------------------------------------------------------------------

    def table(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        labels = self.labels
        if len(labels) > MOST_SIDE_BY_SIDE:
            return self._table_of_many()
        against = f"{labels[0]} against {labels[1]}" if len(labels) == 2 else " · ".join(labels)
        parts: list[RenderableType] = [Text(against, style="bold")]
        shared = dict.fromkeys(
            f"{report.header.model or 'network'} on {data_words(report)}" for report in self.reports.values()
        )
        parts += [Text(line) for line in shared]
        parts += [Text(line, style="bold yellow") for line in self.headings if line not in self.reading]
        parts += [Text(" ".join(self.reading), style="bold"), *self._tables()]
        parts += [Text(line, style="dim") for line in self.notes]
        return Cleaned(Group(*parts))

    def _table_of_many(self) -> RenderableType:
        """Return a row a network and a row a measure, which no number of networks makes too wide."""
        from rich.console import Group
        from rich.text import Text

        from spiritlevel.results import many

        holds = new_table("measure", "flattest of all", "does the ordering hold?")
        for row in self.rows.values():
            cells = (row.title, row.flattest or MISSING, row.holding.words)
            holds.add_row(*(Text(for_terminal(cell)) for cell in cells))
        above = [Text(line, style="bold yellow") for line in self.headings if line not in self.reading]
        return Cleaned(
            Group(
                *above,
                many.table(self),
                holds,
                *(Text(line) for line in self.reading),
                *(Text(line, style="dim") for line in self.notes),
            )
        )

    @property
    def in_short(self) -> str:
        """The networks and how many measures tell some of them apart."""
        some = len(self.labels) <= MOST_SIDE_BY_SIDE
        networks = " against ".join(self.labels) if some else number_of(len(self.labels), "network")
        told = sum(any(contrast.decided for contrast in row.contrasts) for row in self.rows.values())
        return f"{networks}: {number_of(len(self.rows), 'measure')}, told apart by {told}"

    def _tables(self) -> list[RenderableType]:
        from rich.text import Text

        labels, footnotes = self.labels, Footnotes()
        pairs = len(labels) == 2
        state = new_table("")
        for label in labels:
            state.add_column(Text(for_terminal(label)), justify="right", overflow="fold")
        for name, numbers in self._state():
            state.add_row(name, *numbers)
        table = new_table("measure")
        heads = [*labels, *(f"{label} ÷ {labels[0]} (95%)" for label in labels[1:])]
        for head in heads:
            table.add_column(Text(for_terminal(head)), justify="right", overflow="fold")
        table.add_column("flatter" if pairs else "flattest", overflow="fold")
        table.add_column("does the ordering hold?", overflow="fold")
        for name, row in self.rows.items():
            shown = for_terminal(name)
            title = Text(for_terminal(row.title))
            title = title if row.title == name else title.append("\n").append(shown, style="dim")
            values = [
                f"{value_text(report[name])} {footnotes.mark(report[name], label)}".rstrip()
                for label, report in self.reports.items()
            ]
            ratios = [contrast_words(row.between(labels[0], label)) for label in labels[1:]]
            ranking = None if pairs else self.rankings.get(name)
            cells = [Text(for_terminal(each)) for each in (*values, *ratios, row.flattest or MISSING)]
            if ranking is not None:
                cells[-1].append("\n").append(for_terminal(ranking.words))
            table.add_row(title, *cells, Text(for_terminal(row.holding.words)))
        below = [*footnotes.lines(), *self._legend()]
        return [state, table, *(Text(line) for line in below)]

    def _state(self) -> list[tuple[str, list[str]]]:
        heads = {label: report.header for label, report in self.reports.items()}
        lines = [("loss", [plain(head.loss, 3) for head in heads.values()])]
        if any(head.accuracy is not None for head in heads.values()):
            lines.append(("accuracy", [percent(head.accuracy) for head in heads.values()]))
        for key, words in (("loss", "test loss"), ("accuracy", "test accuracy")):
            if any(entry.get(key) is not None for entry in self.test.values()):
                show = percent if key == "accuracy" else (lambda value: plain(value, 3))
                lines.append((words, [show(self.test.get(label, {}).get(key)) for label in heads]))
        lines.append(("gradient norm", [plain(head.gradient_norm, 2) for head in heads.values()]))
        for key, words in (("median", "output margin, median"), ("skewness", "output margin, skewness")):
            if self.margins:
                lines.append((words, [plain(self.margins[label].summary.get(key), 3) for label in heads]))
        return lines

    def _legend(self) -> list[str]:
        lines = [f"± is one standard error of the computation; intervals are 95%{self.together}."]
        contrasts = [contrast for row in self.rows.values() for contrast in row.contrasts]
        without = [row.title for row in self.rows.values() if any(c.over_samples == "none" for c in row.contrasts)]
        if any(contrast.over_samples in ("paired", "grouped") for contrast in contrasts):
            lines[0] = lines[0][:-1] + ", over the same samples for both."
        if without:
            shown = ", ".join(without[:6]) + (f" and {len(without) - 6} more" if len(without) > 6 else "")
            lines.append(f"Without an error over samples, so decided on these samples alone: {shown}.")
        by_scale = [
            row.title
            for row in self.rows.values()
            if row.holding.scales_with_outputs and row.holding.kind == "invariant"
        ]
        if by_scale:
            lines.append(
                f"Changed by scaling the outputs, which keeps every predicted class: {', '.join(by_scale[:6])}."
            )
        return lines

    # --- for other programs ----------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        return {
            "schema_version": records.SCHEMA_VERSION,
            "kind": self.kind,
            "labels": self.labels,
            "reading": list(self.reading),
            "answer": list(self.answer),
            "headings": list(self.headings),
            "notes": list(self.notes),
            "agreement": records.as_json(self.agreement),
            "rows": {name: records.as_json(row.record()) for name, row in self.rows.items()},
            "margins": {
                "bins": records.as_json(self.margin_bins),
                "networks": {label: records.as_json(asdict(margins)) for label, margins in self.margins.items()},
            },
            "test": records.as_json(self.test),
            "cost": None if self.cost is None else self.cost.record(),
            "reports": {label: report.record() for label, report in self.reports.items()},
        }

    @classmethod
    def _read(cls, record: dict[str, Any], source: str) -> Self:
        return cls(
            reports={label: Report.from_record(part, source) for label, part in record["reports"].items()},
            rows={name: read_row(entry) for name, entry in record["rows"].items()},
            reading=record["reading"],
            headings=record["headings"],
            notes=record["notes"],
            agreement=record["agreement"],
            margin_bins=record["margins"]["bins"],
            margins={label: Margins(**entry) for label, entry in record["margins"]["networks"].items()},
            test=record["test"],
            answer=record.get("answer", []),
            cost=read_cost(record.get("cost")),
        )

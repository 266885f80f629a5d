"""What an audit found: verdicts by measure and symmetry, contradictions, the T_α sweep; as a table and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from spiritlevel.results import Report, levels, records
from spiritlevel.results.base import ResultBase
from spiritlevel.results.cost import ResultCost, read_cost
from spiritlevel.results.numerals import MISSING, plain
from spiritlevel.results.verdicts import Sweep, Verdict, read_sweep, read_verdict, sweep_record, verdict_record
from spiritlevel.results.wording import header_lines, number_of, subject_words
from spiritlevel.values.cleaning import Cleaned, for_terminal
from spiritlevel.values.rich_tables import new_table
from spiritlevel.values.symmetries import SYMMETRY_WORDS

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, kw_only=True, repr=False)
class Audit(ResultBase):
    """Verdicts by measure and symmetry, from measuring; ``contradictions`` with what the measures declare.

    Printed, it is the table a terminal shows.

    Attributes
    ----------
    verdicts : dict
        A `Verdict` by measure and symmetry.
    base : Report
        The network as it is.
    strengths : dict
        The ranges from which factors were drawn, by name.
    sweep : Sweep
        Values along T_α, the outputs scaled by α; None where it was not asked for or could not be made.
    one_neuron : dict
        Sizes of the two matrices around one neuron while it is rescaled further and further.
    found : list of str
        The symmetries of the network, in words.
    left_alone : list of str
        Operations that leave no freedom, with the reason.
    untraced : str
        Why the network could not be traced, where it could not.
    refused : dict of str to str
        What could not be applied, with the reason.
    copied_from : str
        The network's own dtype, where a copy in another one was audited.
    cost : ResultCost
        Of the whole audit; that of its first measurement alone is in the report's header.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=50)
    >>> found = sl.audit(problem, "weight_norm", strengths=["usual"], alphas=())
    >>> found.found[0]
    '1: 1 factor, exact'
    >>> for symmetry, verdict in found.verdicts["weight_norm"].items():
    ...     print(symmetry, verdict.words)
    layer_rescaling changes, × 3.1
    neuron_rescaling changes, × 73
    output_scaling —
    permutation invariant
    >>> found.contradictions
    []
    """

    kind: ClassVar[str] = "audit"
    main_figure: ClassVar[str] = "audit"
    levels = levels.AUDIT
    verdicts: dict[str, dict[str, Verdict]]
    base: Report
    strengths: dict[str, tuple[float, float]]
    sweep: Sweep | None = None
    one_neuron: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    found: list[str] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    untraced: str = ""
    refused: dict[str, str] = field(default_factory=dict)
    copied_from: str | None = None
    cost: ResultCost | None = None  # of the whole audit; that of its first measurement alone is in the report's header

    @property
    def contradictions(self) -> list[str]:
        """Declared invariances that a measured change contradicts, one sentence each."""
        found = [verdict.contradiction for row in self.verdicts.values() for verdict in row.values()]
        return [text for text in found if text]

    @property
    def unchanged_here(self) -> list[str]:
        """Measures declared to change in general that did not change in this network."""
        return [
            f"{verdict.measure} is not invariant to {SYMMETRY_WORDS.get(verdict.symmetry, verdict.symmetry)} in "
            "general, and did not change here"
            for row in self.verdicts.values()
            for verdict in row.values()
            if verdict.declared is False and verdict.verdict == "invariant"
        ]

    def verdict(self, measure: str, symmetry: str) -> str:
        """Return the verdict in one word: invariant, changes, undecided, not measured or not found.

        Parameters
        ----------
        measure : str
            The measure.
        symmetry : str
            layer_rescaling, neuron_rescaling, output_scaling or permutation.

        Returns
        -------
        str
            The verdict.
        """
        return self.verdicts[measure][symmetry].verdict

    # --- for the eye -----------------------------------------------------------------------------------------------

    @property
    def in_short(self) -> str:
        """The network, how much was tried, and whether a declaration was contradicted."""
        symmetries = {name for row in self.verdicts.values() for name in row}
        tried = f"{number_of(len(self.verdicts), 'measure')} under {number_of(len(symmetries), 'symmetry')}"
        against = number_of(len(self.contradictions), "contradiction") if self.contradictions else "no contradiction"
        return f"{subject_words(self.base)}: {tried}, {against}"

    def table(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        parts: list[RenderableType] = [Text(line) for line in header_lines(self.base)]
        if self.copied_from:
            parts.append(Text(f"Audited on a {self.base.header.dtype} copy of the {self.copied_from} network."))
        parts += [Text(f"CONTRADICTION: {text}", style="bold red") for text in self.contradictions]
        parts.append(self._verdict_table())
        ranges = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in self.strengths.items())
        parts.append(
            Text(
                f"Factors: {ranges}; changes shown are those of the usual ones, or α = 10. — marks what was not found."
            )
        )
        if self.sweep is not None:
            parts += [Text("Outputs scaled by α through the last layer (T_α)"), self._sweep_table(self.sweep)]
        if self.one_neuron:
            parts += [Text("One neuron's incoming weights divided, its outgoing ones multiplied"), self._neuron_table()]
        parts += [Text(line, style="dim") for line in self.notes]
        return Cleaned(Group(*parts))

    @property
    def notes(self) -> list[str]:
        """What could not be done and what was left alone, a line each."""
        lines = [self.untraced] if self.untraced else []
        lines += [f"left alone: {text}" for text in self.left_alone]
        lines += [f"{what} was not applied: {reason}" for what, reason in self.refused.items()]
        reasons = {
            trial.reason: trial.measure
            for row in self.verdicts.values()
            for verdict in row.values()
            for trial in verdict.trials
            if trial.reason
        }
        lines += [f"{measure} was not measured {reason}" for reason, measure in reasons.items()]
        return lines + [f"{text}." for text in self.unchanged_here]

    def _verdict_table(self) -> RenderableType:
        from rich.text import Text

        symmetries = [name for name in SYMMETRY_WORDS if any(name in row for row in self.verdicts.values())]
        table = new_table("measure", *(SYMMETRY_WORDS[name] for name in symmetries))
        for name, row in self.verdicts.items():
            title = self.base.title(name)
            label = Text(for_terminal(title))
            label = label if title == name else label.append(f"  {for_terminal(name)}", style="dim")
            cells = [_verdict_cell(row[symmetry]) if symmetry in row else Text(MISSING) for symmetry in symmetries]
            table.add_row(label, *cells)
        return table

    def _sweep_table(self, sweep: Sweep) -> RenderableType:
        from rich.text import Text

        table = new_table("", *(f"α = {alpha:g}" for alpha in sweep.alphas))
        table.add_row("loss", *(plain(loss, 3) for loss in sweep.losses))
        for name, estimates in sweep.values.items():
            cells = [plain(e.value, 3) if e.status in ("ok", "budget_spent") else MISSING for e in estimates]
            table.add_row(Text(for_terminal(sweep.titles.get(name, name))), *cells)
        return table

    def _neuron_table(self) -> RenderableType:
        from rich.text import Text

        factors = self.one_neuron.get("", {}).get("factor", [])
        table = new_table("layer", "", *(f"× {factor:g}" for factor in factors))
        for layer, quantities in self.one_neuron.items():
            for quantity, values in quantities.items():
                if layer:  # the factors themselves belong to none
                    words = Text(for_terminal(self.base.title(quantity)))
                    table.add_row(Text(for_terminal(layer)), words, *(plain(value, 4) for value in values))
        return table

    # --- for other programs ----------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        return {
            "schema_version": records.SCHEMA_VERSION,
            "kind": self.kind,
            "base": self.base.record(),
            "strengths": records.as_json(self.strengths),
            "copied_from": self.copied_from,
            "found": list(self.found),
            "left_alone": list(self.left_alone),
            "untraced": self.untraced,
            "refused": dict(self.refused),
            "contradictions": self.contradictions,
            "verdicts": {
                name: {symmetry: verdict_record(verdict) for symmetry, verdict in row.items()}
                for name, row in self.verdicts.items()
            },
            "sweep": None if self.sweep is None else sweep_record(self.sweep),
            "one_neuron": records.as_json(self.one_neuron),
            "cost": None if self.cost is None else self.cost.record(),
        }

    @classmethod
    def _read(cls, record: dict[str, Any], source: str) -> Self:
        return cls(
            verdicts={
                name: {symmetry: read_verdict(name, symmetry, entry) for symmetry, entry in row.items()}
                for name, row in record["verdicts"].items()
            },
            base=Report.from_record(record["base"], source),
            strengths={name: (low, high) for name, (low, high) in record["strengths"].items()},
            sweep=None if record["sweep"] is None else read_sweep(record["sweep"]),
            one_neuron=record["one_neuron"],
            found=record["found"],
            left_alone=record["left_alone"],
            untraced=record["untraced"],
            refused=record["refused"],
            copied_from=record["copied_from"],
            cost=read_cost(record.get("cost")),
        )


def _verdict_cell(verdict: Verdict) -> Any:
    from rich.text import Text

    style = (
        "bold red" if verdict.contradiction else {"invariant": "green", "changes": "yellow"}.get(verdict.verdict, "")
    )
    return Text(verdict.words + (" (!)" if verdict.contradiction else ""), style=style)

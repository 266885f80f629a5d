"""What an audit found: verdicts by measure and symmetry, contradictions, the T_α sweep; as a table and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from spiritlevel.results import Report, levels, records
from spiritlevel.results.base import ResultBase
from spiritlevel.results.cost import ResultCost, read_cost
from spiritlevel.results.numerals import MISSING, plain
from spiritlevel.results.wording import header_lines, number_of, subject_words
from spiritlevel.values.cleaning import Cleaned, for_terminal
from spiritlevel.values.estimate import Estimate
from spiritlevel.values.rich_tables import new_table
from spiritlevel.values.symmetries import SYMMETRY_WORDS

if TYPE_CHECKING:
    from rich.console import RenderableType

Decision = Literal["invariant", "changes", "undecided", "not measured", "not found"]
# The trials whose change is shown where they decided.
_USUAL = ("usual", "α=10")


@dataclass(frozen=True)
class Trial:
    """One measure before and after one change of the network."""

    measure: str
    symmetry: str
    strength: str
    before: Estimate
    after: Estimate
    verdict: Decision
    reason: str = ""

    @property
    def factor(self) -> float | None:
        """After over before, None where that has no meaning."""
        a, b = self.before.value, self.after.value
        return b / a if self.verdict != "not measured" and a * b > 0 else None


@dataclass(frozen=True)
class Verdict:
    """What the trials say about one measure under one symmetry, beside what the measure declares."""

    measure: str
    symmetry: str
    verdict: Decision
    declared: bool | None
    trials: tuple[Trial, ...] = ()

    @property
    def shown(self) -> Trial | None:
        """The trial that is shown: the usual strength where it decided, else the one that changed most."""
        decisive = [trial for trial in self.trials if trial.verdict == self.verdict]
        usual = [trial for trial in decisive if trial.strength in _USUAL]
        ranked = usual or sorted(decisive, key=_size_of_change)
        return ranked[-1] if ranked else None

    @property
    def factor(self) -> float | None:
        """By what the value was multiplied in the trial that is shown, where it changed."""
        return self.shown.factor if self.verdict == "changes" and self.shown is not None else None

    @property
    def contradiction(self) -> str:
        """What contradicts the declaration, or nothing: declared invariant, measured to change."""
        if self.declared is not True or self.verdict != "changes" or self.shown is None:
            return ""
        trial = self.shown
        how = f" ({trial.strength})" if trial.strength else ""
        what = SYMMETRY_WORDS.get(self.symmetry, self.symmetry)
        return (
            f"{self.measure} is declared invariant to {what}, but went from "
            f"{plain(trial.before.value)} to {plain(trial.after.value)}{how}"
        )

    @property
    def words(self) -> str:
        """The verdict in a few words."""
        if self.verdict == "changes":
            if self.factor is not None:
                return f"changes, × {plain(self.factor, 2)}"
            trial = self.shown
            return (
                "changes"
                if trial is None
                else f"changes, {plain(trial.before.value, 2)} → {plain(trial.after.value, 2)}"
            )
        if self.verdict == "undecided":
            return "undecided within error"
        return {"not found": MISSING}.get(self.verdict, self.verdict)


def _size_of_change(trial: Trial) -> float:
    factor = trial.factor
    return abs(trial.after.value - trial.before.value) if factor is None else max(factor, 1 / factor)


@dataclass(frozen=True)
class Sweep:
    """Values along T_α, one for each α in order."""

    alphas: list[float]
    values: dict[str, list[Estimate]]
    titles: dict[str, str]
    losses: list[float]
    accuracies: list[float | None]


@dataclass(frozen=True, kw_only=True, repr=False)
class Audit(ResultBase):
    """Verdicts by measure and symmetry, from measuring; ``contradictions`` with what the measures declare."""

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
        """Return the verdict in one word: invariant, changes, undecided, not measured or not found."""
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
        """Return the audit for rich's ``print``."""
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
        """Return the audit as plain JSON values."""
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
                name: {symmetry: _verdict_record(verdict) for symmetry, verdict in row.items()}
                for name, row in self.verdicts.items()
            },
            "sweep": None if self.sweep is None else _sweep_record(self.sweep),
            "one_neuron": records.as_json(self.one_neuron),
            "cost": None if self.cost is None else self.cost.record(),
        }

    @classmethod
    def _read(cls, record: dict[str, Any], source: str) -> Self:
        return cls(
            verdicts={
                name: {symmetry: _read_verdict(name, symmetry, entry) for symmetry, entry in row.items()}
                for name, row in record["verdicts"].items()
            },
            base=Report.from_record(record["base"], source),
            strengths={name: (low, high) for name, (low, high) in record["strengths"].items()},
            sweep=None if record["sweep"] is None else _read_sweep(record["sweep"]),
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


def _verdict_record(verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.verdict,
        "factor": records.as_json(verdict.factor),
        "declared": verdict.declared,
        "words": verdict.words,
        "trials": [
            {
                "strength": trial.strength,
                "before": records.estimate_record(trial.before),
                "after": records.estimate_record(trial.after),
                "verdict": trial.verdict,
                "reason": trial.reason,
            }
            for trial in verdict.trials
        ],
    }


def _read_verdict(name: str, symmetry: str, entry: dict[str, Any]) -> Verdict:
    trials = tuple(
        Trial(
            name,
            symmetry,
            trial["strength"],
            records.read_estimate(trial["before"]),
            records.read_estimate(trial["after"]),
            trial["verdict"],
            trial["reason"],
        )
        for trial in entry["trials"]
    )
    return Verdict(name, symmetry, entry["verdict"], entry["declared"], trials)


def _sweep_record(sweep: Sweep) -> dict[str, Any]:
    return {
        "alphas": records.as_json(sweep.alphas),
        "losses": records.as_json(sweep.losses),
        "accuracies": records.as_json(sweep.accuracies),
        "titles": dict(sweep.titles),
        "values": {name: [records.estimate_record(e) for e in row] for name, row in sweep.values.items()},
    }


def _read_sweep(entry: dict[str, Any]) -> Sweep:
    values = {name: [records.read_estimate(e) for e in row] for name, row in entry["values"].items()}
    return Sweep(entry["alphas"], values, entry["titles"], entry["losses"], entry["accuracies"])

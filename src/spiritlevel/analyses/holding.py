"""Whether an ordering holds: decided by measuring on changed copies of the networks, or by what a measure declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spiritlevel.analyses.auditing import ALSO, Strengths, copy_dtype, examine
from spiritlevel.analyses.changed_copies import ChangedCopies, of_measures
from spiritlevel.analyses.changed_workbench import Rescaler
from spiritlevel.analyses.equivalents import Equivalents
from spiritlevel.analyses.measure_settings import toleranced_settings
from spiritlevel.analyses.measuring import measured as measure_also
from spiritlevel.analyses.measuring import workbench_of
from spiritlevel.analyses.rescaling_directions import Side
from spiritlevel.analyses.reversal import find_reversal
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.process.memory_limit import free_bytes
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.workbench import Workbench
from spiritlevel.results import Report
from spiritlevel.results.reversals import Reversal
from spiritlevel.results.rows import Holding, HoldingKind
from spiritlevel.results.verdicts import Verdict
from spiritlevel.values.symmetries import RESCALINGS, SYMMETRIES, SYMMETRY_WORDS

# Of the free memory, what networks' quantities may take while others are measured, and the bytes a parameter that they
# are: a diagonal and squares in float64, an eigenvector.
KEPT_SHARE, KEPT_BYTES = 0.3, 24


def keep_what_fits(
    known: dict[str, tuple[Report, Workbench]],
    label: str,
    chosen: list[Measure],
    settings: dict[str, Any],
    *,
    seed: int,
    tolerance: float | None,
) -> None:
    """Let go of what a network's copies would follow from where many large ones are compared; it is found again then.

    Vectors that searches multiplied are kept of two networks alone.
    """
    report, bench = known[label]
    bench.span = bench.span if len(known) <= 2 else None
    if KEPT_BYTES * bench.problem.size * len(known) > KEPT_SHARE * free_bytes(torch.device("cpu")):
        values = toleranced_settings(chosen, of_measures(chosen, settings), tolerance)
        known[label] = report, workbench_of(bench.problem, chosen, values, seed=seed, tolerance=tolerance, also=ALSO)


class Check:
    """Decides by measuring on changed copies of the networks whether an ordering holds."""

    def __init__(
        self,
        problems: Mapping[str, OpenProblem],
        measured: Mapping[str, tuple[Report, Workbench]],
        chosen: list[Measure],
        settings: dict[str, Any],
        strengths: Strengths,
        *,
        search: bool,
        dtype: str | torch.dtype | None,
        seed: int,
        tolerance: float | None,
    ) -> None:
        self.search = search
        precision = copy_dtype(dtype)
        self.sides: dict[str, Side] = {}
        for label, problem in problems.items():
            equivalents = Equivalents(problem, precision)
            report, bench = measured[label]
            if equivalents.problem is not problem:
                report, bench = measure_also(
                    equivalents.problem, chosen, settings=settings, seed=seed, tolerance=tolerance, also=ALSO
                )
            copies = ChangedCopies(Rescaler(equivalents, bench), report, settings, seed=seed, tolerance=tolerance)
            self.sides[label] = Side(label, copies)
        self.verdicts: list[dict[str, dict[str, Verdict]]] = []
        self.refused: dict[str, str] = {}
        seen: set[str] = set()
        for label, side in self.sides.items():
            # Networks of one graph have the same symmetries: what changes under them is seen on the first.
            graph = f"{type(problems[label].model).__name__}\n{side.equivalents.found}"
            if graph in seen:
                continue
            seen.add(graph)
            verdicts, refused = examine(side.copies, chosen, strengths=strengths)
            self.verdicts.append(verdicts)
            self.refused.update(refused)

    def release(self) -> None:
        """Let go of the graphs that products kept."""
        for side in self.sides.values():
            side.copies.rescaler.release()

    @property
    def notes(self) -> list[str]:
        """What contradicts a declaration, or could not be tried."""
        found = [verdict for table in self.verdicts for row in table.values() for verdict in row.values()]
        lines = [f"Contradiction: {verdict.contradiction}." for verdict in found if verdict.contradiction]
        lines += [side.equivalents.found.reason for side in self.sides.values() if side.equivalents.found.reason]
        lines += [f"{what} was not applied: {why}" for what, why in self.refused.items()]
        return list(dict.fromkeys(lines))

    def holding(self, own: Measure, pair: tuple[str, str]) -> Holding:
        """Return whether the ordering of a pair by a measure survives every symmetry found in these networks."""
        verdicts = [table[own.name] for table in self.verdicts]
        changed = tuple(s for s in RESCALINGS if any(row[s].verdict == "changes" for row in verdicts))
        tried = [row[s].verdict for row in verdicts for s in RESCALINGS if row[s].verdict != "not found"]
        outputs = [row["output_scaling"].verdict for row in verdicts]
        scales = True if "changes" in outputs else False if "invariant" in outputs else None
        if changed:
            reversal = self._reversal(own, pair, changed) if self.search else None
            kind: HoldingKind = "changes" if reversal is None else "reversible"
            words = _changed_words(changed, reversal, self.search)
            return Holding(kind, words, True, changed, scales, reversal)
        # A function of the outputs alone cannot notice what keeps them.
        if scales and set(own.needs) == {"outputs"}:
            return Holding("scales_with_logits", "scales with the logits", True, (), True)
        if not tried:
            return Holding("not_tried", "no rescaling was found in these networks to try", True, (), scales)
        if set(tried) != {"invariant"}:
            return Holding("changes", "rescaling may change it: undecided within its error", True, (), scales)
        return Holding("invariant", "invariant to every rescaling found", True, (), scales)

    def _reversal(self, own: Measure, pair: tuple[str, str], changed: Sequence[str]) -> Reversal | None:
        sides = self.sides[pair[0]], self.sides[pair[1]]
        for symmetry in changed:  # a pair of layers is simpler to tell than a pattern of neurons
            found = find_reversal(own, sides, (SYMMETRIES[symmetry].kind,))
            if found is not None:
                return found
        return None


def _changed_words(changed: Sequence[str], reversal: Reversal | None, searched: bool) -> str:
    kept = "holds under rescaling of layers; " if "layer_rescaling" not in changed else ""
    if reversal is not None:
        return f"{kept}{reversal.words}"
    words = " and ".join(SYMMETRY_WORDS[each] for each in changed)
    return f"{kept}{words} changes it" + (
        "; no reversal was found" if searched else "; reversals were not searched for"
    )


def declared_holding(own: Measure | None) -> Holding:
    """Return what can be said from reports alone: what the measure declares, not checked on these networks."""
    if own is None:
        return Holding("not_tried", "not known: a measure of its own, and no network to try", False)
    answers = {symmetry: own.invariances.get(symmetry) for symmetry in RESCALINGS}
    changed = tuple(symmetry for symmetry, answer in answers.items() if answer is False)
    scales = None if own.invariances.get("output_scaling") is None else not own.invariances["output_scaling"]
    if changed:
        words = " and ".join(SYMMETRY_WORDS[each] for each in changed)
        return Holding("changes", f"{words} changes it; how much takes the networks", False, changed, scales)
    if not all(answers.values()):
        return Holding("not_tried", "not declared, and no network to try", False, (), scales)
    if scales and set(own.needs) == {"outputs"}:
        return Holding("scales_with_logits", "scales with the logits", False, (), True)
    return Holding("invariant", "invariant to every rescaling, as declared", False, (), scales)

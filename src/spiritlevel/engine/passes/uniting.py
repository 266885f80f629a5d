"""What each rank added up over its own batches in a curvature sweep, made the sums over all of the data."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spiritlevel.engine.passes.accumulating import Accumulators
from spiritlevel.engine.passes.linearity import Linearity
from spiritlevel.engine.passes.rules import Rules
from spiritlevel.engine.passes.sample_spread import SampleSpread
from spiritlevel.inputs.process.ranks import Ranks
from spiritlevel.inputs.row_buffer import RowBuffer

_ROWS = ("weights", "sample_traces", "sample_folds")  # of every sample


def unite_sums(sweep: Accumulators, group: Ranks, chosen: Tensor | None = None) -> None:
    """Take in what the other ranks added; of ``chosen`` samples the rows stand in the order of their places."""
    if not group.meets:
        return
    known = (list(sweep.sums), sweep.folds, sweep.exact_columns, sweep.column_count, sweep.spread is not None)
    begun = [told for told in group.meet("the sums", known) if told[0]]
    if not begun:
        return
    names, sweep.folds, sweep.exact_columns, _, spread = begun[0]
    sweep.column_count = max(told[3] for told in begun)
    if not sweep.sums:  # this rank had no batch
        sweep.prepare(names)
        if spread:
            sweep.spread = SampleSpread(sweep.owner)
    own = {"traces": sweep.traces, "moments": sweep.moments}
    for full, sums in sweep.sums.items():
        forms = {kind: values for kind, values in vars(sums).items() if kind != "trace" and values is not None}
        own |= {f"{kind} of {full}": values for kind, values in forms.items()}
    if sweep.spread is not None:
        own |= sweep.spread.sums()
    if len(sweep.places_taken):
        rows = {kind: getattr(sweep, kind) for kind in _ROWS}
        own |= {kind: _laid_out(buffer, sweep, chosen) for kind, buffer in rows.items() if len(buffer)}
    found, _ = group.united(own, device=sweep.problem.device)
    _take_over(sweep, found)
    if sweep.mean is not None:
        sweep.mean.unite(group)


def _laid_out(buffer: RowBuffer, sweep: Accumulators, chosen: Tensor | None) -> Tensor:
    rows, places = buffer.whole(), sweep.places_taken.whole()
    if chosen is not None:
        places = torch.searchsorted(chosen, places)
    whole = rows.new_zeros((sweep.problem.spent.samples if chosen is None else len(chosen), *rows.shape[1:]))
    whole[places.to(rows.device)] = rows
    return whole


def _take_over(sweep: Accumulators, found: Mapping[str, Tensor]) -> None:
    sweep.traces, sweep.moments = found["traces"], found["moments"]
    for full, sums in sweep.sums.items():
        sums.trace = sweep.traces[sweep.places[full]]
        for kind in vars(sums):
            if f"{kind} of {full}" in found:
                setattr(sums, kind, found[f"{kind} of {full}"])
    if sweep.spread is not None:
        sweep.spread.take_over(found)
    for kind in _ROWS:
        if kind in found:
            buffer = RowBuffer()
            buffer.add(found[kind])
            setattr(sweep, kind, buffer)


def unite_findings(rules: Rules, linearity: Linearity | None, group: Ranks) -> None:
    """Let what one rank saw fail count as failed on all: a rule, a layer's linearity."""
    if not group.meets:
        return
    exact = None if linearity is None else linearity.exact
    known = (None if rules.always is None else list(rules.always.items()), rules.all_fallbacks, exact)
    always, fallbacks, exacts = zip(*group.meet("the rules", known))
    seen = [dict(own) for own in always if own is not None]
    rules.always = {name: second for name, second in seen[0].items() if all(own.get(name) == second for own in seen)}
    rules.all_fallbacks = tuple(dict.fromkeys(full for own in fallbacks for full in own))
    if linearity is not None:
        linearity.exact = {name: all(own[name] for own in exacts) for name in linearity.exact}

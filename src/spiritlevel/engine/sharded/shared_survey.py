"""The first sweep over the data of all ranks: every rank looks at its own, and all learn what was found."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import torch
from torch import Tensor

from spiritlevel.engine.sharded.open_sharded import ShardedProblem
from spiritlevel.inputs.contents import slice_batch
from spiritlevel.inputs.survey import Survey, Surveyor, checked_outputs, differ


def take_shared_survey(problem: ShardedProblem) -> Survey:
    """Return what was found on all ranks, in their order; all checks are made on every rank."""
    surveyor, looked, coupled, seen = Surveyor(problem), False, False, 0
    with problem.session(), torch.no_grad(), problem.gathering.keeping_parts():
        for joint in problem.joint_batches("first sweep"):
            outputs = checked_outputs(problem, joint.batch)
            if not looked:  # once on every rank: they go in step
                half = (joint.batch.count + 1) // 2
                alone = problem.outputs(slice_batch(joint.batch.content, 0, half))
                coupled, looked = differ(alone, outputs[:half]), True
            if joint.counts:
                surveyor.add(joint.batch, outputs)
                seen += joint.batch.count
    problem.spent["forward"] += 1
    own, reason = None, ""
    try:
        own = surveyor.survey() if seen else None
    except Exception as error:
        reason = str(error)  # which all ranks are told
    if problem.company.anywhere(coupled) and not reason:
        reason = (
            "samples of a batch influence each other's outputs here (BatchNorm in training mode?), which cannot be "
            "measured for a sharded model; use mode='eval'"
        )
    problem.company.refuse_together(reason)
    told = problem.company.told(None if own is None else replace(own, outputs=None))
    survey = _joined([each for each in told if each is not None])
    return replace(survey, fingerprint=problem.data_fingerprint or survey.fingerprint)


def _joined(parts: list[Survey]) -> Survey:
    losses, weights = torch.cat([part.losses for part in parts]), torch.cat([part.weights for part in parts])
    correct: list[Tensor] = [part.correct for part in parts if part.correct is not None]
    prints = "".join(part.fingerprint for part in parts)
    return replace(
        parts[0],
        count=len(losses),
        total_weight=float(weights.sum()),
        losses=losses,
        weights=weights,
        correct=torch.cat(correct) if len(correct) == len(parts) else None,
        outputs=None,
        fingerprint=hashlib.blake2b(prints.encode(), digest_size=8).hexdigest() if len(parts) > 1 else prints,
    )

"""What the instrument says of a case, held against the truth: every number, and the model's state afterwards."""

from __future__ import annotations

import contextlib
import math
import os
import random
import traceback
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import spiritlevel as sl
from tests.attack.corpus import Case
from tests.attack.hazards import global_hook
from tests.attack.truth import Truth

EXACT = {torch.float64: 1e-8, torch.float32: 1e-4}
STANDARD_ERRORS = 5.0
TOLERANCE = 0.9  # at which sampling stops: the errors that are judged are those stated, so a few probes do
SETTINGS = {"hessian_top_eigenvalue.tolerance": 1e-3, "hessian_spectral_norm.tolerance": 1e-3}
DIFFERENCE = 0.02  # of a product that says it is a finite difference: where two steps of it agree
EIGENVALUE = 2e-3  # of the largest in magnitude: twice the default tolerance of the residual


@dataclass
class Failure:
    """One thing that must not happen."""

    seed: int
    what: str  # wrong, estimate, crash, state, refused, undefined
    quantity: str
    got: float | str
    truth: float | None
    label: str
    error: float | None
    traits: dict[str, Any]

    def record(self) -> dict[str, Any]:
        return asdict(self)


class Judge:
    """Collects what went wrong with one case, and counts what was compared."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.failures: list[Failure] = []
        self.compared = {"exact": 0, "estimated": 0, "refused": 0, "not ok": 0}
        self.tolerance = EXACT[next(case.model.parameters()).dtype]

    def fail(
        self, what: str, quantity: str, got: float | str, truth: float | None, label: str, error: float | None
    ) -> None:
        self.failures.append(Failure(self.case.seed, what, quantity, got, truth, label, error, self.case.traits))

    def value(self, quantity: str, got: float, truth: float, scale: float) -> None:
        """A number without any error: it must be right."""
        self.compared["exact"] += 1
        error = abs(got - truth) / max(abs(truth), scale, 1e-12)
        if not error <= self.tolerance:
            self.fail("wrong", quantity, got, truth, "exact", error)

    def tensor(self, quantity: str, got: Tensor, truth: Tensor, scale: float) -> None:
        self.compared["exact"] += 1
        error = float((got.double() - truth).norm()) / max(float(truth.norm()), scale, 1e-12)
        if not error <= self.tolerance:
            self.fail("wrong", quantity, float(got.double().norm()), float(truth.norm()), "exact", error)

    def estimate(self, quantity: str, found: sl.Estimate, truth: float | None, scale: float) -> None:
        """A number with its label."""
        label = f"{found.how}{' verified' if found.verified else ''} {found.status}"
        if found.status == "not_applicable":
            self.compared["refused"] += 1
            if self.case.policy == "right" and not self.case.coupled:
                self.fail("refused", quantity, found.reason, truth, label, None)
            return
        if found.status != "ok":
            self.compared["not ok"] += 1
            return
        if self.case.policy == "undefined":
            self.fail("undefined", quantity, found.value, None, label, None)
            return
        if truth is None:
            return
        floor = self.tolerance * max(abs(truth), scale, 1e-12)
        gap = abs(found.value - truth)
        if found.interval is not None and found.how == "estimated" and quantity in EIGENVALUES:
            self.compared["estimated"] += 1
            low, high = found.interval
            slack = floor + EIGENVALUE * scale
            if not low - slack <= truth <= high + slack:
                self.fail("estimate", quantity, found.value, truth, f"{label} [{low:.6g}, {high:.6g}]", gap / scale)
            return
        self.compared["exact" if found.how == "exact" else "estimated"] += 1
        allowed = floor + (0.0 if found.how == "exact" else STANDARD_ERRORS * found.stderr)
        if found.how == "lower_bound":
            gap = max(found.value - truth, 0.0)
        elif found.how == "upper_bound":
            gap = max(truth - found.value, 0.0)
        if not gap <= allowed:
            what = "wrong" if found.how == "exact" else "estimate"
            label += (
                "" if found.how == "exact" else f" ± {found.stderr:.3g}, {gap / (found.stderr or 1e-300):.1f} errors"
            )
            self.fail(what, quantity, found.value, truth, label, gap / max(abs(truth), scale, 1e-12))


EIGENVALUES = ("hessian_top_eigenvalue", "hessian_spectral_norm", "kappa_sum")
ALWAYS = ["hessian_trace"]
ROTATING = [
    ["ggn_trace", "kappa_tau_sum"],
    ["rho_sum", "relative_flatness"],
    ["matrix_normalized_sharpness", "normalized_sharpness"],
    ["hessian_top_eigenvalue", "hessian_spectral_norm"],
    ["hessian_frobenius", "rho_sum"],
    ["kappa_tau_sum", "relative_flatness"],
]


def _truth_of(name: str, truth: Truth) -> tuple[float | None, float]:
    """Return a measure's true value and the size against which its rounding counts."""
    h = truth.hessian
    size = float(h.norm())
    if name == "hessian_trace":
        return float(h.trace()), float(h.diagonal().abs().sum())
    if name == "ggn_trace":
        return float(truth.ggn.trace()), float(truth.ggn.diagonal().abs().sum())
    if name in ("hessian_top_eigenvalue", "hessian_spectral_norm"):
        values = torch.linalg.eigvalsh(0.5 * (h + h.t()))
        return float(values[-1] if name == "hessian_top_eigenvalue" else values.abs().max()), float(values.abs().max())
    if name == "hessian_frobenius":
        return size, size
    if name in ("matrix_normalized_sharpness", "normalized_sharpness"):
        value = getattr(truth, name)()
        return value, float(truth.theta.norm()) * math.sqrt(float(h.diagonal().abs().sum()))
    if not truth.weights:
        return None, 1.0
    scale = sum(float(truth.tensor(n).square().sum() * truth.block(n).norm()) for n in truth.weights)
    return getattr(truth, name)(), scale


class State:
    """Everything about a model and the process that must come back as it was."""

    def __init__(self, case: Case) -> None:
        model = case.model
        self.tensors = {n: t.detach().clone() for n, t in model.state_dict().items()}
        self.modes = {n: m.training for n, m in model.named_modules()}
        self.required = {n: p.requires_grad for n, p in model.named_parameters()}
        self.gradients = {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
        self.hooks = {n: _hooks(m) for n, m in model.named_modules()}
        self.parameter_hooks = {n: list((p._backward_hooks or {}).keys()) for n, p in model.named_parameters()}
        self.forwards = {n: m.__dict__.get("forward") for n, m in model.named_modules()}
        self.identities = {n: id(p) for n, p in model.named_parameters()}
        self.data = (case.x.clone(), case.y.clone())
        self.random = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy())  # noqa: NPY002
        self.process = _switches()

    def changes(self, case: Case) -> list[str]:
        """Return the names of what is not as it was."""
        now = State(case)
        found = [f"weights and buffers: {n}" for n, t in self.tensors.items() if not _same(t, now.tensors[n])]
        found += [f"gradient of {n}" for n, g in self.gradients.items() if not _same(g, now.gradients[n])]
        for what in ("modes", "required", "hooks", "parameter_hooks", "forwards", "identities", "process"):
            if getattr(self, what) != getattr(now, what):
                found.append(what)
        if not all(_same(a, b) for a, b in zip(self.data, now.data)):
            found.append("data")
        if not (torch.equal(self.random[0], now.random[0]) and self.random[1] == now.random[1]):
            found.append("random state")
        if not (self.random[2] == now.random[2]).all():
            found.append("random state of NumPy")
        return found


def _hooks(module: nn.Module) -> list[list[int]]:
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [list(getattr(module, name)) for name in names]


def _switches() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.mkldnn.enabled,
    )


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and bool((a == b).all())


def judge(case: Case) -> Judge:
    """Measure a case and compare; what the instrument refuses in a sentence is no number."""
    found = Judge(case)
    with global_hook() if case.hazard is not None and case.hazard.name == "global_hook" else contextlib.nullcontext():
        truth = case.truth()
        _ = truth.hessian
    if case.policy == "undefined" and _gives_the_same(case):
        return found  # by chance: what is random, or counts, has no effect here
    before = State(case)
    rng = random.Random(case.seed)
    with case.around():
        inside = _switches()
        for step in (_measures, _views, _products):
            try:
                step(case, truth, found, rng)
            except sl.SpiritlevelError as error:
                found.compared["refused"] += 1
                if case.policy == "right":
                    found.fail("refused", step.__name__[1:], str(error), None, "", None)
            except Exception as error:  # whatever else it raises is what is looked for
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{type(error).__name__}: {error} ({last.filename.rpartition('/')[2]}:{last.lineno})"
                found.fail("crash", step.__name__[1:], where, None, "", None)
        if inside != _switches():
            found.fail("state", "process inside", str(_switches()), None, "", None)
    for change in before.changes(case):
        found.fail("state", change, "changed", None, "", None)
    return found


def _gives_the_same(case: Case) -> bool:
    """Whether a network without a fixed function gives the same outputs however often it is run."""
    with torch.no_grad(), torch.random.fork_rng():
        first, *others = [_tensors(case.model(case.x.clone())) for _ in range(6)]
    return bool(first) and all(a.equal(b) for one in others for a, b in zip(first, one))


def _tensors(outputs: Any) -> list[Tensor]:
    if isinstance(outputs, Tensor):
        return [outputs]
    values = outputs.values() if isinstance(outputs, dict) else outputs if isinstance(outputs, (tuple, list)) else ()
    return [t for t in (*values, getattr(outputs, "logits", None)) if isinstance(t, Tensor)]


def _problem(case: Case) -> sl.Problem:
    # On another device a copy of the network is measured, against the same truth.
    device = os.environ.get("SPIRITLEVEL_ATTACK_DEVICE")
    return sl.Problem(case.model, case.data, loss=case.loss.given, device=device, **case.options)


def _measures(case: Case, truth: Truth, found: Judge, rng: random.Random) -> None:
    names = ALWAYS + rng.choice(ROTATING)
    settings = {key: value for key, value in SETTINGS.items() if key.partition(".")[0] in names}
    report = sl.measure(_problem(case), measures=names, tolerance=TOLERANCE, settings=settings)
    estimates = dict(report)
    if rng.random() < 0.1:  # by itself: its eigenvalues stop at the tolerance too
        estimates["kappa_sum"] = sl.measure(_problem(case), measures="kappa_sum")["kappa_sum"]
    for name, estimate in estimates.items():
        # Where there is no fixed function its truth would only draw random numbers.
        value, scale = (None, 1.0) if case.policy == "undefined" else _truth_of(name, truth)
        found.estimate(name, estimate, value, scale)
    if case.policy == "undefined":
        return
    found.value("loss", report.loss, truth.loss, 1e-3)
    if report["hessian_trace"].status == "not_applicable":
        return  # refused: the gradient torch computes is then not the loss's own
    found.value("gradient_norm", report.gradient_norm, float(truth.gradient.norm()), 1e-3)


def _views(case: Case, truth: Truth, found: Judge, rng: random.Random) -> None:
    kind = rng.choice(["curvature", "curvature", "samples", "none"])
    if kind == "none" or case.policy == "undefined":
        return
    problem = _problem(case)
    diagonal = truth.hessian.diagonal()
    if kind == "samples" and case.coupled:
        return
    view = sl.curvature(problem, tolerance=TOLERANCE)
    if kind == "curvature":
        for name, part in truth.slices.items():
            # Of a parameter without curvature of its own, sums that cancel leave what rounding leaves of the whole.
            scale = max(float(diagonal[part].norm()), 1e-6 * float(diagonal.norm()))
            error = view.diagonal_stderr[name].double()
            true = diagonal[part].reshape(truth.shapes[name])
            if bool((error == 0).all()):
                found.tensor(f"diagonal {name}", view.diagonal[name], true, scale)
            elif view.trace.status == "ok":
                gap = (view.diagonal[name].double() - true).abs()
                worst = float((gap / (error + found.tolerance * max(scale, 1e-9))).max())
                found.compared["estimated"] += 1
                if worst > 8.0:  # the worst of many entries
                    found.fail("estimate", f"diagonal {name}", worst, None, "errors of the worst entry", worst)
        for name, layer in problem.layers.items():
            own = torch.cat([diagonal[truth.slices[full]] for full in layer.parameters.values()])
            found.estimate(f"trace of {name}", view.layer_trace[name], float(own.sum()), float(own.abs().sum()))
        return
    if not view.exact:  # sampled ones come without their errors
        return
    traces = sl.per_sample(problem, "hessian_trace")["hessian_trace"]
    size = float(traces.abs().mean())
    for index in {0, len(case.x) - 1, rng.randrange(len(case.x))}:
        found.value(f"trace of sample {index}", float(traces[index]), truth.sample_trace(index), size)


def _products(case: Case, truth: Truth, found: Judge, rng: random.Random) -> None:
    if case.policy == "undefined":
        return
    problem = _problem(case)
    dtype = next(case.model.parameters()).dtype
    shape = (len(truth.theta),) if rng.random() < 0.5 else (len(truth.theta), rng.choice([2, 3]))
    v = torch.randn(shape, generator=torch.Generator().manual_seed(case.seed), dtype=torch.float64)
    which = rng.choice(["hessian", "hessian", "ggn"])
    matrix = truth.hessian if which == "hessian" else None
    if which == "ggn":
        if case.coupled:
            return
        matrix = truth.ggn
    operator = getattr(problem, which)
    got = (operator @ v.to(problem.device, dtype)).cpu()
    if (
        operator.path.differences
    ):  # it says that it is one: curvature at a radius, which sees kinks, and how sharp it is
        if not operator.path.converged or case.traits["smooth"] != 1.0:
            found.compared["not ok"] += 1
            return
        found.tolerance = DIFFERENCE
    found.tensor(f"{which} @ v", got, matrix @ v, float(matrix.norm() * v.norm()) / len(truth.theta) ** 0.5)

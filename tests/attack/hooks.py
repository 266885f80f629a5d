"""Hazards that are attached to a finished network: hooks on modules and parameters, replaced forwards, gradients."""

from __future__ import annotations

import functools
import random
from typing import Any

import torch
from torch import Tensor, nn

from tests.attack.hazards import (
    Checkpointed,
    Clamping,
    CustomPiece,
    GradientHook,
    Hazard,
    InPlace,
    LowPrecision,
    Noisy,
    Rounded,
    Stateful,
    Stopped,
    Together,
    global_hook,
    surroundings,
)


def _some_linear(rng: random.Random, model: nn.Module) -> nn.Module:
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d)
    idle = ("holder", "idle")  # never called
    found = [m for n, m in model.named_modules() if isinstance(m, kinds) and not n.endswith(idle)]
    return rng.choice([m for m in found if m.weight.requires_grad])


def _late(h: Tensor, level: float) -> Tensor:
    return h.flatten(1)[:, :1].reshape(-1, *[1] * (h.ndim - 1)) > level


def forward_hook(rng: random.Random, model: nn.Module) -> None:
    """Rows whose first output is large are scaled: in sorted data the later ones, or a single one."""
    level = rng.uniform(0.0, 1.0)
    _some_linear(rng, model).register_forward_hook(lambda m, i, out: torch.where(_late(out, level), 1.7 * out, out))


def forward_pre_hook(rng: random.Random, model: nn.Module) -> None:
    level = rng.uniform(0.0, 1.0)
    module = _some_linear(rng, model)
    module.register_forward_pre_hook(lambda m, i: (torch.where(_late(i[0], level), 0.3 * i[0], i[0]),))


def curved_hook(rng: random.Random, model: nn.Module) -> None:
    """A hook that bends what it hooks, for some rows alone."""
    level = rng.uniform(0.0, 0.6)
    _some_linear(rng, model).register_forward_hook(lambda m, i, o: torch.where(_late(o, level), o + o.square(), o))


def patched_forward(rng: random.Random, model: nn.Module) -> None:
    """The forward of one layer replaced on the object."""
    module, level = _some_linear(rng, model), rng.uniform(0.0, 1.0)

    def forward(before: Any, x: Tensor) -> Tensor:
        h = before(x)
        return torch.where(_late(h, level), h.tanh(), h)

    # The class's own function, not the bound one: a copy of the network must use the copy's weights.
    kind = type(module)
    module.forward = functools.partial(_patched, kind.forward, module, forward)


def _patched(plain: Any, module: nn.Module, change: Any, *inputs: Tensor) -> Tensor:
    return change(functools.partial(plain, module), *inputs)


def counting_hook(rng: random.Random, model: nn.Module) -> None:
    """Every third call gives something else."""
    calls = [0]

    def change(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        calls[0] += 1
        return output * 1.5 if calls[0] % 3 == 0 else output

    model.head.register_forward_hook(change)


def backward_hook(rng: random.Random, model: nn.Module) -> None:
    kind = rng.choice(["scale", "look", "pre"])
    module = _some_linear(rng, model)
    if kind == "pre":
        module.register_full_backward_pre_hook(lambda m, g: tuple(2.0 * part for part in g))
    elif kind == "scale":
        module.register_full_backward_hook(lambda m, gi, go: tuple(g if g is None else 0.5 * g for g in gi))
    else:
        module.register_full_backward_hook(lambda m, gi, go: None)


def _parameter(rng: random.Random, model: nn.Module) -> nn.Parameter:
    return rng.choice([p for p in model.parameters() if p.requires_grad])


def parameter_scaled(rng: random.Random, model: nn.Module) -> None:
    for p in [p for p in model.parameters() if p.requires_grad] if rng.random() < 0.5 else [_parameter(rng, model)]:
        p.register_hook(lambda g: 10.0 * g)


def parameter_clipped(rng: random.Random, model: nn.Module) -> None:
    _parameter(rng, model).register_hook(lambda g: g.clamp(-1e-3, 1e-3))


def parameter_row_frozen(rng: random.Random, model: nn.Module) -> None:
    def freeze(gradient: Tensor) -> Tensor:
        kept = gradient.clone()
        kept[..., :1] = 0
        return kept

    parameter = rng.choice([p for p in model.parameters() if p.requires_grad and p.ndim])
    parameter.register_hook(freeze)


def accumulate_hook(rng: random.Random, model: nn.Module) -> None:
    def spoil(parameter: Tensor) -> None:
        parameter.grad = None

    _parameter(rng, model).register_post_accumulate_grad_hook(spoil)


def hazards() -> list[Hazard]:
    """Everything that is tried, each with what may come of it."""
    found = [
        Hazard("forward_hook", "right", act=forward_hook),
        Hazard("forward_pre_hook", "right", act=forward_pre_hook),
        Hazard("curved_hook", "right", act=curved_hook),
        Hazard("patched_forward", "honest", act=patched_forward),
        Hazard("counting_hook", "undefined", act=counting_hook),
        Hazard("backward_hook", "honest", act=backward_hook),
        Hazard("parameter_scaled", "honest", act=parameter_scaled),
        Hazard("parameter_clipped", "honest", act=parameter_clipped),
        Hazard("parameter_row_frozen", "honest", act=parameter_row_frozen),
        Hazard("accumulate_hook", "honest", act=accumulate_hook),
        Hazard("global_hook", "honest", around=global_hook),
        Hazard("straight_through", "honest", piece=Rounded),
        Hazard("autocast_inside", "honest", piece=LowPrecision, dtype=torch.float32),
        Hazard("in_place", "honest", piece=InPlace),
        Hazard("buffers_idle", "right", piece=lambda rng: Stateful(rng, "idle")),
        Hazard("buffers_used", "honest", piece=lambda rng: Stateful(rng, "used"), coupled=True),
        Hazard("buffers_counting", "honest", piece=lambda rng: Stateful(rng, "calls")),
        Hazard("noise_dropout", "undefined", piece=lambda rng: Noisy(rng, "dropout")),
        Hazard("noise_last_row", "undefined", piece=lambda rng: Noisy(rng, "row")),
        Hazard("clamping", "right", piece=lambda rng: Clamping(rng, False)),
        Hazard("clamping_active", "honest", piece=lambda rng: Clamping(rng, True)),
        Hazard("checkpoint", "honest", piece=lambda rng: Checkpointed(rng, False)),
        Hazard("checkpoint_reentrant", "honest", piece=lambda rng: Checkpointed(rng, True)),
    ]
    for kind in ("wrong_rows", "wrong_values", "own", "once", "cut"):
        policy = "right" if kind == "own" else "honest"
        found.append(Hazard(f"custom_{kind}", policy, piece=functools.partial(CustomPiece, kind=kind)))
    for kind in ("all", "rows", "no_grad"):
        found.append(Hazard(f"stopped_{kind}", "honest", piece=functools.partial(Stopped, kind=kind)))
    for kind in ("look", "scale", "rows", "clip"):
        found.append(Hazard(f"tensor_hook_{kind}", "honest", piece=functools.partial(GradientHook, kind=kind)))
    for kind in ("mean", "small", "large", "place", "neighbour", "any"):
        found.append(Hazard(f"together_{kind}", "honest", piece=functools.partial(Together, kind=kind), coupled=True))
    for name, around in surroundings().items():
        dtype = torch.float32 if name == "autocast" else None
        found.append(Hazard(f"ambient_{name}", "right", around=around, dtype=dtype))
    return found

"""What could mislead an instrument that differentiates: hooks, cuts, wrong backwards, state, the ambient process.

A hazard is a piece put into the network, or something done to it, or a surrounding in which it is measured.  Pieces
that change derivatives but not values have an attribute ``honest``: set, they are the function that forward computes,
of which the truth is taken.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# right: the numbers must be right.  honest: right, or refused.  undefined: there is no fixed function, so refused.
Policy = Literal["right", "honest", "undefined"]


@dataclass
class Hazard:
    """A hazard and what may come of it."""

    name: str
    policy: Policy
    piece: Callable[[random.Random], nn.Module] | None = None
    act: Callable[[random.Random, nn.Module], None] | None = None  # on the whole network
    around: Callable[[], contextlib.AbstractContextManager[Any]] | None = None
    dtype: torch.dtype | None = None
    options: dict[str, Any] = field(default_factory=dict)
    coupled: bool = False  # a sample's outputs depend on its batch


class Piece(nn.Module):
    """A piece that keeps its width and may be made honest."""

    honest = False

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.level = rng.uniform(-0.5, 1.2)
        self.kind = ""

    def late(self, x: Tensor) -> Tensor:
        """Which rows it acts on: those whose first feature is large, so the later ones in sorted data."""
        return x[:, :1] > self.level


class WrongBackward(torch.autograd.Function):
    """The identity, whose backward doubles some rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        return torch.where(rows, 2 * gradient, gradient), None


class OwnSquare(torch.autograd.Function):
    """A half square whose backward is right and can be differentiated once more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 0.5 * x.square()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x


class OnceSquare(OwnSquare):
    """A half square whose backward hides its own derivative."""

    backward = staticmethod(torch.autograd.function.once_differentiable(OwnSquare.backward))


class CutSquare(torch.autograd.Function):
    """A half square whose backward forgets, for some rows, that it depends on the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(x, rows)
        return 0.5 * x.square()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, rows = ctx.saved_tensors
        return gradient * torch.where(rows, x.detach(), x), None


class CustomPiece(Piece):
    """A custom function: wrong from the fifth row on, wrong at some values, right, or without second derivative."""

    def __init__(self, rng: random.Random, kind: str) -> None:
        super().__init__(rng)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind.startswith("wrong"):
            if self.honest:
                return x.clone()
            late = (torch.arange(len(x)) >= 4)[:, None] if self.kind == "wrong_rows" else self.late(x)
            return WrongBackward.apply(x, late)
        if self.honest:
            return x + 0.5 * x.square()
        if self.kind == "cut":
            return x + CutSquare.apply(x, self.late(x))
        return x + (OwnSquare if self.kind == "own" else OnceSquare).apply(x)


class Stopped(Piece):
    """A gradient stopped: everywhere, for some rows, or by a block without gradients."""

    def __init__(self, rng: random.Random, kind: str) -> None:
        super().__init__(rng)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        if self.honest:
            return x + 0.5 * x.tanh()
        if self.kind == "rows":
            return x + 0.5 * torch.where(self.late(x), x.tanh().detach(), x.tanh())
        if self.kind == "no_grad":
            with torch.no_grad():
                more = x.tanh()
            return x + 0.5 * more
        return x + 0.5 * x.tanh().detach()


class Rounded(Piece):
    """A straight-through rounding: flat steps in forward, the identity in backward."""

    def forward(self, x: Tensor) -> Tensor:
        steps = (8 * x).round() / 8
        return steps if self.honest else x + (steps - x).detach()


class GradientHook(Piece):
    """A hook on an activation's gradient: all rows scaled, some rows, clipped, or one that only looks."""

    def __init__(self, rng: random.Random, kind: str) -> None:
        super().__init__(rng)
        self.kind = kind
        self.seen: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        h = 1.0 * x
        if self.honest or not h.requires_grad:
            return h
        late = self.late(x.detach())
        if self.kind == "look":
            h.register_hook(lambda g: None)
        elif self.kind == "scale":
            h.register_hook(lambda g: 3.0 * g)
        elif self.kind == "rows":
            h.register_hook(lambda g: torch.where(late.expand_as(g[-len(late) :]), 0.5 * g, g))
        else:
            h.register_hook(lambda g: g.clamp(-1e-3, 1e-3))
        return h


class Checkpointed(Piece):
    """Recomputed in backward, with or without re-entering autograd."""

    def __init__(self, rng: random.Random, reentrant: bool) -> None:
        super().__init__(rng)
        self.reentrant = reentrant
        self.gain = nn.Parameter(torch.tensor(0.8))
        self.curved = rng.random() < 0.5

    def body(self, x: Tensor) -> Tensor:
        h = self.gain * x
        return h.tanh() if self.curved else h.relu() + 0.5 * h

    def forward(self, x: Tensor) -> Tensor:
        if self.honest:
            return self.body(x)
        return checkpoint(self.body, x, use_reentrant=self.reentrant)


class Stateful(Piece):
    """Buffers written in forward: a counter, a running mean that nothing uses, or one that the outputs use.

    The truth is the function that forward computes from the buffers as they were found.
    """

    def __init__(self, rng: random.Random, kind: str) -> None:
        super().__init__(rng)
        self.kind = kind
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean())
        if self.kind == "used":
            return x * (1 + 0.1 * self.mean)
        return x * (1 + 0.01 * (self.calls % 3)) if self.kind == "calls" else x


class Noisy(Piece):
    """Randomness in forward whatever the mode: dropout, or noise on one row."""

    def __init__(self, rng: random.Random, kind: str) -> None:
        super().__init__(rng)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "dropout":
            return nn.functional.dropout(x, 0.3, training=True)
        rows = torch.arange(len(x))[:, None] == len(x) - 1
        return torch.where(rows, x + 0.3 * torch.randn_like(x), x)


class Together(Piece):
    """Rows that know of each other: a mean taken off, the batch's size, a row's place, a look at all rows."""

    def __init__(self, rng: random.Random, kind: str) -> None:
        super().__init__(rng)
        self.kind = kind
        self.gain = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "mean":
            return x - 0.5 * x.mean(0)
        if self.kind == "small":
            return self.gain * x if len(x) < 6 else x
        if self.kind == "large":
            return self.gain * x if len(x) > 17 else x
        if self.kind == "place":
            return torch.where((torch.arange(len(x)) >= 4)[:, None], self.gain * x, x)
        if self.kind == "neighbour":
            return x + 0.3 * self.gain * x.roll(1, 0)
        return self.gain * x if bool((x[:, 0] > self.level).any()) else x


class Clamping(Piece):
    """A forward that clamps its own weight before using it."""

    def __init__(self, rng: random.Random, active: bool) -> None:
        super().__init__(rng)
        self.gain = nn.Parameter(torch.tensor([1.2]))
        self.limit = 0.9 if active else 50.0

    def forward(self, x: Tensor) -> Tensor:
        if self.honest:
            return self.gain.detach().clamp(max=self.limit).add(self.gain - self.gain.detach()) * x
        self.gain.data.clamp_(max=self.limit)
        return self.gain * x


class LowPrecision(Piece):
    """A product taken under autocast inside the forward."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.gain = nn.Parameter(torch.randn(1) + 1)

    def forward(self, x: Tensor) -> Tensor:
        matrix = self.gain * torch.eye(x.shape[1], dtype=x.dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=not self.honest):
            h = x @ matrix
        return h.to(x.dtype)


class InPlace(Piece):
    """A forward that writes into what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        h = x.clone() if self.honest or x.requires_grad else x
        return h.mul_(1.1)


@contextlib.contextmanager
def global_hook() -> Iterator[None]:
    """A hook on every module of the process that doubles what every linear layer gives for some rows."""

    def double(module: nn.Module, _: Any, output: Any) -> Any:
        if isinstance(module, nn.Linear) and output.ndim == 2:
            return torch.where(output[:, :1] > 0.3, 1.5 * output, output)
        return None

    handle = nn.modules.module.register_module_forward_hook(double)
    try:
        yield
    finally:
        handle.remove()


def surroundings() -> dict[str, Callable[[], contextlib.AbstractContextManager[Any]]]:
    """The states a process may be in when it measures."""
    return {
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
        "anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    }

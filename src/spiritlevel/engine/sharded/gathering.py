"""Parameters made whole for the operation that uses them, and let go of behind it: forward, backward, and back again.

The derivative of joining parts is summing the gradients of all ranks and keeping one's own part, and the derivative of
that is joining, so gradients can be differentiated as often as anyone likes.  What autograd would keep of a whole
parameter is joined again when it is needed, also in the graph of the gradient.  Small parameters that follow each other
in the model travel together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from spiritlevel.inputs.sharding import Layout, own_sums, wholes_of
from spiritlevel.inputs.torch_internals.trees import mapped

# Bytes of whole parameters that travel together, and that are held for whoever asks next: the last ones whatever they
# take, for an operation on the way back needs those it needed on the way there.
TOGETHER_BYTES, HELD_BYTES, FEWEST_HELD = 2 * 2**20, 4 * 2**20, 2
# Of these an answer needs no numbers; of all other attributes of a tensor it does.
_ASKING = {Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.__len__, torch.is_floating_point}
_WITH_NUMBERS = ("T", "mT", "H", "mH", "data", "real", "imag")


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layouts: Sequence[Layout], known: Sequence[Tensor] | None, *parts: Tensor) -> Any:
        ctx.layouts = layouts
        return tuple(wholes_of(parts, layouts) if known is None else [whole.view_as(whole) for whole in known])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, None, *_Summed.apply(ctx.layouts, *gradients)  # type: ignore[no-untyped-call]


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layouts: Sequence[Layout], *wholes: Tensor) -> Any:
        ctx.layouts = layouts
        return tuple(own_sums(wholes, layouts))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, *_Joined.apply(ctx.layouts, None, *gradients)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, eq=False)
class _Load:
    """Parameters that travel together, as they are in one pass."""

    parts: Sequence[Tensor]
    layouts: Sequence[Layout]

    def same(self, other: _Load) -> bool:
        return len(self.parts) == len(other.parts) and all(a is b for a, b in zip(self.parts, other.parts))


@dataclass(frozen=True, eq=False)
class _Held:
    group: _Load
    wholes: Sequence[Tensor]  # without a graph
    bytes: int


@dataclass(frozen=True, eq=False)
class _Kept:
    """What autograd keeps in place of a whole parameter, or of a view of one."""

    group: _Load
    place: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: Any


class Gathering(TorchFunctionMode):
    """While entered, operations get whole parameters where the model hands them a distributed one.

    ``names`` are the distributed parameters by their identity, ``parts`` what lies here of each.
    """

    def __init__(self, names: Mapping[int, str], parts: Mapping[str, Tensor], layouts: Mapping[str, Layout]) -> None:
        super().__init__()
        self._names, self._own, self._layouts = names, parts, layouts
        self._groups = {name: group for group in _grouped(parts, layouts) for name in group}
        self._moved: Mapping[str, Tensor] = {}
        self._held: list[_Held] = []
        self._with_graph: tuple[_Load, Sequence[Tensor]] | None = None  # the last one that was joined for gradients

    @contextlib.contextmanager
    def with_parameters(self, moved: Mapping[str, Tensor]) -> Iterator[None]:
        """Hand out other parts in place of some, while the model runs once."""
        before, self._moved = self._moved, moved
        try:
            with self:
                yield
        finally:
            self._moved, self._with_graph = before, None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _ASKING or _is_asked(func):
            return func(*args, **kwargs)
        args, kwargs = mapped(self._whole, (args, kwargs))
        return func(*args, **kwargs)

    def _whole(self, value: Any) -> Any:
        name = self._names.get(id(value)) if isinstance(value, Tensor) else None
        if name is None:
            return value
        names = self._groups[name]
        group = _Load([self._moved.get(one, self._own[one]) for one in names], [self._layouts[one] for one in names])
        place = names.index(name)
        if not torch.is_grad_enabled() or not group.parts[place].requires_grad:
            return self._again(group).wholes[place]
        if self._with_graph is None or not self._with_graph[0].same(group):
            known = self._again(group).wholes  # the same numbers, with a graph of their own
            self._with_graph = group, _Joined.apply(group.layouts, known, *group.parts)  # type: ignore[no-untyped-call]
        return self._with_graph[1][place]

    def _again(self, group: _Load) -> _Held:
        """Return the whole parameters without a graph: those that are held, or joined again."""
        for held in self._held:
            if held.group.same(group):
                return held
        with torch.no_grad():
            wholes = wholes_of([part.detach() for part in group.parts], group.layouts)
        found = _Held(group, wholes, sum(whole.nbytes for whole in wholes))
        self._held.append(found)
        while sum(held.bytes for held in self._held) > HELD_BYTES and len(self._held) > FEWEST_HELD:
            del self._held[0]
        return found

    @contextlib.contextmanager
    def keeping_parts(self) -> Iterator[None]:
        """Let autograd keep parts in place of whole parameters, in all graphs that are made and used meanwhile."""
        try:
            with saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            self._held.clear()

    def _pack(self, tensor: Tensor) -> Tensor | _Kept:
        place = tensor.untyped_storage().data_ptr()
        for held in self._held:  # which are alive: no other tensor lies where they do
            for number, whole in enumerate(held.wholes):
                if place == whole.untyped_storage().data_ptr() and _within(tensor, whole):
                    return _Kept(held.group, number, tensor.shape, tensor.stride(), tensor.storage_offset())
        return tensor

    def _unpack(self, kept: Tensor | _Kept) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        return self._again(kept.group).wholes[kept.place].as_strided(kept.size, kept.stride, kept.offset)


def _within(tensor: Tensor, whole: Tensor) -> bool:
    """Whether a tensor that shares a whole parameter's storage is a view of its numbers as they are."""
    return tensor.dtype == whole.dtype and not tensor.is_neg() and not tensor.is_conj()


def _grouped(parts: Mapping[str, Tensor], layouts: Mapping[str, Layout]) -> Iterator[tuple[str, ...]]:
    """Yield parameters that follow each other, take gradients alike and are no more than may travel together."""
    group: list[str] = []
    taken = 0
    for name, part in parts.items():
        size = layouts[name].shape.numel() * part.element_size()
        kind = part.requires_grad, part.dtype
        if group and (taken + size > TOGETHER_BYTES or (parts[group[0]].requires_grad, parts[group[0]].dtype) != kind):
            yield tuple(group)
            group, taken = [], 0
        group.append(name)
        taken += size
    if group:
        yield tuple(group)


def _is_asked(func: Callable[..., Any]) -> bool:
    """Whether this is a look at an attribute that holds no numbers (shape, dtype, device)."""
    return getattr(func, "__name__", "") == "__get__" and _attribute(func) not in _WITH_NUMBERS


def _attribute(func: Any) -> str:
    return str(getattr(getattr(func, "__self__", None), "__name__", ""))

"""Blocks of vectors inside ``torch.func.vmap``: the tensors behind them, and the dimension the vectors lie along.

torch offers this to one's own rules for vmap, too, but through layers that take a quarter of a millisecond a call, as
long as the small convolutions it is wanted for.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spiritlevel.inputs.torch_internals import levels


@dataclass(frozen=True)
class Operand:
    """A tensor behind vmap and the dimension that the vectors lie along; None where it is the same for all of them."""

    tensor: Tensor
    dim: int | None
    count: int  # vectors

    @property
    def shared(self) -> bool:
        """Whether it is the same for all vectors."""
        return self.dim is None

    def along(self, place: int) -> Tensor:
        """Return a view of it with the vectors along dimension ``place``."""
        if self.dim is not None:
            return self.tensor.movedim(self.dim, place)
        shape = self.tensor.shape
        return self.tensor.unsqueeze(place).expand(*shape[:place], self.count, *shape[place:])

    def of(self, vector: int) -> Tensor:
        """Return what belongs to one of the vectors."""
        return self.tensor if self.dim is None else self.tensor.select(self.dim, vector)


@dataclass(frozen=True)
class Block:
    """The operands of an operation on a block of vectors."""

    operands: list[Operand]
    level: int  # of the vmap

    @property
    def count(self) -> int:
        """How many vectors there are."""
        return self.operands[0].count

    def made(self, tensor: Tensor, dim: int) -> Tensor:
        """Return a result, whose vectors lie along ``dim``, for the world inside vmap."""
        return levels.closed(tensor, dim, self.level)


def behind(*tensors: Tensor) -> Block | None:
    """Return what is behind the tensors, or None where none of them holds a block."""
    own = [levels.level_of(tensor) for tensor in tensors]
    level = max(own)
    if level < 0:
        return None
    pairs: list[tuple[Tensor, int | None]] = [
        levels.opened(tensor) if at == level else (tensor, None) for tensor, at in zip(tensors, own)
    ]
    (count, *_) = (tensor.shape[dim] for tensor, dim in pairs if dim is not None)
    return Block([Operand(tensor, dim, count) for tensor, dim in pairs], level)

"""Parameters that are sharded over processes (FSDP2's DTensors): which part of each lies here, and how they are joined.

Every rank holds a contiguous part of one dimension of every parameter, of equal length but for the last ones, as
``torch.chunk`` cuts it.  With hybrid sharding the same parts lie in several replicas.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spiritlevel.inputs.process.meeting import RankLost
from spiritlevel.values.errors import SpiritlevelError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor

SHARDED = (
    "the model is sharded over several processes, and this needs all of it in one: ask for measure or eigenvalues, "
    "which work on its parts, or load its weights into a model that is not sharded"
)


def _is_distributed(tensor: Tensor) -> bool:
    # Where nobody loaded it no tensor is one; loading it takes a second.
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(tensor, tensors.DTensor)


def is_sharded(tensors: Iterable[Tensor]) -> bool:
    """Whether some of the parameters are distributed tensors."""
    return any(_is_distributed(tensor) for tensor in tensors)


def put_at_rest(model: nn.Module) -> None:
    """Let FSDP's modules hold their shards, as between two steps of training; the root stays whole after a forward."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None:
        for module in model.modules():
            if isinstance(module, fsdp.FSDPModule):
                module.reshard()


@dataclass(frozen=True)
class Layout:
    """How one parameter is cut into parts: ``length`` entries of dimension ``dim`` from ``start`` on lie here."""

    shape: torch.Size
    dim: int
    chunk: int  # entries of that dimension in every part, but for the last ones
    start: int
    length: int
    parts: int
    group: ProcessGroup  # of the ranks whose parts make up the parameter
    replicas: ProcessGroup | None  # of those that hold the same part

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a tensor of the whole parameter's shape."""
        return whole.narrow(self.dim, self.start, self.length)

    @property
    def inner(self) -> torch.Size:
        """The shape of one entry of that dimension."""
        return torch.Size([size for place, size in enumerate(self.shape) if place != self.dim])

    def flat(self, tensor: Tensor, parts: int) -> Tensor:
        """Return a part, or a whole in so many parts, as equally long rows (parts, n): the last ones end in zeros."""
        rows, count = tensor.movedim(self.dim, 0), parts * self.chunk
        if len(rows) != count:
            padded = rows.new_zeros((count, *self.inner))
            padded[: len(rows)] = rows
            rows = padded
        return rows.reshape(parts, -1)

    def shaped(self, rows: Tensor, length: int) -> Tensor:
        """Return the first entries of that dimension from rows (parts, n)."""
        return rows.reshape(len(rows) * self.chunk, *self.inner)[:length].movedim(0, self.dim)


def wholes_of(parts: Sequence[Tensor], layouts: Sequence[Layout]) -> list[Tensor]:
    """Return the wholes of some parameters from every rank's parts, by one message."""
    first = layouts[0]
    rows = [layout.flat(part, 1)[0] for part, layout in zip(parts, layouts)]
    own = torch.cat(rows) if len(rows) > 1 else rows[0].contiguous()
    found = own.new_empty(first.parts * len(own))
    _message("all_gather")(found, own, group=first.group)
    columns = found.view(first.parts, -1).split([len(row) for row in rows], dim=1)
    return [layout.shaped(column, layout.shape[layout.dim]) for column, layout in zip(columns, layouts)]


def own_sums(wholes: Sequence[Tensor], layouts: Sequence[Layout]) -> list[Tensor]:
    """Return this rank's parts of the sums of every rank's wholes, by one message."""
    first = layouts[0]
    columns = [layout.flat(whole, first.parts) for whole, layout in zip(wholes, layouts)]
    sent = (torch.cat(columns, dim=1) if len(columns) > 1 else columns[0]).reshape(-1).contiguous()
    own = sent.new_empty(len(sent) // first.parts)
    _message("reduce_scatter")(own, sent, group=first.group)
    if first.replicas is not None:
        _message("all_reduce")(own, group=first.replicas)
    rows = own.split([column.shape[1] for column in columns])
    return [layout.shaped(row[None], layout.length) for row, layout in zip(rows, layouts)]


_NAMES = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}  # until torch 2.12


def _message(kind: str) -> Callable[..., Any]:
    """Return a collective under the name that this release of torch has for it."""
    from torch import distributed

    found: Callable[..., Any] = getattr(distributed, f"{kind}_single", None) or getattr(
        distributed, _NAMES.get(kind, kind)
    )
    return told_of_losses(found)


def told_of_losses(message: Callable[..., Any]) -> Callable[..., Any]:
    """Return a collective that says in a sentence that another rank is gone, which it learns when nobody answers."""

    def sent(*arguments: Any, **named: Any) -> Any:
        try:
            return message(*arguments, **named)
        except RuntimeError as error:
            raise RankLost(
                "another rank of the sharded model failed or ended, which its own output tells; this one cannot go on "
                f"without it ({str(error).splitlines()[0][:120]})"
            ) from error

    return sent


def layout_of(name: str, tensor: DTensor) -> Layout:
    """Return how a distributed parameter is cut, refusing what is no sharding of one dimension."""
    from torch.distributed.tensor import Replicate, Shard

    mesh, placements = tensor.device_mesh, tensor.placements
    cut = [place for place, placement in enumerate(placements) if type(placement) is Shard]
    copied = [place for place, placement in enumerate(placements) if type(placement) is Replicate]
    if len(cut) != 1 or len(cut) + len(copied) != len(placements) or len(copied) > 1:
        raise SpiritlevelError(
            f"parameter {name} is laid out as {', '.join(map(str, placements))}; only models sharded by fully_shard "
            "along one dimension, with or without replicas, can be measured: shard it so, without tensor parallelism"
        )
    placement: Any = placements[cut[0]]
    dim, parts, rank = placement.dim % tensor.ndim, mesh.size(cut[0]), mesh.get_local_rank(cut[0])
    chunk = -(-tensor.shape[dim] // parts)
    start = min(rank * chunk, tensor.shape[dim])
    return Layout(
        shape=tensor.shape,
        dim=dim,
        chunk=chunk,
        start=start,
        length=min(chunk, tensor.shape[dim] - start),
        parts=parts,
        group=mesh.get_group(cut[0]),
        replicas=mesh.get_group(copied[0]) if copied and mesh.size(copied[0]) > 1 else None,
    )


def layouts_of(parameters: Mapping[str, Tensor], chosen: Iterable[str]) -> dict[str, Layout]:
    """Return the layouts of all distributed parameters; the chosen ones must be of one kind."""
    found: dict[str, Layout] = {}
    for name, tensor in parameters.items():
        if _is_distributed(tensor):
            found[name] = layout_of(name, tensor)  # type: ignore[arg-type]
    whole = [name for name in chosen if name not in found]
    if whole:
        raise SpiritlevelError(
            f"parameter {whole[0]} is not sharded while others are; call fully_shard on the whole model too, or leave "
            "it out by parameters='PATTERN'"
        )
    if len({(layout.group, layout.replicas) for layout in found.values()}) > 1:
        raise SpiritlevelError("the model's parameters are sharded over several groups of ranks; shard all over one")
    return found

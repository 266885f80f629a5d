"""Where to cut the way back: the small layers near the outputs take all columns at once, the large ones one by one.

On a CPU one large step is quicker than many small ones only while its numbers stay in the caches; on a GPU, only where
it is not a convolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from spiritlevel.engine.passes.graph import Graph
from spiritlevel.engine.passes.row_channels import rows_as_channels
from spiritlevel.inputs.torch_internals import nodes

if TYPE_CHECKING:
    from spiritlevel.engine.passes.recording import Recorder

# Numbers of output gradients, of all columns together, that a CPU pulls back in one step.
TOGETHER_NUMBERS = 4_000_000
# Numbers of one column that keep a GPU busy: mapping over columns gains nothing there, and is slow to begin.
BUSY_NUMBERS = 250_000_000
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class RowChannels:
    """A layer reached from another, the cut or one behind it, through that one's convolution with rows as channels."""

    via: str
    name: str


@dataclass(frozen=True)
class Stages:
    """Layers pulled back together, and those behind ``cut``, one of them, that are pulled back from there."""

    together: tuple[str, ...] = ()
    cut: str | None = None  # None: there is nothing behind
    by_rows: RowChannels | None = None

    @property
    def unpooled(self) -> set[str]:
        """Layers whose gradients are those of their own output, also where a pooling follows them."""
        return {*([] if self.cut is None else [self.cut]), *([] if self.by_rows is None else [self.by_rows.via])}


def find_stages(
    recorder: Recorder, graph: Graph, names: list[str], columns: int, room_on_gpu: int | None = None
) -> Stages:
    """Return the most layers, counted from the outputs, whose gradients of all columns are few enough.

    All ways from the outputs to the others must lead through one layer, whose gradients then tell all about theirs.
    ``room_on_gpu``: numbers that a GPU has memory for.
    """
    limit = TOGETHER_NUMBERS if room_on_gpu is None else room_on_gpu
    convolved = {name for name in names if isinstance(recorder.layers[name].module, _CONVOLUTIONS)}
    if room_on_gpu is None:
        convolved = set()
    numbers = {name: columns * sum(math.prod(shape) for shape in recorder.shapes[name]) for name in names}
    if room_on_gpu is not None and sum(numbers.values()) > columns * BUSY_NUMBERS:
        return Stages()
    if sum(numbers.values()) <= limit and not convolved:
        return Stages(tuple(names))  # too little for anything else to pay
    best = Stages()
    for cut in names:
        if len(recorder.stops[cut]) != 1:
            continue
        before = _reached_without(recorder.stops[cut][0].node, graph)
        together = tuple(
            name for name in names if name == cut or any(edge.node in before for edge in recorder.stops[name])
        )
        # A layer called on both sides of the cut would need gradients from both.
        split = any(not all(edge.node in before for edge in recorder.stops[name]) for name in together if name != cut)
        small = sum(numbers[name] for name in together) <= limit and not convolved & {*together} - {cut}
        if small and not split and len(together) > len(best.together):
            best = Stages(together, cut)
    return _with_row_channels(best, recorder, graph, names)


def _with_row_channels(stages: Stages, recorder: Recorder, graph: Graph, names: list[str]) -> Stages:
    """Add the layer whose gradients are wanted right where a convolution behind the cut takes in, if that pays."""
    by_stop: dict[Any, str] = {
        (edge.node, edge.output_nr): name
        for name in names
        if name not in stages.together and len(recorder.stops[name]) == 1
        for edge in recorder.stops[name]
    }
    for via in names:
        if len(recorder.edges[via]) != 1 or (via in stages.together and via != stages.cut):
            continue
        convolution = recorder.edges[via][0].node
        name = by_stop.get(convolution.next_functions[0]) if nodes.name_of(convolution) == nodes.CONVOLUTION else None
        if name is None or rows_as_channels(recorder.layers[via].module, recorder.inputs[via][0]) == 1:
            continue
        # Whatever else lies behind would have to go on from there, which it does from the cut alone.
        before = _reached_without(recorder.stops[via][0].node, graph)
        behind = [other for other in names if other != via and recorder.stops[other][0].node not in before]
        if via == stages.cut or behind == [name]:
            return replace(stages, by_rows=RowChannels(via, name))
    return stages


def _reached_without(node: Any, graph: Graph) -> set[Any]:
    """Return the nodes that a way from the outputs leads to without passing ``node``."""
    seen, stack = {node}, [graph.root]
    while stack:
        current = stack.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        stack.extend(child for child, _ in current.next_functions)
    return seen - {node}

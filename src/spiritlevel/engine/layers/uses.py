"""Each sample's gradient of a parameter from the operations that take it in, where no module accounts for it.

A class token, a position embedding, the scale of a residual branch, attention's joint projection, a weight that two
modules share: autograd's graph says where each meets the samples.  From the gradient passed back to that operation, and
what it kept of its other factor, the sample's gradient follows.  Like every rule this one is held against autograd.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from spiritlevel.engine.layers.sample_gradients import (
    DirectGradients,
    IndexedGradients,
    OuterGradients,
    SampleGradients,
)
from spiritlevel.engine.layers.summed_gradients import FactorGradients, summed
from spiritlevel.inputs.torch_internals import nodes, operations
from spiritlevel.inputs.torch_internals.backward import vjp


@dataclass(frozen=True)
class Use:
    """One operation in which a parameter, or what linear operations made of it, meets the samples.

    ``place``: which of the operation's inputs that is.
    """

    node: Any
    place: int
    leaf: Any
    bent: bool = False  # whether what came in was made by curved functions of every entry (an exponential) too

    @property
    def made(self) -> tuple[Any, int]:
        """The edge at which it comes in."""
        found: tuple[Any, int] = self.node.next_functions[self.place]
        return found

    @property
    def shape(self) -> torch.Size:
        """Of the operation's output."""
        return torch.Size(nodes.shape_of(self.node, 0))


class Uses:
    """All uses of one parameter; ``samples_second`` where samples are counted by the second dimension of rows."""

    def __init__(self, parameter: Tensor, uses: list[Use], samples: int, samples_second: bool) -> None:
        self.parameter, self.uses, self.samples, self.samples_second = parameter, uses, samples, samples_second

    @property
    def edges(self) -> list[GradientEdge]:
        """Where gradients are pulled back to."""
        return [GradientEdge(use.node, 0) for use in self.uses]

    def gradients(self, deltas: list[Tensor | None]) -> SampleGradients:
        """Return each sample's gradient from what is passed back to the uses, (K, B, …), None where nothing is."""
        found = [self._of(use, delta) for use, delta in zip(self.uses, deltas) if delta is not None]
        columns = next(len(delta) for delta in deltas if delta is not None)
        return summed(found, self.parameter.shape, columns)

    @property
    def bent(self) -> bool:
        """Whether the parameter goes through a curved function before it meets samples."""
        return any(use.bent for use in self.uses)

    def bends(self, deltas: Sequence[Tensor | None]) -> Tensor:
        """Return each sample's second derivative (B, *shape) through these functions, from the loss's own gradient.

        Every entry of what is made is a function of one entry of the parameter: the matrix is diagonal, and its product
        with ones is the diagonal.
        """
        found = self.parameter.new_zeros(self.samples, *self.parameter.shape)
        for use, delta in zip(self.uses, deltas):
            if use.bent and delta is not None:
                found = found + self._bend(use, self._at_use(use, delta[None])[0])
        return found

    def _bend(self, use: Use, gradient: Tensor) -> Tensor:
        edge = GradientEdge(*use.made)

        def pull(one: Tensor) -> Tensor:
            return vjp(edge, [self.parameter], one, create_graph=True)[0]

        slopes = torch.func.vmap(pull)(gradient.reshape(self.samples, *nodes.shape_of(*use.made)))
        return derivative_of_all(slopes, self.parameter)

    def tied_part(self, use: Use, gradient: Tensor, factors: Tensor) -> SampleGradients:
        """Return what a use gives for one gradient at its output, with each of some factors (K, …) for its own."""
        if nodes.name_of(use.node) not in operations.WEIGHTED_PRODUCTS:
            return self._through(use, self._summed(use, gradient * factors))
        rows = self._rows(gradient[None], gradient.shape[-1])
        inputs = self._rows(factors, factors.shape[-1])
        if self._is_transposed(use):
            return FactorGradients(inputs, rows[0], self.parameter.shape)
        return self._through(use, torch.einsum("kbti,bto->kbio", inputs, rows[0]))

    def _is_transposed(self, use: Use) -> bool:
        turned = use.made[0]
        return nodes.name_of(turned) == nodes.MATRIX_TRANSPOSE and turned.next_functions[0][0] is use.leaf

    def _of(self, use: Use, delta: Tensor) -> SampleGradients:
        name = nodes.name_of(use.node)
        if name == operations.EMBEDDING:
            tokens = nodes.kept(use.node, "indices").reshape(self.samples, -1)
            return IndexedGradients(tokens, self._rows(delta, self.parameter.shape[1]), self.parameter.shape)
        if name in operations.MATRIX_PRODUCTS and use.place == operations.MATRIX_PRODUCTS[name][1]:
            factor = nodes.kept(use.node, "self" if name == nodes.MM else "mat1")
            rows = self._rows(delta, delta.shape[-1])
            inputs = self._rows(factor[None], factor.shape[-1])[0]
            if self._is_transposed(use):
                return OuterGradients(inputs[:, None], rows[:, :, None], self.parameter.shape)
        return self._through(use, self._at_use(use, delta))

    def _at_use(self, use: Use, delta: Tensor) -> Tensor:
        """Return gradients (K, B, …) of what was made of the parameter."""
        name = nodes.name_of(use.node)
        if name in operations.MATRIX_PRODUCTS and use.place == operations.MATRIX_PRODUCTS[name][1]:
            factor = nodes.kept(use.node, "self" if name == nodes.MM else "mat1")
            rows, inputs = self._rows(delta, delta.shape[-1]), self._rows(factor[None], factor.shape[-1])[0]
            return torch.einsum("bti,kbto->kbio", inputs, rows)
        if name in operations.MATRIX_PRODUCTS:  # the bias of a product
            return self._rows(delta, delta.shape[-1]).sum(2)
        if name == operations.LAYER_NORM:
            return self._summed(use, delta * self._standardised(use) if use.place == 1 else delta)
        if name == nodes.MULTIPLY:
            other = nodes.kept(use.node, "other" if use.place == 0 else "self")
            delta = delta * other
        elif name == nodes.SUBTRACT and use.place == 1:
            delta = -delta
        alpha = nodes.saved(use.node, "alpha") if name in (nodes.ADD, nodes.SUBTRACT) and use.place == 1 else None
        return self._summed(use, delta if alpha in (None, 1) else delta * alpha)

    def _rows(self, delta: Tensor, width: int) -> Tensor:
        """Return rows (K, n, width), of whatever dimensions, by sample: (K, B, T, width)."""
        if self.samples_second:
            return delta.reshape(len(delta), -1, self.samples, width).transpose(1, 2)
        return delta.reshape(len(delta), self.samples, -1, width)

    def _standardised(self, use: Use) -> Tensor:
        """Return what a layer normalisation multiplies with its weight."""
        inputs, mean, inverse = (nodes.kept(use.node, name) for name in ("input", "result1", "result2"))
        found: Tensor = (inputs - mean) * inverse
        return found

    def _summed(self, use: Use, delta: Tensor) -> Tensor:
        """Sum over what the parameter was spread over, but for the samples; each may have several rows."""
        made = nodes.shape_of(*use.made)
        full = (1,) * (len(use.shape) - len(made)) + tuple(made)
        if self.samples_second:
            delta, full = delta.transpose(1, 2), (full[1], full[0], *full[2:])
        if full[0] != 1 or delta.shape[1] % self.samples:
            raise RuntimeError("the first dimension does not count samples")  # as any rule that does not fit raises
        delta = delta.reshape(len(delta), self.samples, -1, *delta.shape[2:])
        dims = [3 + i for i, (own, spread) in enumerate(zip(full[1:], delta.shape[3:])) if own == 1 and spread != 1]
        return delta.sum([2, *dims], keepdim=True).reshape(*delta.shape[:2], *made)

    def _through(self, use: Use, gradient: Tensor) -> DirectGradients:
        """Pull gradients (K, B, …) of what was made of the parameter back to itself."""
        gradient = gradient.reshape(*gradient.shape[:2], *nodes.shape_of(*use.made))
        if use.made[0] is use.leaf:
            return DirectGradients(gradient)
        edge = GradientEdge(*use.made)

        def pull(one: Tensor) -> Tensor:
            return vjp(edge, [self.parameter], one, retain_graph=True)[0]

        found: Tensor = torch.func.vmap(pull)(gradient.flatten(0, 1))
        return DirectGradients(found.unflatten(0, gradient.shape[:2]))


def derivative_of_all(values: Tensor, parameter: Tensor) -> Tensor:
    """Return the derivative of values (B, *shape) along ones, entry by entry, by differentiating a pull-back."""
    if not values.requires_grad:
        return torch.zeros_like(values)
    cotangent = torch.zeros_like(values).requires_grad_()
    (pulled,) = torch.autograd.grad(values, parameter, cotangent, create_graph=True)
    (found,) = torch.autograd.grad(pulled, cotangent, torch.ones_like(pulled))
    return found.detach()


def find_uses(leaf: Any, consumers: dict[Any, list[Any]], samples: int) -> list[Use] | None:
    """Return all uses of a leaf of the graph; None where one is not known."""
    return None if leaf is None else _gathered(leaf, leaf, consumers, samples, bent=False)


def _gathered(node: Any, leaf: Any, consumers: dict[Any, list[Any]], samples: int, *, bent: bool) -> list[Use] | None:
    found: list[Use] = []
    for consumer in dict.fromkeys(consumers.get(node, [])):
        for place in _places(node, consumer):
            kind = _kind(consumer, place, samples)
            if kind == "use":
                found.append(Use(consumer, place, leaf, bent))
            elif kind == "carrier":
                curved = bent or nodes.name_of(consumer) in operations.POINTWISE
                further = _gathered(consumer, leaf, consumers, samples, bent=curved)
                if further is None:
                    return None
                found.extend(further)
            else:
                return None
    return found


def is_made_of_parameters(node: Any, made_before: Container[Any], samples: int) -> bool:
    """Whether an operation makes something, entry by entry, of nothing but what was made of parameters alone before."""
    places = [place for place, (child, _) in enumerate(node.next_functions) if child is not None]
    return bool(places) and all(
        node.next_functions[place][0] in made_before and _kind(node, place, samples) == "carrier" for place in places
    )


def _places(node: Any, consumer: Any) -> Iterator[int]:
    for place, (child, _) in enumerate(consumer.next_functions):
        if child is node:
            yield place


def _kind(node: Any, place: int, samples: int) -> str:
    """Say whether an operation brings its input together with samples, or makes something of its entries alone."""
    name, shape = nodes.name_of(node), nodes.shape_of(node, 0)
    if name in operations.MATRIX_PRODUCTS:
        weighted = name in (nodes.MM, nodes.ADDMM) and place != operations.MATRIX_PRODUCTS[name][0]
        return "use" if weighted else ""
    counts = [size > 0 and size % samples == 0 for size in shape[:1]] + [size == samples for size in shape[1:2]]
    if name == operations.EMBEDDING:
        indices = nodes.saved(node, "indices")
        if indices is None:
            return ""
        return "use" if indices.ndim > 1 and len(indices) == samples else "carrier"
    if name in (nodes.ADD, nodes.SUBTRACT, nodes.MULTIPLY):
        own = nodes.shape_of(*node.next_functions[place])
        if any(counts) and len(own) <= len(shape):
            return "use"
        alone = sum(child is not None for child, _ in node.next_functions) == 1  # with a constant
        return "carrier" if alone else ""
    if name == operations.LAYER_NORM:
        return "use" if place > 0 and any(counts) else ""
    if name == nodes.EXPAND:
        return "use" if any(counts) else "carrier"
    return "carrier" if name in operations.CARRIERS | operations.POINTWISE else ""

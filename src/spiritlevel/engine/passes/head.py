"""The last layer alone: its inputs, kept from one sweep, make the loss a function of one small matrix.

Where a linear layer's output is the network's, the network before it need not be run again to see what another weight
in that layer would do: outputs, gradients and second derivatives follow from the layer's inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.contents import Content, map_tensors
from spiritlevel.inputs.input_first import is_input_first
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.process.ranks import Ranks
from spiritlevel.inputs.sweeping import SampleRows

# Inputs of the last layer are kept up to this many numbers.
KEPT_INPUTS = 20_000_000
_ELSEWHERE = "losses at other last layers"  # what a sweep of them is called


class _LinearCalls:
    """Records, while entered, the inputs and outputs of linear layers that give tensors of the outputs' shape."""

    def __init__(self, modules: Mapping[str, nn.Module], shape: tuple[int, ...]) -> None:
        self.modules, self.shape = modules, shape
        self.calls: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def __enter__(self) -> _LinearCalls:
        self._handles = [module.register_forward_hook(self._hook(name)) for name, module in self.modules.items()]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if args and isinstance(args[0], Tensor) and isinstance(output, Tensor) and output.shape == self.shape:
                # A copy: an activation that works in place would rewrite it.
                self.calls.setdefault(name, []).append((args[0], output.clone()))

        return hook

    def inputs_of(self, name: str, outputs: Tensor) -> Tensor | None:
        """Return the layer's input where it was called once and its output is the network's."""
        calls = self.calls.get(name, [])
        return calls[0][0] if len(calls) == 1 and torch.equal(calls[0][1], outputs) else None


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer, torch's own or one that stores its weight the other way round."""
    return isinstance(module, nn.Linear) or is_input_first(module)


def _run_watched(problem: OpenProblem, batch: Batch, modules: Mapping[str, nn.Module]) -> tuple[Tensor, _LinearCalls]:
    with _LinearCalls(modules, (batch.count, *problem.survey.output_shape)) as watched:
        outputs = problem.outputs(batch.content)
    return outputs, watched


def find_head(problem: OpenProblem, batch: Batch) -> str | None:
    """Return the linear layer whose output, of one vector a sample, is the network's output on this batch."""
    linear = {name: module for name, module in problem.model.named_modules() if is_linear(module)}
    if not linear or len(problem.survey.output_shape) != 1:
        return None
    outputs, watched = _run_watched(problem, batch, linear)
    return next((name for name in reversed(watched.calls) if watched.inputs_of(name, outputs) is not None), None)


def head_inputs(problem: OpenProblem, head: str, read: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Sweep the data and return what is read off the head's inputs (B, m), by sample; None where it is no head."""
    module = problem.model.get_submodule(head)
    rows = SampleRows(problem)
    with problem.sweep("inputs of the last layer") as group, torch.no_grad():
        for batch in problem.batches("inputs of the last layer"):
            outputs, watched = _run_watched(problem, batch, {head: module})
            problem.agrees(batch, problem.loss.per_sample(outputs, batch.content)[0])
            inputs = watched.inputs_of(head, outputs)
            known = inputs is not None and inputs.shape[:-1] == (batch.count,)
            rows.add(batch, {"inputs": read(inputs) if inputs is not None and known else None})
    problem.spent["forward"] += 1
    return rows.united(group)["inputs"]


class HeadLoss:
    """The mean loss as a function of the head's weight, in float64 from the inputs on."""

    def __init__(self, problem: OpenProblem, layer: str, parameter: str, inputs: Tensor) -> None:
        self.problem, self.parameter, self.inputs = problem, parameter, inputs
        module = problem.model.get_submodule(layer)
        assert isinstance(module, nn.Linear)
        self.weight = module.weight.detach().double()
        self.bias = None if module.bias is None else module.bias.detach().double()
        self.size = self.weight.numel()

    @classmethod
    def of(cls, problem: OpenProblem, parameter: str) -> HeadLoss | None:
        """Return the loss over this weight; None where its layer is no head or the layer's inputs are too many."""
        layer = parameter.rpartition(".")[0]  # "" where the model is the layer
        module = problem.model.get_submodule(layer)
        if not isinstance(module, nn.Linear) or problem.survey.coupled:
            return None
        if problem.survey.count * module.in_features > KEPT_INPUTS:
            return None
        with problem.session(), torch.no_grad():
            if find_head(problem, next(problem.batches())) != layer:
                return None
        inputs = head_inputs(problem, layer, lambda inputs: inputs)
        return None if inputs is None else cls(problem, layer, parameter, inputs)

    def _batches(self) -> Iterator[tuple[Content, Tensor, Tensor]]:
        """Yield a batch's content and inputs in float64, and the shares of its samples in the mean loss."""
        survey = self.problem.survey
        for batch in self.problem.batches(_ELSEWHERE):
            place = slice(batch.start, batch.start + batch.count)
            content = map_tensors(batch.content, lambda t: t.double() if t.is_floating_point() else t)
            share = survey.weights[place].to(self.inputs.device) / survey.total_weight
            yield content, self.inputs[place].double(), share

    def rise(self, sets: Iterable[Mapping[str, Tensor]]) -> Tensor:
        """Return L(set) - L for each replacement of the weight, (K,), taken sample by sample."""
        weights = [self.weight, *(one[self.parameter].to(self.weight) for one in sets)]
        total = torch.zeros(len(weights) - 1, dtype=torch.float64)
        with self.problem.sweep(_ELSEWHERE) as group, torch.no_grad():
            for content, inputs, share in self._batches():
                losses = torch.stack([self._losses(inputs, weight, content) for weight in weights])
                total += ((losses[1:] - losses[0]) @ share).cpu()
        return self._united(group, total)

    def losses_and_gradients(self, sets: Iterable[Mapping[str, Tensor]]) -> tuple[Tensor, list[dict[str, Tensor]]]:
        """Return the mean loss (K,) and its gradient at each replacement of the weight."""
        leaves = [one[self.parameter].detach().to(self.weight).clone().requires_grad_() for one in sets]
        values = torch.zeros(len(leaves), dtype=torch.float64)
        gradients = torch.zeros(len(leaves), *self.weight.shape).to(self.weight)
        with self.problem.sweep(_ELSEWHERE) as group:
            for content, inputs, share in self._batches():
                for k, leaf in enumerate(leaves):
                    mean = share @ self._losses(inputs, leaf, content)
                    values[k] += float(mean.detach())
                    gradients[k] += torch.autograd.grad(mean, leaf)[0]
        values, gradients = self._united(group, values), self._united(group, gradients)
        return values, [{self.parameter: gradient} for gradient in gradients]

    def matvec(self, block: Tensor) -> Tensor:
        """Return the product of a block (size, K) with the second derivative in the weight, which is J^T Λ J here."""
        directions = block.to(self.weight).T.reshape(-1, *self.weight.shape)
        total = torch.zeros_like(directions)
        with self.problem.sweep(_ELSEWHERE) as group, torch.no_grad():
            for content, inputs, share in self._batches():
                along = inputs @ directions.mT  # (K, B, outputs)
                curved = self.problem.loss.hessian_product(self._outputs(inputs, self.weight), content, along)
                total += (curved.double() * share[:, None]).mT @ inputs
        return self._united(group, total).reshape(len(total), -1).T.to(block)

    @staticmethod
    def _united(group: Ranks, total: Tensor) -> Tensor:
        found, _ = group.united({"total": total}, device=total.device)
        return found["total"]

    def _outputs(self, inputs: Tensor, weight: Tensor) -> Tensor:
        return nn.functional.linear(inputs, weight, self.bias)

    def _losses(self, inputs: Tensor, weight: Tensor, content: Content) -> Tensor:
        return self.problem.loss.per_sample(self._outputs(inputs, weight), content)[0].double()

"""A small problem written out in full: loss, gradient and Hessian as dense float64 arrays by differentiating twice."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from spiritlevel.inputs.contents import count_of, map_tensors, slice_batch
from spiritlevel.inputs.model_forward import Forward
from spiritlevel.inputs.open_problem import Measurable
from spiritlevel.inputs.process.composite_operations import composite_operations

LARGEST = 4000  # parameters; beyond that a dense matrix is no longer a quick check


class Dense:
    """A small problem written out in full, as a plain function of one flat float64 vector of its parameters.

    It decides whether a number is right, and shares no code with what measures: dense float64 matrices by plain double
    differentiation.

    Parameters
    ----------
    problem : Problem
        A problem of at most 4,000 parameters.

    Raises
    ------
    ValueError
        The problem has more parameters.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> model = torch.nn.Linear(3, 2)
    >>> problem = sl.Problem(model, (torch.randn(20, 3), torch.arange(20) % 2))
    >>> dense = sl.reference.Dense(problem)
    >>> tuple(dense.hessian.shape)
    (8, 8)
    >>> measured = sl.measure(problem, "hessian_trace")["hessian_trace"].value
    >>> abs(measured - float(dense.hessian.trace())) < 1e-5
    True
    """

    def __init__(self, problem: Measurable) -> None:
        if problem.size > LARGEST:
            raise ValueError(f"{problem.size:,} parameters are too many for a dense reference (at most {LARGEST:,})")
        self.problem = problem
        self.model = copy.deepcopy(problem.model).double().cpu()
        self.model.train(problem.mode == "train")
        self._forward = Forward(self.model, problem.forward_function)
        self.names = problem.parameters
        self.shapes = {name: problem.chosen_parameters[name].shape for name in self.names}
        self.theta = torch.cat([problem.chosen_parameters[n].detach().double().reshape(-1) for n in self.names]).cpu()
        self.batches = [
            map_tensors(content, lambda t: t.double().cpu() if t.is_floating_point() else t.cpu())
            for content in problem.source.read()
        ]

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each parameter lies in the flat vector."""
        found, start = {}, 0
        for name in self.names:
            stop = start + self.shapes[name].numel()
            found[name] = slice(start, stop)
            start = stop
        return found

    def split(self, theta: Tensor) -> dict[str, Tensor]:
        """Return the parameters by name from a flat vector.

        Parameters
        ----------
        theta : Tensor
            All parameters in one vector (P,).

        Returns
        -------
        dict of str to Tensor
            The parameters, each of its shape.
        """
        return {name: theta[part].reshape(self.shapes[name]) for name, part in self.slices.items()}

    def outputs(self, theta: Tensor, content: Any) -> Tensor:
        """Return the network's outputs at any parameters.

        Parameters
        ----------
        theta : Tensor
            All parameters in one vector (P,).
        content : batch
            A batch as the problem reads it.

        Returns
        -------
        Tensor
            The outputs.
        """
        buffers = {f"model.{name}": value.clone() for name, value in self.model.named_buffers()}
        replaced = {f"model.{name}": value for name, value in self.split(theta).items()}
        with composite_operations(self.model.modules()):
            found: Tensor = torch.func.functional_call(self._forward, {**replaced, **buffers}, (content,))
            return found

    def loss_at(self, theta: Tensor) -> Tensor:
        """Return the mean loss at any parameters.

        Parameters
        ----------
        theta : Tensor
            All parameters in one vector (P,).

        Returns
        -------
        Tensor
            The loss, differentiable in the vector.
        """
        numerator, denominator = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for content in self.batches:
            losses, weights = self.problem.loss.per_sample(self.outputs(theta, content), content)
            numerator, denominator = numerator + (losses * weights).sum(), denominator + weights.sum()
        return numerator / denominator

    @cached_property
    def samples(self) -> list[Any]:
        """Each sample as a batch of its own."""
        return [slice_batch(content, i, i + 1) for content in self.batches for i in range(count_of(content))]

    def sample_loss(self, theta: Tensor, index: int) -> Tensor:
        """Return one sample's own loss at any parameters.

        Parameters
        ----------
        theta : Tensor
            All parameters in one vector (P,).
        index : int
            The sample's place.

        Returns
        -------
        Tensor
            The loss, differentiable in the vector.
        """
        losses, _ = self.problem.loss.per_sample(self.outputs(theta, self.samples[index]), self.samples[index])
        return losses[0]

    @cached_property
    def loss(self) -> float:
        """The mean loss."""
        return float(self.loss_at(self.theta))

    @cached_property
    def gradient(self) -> Tensor:
        """The gradient of the mean loss, (P,)."""
        theta = self.theta.clone().requires_grad_()
        return torch.autograd.grad(self.loss_at(theta), theta)[0]

    @cached_property
    def hessian(self) -> Tensor:
        """The Hessian of the mean loss, (P, P)."""
        return self._twice(self.loss_at)

    def sample_hessian(self, index: int) -> Tensor:
        """Return the Hessian of one sample's loss.

        Parameters
        ----------
        index : int
            The sample's place.

        Returns
        -------
        Tensor
            The matrix (P, P).
        """
        return self._twice(lambda theta: self.sample_loss(theta, index))

    def _twice(self, function: Any) -> Tensor:
        theta = self.theta.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(theta), theta, create_graph=True)
        if not first.requires_grad:
            return torch.zeros(len(theta), len(theta), dtype=torch.float64)
        rows = [
            torch.autograd.grad(entry, theta, retain_graph=True, allow_unused=True, materialize_grads=True)[0]
            for entry in first
        ]
        return torch.stack(rows)

    @cached_property
    def sample_gradients(self) -> Tensor:
        """Each sample's gradient, (N, P)."""
        rows = []
        for index in range(len(self.samples)):
            theta = self.theta.clone().requires_grad_()
            rows.append(torch.autograd.grad(self.sample_loss(theta, index), theta)[0])
        return torch.stack(rows)

    @cached_property
    def weights(self) -> Tensor:
        """Each sample's share of the mean loss; they sum to 1."""
        parts = [self.problem.loss.per_sample(self.outputs(self.theta, c), c)[1] for c in self.batches]
        joined = torch.cat(parts).detach()
        return joined / joined.sum()

    @cached_property
    def logits(self) -> Tensor:
        """The outputs of all samples."""
        return torch.cat([self.outputs(self.theta, content) for content in self.batches]).detach()

    def jacobian(self, index: int) -> Tensor:
        """Return the derivative of one sample's outputs in the parameters, (outputs, P).

        Parameters
        ----------
        index : int
            The sample's place.

        Returns
        -------
        Tensor
            The matrix (outputs, P).
        """
        found: Tensor = torch.autograd.functional.jacobian(
            lambda theta: self.outputs(theta, self.samples[index]).reshape(-1), self.theta
        )
        return found

    @cached_property
    def ggn(self) -> Tensor:
        """The Gauss–Newton matrix, with the loss's second derivative by differentiating it twice in the outputs."""
        total = torch.zeros(len(self.theta), len(self.theta), dtype=torch.float64)
        for index, weight in enumerate(self.weights):
            content = self.samples[index]
            outputs = self.outputs(self.theta, content).detach()
            curve = torch.autograd.functional.hessian(
                lambda f, content=content: self.problem.loss.per_sample(f, content)[0].sum(), outputs
            ).reshape(outputs.numel(), outputs.numel())
            jacobian = self.jacobian(index)
            total += weight * jacobian.T @ curve @ jacobian
        return total

    def block(self, name: str) -> Tensor:
        """Return the Hessian's block of one parameter.

        Parameters
        ----------
        name : str
            The parameter.

        Returns
        -------
        Tensor
            The block.
        """
        return self.hessian[self.slices[name], self.slices[name]]

    def tensor(self, name: str) -> Tensor:
        """Return one parameter in float64.

        Parameters
        ----------
        name : str
            The parameter.

        Returns
        -------
        Tensor
            The parameter, of its shape.
        """
        return self.theta[self.slices[name]].reshape(self.shapes[name])

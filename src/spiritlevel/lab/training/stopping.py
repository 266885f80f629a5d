"""Rules that end training before its cap: a loss reached, or a gradient that has died down."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from spiritlevel.values.errors import UsageError, near_names


class StopRule(Protocol):
    """What the loop asks after every step and every epoch; an epoch's answer is the reason to stop, or None.

    Any object with these two methods is one.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> class AfterOneEpoch:
    ...     def after_step(self, model): pass
    ...     def after_epoch(self, loss): return "one epoch is enough"
    >>> model, data = sl.nets.build("digits_mlp", seed=0), sl.datasets.load("digits")
    >>> sl.training.train(model, data, epochs=9, stop=AfterOneEpoch()).stopped_by
    'one epoch is enough'
    """

    def after_step(self, model: nn.Module) -> None:
        """See the gradients of this step.

        Parameters
        ----------
        model : torch.nn.Module
            The network, with the gradients of this step.
        """

    def after_epoch(self, loss: float) -> str | None:
        """Decide, given the mean loss over the epoch as it was trained.

        Parameters
        ----------
        loss : float
            The epoch's mean loss.

        Returns
        -------
        str or None
            The reason to stop, or None.
        """


class LossTarget:
    """Stop once the epoch's mean training loss is below a target; the loop's epochs or steps are the cap.

    Parameters
    ----------
    loss : float
        The target.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model, data = sl.nets.build("digits_mlp", seed=0), sl.datasets.load("digits")
    >>> rule = sl.training.LossTarget(0.5)
    >>> record = sl.training.train(model, data, epochs=50, batch_size=16, stop=rule)
    >>> record.loss < 0.5, len(record.epochs) < 50
    (True, True)
    """

    def __init__(self, loss: float) -> None:
        self.loss = loss

    def after_step(self, model: nn.Module) -> None:
        """Need nothing from a step."""

    def after_epoch(self, loss: float) -> str | None:
        """Stop when the loss is below the target."""
        return f"training loss {loss:.4g} below {self.loss:g}" if loss < self.loss else None


class GradientRule:
    """Stop once every entry of one parameter's gradient, averaged over the epoch, is small (Petzka et al.'s code).

    Parameters
    ----------
    parameter : str
        The parameter's name.
    tolerance : float
        The size below which an entry is small.

    Raises
    ------
    UsageError
        After the first step, where the model has no such parameter.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model, data = sl.nets.build("digits_mlp", seed=0), sl.datasets.load("digits")
    >>> rule = sl.training.GradientRule("5.bias", tolerance=0.5)
    >>> sl.training.train(model, data, epochs=5, stop=rule).stopped_by
    'epoch-mean gradient of 5.bias within 0.5'
    """

    def __init__(self, parameter: str, tolerance: float = 1e-5) -> None:
        self.parameter = parameter
        self.tolerance = tolerance
        self._sum: torch.Tensor | None = None
        self._steps = 0

    def after_step(self, model: nn.Module) -> None:
        """Add this step's gradient to the epoch's."""
        parameters = dict(model.named_parameters())
        if self.parameter not in parameters:
            hint = near_names(self.parameter, parameters) or "."
            raise UsageError(f"The gradient rule watches {self.parameter!r}, which the model does not have{hint}")
        gradient = parameters[self.parameter].grad
        assert gradient is not None
        self._sum = gradient.detach().clone() if self._sum is None else self._sum + gradient.detach()
        self._steps += 1

    def after_epoch(self, loss: float) -> str | None:
        """Stop when the largest entry of the mean gradient is within the tolerance."""
        assert self._sum is not None
        largest = float((self._sum / self._steps).abs().max())
        self._sum, self._steps = None, 0
        if largest <= self.tolerance:
            return f"epoch-mean gradient of {self.parameter} within {self.tolerance:g}"
        return None

"""A model, data and a loss, checked once and frozen: what every measurement begins with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from spiritlevel.inputs.chosen_parameters import ChosenParameters
from spiritlevel.inputs.contents import Content
from spiritlevel.inputs.data import Source, open_source
from spiritlevel.inputs.losses import Loss, resolve
from spiritlevel.inputs.model_forward import default_forward
from spiritlevel.inputs.opening import checked_precision, choose_parameters, open_model
from spiritlevel.inputs.sharding import is_sharded
from spiritlevel.values.errors import SpiritlevelError, UsageError


def _described(model: object) -> str:
    """Say what was given for a model."""
    if isinstance(model, type):
        return f"the class {model.__name__}; make one, as {model.__name__}(...), and load its weights"
    return f"{type(model).__name__}; pass the trained network"


class Given(ChosenParameters):
    """A network, the data and the loss that define its minimum, and the parameters that may move.

    Nothing that is found out while measuring is kept here: that belongs to an `OpenProblem`, one for each measurement.
    """

    model: nn.Module
    loss: Loss
    mode: str
    seed: int
    chosen_parameters: dict[str, Tensor]
    source: Source
    forward_function: Callable[[nn.Module, Content], Any]
    notes: tuple[str, ...]
    precision: str

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        loss: str | Loss | nn.Module | Callable[..., Any] = "cross_entropy",
        *,
        forward: Callable[[nn.Module, Content], Any] | None = None,
        parameters: str | list[str] | tuple[str, ...] | None = None,
        samples: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        mode: str = "eval",
        precision: str = "float32",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise UsageError(f"model must be a torch.nn.Module, not {_described(model)}")
        if mode not in ("eval", "train"):
            raise UsageError(f"mode must be 'eval' or 'train', not {mode!r}")
        if forward is not None and not callable(forward):
            raise UsageError("forward must be a function (model, batch) -> outputs")
        opened, notes = open_model(model, device, dtype)
        source = open_source(data, batch_size=batch_size, samples=samples, seed=seed)
        self._fill(
            model=opened,
            loss=resolve(loss, opened),
            mode=mode,
            seed=seed,
            chosen_parameters=choose_parameters(opened, parameters),
            source=source,
            forward_function=forward or default_forward,
            notes=(*notes, *source.notes),
            precision=checked_precision(precision, opened),
        )

    @property
    def sharded(self) -> bool:
        """Whether the model's parameters are spread over several processes."""
        return is_sharded(self.chosen_parameters.values())

    def __repr__(self) -> str:
        samples = "" if self.source.count is None else f" on {self.source.count:,} samples"
        first = next(iter(self.chosen_parameters.values()))
        kind = f"{str(first.dtype).removeprefix('torch.')} on {first.device}"
        return (
            f"<Problem: {type(self.model).__name__} of {self.size:,} parameters{samples}, {self.loss.name}, "
            f"{self.mode} mode, {kind}>"
        )

    def _fill(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise UsageError(
            f"a Problem is frozen, so its {name} cannot be set; make another Problem, or one by on_network(model)"
        )

    def replaced(self, **changes: Any) -> Self:
        """Return the same with some fields replaced."""
        other = object.__new__(type(self))
        other._fill(**{name: changes.get(name, getattr(self, name)) for name in Given.__annotations__})
        return other

    def on_network(self, model: nn.Module) -> Self:
        """Return the same problem (data, loss, forward, chosen parameters) on another network of the same names.

        Parameters
        ----------
        model : torch.nn.Module
            A network that has all chosen parameters under the same names.

        Returns
        -------
        Problem
            The problem on that network.

        Raises
        ------
        SpiritlevelError
            The network lacks one of the chosen parameters.
        """
        own = dict(model.named_parameters())
        missing = [name for name in self.parameters if name not in own]
        if missing:
            raise SpiritlevelError(
                f"the other network has no parameter {missing[0]!r}, so it is not the same problem; give "
                "one of the same layers"
            )
        return self.replaced(model=model, chosen_parameters={name: own[name] for name in self.parameters})

    def on_every(self, step: int) -> Self:
        """Return the same problem on every so many of its samples, which must be in memory."""
        assert self.source.some is not None
        assert self.source.count is not None
        return self.replaced(source=self.source.some(torch.arange(0, self.source.count, step)))

    def in_own_batches(self) -> Self:
        """Return the same problem in batches of one size on every device, for what is defined by the batches."""
        return self if self.source.resized is None else self.replaced(source=replace(self.source, resized=None))

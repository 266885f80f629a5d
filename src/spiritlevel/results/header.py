"""What a result says of itself: which network, data, loss and precision, where the network stands, what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from spiritlevel.results.cost import ResultCost
from spiritlevel.results.records import as_json


@dataclass(frozen=True, kw_only=True)
class Header:
    """What was measured, on what and how; None stands for what nobody said.

    Attributes
    ----------
    model, weights : str
        The network's class, and its weights file.
    data, split : str
        The data's name, and which part of it.
    samples, samples_total : int
        How many samples were measured, and of how many.
    loss_name : str
        The loss.
    loss, accuracy : float
        The mean loss, and the share classified right.
    gradient_norm, gradient_noise : float
        The length of the mean gradient, and how long it is by chance where the true one is zero.
    at_minimum : bool
        Whether the gradient is that of a minimum; None where the samples cannot tell.
    seed : int
        Seed of what was drawn while measuring.
    fingerprint : str
        A hash of the data.
    mode, dtype, device : str
        "eval" or "train", the network's precision, and where it was measured.
    parameters : int
        How many parameters may move.
    layers, exact_layers : tuple of str
        The layers, and those whose blocks are exact.
    versions : mapping
        The versions that decide the numbers.
    wall_time : float
        Seconds that it took.
    passes : mapping
        Passes over the data by kind.
    notes : tuple of str
        What a reader must know beside the numbers.
    trained : bool
        False where it is known that the network was never trained.
    data_seed : int
        Seed of the draw of samples.
    request : mapping
        The command that asked for it.
    learning_rate : float
        Of the training.
    identity : str
        What has to be the same for the report to be kept by a command that is run again.
    epoch, step : float
        Where in its training the network is.
    run, run_group : str
        The training that the network is of, and what runs share that differ in their seed alone.
    test_accuracy : float
        The accuracy on test data, where somebody said it.
    precision : str
        That of Gauss–Newton sums where it is coarser than ``dtype``.
    guessing : bool
        True where a classifier does hardly better than guessing.
    other : mapping
        What a file or a user says beyond the fields here.
    """

    model: str | None = None
    weights: str | None = None
    data: str | None = None
    split: str | None = None
    samples: int | None = None
    samples_total: int | None = None
    loss_name: str | None = None
    loss: float | None = None
    accuracy: float | None = None
    gradient_norm: float | None = None
    gradient_noise: float | None = None
    at_minimum: bool | None = None
    seed: int | None = None
    fingerprint: str | None = None
    mode: str | None = None
    dtype: str | None = None
    device: str | None = None
    parameters: int | None = None
    layers: tuple[str, ...] | None = None
    exact_layers: tuple[str, ...] | None = None
    versions: Mapping[str, str] | None = None
    wall_time: float | None = None
    passes: Mapping[str, float] | None = None
    notes: tuple[str, ...] = ()
    trained: bool | None = None
    data_seed: int | None = None
    request: Mapping[str, Any] | None = None
    learning_rate: float | None = None
    identity: str | None = None
    epoch: float | None = None
    step: float | None = None
    run: str | None = None
    run_group: str | None = None
    test_accuracy: float | None = None
    precision: str | None = None
    guessing: bool | None = None
    other: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Header:
        """Return the header of facts by name, as a file has them."""
        return cls().with_facts(facts)

    def with_facts(self, facts: Mapping[str, Any]) -> Header:
        """Return the same header with these facts in place; names that are no field are kept among the others."""
        known = {name: _unchanging(name, value) for name, value in facts.items() if name in _NAMES}
        other = {name: value for name, value in facts.items() if name not in _NAMES}
        return replace(self, **known, other={**self.other, **other})

    @property
    def label(self) -> str:
        """What tells a result apart for a reader: its weights file, or the network's name."""
        return str(self.weights or self.model or "network")

    @property
    def cost(self) -> ResultCost:
        """What the measurement cost."""
        return ResultCost(self.wall_time, self.passes or {})

    def record(self) -> dict[str, Any]:
        """Return the header as plain JSON values: null for what nobody said, but nothing for what few ever say."""
        said = {name: getattr(self, name) for name in _NAMES}
        shown = {name: v for name, v in said.items() if v is not None or name not in _SELDOM}
        found: dict[str, Any] = as_json(shown | {**self.other})
        return found


class Headed:
    """A result with a header of its own."""

    header: Header

    def described(self, **facts: Any) -> Self:
        """Return the same result with more said of what was measured, such as its ``weights`` or its ``epoch``.

        Parameters
        ----------
        **facts
            Fields of the header by name; other names are kept beside them.

        Returns
        -------
        Self
            The result with that header.
        """
        return replace(self, header=self.header.with_facts(facts))  # type: ignore[type-var]


_NAMES = tuple(part.name for part in fields(Header) if part.name != "other")
_LISTS = ("layers", "exact_layers", "notes")
# Left out of a file where nobody said them.
_SELDOM = (
    "data_seed", "request", "learning_rate", "identity", "epoch", "step", "precision",
    "run", "run_group", "test_accuracy", "guessing",
)  # fmt: skip


def _unchanging(name: str, value: Any) -> Any:
    """Return a list as the tuple a header holds; no notes are as good as none."""
    if name == "notes" and value is None:
        return ()
    return tuple(value) if name in _LISTS and value is not None else value

"""One plain training loop: the same seed, model and data give the same network on the same machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, update_bn

from spiritlevel.lab.training.evaluation import Data, LossFunction, inputs_and_labels, place_of
from spiritlevel.lab.training.order import epoch_batches, plan_length, steps_per_epoch
from spiritlevel.lab.training.replaying import Replayed
from spiritlevel.lab.training.schedules import Schedule, resolve_schedule, schedule_name
from spiritlevel.lab.training.stopping import StopRule
from spiritlevel.values.errors import UsageError

OPTIMIZERS = ("sgd", "adam", "adamw")
PRECISIONS = ("float32", "bfloat16")
Augmentation = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class EpochRecord:
    """One epoch: the learning rate it ended with, the mean loss and accuracy of its batches as they were trained.

    Attributes
    ----------
    epoch : int
        The epoch, from 0.
    step : int
        Steps made by its end.
    lr : float
        The learning rate it ended with.
    loss : float
        The mean loss of its batches.
    accuracy : float
        The share classified right.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> record = sl.training.train(model, sl.datasets.load("digits"), epochs=2)
    >>> [(row.epoch, row.step) for row in record.epochs]
    [(0, 12), (1, 24)]
    """

    epoch: int
    step: int
    lr: float
    loss: float
    accuracy: float


@dataclass
class TrainingRecord:
    """What training did: how far it came, why it ended, every epoch, and the averaged network if asked for.

    Attributes
    ----------
    settings : dict
        What `train` was called with.
    steps : int
        Steps made.
    stopped_by : str
        Why it ended: "steps", "epochs", what a rule said, or that it diverged.
    seconds : float
        How long it took.
    epochs : list of EpochRecord
        Every epoch.
    averaged : torch.nn.Module
        The network of averaged weights; None where it was not asked for.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> record = sl.training.train(model, sl.datasets.load("digits"), steps=100)
    >>> record.steps, record.stopped_by, record.diverged
    (100, 'steps', False)
    """

    settings: dict[str, Any]
    steps: int = 0
    stopped_by: str = ""
    seconds: float = 0.0
    epochs: list[EpochRecord] = field(default_factory=list)
    averaged: nn.Module | None = None

    def add(self, row: EpochRecord) -> None:
        """Enter an epoch; a loss that is no longer a number ends training.

        Parameters
        ----------
        row : EpochRecord
            The epoch.
        """
        self.epochs.append(row)
        self.steps = row.step
        if not math.isfinite(row.loss):
            self.stopped_by = f"diverged in epoch {row.epoch}: the loss is {row.loss}, take a smaller learning rate"

    @property
    def diverged(self) -> bool:
        """Whether training ended because the loss was no longer a number."""
        return bool(self.epochs) and not math.isfinite(self.epochs[-1].loss)

    @property
    def loss(self) -> float:
        """The mean loss over the last epoch, as it was trained."""
        return self.epochs[-1].loss if self.epochs else float("nan")


def make_optimizer(
    model: nn.Module, name: str, lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return torch's optimiser of a name; ``adamw`` decouples the weight decay, scaled by the learning rate."""
    if name not in OPTIMIZERS:
        raise UsageError(f"No optimizer is called {name!r}: the names are {', '.join(OPTIMIZERS)}.")
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(model.parameters(), lr=lr, weight_decay=weight_decay)


def train(
    model: nn.Module,
    data: Data,
    *,
    optimizer: str = "sgd",
    lr: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    batch_size: int = 128,
    epochs: int | None = None,
    steps: int | None = None,
    schedule: str | Schedule = "constant",
    seed: int = 0,
    loss: LossFunction = functional.cross_entropy,
    augment: Augmentation | None = None,
    drop_last: bool = False,
    stop: StopRule | None = None,
    average_from: int | None = None,
    on_step: Callable[[int, nn.Module, Tensor], None] | None = None,
    on_epoch: Callable[[EpochRecord, nn.Module], None] | None = None,
    precision: str = "float32",
    replay: bool = True,
) -> TrainingRecord:
    """Train the model in place, where it is, and leave it in evaluation mode.

    Parameters
    ----------
    model : torch.nn.Module
        The network.
    data : LabelledData or pair of Tensor
        The samples (x, y).
    optimizer : str
        "sgd", "adam" or "adamw".
    lr : float
        The first learning rate.
    momentum : float
        Of sgd.
    weight_decay : float
        γ adds γ/2 ‖w‖² to the loss in sgd and adam; adamw decouples it, scaled by the learning rate.
    batch_size : int
        Samples a step.
    epochs : int
        How many epochs; either this or ``steps``.
    steps : int
        How many steps.
    schedule : str or callable
        "constant", "linear", "averaging", "cosine", or a function of progress in [0, 1). The rate follows it once an
        epoch, or once a step where ``steps`` was given.
    seed : int
        Seed of the order of the data, of augmentation and of dropout.
    loss : callable
        A function (outputs, labels), a mean over its batch.
    augment : callable
        A function (images, generator) that returns the batch changed at random, such as `crop_and_flip`.
    drop_last : bool
        Whether to leave out an uneven last batch.
    stop : StopRule
        What may end it earlier.
    average_from : int
        The epoch, counted from 0, from which the weights at the end of every epoch are averaged; BatchNorm statistics
        of the average are computed over the data.
    on_step : callable
        Called with the count of finished steps, the model and the batch's loss.
    on_epoch : callable
        Called with the epoch's record and the model.
    precision : str
        "float32", or "bfloat16", which multiplies in 16 bits (torch's autocast) with weights, sums and updates as they
        are.
    replay : bool
        Whether a GPU repeats the step from a recording, which changes its speed and nothing else.

    Returns
    -------
    TrainingRecord
        What was done, epoch by epoch.

    Raises
    ------
    UsageError
        An optimiser, a schedule or a precision does not exist, or neither or both of ``epochs`` and ``steps`` are
        given.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model, data = sl.nets.build("digits_mlp", seed=0), sl.datasets.load("digits")
    >>> record = sl.training.train(model, data, lr=0.1, batch_size=32, epochs=5)
    >>> record.steps, round(record.loss, 2), model.training
    (225, 0.82, False)
    """
    if precision not in PRECISIONS:
        raise UsageError(f"precision={precision!r} is not known: the names are {', '.join(PRECISIONS)}.")
    device, dtype = place_of(model)
    x, y = inputs_and_labels(data)
    per_epoch = steps_per_epoch(len(y), batch_size, drop_last)
    total = plan_length(epochs, steps, per_epoch)
    factor = resolve_schedule(schedule)
    method = make_optimizer(model, optimizer, lr, momentum, weight_decay)
    record = TrainingRecord(
        settings={
            "optimizer": optimizer, "lr": lr, "momentum": momentum, "weight_decay": weight_decay,
            "batch_size": batch_size, "epochs": epochs, "steps": steps, "seed": seed, "samples": len(y),
            "schedule": schedule_name(schedule), "average_from": average_from, "drop_last": drop_last,
            "precision": precision,
        }
    )  # fmt: skip
    x, y = x.to(device, dtype), y.to(device)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    low = precision == "bfloat16"
    if low:
        # How 16-bit convolutions want their images; torch's types know this only together with a dtype.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def differentiate(batch: Tensor, labels: Tensor) -> tuple[Any, ...]:
        # Each weight is used once, so nothing is gained by keeping its 16-bit copy.
        with torch.autocast(device.type, torch.bfloat16, enabled=low, cache_enabled=False):
            outputs = model(batch)
            value = loss(outputs, labels)
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        return value.detach(), (outputs.detach().argmax(dim=1) == labels).sum(), gradients

    step = Replayed(differentiate, device, total if replay else 0)
    averaged: AveragedModel | None = None
    started = time.perf_counter()
    model.train()
    with seeded_on(seed, device):
        order = torch.Generator().manual_seed(seed)
        drawn = torch.Generator().manual_seed(seed + 1)
        while record.steps < total and not record.stopped_by:
            epoch = len(record.epochs)
            loss_sum = torch.zeros((), dtype=torch.float64, device=device)
            right = torch.zeros((), dtype=torch.int64, device=device)
            seen = 0
            for index in epoch_batches(len(y), batch_size, order, drop_last, device):
                progress = record.steps / total if steps is not None else epoch * per_epoch / total
                for group in method.param_groups:
                    group["lr"] = lr * factor(progress)
                batch = x[index] if augment is None else augment(x[index], drawn)
                if low and batch.dim() == 4:
                    batch = batch.contiguous(memory_format=torch.channels_last)
                value, hits, gradients = step(batch, y[index])
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                if stop is not None:
                    stop.after_step(model)
                method.step()
                record.steps += 1
                seen += len(index)
                loss_sum += value.double() * len(index)
                right += hits
                if on_step is not None:
                    on_step(record.steps, model, value)
                if record.steps == total:
                    break
            row = EpochRecord(epoch, record.steps, group["lr"], float(loss_sum) / seen, int(right) / seen)
            record.add(row)
            if average_from is not None and epoch >= average_from:
                averaged = averaged or AveragedModel(model)
                averaged.update_parameters(model)
            if on_epoch is not None:
                on_epoch(row, model)
            if stop is not None and not record.diverged:
                record.stopped_by = stop.after_epoch(row.loss) or ""
        if averaged is not None:
            update_bn(list(x.split(batch_size)), averaged)
            record.averaged = averaged.module.eval()
    record.stopped_by = record.stopped_by or ("steps" if steps is not None else "epochs")
    record.seconds = time.perf_counter() - started
    model.eval()
    if low:
        for each in (model, record.averaged):  # torch's types, as above
            if each is not None:
                each.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return record


@contextmanager
def seeded_on(seed: int, device: torch.device) -> Iterator[None]:
    """Seed dropout and take repeatable convolutions inside, put the global state back outside."""
    devices = [device] if device.type == "cuda" else []
    repeatable = torch.backends.cudnn.deterministic
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        torch.backends.cudnn.deterministic = True
        try:
            yield
        finally:
            torch.backends.cudnn.deterministic = repeatable

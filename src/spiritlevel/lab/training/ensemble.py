"""Many small networks of one architecture trained together: their parameters are stacked and every step is one vmap.

Each network has its own initialisation, data order, labels and learning rate, and ends where training it alone with
`train` would have ended (to rounding; dropout masks excepted, which are drawn for the whole stack).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn import functional

from spiritlevel.lab.training.evaluation import Data, LossFunction, inputs_and_labels, place_of
from spiritlevel.lab.training.loop import EpochRecord, TrainingRecord, seeded_on, train
from spiritlevel.lab.training.order import plan_length, stacked_epoch_batches, steps_per_epoch
from spiritlevel.lab.training.replaying import Replayed
from spiritlevel.lab.training.schedules import Schedule, resolve_schedule, schedule_name
from spiritlevel.lab.training.stopping import LossTarget
from spiritlevel.lab.training.updates import StackedOptimizer
from spiritlevel.values.documented import documented_like
from spiritlevel.values.errors import UsageError

OnEpoch = Callable[[dict[int, EpochRecord]], None]


@documented_like(train)
def train_ensemble(
    models: Sequence[nn.Module],
    data: Data,
    *,
    seeds: Sequence[int],
    lr: float | Sequence[float] = 0.1,
    labels: Tensor | None = None,
    optimizer: str = "sgd",
    momentum: float = 0.0,
    weight_decay: float | Sequence[float] = 0.0,
    batch_size: int = 128,
    epochs: int | None = None,
    steps: int | None = None,
    schedule: str | Schedule = "constant",
    loss: LossFunction = functional.cross_entropy,
    drop_last: bool = False,
    stop: LossTarget | None = None,
    on_epoch: OnEpoch | None = None,
    replay: bool = True,
) -> list[TrainingRecord]:
    """Train K networks in place, where they are, and leave them in evaluation mode; one record each.

    Each network ends where training it alone with `train` would have ended (to rounding; dropout masks excepted, which
    are drawn for all together). One that reaches the target of ``stop``, or diverges, leaves the others.

    Parameters
    ----------
    models : list of torch.nn.Module
        K networks of one architecture.
    seeds : list of int
        The seed of each network's order of the data.
    lr : float or list of float
        One learning rate or K.
    labels : Tensor
        In place of the data's, labels (K, N) of each network (label noise).
    weight_decay : float or list of float
        One or K, as for `train`.
    stop : LossTarget
        What may end a network's training earlier.
    on_epoch : callable
        Called with the epoch of every network that is still trained, by its place in ``models``; their weights are up
        to date.
    replay : bool
        Whether a GPU repeats the step of sgd from a recording, which changes its speed and nothing else.

    Returns
    -------
    list of TrainingRecord
        What was done to each.

    Raises
    ------
    UsageError
        The networks are not of one architecture, or there are not as many seeds, rates or labels.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> models = [sl.nets.build("digits_mlp", seed=seed) for seed in range(3)]
    >>> data = sl.datasets.load("digits")
    >>> records = sl.training.train_ensemble(models, data, seeds=[0, 1, 2], epochs=2)
    >>> [record.steps for record in records]
    [24, 24, 24]
    """
    _check_alike(models)
    count = len(models)
    rates = [float(lr)] * count if isinstance(lr, int | float) else [float(rate) for rate in lr]
    decays = [weight_decay] * count if isinstance(weight_decay, int | float) else list(weight_decay)
    x, y = inputs_and_labels(data)
    targets = y.expand(count, -1) if labels is None else labels
    for what, found, wanted in (
        ("seeds", len(seeds), count),
        ("learning rates", len(rates), count),
        ("weight decays", len(decays), count),
        ("rows of labels", len(targets), count),
        ("labels a row", targets.shape[1], len(x)),
    ):
        if found != wanted:
            raise UsageError(f"Training {count} networks on {len(x)} samples needs {wanted} {what}, and got {found}.")
    device, dtype = place_of(models[0])
    per_epoch = steps_per_epoch(len(x), batch_size, drop_last)
    total = plan_length(epochs, steps, per_epoch)
    factor = resolve_schedule(schedule)
    common = {
        "optimizer": optimizer, "momentum": momentum, "batch_size": batch_size,
        "epochs": epochs, "steps": steps, "samples": len(x), "schedule": schedule_name(schedule),
        "average_from": None, "drop_last": drop_last,
        "precision": "float32",
    }  # fmt: skip
    records = [
        TrainingRecord({**common, "lr": rate, "weight_decay": decay, "seed": seed})
        for rate, decay, seed in zip(rates, decays, seeds, strict=True)
    ]
    stack = _Stack(models, loss)
    method = StackedOptimizer(optimizer, stack.params, momentum, weight_decay)
    x, targets = x.to(device, dtype), targets.to(device)
    first_rates = torch.tensor(rates, dtype=torch.float64, device=device)
    orders = [torch.Generator().manual_seed(seed) for seed in seeds]
    done, epoch = 0, 0
    step: Replayed | None = None
    started = time.perf_counter()
    with seeded_on(seeds[0], device):
        while done < total and stack.members:
            if step is None:
                step = _step(stack, method, x, targets, total - done if replay else 0)
            rates_now = first_rates[torch.tensor(stack.members, device=device)]
            loss_sum = torch.zeros(len(stack.members), dtype=torch.float64, device=device)
            right = torch.zeros(len(stack.members), dtype=torch.int64, device=device)
            seen = 0
            generators = [orders[k] for k in stack.members]
            for index in stacked_epoch_batches(len(x), batch_size, generators, drop_last, device):
                progress = done / total if steps is not None else epoch * per_epoch / total
                rate = rates_now * factor(progress)
                values, hits = step(index, rate)
                done += 1
                seen += index.shape[1]
                loss_sum += values.double() * index.shape[1]
                right += hits
                if done == total:
                    break
            means, shares = (loss_sum / seen).tolist(), (right.double() / seen).tolist()
            rows = {}
            for place, member in enumerate(stack.members):
                row = EpochRecord(epoch, done, float(rate[place]), means[place], shares[place])
                record = records[member]
                record.add(row)
                if stop is not None and not record.diverged:
                    record.stopped_by = stop.after_epoch(row.loss) or ""
                record.seconds = time.perf_counter() - started
                rows[member] = row
            if on_epoch is not None:
                stack.write()
                on_epoch(rows)
            leaving = [place for place, member in enumerate(stack.members) if records[member].stopped_by]
            if leaving:
                method.keep(stack.drop(leaving))
                step = None  # the stack's tensors are new ones
            epoch += 1
    stack.write()
    for model, record in zip(models, records, strict=True):
        record.stopped_by = record.stopped_by or ("steps" if steps is not None else "epochs")
        model.eval()
    return records


def _step(stack: _Stack, method: StackedOptimizer, x: Tensor, targets: Tensor, calls: int) -> Replayed:
    """Return one step of every network in the stack as a function of (networks, batch) indices and learning rates."""
    members = torch.tensor(stack.members, device=x.device)

    def step(index: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        values, hits = stack.backward(x[index], targets[members[:, None], index])
        method.step(stack.params, stack.gradients, rate)
        return values, hits

    # The Adams count their steps in Python, which a recording would not repeat.
    return Replayed(step, x.device, calls if method.name == "sgd" else 0)


class _Stack:
    """The parameters and buffers of the networks still in training, stacked along a first axis."""

    def __init__(self, models: Sequence[nn.Module], loss: LossFunction) -> None:
        self.models = models
        self.members = list(range(len(models)))
        for model in models:
            model.train()
        params, buffers = stack_module_state(list(models))
        self.params = {key: value.detach().requires_grad_() for key, value in params.items()}
        self.buffers = {key: value.detach() for key, value in buffers.items()}
        self.gradients: dict[str, Tensor] = {}
        skeleton = copy.deepcopy(models[0]).to("meta")

        def one(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            outputs = functional_call(skeleton, (params, buffers), (x,))
            return loss(outputs, y), (outputs.argmax(dim=1) == y).sum()

        self.forward = torch.vmap(one, randomness="different")

    def backward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return each network's loss and hits on its own batch, and keep the gradients.

        The gradient of the sum of all losses with respect to one network's parameters is that network's own gradient.
        BatchNorm updates its running statistics in the stacked buffers, in place.
        """
        values, hits = self.forward(self.params, self.buffers, x, y)
        found = torch.autograd.grad(values.sum(), list(self.params.values()))
        self.gradients = dict(zip(self.params, found, strict=True))
        return values.detach(), hits

    def write(self) -> None:
        """Copy the stacked weights and statistics back into their models."""
        with torch.no_grad():
            for place, member in enumerate(self.members):
                for key, parameter in self.models[member].named_parameters():
                    parameter.copy_(self.params[key][place])
                for key, buffer in self.models[member].named_buffers():
                    buffer.copy_(self.buffers[key][place])

    def drop(self, places: Sequence[int]) -> Tensor:
        """Write all networks back, take some out of the stack, and return the places of those that stay."""
        self.write()
        staying = [place for place in range(len(self.members)) if place not in set(places)]
        self.members = [self.members[place] for place in staying]
        device = next(iter(self.params.values())).device
        keep = torch.tensor(staying, dtype=torch.int64, device=device)
        self.params = {key: value.detach()[keep].requires_grad_() for key, value in self.params.items()}
        self.buffers = {key: value[keep] for key, value in self.buffers.items()}
        return keep


def _check_alike(models: Sequence[nn.Module]) -> None:
    if not models:
        raise UsageError("There are no networks to train: give at least one model.")
    shapes = [{key: (value.shape, value.dtype, value.device) for key, value in m.state_dict().items()} for m in models]
    kinds = [[type(module) for module in model.modules()] for model in models]
    for place in range(1, len(models)):
        if shapes[place] != shapes[0] or kinds[place] != kinds[0]:
            raise UsageError(
                f"Network {place} differs from network 0 in its layers, shapes, dtype or device: networks trained "
                "together need one architecture."
            )
    if any(not parameter.requires_grad for parameter in models[0].parameters()):
        raise UsageError(
            "A network has parameters that do not require gradients, which training together does not admit."
        )

"""Loss and accuracy of a network in evaluation mode, summed in float64 over batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from spiritlevel.lab.datasets.labelled import LabelledData

Data = LabelledData | tuple[Tensor, Tensor]
LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Evaluation:
    """The mean loss and the share of samples whose largest output is the label's.

    Attributes
    ----------
    loss : float
        The mean loss.
    accuracy : float
        The share classified right.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> found = sl.training.evaluate(model, sl.datasets.load("digits", "test"))
    >>> round(found.loss, 2), round(found.accuracy, 2)
    (2.31, 0.1)
    """

    loss: float
    accuracy: float


def inputs_and_labels(data: Data) -> tuple[Tensor, Tensor]:
    """Return (x, y) of a data set or of a pair of tensors."""
    return data.tensors if isinstance(data, LabelledData) else data


def place_of(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Return the device and the floating dtype of a model's parameters."""
    first = next(model.parameters())
    return first.device, first.dtype


def evaluate(
    model: nn.Module, data: Data, *, batch_size: int = 1024, loss: LossFunction = functional.cross_entropy
) -> Evaluation:
    """Return the model's loss and accuracy; its mode is put back afterwards.

    Parameters
    ----------
    model : torch.nn.Module
        The network.
    data : LabelledData or pair of Tensor
        The samples (x, y).
    batch_size : int
        Samples a batch.
    loss : callable
        A function (outputs, labels), a mean over its batch.

    Returns
    -------
    Evaluation
        Loss and accuracy.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model, data = sl.nets.build("digits_mlp", seed=0), sl.datasets.load("digits")
    >>> record = sl.training.train(model, data, steps=1000, batch_size=32)
    >>> found = sl.training.evaluate(model, sl.datasets.load("digits", "test"))
    >>> print(f"accuracy {found.accuracy:.2f}")
    accuracy 0.96
    """
    device, dtype = place_of(model)
    x, y = inputs_and_labels(data)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    total, right = 0.0, 0
    try:
        with torch.no_grad():
            for xs, ys in zip(x.split(batch_size), y.split(batch_size)):
                outputs = model(xs.to(device, dtype))
                labels = ys.to(device)
                total += float(loss(outputs, labels)) * len(labels)
                right += int((outputs.argmax(dim=1) == labels).sum())
    finally:
        for module, mode in modes.items():
            module.training = mode
    return Evaluation(total / len(y), right / len(y))

"""What the studies are made of: parts of the data sets and the papers' networks, by settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spiritlevel.lab.datasets import LabelledData, fit_images, from_npz, load, standardised, to_grey
from spiritlevel.lab.datasets.files import data_roots
from spiritlevel.lab.nets import build, initialise, spec
from spiritlevel.lab.studies.study import Place, Settings
from spiritlevel.lab.studies.telling import EpochLines
from spiritlevel.lab.training import TrainingRecord, train, train_ensemble
from spiritlevel.values.errors import SpiritlevelError


@lru_cache(maxsize=4)
def _whole(name: str, split: str, root: str | None) -> LabelledData:
    """Return a split of a data set, or the beginning of it that NAME-SPLIT.npz in a data root holds."""
    try:
        return load(name, split, root=root)
    except SpiritlevelError:
        for folder in data_roots(None if root is None else Path(root)):
            beginning = folder / f"{name}-{split}.npz"
            if beginning.is_file():
                found = from_npz(beginning)
                return LabelledData(found.x, found.y, name, split, found.classes, ("the beginning of the split",))
        raise


def images(name: str, split: str, place: Place, *, first: int | None = None, last: int | None = None) -> LabelledData:
    """Return the first or the last images of a split; a set that holds fewer is an error, never a silent subset."""
    data = _whole(name, split, place.data_root)
    wanted = first or last
    if wanted is None or wanted == len(data):
        return data
    if wanted > len(data):
        raise SpiritlevelError(f"{name}:{split} has {len(data):,} images here and the run needs {wanted:,}.")
    return data.subset(slice(0, wanted) if first else slice(len(data) - wanted, None))


# How a run's inputs are standardised: less a mean, over a deviation. A run that says nothing has pixels in [0, 1].
INPUTS = {
    "symmetric": (0.5, 0.5),  # pixels in [-1, 1]
    "mnist": (0.1307, 0.3081),  # mean and deviation of MNIST's training pixels
}


def fitted(data: LabelledData, net: str, grey: bool = False, inputs: str | None = None) -> LabelledData:
    """Return the images as a network takes them: grey and standardised on request, and no smaller than its own."""
    found = fit_images(to_grey(data) if grey else data, spec(net).size)
    return found if inputs is None else standardised(found, *INPUTS[inputs])


@lru_cache(maxsize=4)
def _fitted_images(
    name: str, split: str, place: Place, first: int | None, last: int | None, net: str, grey: bool, inputs: str | None
) -> LabelledData:
    return fitted(images(name, split, place, first=first, last=last), net, grey, inputs)


def run_images(
    settings: Settings, split: str, place: Place, *, first: int | None = None, last: int | None = None
) -> LabelledData:
    """Return images of a split as a run's settings ask for them; the runs of a study share them."""
    return _fitted_images(
        settings["data"], split, place, first, last, settings["net"], settings.get("grey", False),
        settings.get("inputs"),
    )  # fmt: skip


def training_data(settings: Settings, place: Place) -> LabelledData:
    """Return the training images of a run."""
    return run_images(settings, "train", place, first=settings.get("images"))


def held_out_data(settings: Settings, place: Place) -> LabelledData:
    """Return the test images of a run."""
    return run_images(settings, "test", place, first=settings.get("test_images"))


def network(settings: Settings, data: LabelledData, place: Place) -> nn.Module:
    """Return the run's network at its seed, for the shape of the data, on the place's device."""
    args: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in settings.get("args", {}).items()
    }
    model = build(
        settings["net"], channels=data.channels, size=data.size, classes=data.classes, seed=settings["seed"], **args
    )
    if "initialisation" in settings:
        model = initialise(model, settings["initialisation"], settings["seed"])
    return model.to(place.device)


_TRAINING = (
    "optimizer", "lr", "momentum", "weight_decay", "batch_size", "epochs", "steps", "schedule", "average_from",
    "precision",
)  # fmt: skip


def training_options(settings: Settings) -> dict[str, Any]:
    """Return the options of ``train`` that a run sets."""
    return {key: settings[key] for key in _TRAINING if key in settings}


def trained_alone(
    settings: Settings, data: LabelledData, place: Place, **more: Any
) -> tuple[nn.Module, TrainingRecord]:
    """Train one network."""
    model = network(settings, data, place)
    return model, train(model, data, seed=settings["seed"], **training_options(settings), **more)


def trained_together(
    group: Sequence[Settings],
    models: Sequence[nn.Module],
    data: LabelledData,
    labels: torch.Tensor | None = None,
    **more: Any,
) -> list[TrainingRecord]:
    """Train the networks of a group in one stack; they may differ in seed, rate, weight decay and labels only."""
    options = training_options(group[0])
    options["lr"] = [settings["lr"] for settings in group]
    if len({settings.get("weight_decay", 0.0) for settings in group}) > 1:
        options["weight_decay"] = [settings.get("weight_decay", 0.0) for settings in group]
    if "epochs" in options and "on_epoch" not in more:
        more["on_epoch"] = EpochLines(f"{group[0]['net']} on {data.name}", len(data), options["epochs"])
    return train_ensemble(
        models, data, seeds=[settings["seed"] for settings in group], labels=labels, **options, **more
    )


def train_one(group: Sequence[Settings], place: Place) -> list[tuple[nn.Module, LabelledData]]:
    """Train the one network of a group and return it with its data, as a study's ``train``."""
    (settings,) = group
    data = training_data(settings, place)
    model, _ = trained_alone(settings, data, place)
    return [(model, data)]


def train_stack(group: Sequence[Settings], place: Place, **more: Any) -> list[nn.Module]:
    """Train the networks of a group in one stack and return them, as a study's ``train``."""
    data = training_data(group[0], place)
    models = [network(settings, data, place) for settings in group]
    trained_together(group, models, data, **more)
    return models


def sample_indices(count: int, wanted: int, seed: int) -> torch.Tensor:
    """Return the places of random samples, in order."""
    if wanted >= count:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator)[:wanted].sort().values


def points_of(data: LabelledData, count: int, seed: int) -> LabelledData:
    """Return random samples of the data, in order; all of them where there are no more."""
    return data.subset(sample_indices(len(data), count, seed))


def crossed(**axes: Iterable[Any]) -> list[dict[str, Any]]:
    """Return every combination of the axes, the last one running fastest."""
    combined: list[dict[str, Any]] = [{}]
    for name, values in axes.items():
        combined = [{**settings, name: value} for settings in combined for value in values]
    return combined


def with_common(runs: Sequence[Settings], **common: Any) -> list[Settings]:
    """Return the runs with settings that they all share."""
    return [{**common, **run} for run in runs]

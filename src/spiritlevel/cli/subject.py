"""What a request is about: the network, built once, and the data, drawn once; weights are loaded in turn."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spiritlevel.analyses.measuring import MeasuringInterrupted, measure
from spiritlevel.cli import names
from spiritlevel.cli.constructing import Construction
from spiritlevel.cli.hugging_face import HUGGING_FACE, check_task, load_transformers_weights
from spiritlevel.cli.outputs import also_read, keep_stdout, refuse_code, refuse_lossy
from spiritlevel.cli.own_measures import named_measures
from spiritlevel.cli.request import Request
from spiritlevel.cli.spoken import results_in_cli_words
from spiritlevel.cli.tasks import task_named
from spiritlevel.cli.token_data import TokenReader
from spiritlevel.cli.user_code import inputs_of
from spiritlevel.engine.problem import Problem
from spiritlevel.inputs.deadline import Deadline
from spiritlevel.inputs.weights.checkpoints import LoadedWeights, load_weights
from spiritlevel.results import Report
from spiritlevel.results.wording import shared_prefix_removed
from spiritlevel.values.errors import UsageError


class NotLoaded(UsageError):
    """A weights file could not be loaded as asked for; another one may be."""


class Subject:
    """The network and the data, built once; every weights file is loaded into the same network in turn."""

    def __init__(self, request: Request) -> None:
        self.request = request
        assert request.model is not None
        assert request.data is not None
        assert request.seed is not None
        # Random augmentation and user code that builds a network draw from the global state.
        random.seed(request.seed)
        np.random.seed(request.seed % 2**32)  # noqa: NPY002 (what user code draws from)
        torch.manual_seed(request.seed)
        task = task_named(request.task) if request.task is not None else None
        if task is not None and request.model.startswith(HUGGING_FACE):
            check_task(request.model, request.model_args, task)
        self._reader = TokenReader(task, request.model, request.model_args, request.seed) if task is not None else None
        self._construction = Construction(request)
        self.named = names.build_named_model(
            request.model,
            self._construction.arguments,
            self._data_named(request.data),
            request.seed,
            task=task,
            weights=request.weights,
        )
        self.forward = names.find_forward(request.forward) if request.forward is not None else None
        self.trained = bool(request.weights or self.named.weights)
        self._first: Problem | None = None

    def _data_named(self, name: str) -> names.NamedData:
        return names.open_named_data(name, self.request.data_args, self.request.data_root, self._reader)

    def other_data(self, name: str) -> Any:
        """Return other data for the same network."""
        return names.fit_data(self.named.name, self._data_named(name))[0].content

    def problem(self, weights: str | None) -> Problem:
        """Return the problem with the weights of a file, or with those the network came with."""
        request, content = self.request, self.named.data.content
        self.notes = [*self.named.data.notes, *self.named.notes, *self._construction.notes]
        if weights is not None:
            loaded = self._load(weights)
            self.notes += [f"{weights}: {text}." for text in loaded.notes]
        problem = Problem(
            self.named.model,
            content if self._first is None else next(self._first.source.read()),
            request.loss or "cross_entropy",
            forward=self.forward,
            parameters=list(request.parameters) or None,
            samples=request.samples if self._first is None else None,
            seed=request.seed or 0,
            batch_size=request.batch_size,
            device=request.device,
            dtype=request.dtype,
            mode=request.mode or "eval",
            precision=request.precision or "float32",
        )
        if self._first is None:
            self._first = problem
        else:  # every network is measured on the very same draw of the data
            source = self._first.source
            problem = problem.replaced(source=source, notes=(*problem.notes, *source.notes))
        return problem

    def _load(self, weights: str) -> LoadedWeights:
        try:
            self._construction.check(weights)
            load = load_transformers_weights if self.named.name.startswith(HUGGING_FACE) else load_weights
            return load(self.named.model, weights, self.request.key)
        except UsageError as error:
            raise NotLoaded(str(error)) from error

    def report(self, weights: str | None, progress: bool, seconds: Deadline | None = None) -> Report:
        """Return the report with the weights of a file, by a deadline where there is one."""
        request = self.request
        problem = self.problem(weights)
        try:
            report = measure(
                problem,
                measures=named_measures(request.measures),
                settings=request.flat_settings(),
                seed=request.seed or 0,
                tolerance=request.tolerance,
                seconds=seconds,
                progress=progress,
            )
        except MeasuringInterrupted as stop:
            stop.report = self._described(stop.report, weights)
            raise
        return self._described(report, weights)

    def _described(self, report: Report, weights: str | None) -> Report:
        described = report.described(**self.facts(weights), notes=[*report.header.notes, *self.notes])
        return results_in_cli_words(described)

    def facts(self, weights: str | None, **own: Any) -> dict[str, Any]:
        """Return what a command knows of a network and a problem does not: what it is called and who asked for it.

        ``own`` are the options of the command's own that decide the numbers.
        """
        return {
            "model": self.named.name,
            "weights": weights or self.named.weights,
            "data": self.named.data.name,
            "split": self.named.data.split,
            "trained": self.trained,
            "request": {**self.request.record(), **own},
        }


def checked_subject(request: Request, options: Mapping[str, Any]) -> Subject:
    """Return what a request is about, once the command's outputs are known to replace nothing that it reads."""
    refuse_lossy(options, inputs_of(request, **also_read(options)))
    keep_stdout(options)
    assert request.model is not None
    names.check_model_name(request.model)
    subject = Subject(request)
    refuse_code(options)
    return subject


def targets_of(weights: tuple[str, ...]) -> list[str]:
    """Return a short label for each weights file, all different."""
    if len({Path(path).resolve() for path in weights}) < len(weights):
        raise UsageError("the same weights file is named twice; name each once")
    return shared_prefix_removed(weights) if weights else ["initialised"]

"""The arguments that a class is called with: from the command line, or as Lightning stored them with the weights."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from spiritlevel.cli.names import find_object, is_place
from spiritlevel.cli.request import Request
from spiritlevel.inputs.weights.stored_arguments import stored_arguments
from spiritlevel.values.errors import UsageError


class Construction:
    """The arguments of the network's class, and whether they came with a file of weights."""

    def __init__(self, request: Request) -> None:
        self.arguments: Mapping[str, Any] = request.model_args
        self.notes: tuple[str, ...] = ()
        self._source = ""
        self._parameters: Mapping[str, inspect.Parameter] = {}
        model = request.model or ""
        if request.model_args or not request.weights or not is_place(model):
            return
        found = find_object(model)
        if not isinstance(found, type):  # a function may do anything with its arguments
            return
        try:
            self._parameters = inspect.signature(found).parameters
        except (ValueError, TypeError):
            return
        for path in request.weights:
            if self._source:
                break
            self._take(path, found.__name__)

    def _take(self, path: str, name: str) -> None:
        plain, others = self._stored(path)
        required = [
            other
            for other in others
            if other in self._parameters and self._parameters[other].default is inspect.Parameter.empty
        ]
        if required:
            raise UsageError(
                f"{path} stores the argument {required[0]} of {name} as an object, which is not rebuilt; name a "
                "function that builds the network, as path/file.py:function"
            )
        if not plain:
            return
        self._source, self.arguments = path, plain
        said = ", ".join(f"{key}={value!r}" for key, value in plain.items())
        left = f"; {', '.join(others)}, no plain value, was left at its default" if others else ""
        self.notes = (f"Built as {name}({said}), by the hyper-parameters in {path}{left}.",)

    def check(self, path: str) -> None:
        """Refuse weights whose stored hyper-parameters ask for another network than the one that was built."""
        if not self._source or path == self._source:
            return
        plain, _ = self._stored(path)
        differing = [key for key in {**self.arguments, **plain} if plain.get(key) != self.arguments.get(key)]
        if plain and differing:
            key = differing[0]
            raise UsageError(
                f"{path} stores {key}={plain.get(key)!r}, and the network was built with {key}="
                f"{self.arguments.get(key)!r} as {self._source} has it; measure it in a command of its own"
            )

    def _stored(self, path: str) -> tuple[dict[str, Any], list[str]]:
        """Return the plain hyper-parameters that the class takes, and the names of others that it would take."""
        stored = stored_arguments(path)
        every = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in self._parameters.values())
        plain = {key: value for key, value in stored.plain.items() if every or key in self._parameters}
        return plain, [key for key in stored.others if every or key in self._parameters]

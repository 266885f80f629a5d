"""Finding the weights inside what was unpickled: a state dict, or a whole module, on its own or under an entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spiritlevel.inputs.weights.bounded_pickle import ENTRY, Budget
from spiritlevel.inputs.weights.safe_pickle import ArrayRecord, Placeholder, placeholder_parts, shown
from spiritlevel.inputs.weights.torch_files import TensorRecord, UnreadableTensor
from spiritlevel.values.errors import SpiritlevelError, UsageError, near_names

WEIGHT_ENTRIES = ("state_dict", "model_state_dict", "model", "net")
# Averaged weights are another network than the one trained: they are taken only when asked for.
AVERAGED_ENTRIES = ("ema", "state_dict_ema", "model_ema")
_DEPTH = 4

StoredTensor = TensorRecord | UnreadableTensor | ArrayRecord


@dataclass(frozen=True)
class FoundWeights:
    """The named tensors of a file, the entry they lie under, and the other entries that hold weights too."""

    records: dict[str, StoredTensor]
    key: str | None
    whole_module: bool
    other_keys: tuple[str, ...]


def find_weights(root: object, key: str | None, path: object, budget: Budget) -> FoundWeights:
    """Return the weights under a key such as ``"ema.state_dict"``, or without one those of the usual entries."""
    value = root if key is None else _descend(root, key, path)
    search = _EntrySearch(budget)
    found = search.weights(value, _DEPTH)
    others = tuple(name for name, child in _children(root).items() if search.has_weights(child, _DEPTH))
    if found is None:
        where = path if key is None else f"entry {key!r} of {path}"
        hint = f"give one of {listed(others)} as key" if others else "save model.state_dict() with torch.save"
        raise (SpiritlevelError if key is None else UsageError)(
            f"{where} holds no weights (it has {listed(_children(value)) or 'no named entries'}); {hint}"
        )
    records, inner, whole_module = found
    taken = ".".join(part for part in (key, *inner) if part) or None
    unused = tuple(name for name in others if taken is None or taken.split(".")[0] != name)
    return FoundWeights(records, taken, whole_module, unused)


def _descend(value: object, key: str, path: object) -> object:
    """Follow a dotted key; an entry whose own name has dots is preferred to a path through shorter ones."""
    remaining = key.split(".")
    while remaining:
        children = _children(value)
        for length in range(len(remaining), 0, -1):
            name = ".".join(remaining[:length])
            if name in children:
                value, remaining = children[name], remaining[length:]
                break
        else:
            near = near_names(".".join(remaining), children)
            raise UsageError(f"{path} has no entry {key!r}{near or '; it has ' + (listed(children) or 'no entries')}")
    return value


class _EntrySearch:
    """Looks for weights among values that may share parts or contain themselves; every step is charged to the file."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.known: dict[tuple[int, int], bool] = {}

    def weights(self, value: object, depth: int) -> tuple[dict[str, StoredTensor], tuple[str, ...], bool] | None:
        """Return the weights in a value, the entries that lead to them, and whether they come from a whole module."""
        if _is_module(value):
            records = dict(self.module_records(value, "", ()))
            return (records, (), True) if records else None
        children = self.children(value)
        for entry in WEIGHT_ENTRIES if depth else ():
            if self.has_weights(children.get(entry), depth - 1):
                found = self.weights(children[entry], depth - 1)
                if found is not None:
                    return found[0], (entry, *found[1]), found[2]
        # What is no tensor (a step count, extra state) is no weight; if the model needs the name it will be missed.
        records = {name: child for name, child in children.items() if isinstance(child, StoredTensor)}
        return (records, (), False) if records else None

    def has_weights(self, value: object, depth: int) -> bool:
        """Say whether a value holds weights; each one is looked at once, under however many names it lies."""
        if not _is_container(value):
            return False
        place = id(value), depth
        if place not in self.known:
            self.known[place] = False
            if _is_module(value):
                self.known[place] = self._module_has_records(value)
            else:
                children = self.children(value)
                self.known[place] = any(isinstance(child, StoredTensor) for child in children.values()) or any(
                    self.has_weights(children.get(entry), depth - 1) for entry in (WEIGHT_ENTRIES if depth else ())
                )
        return self.known[place]

    def children(self, value: object) -> dict[str, Any]:
        """Return the named parts of a container."""
        children = _children(value) if _is_container(value) else {}
        self.budget.spend(ENTRY * (1 + len(children)))
        return children

    def _module_has_records(self, module: Any) -> bool:
        """Say whether a module or any inside it holds a tensor; parts that modules share are looked at once."""
        waiting, seen = [module], {id(module)}
        while waiting:
            parts = _module_parts(waiting.pop())
            self.budget.spend(ENTRY * (1 + sum(map(len, parts))))
            if any(isinstance(record, StoredTensor) for group in parts[:2] for record in group.values()):
                return True
            fresh = [child for child in parts[2].values() if _is_module(child) and id(child) not in seen]
            seen.update(map(id, fresh))
            waiting += fresh
        return False

    def module_records(self, module: Any, prefix: str, inside: tuple[int, ...]) -> Iterator[tuple[str, StoredTensor]]:
        """Yield the names and tensors that ``state_dict()`` of a pickled module would have."""
        if id(module) in inside:
            raise SpiritlevelError(f"the module saved in the file contains itself at {shown(prefix)}, so it is damaged")
        *groups, modules = _module_parts(module)
        hidden = placeholder_parts(module).get("_non_persistent_buffers_set")
        # A module shared by others is visited once for every name it has.
        self.budget.spend(8 * ENTRY + 8 * len(inside))
        for group, left_out in zip(groups, ((), hidden if isinstance(hidden, set) else ())):
            for name, record in group.items():
                if isinstance(name, str) and isinstance(record, StoredTensor) and name not in left_out:
                    self.budget.spend(ENTRY + len(prefix) + len(name))
                    yield prefix + name, record
        for name, child in modules.items():
            if isinstance(name, str) and _is_module(child):
                self.budget.spend(len(prefix) + len(name))
                yield from self.module_records(child, f"{prefix}{name}.", (*inside, id(module)))


def _is_container(value: object) -> bool:
    return isinstance(value, dict | Placeholder)


def _children(value: object) -> dict[str, Any]:
    """Return the named parts of a dictionary, a module, another object or a list."""
    if isinstance(value, dict):
        return {name: child for name, child in value.items() if isinstance(name, str)}
    if isinstance(value, Placeholder):
        parts = placeholder_parts(value)
        return {**parts, **_children(parts["_modules"])} if _is_module(value) else parts
    if isinstance(value, list | tuple):
        return {str(index): child for index, child in enumerate(value)}
    return {}


def _is_module(value: object) -> bool:
    """Say whether a placeholder has the state of a ``torch.nn.Module``."""
    return isinstance(value, Placeholder) and all(isinstance(part, dict) for part in _module_parts(value))


def _module_parts(module: Placeholder) -> tuple[Any, Any, Any]:
    """Return the parameters, buffers and modules of a module, whatever they are."""
    state = module.state[0] if isinstance(module.state, tuple) and module.state else module.state
    named = state if isinstance(state, dict) else {}
    return named.get("_parameters"), named.get("_buffers"), named.get("_modules")


def listed(names: Any, most: int = 8) -> str:
    """Return the first names of a collection, separated by commas."""
    names = list(names)
    return ", ".join(map(shown, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")

"""Nested lists, tuples and dictionaries taken apart and put together, as ``torch.utils._pytree`` does.

torch has no public name for it.  Where its own is missing the plain containers of Python are known, and what other
libraries registered with torch is a leaf.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

try:
    from torch.utils import _pytree
except ImportError:
    _pytree = None  # type: ignore[assignment]

_NAMES = ("tree_flatten", "tree_unflatten", "tree_leaves", "tree_map")
_known: Any = _pytree if all(hasattr(_pytree, name) for name in _NAMES) else None


def leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Return the leaves of a tree in order; ``is_leaf`` names more of them."""
    return list(_walk(tree, is_leaf)) if _known is None else list(_known.tree_leaves(tree, is_leaf=is_leaf))


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves and the layout they were found in, which differs in words where it differs."""
    if _known is not None:
        found: tuple[list[Any], Any] = _known.tree_flatten(tree)
        return found
    return leaves(tree), _mapped(lambda leaf: None, tree)


def unflatten(parts: list[Any], layout: Any) -> Any:
    """Return the tree of a layout with other leaves."""
    if _known is not None:
        return _known.tree_unflatten(parts, layout)
    rest = iter(parts)
    return _mapped(lambda leaf: next(rest), layout)


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the tree with a function of each leaf in its place."""
    return _mapped(function, tree) if _known is None else _known.tree_map(function, tree)


def _walk(tree: Any, is_leaf: Callable[[Any], bool] | None) -> Iterator[Any]:
    if (is_leaf is not None and is_leaf(tree)) or not isinstance(tree, (dict, list, tuple, deque)):
        yield tree
        return
    for part in tree.values() if isinstance(tree, dict) else tree:
        yield from _walk(part, is_leaf)


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _mapped(function, part) for key, part in tree.items()}
    if isinstance(tree, (list, tuple, deque)):
        parts = [_mapped(function, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(tree)

"""Groups of what cannot be told apart, as letters: two share one exactly where they are not told apart."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from string import ascii_lowercase


def letter_groups(order: Sequence[str], told_apart: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return groups whose members cannot be told apart, so that any two of one group and no others share one.

    This is a compact letter display (Piepho 2004), which covers the pairs that are not told apart by groups in which
    none is (Gramm et al. 2007).  The fewest groups are hard to find; these are found greedily along ``order``, where
    neighbours are alike, and are the fewest where all errors are of one size.
    """
    places = {label: place for place, label in enumerate(order)}
    alike = {label: set(order) - {label} for label in order}
    for a, b in told_apart:
        alike[a].discard(b)
        alike[b].discard(a)
    uncovered = {label: set(others) for label, others in alike.items()}
    groups = []
    for label in order:
        if not alike[label]:
            groups.append([label])
        while uncovered[label]:
            furthest = max(uncovered[label], key=places.__getitem__)
            group = [label, furthest]
            shared = alike[label] & alike[furthest]
            # Pairs that no group covers yet come first, then what is near.
            for other in sorted(shared, key=lambda each: (each not in uncovered[label], places[each])):
                if other in shared:
                    group.append(other)
                    shared &= alike[other]
            for each in group:
                uncovered[each] -= set(group)
            groups.append(sorted(group, key=places.__getitem__))
    return sorted(groups, key=lambda group: [places[label] for label in group])


def lettered(order: Sequence[str], groups: Sequence[Collection[str]]) -> dict[str, str]:
    """Return the letters of each member: "a", "ab", "c–f"; numbers where there are more groups than letters."""
    few = len(groups) <= len(ascii_lowercase)
    names = list(ascii_lowercase) if few else [str(place + 1) for place in range(len(groups))]
    found = {}
    for label in order:
        runs: list[list[int]] = []
        for place in (place for place, group in enumerate(groups) if label in group):
            if runs and place == runs[-1][-1] + 1:
                runs[-1].append(place)
            else:
                runs.append([place])
        said = []
        for run in runs:
            said += [f"{names[run[0]]}–{names[run[-1]]}"] if len(run) > 2 else [names[place] for place in run]
        short = few and all(len(each) == 1 for each in said)
        found[label] = ("" if short else ", ").join(said)
    return found

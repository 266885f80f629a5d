"""The changes of a network that keep its function, or only scale its outputs: each declared once, with its words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeclaredSymmetry:
    """A way to write a network down differently; every measure answers whether it notices."""

    name: str
    words: str  # what is done, as in "unchanged by rescaling layers"
    kind: str  # what it moves, the name under which a search lists it
    listed_as: str  # the heading of that list
    rescales: bool = False  # whether it moves scale between weights, which may reverse an ordering
    keeps_outputs: bool = True


# The order of every listing.
SYMMETRIES: dict[str, DeclaredSymmetry] = {
    each.name: each
    for each in (
        DeclaredSymmetry(
            "layer_rescaling", "rescaling layers", "layers", "whole layers, one factor each", rescales=True
        ),
        DeclaredSymmetry(
            "neuron_rescaling", "rescaling neurons", "neurons", "single neurons or channels", rescales=True
        ),
        DeclaredSymmetry(
            "output_scaling", "scaling outputs", "output_scale", "scale of the outputs (T_α)", keeps_outputs=False
        ),
        DeclaredSymmetry("permutation", "permuting units", "permutation", "permutations of hidden units"),
    )
}
RESCALINGS = tuple(name for name, each in SYMMETRIES.items() if each.rescales)
# In a table those that keep the function stand together.
SYMMETRY_WORDS = {
    each.name: each.words for each in sorted(SYMMETRIES.values(), key=lambda each: not each.keeps_outputs)
}

"""Whether a network stands at a minimum, as far as its gradient and the noise of its samples can tell."""

from __future__ import annotations

import math
from typing import Literal

from spiritlevel.results.header import Header
from spiritlevel.results.numerals import plain

Standing = Literal["no", "not told", "yes"]

NOISE = 2.0  # a gradient longer than this many times its own noise is not there by chance
# One that training brought there is no longer than the noise: between the two nobody can tell.
AT_REST = 1.0
# Of the spread of single samples' gradients: where all data was seen, the samples of a minimum cancel to a small rest.
# The noise alone would let any network pass on few samples, whose noise is large.
CANCELLED = 0.1
# A loss above this share of that of equal scores says no more than guessing does.  On such a plateau gradients are
# short as well; only one that is shorter than its noise by this much was brought there.
GUESSING, BROUGHT = 0.9, 0.1


def guesses(loss: float, classes: int | None) -> bool:
    """Return whether a cross-entropy says hardly more than equal scores would of so many classes."""
    return classes is not None and loss > GUESSING * math.log(classes)


def at_minimum(
    norm: float, noise: float | None, samples: int, samples_total: int, *, guessing: bool = False
) -> bool | None:
    """Return whether a gradient is that of a minimum: no, yes, or None where the samples cannot tell.

    The mean gradient of N samples is ``noise`` long in the root mean square where the true one is zero, and each
    sample's own spreads by √N of that.  A long gradient is a no.  A short one is a yes only where no sample was left
    out, so that it is the very gradient of the loss; of a draw it may be short because the draw is small, and of a
    network that is ``guessing`` because it has hardly begun to learn.
    """
    if noise is None:
        return None
    if norm > NOISE * noise:
        return False
    if guessing and norm > BROUGHT * noise:
        return None
    spread = noise * math.sqrt(samples)
    return True if samples >= samples_total and norm <= min(AT_REST * noise, CANCELLED * spread) else None


def standing_of(header: Header) -> Standing | None:
    """Return the answer of a report's header, None where nobody looked."""
    if header.at_minimum is False:
        return "no"
    drawn = None not in (header.samples, header.samples_total) and (header.samples or 0) < (header.samples_total or 0)
    if header.at_minimum is True and not drawn:  # earlier versions also said yes of a draw
        return "yes"
    return "not told" if header.gradient_noise is not None else None


def standing_words(header: Header) -> str:
    """Return the answer in words, or nothing where nobody looked."""
    standing = standing_of(header)
    if standing is None:
        return ""
    return {"no": "not at a minimum", "yes": "at a minimum", "not told": untold_words(header)}[standing]


def untold_words(header: Header) -> str:
    """Return what is known where it cannot be told."""
    count = "these" if header.samples is None else f"{header.samples:,}"
    return f"not distinguishable from noise at {count} samples"


def size_words(header: Header) -> str:
    """Return the gradient's length against its noise."""
    noise = "" if header.gradient_noise is None else f", its noise {plain(header.gradient_noise, 2)}"
    return f"gradient norm {plain(header.gradient_norm, 2)}{noise}"

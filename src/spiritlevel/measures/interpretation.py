"""How the value of a measure is to be read: what moves it beside the symmetries, what may be concluded, what not.

Every answer here is one that a small network can show; ``interpretations.py`` has them for every measure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What a network, its data or its description may differ in without computing anything else, and whether that shows.
INFLUENCES: dict[str, str] = {
    "labels": "other labels for the same samples, with cross-entropy and layers that are exact",
    "copied_units": "a wider network that computes the same, every hidden unit copied",
    "input_units": "other units of the inputs, which the first layer's weights take back",
}
INFLUENCES_IN_SHORT = {"labels": "labels", "copied_units": "copying units", "input_units": "units of inputs"}

# A network is more confident after more training than it takes to get every sample right, with its outputs scaled up,
# or without label smoothing.
Confidence = Literal["falls", "rises", "no rule"]
# What fewer samples of the same data do to the value on average.
FewerSamples = Literal["unbiased", "too large", "too small", "no rule", "not used"]
FEWER_SAMPLES: dict[FewerSamples, str] = {
    "unbiased": "a mean over samples: on fewer it is less certain, and right on average",
    "too large": "too large on average on few samples",
    "too small": "too small on average on few samples",
    "no rule": "depends on their number in no way that could be told beforehand",
    "not used": "does not look at samples",
}
CONFIDENCE: dict[Confidence, str] = {
    "falls": "once every sample is right it falls in the end as training goes on, or as the outputs are scaled up; "
    "label smoothing keeps it up",
    "rises": "once every sample is right it rises as training goes on, or as the outputs are scaled up; "
    "label smoothing keeps it down",
    "no rule": "training longer, scaled outputs and label smoothing move it either way, or not at all",
}


@dataclass(frozen=True)
class Interpretation:
    """What is to be known of a measure beside its declaration.

    ``unmoved`` and ``moved`` name influences, those that neither names are not known.  ``conclude`` and ``beware`` are
    whole sentences: what a value or a difference says, and what it does not.
    """

    conclude: str
    beware: str
    unmoved: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    confidence: Confidence = "falls"
    fewer_samples: FewerSamples = "unbiased"

    def answer(self, influence: str) -> bool | None:
        """Return whether the value stays as it is: yes, no, or None where nobody knows."""
        return True if influence in self.unmoved else False if influence in self.moved else None

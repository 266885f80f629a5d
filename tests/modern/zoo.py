"""All networks of the zoo by name."""

from __future__ import annotations

from tests.modern.network import ModernNetwork
from tests.modern.networks_language import LANGUAGE
from tests.modern.networks_science import SCIENCE
from tests.modern.networks_sequence import SEQUENCE
from tests.modern.networks_vision import VISION

NETWORKS: dict[str, ModernNetwork] = {one.name: one for one in (*VISION, *LANGUAGE, *SEQUENCE, *SCIENCE)}

"""Networks of the papers and two small ones for the demo."""

from spiritlevel.nets.initialisation import INITIALISATIONS, initialise
from spiritlevel.nets.registry import NETS, NetSpec, build, size_for, spec

__all__ = ["INITIALISATIONS", "NETS", "NetSpec", "build", "initialise", "size_for", "spec"]

"""Networks of the papers and two small ones for the demo."""

from spiritlevel.lab.nets.initialisation import INITIALISATIONS, initialise
from spiritlevel.lab.nets.registry import NETS, NetSpec, build, size_for, spec

__all__ = ["INITIALISATIONS", "NETS", "NetSpec", "build", "initialise", "size_for", "spec"]

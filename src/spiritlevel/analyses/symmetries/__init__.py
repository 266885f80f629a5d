"""Maps of a network's parameters that keep its function, found in its graph and proven on an example."""

from spiritlevel.analyses.symmetries.found import Symmetries, Symmetry
from spiritlevel.analyses.symmetries.permuting import permute_neurons
from spiritlevel.analyses.symmetries.rescaling import rescale_layers, rescale_neurons, scale_output
from spiritlevel.analyses.symmetries.search import find

__all__ = ["Symmetries", "Symmetry", "find", "permute_neurons", "rescale_layers", "rescale_neurons", "scale_output"]

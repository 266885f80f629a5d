"""Networks of the size people train, on real tokens and images, with their peers: the parts of ``large_models``."""

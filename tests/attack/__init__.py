"""Random small networks with everything that could fool the instrument, held against a dense float64 Hessian."""

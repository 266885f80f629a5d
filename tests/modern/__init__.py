"""A zoo of small networks as they are trained today, and how right and how costly measuring them is."""

"""Estimators that know nothing of networks: they take any product with a symmetric matrix, K columns at once."""

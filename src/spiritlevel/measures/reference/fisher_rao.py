"""Fisher–Rao norms of a small problem from every sample's own gradient and the dense Gauss–Newton matrix."""

from __future__ import annotations

from spiritlevel.measures.reference.dense import Dense


def fisher_rao_norm(dense: Dense, labels: str = "observed") -> float:
    """Return θᵀFθ with the empirical Fisher matrix written out, or θᵀGθ."""
    if labels == "model":
        return float(dense.theta @ dense.ggn @ dense.theta)
    fisher = (dense.sample_gradients.T * dense.weights) @ dense.sample_gradients
    return float(dense.theta @ fisher @ dense.theta)


def fisher_rao_diagonal(dense: Dense) -> float:
    """Return the sum of θ_j² times the mean squared derivative in θ_j."""
    fisher = (dense.sample_gradients.T * dense.weights) @ dense.sample_gradients
    return float((dense.theta.square() * fisher.diagonal()).sum())

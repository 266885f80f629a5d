"""The minimum to be measured, with its curvature as matrices: what users make, and what every pass works on."""

from __future__ import annotations

from typing import Any

from spiritlevel.inputs.given import Given


class Problem(Given):
    """The minimum to be measured: a network, the data and the loss that define it, and the parameters that may move.

    ``data``: (x, y) tensors, a Dataset, a DataLoader (what its sampler chooses, in dataset order, nothing dropped),
    or re-iterable tuple or dict batches; several inputs as ((a, b), y). ``loss``: a name in ``spiritlevel.losses``,
    a torch loss module, or a callable ``(outputs, batch) -> losses`` of shape (B,) or (B, T), or ``(losses,
    weights)``. ``samples``: None for all, or a number drawn once, stratified by class. ``parameters``: name
    patterns; by default those that require a gradient. The model is never moved or changed: another device or
    dtype, and half precision, are measured on a copy. ``precision``: "float32", "tf32" or "bfloat16", of Gauss–Newton
    sums alone, where their error, measured on every sample, is far below the tolerance.
    """

    @property
    def hessian(self) -> Any:
        """The Hessian of the mean loss as an operator: ``problem.hessian @ v``.

        ``v`` is a tensor or a NumPy array, (P,) or (P, K); curvlinops' estimators and SciPy's ``eigsh`` take it as
        it is.  It keeps what it finds out about the data; for many products hold on to one.
        """
        from spiritlevel.engine.operators import HessianOperator

        return HessianOperator(self)

    @property
    def ggn(self) -> Any:
        """The Gauss–Newton matrix of the mean loss as an operator: ``problem.ggn @ v``; as `hessian`."""
        from spiritlevel.engine.operators import GGNOperator

        return GGNOperator(self)

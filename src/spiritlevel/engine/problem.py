"""The minimum to be measured, with its curvature as matrices: what users make, and what every pass works on."""

from __future__ import annotations

from typing import Any

from spiritlevel.inputs.given import Given


class Problem(Given):
    """The minimum to be measured: a network, the data and the loss that define it, and the parameters that may move.

    The model is never moved or changed: another device or dtype, and half precision, are measured on a copy. A problem
    is frozen; what a measurement finds out is kept elsewhere, so one problem may be measured any number of times.

    Parameters
    ----------
    model : torch.nn.Module
        The trained network. Wrappers (DataParallel, DistributedDataParallel, ``torch.compile``) are seen through.
    data : tensors, a Dataset, a DataLoader or batches
        (x, y) tensors, a Dataset, a DataLoader (what its sampler chooses, in dataset order, nothing dropped), or
        re-iterable tuple or dict batches; several inputs as ((a, b), y).
    loss : str, Loss, torch loss module or callable
        A name in `spiritlevel.losses.NAMES`, a torch loss module, or a callable ``(outputs, batch) -> losses`` of shape
        (B,) or (B, T), or ``(losses, weights)``.
    forward : callable
        A function ``(model, batch) -> outputs`` for networks that are called in a way of their own; by default the
        model is called with a batch's first entry, or with a dict's entries by name, without the labels.
    parameters : str or list of str
        Name patterns of the parameters that may move; by default those that require a gradient.
    samples : int
        A number of samples, drawn once, stratified by class; None for all.
    seed : int
        Seed of that draw, and of a random augmentation of the chosen samples.
    batch_size : int
        Samples a batch. It changes speed and memory, not the numbers.
    device : str or torch.device
        Where to measure; by default where the model is.
    dtype : str or torch.dtype
        "float32" or "float64"; by default the model's own, and float32 for half precision.
    mode : str
        "eval", or "train", in which BatchNorm takes each batch's statistics and samples influence each other.
    precision : str
        "float32", "tf32" or "bfloat16", of Gauss–Newton sums alone, where their error, measured on every sample, is far
        below the tolerance.

    Raises
    ------
    UsageError
        The model is no network, or an argument has a value that the message names.
    SpiritlevelError
        The model or the data cannot be measured: no parameters, no samples, weights on the meta device.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> data = sl.datasets.load("digits")
    >>> problem = sl.Problem(model, data, loss="cross_entropy", samples=200)
    >>> problem.size
    3466
    >>> list(problem.layers)
    ['1', '3', '5']
    >>> sl.Problem(model, data, parameters="5.*").parameters
    ['5.weight', '5.bias']
    """

    @property
    def hessian(self) -> Any:
        """The Hessian of the mean loss as an operator: ``problem.hessian @ v``.

        ``v`` is a tensor or a NumPy array, (P,) or (P, K); curvlinops' estimators and SciPy's ``eigsh`` take it as
        it is.  It keeps what it finds out about the data; for many products hold on to one.

        Returns
        -------
        HessianOperator
            A symmetric matrix known by its products; `spiritlevel.operators` has more of them.
        """
        from spiritlevel.engine.operators import HessianOperator

        return HessianOperator(self)

    @property
    def ggn(self) -> Any:
        """The Gauss–Newton matrix of the mean loss as an operator: ``problem.ggn @ v``; as `hessian`.

        Returns
        -------
        GGNOperator
            A symmetric matrix known by its products.
        """
        from spiritlevel.engine.operators import GGNOperator

        return GGNOperator(self)

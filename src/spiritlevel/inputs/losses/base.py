"""What a loss is here: its value per sample, and a factor of its second derivative in the outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.inputs.contents import Content, tensors_of
from spiritlevel.inputs.losses.signs import index_signs
from spiritlevel.values.documented import documented_like
from spiritlevel.values.errors import UsageError

LABEL_KEYS = ("labels", "label", "y")


@dataclass(frozen=True)
class Factor:
    """Columns S with Λ = (1/draws) Σ_k sign_k S_k S_kᵀ, for each sample of a batch.

    Λ is the second derivative of the per-sample loss in that sample's outputs. The columns of draw d are
    ``columns[d*c:(d+1)*c]`` with c = K / draws: one column a draw for a positive semidefinite loss, one of sign +1
    followed by one of sign -1 for an indefinite one. The draws are independent, so their spread gives the standard
    error.

    Attributes
    ----------
    columns : Tensor
        The columns (K, B, *output shape), in dtype and on the device of the outputs.
    signs : Tensor
        Their signs (K, B), +1 or -1.
    psd : bool
        Whether every sign is +1, for any batch of this loss.
    exact : bool
        Whether the sum *is* Λ (then ``draws`` is 1) or only has Λ as its mean.
    draws : int
        How many draws there are.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> outputs, labels = torch.zeros(2, 3), torch.tensor([0, 1])
    >>> factor = sl.losses.CrossEntropy().factor(outputs, (None, labels))
    >>> tuple(factor.columns.shape), factor.psd, factor.exact
    ((2, 2, 3), True, True)
    """

    columns: Tensor  # (K, B, *output shape), dtype and device of the outputs
    signs: Tensor  # (K, B), +1 or -1
    psd: bool  # every sign is +1, for any batch of this loss
    exact: bool
    draws: int = 1


@dataclass(frozen=True)
class Sketch:
    """How a factor is sampled where exact columns would be more than ``limit``."""

    limit: int
    seed: int
    indices: Tensor | None
    draws: int | None
    first: int = 0  # number of the first draw in the seed's sequence

    @property
    def count(self) -> int:
        """Number of draws: as asked, else as many as an exact factor may have columns."""
        count = self.limit if self.draws is None else self.draws
        if count < 1:
            raise UsageError(
                f"The second derivative of the loss cannot be sampled with {count} draws: ask for at least 1."
            )
        return count

    def signs(
        self,
        outputs: Tensor,
        columns: int,
        *,
        draws: int | None = None,
        passed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> Tensor:
        """Signs ±1 ``(draws, B, columns)`` of the batch's samples: all draws, or ``draws`` after ``passed`` others."""
        count = self.count if draws is None else draws
        first = self.first + passed
        return index_signs(self.seed, count, self._samples(outputs), columns, first_draw=first, dtype=dtype)

    def _samples(self, outputs: Tensor) -> Tensor:
        """Indices of the batch's samples in the data set, 0..B-1 where none are given."""
        if self.indices is None:
            return torch.arange(len(outputs), device=outputs.device)
        if self.indices.shape != (len(outputs),):
            raise UsageError(
                f"indices has shape {tuple(self.indices.shape)} but the batch has {len(outputs)} samples: pass one per "
                "sample."
            )
        return self.indices.to(outputs.device, torch.int64)


class Loss(ABC):
    """A loss as a function of the outputs; the loss of a data set is L = Σ w·ℓ / Σ w over its samples.

    A loss of one's own need not be one of these: `Problem` takes a function of outputs and batch. A class of its own
    says ``per_sample``, ``sketched_factor`` and ``hessian_product``.

    Attributes
    ----------
    name : str
        What the loss is called in reports.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> loss = sl.losses.MeanSquaredError()
    >>> isinstance(loss, sl.losses.Loss), loss.name
    (True, 'mean_squared_error')
    >>> losses, weights = loss.per_sample(torch.zeros(2, 3), (None, torch.ones(2, 3)))
    >>> losses, weights
    (tensor([1., 1.]), tensor([1., 1.]))
    """

    name: str

    @abstractmethod
    def per_sample(self, outputs: Tensor, batch: Content) -> tuple[Tensor, Tensor]:
        """Losses ``(B,)``, differentiable in the outputs, and weights ``(B,)``.

        Where a sample has positions its loss is Σ_t w·ℓ / Σ_t w over them and its weight Σ_t w; a sample none of whose
        positions count has loss 0 and weight 0.

        Parameters
        ----------
        outputs : Tensor
            What the network returned for the batch.
        batch : tuple or dict
            The batch, with its labels.

        Returns
        -------
        pair of Tensor
            The losses and the weights.
        """

    @documented_like(per_sample)
    def factor(
        self,
        outputs: Tensor,
        batch: Content,
        *,
        limit: int = 32,
        generator_seed: int = 0,
        indices: Tensor | None = None,
        draws: int | None = None,
        first_draw: int = 0,
    ) -> Factor:
        """Factor of Λ, exact with at most ``limit`` columns, else ``draws`` (default ``limit``) unbiased sketches.

        A sketch is S = F ε with random signs ε over the columns of an exact factor F. They depend on the seed, the draw
        and the sample's index in the data set, never on the batch it came in. Draws are one sequence: who wants more
        than the first k asks for those from k on, and gets the same numbers as all at once. An exact factor is the same
        whatever is asked.

        Parameters
        ----------
        limit : int
            The most columns of an exact factor.
        generator_seed : int
            Seed of the signs.
        indices : Tensor
            The samples' indices in the data set; by default 0..B-1.
        draws : int
            How many sketches, where it is sampled.
        first_draw : int
            Where this call begins in the sequence of draws.

        Returns
        -------
        Factor
            The columns with their signs.

        Raises
        ------
        UsageError
            ``first_draw`` is negative, or there are fewer than one draw.
        """
        if first_draw < 0:
            raise UsageError(f"first_draw is {first_draw}: draws are counted from 0.")
        return self.sketched_factor(outputs, batch, Sketch(limit, generator_seed, indices, draws, first_draw))

    @documented_like(per_sample)
    def sketched_factor(self, outputs: Tensor, batch: Content, sketch: Sketch) -> Factor:
        """``factor`` as a loss writes it: exact within the sketch's limit, else with its draws and signs.

        Parameters
        ----------
        sketch : Sketch
            How it is sampled where exact columns would be more than its limit.

        Returns
        -------
        Factor
            The columns with their signs.
        """
        raise NotImplementedError(f"The loss {self.name} has no factor: define sketched_factor in its class.")

    @abstractmethod
    @documented_like(per_sample)
    def hessian_product(self, outputs: Tensor, batch: Content, vectors: Tensor) -> Tensor:
        """Λ v for each of the vectors ``(K, B, *output shape)``, without a graph.

        Parameters
        ----------
        vectors : Tensor
            The vectors (K, B, *output shape).

        Returns
        -------
        Tensor
            The products, of the same shape.
        """


def labels_of(batch: Content) -> Tensor:
    """Labels of a batch: the second of two entries of a tuple, or the entry "labels", "label" or "y" of a dict.

    Parameters
    ----------
    batch : tuple or dict
        A batch as the data has it.

    Returns
    -------
    Tensor
        The labels.

    Raises
    ------
    UsageError
        Nothing says which entry the labels are, or they are no tensor.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> sl.losses.labels_of({"input": torch.zeros(2, 3), "label": torch.tensor([0, 1])})
    tensor([0, 1])
    """
    if isinstance(batch, Mapping):
        keys = [key for key in LABEL_KEYS if key in batch]
        if not keys:
            raise UsageError(
                f"The batch has the keys {sorted(map(str, batch))} and no labels: name them one of "
                f"{', '.join(LABEL_KEYS)}, or pass a loss that is a function of (outputs, batch)."
            )
        if len(keys) > 1:
            raise UsageError(
                f"The batch has the entries {' and '.join(keys)}, and each may be its labels: keep the one that is, "
                "or pass a loss that is a function of (outputs, batch)."
            )
        found = batch[keys[0]]
    elif isinstance(batch, Tensor) or not isinstance(batch, Sequence) or len(batch) < 2:
        raise UsageError(
            f"The batch is a {type(batch).__name__} without a second entry, where the labels are expected: "
            "pass (inputs, labels), a dict with labels, or a loss that is a function of (outputs, batch)."
        )
    else:
        holding = [value for value in batch if any(tensor.ndim for tensor in tensors_of(value))]
        if len(holding) > 2:
            raise UsageError(
                f"The batch has {len(holding)} entries of tensors, and nothing says which are the labels: pass "
                "((inputs, ...), labels) or a dict with labels, or both forward, a function of (model, batch), and a "
                "loss that is a function of (outputs, batch)."
            )
        found = batch[1]
    if isinstance(found, Tensor):
        return found
    try:
        return torch.as_tensor(found)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"The labels are a {type(found).__name__} that is no tensor: pass (inputs, labels) with labels as a "
            "tensor, or a loss that is a function of (outputs, batch)."
        ) from error

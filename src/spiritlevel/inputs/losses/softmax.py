"""Softmax quantities that stay exact to rounding on confident samples, formed in float64 from the logits.

On a trained network the largest probability is 1 to within rounding, and whatever is written as 1 minus it (the
diagonal of diag(p) - ppᵀ, 1 - Σp², 1 - γ²) is noise. Everything here sums the small probabilities instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Running sums over this many classes or fewer are products with a triangle of ones: a GPU's own running sums are slow
# along a short axis.
SUMMED_BY_PRODUCT = 64
# Leading classes that are set apart first in a sketch; of a thousand classes' noise, sorting all takes 2% more away.
LEADING = 8


# Logits up to this number are widened to float64 where a loss is differentiated.
WIDENED = 1 << 22


def widened(logits: Tensor) -> Tensor:
    """Return logits in which p - y, the gradient of a loss by automatic differentiation, does not cancel.

    In float32 1 - p is lost below 6e-8: where every sample is fitted to within 1e-7 and closer, products with the
    Hessian would be made of what rounding left.  More logits than ``WIDENED`` stay as they are: of a vocabulary no
    sample is fitted so closely, and they would take the memory of a training step.
    """
    return logits.double() if logits.dtype == torch.float32 and logits.numel() <= WIDENED else logits


def probabilities_and_tails(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities p_c and 1 - p_c = Σ_{j≠c} p_j over the last axis, both to full relative precision.

    Parameters
    ----------
    logits : Tensor
        The logits (…, C).

    Returns
    -------
    pair of Tensor
        Probabilities and tails (…, C), in float64.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> p, tails = sl.losses.probabilities_and_tails(torch.tensor([60.0, 0.0]))
    >>> p[0].item(), f"{tails[0].item():.3g}"
    (1.0, '8.76e-27')
    """
    p = torch.softmax(logits.detach().double(), dim=-1)
    largest = p.argmax(-1, keepdim=True)
    others = p.scatter(-1, largest, 0.0).sum(-1, keepdim=True)
    # Every class but the largest has p_c ≤ 1/2, where 1 - p_c does not cancel.
    return p, (1.0 - p).scatter(-1, largest, others)


def softmax_impurity(logits: Tensor) -> Tensor:
    """1 - ‖p‖² = Σ_c p_c Σ_{j≠c} p_j, the trace of diag(p) - ppᵀ.

    Parameters
    ----------
    logits : Tensor
        The logits (…, C).

    Returns
    -------
    Tensor
        The impurity (…), in float64.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> sl.losses.softmax_impurity(torch.zeros(4)).item()
    0.75
    """
    p, tails = probabilities_and_tails(logits)
    return (p * tails).sum(-1)


def one_minus_softmax_margin_squared(logits: Tensor) -> Tensor:
    """1 - γ² = (1 + |γ|)(Σ_{j≠max} p_j + p_second), γ the gap between the two largest probabilities.

    Parameters
    ----------
    logits : Tensor
        The logits (…, C).

    Returns
    -------
    Tensor
        The number (…), in float64.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> found = sl.losses.one_minus_softmax_margin_squared(torch.tensor([2.0, 0.0, 0.0]))
    >>> round(found.item(), 4)
    0.5369
    """
    p, _ = probabilities_and_tails(logits)
    top = p.topk(2, dim=-1)
    first, second = top.values.unbind(-1)
    others = p.scatter(-1, top.indices[..., :1], 0.0).sum(-1)
    return (1.0 + (first - second)) * (others + second)


def softmax_factor_times(logits: Tensor, coefficients: Tensor) -> Tensor:
    """F u for the Cholesky factor F, with C - 1 columns, of diag(p) - ppᵀ = F Fᵀ.

    ``logits`` is ``(..., C)``, ``coefficients`` ``(K, ..., C-1)``, the result ``(K, ..., C)`` in float64. With tails
    t_k = Σ_{j≥k} p_j and r_k = √(p_k / (t_k t_{k+1})) the factor is F_kk = r_k t_{k+1} and F_jk = -p_j r_k for j > k.
    With the largest class last every t_k is at least 1/C, so nothing cancels and nothing is divided by a small number.
    """
    z = logits.detach().double()
    classes = z.shape[-1]
    # Exchange the largest class with the last one; the exchange is its own inverse.
    largest = z.argmax(-1, keepdim=True)
    order = torch.arange(classes, device=z.device).expand_as(z).scatter(-1, largest, classes - 1)
    order = torch.cat([order[..., :-1], largest], dim=-1)
    log_p = torch.log_softmax(z.gather(-1, order), dim=-1)
    tails = _sums_from(log_p.exp())
    return _contrasts_times(log_p, tails, (tails[..., :-1] * tails[..., 1:]).sqrt(), order, coefficients)


def softmax_sketch_times(logits: Tensor, signs: Tensor) -> Tensor:
    """F ε for another factor F of diag(p) - ppᵀ, whose sketches are less noisy: the leading classes come first.

    A column sets a class apart from all that come after it. With the largest class last every column holds it, and
    what they have in common is the noise of a sketch, Σ_{j≠k} (F_jᵀ JJᵀ F_k)². Where the leading ones come first, by
    falling p, the columns are nearly orthogonal. Tails are then small, but sums of what is small keep their digits.
    """
    z = logits.detach().double()
    classes = z.shape[-1]
    leading = z.topk(min(LEADING, classes), dim=-1).indices
    # The others follow in their own order; ``places`` is where each class goes.
    others = torch.ones_like(z, dtype=torch.int64).scatter(-1, leading, 0)
    places = others.cumsum(-1).add_(leading.shape[-1] - 1)
    places = places.scatter(-1, leading, torch.arange(leading.shape[-1], device=z.device).expand_as(leading))
    order = torch.empty_like(places).scatter(-1, places, torch.arange(classes, device=z.device).expand_as(places))
    log_p = torch.log_softmax(z.gather(-1, order), dim=-1)
    tails = _sums_from(log_p.exp())
    roots = tails.clamp(min=torch.finfo(torch.float64).tiny).sqrt()
    return _contrasts_times(log_p, tails, roots[..., :-1] * roots[..., 1:], places, signs)


def _contrasts_times(log_p: Tensor, tails: Tensor, scales: Tensor, back: Tensor, coefficients: Tensor) -> Tensor:
    """F u with the classes in the order of ``log_p`` and ``back`` the places they return to."""
    # The root is taken of the logarithm: √p is a normal number long after p has underflowed.
    r = (0.5 * log_p[..., :-1]).exp() / scales
    terms = coefficients.double() * r
    below = -log_p.exp() * _sums_before(terms)  # Σ_{k<j} u_k r_k
    diagonal = torch.nn.functional.pad(terms * tails[..., 1:], (0, 1))
    return (diagonal + below).gather(-1, back.expand_as(below))


def _sums_from(values: Tensor) -> Tensor:
    """Σ_{k≥j} v_k for every j."""
    count = values.shape[-1]
    if count > SUMMED_BY_PRODUCT:
        return values.flip(-1).cumsum(-1).flip(-1)
    return values @ torch.ones(count, count, dtype=values.dtype, device=values.device).tril()


def _sums_before(values: Tensor) -> Tensor:
    """Σ_{k<j} v_k for every j up to one more than there are."""
    count = values.shape[-1]
    if count > SUMMED_BY_PRODUCT:
        return torch.nn.functional.pad(values.cumsum(-1), (1, 0))
    return values @ torch.ones(count, count + 1, dtype=values.dtype, device=values.device).triu(1)


def softmax_hessian_times(logits: Tensor, vectors: Tensor) -> Tensor:
    """(diag(p) - ppᵀ) v for vectors ``(K, ..., C)``, in float64."""
    p = torch.softmax(logits.detach().double(), dim=-1)
    largest = p.argmax(-1, keepdim=True).expand(*vectors.shape[:-1], 1)
    # A constant is in the null space: with the entry of the largest class moved to 0 nothing cancels.
    v = vectors.double()
    v = v - v.gather(-1, largest)
    return p * (v - (p * v).sum(-1, keepdim=True))

"""Best row and column scales of a weight matrix: the inner minimum of normalised sharpness, with a certificate.

Both problems here are the balancing of a digraph.  With p_i = log u_i and q_j = -log v_j the objective of Tsuzuku et
al. (2019), eq. (17) at lambda = 1/2, is a sum of flows over arcs,

    sum_ij h_ij exp(p_i - q_j) + w2_ij exp(q_j - p_i),

which is convex, and is minimal exactly where the flow into every node equals the flow out of it.  A circulation uses
only arcs that lie on a cycle, so arcs between different strongly connected components carry nothing in the infimum:
potentials can move those components apart for ever.  Dropping these arcs first leaves problems whose minimum is
attained, one per component, each unique up to one additive constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from spiritlevel.errors import UsageError

# Added to the second derivative, relative to the value.  Directions flatter than this have gradients below every
# tolerance, and rounding divided by their curvature would throw the Newton step about.
DAMPING = 1e-14

BalanceStatus = Literal["ok", "infimum_not_attained", "budget_spent"]


@dataclass(frozen=True)
class Balance:
    """Minimum over positive scales, the scales, and how far the balance conditions are from zero.

    ``kept`` marks the entries that carry the minimum.  The others contribute 0 in the limit of infinite or vanishing
    scales; rows and columns without a kept entry have scale 1 here.  ``status`` is ``infimum_not_attained`` where
    entries were left out although neither their row nor their column is void of curvature or of weight.
    """

    value: float
    u: Tensor  # (m,) float64
    v: Tensor  # (n,) float64
    kept: Tensor  # (m, n) bool
    residual: float  # max |row and column sums of h u v - w2 / (u v)| / value
    sweeps: int
    status: BalanceStatus

    def objective(self, h: Tensor, w2: Tensor) -> float:
        """Return sum of h u v + w2 / (u v) over the kept entries, for these scales and another curvature ``h``."""
        scales = torch.outer(self.u, self.v)
        total = h.detach().cpu().double() * scales + w2.detach().cpu().double() / scales
        return float(total[self.kept].sum())


def balance(h: Tensor, w2: Tensor, *, tolerance: float = 1e-12, max_sweeps: int = 1000) -> Balance:
    """Minimise sum_ij (h_ij u_i v_j + w2_ij / (u_i v_j)) over positive u and v (Tsuzuku et al. 2019, eq. (17)).

    Alternates the closed forms u_i = sqrt(sum_j w2_ij / v_j / sum_j h_ij v_j) and the same for v, and turns to Newton
    in the logarithms where that crawls.  Stops when every row and column sum of h u v - w2 / (u v) is at most
    ``tolerance`` times the value.  For ``h`` and ``w2 = W**2`` always
    2 sum |W| sqrt(h) <= value <= 2 ||W||_F sqrt(sum h).
    """
    h, w2 = _checked_pair(h, w2)
    if h.ndim != 2:
        raise UsageError(f"h and w2 must be matrices; found shape {tuple(h.shape)}, use balance_groups for (G, m, n).")
    rows, columns = h.shape
    void = ~_without_void_lines(h, w2)
    labels_row, labels_column = _bipartite_components((h > 0) & ~void, (w2 > 0) & ~void)
    carried = (h > 0) | (w2 > 0)
    same = labels_row[:, None] == labels_column[None, :]
    kept = same & carried & ~void
    unattained = bool((carried & ~void & ~same).any())

    u, v = torch.ones(rows, dtype=torch.float64), torch.ones(columns, dtype=torch.float64)
    value, gaps, sweeps, converged = 0.0, 0.0, 0, True
    for label in torch.unique(labels_row[kept.any(dim=1)]).tolist():
        at_row = ((labels_row == label) & kept.any(dim=1)).nonzero().flatten()
        at_column = ((labels_column == label) & kept.any(dim=0)).nonzero().flatten()
        part = _Bipartite(h[at_row][:, at_column], w2[at_row][:, at_column])
        used = part.solve(tolerance, max_sweeps)
        # Each component meets the tolerance on its own value, hence also on the sum.
        converged &= part.gap() <= tolerance * part.value()
        value += part.value()
        gaps = max(gaps, part.gap())
        sweeps = max(sweeps, used)
        u[at_row], v[at_column] = part.scales()
    status: BalanceStatus = "infimum_not_attained" if unattained else "ok"
    return Balance(value, u, v, kept, gaps / value if value else 0.0, sweeps, status if converged else "budget_spent")


def balance_groups(h: Tensor, w2: Tensor, *, tolerance: float = 1e-12, max_sweeps: int = 1000) -> list[Balance]:
    """Balance every matrix of a stack (G, m, n) on its own, as the groups of a grouped convolution are."""
    if h.ndim != 3 or h.shape != w2.shape:
        raise UsageError(f"h and w2 must both be (G, m, n); found {tuple(h.shape)} and {tuple(w2.shape)}.")
    return [balance(a, b, tolerance=tolerance, max_sweeps=max_sweeps) for a, b in zip(h, w2, strict=True)]


@dataclass(frozen=True)
class IcmlBalance:
    """Minimum of the ICML 2020 form of normalised sharpness, the column scales and the balance residual."""

    value: float
    v: Tensor  # (n,) float64, exp(s)
    residual: float  # max_k |inflow - outflow| / value**2
    iterations: int
    status: BalanceStatus


def balance_icml(h: Tensor, w2: Tensor, *, tolerance: float = 1e-12, max_iterations: int = 500) -> IcmlBalance:
    """Minimise sqrt(sum_i (sum_k h_ik exp(s_k)) (sum_j w2_ij exp(-s_j))) over s, one scale per column.

    The square is sum_kj M_kj exp(s_k - s_j) with M = h^T w2: convex in s, and minimal exactly where the off-diagonal
    row and column sums of M_kj exp(s_k - s_j) agree.  The certificate is their largest difference over the square;
    arcs of M between strongly connected components carry nothing in the infimum and are left out.
    """
    h, w2 = _checked_pair(h, w2)
    if h.ndim != 2:
        raise UsageError(f"h and w2 must be matrices; found shape {tuple(h.shape)}.")
    alive = _without_void_lines(h, w2)  # dead neurons and unused inputs carry nothing, as in `balance`
    h, w2 = h * alive, w2 * alive
    # Column scales c_k = sqrt(sum h / sum w2) first, so that products of extreme entries neither vanish nor overflow.
    start = 0.5 * (_log_or_zero(w2.sum(dim=0)) - _log_or_zero(h.sum(dim=0)))
    flows = (h * start.exp()).T @ (w2 * (-start).exp())
    labels = _strong_components(flows > 0)
    kept = labels[:, None] == labels[None, :]
    unattained = bool((flows[~kept] > 0).any())
    flows = torch.where(kept, flows, 0.0)
    fixed = float(flows.diagonal().sum())
    flows.fill_diagonal_(0.0)

    shift, iterations = torch.zeros(len(start), dtype=torch.float64), 0
    while iterations < max_iterations:
        imbalance = flows.sum(dim=1) - flows.sum(dim=0)
        if float(imbalance.abs().max()) <= tolerance * (fixed + float(flows.sum())):
            break
        iterations += 1
        damping = (DAMPING * flows.sum()).expand(len(labels))
        step = _laplacian_step(flows + flows.T, imbalance, damping, labels)
        moved = _descend(partial(_flows_at, flows), step, flows.sum())
        if moved is None:
            break
        shift, flows = shift + moved[0], moved[1]
    square = fixed + float(flows.sum())
    status: BalanceStatus = "infimum_not_attained" if unattained else "ok"
    residual = float((flows.sum(dim=1) - flows.sum(dim=0)).abs().max()) / square if square else 0.0
    return IcmlBalance(
        math.sqrt(square),
        (start + shift).exp(),
        residual,
        iterations,
        status if residual <= tolerance else "budget_spent",
    )


class _Bipartite:
    """One strongly connected problem, held as the flows a = h u v and b = w2 / (u v) at the current scales."""

    def __init__(self, h: Tensor, w2: Tensor) -> None:
        self.x = torch.zeros(h.shape[0], dtype=torch.float64)  # log u
        self.y = torch.zeros(h.shape[1], dtype=torch.float64)  # log v
        log_h, log_w2 = h.log(), w2.log()
        # Two sweeps with sums of exponentials first: afterwards the flows are of one order in every row and column,
        # however far apart the scales were, and plain products suffice.
        for _ in range(2):
            self.x = 0.5 * ((log_w2 - self.y).logsumexp(dim=1) - (log_h + self.y).logsumexp(dim=1))
            self.y = 0.5 * ((log_w2.T - self.x).logsumexp(dim=1) - (log_h.T + self.x).logsumexp(dim=1))
        total = self.x[:, None] + self.y[None, :]
        self.a, self.b = (log_h + total).exp(), (log_w2 - total).exp()

    def value(self) -> float:
        return float(self.a.sum() + self.b.sum())

    def imbalance(self) -> tuple[Tensor, Tensor]:
        """The gradient in (log u, log v): row and column sums of a - b."""
        return self.a.sum(dim=1) - self.b.sum(dim=1), self.a.sum(dim=0) - self.b.sum(dim=0)

    def gap(self) -> float:
        by_row, by_column = self.imbalance()
        return max(float(by_row.abs().max()), float(by_column.abs().max()))

    def scales(self) -> tuple[Tensor, Tensor]:
        """Return u and v with equal mean logarithms, the free constant being anybody's choice."""
        constant = 0.5 * (self.x.mean() - self.y.mean())
        return (self.x - constant).exp(), (self.y + constant).exp()

    def solve(self, tolerance: float, max_sweeps: int) -> int:
        """Alternate while that at least halves the gap, else take Newton steps; return the sweeps and steps taken."""
        previous = math.inf
        for sweep in range(2, max_sweeps):
            gap = self.gap()
            if gap <= tolerance * self.value():
                return sweep
            if gap > 0.5 * previous and not self._newton():
                self._alternate()
            self._alternate()
            previous = gap
        return max_sweeps

    def _alternate(self) -> None:
        for axis in (1, 0):
            ratio = (self.b.sum(dim=axis) / self.a.sum(dim=axis)).sqrt()
            self._move(*((ratio.log(), torch.zeros_like(self.y)) if axis else (torch.zeros_like(self.x), ratio.log())))

    def _move(self, dx: Tensor, dy: Tensor) -> None:
        self.x, self.y = self.x + dx, self.y + dy
        # Rank-one factors in place of m n exponentials.
        self.a = self.a * dx.exp()[:, None] * dy.exp()[None, :]
        self.b = self.b * (-dx).exp()[:, None] * (-dy).exp()[None, :]

    def _newton(self) -> bool:
        """One damped Newton step; False where rounding leaves no descent."""
        rows = len(self.x)
        by_row, by_column = self.imbalance()
        coupling = self.a + self.b
        small = DAMPING * coupling.sum()
        # Potentials (x, -y): the second derivative is the Laplacian of the bipartite graph with weights a + b.
        # Eliminate the longer side; what is left is a damped Laplacian again.
        if rows >= len(self.y):
            degree = coupling.sum(dim=1) + small
            share = (coupling / degree[:, None]).T
            one = torch.zeros(len(self.y), dtype=torch.long)
            q = _laplacian_step(share @ coupling, share @ by_row - by_column, small + small * share.sum(dim=1), one)
            p = (coupling @ q - by_row) / degree
        else:
            degree = coupling.sum(dim=0) + small
            share = coupling / degree[None, :]
            one = torch.zeros(rows, dtype=torch.long)
            p = _laplacian_step(share @ coupling.T, by_row - share @ by_column, small + small * share.sum(dim=1), one)
            q = (coupling.T @ p + by_column) / degree

        def flows(z: Tensor) -> Tensor:
            total = z[:rows, None] - z[None, rows:]
            return torch.stack([self.a * total.exp(), self.b * (-total).exp()])

        moved = _descend(flows, torch.cat([p, q]), self.a.sum() + self.b.sum())
        if moved is None:
            return False
        self.x, self.y = self.x + moved[0][:rows], self.y - moved[0][rows:]
        self.a, self.b = moved[1][0], moved[1][1]
        return True


def _flows_at(flows: Tensor, potentials: Tensor) -> Tensor:
    return flows * (potentials[:, None] - potentials[None, :]).exp()


def _laplacian_step(weights: Tensor, gradient: Tensor, damping: Tensor, labels: Tensor) -> Tensor:
    """Return -(L + D)^-1 gradient for the Laplacian L of symmetric nonnegative weights and a diagonal ``damping`` D.

    One node of each component is held at 0 (its equation follows from the others), and the diagonal is summed from the
    off-diagonal weights, so that weak couplings are not lost to cancellation.
    """
    weights = weights.clone()
    weights.fill_diagonal_(0.0)
    _, first = torch.unique(labels, return_inverse=True)
    anchors = torch.zeros(int(first.max()) + 1, dtype=torch.long).scatter_(0, first, torch.arange(len(first)))
    free = torch.ones(len(first), dtype=torch.bool)
    free[anchors] = False
    step = torch.zeros_like(gradient)
    if not bool(free.any()):
        return step
    root = (weights.sum(dim=1) + damping)[free].sqrt()  # unit diagonal: well scaled for the factorisation
    matrix = torch.eye(int(free.sum()), dtype=torch.float64) - weights[free][:, free] / torch.outer(root, root)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed):
        return step
    step[free] = -torch.cholesky_solve((gradient[free] / root)[:, None], factor)[:, 0] / root
    return step


def _descend(flows: Callable[[Tensor], Tensor], step: Tensor, value: Tensor) -> tuple[Tensor, Tensor] | None:
    """Shorten ``step`` until the sum of the flows falls; return the step and the flows, or None if it never does."""
    # Flows are exponentials: beyond a few units the quadratic model means nothing.
    spread = float(step.max() - step.min())
    if not math.isfinite(spread) or spread == 0.0:
        return None
    step = step * min(1.0, 8.0 / spread)
    for _ in range(40):
        new = flows(step)
        if bool(new.sum() <= value * (1 + 1e-15)):
            return step, new
        step = step / 2
    return None


def _checked_pair(h: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
    if h.shape != w2.shape:
        raise UsageError(f"h and w2 must have one shape; found {tuple(h.shape)} and {tuple(w2.shape)}.")
    h, w2 = h.detach().cpu().double(), w2.detach().cpu().double()
    for name, values in (("h", h), ("w2", w2)):
        if not bool(torch.isfinite(values).all()) or bool((values < 0).any()):
            raise UsageError(f"{name} has entries that are negative or not finite; clip the curvature at 0 first.")
    return h, w2


def _without_void_lines(h: Tensor, w2: Tensor) -> Tensor:
    """Mark the entries left when rows and columns without curvature or without weight are removed, repeatedly."""
    alive = torch.ones(h.shape, dtype=torch.bool)
    while True:
        a, b = (h > 0) & alive, (w2 > 0) & alive
        rows = a.any(dim=1) & b.any(dim=1)
        columns = a.any(dim=0) & b.any(dim=0)
        left = alive & rows[:, None] & columns[None, :]
        if bool((left == alive).all()):
            return alive
        alive = left


def _bipartite_components(row_to_column: Tensor, column_to_row: Tensor) -> tuple[Tensor, Tensor]:
    """Label rows and columns by strongly connected component of the digraph with these arcs."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    rows, columns = row_to_column.shape
    if bool(row_to_column.all()) and bool(column_to_row.all()):
        return torch.zeros(rows, dtype=torch.long), torch.zeros(columns, dtype=torch.long)
    forth, back = row_to_column.nonzero().numpy(), column_to_row.nonzero().numpy()
    tails = torch.cat([torch.as_tensor(forth[:, 0]), torch.as_tensor(back[:, 1]) + rows]).numpy()
    heads = torch.cat([torch.as_tensor(forth[:, 1]) + rows, torch.as_tensor(back[:, 0])]).numpy()
    graph = coo_array((torch.ones(len(tails)).numpy(), (tails, heads)), shape=(rows + columns, rows + columns))
    _, labels = connected_components(graph.tocsr(), directed=True, connection="strong")
    labels = torch.as_tensor(labels, dtype=torch.long)
    return labels[:rows], labels[rows:]


def _strong_components(arcs: Tensor) -> Tensor:
    """Label the nodes of a dense digraph by strongly connected component."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    _, labels = connected_components(csr_array(arcs.numpy()), directed=True, connection="strong")
    return torch.as_tensor(labels, dtype=torch.long)


def _log_or_zero(values: Tensor) -> Tensor:
    return torch.where(values > 0, values, 1.0).log()

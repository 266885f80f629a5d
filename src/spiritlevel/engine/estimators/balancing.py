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

from spiritlevel.values.errors import UsageError

# Added to the second derivative, relative to the value.  Directions flatter than this have gradients below every
# tolerance, and rounding divided by their curvature would throw the Newton step about.
DAMPING = 1e-14
LARGE = 1e100  # sums and scales beyond this, or below its inverse, are first brought together by logarithms
LOOKED_AT = 8  # rows and columns

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
    alive_rows, alive_columns = _lines_that_count(h, w2)
    at_row, at_column = alive_rows.nonzero().flatten(), alive_columns.nonzero().flatten()
    h_left, w2_left = _cut(h, at_row, at_column), _cut(w2, at_row, at_column)
    carried = (h_left > 0) | (w2_left > 0)
    unattained = False
    parts = [(torch.arange(len(at_row)), torch.arange(len(at_column)))] if len(at_row) else []
    if not _has_full_line(h_left, w2_left):
        labels_row, labels_column = _bipartite_components(h_left > 0, w2_left > 0)
        same = labels_row[:, None] == labels_column[None, :]
        unattained = bool((carried & ~same).any())
        carried &= same
        used = torch.unique(labels_row[carried.any(dim=1)]).tolist()
        parts = [
            (
                ((labels_row == label) & carried.any(dim=1)).nonzero().flatten(),
                ((labels_column == label) & carried.any(dim=0)).nonzero().flatten(),
            )
            for label in used
        ]
    kept = torch.zeros(h.shape, dtype=torch.bool)
    kept[at_row[:, None], at_column] = carried

    u, v = torch.ones(len(h), dtype=torch.float64), torch.ones(h.shape[1], dtype=torch.float64)
    value, gaps, sweeps, converged = 0.0, 0.0, 0, True
    for own_rows, own_columns in parts:
        part = _Bipartite(_cut(h_left, own_rows, own_columns), _cut(w2_left, own_rows, own_columns))
        sweeps = max(sweeps, part.solve(tolerance, max_sweeps))
        # Each component meets the tolerance on its own value, hence also on the sum.
        converged &= part.gap <= tolerance * part.value
        value += part.value
        gaps = max(gaps, part.gap)
        u[at_row[own_rows]], v[at_column[own_columns]] = part.scales()
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
    rows, columns = _lines_that_count(h, w2)  # dead neurons and unused inputs carry nothing, as in `balance`
    alive = rows[:, None] & columns[None, :]
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
    """One strongly connected problem: flows ``a`` and ``b`` at some scales, and factors u, v on top of those.

    Alternation reads the two matrices and writes nothing of their size: sums of h u v over rows are u * (a @ v).
    """

    def __init__(self, h: Tensor, w2: Tensor) -> None:
        self.a, self.b = h, w2
        self.x = torch.zeros(h.shape[0], dtype=torch.float64)  # log u at which a and b are the flows
        self.y = torch.zeros(h.shape[1], dtype=torch.float64)  # log v
        self.u, self.v = torch.ones_like(self.x), torch.ones_like(self.y)
        self.value, self.gap = math.inf, math.inf  # at the scales of the last look
        self._balance_rows(*self._row_sums())
        self._balance_columns()
        if not self._within_range():
            self._start_from_logarithms()

    def _within_range(self) -> bool:
        """Whether no sum or scale comes near the ends of what a float holds, where products lose their digits."""
        ends = torch.stack([torch.stack(torch.aminmax(t)) for t in (self.u, self.v, *self._row_sums())])
        return bool((ends > 1 / LARGE).all()) and bool((ends < LARGE).all())

    def _start_from_logarithms(self) -> None:
        """Make flows of one order in every row and column, however far apart the scales are."""
        log_h, log_w2 = self.a.log(), self.b.log()
        self.y = torch.zeros_like(self.y)
        for _ in range(2):
            self.x = 0.5 * ((log_w2 - self.y).logsumexp(dim=1) - (log_h + self.y).logsumexp(dim=1))
            self.y = 0.5 * ((log_w2.T - self.x).logsumexp(dim=1) - (log_h.T + self.x).logsumexp(dim=1))
        total = self.x[:, None] + self.y[None, :]
        self.a, self.b = (log_h + total).exp(), (log_w2 - total).exp()
        self.u, self.v = torch.ones_like(self.x), torch.ones_like(self.y)
        self._balance_rows(*self._row_sums())
        self._balance_columns()

    def scales(self) -> tuple[Tensor, Tensor]:
        """Return u and v with equal mean logarithms, the free constant being anybody's choice."""
        x, y = self.x + self.u.log(), self.y + self.v.log()
        constant = 0.5 * (x.mean() - y.mean())
        return (x - constant).exp(), (y + constant).exp()

    def solve(self, tolerance: float, max_sweeps: int) -> int:
        """Alternate while that at least halves the gap, else take Newton steps; return the sweeps and steps taken."""
        previous = math.inf
        for sweep in range(1, max_sweeps + 1):
            forth, back = self._row_sums()
            self._look(forth, back)
            if self.gap <= tolerance * self.value or sweep == max_sweeps:
                return sweep
            if self.gap > 0.5 * previous:
                self._settle()
                self._newton()
                forth, back = self._row_sums()
            previous = self.gap
            self._balance_rows(forth, back)
            self._balance_columns()
        return max_sweeps

    def _row_sums(self) -> tuple[Tensor, Tensor]:
        """Row sums of a v and of b / v."""
        return self.a @ self.v, self.b @ (1 / self.v)

    def _balance_rows(self, forth: Tensor, back: Tensor) -> None:
        self.u = (back / forth).sqrt()

    def _balance_columns(self) -> None:
        forth, back = self.a.T @ self.u, self.b.T @ (1 / self.u)
        self.v = (back / forth).sqrt()
        self.column_gap = float((self.v * forth - back / self.v).abs().max())

    def _look(self, forth: Tensor, back: Tensor) -> None:
        """Read value and gap off the sums that the next step needs anyway; the columns were balanced last."""
        inwards, outwards = self.u * forth, back / self.u
        self.value = float(inwards.sum() + outwards.sum())
        self.gap = max(float((inwards - outwards).abs().max()), self.column_gap)

    def _settle(self) -> None:
        """Take the factors u and v into the flows."""
        self.x, self.y = self.x + self.u.log(), self.y + self.v.log()
        self.a = self.a * self.u[:, None] * self.v
        self.b = self.b / self.u[:, None] / self.v
        self.u, self.v = torch.ones_like(self.x), torch.ones_like(self.y)

    def _newton(self) -> None:
        """Take one damped Newton step, unless rounding leaves no descent."""
        rows = len(self.x)
        coupling, difference = self.a + self.b, self.a - self.b
        by_row, by_column = difference.sum(dim=1), difference.sum(dim=0)
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
        if moved is not None:
            self.x, self.y = self.x + moved[0][:rows], self.y - moved[0][rows:]
            self.a, self.b = moved[1][0], moved[1][1]


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
        low, high = torch.aminmax(values) if values.numel() else (0.0, 0.0)
        if not (low >= 0 and high < math.inf):  # written so that NaN fails too
            raise UsageError(f"{name} has entries that are negative or not finite; clip the curvature at 0 first.")
    return h, w2


def _lines_that_count(h: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
    """Mark the rows and columns left when those without curvature or without weight are removed, repeatedly."""
    rows, columns = torch.ones(len(h), dtype=torch.float64), torch.ones(h.shape[1], dtype=torch.float64)
    while True:
        before = int(rows.sum() + columns.sum())
        rows = (rows * ((h @ columns > 0) & (w2 @ columns > 0))).double()
        columns = (columns * ((h.T @ rows > 0) & (w2.T @ rows > 0))).double()
        if int(rows.sum() + columns.sum()) == before:
            return rows > 0, columns > 0


def _cut(matrix: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return some rows and columns of a matrix, the matrix itself where they are all of it."""
    matrix = matrix if len(rows) == matrix.shape[0] else matrix[rows]
    return matrix if len(columns) == matrix.shape[1] else matrix[:, columns]


def _has_full_line(h: Tensor, w2: Tensor) -> bool:
    """Whether a row or column among the first few has no zero: then all lines that count hang together.

    A full row leads to every column and back; every other row has some way to a column and some way back.
    """
    few = slice(0, LOOKED_AT)
    return bool(((h[few] > 0) & (w2[few] > 0)).all(dim=1).any() | ((h[:, few] > 0) & (w2[:, few] > 0)).all(dim=0).any())


def _bipartite_components(row_to_column: Tensor, column_to_row: Tensor) -> tuple[Tensor, Tensor]:
    """Label rows and columns by strongly connected component of the digraph with these arcs."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    rows, columns = row_to_column.shape
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

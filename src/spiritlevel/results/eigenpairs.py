"""Some eigenpairs of a problem's matrix with the residuals that certify them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from spiritlevel.results import Report, levels
from spiritlevel.results.base import Shown
from spiritlevel.results.header import Headed, Header
from spiritlevel.results.numerals import plain
from spiritlevel.results.wording import matrix_words
from spiritlevel.values.cleaning import Cleaned
from spiritlevel.values.estimate import Estimate, Status

if TYPE_CHECKING:
    from rich.console import RenderableType

_FEW = 3  # values in one line


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Eigenvalues(Headed, Shown):
    """Extreme eigenpairs with the residuals that certify them.

    An eigenvalue lies within each residual of its value.  That it is the largest no residual can prove: the random
    start block makes it so with probability one in exact arithmetic. Printed, it is the table a terminal shows.

    Attributes
    ----------
    values : Tensor
        The eigenvalues (k,) in float64, in the order asked for.
    vectors : Tensor
        Their vectors (P, k), unit columns; ``problem.unflatten`` gives them by parameter.
    residuals : Tensor
        The length (k,) of H v − λ v of each.
    status : str
        "ok", or "budget_spent" where a residual is above the tolerance, or finite differences are not to be trusted.
    reason : str
        Why it is not "ok".
    sweeps : int
        Sweeps over the data that were made.
    products : int
        Products of the matrix with a vector that were made.
    path : str
        How the products were made: by double backward, or by finite differences.
    strategy : str
        By which strategy.
    operator : str
        The matrix: "hessian", "ggn", "batch_variance", a layer or a parameter.
    header : Header
        What was measured.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> found = sl.eigenvalues(problem, k=2)
    >>> found.status, found.path, found.intervals.shape
    ('ok', 'double backward', torch.Size([2, 2]))
    >>> found.to_pandas()["value"].round(2).tolist()
    [0.34, 0.31]
    """

    kind: ClassVar[str] = "list of eigenvalues"
    main_figure: ClassVar[str] = "eigenvalues"
    levels = levels.EIGENVALUES
    values: Tensor  # (k,) float64, in the order asked for
    vectors: Tensor  # (P, k), unit columns; problem.unflatten gives them by parameter
    residuals: Tensor  # (k,)
    status: Status
    reason: str
    sweeps: int
    products: int
    path: str  # how the products were made
    strategy: str
    operator: str = "hessian"
    header: Header = field(default_factory=Header)

    @property
    def intervals(self) -> Tensor:
        """The certificate intervals, (k, 2)."""
        return torch.stack([self.values - self.residuals, self.values + self.residuals], dim=1)

    @property
    def in_short(self) -> str:
        """The first values and the largest residual."""
        shown = ", ".join(plain(value) for value in self.values[:_FEW].tolist())
        rest = f", … ({len(self.values)})" if len(self.values) > _FEW else ""
        largest = plain(float(self.residuals.max()), 2)
        return f"the {matrix_words(self.operator)} of {self.header.model or 'a network'}: {shown}{rest} ± {largest}"

    def report(self) -> Report:
        """Return the eigenvalues as a report: a row each, with its certificate.

        Returns
        -------
        Report
            The report.
        """
        rows = {
            f"eigenvalue_{place}": Estimate(
                value,
                interval=(value - residual, value + residual),
                how="estimated",
                status=self.status,
                reason=self.reason,
                samples=self.header.samples or 0,
            )
            for place, (value, residual) in enumerate(zip(self.values.tolist(), self.residuals.tolist()), 1)
        }
        words = f"of the {matrix_words(self.operator)}"
        titles = {name: f"Eigenvalue {place} {words}" for place, name in enumerate(rows, 1)}
        return Report(estimates=rows, header=self.header, titles=titles)

    def table(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        cost = f"{self.sweeps} sweeps over the data; products by {self.path}."
        return Cleaned(Group(self.report().table(), Text(cost)))

"""Appendix A.1 and section 7.3 of Tsuzuku et al. 2019: the running example, number by number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.analyses.measuring import measure
from spiritlevel.engine.problem import Problem
from spiritlevel.lab.studies.claims import Claim, Within
from spiritlevel.lab.studies.quantities import Quantity, exact
from spiritlevel.lab.studies.study import Outcome, Place, Settings, Study, Table, trained_by_nothing


class _TwoBranches(nn.Module):
    """The sum of two affine layers, which share all work or leave it to one."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(w.shape[1], w.shape[0], bias=False).double() for w in (first, second))
        with torch.no_grad():
            self.first.weight.copy_(first)
            self.second.weight.copy_(second)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.first(x) + self.second(x)
        return total


def _measure(settings: Settings, trained: Any, place: Place) -> Outcome:
    w1, w2 = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double(), torch.tensor([[5.0, 6.0], [7.0, 8.0]]).double()
    scale = torch.tensor([10.0, 0.1]).double()
    v1, v2 = w1 / scale[:, None], w2 * scale[None, :]
    x = torch.randn(2, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    row: dict[str, Any] = {"function": float((v2 @ torch.relu(v1 @ x) - w2 @ torch.relu(w1 @ x)).abs().max())}
    for name, matrix in (("w1", w1), ("w2", w2), ("w1_after", v1), ("w2_after", v2)):
        row[f"frobenius_squared_{name}"] = float(matrix.square().sum())
        row[f"spectral_{name}"] = float(torch.linalg.matrix_norm(matrix, 2))
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    inputs = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (40,), generator=generator)
    names = ["fisher_rao_diagonal", "fisher_rao_norm", "normalized_sharpness", "matrix_normalized_sharpness"]
    halves = measure(Problem(_TwoBranches(weight / 2, weight / 2), (inputs, labels)), measures=names)
    alone = measure(Problem(_TwoBranches(weight, 0 * weight), (inputs, labels)), measures=names)
    for name in names:
        row[f"one_branch_over_two_{name}"] = float(alone[name]) / float(halves[name])
    return Outcome([row])


def _analyse(table: Table) -> dict[str, Quantity]:
    own = table.rows[0]
    found = {name: exact(value) for name, value in own.items() if isinstance(value, float)}
    before = own["frobenius_squared_w1"] * own["frobenius_squared_w2"]
    after = own["frobenius_squared_w1_after"] * own["frobenius_squared_w2_after"]
    found["product_of_norms"] = exact((after / before) ** 0.5)
    return found


def _printed(name: str, quantity: str, printed: float, place: str, wide: float, otherwise: str = "") -> Claim:
    return Claim(
        name,
        f"{quantity} is {printed:g}",
        place,
        f"{printed:g}",
        (Within(quantity, printed - wide, printed + wide, 1),),
        otherwise=otherwise,
    )


_ROWS = (
    "The matrix printed in (41) has {frobenius_squared_w2_after} and {spectral_w2_after}; the printed norms are "
    "those of "
    "the matrix in which the rows of the second matrix, and not its columns, are scaled, which would change the "
    "network."
)

STUDY = Study(
    name="nfm-a1",
    title="The running example of appendix A.1, number by number",
    paper="Tsuzuku et al. 2019",
    grid=lambda size: [{"example": "A.1"}],
    train=trained_by_nothing,
    measure=_measure,
    analyse=_analyse,
    claims=(
        Claim(
            "keeps-function",
            "The transformation of section 5.1 keeps the network's function",
            "appendix A.1, (38)-(41)",
            "unchanged",
            (Within("function", 0.0, 1e-9, 1),),
        ),
        Claim(
            "norms-not-invariant",
            "Bounds made of matrix norms change under it",
            "section 5.1, appendix A.1",
            "√30·√174 becomes √2500·√6101",
            (Within("product_of_norms", 10.0, minimum=1),),
        ),
        _printed("spectral-w1", "spectral_w1", 5.48, "(35)", 0.005,
                 "The spectral norm is {spectral_w1}; 5.48 is √30, the Frobenius norm."),
        _printed("spectral-w2", "spectral_w2", 13.19, "(37)", 0.005),
        _printed("frobenius-w1-after", "frobenius_squared_w1_after", 2500.05, "(42)", 0.005),
        _printed("spectral-w1-after", "spectral_w1_after", 50.00, "(43)", 0.005),
        _printed("frobenius-w2-after", "frobenius_squared_w2_after", 6101.13, "(44)", 0.005, _ROWS),
        _printed("spectral-w2-after", "spectral_w2_after", 78.11, "(45)", 0.005, _ROWS),
        Claim(
            "fisher-rao-halves",
            "Leaving the work of two equal branches to one halves the diagonal Fisher–Rao norm (25)",
            "section 7.3",
            "becomes half",
            (Within("one_branch_over_two_fisher_rao_diagonal", 0.49, 0.51, 1),),
            otherwise="It becomes {one_branch_over_two_fisher_rao_diagonal} times as large: the sum of squares of two "
            "halves is half the square of the whole. The full norm θᵀFθ of Liang et al. 2019 becomes "
            "{one_branch_over_two_fisher_rao_norm} times as large, that is, it stays.",
        ),
        Claim(
            "sharpness-kept",
            "Normalised sharpness (17) is kept by it",
            "section 7.3",
            "kept the same",
            (Within("one_branch_over_two_normalized_sharpness", 0.999999, 1.000001, 1),),
        ),
    ),
    departures=lambda size: ["none: arithmetic; section 7.3 on two affine branches with random inputs"],
)  # fmt: skip

"""What a search for eigenpairs takes: no more products than plain Lanczos, no more memory than there is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from spiritlevel.engine import warm_start
from spiritlevel.engine.estimators import eigenvalues
from spiritlevel.engine.estimators.eigenvalues import BASIS_SHARE, WRITTEN_OUT, top_eigenpairs
from spiritlevel.engine.estimators.lanczos import Lanczos, fresh_direction, lanczos
from spiritlevel.engine.estimators.probes import seeded_generator
from spiritlevel.measures.reference import Dense
from spiritlevel.measures.workbench import Workbench
from tests.engine.operators.material import CASES
from tests.helpers import opened

ORDER = 3000


def plain_products(matrix: Tensor, tolerance: float) -> int:
    """How many products Lanczos from one vector needs to the same residual, fully re-orthogonalised."""

    def there(run: Lanczos) -> bool:
        return bool(run.residual_bounds[0, -1] <= tolerance * run.ritz_values[0].abs().max())

    start = fresh_direction(matrix[:0], seeded_generator(0, 1))[:, None]
    return lanczos(lambda x: matrix @ x, start, len(matrix), callback=there).steps


@pytest.mark.filterwarnings("ignore:Using padding")  # of one of the networks
@pytest.mark.parametrize("tolerance", [1e-2, 1e-3])
@pytest.mark.parametrize("name", sorted(CASES))
def test_one_pair_takes_no_more_products_than_plain_lanczos(name: str, tolerance: float) -> None:
    matrix = Dense(opened(*CASES[name].trained(steps=20))).hessian
    if len(matrix) <= WRITTEN_OUT:
        pytest.skip("a matrix this small is written out")
    pairs = top_eigenpairs(lambda x: matrix @ x, len(matrix), tolerance=tolerance, dtype=torch.float64)
    assert pairs.status == "ok"
    assert pairs.products <= plain_products(matrix, tolerance)


@pytest.mark.parametrize("name", ["gelu", "layer_norm", "attention", "mlp", "conv2d_strided_padded", "prelu"])
def test_nor_where_a_part_of_the_data_could_be_asked_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start, "FEWEST", 20)
    model, data = CASES[name].trained(count=100)
    problem = opened(model, data)
    pairs = Workbench(problem).eigen(1, "largest", 1e-2)
    assert pairs.status == "ok"
    assert problem.spent["hessian product"] == pairs.products
    assert pairs.products <= plain_products(Dense(problem).hessian, 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1, 3])
def test_with_room_for_few_vectors_it_restarts_and_ends_at_the_same_pairs(
    k: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = torch.tensor([1.05, 1.1, 1.15, 1.2], dtype=torch.float64)
    diagonal = torch.cat([torch.linspace(0, 1, ORDER - 4, dtype=torch.float64), ends]).to(dtype)
    room: list[int] = []
    found = eigenvalues._KrylovSpace.found

    def looked_at(self: eigenvalues._KrylovSpace, *arguments: Any) -> eigenvalues.Eigenpairs:
        room.append(len(self.basis))
        return found(self, *arguments)

    monkeypatch.setattr(eigenvalues._KrylovSpace, "found", looked_at)
    wide = top_eigenpairs(lambda x: diagonal[:, None] * x, ORDER, k, dtype=dtype, tolerance=1e-4)
    vector = 2 * ORDER * diagonal.element_size()  # with its image
    monkeypatch.setenv("SPIRITLEVEL_MEMORY", str(int(12.5 * vector / BASIS_SHARE)))
    narrow = top_eigenpairs(lambda x: diagonal[:, None] * x, ORDER, k, dtype=dtype, tolerance=1e-4)
    assert max(room[1:]) <= 12 < room[0]
    assert narrow.status == wide.status == "ok"
    assert ((narrow.values - wide.values).abs() <= narrow.residuals + wide.residuals).all()
    exact = diagonal.double().sort(descending=True).values[:k]
    assert ((narrow.values - exact).abs() <= narrow.residuals).all()


def test_a_large_direction_is_drawn_as_signs_and_orthogonal_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    basis = torch.linalg.qr(torch.randn(200, 3, dtype=torch.float64))[0].T
    normal = fresh_direction(basis, seeded_generator(0, 1))
    monkeypatch.setattr("spiritlevel.engine.estimators.lanczos.AT_ONCE", 100)
    signs = [fresh_direction(basis, seeded_generator(0, number)) for number in (1, 1, 2)]
    assert torch.equal(signs[0], signs[1])
    assert not torch.allclose(signs[0], signs[2])
    assert not torch.allclose(signs[0], normal)
    for direction in signs:
        assert float(direction.norm()) == pytest.approx(1.0)
        assert float((basis @ direction).abs().max()) < 1e-12

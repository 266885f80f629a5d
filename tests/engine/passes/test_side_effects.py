"""What a model does beside computing (autocast, checkpointing, writing to its weights or inputs) moves no number."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import spiritlevel as sl
from tests.engine.passes.foolers import CLASSES, WIDTH, Data, dense_hessian, plain, right_or_refused, sorted_data


@pytest.fixture(autouse=True)
def drawn() -> None:
    torch.manual_seed(0)


# --- 4: autocast ------------------------------------------------------------------------------------------------------


class Inside(nn.Module):
    """A network that computes in bfloat16 on its own; ``way`` says where."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.net = way, plain().float()

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "all":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.net(x).float()
        if self.way == "later" and float(x[0, 0]) > 0:
            return self.net(x)
        hidden = self.net[0](x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.net[2](hidden.relu()).float()


MEASURES = ["hessian_trace", "noise_curvature", "output_margin", "hessian_top_eigenvalue", "normalized_sharpness"]


@pytest.fixture(params=["around", "float16 around", "all", "last layer", "later"])
def autocast(request: pytest.FixtureRequest) -> tuple[str, nn.Module]:
    torch.manual_seed(0)
    return request.param, plain().float() if "around" in request.param else Inside(request.param)


def test_autocast_is_switched_off_and_told(autocast: tuple[str, nn.Module]) -> None:
    way, model = autocast
    x, y = sorted_data()
    data = x.float(), y
    bare = model if "around" in way else model.net
    expected = sl.measure(bare, data, MEASURES, batch_size=16)
    kind = torch.float16 if "float16" in way else torch.bfloat16
    with torch.autocast("cpu", dtype=kind, enabled="around" in way):
        report = sl.measure(model, data, MEASURES, batch_size=16)
        v = torch.ones(sl.Problem(model, data).size)
        product = sl.Problem(model, data).hessian @ v
        if "around" in way:
            assert torch.is_autocast_enabled("cpu")
    for name in MEASURES:
        assert report[name].value == pytest.approx(expected[name].value, rel=1e-6), name
        assert report[name].how == expected[name].how
    torch.testing.assert_close(product, sl.Problem(bare, data).hessian @ v, rtol=1e-5, atol=1e-7)
    assert any("utocast" in note for note in report.header.notes)
    assert not any("utocast" in note for note in expected.header.notes)


# --- checkpointing, and a forward that writes to its weights ----------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_changes_no_number(reentrant: bool) -> None:
    class Saved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = nn.Linear(4, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
            self.double()

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x).tanh()
            hidden = checkpoint(lambda h: self.middle(h).relu(), hidden, use_reentrant=reentrant)
            return self.last(hidden)

    model, data = Saved(), sorted_data()
    truth = dense_hessian_of_saved(model, data)
    report = right_or_refused(model, data, truth)
    assert report is not None
    assert report["hessian_top_eigenvalue"].value == pytest.approx(float(torch.linalg.eigvalsh(truth)[-1]), rel=1e-4)
    problem = sl.Problem(model, data)
    torch.testing.assert_close(problem.hessian @ truth[0], truth @ truth[0], rtol=1e-9, atol=1e-12)


def dense_hessian_of_saved(model: nn.Module, data: Data) -> Tensor:
    """Return the Hessian of the same network without its checkpoint."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = model.first, model.middle, model.last

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.middle(self.first(x).tanh()).relu())

    return dense_hessian(Plain(), *data)


@pytest.mark.parametrize("way", ["no_grad", "data"])
def test_a_forward_that_writes_to_its_weights_is_refused_and_undone(way: str) -> None:
    class Clamped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = plain()

        def forward(self, x: Tensor) -> Tensor:
            if way == "data":
                self.net[0].weight.data.clamp_(-0.1, 0.1)
            else:
                with torch.no_grad():
                    self.net[0].weight.clamp_(-0.1, 0.1)
            return self.net(x)

    model = Clamped()
    before = model.net[0].weight.detach().clone()
    with pytest.raises(sl.SpiritlevelError, match=r"writes to its own parameters \(net\.0\.weight"):
        sl.measure(model, sorted_data(), "hessian_trace")
    assert torch.equal(model.net[0].weight, before)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_embeddings_give_the_numbers_of_dense_ones(kind: type[nn.Embedding] | type[nn.EmbeddingBag]) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = kind(7, 3, sparse=True), nn.Linear(3, CLASSES)
            self.double()

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.table(x)
            return self.head(found.mean(1) if found.ndim == 3 else found)

    model = Words()
    data = torch.randint(0, 7, (12, 4)), torch.randint(0, CLASSES, (12,))
    found = sl.curvature(sl.Problem(model, data))
    assert model.table.sparse
    model.table.sparse = False
    expected = sl.curvature(sl.Problem(model, data))
    for name, diagonal in expected.diagonal.items():
        torch.testing.assert_close(found.diagonal[name], diagonal, rtol=1e-12, atol=0)


@pytest.mark.parametrize("way", ["in place", "through data"])
def test_a_model_that_writes_to_its_inputs_does_not_write_to_the_users(way: str) -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = plain()

        def forward(self, x: Tensor) -> Tensor:
            (x if way == "in place" else x.data).mul_(1.5)
            return self.net(x)

    class Same(Writing):
        def forward(self, x: Tensor) -> Tensor:
            return self.net(1.5 * x)

    model, same, data = Writing(), Same(), sorted_data()
    same.load_state_dict(model.state_dict())
    before = data[0].clone()
    report = right_or_refused(model, data, dense_hessian(same, *data), batch_size=16)
    assert torch.equal(data[0], before)
    assert report is not None


def test_a_mapping_over_samples_that_torch_gets_wrong_is_not_used() -> None:
    """torch's rule for PReLU under two nested maps gives gradients of another shape, which would be broadcast."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.slope, self.head = nn.Linear(4, 4), nn.PReLU(), nn.Linear(4, CLASSES)
            self.double()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.slope(self.first(x.flip(0))).flip(0))

    model, data = Turned(), sorted_data(8)
    truth = dense_hessian(model, *data)
    assert right_or_refused(model, data, truth) is not None
    diagonal = torch.cat([part.reshape(-1) for part in sl.curvature(sl.Problem(model, data)).diagonal.values()])
    torch.testing.assert_close(diagonal, truth.diagonal(), rtol=1e-9, atol=1e-12)


def test_products_are_made_where_inference_mode_is_on() -> None:
    model, data = plain(), sorted_data()
    truth = dense_hessian(model, *data)
    with torch.inference_mode():
        vector = torch.ones(len(truth), dtype=torch.float64)
        found = sl.Problem(model, data).hessian @ vector
    torch.testing.assert_close(found, truth @ torch.ones(len(truth), dtype=torch.float64), rtol=1e-9, atol=1e-12)

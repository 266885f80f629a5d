"""Names and shapes that do not fit are told and change nothing; ties, hooks, gradients and flags are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spiritlevel.inputs.weights.checkpoints import load_weights
from spiritlevel.values.errors import UsageError
from tests.inputs.weights.saved_networks import Net, assert_loads, assert_refused, assert_same


def test_names_and_shapes_that_do_not_fit(tmp_path: Path, net: Net) -> None:
    weights = net.state_dict()
    for name in ("body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"):
        weights[f"trunk.{name}"] = weights.pop(name)
    weights["head.weight"] = torch.ones(2, 4)
    torch.save({"net": weights, "state_dict_ema": net.state_dict()}, tmp_path / "w.pt")
    message = assert_refused(tmp_path / "w.pt", "does not fit the Net")
    assert "4 names missing (body.0.weight; body.0.bias; body.1.weight; and 1 more)" in message
    assert "4 names unexpected (trunk.body.0.weight; trunk.body.0.bias; trunk.body.1.weight; and 1 more)" in message
    assert "1 name of another shape (head.weight: (2, 4) in the file, (2, 3) in the model)" in message
    assert "averaged weights (key='state_dict_ema')" in message
    assert "entry 'net'" in message
    torch.save({"loss": torch.ones(()), "generator": net.state_dict()}, tmp_path / "g.pt")
    assert_refused(tmp_path / "g.pt", r"1 name unexpected \(loss\).*other entries with tensors are generator")
    torch.save({**net.state_dict(), "head.weight": torch.ones(2, 3, dtype=torch.int8)}, tmp_path / "q.pt")
    assert_refused(tmp_path / "q.pt", r"another kind of number \(head.weight: int8 in the file, float32")
    torch.save({**net.state_dict(), "head.weight": torch.ones(2, 3, dtype=torch.complex64)}, tmp_path / "c.pt")
    assert_refused(tmp_path / "c.pt", "another kind of number")


def test_what_is_tolerated(tmp_path: Path, net: Net) -> None:
    weights = net.state_dict()
    del weights["body.1.num_batches_tracked"]
    weights["constant"] = torch.arange(3.0)
    weights["head.weight"] = torch.full((2, 3), float("nan"))
    torch.save(weights, tmp_path / "old.pt")
    model = Net(seed=1)
    assert load_weights(model, tmp_path / "old.pt").tensors == 9
    assert model.head.weight.isnan().all()
    weights["constant"] = torch.ones(3)
    torch.save(weights, tmp_path / "other.pt")
    assert_refused(tmp_path / "other.pt", r"1 name unexpected \(constant\)")
    torch.save(
        {name: t.double() if t.is_floating_point() else t for name, t in net.state_dict().items()}, tmp_path / "d.pt"
    )
    assert_loads(tmp_path / "d.pt", net)
    halves = Net(seed=1).half()
    load_weights(halves, tmp_path / "d.pt")
    assert_same(halves, net.half().state_dict())


def tied(seed: int) -> Any:
    torch.manual_seed(seed)
    model: Any = nn.Module()
    model.embedding = nn.Embedding(4, 3)
    model.head = nn.Linear(3, 4, bias=False)
    model.head.weight = model.embedding.weight
    return model


def test_tied_weights(tmp_path: Path) -> None:
    source, weights = tied(0), tied(0).state_dict()
    for present in (["embedding.weight"], ["head.weight"], ["embedding.weight", "head.weight"]):
        torch.save({name: weights[name] for name in present}, tmp_path / "w.pt")
        model = tied(1)
        load_weights(model, tmp_path / "w.pt")
        assert_same(model, source.state_dict())
        assert model.head.weight is model.embedding.weight
    torch.save({"embedding.weight": torch.zeros(4, 3), "head.weight": torch.ones(4, 3)}, tmp_path / "torn.pt")
    assert_refused(tmp_path / "torn.pt", "shared in the model but different in the file", model=tied(1))


def test_models_that_cannot_be_written(tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "w.pt")
    for model in (nn.LazyLinear(2), nn.Linear(3, 2, device="meta")):
        with pytest.raises(UsageError, match="has no data yet"):
            load_weights(model, tmp_path / "w.pt")
    model = nn.Linear(3, 2)
    model.bias = nn.Parameter(torch.zeros(1).expand(2))
    with pytest.raises(UsageError, match="cannot be written"):
        load_weights(model, tmp_path / "w.pt")


def test_loading_keeps_gradients_hooks_and_flags(tmp_path: Path, net: Net) -> None:
    torch.save(net.state_dict(), tmp_path / "w.pt")
    model = Net(seed=1).eval()
    model.head.weight.requires_grad_(False)
    model.head.bias.grad = torch.ones(2)
    identities = [id(p) for p in model.parameters()]
    load_weights(model, tmp_path / "w.pt")
    assert not model.training
    assert not model.head.weight.requires_grad
    assert torch.equal(model.head.bias.grad, torch.ones(2))
    assert identities == [id(p) for p in model.parameters()]
    assert all(p.grad_fn is None for p in model.parameters())

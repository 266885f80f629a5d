"""Networks as they are traced: wrapped ones are looked through, and what cannot be traced is told with its reason."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from spiritlevel.analyses import symmetries
from spiritlevel.values.errors import SpiritlevelError
from tests.analyses.symmetries.operation_networks import Net, linear, vectors


def test_a_network_that_cannot_be_traced_has_nothing_found_and_the_reason() -> None:
    def branching(net: nn.Module, x: Tensor) -> Tensor:
        return net.b(net.a(x).relu()) if x.sum() > -1e9 else net.b(x)

    model, x = Net(branching, **linear(8, 8, 8, 3)).double(), vectors()
    found = symmetries.find(model, x)
    assert len(found) == 0
    assert "cannot be traced" in str(found)
    with pytest.raises(SpiritlevelError, match="cannot be traced"):
        symmetries.rescale_neurons(model, x, seed=0, low=0.5, high=2.0)
    torch.testing.assert_close(symmetries.scale_output(model, x, 3.0)(x), 3 * model(x), rtol=1e-12, atol=0)


def test_a_random_network_is_refused_with_the_reason() -> None:
    model = Net(lambda n, x: n.b(n.a(x + torch.randn_like(x)).relu()), **linear(8, 6, 6, 3)).double()
    calls = iter(range(100))
    model.register_forward_hook(lambda module, inputs, output: output + next(calls))
    with pytest.raises(SpiritlevelError, match="two runs of the model"):
        symmetries.rescale_neurons(model, vectors(), seed=0, low=0.5, high=2.0)


def test_wrapped_networks_are_looked_through() -> None:
    net, x = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).double(), vectors()
    for wrapped in (torch.compile(net), nn.DataParallel(net).cpu()):
        assert symmetries.find(wrapped, x).free_factors("neurons") == 6
        changed = symmetries.rescale_neurons(wrapped, x, seed=0, low=0.1, high=10.0)
        torch.testing.assert_close(changed(x), net(x), rtol=1e-10, atol=1e-12)

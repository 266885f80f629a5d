"""Each sample's gradient of a transposed convolution by its rule, against autograd one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from spiritlevel.engine.layers.rules import rule_of

CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "plain": (nn.ConvTranspose2d(4, 3, 2, stride=2), (3, 4, 5, 5)),
    "groups, cut unevenly": (
        nn.ConvTranspose2d(4, 6, (2, 3), groups=2, stride=(2, 1), padding=(1, 2), output_padding=(1, 0)),
        (5, 4, 5, 6),
    ),
    "dilated and cut": (nn.ConvTranspose1d(3, 2, 3, stride=2, dilation=2, padding=3), (4, 3, 7)),
    "more put out than reached": (nn.ConvTranspose3d(2, 4, 2, stride=3, output_padding=2, bias=False), (2, 2, 3, 2, 2)),
    "as many further windows as fit": (nn.ConvTranspose1d(2, 2, 2, dilation=4, output_padding=3), (3, 2, 5)),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_a_transposed_convolution_called_twice(name: str) -> None:
    module, shape = CASES[name]
    module = module.double()
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    columns = [torch.randn(3, *module(x).shape, generator=generator, dtype=torch.float64) for x in inputs]
    rule = rule_of(module)
    assert rule is not None
    found = rule(module, inputs)(columns)
    for k in range(3):
        for b in range(shape[0]):
            scalar = sum((column[k, b] * module(x[b : b + 1])[0]).sum() for x, column in zip(inputs, columns))
            expected = torch.autograd.grad(scalar, list(module.parameters()))
            for (local, _), gradient in zip(module.named_parameters(), expected):
                torch.testing.assert_close(found[local].formed().values[k, b], gradient)
    whole, part = found["weight"], found["weight"].part(slice(1, 2))
    torch.testing.assert_close(part.formed().values, whole.formed().values[:, 1:2])

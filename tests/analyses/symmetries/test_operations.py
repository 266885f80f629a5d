"""What single operations do to scales: products, ties, gates, normalisations, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spiritlevel.analyses import symmetries
from spiritlevel.values.errors import UsageError
from tests.analyses.symmetries.operation_networks import Net, linear, vectors


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def images() -> Tensor:
    return torch.randn(5, 3, 6, 6, dtype=torch.float64)


def sequences() -> Tensor:
    return torch.randn(2, 5, 8, dtype=torch.float64)


def words() -> Tensor:
    return torch.randint(0, 20, (5, 4))


def gated(net: nn.Module, x: Tensor) -> Tensor:
    first, second = net.a(x).chunk(2, -1)
    return net.c(first.relu() * torch.sigmoid(second))


def squeezed(net: nn.Module, x: Tensor) -> Tensor:
    h = net.a(x).relu()
    weights = torch.sigmoid(net.v(F.relu(net.u(h.mean((2, 3))))))
    return net.h((h * weights[:, :, None, None]).mean((2, 3)))


def padded_shortcut(net: nn.Module, x: Tensor) -> Tensor:
    h = net.a(x).relu()
    return net.h((F.pad(h[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)) + net.b(h)).relu().mean((2, 3)))


def dense(net: nn.Module, x: Tensor) -> Tensor:
    a = F.relu(net.a(x))
    b = F.relu(net.b(torch.cat([x, a], 1)))
    return net.h(F.adaptive_avg_pool2d(torch.cat([a, b], 1), 1).flatten(1))


def overwritten(net: nn.Module, x: Tensor) -> Tensor:
    h = torch.zeros(x.shape[0], 8, dtype=x.dtype)
    h[:, :6] = net.a(x)
    h[:, 6:].sigmoid_()
    return net.b(h.relu())


def encoder(activation: str) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, activation=activation, batch_first=True)
    stack = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8), enable_nested_tensor=False)
    return Net(lambda net, x: net.c(net.t(net.a(x)).mean(1)), a=nn.Linear(8, 8), t=stack, c=nn.Linear(8, 3))


# name: network, example, free factors of neurons, of whole layers, units that can change places
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], int, int, int]] = {
    # c takes up the product of the scales of a and b
    "product": (lambda: Net(lambda n, x: n.c(n.a(x) * n.b(x)), **linear(8, 6, 8, 6, 6, 3)), vectors, 12, 2, 6),
    "swiglu": (lambda: Net(lambda n, x: n.c(F.silu(n.a(x)) * n.b(x)), **linear(8, 6, 8, 6, 6, 3)), vectors, 6, 1, 6),
    "glu": (lambda: Net(lambda n, x: n.b(F.glu(n.a(x))), **linear(8, 12, 6, 3)), vectors, 6, 0, 6),
    "gate": (lambda: Net(gated, a=nn.Linear(8, 12), c=nn.Linear(6, 3)), vectors, 6, 0, 6),
    # a layer that reads its own output has one scale before and after it
    "layer used twice": (
        lambda: Net(lambda n, x: n.c(n.b(n.b(n.a(x).relu()).relu()).relu()), **linear(8, 6, 6, 6, 6, 3)),
        vectors, 6, 1, 6,
    ),
    # W and Wᵀ: row factors would have to be their own inverse
    "tied": (lambda: Net(lambda n, x: F.linear(n.a(x).relu(), n.a.weight.t()), a=nn.Linear(8, 6)), vectors, 0, 0, 6),
    "prelu": (lambda: nn.Sequential(nn.Linear(8, 6), nn.PReLU(6), nn.Linear(6, 3)), vectors, 6, 1, 6),
    "gelu": (lambda: nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 3)), vectors, 0, 0, 6),
    "relu6": (
        lambda: nn.Sequential(nn.Linear(8, 6), nn.ReLU6(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
        vectors, 5, 1, 11,
    ),
    "parameters by hand": (
        lambda: Net(lambda n, x: torch.relu(x @ n.w + n.d) @ n.v, w=parameter(8, 6), d=parameter(6), v=parameter(6, 3)),
        vectors, 6, 1, 6,
    ),
    # a learned factor per channel stands between two scales
    "learned factor": (
        lambda: Net(lambda n, x: n.c(n.g * n.a(x).relu() + n.b(x)), g=parameter(6), **linear(8, 6, 8, 6, 6, 3)),
        vectors, 12, 2, 6,
    ),
    # one learned factor for all channels: s_b = g·s_a in every channel, so 6 scales and g
    "one learned factor": (
        lambda: Net(lambda n, x: n.c(n.g * n.a(x).relu() + n.b(x)), g=parameter(), **linear(8, 6, 8, 6, 6, 3)),
        vectors, 7, 2, 6,
    ),
    "sum in place": (
        lambda: Net(lambda n, x: n.c(n.a(x).add_(n.b(x)).relu_()), **linear(8, 6, 8, 6, 6, 3)), vectors, 6, 1, 6,
    ),
    "input added": (lambda: Net(lambda n, x: n.b(x + n.a(x).relu()), **linear(8, 8, 8, 3)), vectors, 0, 0, 0),
    "maximum": (
        lambda: Net(lambda n, x: n.c(torch.maximum(n.a(x), n.b(x))), **linear(8, 6, 8, 6, 6, 3)), vectors, 6, 1, 6,
    ),
    "maximum over pieces": (
        lambda: Net(lambda n, x: n.b(n.a(x).view(-1, 6, 2).max(-1)[0]), **linear(8, 12, 6, 3)), vectors, 6, 1, 0,
    ),
    "embedding": (
        lambda: Net(lambda n, i: n.b(n.a(n.e(i).mean(1)).relu()), e=nn.Embedding(20, 8), **linear(8, 6, 6, 3)),
        words, 14, 2, 14,
    ),
    "concatenation": (
        lambda: Net(dense, a=nn.Conv2d(3, 4, 3, padding=1), b=nn.Conv2d(7, 5, 1), h=nn.Linear(9, 2)), images, 9, 2, 9,
    ),
    # channels padded with zeros: zeros have any scale, so all 8 of the sum are free
    "padded shortcut": (
        lambda: Net(padded_shortcut, a=nn.Conv2d(3, 4, 3, padding=1), b=nn.Conv2d(4, 8, 3, 2, 1), h=nn.Linear(8, 3)),
        images, 8, 1, 8,
    ),
    "squeeze and excitation": (
        lambda: Net(squeezed, a=nn.Conv2d(3, 4, 3), u=nn.Linear(4, 2), v=nn.Linear(2, 4), h=nn.Linear(4, 3)),
        images, 6, 2, 6,
    ),
    "transposed convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 6, 3, groups=2), nn.ReLU(),
            nn.Upsample(scale_factor=2), nn.Conv2d(6, 2, 3, padding=1, padding_mode="reflect"), nn.ReLU(),
            nn.ConvTranspose2d(2, 3, 2),
        ),
        images, 4 + 6 + 2, 3, 2,
    ),
    "BatchNorm without weights": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
        ),
        images, 4, 1, 4,
    ),
    # per block: LayerNorm before attention 8, queries against keys 8, values 8, LayerNorm before the MLP 8; last 8
    "GELU transformer": (lambda: encoder("gelu"), sequences, 2 * 32 + 8, 5, 8 + 2 * 16),
    "ReLU transformer": (lambda: encoder("relu"), sequences, 2 * (32 + 16) + 8, 7, 8 + 2 * 16),
    "LSTM": (
        lambda: Net(
            lambda n, x: n.b(n.a(n.l(x)[0][:, -1]).relu()), l=nn.LSTM(8, 4, batch_first=True), **linear(4, 5, 5, 3)
        ),
        sequences, 5, 1, 5,
    ),
    "GRU": (
        lambda: Net(lambda n, x: n.b(n.l(n.a(x))[0][:, -1]), l=nn.GRU(4, 4, batch_first=True), **linear(8, 4, 4, 3)),
        sequences, 0, 0, 0,
    ),
    "weight normalisation": (
        lambda: nn.Sequential(
            torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, 6)), nn.ReLU(),
            torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)), nn.ReLU(), nn.Linear(5, 3),
        ),
        # the second layer's lengths reach rows, not columns: the first keeps one factor; directions stay in place
        vectors, 1 + 5, 2, 0,
    ),
    # a fixed blur of each channel hands its scale on
    "fixed filter": (
        lambda: Net(
            lambda n, x: n.h(F.conv2d(n.a(x).relu(), torch.ones(4, 1, 2, 2, dtype=x.dtype), groups=4).mean((2, 3))),
            a=nn.Conv2d(3, 4, 3), h=nn.Linear(4, 2),
        ),
        images, 4, 1, 0,
    ),
    "RMSNorm": (lambda: nn.Sequential(nn.Linear(8, 6), nn.RMSNorm(6, eps=0.1), nn.Linear(6, 3)), vectors, 6, 1, 6),
    "overwritten in part": (lambda: Net(overwritten, **linear(8, 6, 8, 3)), vectors, 0, 0, 0),
    "layer that nothing reads": (
        lambda: Net(lambda n, x: n.b(n.a(x)[:, :4].relu()), **linear(8, 6, 4, 3)), vectors, 4, 0, 4,
    ),
}  # fmt: skip


def built(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, example, *_ = CASES[name]
    return make().double(), example()


@pytest.mark.parametrize("name", CASES)
def test_free_factors_and_every_map(name: str) -> None:
    model, x = built(name)
    found = symmetries.find(model, x)
    counts = tuple(found.free_factors(kind) for kind in ("neurons", "layers", "permutation"))
    assert counts == CASES[name][2:]
    with torch.no_grad():
        expected = model.eval()(x)
        maps = [
            symmetries.rescale_neurons(model, x, seed=0, low=1e-3, high=1e3, found=found),
            symmetries.permute_neurons(model, x, seed=0, found=found),
            *(symmetries.rescale_layers(model, x, {s.name: 1e3}, found=found) for s in found.of_kind("layers")),
        ]
        for changed in maps:
            torch.testing.assert_close(changed.eval()(x), expected, rtol=0, atol=1e-10 * float(expected.abs().max()))
        scaled = symmetries.scale_output(model, x, 7.0, found=found).eval()(x)
        torch.testing.assert_close(scaled, 7 * expected, rtol=0, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("name", "operation", "reason"),
    [
        ("GELU transformer", "t.layers.0 (TransformerEncoderLayer): gelu", "does not pass a change of scale"),
        ("LSTM", "l (LSTM): lstm", "does not pass a change of scale"),
        ("relu6", "1 (ReLU6): hardtanh", "clamps at a fixed value"),
        ("input added", "the network (Net): add", "adds a tensor of fixed scale"),
    ],
)
def test_operations_that_fix_scales_are_listed_with_the_reason(name: str, operation: str, reason: str) -> None:
    found = symmetries.find(*built(name))
    assert any(where == operation and reason in why for where, why in found.left_alone)
    assert f"{operation}: " in str(found)


def test_scales_before_layer_norm_are_approximate_and_refused_where_they_miss_the_tolerance() -> None:
    model, x = built("GELU transformer")
    found = symmetries.find(model, x)
    stream = next(each for each in found.of_kind("layers", exact=False))
    assert stream.how == "approximate (epsilon)"
    assert "ε = 1e-05" in stream.reason
    assert stream.layers[0] == "a"
    assert len(stream.layers) == 5
    with pytest.raises(UsageError, match="only approximately free"):
        symmetries.rescale_layers(model, x, {"a": 3.0}, found=found)


def test_scales_before_a_normalisation_without_epsilon_are_exact() -> None:
    net = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6, eps=0.0), nn.Linear(6, 3)).double()
    found = symmetries.find(net, vectors())
    assert [(each.layers, each.factors, each.exact) for each in found.of_kind("neurons")] == [
        (("0",), 1, True),
        (("1",), 6, True),
    ]
    changed = symmetries.rescale_layers(net, vectors(), {"0": 5.0}, found=found)
    torch.testing.assert_close(changed[0].weight, 5 * net[0].weight, rtol=1e-15, atol=0)
    assert torch.equal(changed[1].weight, net[1].weight)


def test_with_batch_statistics_the_layer_before_batch_norm_is_only_approximately_free() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).double()
    x = images()
    assert symmetries.find(net, x).free_factors("neurons") == 8
    found = symmetries.find(net, x, mode="train")
    assert [each.layers for each in found.of_kind("neurons")] == [("1",)]
    assert [each.layers for each in found.of_kind("neurons", exact=False)] == [("0",)]
    changed = symmetries.rescale_neurons(net, x, seed=0, low=0.1, high=10.0, found=found)
    with torch.no_grad():
        torch.testing.assert_close(changed.train()(x), net.train()(x), rtol=1e-12, atol=1e-12)
    with pytest.raises(UsageError, match="only approximately free"):
        symmetries.rescale_layers(net, x, {"0": 10.0}, found=found)


def test_outputs_of_tied_weights_scale_by_the_square_root_in_each_use() -> None:
    model, x = built("tied")
    changed = symmetries.scale_output(model, x, 9.0)
    torch.testing.assert_close(changed.a.weight, 3 * model.a.weight, rtol=1e-14, atol=0)


def test_the_example_of_tsuzuku_et_al_has_the_norms_of_the_matrices_it_prints() -> None:
    """Appendix A.1: rows of W1 by 0.1 and 10, columns of W2 by the inverse; its (42), and (44) recomputed from (41)."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        net[2].weight.copy_(torch.tensor([[5.0, 6.0], [7.0, 8.0]]))
    x = torch.randn(4, 2, dtype=torch.float64)
    changed = symmetries.rescale_neurons(net, x, factors={"0": torch.tensor([0.1, 10.0], dtype=torch.float64)})
    first, second = changed[0].weight.detach(), changed[2].weight.detach()
    assert float(first.square().sum()) == pytest.approx(2500.05, rel=1e-12)
    assert float(second.square().sum()) == pytest.approx(7401.00, rel=1e-12)
    assert float(torch.linalg.matrix_norm(second, 2)) == pytest.approx(86.03, abs=5e-3)


def test_several_outputs_scale_together_and_keyword_inputs_work() -> None:
    def two(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        h = (net.a(x) + net.b(y)).relu()
        return {"logits": net.c(h), "features": net.d(h)}

    model = Net(two, d=nn.Linear(6, 2), **linear(8, 6, 8, 6, 6, 3)).double()
    example = {"x": vectors(), "y": vectors()}
    found = symmetries.find(model, example)
    assert next(each.layers for each in found.of_kind("output_scale")) == ("c", "d")
    changed = symmetries.scale_output(model, example, 2.0, found=found)
    for name, output in model(**example).items():
        torch.testing.assert_close(changed(**example)[name], 2 * output, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("name", "where", "words"),
    [("gelu", "all", "shared over all layers.*'0' is fixed.*where='last'"), ("product", "all", "multiplied")],
)
def test_alpha_that_cannot_be_shared_is_refused(name: str, where: str, words: str) -> None:
    model, x = built(name)
    with pytest.raises(UsageError, match=words):
        symmetries.scale_output(model, x, 2.0, where=where)


def test_outputs_of_fixed_scale_are_refused() -> None:
    net = nn.Sequential(nn.Linear(8, 6), nn.Softmax(-1)).double()
    assert not symmetries.find(net, vectors()).of_kind("output_scale")
    with pytest.raises(UsageError, match="softmax"):
        symmetries.scale_output(net, vectors(), 2.0)


def test_the_other_way_of_tracing_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = built("concatenation")
    by_export = symmetries.find(model, x)

    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("export is not available")

    monkeypatch.setattr(torch.export, "export", fails)
    assert symmetries.find(model, x).symmetries == by_export.symmetries
    symmetries.rescale_neurons(model, x, seed=0, low=1e-3, high=1e3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda net, x: symmetries.find(net, 3), "example is a int"),
        (lambda net, x: symmetries.find(net, x[:, :5]), "fails on the example"),
        (lambda net, x: symmetries.find("net", x), "model is a str"),
        (lambda net, x: symmetries.find(net, x, mode="test"), "'eval' or 'train'"),
        (lambda net, x: symmetries.scale_output(net, x, 0.0), "alpha is 0.0"),
        (lambda net, x: symmetries.scale_output(net, x, 2.0, where="first"), "'last' or 'all'"),
        (lambda net, x: symmetries.rescale_neurons(net, x, seed=0, low=2.0, high=1.0), "must not exceed"),
        (lambda net, x: symmetries.rescale_neurons(net, x, factors={"1": torch.ones(6)}), "no neuron symmetry"),
        (lambda net, x: symmetries.rescale_neurons(net, x, factors={"0": torch.ones(5)}), "has 5 entries"),
        (lambda net, x: symmetries.rescale_neurons(net, x, factors={"0": -torch.ones(6)}), "only positive"),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(call: Callable[[nn.Module, Tensor], Any], words: str) -> None:
    net = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    with pytest.raises(UsageError, match=words):
        call(net, vectors())


# Left out: what cannot be differentiated (running means), large layers, keys whose biases have no effect at all,
# and cases where entries without effect are free (rows that nothing reads, directions of weight normalisation).
LEFT_OUT = ("transformer", "LSTM", "GRU", "BatchNorm", "transposed", "reads", "weight normalisation", "overwritten")
DECIDED = [name for name in CASES if not any(word in name for word in LEFT_OUT)]


@pytest.mark.parametrize("name", DECIDED)
def test_derivatives_find_the_same_number_of_free_factors(name: str) -> None:
    """A rescaling θ·exp(t·u) keeps the function at every θ iff J(θ)·diag(θ)·u = 0 for all θ: count such u by rank."""
    model, _ = built(name)
    model.eval()
    x = torch.cat([CASES[name][1]() for _ in range(8)])
    tensors = dict(model.named_parameters())

    def outputs(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, values, (x,)).flatten()

    size = sum(each.numel() for each in tensors.values())
    rows: list[Tensor] = []
    while sum(map(len, rows)) < 3 * size:
        theta = {key: 1.5 * torch.randn(each.shape, dtype=each.dtype) for key, each in tensors.items()}
        jacobian = torch.func.jacrev(outputs)(theta)
        block = torch.cat([(jacobian[key] * theta[key]).reshape(len(outputs(theta)), -1) for key in theta], 1)
        rows.append(block / block.norm())
    singular = torch.linalg.svdvals(torch.cat(rows))
    free = int((singular < 1e-11 * singular[0]).sum())
    assert free == CASES[name][2]
    assert singular[size - free - 1] > 1e-6 * singular[0]

"""Networks made to fool the label "exact (verified)": what it stands on must hold for every sample of every batch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from tests.engine.passes.foolers import CLASSES, WIDTH, N, dense_hessian, plain, right_or_refused, sorted_data

Change = Callable[[nn.Sequential], None]


@pytest.fixture(autouse=True)
def drawn() -> None:
    torch.manual_seed(0)


# --- 1: layers that see fewer rows than samples, or others ----------------------------------------------------------


class Routed(nn.Module):
    """Two layers, each for some of the samples; ``way`` says how the rows get there and back."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.first, self.second = nn.Linear(4, WIDTH), nn.Linear(4, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[:, 0] > 0
        hidden = x.new_zeros(len(x), WIDTH)
        if self.way == "mask":
            hidden[chosen] = self.first(x[chosen])
            hidden[~chosen] = self.second(x[~chosen])
        elif self.way == "scatter":
            for layer, rows in ((self.first, chosen.nonzero()[:, 0]), (self.second, (~chosen).nonzero()[:, 0])):
                hidden = hidden.index_add(0, rows, layer(x[rows]))
        elif self.way == "reversed":  # as many rows as samples, in another order where the last sample is negative
            turned = bool(x[-1, 0] < 0)
            rows = self.first(x.flip(0) if turned else x)
            hidden = (rows.flip(0) if turned else rows) + self.second(x)
        elif self.way == "swapped":  # only two rows change places
            order = torch.arange(len(x))
            order[-2:] = order[-2:].flip(0)
            hidden = self.first(x[order])[order] + self.second(x)
        elif self.way == "shared":  # a routed row more than once, and the rest filled up so that the number fits
            rows = torch.cat([chosen.nonzero()[:, 0], chosen.nonzero()[:1, 0].expand(int((~chosen).sum()))])
            hidden = hidden.index_add(0, rows, self.first(x[rows])) + self.second(x)
        elif self.way == "sliced":  # cut and joined in another order: nothing but slices and a concatenation
            half = len(x) // 2
            rows = self.first(torch.cat([x[half:], x[:half]]))
            hidden = torch.cat([rows[len(x) - half :], rows[: len(x) - half]]) + self.second(x)
        elif self.way == "transposed":
            hidden = self.first(x).T.reshape(WIDTH, -1).T + self.second(x)
        return self.head(hidden.relu())


@pytest.mark.parametrize("batch_size", [None, 7, 20])
@pytest.mark.parametrize("way", ["mask", "scatter", "reversed", "swapped", "shared", "sliced", "transposed"])
def test_routed_rows_get_their_own_gradients(way: str, batch_size: int | None) -> None:
    if way in ("shared", "swapped", "reversed") and batch_size == 7:
        pytest.skip("these depend on the batch they come in")
    model, data = Routed(way), sorted_data()
    report = right_or_refused(model, data, dense_hessian(model, *data), batch_size=batch_size)
    if way in ("mask", "scatter", "sliced", "transposed"):
        assert report is not None


def test_no_number_hangs_on_what_memory_held_before() -> None:
    model, data = Routed("mask"), sorted_data()
    found = set()
    for _ in range(4):
        junk = [torch.full((size,), 1e30, dtype=torch.float64) for size in range(1, 4000, 50)]
        del junk
        found.add(sl.measure(model, data, "hessian_trace")["hessian_trace"].value)
    assert len(found) == 1


def _late(x: Tensor) -> Tensor:
    return (x[:, :1] < -1.0).double()


def hooked_output(model: nn.Sequential) -> None:
    inputs: list[Tensor] = []
    model[0].register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    model[0].register_forward_hook(lambda module, args, output: output * (1 + _late(inputs.pop())))


def hooked_input(model: nn.Sequential) -> None:
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * (1 + _late(args[0])),))


def patched_forward(model: nn.Sequential) -> None:
    layer = model[0]
    layer.forward = lambda x: nn.functional.linear(x, layer.weight, layer.bias) * (1 + _late(x))  # type: ignore[method-assign]


def patched_operands(model: nn.Sequential) -> None:
    layer = model[0]
    layer.forward = lambda x: nn.functional.linear(x * (1 + _late(x)), layer.weight, layer.bias)  # type: ignore[method-assign]


def patched_scale(model: nn.Sequential) -> None:
    layer = model[2]
    layer.forward = lambda x: torch.addmm(layer.bias, x, layer.weight.t(), alpha=2.0)  # type: ignore[method-assign]


def hooked_in_place(model: nn.Sequential) -> None:
    def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        output[args[0][:, 0] < -1.0] *= 2
        return output

    model[0].register_forward_hook(hook)


CHANGES = [hooked_output, hooked_input, patched_forward, patched_operands, patched_scale, hooked_in_place]


@pytest.mark.parametrize("batch_size", [None, 16])
@pytest.mark.parametrize("change", CHANGES)
def test_what_acts_on_later_samples_only_is_seen(change: Change, batch_size: int | None) -> None:
    model, data = plain(), sorted_data()
    change(model)
    report = right_or_refused(model, data, dense_hessian(model, *data), batch_size=batch_size)
    assert report is not None


class BySize(nn.Module):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.net = limit, plain()

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.linear(x, self.net[0].weight, self.net[0].bias).relu()  # no rule: sample by sample
        return self.net[2](hidden) * (2.0 if len(x) <= self.limit else 1.0)


@pytest.mark.parametrize("limit", [1, 2, 4, 8, 16, 20])
def test_a_model_that_treats_small_batches_otherwise_is_not_measured_in_them(limit: int) -> None:
    model, data = BySize(limit), sorted_data()
    right_or_refused(model, data, dense_hessian(model, *data), batch_size=N)


class WrongLate(torch.autograd.Function):
    """A ReLU whose backward doubles the gradients from the fifth sample on."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        factor = torch.ones(len(x), 1, dtype=x.dtype)
        factor[4:] = 2
        return gradient * (x > 0) * factor


class WrongAbove(WrongLate):
    """The same, by the values themselves."""

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return gradient * (x > 0) * (1 + 0.1 * (x > x.max() - 1e-9))


class DetachedFactor(nn.Module):
    """Curved for the few samples whose activations are large; the curvature left the graph."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + (x.detach() - 1.5).relu())


class Apply(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.function.apply(x)
        return found


@pytest.mark.parametrize("middle", [Apply(WrongLate), Apply(WrongAbove), DetachedFactor()])
def test_gradients_that_are_wrong_for_one_sample_are_refused(middle: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, WIDTH), middle, nn.Linear(WIDTH, CLASSES)).double()
    for batch_size in (None, 16):
        problem = sl.Problem(model, sorted_data(), batch_size=batch_size)
        with pytest.raises(sl.SpiritlevelError, match="is not the derivative"):
            sl.per_sample(problem, "hessian_trace")
        with pytest.raises(sl.SpiritlevelError, match="is not the derivative"):
            sl.Problem(model, sorted_data(), batch_size=batch_size).hessian @ torch.ones(problem.size)


class RightSquare(torch.autograd.Function):
    """A square that can be differentiated as often as one likes."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return 2 * gradient * ctx.saved_tensors[0]


class Looked(nn.Module):
    """Looks at its activations without using what it sees."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = float(x.detach().abs().max())
        return x.relu()


@pytest.mark.parametrize("middle", [Apply(RightSquare), Looked()])
def test_right_functions_and_looks_are_measured(middle: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, WIDTH), middle, nn.Linear(WIDTH, CLASSES)).double()
    data = sorted_data()
    report = right_or_refused(model, data, dense_hessian(model, *data))
    assert report is not None
    assert report["hessian_trace"].verified is isinstance(middle, Looked)


# --- 3: hooks on gradients --------------------------------------------------------------------------------------------


def _freeze_rows(gradient: Tensor) -> Tensor:
    gradient = gradient.clone()
    gradient[0] = 0
    return gradient


def parameter_hook(function: Callable[[Tensor], Tensor]) -> Change:
    return lambda model: model[0].weight.register_hook(function) and None  # type: ignore[func-returns-value]


def module_hook(model: nn.Sequential) -> None:
    model[1].register_full_backward_hook(lambda module, before, after: tuple(3 * g for g in before))


def module_pre_hook(model: nn.Sequential) -> None:
    model[2].register_full_backward_pre_hook(lambda module, gradients: tuple(-g for g in gradients))


def tensor_hook(model: nn.Sequential) -> None:
    def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        output.register_hook(lambda gradient: 5 * gradient)

    model[0].register_forward_hook(hook)


def late_tensor_hook(model: nn.Sequential) -> None:
    def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        if float(args[0][0, 0]) < 0:  # only in the later batches
            output.register_hook(lambda gradient: 5 * gradient)

    model[0].register_forward_hook(hook)


HOOKS = {
    "scaling": parameter_hook(lambda gradient: 10 * gradient),
    "clipping": parameter_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3)),
    "freezing": parameter_hook(_freeze_rows),
    "negating": parameter_hook(lambda gradient: -gradient),
    "noise": parameter_hook(lambda gradient: gradient + torch.randn_like(gradient)),
    "module": module_hook,
    "module before": module_pre_hook,
    "tensor": tensor_hook,
    "later tensor": late_tensor_hook,
}


@pytest.mark.parametrize("kind", list(HOOKS))
def test_hooks_on_gradients_change_nothing_and_are_told(kind: str) -> None:
    torch.manual_seed(0)
    model, data = plain(), sorted_data()
    truth = dense_hessian(model, *data)
    HOOKS[kind](model)
    tables = [model[0].weight._backward_hooks, model[1]._backward_hooks, model[2]._backward_pre_hooks]
    before = [dict(table or {}) for table in tables]
    report = right_or_refused(model, data, truth, batch_size=16)
    assert report is not None
    assert report["hessian_trace"].verified
    assert any("ooks" in note for note in report.header.notes), report.header.notes
    assert [dict(table or {}) for table in tables] == before
    problem = sl.Problem(model, data, batch_size=16)
    vector = torch.randn(problem.size, dtype=torch.float64)
    torch.testing.assert_close(problem.hessian @ vector, truth @ vector, rtol=1e-9, atol=1e-12)
    if kind == "scaling":  # and they fire again afterwards
        nn.functional.cross_entropy(model(data[0]), data[1]).backward()
        scaled = model[0].weight.grad.clone()
        model[0].weight._backward_hooks.clear()
        model.zero_grad()
        nn.functional.cross_entropy(model(data[0]), data[1]).backward()
        torch.testing.assert_close(scaled, 10 * model[0].weight.grad)

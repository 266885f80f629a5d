"""Data, truth and judgement for networks made to fool the label "exact (verified)"."""

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl

N, WIDTH, CLASSES = 40, 5, 3
Data = tuple[Tensor, Tensor]


def sorted_data(count: int = N) -> Data:
    """Return samples ordered by their first number: those in front take one way, the others another."""
    torch.manual_seed(1)
    x = torch.randn(count, 4, dtype=torch.float64)
    return x[x[:, 0].argsort(descending=True)], torch.randint(0, CLASSES, (count,))


def dense_hessian(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the Hessian of the mean cross-entropy of all samples in one batch, by plain double differentiation."""
    names, tensors = zip(*((name, tensor.detach()) for name, tensor in model.named_parameters()))
    sizes = [tensor.numel() for tensor in tensors]

    def loss(theta: Tensor) -> Tensor:
        parts = [part.reshape(t.shape) for part, t in zip(theta.split(sizes), tensors)]
        outputs = torch.func.functional_call(model, dict(zip(names, parts)), (x,))
        return nn.functional.cross_entropy(outputs, y)

    return torch.autograd.functional.hessian(loss, torch.cat([tensor.reshape(-1) for tensor in tensors]))


def right_or_refused(model: nn.Module, data: Data, truth: Tensor, **options: object) -> sl.Report | None:
    """Check trace, diagonal and a product against the truth; None where the tool refuses with a sentence."""
    try:
        report = sl.measure(model, data, ["hessian_trace", "hessian_top_eigenvalue"], **options)  # type: ignore[arg-type]
    except sl.SpiritlevelError:
        return None
    trace, top = report["hessian_trace"], report["hessian_top_eigenvalue"]
    if trace.status == "not_applicable":
        assert trace.reason
        return None
    if trace.how == "exact":
        assert trace.value == pytest.approx(float(truth.trace()), rel=1e-9)
    else:
        assert not trace.verified
        assert abs(trace.value - float(truth.trace())) <= 5 * trace.stderr + 1e-9
    if top.status != "not_applicable":
        assert top.interval is not None
        largest = float(torch.linalg.eigvalsh(truth)[-1])
        assert top.interval[0] - 1e-6 * largest <= largest <= top.interval[1] + 1e-6 * largest
    return report


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)).double()

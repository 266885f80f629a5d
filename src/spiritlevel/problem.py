"""A model, data and a loss, checked once and frozen: what every pass, operator and measure works on."""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from spiritlevel.data import Content, Source, count_of, map_tensors, open_source, slice_batch, tensors_of
from spiritlevel.errors import SpiritlevelError, UsageError, near_names
from spiritlevel.losses import Loss, labels_of, resolve

HALF = (torch.float16, torch.bfloat16)
# Outputs of the first sweep are kept up to this many numbers, so that forward-only measures need no second sweep.
KEPT_OUTPUTS = 20_000_000
LABEL_KEYS = ("labels", "label", "y")

ProgressHook = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Batch:
    """Some consecutive samples of the data, on the model's device and in its dtype."""

    content: Content
    start: int
    count: int

    @property
    def indices(self) -> Tensor:
        """The samples' positions in the data, which seed everything random about them."""
        return torch.arange(self.start, self.start + self.count)


@dataclass(frozen=True)
class Layer:
    """A module that owns parameters, by its path; ``parameters`` maps its own names to the network's names."""

    name: str
    module: nn.Module
    parameters: dict[str, str]


@dataclass(frozen=True)
class Survey:
    """What the first sweep over the data found; every later sweep must agree with it."""

    count: int
    total_weight: float
    losses: Tensor  # (N,) float64: each sample's own loss
    weights: Tensor  # (N,) float64: L = sum of weights * losses / sum of weights
    correct: Tensor | None  # (N,) bool where outputs are class scores of the labels
    output_shape: tuple[int, ...]
    outputs: Tensor | None  # (N, ...) in the model's dtype, where they are few enough to keep
    coupled: bool  # a sample's outputs depend on the other samples of its batch
    fingerprint: str

    @property
    def loss(self) -> float:
        """The mean loss L over the data."""
        return float((self.weights * self.losses).sum() / self.total_weight)

    @property
    def accuracy(self) -> float | None:
        """The share of samples whose largest output is their label, where that has a meaning."""
        return None if self.correct is None else float(self.correct.double().mean())


class _Forward(nn.Module):
    """The user's forward as one module, so that parameters can be replaced for one call without touching the model."""

    def __init__(self, model: nn.Module, forward: Callable[[nn.Module, Content], Any] | None) -> None:
        super().__init__()
        self.model = model
        self.forward_function = forward or _default_forward

    def forward(self, content: Content) -> Tensor:
        return _as_tensor(self.forward_function(self.model, content))


def _default_forward(model: nn.Module, content: Content) -> Any:
    if isinstance(content, Mapping):
        return model(**{key: value for key, value in content.items() if key not in LABEL_KEYS})
    return model(content[0])


def _as_tensor(outputs: Any) -> Tensor:
    """Return the model's outputs: a tensor, ``.logits``, the entry "logits", or the first element."""
    if isinstance(outputs, Tensor):
        return outputs
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(outputs, (tuple, list)) and outputs and isinstance(outputs[0], Tensor):
        return outputs[0]
    raise SpiritlevelError(
        f"the model returned {type(outputs).__name__}, in which no output tensor was found; "
        "pass forward=lambda model, batch: ... that returns the tensor the loss is taken of"
    )


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside DataParallel, DistributedDataParallel and torch.compile wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


class Problem:
    """The minimum to be measured: a network, the data and the loss that define it, and the parameters that may move.

    ``data``: (x, y) tensors, a Dataset, a DataLoader (read in dataset order, nothing dropped), or re-iterable tuple or
    dict batches.  ``loss``: a name in ``spiritlevel.losses``, a torch loss module, or a callable ``(outputs, batch) ->
    losses`` of shape (B,) or (B, T), or ``(losses, weights)``.  ``samples``: None for all, or a number drawn once,
    stratified by class.  ``parameters``: name patterns; by default those that require a gradient.  The model is never
    moved or changed: another device or dtype, and half precision, are measured on a copy.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        loss: str | Loss | nn.Module | Callable[..., Any] = "cross_entropy",
        *,
        forward: Callable[[nn.Module, Content], Any] | None = None,
        parameters: str | list[str] | tuple[str, ...] | None = None,
        samples: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        mode: str = "eval",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise UsageError(f"model must be a torch.nn.Module, not {type(model).__name__}")
        if mode not in ("eval", "train"):
            raise UsageError(f"mode must be 'eval' or 'train', not {mode!r}")
        if forward is not None and not callable(forward):
            raise UsageError("forward must be a function (model, batch) -> outputs")
        self.loss: Loss = resolve(loss)
        self.mode = mode
        self.seed = seed
        self.notes: list[str] = []
        self.model = self._own_or_copied(unwrap(model), device, dtype)
        self.chosen_parameters = _choose_parameters(self.model, parameters)
        _refuse_non_finite(self.chosen_parameters)
        self.source: Source = open_source(data, batch_size=batch_size, samples=samples, seed=seed)
        self.notes.extend(self.source.notes)
        self._forward = _Forward(self.model, forward)
        self._session_depth = 0
        self.spent: Counter[str] = Counter()  # sweeps over the data so far, by kind
        self.progress: ProgressHook | None = None

    # --- the parameters ------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters that may move, in the order of every flat vector."""
        return list(self.chosen_parameters)

    @property
    def tensors(self) -> list[Tensor]:
        """The parameters themselves, in the same order."""
        return list(self.chosen_parameters.values())

    @property
    def size(self) -> int:
        """The number P of parameters that may move."""
        return sum(tensor.numel() for tensor in self.tensors)

    @property
    def device(self) -> torch.device:
        """Where the model is, and so where the work is done."""
        return self.tensors[0].device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the model."""
        return self.tensors[0].dtype

    @cached_property
    def layers(self) -> dict[str, Layer]:
        """Modules that own chosen parameters, in the model's order; a tied parameter belongs to its first owner."""
        found: dict[str, Layer] = {}
        by_identity = {id(tensor): name for name, tensor in self.chosen_parameters.items()}
        for name, module in self.model.named_modules():
            own = {}
            for local, tensor in module.named_parameters(recurse=False, remove_duplicate=False):
                full = by_identity.get(id(tensor))
                if full is not None and full == (f"{name}.{local}" if name else local):
                    own[local] = full
            if own:
                found[name or "(model)"] = Layer(name or "(model)", module, own)
        return found

    @cached_property
    def weights(self) -> dict[str, str]:
        """Weights of two or more dimensions, by layer: what measures defined on weight matrices use.

        A layer with one such weight lends it its own name; where it has several (an LSTM) each is named in full.
        """
        found: dict[str, str] = {}
        for layer in self.layers.values():
            matrices = [full for full in layer.parameters.values() if self.chosen_parameters[full].ndim >= 2]
            for full in matrices:
                found[layer.name if len(matrices) == 1 else full] = full
        return found

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return one vector (P,) from tensors by parameter name."""
        return torch.cat([tensors[name].reshape(-1) for name in self.parameters])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Return tensors by parameter name from a vector (P,), or with a last dimension K from (P, K)."""
        if vector.shape[0] != self.size:
            raise UsageError(f"the vector has {vector.shape[0]:,} rows, but the problem has {self.size:,} parameters")
        parts = vector.split([tensor.numel() for tensor in self.tensors])
        tail = vector.shape[1:]
        return {
            name: part.reshape(tensor.shape + tail)
            for (name, tensor), part in zip(self.chosen_parameters.items(), parts)
        }

    @property
    def hessian(self) -> Any:
        """The Hessian of the mean loss as an operator: ``problem.hessian @ v``."""
        from spiritlevel.operators import HessianOperator

        return HessianOperator(self)

    @property
    def ggn(self) -> Any:
        """The Gauss–Newton matrix of the mean loss as an operator: ``problem.ggn @ v``."""
        from spiritlevel.operators import GGNOperator

        return GGNOperator(self)

    # --- running the model ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Hold the model in the problem's mode; on leaving, everything about it is as it was found."""
        if self._session_depth:
            yield  # already inside: the outermost session restores
            return
        modules = list(self.model.modules())
        modes = [module.training for module in modules]
        gradients_on = [(tensor, tensor.requires_grad) for tensor in self.model.parameters()]
        buffers = [(buffer, buffer.detach().clone()) for buffer in self.model.buffers()]
        chosen = {id(tensor) for tensor in self.tensors}
        devices = [self.device] if self.device.type == "cuda" else []
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=devices))
            # Hooks never fire inside a compiled model, and fused attention has no second derivative.
            if "torch._dynamo" in sys.modules:  # no model is compiled before that is loaded, which takes seconds
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(_without_fused_recurrence(modules))
            stack.enter_context(torch.enable_grad())
            self._session_depth += 1
            try:
                for module in modules:
                    module.training = self.mode == "train"
                for tensor, _ in gradients_on:
                    tensor.requires_grad_(id(tensor) in chosen)
                yield
            finally:
                self._session_depth -= 1
                for module, training in zip(modules, modes):
                    module.training = training
                for tensor, required in gradients_on:
                    tensor.requires_grad_(required)
                with torch.no_grad():
                    for buffer, before in buffers:
                        buffer.copy_(before)

    def batches(self, what: str = "") -> Iterator[Batch]:
        """Sweep the data once, in order; ``what`` names the sweep for progress reports."""
        start = 0
        survey = self.__dict__.get("survey")
        total = survey.count if survey is not None else 0
        device, dtype = self.device, self.dtype

        def place(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype, non_blocking=True).detach()

        for content in self.source.read():
            count = count_of(content)
            if count == 0:
                continue
            yield Batch(map_tensors(content, place), start, count)
            start += count
            if self.progress is not None and what:
                self.progress(what, start, total)
        if start == 0:
            raise SpiritlevelError("the data is empty: there is no sample to measure on")
        if total and start != total:
            raise SpiritlevelError(
                f"the data gave {total:,} samples in the first sweep and {start:,} in a later one, so no number would "
                "mean anything; pass data that can be read again, or samples=N to keep one fixed draw"
            )

    def outputs(self, content: Content, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the model's outputs on a batch, with some parameters replaced for this call where they are given."""
        if parameters is None:
            return self._forward(content)
        replaced = {f"model.{name}": tensor for name, tensor in parameters.items()}
        return torch.func.functional_call(self._forward, replaced, (content,))

    def agrees(self, batch: Batch, losses: Tensor) -> None:
        """Refuse to go on where a sweep sees other losses than the first one did."""
        first = self.survey.losses[batch.start : batch.start + batch.count]
        now = losses.detach().double().cpu()
        tolerance = 1e-3 if self.dtype == torch.float32 else 1e-7
        scale = first.abs().clamp(min=float(self.survey.losses.abs().mean()) + 1e-12)
        if len(first) != len(now) or bool(((now - first).abs() > tolerance * scale).any()):
            raise SpiritlevelError(self._disagreement())

    def _disagreement(self) -> str:
        active = [
            name
            for name, module in self.model.named_modules()
            if isinstance(module, (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout))
            and module.p > 0
        ]
        if self.mode == "train" and active:
            return (
                f"two sweeps over the same data disagree because dropout is active in training mode ({active[0]}), "
                "so there is no fixed loss to measure; use mode='eval'"
            )
        return (
            "two sweeps over the same data disagree: the data is shuffled or augmented anew each time, or the model draws "
            "random numbers; pass samples=N to keep one fixed draw of the data, or make the model deterministic"
        )

    # --- the first sweep -----------------------------------------------------------------------------------------

    @cached_property
    def survey(self) -> Survey:
        """The first sweep: losses, weights, accuracy and the data's fingerprint, with every check on what came in."""
        losses, weights, correct, kept = [], [], [], []
        hashers: dict[int, Any] = {}
        kept_numbers, coupled, shape = 0, False, ()
        with self.session(), torch.no_grad():
            for batch in self.batches("first sweep"):
                outputs = self._checked_outputs(batch)
                batch_losses, batch_weights = self.loss.per_sample(outputs, batch.content)
                if batch_losses.shape != (batch.count,):
                    raise UsageError(
                        f"the loss gave values of shape {tuple(batch_losses.shape)} for a batch of {batch.count}; "
                        "it must give one loss a sample, of shape (B,) or (B, T)"
                    )
                if batch.start == 0:
                    shape = tuple(outputs.shape[1:])
                    again, _ = self.loss.per_sample(self.outputs(batch.content), batch.content)
                    if not _close(again, batch_losses, self.dtype):
                        raise SpiritlevelError(self._disagreement())
                    coupled = self._depends_on_neighbours(batch, outputs)
                losses.append(batch_losses.double().cpu())
                weights.append(batch_weights.double().cpu())
                correct.append(_correct(outputs, batch.content))
                kept_numbers += outputs.numel()
                if kept_numbers <= KEPT_OUTPUTS and outputs.shape[1:] == shape:
                    kept.append(outputs.cpu())
                _digest(hashers, batch.content)
        all_losses, all_weights = torch.cat(losses), torch.cat(weights)
        _refuse_bad_losses(all_losses, all_weights)
        self.spent["forward"] += 1
        count = len(all_losses)
        complete = sum(len(part) for part in kept) == count
        return Survey(
            count=count,
            total_weight=float(all_weights.sum()),
            losses=all_losses,
            weights=all_weights,
            correct=torch.cat(correct) if all(part is not None for part in correct) else None,  # type: ignore[arg-type]
            output_shape=shape,
            outputs=torch.cat(kept) if complete else None,
            coupled=coupled,
            fingerprint=hashlib.blake2b(
                b"".join(hashers[key].digest() for key in sorted(hashers)), digest_size=8
            ).hexdigest(),
        )

    def _checked_outputs(self, batch: Batch) -> Tensor:
        try:
            outputs = self.outputs(batch.content)
        except SpiritlevelError:
            raise
        except Exception as error:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_of(batch.content))
            raise SpiritlevelError(
                f"the model could not be run on a batch of the data (tensors of shape {shapes}): "
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
            ) from error
        if outputs.shape[:1] != (batch.count,):
            raise SpiritlevelError(
                f"the model gave outputs of shape {tuple(outputs.shape)} for a batch of {batch.count} samples; "
                "their first dimension must be the samples"
            )
        if not bool(torch.isfinite(outputs).all()):
            bad = int((~torch.isfinite(outputs.reshape(batch.count, -1)).all(1)).nonzero()[0]) + batch.start
            raise SpiritlevelError(
                f"the model's outputs are not finite (first at sample {bad}); look for overflow or for bad inputs there"
            )
        return outputs

    def _depends_on_neighbours(self, batch: Batch, outputs: Tensor) -> bool:
        """Whether samples of a batch influence each other's outputs (BatchNorm in training mode and its like)."""
        if batch.count == 1:
            return any(
                isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None)
                for module in self.model.modules()
            )
        half = (batch.count + 1) // 2
        try:
            alone = self.outputs(slice_batch(batch.content, 0, half))
        except Exception:  # a model that needs its whole batch
            return True
        scale = outputs.abs().max() + 1e-30
        # Kernels may sum in another order for another batch size; a coupling shows far above that.
        return bool((alone - outputs[:half]).abs().max() > (1e-3 if self.dtype == torch.float32 else 1e-8) * scale)

    def _own_or_copied(
        self, model: nn.Module, device: str | torch.device | None, dtype: str | torch.dtype | None
    ) -> nn.Module:
        tensors = [p for p in model.parameters()]
        if not tensors:
            raise SpiritlevelError(
                f"{type(model).__name__} has no parameters, so there is no minimum to measure; pass the trained network"
            )
        if any(isinstance(tensor, nn.parameter.UninitializedParameter) for tensor in tensors):
            raise SpiritlevelError("the model has lazy parameters that were never used; run it once on a batch first")
        wanted_dtype = _as_dtype(dtype)
        kinds = {tensor.dtype for tensor in tensors}
        if any(kind.is_complex for kind in kinds):
            raise SpiritlevelError("the model has complex parameters, for which no Hessian is defined here")
        if wanted_dtype is None and (kinds & set(HALF) or len(kinds) > 1):
            wanted_dtype = torch.float64 if torch.float64 in kinds else torch.float32
            self.notes.append(
                f"The model's {', '.join(sorted(str(kind).removeprefix('torch.') for kind in kinds))} weights are measured "
                f"on a copy in {str(wanted_dtype).removeprefix('torch.')}."
            )
        wanted_device = _as_device(device)
        if (wanted_dtype is None or kinds == {wanted_dtype}) and (
            wanted_device is None or all(_same_device(tensor.device, wanted_device) for tensor in tensors)
        ):
            return model
        try:
            return copy.deepcopy(model).to(device=wanted_device, dtype=wanted_dtype)
        except Exception as error:
            raise SpiritlevelError(
                f"the model could not be copied to {wanted_device or 'its device'} as {wanted_dtype or 'its dtype'} "
                f"({type(error).__name__}: {error}); convert it yourself and pass that"
            ) from error


def _as_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        found = dtype
    else:
        found = getattr(torch, str(dtype).removeprefix("torch."), None)
    if dtype is not None and found not in (torch.float32, torch.float64):
        raise UsageError(f"dtype must be 'float32' or 'float64', not {dtype!r}; half precision cannot carry curvature")
    return found


def _as_device(device: str | torch.device | None) -> torch.device | None:
    if device is None:
        return None
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"device {device!r} is not understood; give 'cpu', 'cuda' or 'cuda:1'") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {str(device)!r} was asked for, but torch sees no CUDA device here; use 'cpu'")
    return found


def _same_device(a: torch.device, b: torch.device) -> bool:
    return a.type == b.type and (b.index is None or a.index == b.index)


def _choose_parameters(model: nn.Module, patterns: str | list[str] | tuple[str, ...] | None) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    if patterns is None:
        chosen = {name: tensor for name, tensor in named.items() if tensor.requires_grad}
        if not chosen:
            raise SpiritlevelError(
                "every parameter of the model is frozen (requires_grad is False); pass parameters='*' to measure them all"
            )
        return chosen
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in wanted:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in named):
            raise UsageError(f"no parameter is named {pattern!r}{near_names(pattern, named)}")
    return {name: t for name, t in named.items() if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)}


def _refuse_non_finite(parameters: Mapping[str, Tensor]) -> None:
    for name, tensor in parameters.items():
        if not bool(torch.isfinite(tensor.detach()).all()):
            bad = int((~torch.isfinite(tensor.detach())).sum())
            raise SpiritlevelError(
                f"parameter {name} holds {bad:,} values that are NaN or infinite, so the network has no curvature there; "
                "use a checkpoint from before training diverged"
            )


def _refuse_bad_losses(losses: Tensor, weights: Tensor) -> None:
    if not bool(torch.isfinite(losses).all()):
        raise SpiritlevelError(
            f"the loss is not finite at sample {int((~torch.isfinite(losses)).nonzero()[0])}; "
            "look at that sample's input and label"
        )
    if float(weights.sum()) <= 0:
        raise SpiritlevelError(
            "the loss gives every sample weight zero (all labels ignored?), so there is no mean loss to measure"
        )


def _close(a: Tensor, b: Tensor, dtype: torch.dtype) -> bool:
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    return bool(((a - b).abs() <= tolerance * (b.abs() + b.abs().mean() + 1e-12)).all())


def _correct(outputs: Tensor, content: Content) -> Tensor | None:
    """Return which samples are classified right, where outputs (B, C) are scores of integer labels (B,)."""
    labels = labels_of(content)
    if outputs.ndim != 2 or outputs.shape[1] < 2 or not isinstance(labels, Tensor):
        return None
    if labels.shape != outputs.shape[:1] or labels.is_floating_point():
        return None
    return (outputs.argmax(1) == labels).cpu()


def _digest(hashers: dict[int, Any], content: Content) -> None:
    """Feed a batch to one hash a field, so that the fingerprint does not depend on the split into batches."""
    for position, tensor in enumerate(tensors_of(content)):
        hasher = hashers.setdefault(position, hashlib.blake2b(str(tuple(tensor.shape[1:])).encode(), digest_size=8))
        tensor = tensor.detach().cpu()
        # A float32 and a float64 reading of the same data are the same data.
        tensor = tensor.float() if tensor.is_floating_point() else tensor.long()
        hasher.update(tensor.contiguous().numpy().tobytes())


@contextlib.contextmanager
def _without_fused_recurrence(modules: list[nn.Module]) -> Iterator[None]:
    """Switch cuDNN off where there are recurrent layers: its fused kernels have no second derivative."""
    if any(isinstance(module, nn.RNNBase) for module in modules) and torch.backends.cudnn.enabled:
        with torch.backends.cudnn.flags(enabled=False):
            yield
    else:
        yield

"""A model, data and a loss, checked once: what every pass, operator and measure works on."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.chosen_parameters import ChosenParameters
from spiritlevel.inputs.contents import Content, count_of, map_tensors, pick_samples, tensors_of
from spiritlevel.inputs.data import Source, held, open_source
from spiritlevel.inputs.losses import Loss, resolve
from spiritlevel.inputs.model_forward import Forward
from spiritlevel.inputs.model_state import HeldModel, WeightsBefore
from spiritlevel.inputs.opening import choose_parameters, open_model
from spiritlevel.inputs.process.allocation import keep_freed_memory
from spiritlevel.inputs.process.composite_operations import composite_operations
from spiritlevel.inputs.process.fast_max_pool import fast_max_pool
from spiritlevel.inputs.process.precision import autocast_kinds, full_float32, without_autocast
from spiritlevel.inputs.process.random_state import kept_random_state
from spiritlevel.inputs.process.scope import hold, process_scope
from spiritlevel.inputs.watching import Watch
from spiritlevel.values.errors import SpiritlevelError, UsageError

if TYPE_CHECKING:
    from spiritlevel.inputs.survey import Survey


ProgressHook = Callable[[str, int, int], None]


@functools.cache
def _wake_autograd(device: torch.device) -> None:
    """Let autograd's thread for a GPU begin with a plain step: torch warns where it begins with a matrix product."""
    with torch.inference_mode(False), torch.enable_grad():
        torch.ones(1, device=device, requires_grad=True).mul(2).sum().backward()


class Given(ChosenParameters):
    """A network, the data and the loss that define its minimum, and the parameters that may move."""

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
        self.model, self.notes = open_model(model, device, dtype)
        self.chosen_parameters = choose_parameters(self.model, parameters)
        self.source: Source = open_source(data, batch_size=batch_size, samples=samples, seed=seed)
        self.notes.extend(self.source.notes)
        self._forward = Forward(self.model, forward)
        self.watch = Watch()
        self._session_depth = 0
        self._weights_before: WeightsBefore | None = None  # until the first forward pass
        self._writes_nothing = False  # the model's forward leaves its parameters alone
        self._own_buffers: dict[str, Tensor] = {}  # those that a forward pass writes to, as they were
        self._writes_to_inputs: bool | None = None  # until the first forward pass; then it gets copies, if it does
        self.spent: Counter[str] = Counter()  # sweeps over the data so far, by kind
        self.vetted: dict[int, bool] = {}  # batches whose samples' derivatives were checked one by one; True: both
        self._doubts: list[Tensor] = []  # whether a batch of the present sweep disagreed with the first one
        self.progress: ProgressHook | None = None

    def on_network(self, model: nn.Module) -> Self:
        """Return the same problem (data, loss, forward, chosen parameters) on another network of the same names."""
        own = dict(model.named_parameters())
        missing = [name for name in self.parameters if name not in own]
        if missing:
            raise SpiritlevelError(f"the other network has no parameter {missing[0]!r}, so it is not the same problem")
        other = copy.copy(self)
        for name in ("survey", "layers", "weights", "_read", "_expected_losses"):  # found out anew on the other network
            other.__dict__.pop(name, None)
        other.model = model
        other.chosen_parameters = {name: own[name] for name in self.parameters}
        other._forward = Forward(model, self.forward_function)
        other.watch = Watch()
        other._session_depth = 0
        other._weights_before, other._writes_nothing, other._own_buffers = None, False, {}
        other._writes_to_inputs = None
        other.spent = Counter()
        other.vetted = {}
        other._doubts = []
        other.notes = list(self.notes)
        return other

    def on_every(self, step: int) -> Self:
        """Return the same problem on every so many of its samples, which must be in memory."""
        assert self.source.every is not None
        few = self.on_network(self.model)
        few.source = self.source.every(step)
        few.progress = None
        return few

    def on_few(self, count: int) -> Self:
        """Return the same problem on some samples from all over the data, or of its first batch where it is read anew.

        Not on the first ones: sorted data begins with samples of one kind.
        """
        total = self.source.count
        if self.source.every is not None and total is not None and total > count:
            few = self.on_every(-(-total // count))
        else:
            batch = next(iter(self.batches()))
            places = torch.linspace(0, batch.count - 1, min(count, batch.count), device="cpu").long()
            few = self.on_network(self.model)
            few.source = held(pick_samples(batch.content, places))
            few.progress = None
        few._writes_nothing, few._writes_to_inputs = self._writes_nothing, self._writes_to_inputs
        few._own_buffers = self._own_buffers
        return few

    def in_own_batches(self) -> Self:
        """Return the same problem in batches of one size on every device, for what is defined by the batches."""
        if self.source.resized is None:
            return self
        other = copy.copy(self)
        other.__dict__.pop("_read", None)
        other.source = replace(self.source, resized=None)
        other._session_depth, other._weights_before = 0, None
        other.vetted, other._doubts = {}, []
        return other

    @property
    def forward_function(self) -> Callable[[nn.Module, Content], Any]:
        """How a batch is put through the model: the user's function, or the default one."""
        return self._forward.forward_function

    def note(self, text: str) -> None:
        """Keep a sentence for the report, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def output_taken(self) -> str:
        """Which of several tensors the model returned is measured, in words; nothing where it returned one."""
        return self._forward.taken

    # --- running the model ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Hold the model in the problem's mode; on leaving, everything about it is as it was found."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(process_scope())
            if self._session_depth:
                yield  # already inside: the outermost session restores
                return
            keep_freed_memory()
            devices = [self.device] if self.device.type == "cuda" else []
            for device in devices:
                _wake_autograd(device)
            hold(f"random state {devices}", lambda: kept_random_state(devices))
            # Hooks never fire inside a compiled model.
            if "torch._dynamo" in sys.modules:  # no model is compiled before that is loaded, which takes seconds
                hold("uncompiled", lambda: torch.compiler.set_stance("force_eager"))
            stack.enter_context(composite_operations(self.model.modules()))
            stack.enter_context(full_float32())
            if autocast_kinds():
                self.note("Autocast was on around the measurement and was switched off for it.")
            stack.enter_context(without_autocast())
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            held = stack.enter_context(HeldModel(self.model, self.tensors, training=self.mode == "train"))
            for text in held.notes:
                self.note(text)
            if not self._writes_nothing:
                self._weights_before = WeightsBefore(self.model)
            self._session_depth += 1
            try:
                yield
            finally:
                self._session_depth -= 1
                if self._weights_before is not None:
                    self._weights_before.put_back()
                    self._weights_before = None

    def batches(self, what: str = "") -> Iterator[Batch]:
        """Sweep the data once, in order; ``what`` names the sweep for progress reports."""
        start = 0
        survey = self.__dict__.get("survey")
        total = survey.count if survey is not None else self.source.count or 0
        device, dtype = self.device, self.dtype

        def place(tensor: Tensor) -> Tensor:
            tensor = tensor.clone() if tensor.is_inference() else tensor
            if not tensor.is_floating_point():  # left a view, so that checks of labels know it for a part of the same
                return tensor.to(device, non_blocking=True)
            return tensor.to(device, dtype, non_blocking=True).detach()

        for content in self._read():
            count = count_of(content)
            if count == 0:
                continue
            yield Batch(map_tensors(content, place), start, count)
            start += count
            if self.progress is not None and what:
                self.progress(what, start, total)
        if self._doubts:
            differ = bool(torch.stack(self._doubts).any())
            self._doubts.clear()
            if differ:
                raise SpiritlevelError(self.disagreement())
        if start == 0:
            raise SpiritlevelError("the data is empty: there is no sample to measure on")
        if total and start != total:
            raise SpiritlevelError(
                f"the data gave {total:,} samples in the first sweep and {start:,} in a later one, so no number would "
                "mean anything; pass data that can be read again, or samples=N to keep one fixed draw"
            )

    @cached_property
    def _read(self) -> Callable[[], Iterator[Content]]:
        """How a sweep begins.  The batches matter where samples influence each other, and are then left alone."""
        resized = self.source.resized
        if resized is None or self.mode == "train":
            return self.source.read
        from spiritlevel.inputs.batch_sizes import batch_size_for

        size = batch_size_for(self)
        return lambda: resized(size)

    def outputs(self, content: Content, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the model's outputs on a batch, with some parameters replaced for this call where they are given."""
        watched = contextlib.nullcontext() if torch.compiler.is_compiling() else self.watch
        given = content
        if self._writes_to_inputs is not False:
            content = map_tensors(content, torch.clone)
        with watched, fast_max_pool(self.device):
            if parameters is None and not self._own_buffers:
                outputs = self._forward(content)
            else:
                fresh = {name: buffer.clone() for name, buffer in self._own_buffers.items()}
                replaced = {f"model.{name}": tensor for name, tensor in {**fresh, **(parameters or {})}.items()}
                outputs = torch.func.functional_call(self._forward, replaced, (content,))
        for text in self.watch.left_out:
            self.note(text)
        if self._writes_to_inputs is None and parameters is None:  # the first time: by the values themselves
            pairs = list(zip(tensors_of(content), tensors_of(given)))
            self._writes_to_inputs = any(not torch.equal(after, before) for after, before in pairs)
        if parameters is None and self._weights_before is not None:
            self._weights_before.refuse_changes()
            if self.mode == "eval":  # in training mode statistics are written as a matter of course
                self._own_buffers = self._weights_before.written_buffers()
            self._weights_before, self._writes_nothing = None, True
            if self._own_buffers:
                self.note(
                    f"The model's forward writes to its buffers ({next(iter(self._own_buffers))}): every pass begins "
                    "with those it came with."
                )
        return outputs

    def agrees(self, batch: Batch, losses: Tensor) -> None:
        """Refuse to go on where a sweep sees other losses than the first one did."""
        losses = losses.detach().double()
        place = slice(batch.start, batch.start + batch.count)
        expected, allowed = (known[place] for known in self._expected_losses)
        if len(expected) != len(losses):
            raise SpiritlevelError(self.disagreement())
        differs = ((losses - expected).abs() > allowed).any()
        if differs.is_cuda:
            self._doubts.append(differs)  # looked at when the sweep ends, so that nothing waits for the answer
        elif bool(differs):
            raise SpiritlevelError(self.disagreement())

    @cached_property
    def _expected_losses(self) -> tuple[Tensor, Tensor]:
        """Each sample's loss in the first sweep, and how far a later one may be from it."""
        first = self.survey.losses
        tolerance = 1e-3 if self.dtype == torch.float32 else 1e-7
        rounding = 8 * torch.finfo(self.dtype).eps  # what a tiny loss, a difference of logits, is known to
        allowed = tolerance * first.abs().clamp(min=float(first.abs().mean()) + 1e-12) + rounding
        return first.to(self.device), allowed.to(self.device)

    def disagreement(self) -> str:
        """Say why two sweeps over the same data may differ here."""
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
            "two sweeps over the same data disagree: the data is shuffled or augmented anew each time, or the model "
            "draws random numbers; pass samples=N to keep one fixed draw of the data, or make the model deterministic"
        )

    @cached_property
    def survey(self) -> Survey:
        """What the first sweep finds: losses, weights, accuracy, fingerprint, with every check on what came in."""
        from spiritlevel.inputs.survey import take_survey

        return take_survey(self)

    @property
    def may_be_surveyed_on_the_way(self) -> bool:
        """Whether the first sweep may do other work too: nothing was looked at yet, and no second look is needed.

        Data that is read anew in each sweep may come in another order, which only a second sweep shows.
        """
        return "survey" not in self.__dict__ and self.source.count is not None and self.mode == "eval"

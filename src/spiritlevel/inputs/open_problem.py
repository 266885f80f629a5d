"""One measurement of a problem under way: how its model is run, and everything that is found out on the way."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.chosen_parameters import ChosenParameters, Layer
from spiritlevel.inputs.contents import Content, count_of, map_tensors, pick_samples, tensors_of
from spiritlevel.inputs.data import Source, held
from spiritlevel.inputs.deadline import FEWEST_BATCHES, AddingUp, Deadline
from spiritlevel.inputs.given import Given
from spiritlevel.inputs.losses import Loss
from spiritlevel.inputs.model_forward import Forward
from spiritlevel.inputs.model_state import HeldModel, WeightsBefore
from spiritlevel.inputs.process.allocation import keep_freed_memory
from spiritlevel.inputs.process.composite_operations import composite_operations
from spiritlevel.inputs.process.fast_max_pool import fast_max_pool
from spiritlevel.inputs.process.precision import autocast_kinds, full_float32, without_autocast
from spiritlevel.inputs.process.random_state import kept_random_state
from spiritlevel.inputs.process.ranks import Ranks, ranks
from spiritlevel.inputs.process.scope import hold, process_scope
from spiritlevel.inputs.spending import new_spent
from spiritlevel.inputs.torch_internals.compiling import may_be_compiled
from spiritlevel.inputs.watching import Watch
from spiritlevel.values.errors import SpiritlevelError

if TYPE_CHECKING:
    from spiritlevel.inputs.survey import Survey


ProgressHook = Callable[[str, int, int], None]


@functools.cache
def _wake_autograd(device: torch.device) -> None:
    """Let autograd's thread for a GPU begin with a plain step: torch warns where it begins with a matrix product."""
    with torch.inference_mode(False), torch.enable_grad():
        torch.ones(1, device=device, requires_grad=True).mul(2).sum().backward()


class OpenProblem(ChosenParameters):
    """A problem while it is measured, handed from pass to pass.

    Two measurements, of two problems or of one, share nothing but the model, which they take turns to hold.
    """

    def __init__(self, given: Given) -> None:
        self.refuse_shards(given)
        self.given = given
        self.model: nn.Module = given.model
        self.loss: Loss = given.loss
        self.mode, self.seed = given.mode, given.seed
        self.precision = given.precision  # of Gauss–Newton sums, unless it is found to be too coarse
        self.chosen_parameters = given.chosen_parameters
        self.source: Source = given.source
        self.notes = list(given.notes)  # sentences for the report
        self.spent = new_spent()  # sweeps over the data so far, by kind
        self.progress: ProgressHook | None = None
        self.latest = ""  # the value that was found last, with its error, for whoever waits
        self.deadline: Deadline | None = None  # by when it is to be done, where that was asked for
        self.known_survey: Survey | None = None  # until the first sweep
        self.looks_only = False  # at a few samples, which each rank does for itself
        self.watch = Watch()
        self.vetted: dict[int, int] = {}  # order up to which all samples' derivatives of a batch were checked
        self.derivatives: Any = None  # how products are made, once a derivative was checked; or why there are none
        self.gradient_is_true = False  # the cheaper half of that check
        self.uses_by_graph: dict[int, dict[str, list[tuple[int, int, bool]]]] = {}  # by signature and parameter
        self.graph_bytes: tuple[int, int] | None = None  # of the first batch's retained graph, and number of batches
        self.adding_up = AddingUp()
        self._forward = Forward(self.model, given.forward_function)
        self._session_depth = 0
        self._weights_before: WeightsBefore | None = None  # until the first forward pass
        self._writes_nothing = False  # the model's forward leaves its parameters alone
        self._own_buffers: dict[str, Tensor] = {}  # those that a forward pass writes to, as they were
        self._differentiates_inside = False  # the model's forward takes gradients itself (physics-informed)
        self._takes_gradients = False  # until outputs with a graph were seen
        self._writes_to_inputs: bool | None = None  # until the first forward pass; then it gets copies, if it does
        self._batch_size: int | None = None  # of sweeps over data in memory, once it is chosen
        self._expected: tuple[Tensor, Tensor] | None = None
        self._doubts: list[Tensor] = []  # whether a batch of the present sweep disagreed with the first one

    # --- the same problem otherwise ------------------------------------------------------------------------------

    def on_network(self, model: nn.Module) -> OpenProblem:
        """Return a measurement of the same problem on another network of the same names."""
        return self.joined(OpenProblem(self.given.on_network(model)))

    def on_every(self, step: int) -> OpenProblem:
        """Return one on every so many of the samples, which must be in memory."""
        return self.joined(OpenProblem(self.given.on_every(step)))

    def joined(self, other: OpenProblem) -> OpenProblem:
        """Return another measurement as a part of this one, which must be done by the same time."""
        other.deadline = None if self.deadline is None else self.deadline.elsewhere()
        other.progress = self.progress
        return other

    def on_few(self, count: int) -> OpenProblem:
        """Return one on some samples from all over the data, or of its first batch where that is read anew.

        Not on the first ones: sorted data begins with samples of one kind.
        """
        total = self.source.count
        if self.source.some is not None and total is not None and total > count:
            few = self.on_every(-(-total // count))
        else:
            batch = next(iter(self.batches()))
            places = torch.linspace(0, batch.count - 1, min(count, batch.count), device="cpu").long()
            few = OpenProblem(self.given.replaced(source=held(pick_samples(batch.content, places))))
        few.looks_only = True
        few.deadline = None  # a check of a few samples is soon done, and without it nothing is
        few._writes_nothing, few._writes_to_inputs = self._writes_nothing, self._writes_to_inputs
        few._own_buffers, few._differentiates_inside = self._own_buffers, self._differentiates_inside
        return few

    def in_own_batches(self) -> OpenProblem:
        """Return this measurement in batches of one size on every device, for what is defined by the batches."""
        given = self.given.in_own_batches()
        if given is self.given:
            return self
        other = copy.copy(self)  # with this one's survey, notes and counts
        other.given, other.source = given, given.source
        other._session_depth, other._weights_before = 0, None
        other._batch_size, other.graph_bytes = None, None
        other.vetted, other._doubts = {}, []
        other.derivatives, other.gradient_is_true = None, False
        return other

    @property
    def forward_function(self) -> Callable[[nn.Module, Content], Any]:
        """How a batch is put through the model: the user's function, or the default one."""
        return self.given.forward_function

    @property
    def layers(self) -> dict[str, Layer]:  # found once for all measurements
        """Modules that own chosen parameters, in the model's order; a tied parameter belongs to its first owner."""
        return self.given.layers

    @property
    def weights(self) -> dict[str, str]:
        """Weights of two or more dimensions, by layer: what measures defined on weight matrices use."""
        return self.given.weights

    @property
    def output_taken(self) -> str:
        """Which of several tensors the model returned is measured, in words; nothing where it returned one."""
        return self._forward.taken

    def note(self, text: str) -> None:
        """Keep a sentence for the report, once."""
        if text not in self.notes:
            self.notes.append(text)

    def fitting(self, kind: str) -> float:
        """Return how many units of some work there is time for; without a deadline, and of what is new, any number."""
        return math.inf if self.deadline is None else self.deadline.fitting(kind)

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
            if may_be_compiled():  # no model is compiled before that is loaded, which takes seconds
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

    def batches(self, what: str = "", units: float = 1.0) -> Iterator[Batch]:
        """Sweep the data once, in order; ``what`` names the sweep for progress reports.

        ``units`` says how much work of that name it is.  What a deadline leaves no time for raises ``TimeSpent``.
        Where several ranks sweep together, each comes by its own batches alone.
        """
        start = 0
        total = self.known_survey.count if self.known_survey is not None else self.source.count or 0
        device, dtype = self.device, self.dtype
        pace = self.deadline.pace(what, units, total) if self.deadline is not None and what and units else None
        group = ranks()
        shared = group.sharing and bool(what)  # a look at some batch is at the same one on all ranks
        if shared and group.again:
            return

        def place(tensor: Tensor) -> Tensor:
            tensor = tensor.clone() if tensor.is_inference() else tensor
            if not tensor.is_floating_point():  # left a view, so that checks of labels know it for a part of the same
                return tensor.to(device, non_blocking=True)
            return tensor.to(device, dtype, non_blocking=True).detach()

        contents = ((content, count) for content in self._read() if (count := count_of(content)))
        for number, (content, count) in enumerate(contents):
            if shared:
                group.reached(start)
            if not shared or group.own(number):
                yield Batch(map_tensors(content, place), start, count)
            start += count
            if self.progress is not None and what:
                self.progress(what, start, total)
            if pace is not None:
                pace.after(start)
        if pace is not None:
            pace.finish()
        self.spent.samples = max(self.spent.samples, start)
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

    def sweep(self, what: str) -> contextlib.AbstractContextManager[Ranks]:
        """Enter a sweep that all ranks make together, each over its own batches; after it they unite their sums."""
        from spiritlevel.inputs.sweeping import swept_together

        self.survey  # noqa: B018  (a rank without a batch would not ask for it)
        return swept_together(self, what)

    def _read(self) -> Iterator[Content]:
        """Begin a sweep.  The batches matter where samples influence each other, and are then left alone."""
        resized = self.source.resized
        if resized is None or self.mode == "train":
            return self.source.read()
        if self._batch_size is None:
            from spiritlevel.inputs.batch_sizes import batch_size_for

            self._batch_size = batch_size_for(self)
            if self.deadline is not None and self.source.count is not None:
                self._batch_size = min(self._batch_size, -(-self.source.count // FEWEST_BATCHES))
        return resized(self._batch_size)

    def outputs(self, content: Content, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the model's outputs on a batch, with some parameters replaced for this call where they are given."""
        watched = contextlib.nullcontext() if torch.compiler.is_compiling() else self.watch
        given = content
        if self._writes_to_inputs is not False:
            content = map_tensors(content, torch.clone)
        with watched, fast_max_pool(self.device):
            outputs = self._run(content, parameters)
        if parameters is None and not self._takes_gradients and torch.is_grad_enabled():
            self._refuse_no_gradients(outputs)
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

    def _refuse_no_gradients(self, outputs: Tensor) -> None:
        if not outputs.requires_grad:
            names = ", ".join(self.parameters[:3]) + (", …" if len(self.parameters) > 3 else "")
            raise SpiritlevelError(
                f"the model's outputs take no gradient from the chosen parameters ({names}): they were detached, made "
                "under no_grad, or do not use these; return them as they are computed, or choose other parameters"
            )
        self._takes_gradients = True

    def _run(self, content: Content, parameters: Mapping[str, Tensor] | None) -> Tensor:
        """Call the model; one that differentiates inside its forward is given a graph where none is asked for."""
        if torch.is_grad_enabled():
            return self._call(content, parameters)
        if not self._differentiates_inside:
            try:
                return self._call(content, parameters)
            except RuntimeError as error:
                if "require grad" not in str(error):
                    raise
        with torch.enable_grad():
            outputs = self._call(content, parameters).detach()
        self._differentiates_inside = True
        return outputs

    def _call(self, content: Content, parameters: Mapping[str, Tensor] | None) -> Tensor:
        if parameters is None and not self._own_buffers:
            return self._forward(content)
        fresh = {name: buffer.clone() for name, buffer in self._own_buffers.items()}
        replaced = {f"model.{name}": tensor for name, tensor in {**fresh, **(parameters or {})}.items()}
        outputs: Tensor = torch.func.functional_call(self._forward, replaced, (content,))
        return outputs

    def agrees(self, batch: Batch, losses: Tensor) -> None:
        """Refuse to go on where a sweep sees other losses than the first one did."""
        losses = losses.detach().double()
        place = (
            slice(batch.start, batch.start + batch.count) if batch.places is None else batch.places.to(losses.device)
        )
        expected, allowed = (known[place] for known in self._expected_losses())
        if len(expected) != len(losses):
            raise SpiritlevelError(self.disagreement())
        differs = ((losses - expected).abs() > allowed).any()
        if differs.is_cuda:
            self._doubts.append(differs)  # looked at when the sweep ends, so that nothing waits for the answer
        elif bool(differs):
            raise SpiritlevelError(self.disagreement())

    def _expected_losses(self) -> tuple[Tensor, Tensor]:
        """Return each sample's loss in the first sweep, and how far a later one may be from it."""
        if self._expected is None:
            first = self.survey.losses
            tolerance = 1e-3 if self.dtype == torch.float32 else 1e-7
            rounding = 8 * torch.finfo(self.dtype).eps  # what a tiny loss, a difference of logits, is known to
            allowed = tolerance * first.abs().clamp(min=float(first.abs().mean()) + 1e-12) + rounding
            self._expected = first.to(self.device), allowed.to(self.device)
        return self._expected

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

    @property
    def survey(self) -> Survey:
        """What the first sweep finds: losses, weights, accuracy, fingerprint, with every check on what came in."""
        if self.known_survey is None:
            from spiritlevel.inputs.survey import take_survey

            self.known_survey = take_survey(self)
        return self.known_survey

    @property
    def may_be_surveyed_on_the_way(self) -> bool:
        """Whether the first sweep may do other work too: nothing was looked at yet, and no second look is needed.

        Data that is read anew in each sweep may come in another order, which only a second sweep shows.
        """
        return self.known_survey is None and self.source.count is not None and self.mode == "eval"


# What every public function takes: a problem, or a measurement of it that is under way and goes on.
Measurable = Given | OpenProblem


def open_problem(problem: Measurable) -> OpenProblem:
    """Return a measurement of a problem: a new one, or the one that is under way."""
    return problem if isinstance(problem, OpenProblem) else OpenProblem(problem)

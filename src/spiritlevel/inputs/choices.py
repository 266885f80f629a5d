"""What a batch and a model leave open: asked for where a guess could be wrong, stated where one was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from spiritlevel.inputs.contents import Content, tensors_of
from spiritlevel.inputs.expert_stacks import stacking_order
from spiritlevel.inputs.input_first import storage_order
from spiritlevel.inputs.losses import CallableLoss, CrossEntropy, SameToken, labels_of
from spiritlevel.inputs.losses.base import LABEL_KEYS
from spiritlevel.inputs.losses.of_model import LANGUAGE_MODELS
from spiritlevel.values.errors import UsageError

if TYPE_CHECKING:
    from spiritlevel.inputs.open_problem import OpenProblem


def ask_for_labels(problem: OpenProblem, content: Content) -> None:
    """Refuse a batch whose labels a named loss cannot tell from its inputs, before the model is called with these."""
    if not isinstance(problem.loss, CallableLoss):
        labels_of(content)


def ask_which_token(problem: OpenProblem, content: Content, outputs: Tensor) -> None:
    """Refuse a plain cross-entropy over tokens where the next label may be meant, which gives quite another number."""
    loss = problem.loss
    if not isinstance(loss, CrossEntropy) or isinstance(loss, SameToken) or outputs.ndim != 3:
        return
    labels = labels_of(content)
    if labels.ndim != 2 or labels.shape[1] < 2 or labels.is_floating_point():
        return
    say = (
        "say loss='next_token' to compare each output with the next label, as such a model is trained, or "
        "loss='same_token' to compare it with the label at its own position"
    )
    counted = labels != loss.ignore_index
    for tensor in _inputs_of(content):
        if tensor.shape != labels.shape or tensor.is_floating_point():
            continue
        if bool(counted.any()) and bool(((tensor == labels) | ~counted).all()):
            raise UsageError(f"the labels are the inputs themselves, so this may be a model of the next token; {say}")
    name = _language_model(problem.model)
    if name:
        raise UsageError(f"{name} is a model of the next token, and labels may be shifted already or not; {say}")


def _inputs_of(content: Content) -> list[Tensor]:
    if isinstance(content, Mapping):
        return tensors_of([value for key, value in content.items() if key not in LABEL_KEYS])
    return tensors_of([value for place, value in enumerate(content) if place != 1])


def _language_model(model: nn.Module) -> str:
    names = (type(module).__name__ for module in model.modules())
    return next((name for name in names if name.endswith(LANGUAGE_MODELS)), "")


def taken_in_words(outputs: Any) -> str:
    """Say which tensor is measured where the model returned several in a tuple; nothing where there is no choice."""
    if isinstance(outputs, Mapping) or not isinstance(outputs, (tuple, list)):
        return ""
    tensors = tensors_of(outputs)
    if len(tensors) < 2:
        return ""
    which = "its logits are" if isinstance(getattr(outputs, "logits", None), Tensor) else "the first is"
    shapes = ", ".join(str(tuple(tensor.shape[1:])) for tensor in tensors[:4])
    return (
        f"The model returns {len(tensors)} tensors (of shape {shapes}{', …' if len(tensors) > 4 else ''} a sample), "
        f"of which {which} measured; pass forward=lambda model, batch: ... for another."
    )


def choices_taken(problem: OpenProblem, content: Content) -> list[str]:
    """Say what the default forward made of a batch that could be read in another way, and of several outputs."""
    from spiritlevel.inputs.model_forward import default_forward

    said: list[str] = []
    if problem.forward_function is default_forward:
        if isinstance(content, Mapping):
            kept = [key for key in LABEL_KEYS if key in content]
            if len(kept) > 1:
                said.append(f"The entries {' and '.join(kept)} of a batch are kept from the model, as labels.")
        else:
            first = content[0]
            if isinstance(first, (tuple, list, Mapping)):
                how = "by name" if isinstance(first, Mapping) else "in their order"
                said.append(f"The model is given the {len(first)} inputs of a batch's first entry {how}.")
            entries = sum(any(tensor.ndim for tensor in tensors_of(value)) for value in content)
            if entries > 2:
                said.append(
                    f"A batch has {entries} entries, of which the model is given the first; the loss reads what it "
                    "wants of the others."
                )
    return said + _matrices_in_words(problem) + ([problem.output_taken] if problem.output_taken else [])


def _matrices_in_words(problem: OpenProblem) -> list[str]:
    """Say how weights of modules of the model's own are read, where trying these did not show which way round."""
    open_ones = [
        full
        for layer in problem.layers.values()
        if not (storage_order(layer.module) or _made_of_torchs(layer.module) or stacking_order(layer.module))
        for full in layer.parameters.values()
        if problem.chosen_parameters[full].ndim > 1
    ]
    said = [
        f"The weights of {name} are read as those of experts stacked in one tensor, {order}."
        for name, layer in problem.layers.items()
        if (order := stacking_order(layer.module))
    ][:3]
    if not open_ones:
        return said
    names = ", ".join(open_ones[:3]) + (", …" if len(open_ones) > 3 else "")
    said.append(f"Read as matrices with a row for each entry of the first dimension, as torch stores weights: {names}.")
    return said


def _made_of_torchs(module: nn.Module) -> bool:
    """Whether the module is a torch layer with something of its own."""
    return any(base.__module__.startswith("torch.") for base in type(module).__mro__[:-1] if base is not nn.Module)

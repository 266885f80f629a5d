"""How a batch is put through a model, and which of what it returns is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from spiritlevel.inputs.choices import taken_in_words
from spiritlevel.inputs.contents import Content, tensors_of
from spiritlevel.inputs.losses.base import LABEL_KEYS
from spiritlevel.values.errors import SpiritlevelError

# How an encoder-decoder of transformers makes its decoder's inputs of labels, and what these inputs are called.
SHIFT, DECODED = "prepare_decoder_input_ids_from_labels", frozenset({"decoder_input_ids", "decoder_inputs_embeds"})


class Forward(nn.Module):
    """The user's forward as one module, so that parameters can be replaced for one call without touching the model."""

    def __init__(self, model: nn.Module, forward: Callable[[nn.Module, Content], Any] | None) -> None:
        super().__init__()
        self.model = model
        self.forward_function = forward or default_forward
        self.taken = ""  # which of several tensors the model returned is measured, in words

    def forward(self, content: Content) -> Tensor:
        outputs = self.forward_function(self.model, content)
        if not isinstance(outputs, Tensor):
            self.taken = taken_in_words(outputs)
        return _as_tensor(outputs)

    if TYPE_CHECKING:  # torch types a module's call as returning anything

        def __call__(self, content: Content) -> Tensor: ...


def default_forward(model: nn.Module, content: Content) -> Any:
    """Call the model on the first entry of a tuple, or on a dict's entries by name without the labels.

    An encoder-decoder of transformers makes what its decoder is given from the labels where that is not given: so it
    does when it is trained, and by the labels it is called with.
    """
    arguments, keywords = arguments_of(content)
    shifted = getattr(model, SHIFT, None)
    if isinstance(content, Mapping) and "labels" in content and callable(shifted) and not DECODED & keywords.keys():
        keywords["decoder_input_ids"] = shifted(labels=content["labels"])
    return model(*arguments, **keywords)


def arguments_of(content: Content) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what the model is called with; several inputs stand in a tuple or a dict of their own: ((a, b), y)."""
    if isinstance(content, Mapping):
        return (), {key: value for key, value in content.items() if key not in LABEL_KEYS}
    first = content[0]
    if isinstance(first, Mapping):
        return (), dict(first)
    return (tuple(first) if isinstance(first, (tuple, list)) and tensors_of(first) else (first,)), {}


def _as_tensor(outputs: Any) -> Tensor:
    """Return the model's outputs: a tensor, ``.logits``, the entry "logits", or the first of a tuple's tensors."""
    if isinstance(outputs, Tensor):
        return outputs
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(outputs, (tuple, list)) and outputs:
        tensors = tensors_of(outputs)
        if isinstance(outputs[0], Tensor) or len(tensors) == 1:
            return tensors[0]
    raise SpiritlevelError(
        f"the model returned {type(outputs).__name__}, in which no output tensor was found; "
        "pass forward=lambda model, batch: ... that returns the tensor the loss is taken of"
    )

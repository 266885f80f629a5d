"""What is done with text or with classes: the loss that follows, and the kind of network that is needed."""

from __future__ import annotations

from dataclasses import dataclass

from spiritlevel.values.errors import UsageError, near_names


@dataclass(frozen=True)
class Task:
    """A task by its name, the loss it is trained with, and transformers' tables of the networks made for it."""

    name: str
    loss: str
    networks: tuple[str, ...]
    what: str  # such a network in words

    @property
    def predicts_tokens(self) -> bool:
        """Whether there is a label at every position, and not one a sequence."""
        return self.name != "classification"


TASKS = {
    task.name: task
    for task in (
        Task("causal-lm", "next_token", ("MODEL_FOR_CAUSAL_LM_MAPPING",), "a model that predicts the next token"),
        Task("masked-lm", "same_token", ("MODEL_FOR_MASKED_LM_MAPPING",), "a model that fills in masked tokens"),
        Task(
            "classification",
            "cross_entropy",
            ("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING"),
            "a classifier",
        ),
    )
}


def task_named(name: str) -> Task:
    """Return the task of a name."""
    if name not in TASKS:
        raise UsageError(f"there is no task {name!r}: --task is {', '.join(TASKS)}{near_names(name, TASKS)}")
    return TASKS[name]

"""Data for a task on text: sequences of one length with their labels, and what was done to make them, in words."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from spiritlevel.cli.hugging_face import HUGGING_FACE, open_config
from spiritlevel.cli.tasks import Task
from spiritlevel.cli.text_records import TextRecord
from spiritlevel.cli.tokenizing import FolderTokenizer, open_tokenizer
from spiritlevel.inputs.weights.state_dicts import listed
from spiritlevel.values.errors import SpiritlevelError, UsageError, near_names

IGNORED = -100  # what the losses leave out
BLOCK = 128
# As BERT was trained: of the tokens to be found out, how many are masked and how many replaced; the others stay.
MASKED, REPLACED = 0.8, 0.1
# The --data-args that say how text is read.
OPTIONS = ("length", "masked", "text", "label", "tokenizer")
_PER_TOKEN = ("attention_mask", "token_type_ids")


@dataclass(frozen=True)
class TokenReader:
    """How text becomes sequences: for which task and network, with which options."""

    task: Task
    model: str
    model_args: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @cached_property
    def config(self) -> Any:
        """The network's configuration, where it comes with a folder."""
        return open_config(self.model, self.model_args) if self.model.startswith(HUGGING_FACE) else None

    def read(
        self, records: Sequence[TextRecord], name: str, options: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], list[str]]:
        """Return the records as one batch of tensors, and notes on what was done."""
        options = _checked(options, name)
        given = "input_ids" in records[0].fields
        rows, notes = self._given(records, options) if given else self._tokenised(records, name, options)
        self._check_range(rows, name)
        longest = max(len(row["input_ids"]) for row in rows)
        short = sum(len(row["input_ids"]) < longest for row in rows)
        if short:
            notes.append(f"{short:,} {_are(short)} padded to that length; padding is masked and counts in no loss.")
        return self._padded(rows, longest), [self._counted(rows, longest, given), *notes]

    # --- from records to rows of tokens ------------------------------------------------------------------------------

    def _given(
        self, records: Sequence[TextRecord], options: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return what was tokenised already, checked."""
        for option in ("length", "masked", "tokenizer"):
            if options.get(option) is not None:
                raise UsageError(f"--data-args {option} is for text, and these records hold input_ids; leave it out")
        rows = []
        for record in records:
            ids = _whole_numbers(record, "input_ids", None)
            row: dict[str, Any] = {"input_ids": ids}
            row |= {key: _whole_numbers(record, key, len(ids)) for key in _PER_TOKEN if key in record.fields}
            if not self.task.predicts_tokens:
                row["labels"] = self._label(record, options)
            elif "labels" in record.fields:
                row["labels"] = _whole_numbers(record, "labels", len(ids))
            elif self.task.name == "masked-lm":
                raise record.refused(
                    "has input_ids and no labels, and which tokens are masked cannot be told; give labels, with "
                    f"{IGNORED} for what counts in no loss, or text"
                )
            else:
                row["labels"] = ids
            rows.append(row)
        return rows, []

    def _tokenised(
        self, records: Sequence[TextRecord], name: str, options: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return text as rows of tokens: cut into blocks for a language model, one each for a classifier."""
        own = self.model.removeprefix(HUGGING_FACE) if self.model.startswith(HUGGING_FACE) else None
        texts = [_text(record, options["text"]) for record in records]
        labels = [] if self.task.predicts_tokens else [self._label(record, options) for record in records]
        tokenizer = open_tokenizer(options["tokenizer"] or own, name)
        tokens = tokenizer.tokens(texts)
        limit = self._longest(tokenizer)
        if options["length"] is not None and limit is not None and options["length"] > limit:
            raise UsageError(
                f"--data-args length={options['length']} is more than the {limit} tokens that the network takes; give "
                "fewer"
            )
        if self.task.predicts_tokens:
            length = options["length"] or min(BLOCK, limit or BLOCK)
            blocks = _blocks([token for text in tokens for token in text], length, name)
            if self.task.name == "masked-lm":
                return self._masked(blocks, tokenizer, options["masked"])
            return [{"input_ids": block, "labels": block} for block in blocks], []
        most = options["length"] or limit
        empty = next((record for record, row in zip(records, tokens) if not row), None)
        if empty is not None:
            raise empty.refused("holds no token, so there is nothing to classify; leave it out")
        cut = sum(most is not None and len(row) > most for row in tokens)
        notes = [f"{cut:,} {_are(cut)} cut off after {most} tokens."] if cut else []
        return [{"input_ids": row[:most], "labels": label} for row, label in zip(tokens, labels)], notes

    def _masked(
        self, blocks: list[list[int]], tokenizer: FolderTokenizer, share: float | None
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return blocks with some tokens to be found out, drawn once: masked, replaced by others, or left."""
        mask, special = tokenizer.mask, tokenizer.special
        share = 0.15 if share is None else share
        generator = torch.Generator().manual_seed(self.seed)
        rows, total = [], 0
        for block in blocks:
            places = [place for place, token in enumerate(block) if token not in special]
            count = min(len(places), max(1, round(share * len(places))))
            drawn = [places[i] for i in torch.randperm(len(places), generator=generator)[:count].tolist()]
            fates = torch.rand(count, generator=generator).tolist()
            others = torch.randint(tokenizer.size, (count,), generator=generator).tolist()
            ids, labels = list(block), [IGNORED] * len(block)
            for place, fate, other in zip(drawn, fates, others):
                labels[place] = block[place]
                ids[place] = mask if fate < MASKED else other if fate < MASKED + REPLACED else block[place]
            rows.append({"input_ids": ids, "labels": labels})
            total += count
        note = (
            f"{total:,} tokens ({share:.0%}), drawn with seed {self.seed}, are to be found out: of these "
            f"{MASKED:.0%} are masked, {REPLACED:.0%} replaced and the others left as they are."
        )
        return rows, [note]

    def _label(self, record: TextRecord, options: Mapping[str, Any]) -> int:
        """Return the class of a record as the network counts them."""
        name = options["label"] if options["label"] in record.fields or "labels" not in record.fields else "labels"
        label = _field(record, name, "label", "a class")
        known: dict[str, int] = dict(getattr(self.config, "label2id", None) or {})
        classes = getattr(self.config, "num_labels", None)
        if isinstance(label, str):
            if label in known:
                return int(known[label])
            if not known:
                raise record.refused(f"has the label {label!r}, and only hf:FOLDER knows labels by name; give a number")
            raise record.refused(
                f"has the label {label!r}, which the network does not know; its labels are {listed(known)}"
                f"{near_names(label, known)}"
            )
        if not isinstance(label, int) or isinstance(label, bool):
            raise record.refused(f"has the label {label!r}; a label is one class, by its number or its name")
        if label < 0 or (classes is not None and label >= classes):
            most = f"0 to {classes - 1}" if classes is not None else "0 and up"
            raise record.refused(f"has the label {label}, and the classes are {most}")
        return label

    # --- from rows to tensors ----------------------------------------------------------------------------------------

    def _padded(self, rows: list[dict[str, Any]], longest: int) -> dict[str, Tensor]:
        """Return rows as tensors; where lengths differ, with a mask of what is no padding."""
        short = any(len(row["input_ids"]) < longest for row in rows)
        fill = {"input_ids": self._padding(), "labels": IGNORED}
        keys = dict.fromkeys(key for row in rows for key in row)
        found = {}
        for key in [*(["attention_mask"] if short or "attention_mask" in keys else []), *keys]:
            if key in found:
                continue
            if key == "labels" and not self.task.predicts_tokens:
                found[key] = torch.tensor([row[key] for row in rows])
                continue
            values = [row.get(key, [int(key == "attention_mask")] * len(row["input_ids"])) for row in rows]
            found[key] = torch.tensor([value + [fill.get(key, 0)] * (longest - len(value)) for value in values])
        return found

    def _padding(self) -> int:
        # A classifier that looks at the last token finds it by the padding that its configuration names.
        own = (getattr(self.config, name, None) for name in ("pad_token_id", "eos_token_id"))
        return next((token for token in own if isinstance(token, int) and token >= 0), 0)

    def _longest(self, tokenizer: FolderTokenizer) -> int | None:
        names = ("max_position_embeddings", "n_positions")
        said = [*(getattr(self.config, name, None) for name in names), tokenizer.longest]
        found = [length for length in said if isinstance(length, int) and length > 0]
        return min(found) if found else None

    def _check_range(self, rows: list[dict[str, Any]], name: str) -> None:
        size = getattr(self.config, "vocab_size", None)
        largest = max(max(row["input_ids"]) for row in rows)
        if isinstance(size, int) and largest >= size:
            raise UsageError(
                f"{name} has the token {largest}, and the network knows {size:,} tokens; give the tokenizer that it "
                "was trained with"
            )

    def _counted(self, rows: list[dict[str, Any]], longest: int, given: bool) -> str:
        sequences = f"{len(rows):,} {'sequence' if len(rows) == 1 else 'sequences'}"
        if given or not self.task.predicts_tokens:
            return f"{sequences} of up to {longest:,} tokens, for {self.task.name}."
        count = sum(len(row["input_ids"]) for row in rows)
        return f"{count:,} tokens in {sequences} of {longest:,}, for {self.task.name}."


def split_options(found: Any, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the user's own function, and those that say how the text it gives is read."""
    taken: Mapping[str, Any] = {}
    if callable(found):
        with contextlib.suppress(ValueError, TypeError):  # one written in C says nothing of its arguments
            taken = inspect.signature(found).parameters
    options = {key: value for key, value in arguments.items() if key in OPTIONS and key not in taken}
    return {key: value for key, value in arguments.items() if key not in options}, options


def _checked(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return all options of reading text, those that nobody gave with their defaults."""
    for key in options:
        if key not in OPTIONS:
            raise UsageError(f"--data-args of {name} are {', '.join(OPTIONS)}, not {key!r}{near_names(key, OPTIONS)}")
    length, share = options.get("length"), options.get("masked")
    if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 2):
        raise UsageError(f"--data-args length must be a whole number of tokens, at least 2, not {length!r}")
    if share is not None and (not isinstance(share, (int, float)) or not 0 < share < 1):
        raise UsageError(f"--data-args masked must be a share between 0 and 1, not {share!r}")
    return {"text": "text", "label": "label", "length": None, "masked": None, "tokenizer": None, **options}


def _text(record: TextRecord, name: str) -> str:
    if "input_ids" in record.fields:
        raise record.refused("holds input_ids, and the first one text; give either in all of them")
    text = _field(record, name, "text", "text")
    if not isinstance(text, str):
        raise record.refused(f"has a {type(text).__name__} in its field {name!r}, where text is expected")
    return text


def _field(record: TextRecord, name: str, option: str, what: str) -> Any:
    if name not in record.fields:
        there = f"it has {listed(record.fields)}" if record.fields else "it is empty"
        raise record.refused(
            f"has no field {name!r} ({there}); name the one that holds {what} with --data-args {option}=FIELD"
        )
    return record.fields[name]


def _whole_numbers(record: TextRecord, name: str, length: int | None) -> list[int]:
    """Return the list of whole numbers in a field, as many as there are tokens."""
    if name not in record.fields:
        raise record.refused(f"has no {name}, and the first one has; give them in all of them")
    found = record.fields[name]
    if not isinstance(found, list) or not found or not all(type(number) is int for number in found):
        raise record.refused(f"has no list of whole numbers in its field {name!r}")
    if length is not None and len(found) != length:
        raise record.refused(f"has {len(found)} {name} for {length} tokens; give one each")
    if name == "input_ids" and min(found) < 0:
        raise record.refused(f"has the token {min(found)}; tokens are counted from 0")
    return list(found)


def _blocks(tokens: list[int], length: int, name: str) -> list[list[int]]:
    """Cut tokens into blocks; one token alone at the end would have nothing to be predicted from."""
    blocks = [tokens[start : start + length] for start in range(0, len(tokens), length)]
    if blocks and len(blocks[-1]) < 2:
        blocks.pop()
    if not blocks:
        raise SpiritlevelError(f"{name} has {len(tokens)} tokens, and at least 2 are needed; give more text")
    return blocks


def _are(count: int) -> str:
    return "is" if count == 1 else "are"

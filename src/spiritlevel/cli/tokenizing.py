"""The tokenizer that a network was trained with, from its folder, and texts turned into tokens by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spiritlevel.cli.extras import import_extra, in_one_sentence, quiet_transformers
from spiritlevel.values.errors import UsageError

# What AutoTokenizer makes a tokenizer of, beside a tokenizer.json that is whole in itself.
_FILES = (
    "tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model",
    "sentencepiece.bpe.model",
)  # fmt: skip


@dataclass(frozen=True)
class FolderTokenizer:
    """The tokenizer in a folder, and how it makes tokens of texts."""

    package: Any
    tokenizer: Any
    folder: str

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, with the marks that the tokenizer puts at its ends."""
        with quiet_transformers(self.package), in_one_sentence("transformers", f"could not tokenise by {self.folder}"):
            found = self.tokenizer(list(texts), padding=False, truncation=False, verbose=False)
        return [list(map(int, ids)) for ids in found["input_ids"]]

    @property
    def longest(self) -> int | None:
        """How many tokens the tokenizer says a network takes, where it says so."""
        said = getattr(self.tokenizer, "model_max_length", None)
        return said if isinstance(said, int) and 0 < said < 1 << 30 else None

    @property
    def padding(self) -> int | None:
        """The token that fills up short sequences."""
        return _one(self.tokenizer.pad_token_id)

    @property
    def mask(self) -> int:
        """The token that stands in for one to be found out."""
        found = _one(self.tokenizer.mask_token_id)
        if found is None:
            raise UsageError(
                f"the tokenizer in {self.folder} has no mask token, which --task masked-lm needs; choose another task, "
                "or give lines with input_ids and labels"
            )
        return found

    @property
    def special(self) -> set[int]:
        """The marks that are no part of a text."""
        return set(self.tokenizer.all_special_ids)

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return len(self.tokenizer)


def open_tokenizer(folder: str | None, wanted_by: str) -> FolderTokenizer:
    """Return the tokenizer of a folder; nothing is fetched and no code of the folder runs."""
    where = Path(folder) if folder is not None else None
    if where is None or not any((where / name).is_file() for name in _FILES):
        place = f"{where} has none (no {_FILES[0]})" if where is not None else "only hf:FOLDER brings one"
        raise UsageError(
            f"{wanted_by} is text, which needs a tokenizer, and {place}; save it with tokenizer.save_pretrained, name "
            "its folder with --data-args tokenizer=FOLDER, or give lines with input_ids"
        )
    package = import_extra("transformers", f"the text in {wanted_by}")
    with quiet_transformers(package), in_one_sentence("transformers", f"could not read the tokenizer in {where}"):
        if not (where / "tokenizer_config.json").is_file() and (where / "tokenizer.json").is_file():
            made = package.PreTrainedTokenizerFast(tokenizer_file=str(where / "tokenizer.json"))
        else:
            made = package.AutoTokenizer.from_pretrained(str(where), local_files_only=True, trust_remote_code=False)
    return FolderTokenizer(package, made, str(where))


def _one(token: Any) -> int | None:
    return token if isinstance(token, int) else None

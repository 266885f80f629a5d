"""Real tokens and images without a download: the standard library's sources, and a file of CIFAR-100 images."""

from __future__ import annotations

import functools
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

CHARACTERS = 8_000_000  # of the library's sources that are read, in the order of their paths
_TOKENS = re.compile(r"[A-Za-z_]\w*|\d+|\n[ \t]*|[^\w\s]")
_WORDS = re.compile(r"[a-z]+")
_PROSE = re.compile(r'"""(.*?)"""|#([^\n]*)', re.DOTALL)
# Of CIFAR-100's training images, by channel.
MEAN, DEVIATION = (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)


@functools.cache
def library_text(characters: int = CHARACTERS) -> str:
    """Return the standard library's sources, file after file, up to so many characters."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found: list[str] = []
    total = 0
    for file in sorted(folder.rglob("*.py")):
        inside = file.relative_to(folder).parts
        if {"site-packages", "dist-packages", "test", "tests", "idlelib"} & set(inside):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        found.append(text)
        total += len(text)
        if total >= characters:
            break
    return "\n".join(found)[:characters]


def numbered(words: Iterable[str], vocabulary: int) -> Tensor:
    """Return each word's rank by frequency, from 1; words beyond the vocabulary share the number 0."""
    words = list(words)
    ranks = {word: rank + 1 for rank, (word, _) in enumerate(Counter(words).most_common(vocabulary - 1))}
    return torch.tensor([ranks.get(word, 0) for word in words])


def source_tokens(length: int, vocabulary: int, characters: int = CHARACTERS) -> Tensor:
    """Return pieces (M, length) of the library's sources: names, numbers, signs and indents as tokens."""
    tokens = numbered(_TOKENS.findall(library_text(characters)), vocabulary)
    return tokens[: len(tokens) // length * length].view(-1, length)


def prose_or_code(length: int, vocabulary: int, characters: int = CHARACTERS) -> tuple[Tensor, Tensor]:
    """Return pieces (M, length) of words, half from docstrings and comments (1), half from code (0), in turn.

    Words alone: by its punctuation code would be told from prose at once.
    """
    text = library_text(characters)
    prose = _WORDS.findall(" ".join(a or b for a, b in _PROSE.findall(text)).lower())
    code = _WORDS.findall(_PROSE.sub(" ", text).lower())
    tokens = numbered([*prose, *code], vocabulary)
    pieces = [part[: len(part) // length * length].view(-1, length) for part in tokens.split([len(prose), len(code)])]
    count = min(len(part) for part in pieces)
    x = torch.stack([part[:count] for part in pieces], dim=1).flatten(0, 1)
    return x, torch.tensor([1, 0]).repeat(count)


def cifar(file: Path, classes: int) -> tuple[Tensor, Tensor, str]:
    """Return (x uint8 (N, 3, 32, 32), y, what they are); the 100 classes stand apart among ``classes``.

    Where the file is missing, smooth random images stand in, and the words say so.
    """
    try:
        with np.load(file) as stored:
            x, y = torch.from_numpy(stored["x"]).movedim(-1, 1).contiguous(), torch.from_numpy(stored["y"]).long()
        return x, y * (classes // 100) if classes >= 100 else y % classes, "CIFAR-100"
    except (OSError, KeyError, ValueError) as error:
        generator = torch.Generator().manual_seed(0)
        shapes = torch.rand(min(classes, 100), 3, 4, 4, generator=generator)
        y = torch.randint(len(shapes), (2048,), generator=generator)
        x = F.interpolate(shapes[y] + 0.3 * torch.rand(len(y), 3, 4, 4, generator=generator), size=(32, 32))
        x = (255 * x / 1.3).byte()
        return x, y * max(1, classes // 100), f"random images in place of CIFAR-100 ({type(error).__name__}: {error})"


def upscaled(x: Tensor, size: int) -> Tensor:
    """Return images (B, 3, size, size) of zero mean and unit deviation from bytes (B, 3, 32, 32)."""
    mean, deviation = (torch.tensor(numbers, device=x.device).view(3, 1, 1) for numbers in (MEAN, DEVIATION))
    x = (x.float() / 255 - mean) / deviation
    return x if size == x.shape[-1] else F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)

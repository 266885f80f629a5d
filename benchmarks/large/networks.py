"""The networks: where each comes from, its task, its moment of training, and the checkpoint that spares a second one.

A network takes one tensor and returns logits, whatever the library it comes from returns.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.large import material
from benchmarks.timing import synchronise


@dataclass(frozen=True)
class Size:
    """How large a network and its data are: the sizes measured, or tiny ones to try everything out."""

    samples: int
    length: int  # tokens of a sample, or pixels of an image's side
    classes: int  # or words of the vocabulary
    batch: int  # of a training step
    steps: int
    words: int = 30_522  # that the input's tokens are of, where the classes are others


@dataclass(frozen=True)
class Network:
    """A network by name: the builder gives the module and says where it comes from."""

    name: str
    title: str
    build: Callable[[Size, bool], tuple[nn.Module, str]]
    task: str  # "next token", "prose or code" or "images"
    full: Size
    rate: float
    enough: float = 0.0  # training ends where the loss, averaged over twenty steps, is below this

    @property
    def loss(self) -> str:
        """The loss by Spiritlevel's name."""
        return "next_token" if self.task == "next token" else "cross_entropy"

    @property
    def criterion(self) -> nn.Module:
        """The same mean loss as a module, for training, the plain gradient and the peers."""
        return NextTokenLoss() if self.task == "next token" else nn.CrossEntropyLoss()

    def size(self, smoke: bool) -> Size:
        """Return the sizes to measure, or with ``smoke`` tiny ones."""
        if not smoke:
            return self.full
        if self.task == "images":
            return Size(16, 32, 20, 8, 6)
        return Size(6, 16, 2 if self.task == "prose or code" else 100, 4, 6, words=100)


class NextTokenLoss(nn.Module):
    """Mean cross-entropy of the logits (B, T, C) at each position against the token (B, T) at the next."""

    reduction = "mean"

    def forward(self, outputs: Tensor, tokens: Tensor) -> Tensor:
        return F.cross_entropy(outputs[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Logits(nn.Module):
    """A Hugging Face model as a function from one tensor to logits."""

    def __init__(self, network: nn.Module, **options: Any) -> None:
        super().__init__()
        self.network = network
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x, **self.options).logits


class PlainStandIn(nn.Module):
    """A small network in plain torch, where the library of the real one cannot be imported."""

    def __init__(self, size: Size, task: str) -> None:
        super().__init__()
        self.task = task
        self.embedding: nn.Module = nn.Conv2d(3, 16, 8, stride=8)
        if task != "images":
            self.embedding = nn.Embedding(size.classes if task == "next token" else size.words, 16)
        self.norm = nn.LayerNorm(16)
        self.inner = nn.Linear(16, 16)
        self.head = nn.Linear(16, 2 if task == "prose or code" else size.classes)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.embedding(x)
        inner = inner.flatten(2).transpose(1, 2) if self.task == "images" else inner
        inner = inner + F.gelu(self.inner(self.norm(inner)))
        return self.head(inner if self.task == "next token" else inner.mean(1))


def first_of(task: str, *ways: Callable[[Size, bool], tuple[nn.Module, str]]) -> Callable[..., tuple[nn.Module, str]]:
    """Return a builder by the first library that can be imported; of none, a stand-in that says why."""

    def build(size: Size, smoke: bool) -> tuple[nn.Module, str]:
        reasons = []
        for way in ways:
            try:
                return way(size, smoke)
            except Exception as error:  # a library that is absent, or that takes other arguments here
                reasons.append(f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")
        return PlainStandIn(size, task), f"a small stand-in in plain torch ({'; '.join(dict.fromkeys(reasons))})"

    return build


def _gpt2(size: Size, smoke: bool) -> tuple[nn.Module, str]:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": size.classes} if smoke else {}
    return Logits(GPT2LMHeadModel(GPT2Config(**small)), use_cache=False), "transformers GPT2LMHeadModel"


def _gpt_1b(size: Size, smoke: bool) -> tuple[nn.Module, str]:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"n_layer": 36, "n_embd": 1536, "n_head": 12}
    if smoke:
        shape = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": size.classes}
    # Made where it will be: drawing a billion numbers on a processor takes longer than all the rest.
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        return Logits(GPT2LMHeadModel(GPT2Config(**shape)), use_cache=False), "transformers GPT2LMHeadModel"


def _bert(size: Size, smoke: bool) -> tuple[nn.Module, str]:
    from transformers import BertConfig, BertForSequenceClassification

    small = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(num_labels=2, vocab_size=size.words, **(small if smoke else {}))
    return Logits(BertForSequenceClassification(config)), "transformers BertForSequenceClassification"


def _timm_vit(size: Size, smoke: bool) -> tuple[nn.Module, str]:
    import timm

    if smoke:
        raise ImportError("the trial uses the small one of transformers")
    return timm.create_model("vit_small_patch16_224", num_classes=size.classes), "timm vit_small_patch16_224"


def _hf_vit(size: Size, smoke: bool) -> tuple[nn.Module, str]:
    from transformers import ViTConfig, ViTForImageClassification

    shape = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536, "patch_size": 16}
    if smoke:
        shape = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 2}
        shape["patch_size"] = 8
    config = ViTConfig(image_size=size.length, num_labels=size.classes, **shape)
    return Logits(ViTForImageClassification(config)), "transformers ViTForImageClassification"


def _torchvision(name: str) -> Callable[[Size, bool], tuple[nn.Module, str]]:
    def build(size: Size, smoke: bool) -> tuple[nn.Module, str]:
        import torchvision

        if smoke:
            raise ImportError("the trial uses the small one of transformers")
        return getattr(torchvision.models, name)(weights=None, num_classes=size.classes), f"torchvision {name}"

    return build


def _hf_convnext(size: Size, smoke: bool) -> tuple[nn.Module, str]:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    small: dict[str, Any] = {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 1]} if smoke else {}
    config = ConvNextConfig(num_labels=size.classes, **small)
    return Logits(ConvNextForImageClassification(config)), "transformers ConvNextForImageClassification"


def _hf_resnet(size: Size, smoke: bool) -> tuple[nn.Module, str]:
    from transformers import ResNetConfig, ResNetForImageClassification

    small: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1]} if smoke else {}
    return Logits(ResNetForImageClassification(ResNetConfig(num_labels=size.classes, **small))), (
        "transformers ResNetForImageClassification"
    )


_IMAGES = Size(256, 224, 1000, 128, 300)
NETWORKS = {
    network.name: network
    for network in (
        Network("gpt2", "GPT-2 124M", first_of("next token", _gpt2), "next token",
                Size(128, 128, 50_257, 32, 300), 6e-4),
        Network("gpt_1b", "A GPT of 1.1 billion parameters", first_of("next token", _gpt_1b), "next token",
                Size(32, 128, 50_257, 16, 200), 2e-4),
        Network("bert", "BERT-base, 2 classes", first_of("prose or code", _bert), "prose or code",
                Size(256, 128, 2, 64, 300), 1e-4, enough=0.15),
        Network("vit", "ViT-S/16, 1,000 classes", first_of("images", _timm_vit, _hf_vit), "images", _IMAGES, 5e-4),
        Network("convnext", "ConvNeXt-T, 1,000 classes", first_of("images", _torchvision("convnext_tiny"),
                _hf_convnext), "images", _IMAGES, 1e-3),
        Network("resnet50", "ResNet-50, 1,000 classes", first_of("images", _torchvision("resnet50"), _hf_resnet),
                "images", _IMAGES, 1e-3),
    )
}  # fmt: skip


@dataclass
class Prepared:
    """A trained network on its device with the data to measure it on."""

    network: Network
    model: nn.Module
    x: Tensor
    y: Tensor
    facts: dict[str, Any]


@functools.cache
def _data(task: str, size: Size, folder: Path, images: Path, smoke: bool) -> tuple[Tensor, Tensor, str]:
    """Return all samples (images as bytes) with their labels, in an order drawn once, and what they are."""
    characters = 300_000 if smoke else material.CHARACTERS
    kept = folder / f"{task.replace(' ', '-')}-{size.length}-{characters}.pt"
    if task != "images" and kept.exists():
        x, y = torch.load(kept)
    elif task == "next token":
        x = material.source_tokens(size.length, size.classes, characters)
        y = x
    elif task == "prose or code":
        x, y = material.prose_or_code(size.length, size.words, characters)
    what = f"Python's own sources, {size.length} tokens a sample"
    if task == "images":
        x, y, what = material.cifar(images, size.classes)
        what += f", at {size.length}²"
    elif not kept.exists():
        torch.save((x, y), kept)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order], y[order], what


def prepare(
    network: Network, folder: Path, images: Path, device: torch.device, smoke: bool, seconds: float
) -> Prepared:
    """Return the trained network: from its checkpoint, or after a moment of training of at most so many seconds.

    It is measured on some of the samples that it was trained on, each seen twice on average.
    """
    folder.mkdir(parents=True, exist_ok=True)
    size = network.size(smoke)
    torch.manual_seed(0)
    model, provider = network.build(size, smoke)
    model = model.to(device)
    x, y, what = _data(network.task, size, folder, images, smoke)
    checkpoint = folder / f"{network.name}{'-smoke' if smoke else ''}.pt"
    if checkpoint.exists():
        stored = torch.load(checkpoint, map_location=device)
        model.load_state_dict(stored["weights"])
        training = {**stored["training"], "from_checkpoint": True}
    else:
        seen = max(size.samples, size.batch * size.steps // 2)
        training = train(network, model, x[:seen], y[:seen], size, device, seconds)
        torch.save({"weights": model.state_dict(), "training": training}, checkpoint)
    model.eval()
    chosen = x[: size.samples].to(device)
    facts = {
        "title": network.title,
        "provider": provider,
        "parameters": sum(tensor.numel() for tensor in model.parameters()),
        "samples": len(chosen),
        "data": what,
        "training": training,
    }
    labels = y[: size.samples].to(device)
    inputs = material.upscaled(chosen, size.length) if network.task == "images" else chosen
    return Prepared(network, model, inputs, labels, facts)


def train(
    network: Network, model: nn.Module, x: Tensor, y: Tensor, size: Size, device: torch.device, seconds: float
) -> dict[str, Any]:
    """Train with AdamW, a warm-up and a cosine decay, under bfloat16 on a GPU; say how far it came."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=network.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _share_of_rate(step, size.steps))
    generator = torch.Generator().manual_seed(1)
    x, y = x.to(device), y.to(device)
    criterion = network.criterion
    model.train()
    losses: list[Tensor] = []
    synchronise(device)
    start = time.perf_counter()
    ended = "all steps"
    for _ in range(size.steps):
        index = torch.randint(len(x), (size.batch,), generator=generator).to(device)
        batch = material.upscaled(x[index], size.length) if network.task == "images" else x[index]
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = criterion(model(batch), y[index])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.detach())
        if len(losses) % 20 == 0:
            recent = float(torch.stack(losses[-20:]).mean())
            if recent < network.enough or not math.isfinite(recent):
                ended = f"the loss is {recent:.3g}"
                break
            if time.perf_counter() - start > seconds:
                ended = f"{seconds:.0f} s were over"
                break
    synchronise(device)
    optimiser.zero_grad(set_to_none=True)
    last = losses[-20:]
    return {
        "steps": len(losses),
        "batch": size.batch,
        "seconds": time.perf_counter() - start,
        "ended": ended,
        "first_loss": float(losses[0]),
        "last_loss": float(torch.stack(last).mean()),
        "from_checkpoint": False,
    }


def _share_of_rate(step: int, steps: int) -> float:
    warm = max(1, steps // 10)
    return (step + 1) / warm if step < warm else 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps))

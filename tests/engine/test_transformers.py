"""Transformers with dict batches, padded encoders among them, measured as any other network."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.measures.reference import Dense
from tests.engine.small_problem import Output
from tests.helpers import opened


class Block(nn.Module):
    """Pre-norm attention and a GELU MLP, as GPT-2 and ViT have them."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.causal = causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.norm_1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal and mask is None)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class TinyGPT(nn.Module):
    """A decoder with tied embeddings, an attention mask and .logits."""

    def __init__(self, vocabulary: int = 7, width: int = 4, length: int = 5) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.block, self.norm = Block(width, causal=True), nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Output:
        length = input_ids.shape[1]
        mask = None
        if attention_mask is not None:
            causal = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).tril()
            mask = causal & attention_mask.bool()[:, None, None, :]
            mask = mask | torch.eye(length, dtype=torch.bool, device=input_ids.device)
        x = self.tokens(input_ids) + self.places(torch.arange(length, device=input_ids.device))
        return Output(self.head(self.norm(self.block(x, mask))))


class TinyViT(nn.Module):
    """A patch embedding by convolution, a class token and one block."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(0.1 * torch.randn(1, 5, width))
        self.block, self.norm, self.head = Block(width, causal=False), nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return {"logits": self.head(self.norm(self.block(x))[:, 0])}


def language_batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(1, 7, (6, 5), generator=generator)
    mask = torch.ones(6, 5, dtype=torch.long)
    mask[1, 3:] = 0
    mask[4, 4:] = 0
    labels = ids.where(mask == 1, -100)
    return [
        {"input_ids": ids[i : i + 4], "attention_mask": mask[i : i + 4], "labels": labels[i : i + 4]} for i in (0, 4)
    ]


def image_batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(4)
    pixels = torch.randn(7, 1, 4, 4, generator=generator)
    labels = torch.randint(0, 3, (7,), generator=generator)
    return [{"pixel_values": pixels[i : i + 4], "labels": labels[i : i + 4]} for i in (0, 4)]


@pytest.mark.parametrize("kind", ["gpt", "vit"])
def test_transformers_with_dict_batches(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "gpt":
        problem = opened(TinyGPT().double(), language_batches(), "next_token")
    else:
        problem = opened(TinyViT().double(), image_batches())
    dense = Dense(problem)
    names = ["hessian_trace", "ggn_trace", "hessian_top_eigenvalue", "kappa_tau_sum"]
    report = sl.measure(problem, names, tolerance=0.2)
    assert report.loss == pytest.approx(dense.loss, rel=1e-10)
    trace_found = report["hessian_trace"]
    assert trace_found.how == "estimated"
    assert abs(trace_found.value - float(dense.hessian.trace())) < 4 * trace_found.stderr
    assert report["ggn_trace"].value == pytest.approx(float(dense.ggn.trace()), rel=1e-8)
    low, high = report["hessian_top_eigenvalue"].interval
    assert low <= float(torch.linalg.eigvalsh(dense.hessian)[-1]) <= high
    exact = report.header.exact_layers
    # The tied embedding of the GPT serves as head and input; the ViT's head and last normalisation are linear.
    assert exact == (("norm",) if kind == "gpt" else ("norm", "head"))


def test_padded_encoders_of_torch_are_measured() -> None:
    """Without gradients torch's own encoder takes a path that writes zeros at padded positions."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(6, 4)
            layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
            self.encoder, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(4, 3)

        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            return self.head(self.encoder(self.embed(tokens), src_key_padding_mask=mask).mean(1))

    torch.manual_seed(0)
    tokens = torch.randint(0, 6, (6, 5))
    mask = torch.arange(5)[None] >= torch.tensor([5, 3, 4, 2, 5, 1])[:, None]
    batch = {"tokens": tokens, "mask": mask, "labels": torch.randint(0, 3, (6,))}
    problem = opened(Encoder().double(), batch)
    before = torch.backends.mha.get_fastpath_enabled()
    found = sl.measure(problem, ["ggn_trace", "hessian_top_eigenvalue"])
    assert torch.backends.mha.get_fastpath_enabled() == before
    assert found["ggn_trace"].value == pytest.approx(float(Dense(problem).ggn.trace()), rel=1e-8)

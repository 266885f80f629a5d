"""Transformers over tokens as libraries write them: GPT-2, BERT, T5, and the blocks of Llama."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.modern.network import Batch, ModelOutput, ModernNetwork

VOCABULARY, LENGTH, WIDTH = 11, 8, 8


def chains(generator: torch.Generator, count: int) -> Tensor:
    """Sequences whose next token mostly follows from the last two; tokens 1 and above."""
    words = VOCABULARY - 1
    tokens = torch.randint(0, words, (count, LENGTH), generator=generator)
    kept = torch.rand(count, LENGTH, generator=generator) < 0.8
    for t in range(2, LENGTH):
        tokens[:, t] = torch.where(kept[:, t], (3 * tokens[:, t - 1] + tokens[:, t - 2] + 1) % words, tokens[:, t])
    return tokens + 1


def texts(generator: torch.Generator, count: int) -> Batch:
    """Sequences to go on with, the last of them padded; the padding is no label."""
    tokens = chains(generator, count)
    lengths = torch.randint(LENGTH - 3, LENGTH + 1, (count, 1), generator=generator)
    present = torch.arange(LENGTH) < lengths
    return {"input_ids": tokens.where(present, 0), "labels": tokens.where(present, -100)}


def plain_texts(generator: torch.Generator, count: int) -> Batch:
    tokens = chains(generator, count)
    return tokens, tokens.clone()


def sentences(generator: torch.Generator, count: int) -> Batch:
    """Two segments with padding behind; the class says which of three marks stands in them."""
    tokens = torch.randint(5, VOCABULARY, (count, LENGTH), generator=generator)
    labels = torch.randint(0, 3, (count,), generator=generator)
    lengths = torch.randint(4, LENGTH + 1, (count,), generator=generator)
    places = 1 + (torch.rand(count, generator=generator) * (lengths - 1)).long()
    tokens[torch.arange(count), places] = 2 + labels
    tokens[:, 0] = 1
    mask = torch.arange(LENGTH) < lengths[:, None]
    types = (torch.arange(LENGTH) >= lengths[:, None] // 2).long()
    return {
        "input_ids": tokens.where(mask, 0),
        "attention_mask": mask.long(),
        "token_type_ids": types.where(mask, 0),
        "labels": labels,
    }


def reversals(generator: torch.Generator, count: int) -> Batch:
    """Sequences and themselves backwards, given one place late to the decoder."""
    tokens = torch.randint(2, VOCABULARY, (count, 5), generator=generator)
    target = tokens.flip(1)
    given = torch.cat([torch.ones(count, 1, dtype=torch.long), target[:, :-1]], 1)
    return {"input_ids": tokens, "decoder_input_ids": given, "labels": target}


class Conv1D(nn.Module):
    """A linear map whose weight is stored as (in, out)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.empty(nx, nf).normal_(std=0.2)), nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        size_out = (*x.size()[:-1], self.nf)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size_out)


class NewGELU(nn.Module):
    """The approximation by tanh, written out."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class GPT2Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = Conv1D(3 * WIDTH, WIDTH), Conv1D(WIDTH, WIDTH)
        self.c_fc, self.act, self.c_out = Conv1D(2 * WIDTH, WIDTH), NewGELU(), Conv1D(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, width = x.shape
        q, k, v = (p.view(b, t, 2, -1).transpose(1, 2) for p in self.c_attn(self.ln_1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(b, t, width))
        return x + self.c_out(self.act(self.c_fc(self.ln_2(x))))


class GPT2(nn.Module):
    """Two blocks, the head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        nn.init.normal_(self.wte.weight, std=0.4)
        nn.init.normal_(self.wpe.weight, std=0.2)
        self.h, self.ln_f = nn.ModuleList([GPT2Block(), GPT2Block()]), nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids: Tensor) -> ModelOutput:
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.h:
            x = block(x)
        return ModelOutput(self.lm_head(self.ln_f(x)))


class BertLayer(nn.Module):
    """Post-norm attention with an additive mask, written out, and a GELU perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.dense, self.attention_norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, eps=1e-12)
        self.intermediate, self.output = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.output_norm, self.dropout = nn.LayerNorm(WIDTH, eps=1e-12), nn.Dropout(0.0)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        shape = (*x.shape[:2], 2, WIDTH // 2)
        q, k, v = (part(x).view(shape).permute(0, 2, 1, 3) for part in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(WIDTH // 2) + mask
        probabilities = self.dropout(F.softmax(scores, dim=-1))
        context = torch.matmul(probabilities, v).permute(0, 2, 1, 3).contiguous().view(x.shape)
        x = self.attention_norm(self.dropout(self.dense(context)) + x)
        return self.output_norm(self.dropout(self.output(F.gelu(self.intermediate(x)))) + x)


class Bert(nn.Module):
    """Token, position and type embeddings, one layer, a pooler with tanh, three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.position_embeddings, self.token_type_embeddings = nn.Embedding(LENGTH, WIDTH), nn.Embedding(2, WIDTH)
        self.norm, self.layer = nn.LayerNorm(WIDTH, eps=1e-12), BertLayer()
        self.pooler, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.register_buffer("position_ids", torch.arange(LENGTH)[None], persistent=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> ModelOutput:
        x = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        x = self.norm(x + self.position_embeddings(self.position_ids))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        x = self.layer(x, mask)
        return ModelOutput(self.classifier(torch.tanh(self.pooler(x[:, 0]))))


class RMSNorm(nn.Module):
    """Root mean square norm by pow, mean and rsqrt."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


class T5Attention(nn.Module):
    """Attention without biases and without scaling, to which the caller adds positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, states: Tensor, bias: Tensor | None) -> Tensor:
        b, _, width = x.shape
        q, k, v = (
            f(s).view(b, -1, 2, width // 2).transpose(1, 2)
            for f, s in [(self.q, x), (self.k, states), (self.v, states)]
        )
        scores = torch.matmul(q, k.transpose(3, 2))
        if bias is not None:
            scores = scores + bias
        attended = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.o(attended.transpose(1, 2).contiguous().view(b, -1, width))


class T5Perceptron(nn.Module):
    """Gated GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wi_0, self.wi_1 = nn.Linear(width, 12, bias=False), nn.Linear(width, 12, bias=False)
        self.wo, self.act = nn.Linear(12, width, bias=False), NewGELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.wo(self.act(self.wi_0(x)) * self.wi_1(x))


class T5Stack(nn.Module):
    """One block of an encoder, or with attention to its states one of a decoder."""

    def __init__(self, width: int, decoder: bool) -> None:
        super().__init__()
        self.decoder = decoder
        self.relative_attention_bias = nn.Embedding(9, 2)
        self.attention, self.perceptron = T5Attention(width), T5Perceptron(width)
        self.norm_1, self.norm_2, self.final_norm = RMSNorm(width), RMSNorm(width), RMSNorm(width)
        if decoder:
            self.cross, self.norm_cross = T5Attention(width), RMSNorm(width)

    def forward(self, x: Tensor, states: Tensor | None = None) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        apart = (places[None, :] - places[:, None]).clamp(-4, 4) + 4
        bias = self.relative_attention_bias(apart).permute(2, 0, 1).unsqueeze(0)
        if self.decoder:
            bias = bias + torch.full_like(apart, -1e9, dtype=x.dtype).triu(1)
        y = self.norm_1(x)
        x = x + self.attention(y, y, bias)
        if states is not None:
            x = x + self.cross(self.norm_cross(x), states, None)
        return self.final_norm(x + self.perceptron(self.norm_2(x)))


class T5(nn.Module):
    """An encoder and a decoder over shared embeddings."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.shared = nn.Embedding(VOCABULARY, width)
        self.encoder, self.decoder = T5Stack(width, False), T5Stack(width, True)
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> ModelOutput:
        states = self.encoder(self.shared(input_ids))
        return ModelOutput(self.lm_head(self.decoder(self.shared(decoder_input_ids), states)))


def rotate_half(x: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


class LlamaAttention(nn.Module):
    """Rotary positions; two heads of queries to one of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj, self.v_proj = nn.Linear(WIDTH, WIDTH // 2, bias=False), nn.Linear(WIDTH, WIDTH // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, width = x.shape
        q, k, v = (f(x).view(b, t, -1, width // 2).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        frequencies = 1.0 / 100.0 ** (torch.arange(0, width // 2, 2, device=x.device, dtype=x.dtype) / (width // 2))
        angles = torch.outer(torch.arange(t, device=x.device, dtype=x.dtype), frequencies)
        cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        k = k[:, :, None].expand(b, 1, 2, t, width // 2).reshape(b, 2, t, width // 2)
        v = v[:, :, None].expand(b, 1, 2, t, width // 2).reshape(b, 2, t, width // 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, width))


class SwiGLU(nn.Module):
    """down(SiLU(gate) · up)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, hidden, bias=False), nn.Linear(WIDTH, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    def __init__(self, perceptron: nn.Module) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()
        self.self_attn, self.mlp = LlamaAttention(), perceptron

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class MixtureOfExperts(nn.Module):
    """A router's softmax, the best two of four experts, their outputs added where their tokens are."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList([SwiGLU(6) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        b, t, width = x.shape
        x = x.view(-1, width)
        shares, chosen = torch.topk(F.softmax(self.gate(x), dim=1), 2, dim=-1)
        shares = shares / shares.sum(dim=-1, keepdim=True)
        total = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            total.index_add_(0, token, expert(x[token]) * shares[token, place, None])
        return total.view(b, t, width)


class Llama(nn.Module):
    """Two blocks and an untied head."""

    def __init__(self, mixture: bool = False) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        blocks = [LlamaBlock(MixtureOfExperts())] if mixture else [LlamaBlock(SwiGLU(12)), LlamaBlock(SwiGLU(12))]
        self.layers, self.norm = nn.ModuleList(blocks), RMSNorm()
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor) -> ModelOutput:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return ModelOutput(self.lm_head(self.norm(x)))


def mixtral() -> nn.Module:
    return Llama(mixture=True)


LANGUAGE = (
    ModernNetwork("gpt2", GPT2, texts, "next_token"),
    ModernNetwork("bert", Bert, sentences),
    ModernNetwork("t5", T5, reversals, "same_token"),
    ModernNetwork("llama", Llama, plain_texts, "next_token"),
    ModernNetwork("mixture_of_experts", mixtral, plain_texts, "next_token"),
)

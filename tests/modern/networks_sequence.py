"""Recurrences and adapters: an LSTM, scans with decaying state as RWKV's and Mamba's, low-rank adapters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.modern.network import ModernNetwork
from tests.modern.networks_language import VOCABULARY, WIDTH, chains, plain_texts

CLASSES = 3


def signals(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Noisy oscillations of three frequencies and any phase, two channels."""
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    phase = 6.3 * torch.rand(count, 1, generator=generator)
    turned = (0.4 + 0.5 * labels[:, None]) * torch.arange(10) + phase
    x = torch.stack([turned.sin(), turned.cos()], -1)
    return x + 0.6 * torch.randn(x.shape, generator=generator), labels


def marked(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Sequences, and whether the first token comes back."""
    tokens = chains(generator, count)
    return tokens, (tokens[:, 1:] == tokens[:, :1]).any(1).long()


class LSTMClassifier(nn.Module):
    """Two layers of torch's LSTM; the last state is classified."""

    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(2, width, num_layers=2, batch_first=True), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.lstm(x)
        return self.fc(out[:, -1, :])


class TimeMix(nn.Module):
    """RWKV's weighted mean over the past, token by token, with a decay for every channel."""

    def __init__(self) -> None:
        super().__init__()
        self.time_decay = nn.Parameter(torch.linspace(-2.0, 1.0, WIDTH))
        self.time_first = nn.Parameter(torch.zeros(WIDTH))
        self.time_mix_k, self.time_mix_v, self.time_mix_r = (
            nn.Parameter(torch.full((1, 1, WIDTH), 0.5)) for _ in "kvr"
        )
        self.key, self.value, self.receptance = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in "kvr")
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        k = self.key(x * self.time_mix_k + before * (1 - self.time_mix_k))
        v = self.value(x * self.time_mix_v + before * (1 - self.time_mix_v))
        r = torch.sigmoid(self.receptance(x * self.time_mix_r + before * (1 - self.time_mix_r)))
        decay = -torch.exp(self.time_decay)
        a, b, top = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0]), torch.full_like(k[:, 0], -1e38)
        found = []
        for t in range(x.shape[1]):
            now = torch.maximum(top, self.time_first + k[:, t])
            e1, e2 = torch.exp(top - now), torch.exp(self.time_first + k[:, t] - now)
            found.append((e1 * a + e2 * v[:, t]) / (e1 * b + e2))
            following = torch.maximum(top + decay, k[:, t])
            e1, e2 = torch.exp(top + decay - following), torch.exp(k[:, t] - following)
            a, b, top = e1 * a + e2 * v[:, t], e1 * b + e2, following
        return self.output(r * torch.stack(found, dim=1))


class RWKV(nn.Module):
    """Time mixing, then channel mixing by a squared ReLU and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.ln0, self.ln1 = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.att, self.ln2, self.ln_out = TimeMix(), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.key, self.value = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.receptance, self.head = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.ln0(self.emb(tokens))
        x = x + self.att(self.ln1(x))
        y = self.ln2(x)
        x = x + torch.sigmoid(self.receptance(y)) * self.value(torch.square(torch.relu(self.key(y))))
        return self.head(self.ln_out(x))


class MambaBlock(nn.Module):
    """A selective state space: depthwise causal convolution, step sizes by softplus, a scan, a gate."""

    def __init__(self, width: int = 6, inner: int = 8, state: int = 3) -> None:
        super().__init__()
        self.inner, self.state = inner, state
        self.norm, self.in_proj = nn.LayerNorm(width), nn.Linear(width, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, 3, padding=2, groups=inner)
        self.x_proj, self.dt_proj = nn.Linear(inner, 2 + 2 * state, bias=False), nn.Linear(2, inner)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, state + 1)).repeat(inner, 1))
        self.D, self.out_proj = nn.Parameter(torch.ones(inner)), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        u, gate = self.in_proj(self.norm(x)).chunk(2, dim=-1)
        u = F.silu(self.conv1d(u.transpose(1, 2))[..., :length].transpose(1, 2))
        delta, b, c = self.x_proj(u).split([2, self.state, self.state], dim=-1)
        delta = F.softplus(self.dt_proj(delta))
        decay = torch.exp(torch.einsum("bld,dn->bldn", delta, -torch.exp(self.A_log)))
        pushed = torch.einsum("bld,bln,bld->bldn", delta, b, u)
        h, found = torch.zeros_like(pushed[:, 0]), []
        for t in range(length):
            h = decay[:, t] * h + pushed[:, t]
            found.append(torch.einsum("bdn,bn->bd", h, c[:, t]))
        return x + self.out_proj((torch.stack(found, dim=1) + u * self.D) * F.silu(gate))


class Mamba(nn.Module):
    """Two selective blocks over a signal, their mean classified."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.embed, self.layers = nn.Linear(2, width), nn.Sequential(MambaBlock(width), MambaBlock(width))
        self.norm_f, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm_f(self.layers(self.embed(x))).mean(1))


class LoRALinear(nn.Module):
    """A frozen linear map with a trained one of low rank beside it."""

    def __init__(self, base: nn.Linear, rank: int = 2, alpha: float = 4.0) -> None:
        super().__init__()
        self.base_layer, self.scaling = base, alpha / rank
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.scaling * self.lora_B(self.lora_A(x))


class AdaptedEncoder(nn.Module):
    """torch's encoder layer by its parts, frozen, with adapters on its maps and a trained head."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(8, width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.requires_grad_(False)
        self.q, self.v = LoRALinear(self.q), LoRALinear(self.v)
        self.up, self.down = LoRALinear(self.up), LoRALinear(self.down)
        self.score = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        y = self.norm_1(x)
        q, k, v = (f(y).unflatten(-1, (2, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norm_2(x))))
        return self.score(x.mean(1))


SEQUENCE = (
    ModernNetwork("lstm", LSTMClassifier, signals, rate=2e-2),
    ModernNetwork("rwkv", RWKV, plain_texts, "next_token"),
    ModernNetwork("mamba", Mamba, signals),
    ModernNetwork("lora", AdaptedEncoder, marked, rate=2e-2),
)

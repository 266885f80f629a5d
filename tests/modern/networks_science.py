"""Networks with losses of their own: a VAE, regression with variances, physics, contrasts, graphs, two heads."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.modern.network import Batch, ModernNetwork


def prototypes_with_noise(generator: torch.Generator, count: int) -> Batch:
    """Images of 16 pixels on a curve of two coordinates, with the noise that the latent is moved by."""
    maps, places = torch.randn(2, 16, generator=generator), torch.randn(count, 2, generator=generator)
    pixels = torch.tanh(places @ maps) + 0.2 * torch.randn(count, 16, generator=generator)
    return (pixels, torch.randn(count, 2, generator=generator)), pixels


class VAE(nn.Module):
    """Outputs the reconstruction, and the latent's mean and log-variance beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 12), nn.SiLU())
        self.mu, self.logvar = nn.Linear(12, 2), nn.Linear(12, 2)
        self.decoder = nn.Sequential(nn.Linear(2, 12), nn.SiLU(), nn.Linear(12, 16))

    def forward(self, x: Tensor, eps: Tensor) -> Tensor:
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + eps * torch.exp(0.5 * logvar)
        return torch.cat([self.decoder(z), mu, logvar], dim=1)


def negative_elbo(outputs: Tensor, batch: Batch) -> Tensor:
    """Gaussian reconstruction at a deviation of 0.5, and the divergence from the prior."""
    reconstruction, mu, logvar = outputs.split([16, 2, 2], dim=1)
    x = batch[1].to(outputs.dtype)
    likelihood = 0.5 * ((reconstruction - x) / 0.5).pow(2).sum(1)
    return likelihood - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1)


def heteroscedastic(generator: torch.Generator, count: int) -> Batch:
    """A curve whose noise grows to one side."""
    x = 4 * torch.rand(count, 2, generator=generator) - 2
    spread = 0.1 + 0.3 * torch.sigmoid(2 * x[:, :1])
    y = torch.sin(2 * x[:, :1]) * x[:, 1:] + spread * torch.randn(count, 1, generator=generator)
    return x, y


class MeanAndVariance(nn.Module):
    """A body by SiLU, a head for the mean and one for the logarithm of the variance."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 20), nn.SiLU(), nn.Linear(20, 20), nn.SiLU())
        self.mean, self.log_variance = nn.Linear(20, 1), nn.Linear(20, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return torch.cat([self.mean(h), self.log_variance(h)], dim=-1)


def gaussian_nll(outputs: Tensor, batch: Batch) -> Tensor:
    mean, variance = outputs[:, 0], outputs[:, 1].exp()
    target = batch[1][:, 0].to(outputs.dtype)
    return F.gaussian_nll_loss(mean, target, variance, full=True, reduction="none")


def collocation(generator: torch.Generator, count: int) -> Batch:
    """Points (x, t) of the heat equation, and the residuals and misfits that are wanted: none."""
    return torch.rand(count, 2, generator=generator), torch.zeros(count, 3)


class HeatEquation(nn.Module):
    """u_t = 0.1 u_xx with u = sin(πx) at the start: a tanh network differentiated in its own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))

    def forward(self, points: Tensor) -> Tensor:
        with torch.enable_grad():
            x, t = points[:, :1].detach().clone().requires_grad_(), points[:, 1:].detach().clone().requires_grad_()
            u = self.net(torch.cat([x, t], dim=1))
            u_t = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
            u_x = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
            u_xx = torch.autograd.grad(u_x.sum(), x, create_graph=True)[0]
        start = self.net(torch.cat([x, torch.zeros_like(t)], dim=1)) - torch.sin(math.pi * x)
        edge = self.net(torch.cat([torch.round(x), t], dim=1))
        return torch.cat([u_t - 0.1 * u_xx, start, edge], dim=1)


def pairs(generator: torch.Generator, count: int) -> Batch:
    """Two views of one thing, and the second view of another."""
    things, others = torch.randn(count, 4, generator=generator), torch.randn(count, 4, generator=generator)
    left, right = torch.randn(4, 10, generator=generator), torch.randn(4, 12, generator=generator)
    views = [torch.tanh(things @ left), torch.tanh(things @ right), torch.tanh(others @ right)]
    return tuple(view + 0.3 * torch.randn(view.shape, generator=generator) for view in views), torch.zeros(count).long()


class TwoTowers(nn.Module):
    """Unit vectors of both views; outputs the similarities to the partner and to the stranger at a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Linear(16, 6))
        self.text = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 6))
        self.logit_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, image: Tensor, text: Tensor, stranger: Tensor) -> Tensor:
        a = F.normalize(self.image(image), dim=-1)
        partner, other = F.normalize(self.text(text), dim=-1), F.normalize(self.text(stranger), dim=-1)
        return self.logit_scale.exp() * torch.stack([(a * partner).sum(-1), (a * other).sum(-1)], dim=1)


def pair_logistic(outputs: Tensor, batch: Batch) -> Tensor:
    return -F.logsigmoid(outputs[:, 0]) - F.logsigmoid(-outputs[:, 1])


def graphs(generator: torch.Generator, count: int) -> Batch:
    """Random graphs of six nodes; the class says whether the marked nodes have more edges than the others."""
    upper = (torch.rand(count, 6, 6, generator=generator) < 0.45).float().triu(1)
    adjacency = upper + upper.transpose(1, 2)
    marks = (torch.arange(6) < 3).float().expand(count, 6)
    features = torch.cat([marks[:, :, None], 0.5 * torch.randn(count, 6, 3, generator=generator)], -1)
    degrees = adjacency.sum(2)
    labels = ((degrees * marks).sum(1) > (degrees * (1 - marks)).sum(1)).long()
    return (features, adjacency), labels


class GraphConvolution(nn.Module):
    """D^-1/2 (A + 1) D^-1/2 X W, as Kipf and Welling have it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        adjacency = adjacency + torch.eye(adjacency.shape[1], dtype=x.dtype, device=x.device)
        scale = adjacency.sum(-1).rsqrt()
        adjacency = scale.unsqueeze(-1) * adjacency.to(x.dtype) * scale.unsqueeze(-2)
        return torch.bmm(adjacency, torch.matmul(x, self.weight)) + self.bias


class GraphAttention(nn.Module):
    """Attention along edges by a leaky ReLU of two scores, as Veličković et al. have it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.lin = nn.Linear(inputs, outputs, bias=False)
        self.att_src, self.att_dst = nn.Linear(outputs, 1, bias=False), nn.Linear(outputs, 1, bias=False)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = self.lin(x)
        scores = F.leaky_relu(self.att_src(h).transpose(1, 2) + self.att_dst(h), 0.2)
        edges = adjacency + torch.eye(adjacency.shape[1], dtype=x.dtype, device=x.device)
        return torch.bmm(F.softmax(scores.masked_fill(edges == 0, float("-inf")), dim=-1), h)


class GraphNetwork(nn.Module):
    """A convolution, attention along edges, the sum over nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.attention = GraphConvolution(4, 16), GraphAttention(16, 16)
        self.out = nn.Sequential(nn.Linear(16, 12), nn.ELU(), nn.Linear(12, 2))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = F.elu(self.conv(x, adjacency))
        return self.out(F.elu(self.attention(x, adjacency)).sum(1) / 3)


def two_answers(generator: torch.Generator, count: int) -> Batch:
    """A class and two numbers from one input."""
    x = torch.randn(count, 6, generator=generator)
    maps = torch.randn(6, 5, generator=generator)
    hidden = x @ maps + 0.3 * torch.randn(count, 5, generator=generator)
    return {"x": x, "kind": hidden[:, :3].argmax(1), "amount": torch.sin(hidden[:, 3:])}


class TwoHeads(nn.Module):
    """One body with softplus and tanh, a head for the class and one for the amounts."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 18), nn.Softplus(), nn.Linear(18, 14), nn.Tanh())
        self.classify, self.regress = nn.Linear(14, 3), nn.Linear(14, 2)

    def forward(self, x: Tensor, kind: Tensor | None = None, amount: Tensor | None = None) -> Tensor:
        h = self.body(x)
        return torch.cat([self.classify(h), self.regress(h)], dim=1)


def both_losses(outputs: Tensor, batch: Batch) -> Tensor:
    amounts = F.huber_loss(outputs[:, 3:], batch["amount"].to(outputs.dtype), reduction="none").mean(1)
    return F.cross_entropy(outputs[:, :3], batch["kind"], reduction="none") + 2.0 * amounts


SCIENCE = (
    ModernNetwork("vae", VAE, prototypes_with_noise, negative_elbo),
    ModernNetwork("gaussian_nll", MeanAndVariance, heteroscedastic, gaussian_nll),
    ModernNetwork("pinn", HeatEquation, collocation, "mean_squared_error"),
    ModernNetwork("contrastive", TwoTowers, pairs, pair_logistic),
    ModernNetwork("graph", GraphNetwork, graphs),
    ModernNetwork("multi_output", TwoHeads, two_answers, both_losses),
)

"""Image networks: attention, depthwise convolutions, token mixing, windows, squeeze-and-excitation, a U-Net."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.modern.network import ModernNetwork

SIDE, CLASSES = 8, 4


def images(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Noisy prototypes, one a class, at changing brightness."""
    prototypes = torch.randn(CLASSES, 1, SIDE, SIDE, generator=generator)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    brightness = 0.5 + torch.rand(count, 1, 1, 1, generator=generator)
    noise = torch.randn(count, 1, SIDE, SIDE, generator=generator)
    return brightness * prototypes[labels] + 1.5 * noise, labels


def segments(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """A bright rectangle on noise; which pixels belong to it, with an unlabelled rim of -100 around the image."""
    corners = torch.randint(1, 4, (count, 2), generator=generator)
    places = torch.arange(SIDE)
    rows = (places >= corners[:, :1]) & (places < corners[:, :1] + 4)
    columns = (places >= corners[:, 1:]) & (places < corners[:, 1:] + 4)
    inside = (rows[:, :, None] & columns[:, None, :]).long()
    pixels = inside[:, None] + 0.7 * torch.randn(count, 1, SIDE, SIDE, generator=generator)
    labels = inside.clone()
    labels[:, 0], labels[:, :, -1] = -100, -100
    labels[torch.rand(labels.shape, generator=generator) < 0.05] = -100
    return pixels, labels


class EncoderBlock(nn.Module):
    """Pre-norm attention by torch's own module and a GELU perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        y, _ = self.attention(y, y, y, need_weights=False)
        x = x + y
        return x + self.mlp(self.ln_2(x))


class VisionTransformer(nn.Module):
    """Patches by convolution, a class token, learned positions."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(1, width, 4, stride=4)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embedding = nn.Parameter(torch.empty(1, 5, width).normal_(std=0.02))
        self.layers = nn.Sequential(EncoderBlock(width, 2), EncoderBlock(width, 2))
        self.ln, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[0]
        x = self.conv_proj(x).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(n, -1, -1), x], dim=1) + self.pos_embedding
        return self.head(self.ln(self.layers(x))[:, 0])


class LayerNorm2d(nn.LayerNorm):
    """Over channels, which are carried to the end and back."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, channels-last perceptron, layer scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1, self.act, self.pwconv2 = nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)
        self.gamma = nn.Parameter(0.5 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.dwconv(x).permute(0, 2, 3, 1)
        x = self.gamma * self.pwconv2(self.act(self.pwconv1(self.norm(x))))
        return shortcut + x.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """A stem, two stages with downsampling between, a global mean."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 6, 2, stride=2), LayerNorm2d(6, eps=1e-6))
        self.down = nn.Sequential(LayerNorm2d(6, eps=1e-6), nn.Conv2d(6, 8, 2, stride=2))
        self.stage_1, self.stage_2 = ConvNeXtBlock(6), ConvNeXtBlock(8)
        self.norm, self.head = nn.LayerNorm(8, eps=1e-6), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage_2(self.down(self.stage_1(self.stem(x))))
        return self.head(self.norm(x.mean([-2, -1])))


class MixerBlock(nn.Module):
    """A perceptron across tokens and one across channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix_tokens = nn.Sequential(nn.Linear(tokens, 6), nn.GELU(), nn.Linear(6, tokens))
        self.mix_channels = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mix_channels(self.norm2(x))


class Mixer(nn.Module):
    """Patches, two mixing blocks, a mean over tokens."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 4, stride=4)
        self.blocks = nn.Sequential(MixerBlock(4, width), MixerBlock(4, width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(dim=1))


class WindowAttention(nn.Module):
    """Attention written out, within windows of 2 by 2 tokens, with a table of relative position biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.relative_position_bias_table = nn.Parameter(0.02 * torch.randn(9, heads))
        places = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")).flatten(1)
        apart = places[:, :, None] - places[:, None, :] + 1
        self.register_buffer("relative_position_index", (3 * apart[0] + apart[1]).flatten())

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        windows, n, width = x.shape
        qkv = self.qkv(x).reshape(windows, n, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        scores = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.relative_position_index].view(n, n, -1)
        scores = scores + bias.permute(2, 0, 1).unsqueeze(0)
        if mask is not None:
            kinds = mask.shape[0]
            scores = scores.view(windows // kinds, kinds, self.heads, n, n) + mask[None, :, None]
            scores = scores.view(-1, self.heads, n, n)
        x = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(windows, n, width)
        return self.proj(x)


class SwinBlock(nn.Module):
    """Attention in windows, rolled by one token or not, and a perceptron."""

    def __init__(self, width: int, shift: int) -> None:
        super().__init__()
        self.shift = shift
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(width), WindowAttention(width, 2), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        region = torch.zeros(1, 4, 4, 1)
        region[:, -2:-1], region[:, -1:] = 1, 2
        region = 3 * region + region.transpose(1, 2)
        apart = self._windows(region).squeeze(-1)
        apart = apart[:, None, :] - apart[:, :, None]
        self.register_buffer("mask", apart.ne(0) * -100.0 if shift else None)

    @staticmethod
    def _windows(x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        return x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        y = self.norm1(x)
        if self.shift:
            y = torch.roll(y, shifts=(-self.shift, -self.shift), dims=(1, 2))
        y = self.attn(self._windows(y), self.mask)
        y = y.view(b, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        if self.shift:
            y = torch.roll(y, shifts=(self.shift, self.shift), dims=(1, 2))
        x = x + y
        return x + self.mlp(self.norm2(x))


class Swin(nn.Module):
    """Plain and shifted windows, then patches merged."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(1, width, 2, stride=2)
        self.blocks = nn.Sequential(SwinBlock(width, 0), SwinBlock(width, 1))
        self.merge_norm, self.reduction = nn.LayerNorm(4 * width), nn.Linear(4 * width, 8, bias=False)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.patch_embed(x).permute(0, 2, 3, 1))
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        x = self.reduction(self.merge_norm(x))
        return self.head(self.norm(x).flatten(1, 2).mean(1))


class SqueezeExcitation(nn.Module):
    """Channels weighted by what all of the image says."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(width, squeezed, 1), nn.Conv2d(squeezed, width, 1)
        self.activation, self.scale_activation = nn.SiLU(inplace=True), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x))))) * x


def conv_norm_act(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.SiLU(inplace=True))


class MBConv(nn.Module):
    """Widen, convolve by depth, squeeze and excite, narrow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 3 * width
        self.block = nn.Sequential(
            conv_norm_act(width, wide, 1),
            conv_norm_act(wide, wide, 3, groups=wide),
            SqueezeExcitation(wide, 3),
            nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class EfficientNet(nn.Module):
    """A stem, two inverted bottlenecks, a head of one by one convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_norm_act(1, 5, 3, stride=2), MBConv(5), MBConv(5), conv_norm_act(5, 12, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.0, inplace=True), nn.Linear(12, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.GroupNorm(2, outputs),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """Down, up by a transposed convolution, and the skip between; a class for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.inc, self.down = double_conv(1, 4), double_conv(4, 4)
        self.pool, self.up = nn.MaxPool2d(2), nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.out, self.outc = double_conv(8, 4), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.inc(x)
        x = self.up(self.down(self.pool(skip)))
        return self.outc(self.out(torch.cat([skip, x], dim=1)))


class GeluLeNet(nn.Module):
    """LeNet with GELU for ReLU, average pooling and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 3)
        self.fc1, self.fc2 = nn.Linear(6, 24), nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.gelu(self.conv1(x)), 2)
        x = F.max_pool2d(F.gelu(self.conv2(x)), 2)
        return self.fc2(F.gelu(self.fc1(torch.flatten(x, 1))))


VISION = (
    ModernNetwork("vit", VisionTransformer, images),
    ModernNetwork("convnext", ConvNeXt, images),
    ModernNetwork("mixer", Mixer, images),
    ModernNetwork("swin", Swin, images),
    ModernNetwork("efficientnet", EfficientNet, images),
    ModernNetwork("unet", UNet, segments),
    ModernNetwork("lenet_gelu", GeluLeNet, images),
)

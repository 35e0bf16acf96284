"""The models of the speed table, with batches to feed them. They need torch and nothing else.

``build(name)`` makes a model and the shape and number of classes of its examples; ``small=True`` makes a version with
the same structure that a per-example loop can afford.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model, the shape of one example, and the number of classes."""

    model: nn.Module
    shape: tuple[int, ...]
    classes: int

    def batch(self, rows: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(rows)
        inputs = torch.randn(rows, *self.shape, generator=generator, dtype=dtype)
        return inputs.to(device), torch.randint(0, self.classes, (rows,), generator=generator).to(device)


def cross_entropy(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """One value per example."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def mlp(small: bool) -> Subject:
    """30-128-64-2: a table of thirty columns."""
    layers = [nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 2)]
    return Subject(nn.Sequential(*layers), (30,), 2)


class Cnn(nn.Module):
    """The MNIST network of Opacus' examples."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        self.fc1 = nn.Linear(32 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2, 1)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2, 1)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Gru(nn.Module):
    """A GRU written as two Linear layers used once per step: 16 features, 64 units, 10 classes.

    ``linear`` is for Opacus' ghost clipping, which wants a class of its own for layers that are used repeatedly.
    """

    def __init__(
        self, features: int = 16, units: int = 64, classes: int = 10, linear: type[nn.Linear] = nn.Linear
    ) -> None:
        super().__init__()
        self.units = units
        self.input = linear(features, 3 * units)
        self.hidden = linear(units, 3 * units)
        self.head = nn.Linear(units, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), self.units)
        for step in range(x.shape[1]):
            ir, iz, new = self.input(x[:, step]).chunk(3, 1)
            hr, hz, hn = self.hidden(h).chunk(3, 1)
            fresh = torch.tanh(new + torch.sigmoid(ir + hr) * hn)
            h = fresh + torch.sigmoid(iz + hz) * (h - fresh)
        return self.head(h)


class GraphBlock(nn.Module):
    """Graph convolution over joints, then convolution over time."""

    def __init__(self, inputs: int, outputs: int, joints: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(inputs, outputs, 1)
        self.time = nn.Conv2d(outputs, outputs, (3, 1), padding=(1, 0))
        self.norm = nn.GroupNorm(4, outputs)
        ring = torch.eye(joints) + torch.eye(joints).roll(1, 0) + torch.eye(joints).roll(-1, 0)
        self.register_buffer("edges", ring / 3)

    def forward(self, x: Tensor) -> Tensor:  # n, channels, frames, joints
        x = torch.einsum("nctv,vw->nctw", self.mix(x), self.edges)
        return F.relu(self.norm(self.time(F.relu(x))))


class StGcn(nn.Module):
    """Skeletons: 33 joints × 4 channels × 32 frames, two blocks of 16 and 32 channels, GroupNorm."""

    def __init__(self, joints: int = 33, classes: int = 5) -> None:
        super().__init__()
        self.one = GraphBlock(4, 16, joints)
        self.two = GraphBlock(16, 32, joints)
        self.head = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.one(x)).mean((2, 3)))


class Offset(nn.Module):
    """A learned offset, such as the positions of a transformer."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.randn(*shape) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.offset


class Attention(nn.Module):
    """Self-attention with Linear projections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class VitBlock(nn.Module):
    """Attention and a two-layer network, each after a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Vit(nn.Module):
    """A small vision transformer: patches of 4 × 4, learned positions, mean over tokens."""

    def __init__(self, side: int = 32, width: int = 384, depth: int = 6, heads: int = 6, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.positions = Offset((side // 4) ** 2, width)
        self.blocks = nn.Sequential(*[VitBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.positions(self.patches(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(self.blocks(tokens)).mean(1))


class ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions around a shortcut, GroupNorm."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(groups, outputs), nn.GroupNorm(groups, outputs)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


def resnet18(width: int = 64, groups: int = 32, classes: int = 10) -> nn.Module:
    """ResNet-18 for images of 32 × 32, with GroupNorm."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.GroupNorm(groups, width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        outputs = width << stage
        layers += [ResidualBlock(inputs, outputs, 2 if stage else 1, groups)]
        layers += [ResidualBlock(outputs, outputs, 1, groups)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def _vit(small: bool) -> Subject:
    return Subject(Vit(16, 16, 2, 2) if small else Vit(), (3, 16, 16) if small else (3, 32, 32), 10)


def _resnet(small: bool) -> Subject:
    return Subject(resnet18(4, 2) if small else resnet18(), (3, 16, 16) if small else (3, 32, 32), 10)


MODELS: dict[str, Callable[[bool], Subject]] = {
    "MLP": mlp,
    "CNN": lambda small: Subject(Cnn(), (1, 28, 28), 10),
    "GRU": lambda small: Subject(Gru(4, 5) if small else Gru(), (6, 4) if small else (32, 16), 10),
    "ST-GCN": lambda small: Subject(StGcn(9) if small else StGcn(), (4, 6, 9) if small else (4, 32, 33), 5),
    "ViT": _vit,
    "ResNet-18-GN": _resnet,
}


def build(name: str, *, small: bool = False, seed: int = 0) -> Subject:
    """The model called ``name`` with reproducible weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](small)

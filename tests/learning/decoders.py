"""Decoders of the speed table: a GPT and a Llama-like model, whole or with LoRA. They need torch and nothing else.

``GPT``: LayerNorm, GELU, a table of positions that is looked up once for all examples. ``Llama``: RMSNorm, rotary
positions, grouped-query attention, SwiGLU. A loss is the mean over one text's tokens of −ln p(next token).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

__all__ = ["DECODERS", "Text", "decoder", "next_token"]


@dataclasses.dataclass(frozen=True)
class Text:
    """A model, how long a text is, and how many tokens there are."""

    model: nn.Module
    length: int
    words: int

    def batch(self, rows: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """Tokens and the ones that follow them; ``dtype`` is for models that read numbers."""
        generator = torch.Generator().manual_seed(rows)
        tokens = torch.randint(0, self.words, (rows, self.length + 1), generator=generator)
        return tokens[:, :-1].to(device), tokens[:, 1:].to(device)


def next_token(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """One value per text."""
    scores = model(batch[0])
    each = F.cross_entropy(scores.flatten(0, 1), batch[1].flatten(), reduction="none")
    return each.view(batch[1].shape).mean(1)


class Lora(nn.Module):
    """A frozen layer with a product of rank r beside it (Hu et al. 2021)."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.normal_(self.up.weight, std=0.02)  # zeros would hide half of the gradients

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


class GptBlock(nn.Module):
    """Attention and a network of four times the width, each after a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (
            part(y).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Gpt(nn.Module):
    """Tokens and positions, blocks, a layer of its own at the end."""

    def __init__(self, words: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([GptBlock(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LlamaBlock(nn.Module):
    """Grouped-query attention with rotary positions, and SwiGLU, each after an RMSNorm."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, size, inner = heads, groups, width // heads, 8 * width // 3 // 8 * 8
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(width, groups * size, bias=False) for _ in range(2))
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        y = self.norm1(x)
        q = rotate(self.query(y).unflatten(2, (self.heads, -1)).transpose(1, 2), turn)
        k = rotate(self.key(y).unflatten(2, (self.groups, -1)).transpose(1, 2), turn)
        v = self.value(y).unflatten(2, (self.groups, -1)).transpose(1, 2)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions (Su et al. 2021)."""
    cos, sin = turn
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1).to(x.dtype)


class Llama(nn.Module):
    """Tokens, blocks, a layer of its own at the end."""

    turn: tuple[Tensor, Tensor]

    def __init__(self, words: int, length: int, width: int, depth: int, heads: int, groups: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.blocks = nn.ModuleList([LlamaBlock(width, heads, groups) for _ in range(depth)])
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, words, bias=False)
        half = width // heads // 2
        angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(half) / half)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        x, turn = self.tokens(tokens), (self.cos, self.sin)
        for block in self.blocks:
            x = block(x, turn)
        return self.head(self.norm(x))


def with_lora(model: nn.Module, rank: int) -> nn.Module:
    """Adapters on queries and values; all else is frozen."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        if isinstance(module, GptBlock | LlamaBlock):
            module.query = Lora(module.query, rank)  # type: ignore[assignment]
            module.value = Lora(module.value, rank)  # type: ignore[assignment]
    return model


def _gpt(small: bool) -> Text:
    words, length, width, depth, heads = (23, 6, 16, 2, 2) if small else (256, 256, 384, 6, 6)
    return Text(Gpt(words, length, width, depth, heads), length, words)


def _llama(small: bool) -> Text:
    words, length, width, depth, heads, groups = (23, 6, 16, 2, 4, 2) if small else (32000, 256, 768, 12, 12, 4)
    return Text(Llama(words, length, width, depth, heads, groups), length, words)


def _adapted(make: Callable[[bool], Text], small: bool) -> Text:
    text = make(small)
    return dataclasses.replace(text, model=with_lora(text.model, 2 if small else 16))


DECODERS: dict[str, Callable[[bool], Text]] = {
    "GPT": _gpt,
    "Llama": _llama,
    "GPT, LoRA": lambda small: _adapted(_gpt, small),
    "Llama, LoRA": lambda small: _adapted(_llama, small),
}


def decoder(name: str, *, small: bool = False, seed: int = 0) -> Text:
    """The model called ``name`` with reproducible weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DECODERS[name](small)

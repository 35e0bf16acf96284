"""A small transformer over bytes, whose vocabulary is public because it is the same for every text in the world.

A tokenizer that was trained on protected texts tells of them; bytes are trained on nothing. There are 256 of them, and
one mark for what is no text (:data:`MARK`): the place before the first byte, and the padding behind the last one.

A document is one record of W windows of L bytes. Attention looks at bytes of the same window only, so W windows cost W
times as much as one, and all of them belong to the one loss of their document. Every layer has ``LayerNorm`` and sees
one record at a time.

With ``adapters`` only matrices of that rank are trained beside the frozen linear layers (LoRA: Hu et al. 2022).

>>> model = ByteTransformer(width=16, depth=1, heads=2, length=8, outputs=257)
>>> tuple(model(torch.stack([encode_text("What comes next?", 16)] * 5)).shape)
(5, 2, 8, 257)
>>> adapted = with_adapters(model, rank=2)
>>> sum(one.numel() for one in adapted.parameters() if one.requires_grad)
512
"""

from __future__ import annotations

from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["MARK", "VOCABULARY", "ByteTransformer", "LowRank", "encode_text", "with_adapters"]

MARK: Final = 256
VOCABULARY: Final = 257


def encode_text(text: str, most: int) -> Tensor:
    """The mark, then the first ``most`` bytes of ``text``, filled up with marks: ``most + 1`` numbers.

    >>> encode_text("née", 6).tolist()
    [256, 110, 195, 169, 101, 256, 256]
    """
    found = torch.full((most + 1,), MARK, dtype=torch.int16)
    content = text.encode("utf-8", errors="replace")[:most]
    found[1 : len(content) + 1] = torch.tensor(list(content), dtype=torch.int16)
    return found


@final
class LowRank(nn.Module):
    """A frozen linear layer plus the product of two small ones; as before until the second one moves."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, values: Tensor) -> Tensor:
        """The frozen layer's answer and the product's."""
        answer: Tensor = self.frozen(values) + self.up(self.down(values))
        return answer


@final
class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mixing = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.answered = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, values: Tensor) -> Tensor:
        asked = self.asked(self.before_attention(values))
        query, key, value = asked.unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-3, -2)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.answered(seen.transpose(-3, -2).flatten(-2))
        mixed: Tensor = values + self.narrow(functional.gelu(self.wide(self.before_mixing(values))))
        return mixed


@final
class ByteTransformer(nn.Module):
    """From records of :func:`encode_text`, (n, W L + 1), to ``outputs`` numbers a byte, or with ``whole`` a record.

    Numbers that are no bytes are taken for marks.
    """

    def __init__(self, *, width: int, depth: int, heads: int, length: int, outputs: int, whole: bool = False) -> None:
        super().__init__()
        self.whole, self.length = whole, length
        self.bytes, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        nn.init.normal_(self.bytes.weight, std=0.1)
        nn.init.normal_(self.places.weight, std=0.1)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """The scores. Guarantees: row i depends on document i alone."""
        tokens = tokens[:, :-1].reshape(len(tokens), -1, self.length).long()
        tokens = torch.where((tokens >= 0) & (tokens < MARK), tokens, MARK)
        places = torch.arange(tokens.shape[-1], device=tokens.device).expand(tokens.shape)
        values = self.norm(self.blocks(self.bytes(tokens) + self.places(places)))
        if self.whole:
            kept = (tokens != MARK).unsqueeze(-1).to(values.dtype)
            values = (values * kept).sum((1, 2)) / kept.sum((1, 2)).clamp(min=1)
        scores: Tensor = self.head(values)
        return scores


def with_adapters(model: ByteTransformer, rank: int) -> ByteTransformer:
    """The same model, frozen, with adapters of this rank at every linear layer of its blocks; in place."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name, layer in list(block.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(block, name, LowRank(layer, rank))
    if model.whole:  # a head of one's own classes has nothing to begin with
        model.head.requires_grad_(True)
    return model

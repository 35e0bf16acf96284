"""One matrix with several jobs: the table of an embedding that is the output layer too.

Clipping asks for the norm of the *sum* of what all uses contribute, so their norms cannot simply be added: with G₁ from
the lookups and G₂ from the output layer, ‖G₁ + G₂‖² = ‖G₁‖² + ‖G₂‖² + 2⟨G₁, G₂⟩. Both are sums over positions of a
vector over the table's rows times a vector of its width,

    lookup of token k:  e_k g ᵀ          output layer:  d h ᵀ          (d: gradient at the logits, h: what came in)

so all positions of all uses line up, and the ghost norm of :mod:`quietsum.learning.engines.layers` holds for the sum,
cross term included: Σ_st (u_s·u_t)(v_s·v_t). The product of e_k with e_l is whether the tokens are equal, and that with
d is its entry at k, so no vector as long as the vocabulary is made for a lookup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from quietsum.learning.engines.hardware import half
from quietsum.learning.engines.layers import (
    EmbeddingUse,
    InstanceUse,
    MatrixUse,
    OuterUse,
    SeveralUses,
    Use,
    balance_of,
    in_full,
    norms_from_products,
    per_example,
    plan_for,
    row_pieces,
)
from quietsum.learning.engines.shared.vocabulary import TiedVocabularyUse, VocabularyUse

__all__ = ["join_uses"]

Noted = tuple[tuple[int, ...], Use]


def join_uses(uses: Sequence[Noted], shared: set[int]) -> list[Noted]:
    """The same uses, with those of each parameter in ``shared`` made one, so that its norm is that of the sum."""
    kept: list[Noted] = []
    parts: dict[int, list[Use]] = {}
    for numbers, use in uses:
        if shared & set(numbers):
            for number, part in zip(numbers, _one_by_one(use, len(numbers)), strict=True):
                parts.setdefault(number, []).append(part)
        else:
            kept.append((numbers, use))
    for number, each in parts.items():
        if len(each) == 1:
            kept.append(((number,), each[0]))
        elif (heads := [use for use in each if isinstance(use, VocabularyUse)]) and len(heads) == 1:
            looked = [use for use in each if isinstance(use, EmbeddingUse)]
            whole = len(looked) == len(each) - 1
            kept.append(((number,), TiedVocabularyUse(looked, heads[0]) if whole else InstanceUse([_sum_uses(each)])))
        elif all(isinstance(use, EmbeddingUse | MatrixUse | OuterUse) for use in each):
            kept.append(((number,), TiedUse(each)))
        else:
            kept.append(((number,), InstanceUse([_sum_uses(each)])))
    return kept


def _one_by_one(use: Use, count: int) -> list[Use]:
    """A use of several parameters as uses of one."""
    if count == 1:
        return [use]
    if isinstance(use, OuterUse | MatrixUse | VocabularyUse):
        return list(use.apart())
    if isinstance(use, SeveralUses):
        return list(use.each)
    return [InstanceUse([part]) for part in use.instances()]


def _sum_uses(each: Sequence[Use]) -> Tensor:
    total = each[0].instances()[0]
    for use in each[1:]:
        total = total + use.instances()[0]
    return total


@final
class TiedUse:
    """Lookups in a table (v, d) and products with it, in one batch."""

    __slots__ = ("_each", "_kept")

    def __init__(self, each: Sequence[Use]) -> None:
        self._each = each
        self._kept: Tensor | None = None

    def norms(self, order: int) -> list[Tensor]:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        looked = [use.look_up() for use in self._each if isinstance(use, EmbeddingUse)]
        made = [use.pair() for use in self._each if isinstance(use, MatrixUse | OuterUse)]
        width = [g for _, g in looked] + [a for a, _ in made]
        rows, positions = len(width[0]), sum(part.shape[1] for part in width)
        high = made[0][1].shape[2] if made else positions  # lookups alone: each position has its own row at most
        like = made[0][1] if made else width[0]
        plan = plan_for(rows, positions, width[0].shape[2], high, max(4, width[0].element_size()), balance_of(like))
        if order != 2 or (made and plan == "keep"):
            self._kept = _sum_uses(self._each)
            return [per_example(self._kept, order)]
        starts = row_pieces(rows, 2 * positions * positions * width[0].element_size(), width[0].device.type)
        found = []
        for start in starts:
            cut = slice(start, start + starts.step)
            right = torch.cat([in_full(part[cut]) for part in width], 1)
            left = _over_the_table([tokens[cut] for tokens, _ in looked], [g[cut] for _, g in made], right)
            rights = torch.bmm(right, right.transpose(1, 2))
            rounded = any(half.is_half(g) for _, g in made)
            found.append(
                half.bound_ghost(left, rights, right.shape[2], high) if rounded else norms_from_products(left, rights)
            )
        return [torch.cat(found)]

    def instances(self) -> list[Tensor]:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        return [_sum_uses(self._each)]

    def drop(self, bad: Tensor) -> None:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        for use in self._each:
            use.drop(bad)
        if self._kept is not None:
            self._kept = self._kept.masked_fill(bad[:, None, None], 0)

    def weigh(self, factors: Sequence[Tensor]) -> list[Tensor]:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        if self._kept is not None:
            return InstanceUse([self._kept]).weigh(factors)
        total = self._each[0].weigh(factors)[0]
        for use in self._each[1:]:
            total = total + use.weigh(factors)[0]
        return [total]


def _over_the_table(looked: Sequence[Tensor], made: Sequence[Tensor], like: Tensor) -> Tensor:
    """u_s·u_t for all positions, where u is a token's unit vector or a gradient at the logits: (n, s, t)."""
    tokens = torch.cat(list(looked), 1) if looked else None
    logits = (made[0] if len(made) == 1 else torch.cat(list(made), 1)) if made else None
    if tokens is None:
        assert logits is not None
        return _gram(logits)
    same = (tokens[:, :, None] == tokens[:, None, :]).to(like.dtype)
    if logits is None:
        return same
    met = logits.gather(2, tokens[:, None, :].expand(-1, logits.shape[1], -1)).to(like.dtype)
    above = torch.cat([same, met.transpose(1, 2)], 2)
    below = torch.cat([met, _gram(logits).to(like.dtype)], 2)
    return torch.cat([above, below], 1)


def _gram(part: Tensor) -> Tensor:
    return half.pair_products(part) if half.is_half(part) else torch.bmm(part, part.transpose(1, 2))

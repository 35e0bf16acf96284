"""Norms and weighted gradients, layer by layer, from what came in and what came back.

A layer saw activations a and its output received gradients g. For a Linear layer, example i's weight gradient is
Σ_t g_t a_tᵀ over its positions t. Its norm can be had in three ways, and :func:`plan_for` takes the cheapest:

    outer    one position:       ‖g aᵀ‖ = ‖g‖ ‖a‖                                  Goodfellow 2015
    ghost    few positions:      ‖Σ_t g_t a_tᵀ‖² = Σ_ts (a_t·a_s)(g_t·g_s)          Li et al. 2022, section 4
    keep     few parameters:     build Σ_t g_t a_tᵀ for each example, and keep it for the weighted sum
    discard  neither:            the same in pieces, for the norm alone

A :class:`Use` is one parameter set in one batch. Once the factors c_i are known, the weighted gradient is one product
Σ_i c_i g_i a_iᵀ (Bu et al. 2023), or c times what was kept. Layers that were given the same input, as queries, keys and
values are, share its products: ‖(G₁, G₂)‖² = Σ_ts (a_t·a_s)(g¹_t·g¹_s + g²_t·g²_s) (:func:`norms_in_one`). A ghost norm
is a difference of large numbers when positions cancel; there it is raised by a bound of its rounding error, so that no
example slips under the clip.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, final

import torch
from torch import Tensor

from quietsum.learning.engines.hardware import half
from quietsum.learning.engines.hardware.erase import erase
from quietsum.learning.engines.hardware.room import Room
from quietsum.learning.engines.protocol import flat_rows

__all__ = [
    "EmbeddingUse",
    "Entries",
    "InstanceUse",
    "MatrixUse",
    "OuterUse",
    "SeveralUses",
    "SharedLookupUse",
    "Use",
    "affine_use",
    "balance_of",
    "in_full",
    "norms_in_one",
    "plan_for",
]

Entries: TypeAlias = Sequence[tuple[Tensor, Tensor]]
"""Per call of a layer: what came in, and the gradient at what went out."""

_KEEP_BYTES = 1 << 28
_PIECE_BYTES = {"cpu": 1 << 20, "cuda": 1 << 29}
_DOUBT = 1e3  # a ghost norm this many times above its error bound is taken as it is


class Use(Protocol):
    """The parameters of one layer in one batch. ``norms`` comes first, then perhaps ``drop``, then ``weigh``."""

    def norms(self, order: int) -> list[Tensor]:
        """For each trainable parameter, every example's norm: (n,)."""
        ...

    def instances(self) -> list[Tensor]:
        """For each trainable parameter, every example's gradient: (n, …)."""
        ...

    def drop(self, bad: Tensor) -> None:
        """Erase the marked examples, so that zero times NaN does not arise."""
        ...

    def weigh(self, factors: Sequence[Tensor]) -> list[Tensor]:
        """For each trainable parameter Σ_i factors_i · gradient_i."""
        ...


def plan_for(rows: int, positions: int, inputs: int, outputs: int, item: int, balance: float = 0.0) -> str:
    """Ghost, keep or discard, by arithmetic and memory traffic counted per example.

    ``balance`` is how many multiplications a card makes while it moves one byte; 0 for a processor, whose caches hold
    what is counted here.

    >>> plan_for(256, 32, 64, 192, 4), plan_for(256, 196, 64, 16, 4), plan_for(1024, 16, 4608, 512, 4)
    ('keep', 'keep', 'ghost')
    >>> [plan_for(512, 256, *sizes, 4, 45.0) for sizes in ((384, 384), (768, 768), (768, 16))]
    ['discard', 'ghost', 'keep']
    """
    size = inputs * outputs
    product = positions * size
    pairs, each = (24 * balance, 12 * balance) if balance else (8, 12)
    ghost = positions * positions * (inputs + outputs + pairs) + product
    keep = product * 1.25 + each * size
    if rows * size * item > _KEEP_BYTES:
        keep = 2 * product + (8 * balance if balance else 12) * size
        return "ghost" if ghost <= keep else "discard"
    return "ghost" if ghost < keep else "keep"


def balance_of(part: Tensor) -> float:
    """Multiplications for each byte moved, on the device of ``part`` and in its precision; 0 for a processor.

    From an H200's data sheet, less a fifth: 495 Tflop/s in TF32, 989 in bfloat16 and 67 in float32 at 4.8 TB/s. Only
    which way is cheapest hangs on it.
    """
    if not part.is_cuda:
        return 0.0
    if part.dtype is torch.float32:
        return 45.0 if torch.backends.cuda.matmul.allow_tf32 else 6.0
    return 80.0 if half.is_half(part) else 6.0


def in_full(part: Tensor) -> Tensor:
    """Half precision as float32."""
    return part.float() if part.dtype in (torch.float16, torch.bfloat16) else part


def row_pieces(rows: int, bytes_each: int, device: str) -> range:
    """Starts of pieces that fit the cache of a processor or a share of a card's memory."""
    step = max(1, _PIECE_BYTES.get(device, 1 << 22) // max(1, bytes_each))
    return range(0, rows, step)


def ghost_norms(a: Tensor, *gs: Tensor) -> Tensor:
    """‖Σ_t g_t a_tᵀ‖ for each example, from (n, t, in) and (n, t, out), without forming the products.

    Several g are one whose features are lined up. In bfloat16 it is a bound that covers rounding.
    """
    rows, positions = a.shape[:2]
    starts = row_pieces(rows, 2 * positions * positions * max(4, a.element_size()), a.device.type)
    found = [_ghost_piece(*(part[s : s + starts.step] for part in (a, *gs))) for s in starts]
    return found[0] if len(found) == 1 else torch.cat(found)


def _ghost_piece(a: Tensor, *gs: Tensor) -> Tensor:
    if half.is_half(a):
        right = half.pair_products(gs[0])
        for g in gs[1:]:
            right += half.pair_products(g)
        return half.bound_ghost(half.pair_products(a), right, a.shape[2], sum(g.shape[2] for g in gs) + len(gs))
    right = torch.bmm(gs[0], gs[0].transpose(1, 2))
    for g in gs[1:]:
        right.baddbmm_(g, g.transpose(1, 2))
    return norms_from_products(torch.bmm(a, a.transpose(1, 2)), right)


def norms_from_products(left: Tensor, right: Tensor) -> Tensor:
    """‖Σ_t g_t a_tᵀ‖ from the products a_t·a_s and g_t·g_s, (n, t, t) each; ``left`` is written to."""
    lengths = _lengths(left).clamp_(min=floor(left)).mul_(_lengths(right).clamp_(min=floor(right))).sum(1)
    squared = left.mul_(right).sum((1, 2))
    doubt = lengths.square_() * _unit(left)
    return torch.where(squared > _DOUBT * doubt, squared, squared.clamp(min=0) + doubt).sqrt_()


def _lengths(gram: Tensor) -> Tensor:
    """‖v_t‖ of each position, from the products v_t·v_s."""
    return gram.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt_()


def floor(part: Tensor) -> float:
    """The least that a norm is taken for: squares of tiny numbers vanish, and a product of norms would with them.

    Below it squares lose what they sum; taking a norm for longer than it is clips an example more, never less.
    """
    return 1e-13 if part.dtype == torch.float32 else 1e-140


def _unit(a: Tensor) -> float:
    """The relative error of one product of sums, with the reduced precision that a card may be set to use."""
    if a.is_cuda and a.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32:
        return 2.0**-10
    return 4 * torch.finfo(a.dtype).eps


def _weigh(factors: Tensor, kept: Tensor) -> Tensor:
    return (factors @ flat_rows(kept)).view(kept.shape[1:])


def per_example(part: Tensor, order: int) -> Tensor:
    """The norm of each row of (n, …)."""
    found: Tensor = torch.linalg.vector_norm(flat_rows(part), ord=order, dim=1)
    return found


@final
class OuterUse:
    """A Linear layer with one position per example: (n, in) and (n, out)."""

    __slots__ = ("_a", "_bias", "_g", "_weight", "owned")

    def __init__(self, a: Tensor, g: Tensor, *, weight: bool, bias: bool) -> None:
        self._a, self._g, self._weight, self._bias = a, g, weight, bias
        self.owned = False  # whether g may be written to when it is weighed, once

    def norms(self, order: int) -> list[Tensor]:
        """See :class:`Use`."""
        back = torch.linalg.vector_norm(self._g, order, 1).clamp_(min=floor(self._g))
        if not self._weight:
            return [back]
        weight = torch.linalg.vector_norm(self._a, order, 1).clamp_(min=floor(self._a)).mul_(back)
        return [weight, back] if self._bias else [weight]

    def pair(self) -> tuple[Tensor, Tensor]:
        """(n, 1, in) and (n, 1, out)."""
        return self._a[:, None], self._g[:, None]

    def apart(self) -> tuple[Use, Use]:
        """Weight and bias on their own."""
        return OuterUse(self._a, self._g, weight=True, bias=False), InstanceUse([self._g])

    def instances(self) -> list[Tensor]:
        """See :class:`Use`."""
        found = [self._g[:, :, None] * self._a[:, None, :]] if self._weight else []
        return [*found, self._g] if self._bias else found

    def drop(self, bad: Tensor) -> None:
        """See :class:`Use`."""
        self._a, self._g = erase(self._a, bad), erase(self._g, bad)

    def weigh(self, factors: Sequence[Tensor]) -> list[Tensor]:
        """See :class:`Use`."""
        a, g, factor = self._a, self._g, factors[0]
        if not self._weight:
            return [factor @ g]
        column = factor.unsqueeze(1)
        if self.owned and self._bias and factors[1] is factor:
            g.mul_(column)
            return [g.t().mm(a), g.sum(0)]
        if self._bias and (factors[1] is factor or g.shape[1] <= a.shape[1]):
            g = g * column
            return [g.t().mm(a), g.sum(0) if factors[1] is factor else factors[1] @ self._g]
        found = [(g * column).t().mm(a) if g.shape[1] <= a.shape[1] else g.t().mm(a * column)]
        return [*found, factors[1] @ g] if self._bias else found


@final
class MatrixUse:
    """A Linear layer with several positions, or used several times: (n, t, in) and (n, t, out), any strides.

    Both in bfloat16 are multiplied as they are, and the norm is a bound that covers the rounding
    (:mod:`quietsum.learning.engines.hardware.half`).
    """

    __slots__ = ("_a", "_g", "_kept", "_own", "_room", "_scaled", "_summed", "_weight")

    def __init__(self, a: Tensor, g: Tensor, *, weight: bool, bias: bool, room: Room, own: bool = False) -> None:
        """``own``: a belongs to the step alone, as every g does."""
        self._a, self._g, self._weight, self._room, self._own = a, g, weight, room, own
        self._scaled: _Scaled | None = None
        self._kept: Tensor | None = None
        self._summed = (g.sum(1, dtype=torch.float32) if half.is_half(g) else g.sum(1)) if bias else None

    def norms(self, order: int) -> list[Tensor]:
        """See :class:`Use`."""
        found = [self._weight_norms(order)] if self._weight else []
        return [*found, *self.bias_norms(order)]

    def bias_norms(self, order: int) -> list[Tensor]:
        """That of the bias, if it is trained."""
        return [] if self._summed is None else [per_example(self._summed, order)]

    def plan(self, outputs: int | None = None) -> str:
        """How the weight's norm is had; with ``outputs`` features at the output instead of its own."""
        a, wide = self._a, self._g.shape[2] if outputs is None else outputs
        return plan_for(len(a), a.shape[1], a.shape[2], wide, max(4, a.element_size()), balance_of(a))

    @property
    def given(self) -> tuple[Any, ...] | None:
        """The input in memory, alike for layers that were given the same; None if the weight is not trained."""
        a = self._a
        return (a.data_ptr(), a.shape, a.stride(), a.dtype) if self._weight else None

    def _weight_norms(self, order: int) -> Tensor:
        a, g = self._a, self._g
        plan = self.plan()
        if plan == "ghost" and order == 2:
            return ghost_norms(a, g)
        if plan == "discard":
            starts = row_pieces(len(a), a.shape[2] * g.shape[2] * max(4, a.element_size()), a.device.type)
            each = [_outer(a[s : s + starts.step], g[s : s + starts.step]) for s in starts]
            norms = torch.cat([per_example(part, order) for part in each])
            if not half.is_half(a):
                return norms
            return half.bound_formed(norms, half.lengths_of(a, g, order), a.shape[1], a.shape[2] + g.shape[2])
        if half.is_half(a):
            self._kept = _outer(a, g)
            return per_example(self._kept, order)
        self._kept = self._room.take("kept", (len(a), g.shape[2], a.shape[2]), a)
        torch.bmm(g.transpose(1, 2), a, out=self._kept)
        return per_example(self._kept, order)

    def pair(self) -> tuple[Tensor, Tensor]:
        """(n, t, in) and (n, t, out)."""
        return self._a, self._g

    def apart(self) -> tuple[Use, Use]:
        """Weight and bias on their own."""
        assert self._summed is not None
        weight = MatrixUse(self._a, self._g, weight=True, bias=False, room=self._room, own=self._own)
        return weight, InstanceUse([self._summed])

    def instances(self) -> list[Tensor]:
        """See :class:`Use`."""
        found = [_outer(self._a, self._g)] if self._weight else []
        return [*found, self._summed] if self._summed is not None else found

    def drop(self, bad: Tensor) -> None:
        """See :class:`Use`."""
        if self._kept is not None:
            self._kept = erase(self._kept, bad, own=True)
        else:
            self._g = erase(self._g, bad, own=True)
            if self._scaled is None or not self._scaled.made:
                self._a = erase(self._a, bad, own=self._own)
        self._summed = None if self._summed is None else erase(self._summed, bad, own=True)

    def share(self, scaled: _Scaled) -> None:
        """Take the weighted input from others that were given the same."""
        self._scaled = scaled

    def weigh(self, factors: Sequence[Tensor]) -> list[Tensor]:
        """See :class:`Use`."""
        found = []
        if self._weight:
            found.append(self._weigh_weight(factors[0]) if self._kept is None else _weigh(factors[0], self._kept))
        return [*found, factors[-1] @ self._summed] if self._summed is not None else found

    def _weigh_weight(self, factors: Tensor) -> Tensor:
        """Σ_i c_i Σ_t g_t a_tᵀ; the narrower of the two is copied."""
        a, g = self._a, self._g
        if self._scaled is not None:
            a = self._scaled.take(a, factors)
        elif g.shape[2] <= a.shape[2]:
            g = _scale(g, factors)
        else:
            a = _scale(a, factors)
        if self._a.stride(0) < self._a.stride(1):  # laid out position by position
            a, g = a.transpose(0, 1), g.transpose(0, 1)
        left, right = g.flatten(0, 1).t(), a.flatten(0, 1)
        return half.multiply_matrices(left, right) if half.is_half(a) else left.mm(right)


def _outer(a: Tensor, g: Tensor) -> Tensor:
    """Σ_t g_t a_tᵀ for each example."""
    return half.multiply_pairs(g.transpose(1, 2), a) if half.is_half(a) else torch.bmm(g.transpose(1, 2), a)


def _scale(part: Tensor, factors: Tensor) -> Tensor:
    return half.scale(part, factors) if half.is_half(part) else part * factors[:, None, None]


@final
class _Scaled:
    """c_i a_i, made once for the layers that were given a."""

    __slots__ = ("_factors", "_made")

    def __init__(self) -> None:
        self._factors: Tensor | None = None
        self._made: Tensor | None = None

    @property
    def made(self) -> bool:
        """Whether the input itself is not needed any more."""
        return self._made is not None

    def take(self, a: Tensor, factors: Tensor) -> Tensor:
        """For these factors."""
        if self._made is None or self._factors is not factors:
            self._factors, self._made = factors, _scale(a, factors)
        return self._made


def norms_in_one(uses: Sequence[Use], order: int) -> list[Tensor]:
    """Norms, (n,) each, whose joint norm is that of all parameters together; what was given the same is done in one."""
    found: list[Tensor] = []
    alike: dict[Any, list[MatrixUse]] = {}
    for use in uses:
        key = use.given if order == 2 and isinstance(use, MatrixUse) else None
        if key is None:
            found += use.norms(order)
        else:
            alike.setdefault(key, []).append(use)  # type: ignore[arg-type]  # a key is a MatrixUse's
    for same in alike.values():
        widths, inputs = [use.pair()[1].shape[2] for use in same], same[0].pair()[0].shape[2]
        if len(same) > 1 and sum(min(width, inputs) for width in widths) >= inputs:
            scaled = _Scaled()
            for use in same:
                use.share(scaled)
        if len(same) > 1 and same[0].plan(sum(widths)) == "ghost":
            found.append(ghost_norms(same[0].pair()[0], *(use.pair()[1] for use in same)))
            found += [norm for use in same for norm in use.bias_norms(order)]
        else:
            found += [norm for use in same for norm in use.norms(order)]
    return found


@final
class InstanceUse:
    """Parameters whose per-example gradients are at hand: (n, …) each."""

    __slots__ = ("_kept",)

    def __init__(self, kept: Sequence[Tensor]) -> None:
        self._kept = list(kept)

    def norms(self, order: int) -> list[Tensor]:
        """See :class:`Use`."""
        return [per_example(part, order) for part in self._kept]

    def instances(self) -> list[Tensor]:
        """See :class:`Use`."""
        return self._kept

    def drop(self, bad: Tensor) -> None:
        """See :class:`Use`."""
        self._kept = [erase(part, bad, own=True) for part in self._kept]

    def weigh(self, factors: Sequence[Tensor]) -> list[Tensor]:
        """See :class:`Use`."""
        return [_weigh(factor, part) for factor, part in zip(factors, self._kept, strict=True)]


def affine_use(
    entries: Entries, normalise: Callable[[Tensor], Tensor], *, shape: torch.Size | None, weight: bool, bias: bool
) -> InstanceUse:
    """Scale and shift after a normalisation: per example Σ g·x̂ and Σ g over all positions.

    The parameters lie along the last dimensions, of ``shape`` (layer norm), or with None along dimension 1 (group and
    instance norm). x̂ is made anew in small pieces, which costs less than to have kept it.
    """

    def sum_places(part: Tensor) -> Tensor:
        if shape is not None:
            return part.reshape(len(part), -1, *shape).sum(1)
        return part.flatten(2).sum(2) if part.dim() > 2 else part

    scales: list[Tensor] = []
    shifts: list[Tensor] = []
    for x, g in entries:
        starts = row_pieces(len(g), g[0].numel() * g.element_size(), g.device.type)
        if weight:
            cuts = [slice(start, start + starts.step) for start in starts]
            scales.append(torch.cat([sum_places(normalise(x[cut]) * g[cut]) for cut in cuts]))
        if bias:
            shifts.append(sum_places(g))
    return InstanceUse([functools.reduce(torch.add, parts) for parts in (scales, shifts) if parts])


@final
class EmbeddingUse:
    """A table of rows: token t of an example adds g_t to its row. The padding row has no gradient."""

    __slots__ = ("_g", "_shape", "_tokens")

    def __init__(self, tokens: Tensor, g: Tensor, *, shape: torch.Size, padding: int | None) -> None:
        if padding is not None:
            g = g.masked_fill((tokens == padding)[:, :, None], 0)
        self._tokens, self._g, self._shape = tokens, g, shape

    def look_up(self) -> tuple[Tensor, Tensor]:
        """Tokens (n, t) and gradients (n, t, d)."""
        return self._tokens, self._g

    def norms(self, order: int) -> list[Tensor]:
        """See :class:`Use`."""
        rows, positions = self._tokens.shape
        if positions == 1:
            return [self._g.abs().view(-1) if self._shape[1] == 1 else per_example(self._g, order)]
        starts = row_pieces(rows, 2 * positions * positions * self._g.element_size(), self._g.device.type)
        found = []
        for start in starts:
            tokens, g = self._tokens[start : start + starts.step], self._g[start : start + starts.step]
            same = (tokens[:, :, None] == tokens[:, None, :]).to(g.dtype)
            first = (same.tril(-1).sum(2) == 0).to(g.dtype)  # each row of the table counts once, with all its tokens
            found.append(per_example(torch.bmm(same, g) * first[:, :, None], order))
        return [torch.cat(found)]

    def instances(self) -> list[Tensor]:
        """See :class:`Use`."""
        rows = len(self._tokens)
        table = self._g.new_zeros((rows, *self._shape))
        where = self._tokens[:, :, None].expand(-1, -1, self._shape[1])
        return [table.scatter_add_(1, where, self._g)]

    def drop(self, bad: Tensor) -> None:
        """See :class:`Use`."""
        self._g = erase(self._g, bad, own=True)

    def weigh(self, factors: Sequence[Tensor]) -> list[Tensor]:
        """See :class:`Use`."""
        table = self._g.new_zeros(self._shape)
        if self._g.numel() == len(self._tokens):  # one number for each example
            table.view(-1).index_add_(0, self._tokens.view(-1), self._g.view(-1) * factors[0])
            return [table]
        scaled = (self._g * factors[0][:, None, None]).flatten(0, 1)
        return [table.index_add_(0, self._tokens.flatten(), scaled)]


@final
class SharedLookupUse:
    """A table from which all examples take the same rows, as positions do: tokens (t,) and gradients (n, t, d).

    Equal tokens add up to the gradient of one row of the table, kept at the first of them; no other row has one.
    """

    __slots__ = ("_rows", "_shape", "_summed")

    def __init__(self, tokens: Tensor, g: Tensor, *, shape: torch.Size, padding: int | None) -> None:
        if padding is not None:
            g = g.masked_fill((tokens == padding)[:, None], 0)
        small = shape[0] <= len(tokens)  # the whole table
        self._rows = torch.arange(shape[0], device=g.device) if small else tokens
        places = tokens if small else first_places(tokens)
        self._summed = g.new_zeros((len(g), len(self._rows), g.shape[2])).index_add_(1, places, g)
        self._shape = shape

    def norms(self, order: int) -> list[Tensor]:
        """See :class:`Use`."""
        return [per_example(self._summed, order)]

    def instances(self) -> list[Tensor]:
        """See :class:`Use`."""
        return [self._summed.new_zeros((len(self._summed), *self._shape)).index_add_(1, self._rows, self._summed)]

    def drop(self, bad: Tensor) -> None:
        """See :class:`Use`."""
        self._summed = erase(self._summed, bad, own=True)

    def weigh(self, factors: Sequence[Tensor]) -> list[Tensor]:
        """See :class:`Use`."""
        table = self._summed.new_zeros(self._shape)
        return [table.index_add_(0, self._rows, _weigh(factors[0], self._summed))]


def first_places(tokens: Tensor) -> Tensor:
    """For each token the place of the first one equal to it, without waiting for a card.

    >>> first_places(torch.tensor([7, 3, 7, 7, 3])).tolist()
    [0, 1, 0, 0, 1]
    """
    ordered, order = tokens.sort(stable=True)
    places = torch.arange(len(tokens), device=tokens.device)
    begins = torch.cat([places[:1] == 0, ordered[1:] != ordered[:-1]])
    starts = torch.where(begins, places, 0).cummax(0).values
    return torch.empty_like(order).scatter_(0, order, order[starts])


@final
class SeveralUses:
    """Parameters of one layer that are accounted for one by one, each in its own way."""

    __slots__ = ("each",)

    def __init__(self, each: Sequence[Use]) -> None:
        self.each = each

    def norms(self, order: int) -> list[Tensor]:
        """See :class:`Use`."""
        return [norm for use in self.each for norm in use.norms(order)]

    def instances(self) -> list[Tensor]:
        """See :class:`Use`."""
        return [part for use in self.each for part in use.instances()]

    def drop(self, bad: Tensor) -> None:
        """See :class:`Use`."""
        for use in self.each:
            use.drop(bad)

    def weigh(self, factors: Sequence[Tensor]) -> list[Tensor]:
        """See :class:`Use`."""
        return [part for use, factor in zip(self.each, factors, strict=True) for part in use.weigh([factor])]

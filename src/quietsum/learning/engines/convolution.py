"""Convolutions as matrices: unfold the input, and a convolution is a Linear layer over positions.

Example i's weight gradient is G_i U_iᵀ with U the unfolded input (channels·kernel × positions) and G the output's
gradient (channels × positions). The three ways of :mod:`quietsum.learning.engines.layers` apply. Unfolding copies the
input once per kernel cell, so it is done in pieces that stay in the cache, and not at all for kernels of one cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from quietsum.learning.engines.hardware.erase import erase
from quietsum.learning.engines.hardware.room import Room
from quietsum.learning.engines.layers import (
    Entries,
    _weigh,
    balance_of,
    ghost_norms,
    per_example,
    plan_for,
    row_pieces,
)

__all__ = ["ConvolutionUse", "Geometry"]


@final
class Geometry:
    """Stride, padding, dilation, groups and kernel of a Conv1d or Conv2d, read off the module."""

    __slots__ = ("channels", "dilation", "groups", "kernel", "mode", "outputs", "pad", "plain", "stride", "whole")

    def __init__(self, module: nn.Conv1d | nn.Conv2d) -> None:
        two = module.weight.dim() == 4
        front: tuple[int, ...] = () if two else (1,)
        self.kernel: tuple[int, ...] = (*front, *module.weight.shape[2:])
        self.stride: tuple[int, ...] = (*front, *module.stride)
        self.dilation: tuple[int, ...] = (*front, *module.dilation)
        self.groups, self.outputs, self.channels = module.groups, module.out_channels, module.in_channels
        self.mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        if isinstance(module.padding, str):
            spare = [
                0 if module.padding == "valid" else d * (k - 1) for k, d in zip(self.kernel, self.dilation, strict=True)
            ]
            before = [part // 2 for part in spare]
            after = [part - half for part, half in zip(spare, before, strict=True)]
        else:
            before = after = list(module.padding) if two else [0, *module.padding]
        self.pad = (before[1], after[1], before[0], after[0])  # last dimension first, as F.pad wants it
        self.whole = all(size == 1 for size in self.kernel) and not any(self.pad)
        self.plain = self.whole and all(step == 1 for step in self.stride)

    def pad_input(self, x: Tensor) -> Tensor:
        """The input with its border, four-dimensional."""
        x = x if x.dim() == 4 else x[:, :, None]
        if not any(self.pad):
            return x
        if self.mode == "constant" or x.shape[2] > 1 or not any(self.pad[2:]):
            squeezed = self.mode != "constant" and not any(self.pad[2:]) and x.shape[2] == 1
            if squeezed:
                return F.pad(x[:, :, 0], self.pad[:2], mode=self.mode)[:, :, None]
            return F.pad(x, self.pad, mode=self.mode)
        return F.pad(x, self.pad, mode=self.mode)

    def columns(self, x: Tensor, room: Room) -> Tensor:
        """(n·groups, channels/groups·kernel, positions) of a padded input."""
        if self.whole:
            part = x if self.plain else x[:, :, :: self.stride[0], :: self.stride[1]]
            return part.reshape(len(x) * self.groups, self.channels // self.groups, -1)
        views = x
        for axis in (0, 1):
            span = self.dilation[axis] * (self.kernel[axis] - 1) + 1
            views = views.unfold(2 + axis, span, self.stride[axis])
        views = views[..., :: self.dilation[0], :: self.dilation[1]]  # n, c, y, x, ky, kx
        ordered = views.permute(0, 1, 4, 5, 2, 3)
        cells = self.channels // self.groups * self.kernel[0] * self.kernel[1]
        copied = room.take("columns", ordered.shape, x).copy_(ordered)
        return copied.view(len(x) * self.groups, cells, -1)


@final
class ConvolutionUse:
    """A convolution, called once or several times."""

    __slots__ = ("_entries", "_geometry", "_kept", "_module", "_own", "_room", "_summed", "_weight")

    def __init__(
        self,
        module: nn.Conv1d | nn.Conv2d,
        geometry: Geometry,
        entries: Entries,
        *,
        weight: bool,
        bias: bool,
        room: Room,
    ) -> None:
        self._module, self._geometry, self._weight, self._room = module, geometry, weight, room
        self._entries = [(geometry.pad_input(x), g if g.dim() == 4 else g[:, :, None]) for x, g in entries]
        self._own = [x.grad_fn is not None or (any(geometry.pad) and not geometry.whole) for x, _ in entries]
        self._kept: Tensor | None = None
        self._summed: Tensor | None = None
        if bias:
            self._summed = sum(g.flatten(2).sum(2) for _, g in self._entries)  # type: ignore[assignment]

    def norms(self, order: int) -> list[Tensor]:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        found = [self._weight_norms(order)] if self._weight else []
        return [*found, per_example(self._summed, order)] if self._summed is not None else found

    def _sizes(self) -> tuple[int, int, int, int]:
        """Rows, positions, cells, outputs, the last two within one group."""
        shape = self._geometry
        rows = len(self._entries[0][0])
        positions = sum(g.shape[2] * g.shape[3] for _, g in self._entries)
        return rows, positions, self._module.weight[0].numel(), shape.outputs // shape.groups

    def _pair(self, start: int, step: int) -> tuple[Tensor, Tensor]:
        """Unfolded input and gradient of some examples, groups laid out as examples."""
        shape = self._geometry
        columns, back = [], []
        for x, g in self._entries:
            columns.append(shape.columns(x[start : start + step], self._room if len(self._entries) == 1 else Room()))
            part = g[start : start + step]
            back.append(part.reshape(len(part) * shape.groups, shape.outputs // shape.groups, -1))
        if len(columns) == 1:
            return columns[0], back[0]
        return torch.cat(columns, 2), torch.cat(back, 2)

    def _weight_norms(self, order: int) -> Tensor:
        rows, positions, cells, outputs = self._sizes()
        groups, item = self._geometry.groups, self._module.weight.element_size()
        plan = plan_for(rows * groups, positions, cells, outputs, item, balance_of(self._entries[0][1]))
        starts = row_pieces(rows, groups * cells * positions * item, self._module.weight.device.type)
        if plan == "ghost" and order == 2:
            found = []
            for start in starts:
                u, g = self._pair(start, starts.step)
                found.append(ghost_norms(u.transpose(1, 2), g.transpose(1, 2)))
            each = torch.cat(found)
            return each if groups == 1 else per_example(each.view(rows, groups), 2)
        if plan == "discard":
            return torch.cat([per_example(self._build_part(start, starts.step), order) for start in starts])
        self._kept = self._build(starts)
        return per_example(self._kept, order)

    def _build_part(self, start: int, step: int) -> Tensor:
        u, g = self._pair(start, step)
        return torch.bmm(g, u.transpose(1, 2)).view(-1, *self._module.weight.shape)

    def _build(self, starts: range) -> Tensor:
        if len(starts) == 1:
            return self._build_part(0, starts.step)
        weight = self._module.weight
        whole = self._room.take("kept", (len(self._entries[0][0]), *weight.shape), weight.detach())
        for start in starts:
            u, g = self._pair(start, starts.step)
            part = whole[start : start + starts.step]
            torch.bmm(g, u.transpose(1, 2), out=part.view(len(u), g.shape[1], -1))
        return whole

    def instances(self) -> list[Tensor]:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        rows, positions, cells, _ = self._sizes()
        item = self._module.weight.element_size()
        starts = row_pieces(rows, self._geometry.groups * cells * positions * item, self._module.weight.device.type)
        found = [self._build(starts)] if self._weight else []
        return [*found, self._summed] if self._summed is not None else found

    def drop(self, bad: Tensor) -> None:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        if self._kept is not None:
            self._kept = erase(self._kept, bad, own=True)
        else:
            pairs = zip(self._entries, self._own, strict=True)
            self._entries = [(erase(x, bad, own=own), erase(g, bad, own=True)) for (x, g), own in pairs]
        self._summed = None if self._summed is None else erase(self._summed, bad, own=True)

    def weigh(self, factors: Sequence[Tensor]) -> list[Tensor]:
        """See :class:`quietsum.learning.engines.layers.Use`."""
        found = []
        if self._weight:
            found.append(_weigh(factors[0], self._kept) if self._kept is not None else self._by_convolution(factors[0]))
        return [*found, factors[-1] @ self._summed] if self._summed is not None else found

    def _by_convolution(self, factors: Tensor) -> Tensor:
        shape, weight = self._geometry, self._module.weight
        four = weight if weight.dim() == 4 else weight[:, :, None]
        total: Tensor | None = None
        for x, g in self._entries:
            _, part, _ = torch.ops.aten.convolution_backward(
                g * factors[:, None, None, None], x, four, None, shape.stride, (0, 0), shape.dilation, False, (0, 0),
                shape.groups, (False, True, False),
            )  # fmt: skip
            total = part if total is None else total + part
        assert total is not None
        return total.view_as(weight)

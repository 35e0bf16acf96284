"""A spatial-temporal graph convolution network for skeletons (Yan, Xiong, Lin 2018), built for private training.

A skeleton in motion is a graph that repeats in time. A block first mixes each joint with its neighbours in the body,

    y_w = Σ_p Σ_v A_p[v, w] W_p x_v        p: the joint itself, the neighbour nearer the hips, those further away

with constant, public matrices A_p and learned W_p, and then convolves each joint along time. Nothing mixes two
examples: GroupNorm stands where the paper has BatchNorm, which would let one record change the others' outputs. The
mixing over joints is an einsum with constants and all parameters sit in 1 × 1 and k × 1 convolutions and one linear
layer, so that per-example norms are cheap (:mod:`quietsum.learning.engines.bookkeeping`).

>>> model = STGCN(20, 3, 20, (16, 32), (9, 9), dropout=0.0, use_attention=True)
>>> model(torch.zeros(2, 3, 32, 20)).shape
torch.Size([2, 20])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import torch
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.validate import probability, whole_number

__all__ = ["SKELETONS", "STGCN", "partitions"]

_KINECT = (
    (6, 3), (3, 2), (2, 19), (2, 0), (2, 1), (0, 7), (7, 9), (9, 11), (1, 8), (8, 10), (10, 12),
    (6, 4), (4, 13), (13, 15), (15, 17), (6, 5), (5, 14), (14, 16), (16, 18),
)  # fmt: skip
_KINECT_2 = (
    (0, 1), (1, 20), (20, 2), (2, 3), (20, 4), (4, 5), (5, 6), (6, 7), (7, 22), (22, 21), (20, 8), (8, 9), (9, 10),
    (10, 11), (11, 24), (24, 23), (0, 12), (12, 13), (13, 14), (14, 15), (0, 16), (16, 17), (17, 18), (18, 19),
)  # fmt: skip
_COCO = (
    (0, 1), (0, 2), (1, 3), (2, 4), (0, 5), (0, 6), (5, 7), (7, 9), (6, 8), (8, 10), (5, 11), (6, 12), (11, 13),
    (13, 15), (12, 14), (14, 16),
)  # fmt: skip
_MEDIAPIPE = (
    (23, 24), (23, 11), (24, 12), (11, 13), (13, 15), (15, 17), (15, 19), (15, 21), (12, 14), (14, 16), (16, 18),
    (16, 20), (16, 22), (23, 25), (25, 27), (27, 29), (27, 31), (24, 26), (26, 28), (28, 30), (28, 32), (11, 0), (0, 1),
    (1, 2), (2, 3), (3, 7), (0, 4), (4, 5), (5, 6), (6, 8), (0, 9), (0, 10),
)  # fmt: skip
SKELETONS: Final = {20: _KINECT, 25: _KINECT_2, 17: _COCO, 33: _MEDIAPIPE}
"""Bones by number of joints, each from the joint nearer the centre to the one further away.

20: the first Kinect in the order of MSR Action3D (hips are joint 6); 25: the second Kinect; 17: COCO key points;
33: MediaPipe Pose, whose left hip is joint 23.
"""
_PARTS = 3


def partitions(num_joints: int, bones: Sequence[Sequence[int]] | None = None) -> Tensor:
    """The constant matrices A, (3, joints, joints), each column with sum 1 or 0: self, inwards, outwards.

    ``bones`` are pairs of joints, the one nearer the centre first; if omitted, those of a known skeleton.
    """
    if bones is None and num_joints not in SKELETONS:
        known = ", ".join(str(count) for count in sorted(SKELETONS))
        problem = "has no skeleton here"
        raise InvalidParameter("num_joints", num_joints, problem, f"choose {known}, or pass bones of your own")
    pairs = SKELETONS[num_joints] if bones is None else _check_bones(num_joints, bones)
    found = torch.zeros(_PARTS, num_joints, num_joints)
    found[0] = torch.eye(num_joints)
    for inner, outer in pairs:
        found[1, inner, outer] = 1
        found[2, outer, inner] = 1
    return found / found.sum(1, keepdim=True).clamp(min=1)


def _check_bones(num_joints: int, bones: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    found = []
    for pair in bones:
        ends = tuple(whole_number("bones", end) for end in pair)
        if len(ends) != 2 or ends[0] == ends[1] or max(ends) >= whole_number("num_joints", num_joints, 1):
            problem = f"is no pair of two of the {num_joints} joints"
            raise InvalidParameter("bones", tuple(pair), problem, f"number them 0 … {num_joints - 1}")
        found.append((ends[0], ends[1]))
    if not found:
        raise InvalidParameter("bones", (), "are none", "a graph without bones mixes no joints; leave bones out")
    return found


@final
class STGCN(nn.Module):
    """Scores of ``num_classes`` for (n, ``in_channels``, frames, ``num_joints``).

    One block for each of ``hidden_channels`` and ``temporal_kernel_sizes`` (odd; one number serves all blocks); every
    block after the first halves the frames. ``use_attention`` weighs joints by a learned softmax before they are
    averaged. Dropout acts on whole channels, and only while training. ``bones`` are those of a skeleton of one's own,
    pairs of joints (:func:`partitions`).
    """

    def __init__(
        self,
        num_joints: int,
        in_channels: int,
        num_classes: int,
        hidden_channels: Sequence[int] = (32, 64),
        temporal_kernel_sizes: Sequence[int] = (9, 9),
        dropout: float = 0.0,
        use_attention: bool = False,
        *,
        bones: Sequence[Sequence[int]] | None = None,
    ) -> None:
        super().__init__()
        widths = _numbers("hidden_channels", hidden_channels)
        kernels = _numbers("temporal_kernel_sizes", temporal_kernel_sizes)
        if len(kernels) == 1:
            kernels *= len(widths)
        if len(kernels) != len(widths):
            problem = f"does not fit {len(widths)} hidden_channels"
            raise InvalidParameter("temporal_kernel_sizes", tuple(kernels), problem, "give one for each block")
        if any(kernel % 2 == 0 for kernel in kernels):
            problem = "has an even number, which has no middle frame"
            raise InvalidParameter("temporal_kernel_sizes", tuple(kernels), problem, "use odd ones, 9 for instance")
        if probability("dropout", dropout) == 1:
            raise InvalidParameter("dropout", dropout, "leaves nothing", "stay below 1")
        whole_number("num_classes", num_classes, 2)
        inputs = [whole_number("in_channels", in_channels, 1), *widths]
        self.num_joints, self.in_channels = num_joints, in_channels
        adjacency = partitions(num_joints, bones)
        self.blocks = nn.ModuleList(
            _Block(before, after, kernel, stride=1 if place == 0 else 2, dropout=dropout, adjacency=adjacency)
            for place, (before, after, kernel) in enumerate(zip(inputs, widths, kernels, strict=False))
        )
        self.attention = nn.Linear(widths[-1], 1) if use_attention else None
        self.last = nn.Linear(widths[-1], num_classes)

    def forward(self, motion: Tensor) -> Tensor:
        """The scores, (n, classes)."""
        if motion.dim() != 4 or motion.shape[1] != self.in_channels or motion.shape[3] != self.num_joints:
            wanted = f"(n, {self.in_channels}, frames, {self.num_joints})"
            raise InvalidParameter("motion", tuple(motion.shape), f"is not {wanted}", "channels come before frames")
        for block in self.blocks:
            motion = block(motion)
        joints = motion.mean(2).transpose(1, 2)  # (n, joints, channels)
        if self.attention is None:
            return self.last(joints.mean(1))  # type: ignore[no-any-return]
        weights = torch.softmax(self.attention(joints), dim=1)
        return self.last((weights * joints).sum(1))  # type: ignore[no-any-return]


@final
class _Block(nn.Module):
    """Neighbours, then time; the input is added again, after a 1 × 1 convolution where its shape differs."""

    adjacency: Tensor

    def __init__(self, before: int, after: int, kernel: int, *, stride: int, dropout: float, adjacency: Tensor) -> None:
        super().__init__()
        self.register_buffer("adjacency", adjacency, persistent=False)
        self.neighbours = nn.Conv2d(before, _PARTS * after, 1)
        self.spatial_norm = nn.GroupNorm(_groups(after), after)
        self.time = nn.Conv2d(after, after, (kernel, 1), (stride, 1), (kernel // 2, 0))
        self.temporal_norm = nn.GroupNorm(_groups(after), after)
        self.drop = nn.Dropout2d(dropout) if dropout else nn.Identity()
        plain = before == after and stride == 1
        self.around = nn.Identity() if plain else nn.Conv2d(before, after, 1, (stride, 1))

    def forward(self, motion: Tensor) -> Tensor:
        each = self.neighbours(motion).unflatten(1, (_PARTS, -1))
        mixed = torch.einsum("npctv,pvw->nctw", each, self.adjacency)
        found = self.time(torch.tanh(self.spatial_norm(mixed)))
        found = self.drop(self.temporal_norm(found))
        return torch.tanh(found + self.around(motion))


def _groups(channels: int) -> int:
    """The most groups, up to 8, that divide the channels."""
    return next(groups for groups in range(8, 0, -1) if channels % groups == 0)


def _numbers(name: str, values: Sequence[int]) -> list[int]:
    found = [values] if isinstance(values, int) else list(values)
    if not found:
        raise InvalidParameter(name, values, "is empty", "give one number for each block, (32, 64) for instance")
    return [whole_number(name, value, 1) for value in found]

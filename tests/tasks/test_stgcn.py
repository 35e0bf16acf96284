"""The graph network: its skeleton, its options, and that no example ever touches another."""

from __future__ import annotations

import inspect

import pytest
import torch

from quietsum.errors import InvalidParameter
from quietsum.learning.clipping import Flat
from quietsum.learning.engines.protocol import engine_for
from quietsum.learning.step import cross_entropy
from quietsum.tasks.gallery.stgcn import SKELETONS, STGCN, partitions


def small(**options: object) -> STGCN:
    given = {"hidden_channels": (8, 12), "temporal_kernel_sizes": (5, 3), "dropout": 0.0, "use_attention": True}
    torch.manual_seed(5)
    return STGCN(20, 3, 6, **{**given, **options})  # type: ignore[arg-type]


def batch(rows: int = 5, frames: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(6)
    return torch.randn(rows, 3, frames, 20, generator=generator), torch.arange(rows) % 6


def test_the_signature_is_the_promised_one() -> None:
    assert list(inspect.signature(STGCN).parameters) == [
        "num_joints", "in_channels", "num_classes", "hidden_channels", "temporal_kernel_sizes", "dropout",
        "use_attention", "bones",
    ]  # fmt: skip


@pytest.mark.parametrize("joints", sorted(SKELETONS))
def test_a_skeleton_is_a_tree_and_its_matrices_average(joints: int) -> None:
    bones = SKELETONS[joints]
    assert len({outer for _, outer in bones}) == len(bones)  # nobody has two parents
    reached = {inner for inner, _ in bones} - {outer for _, outer in bones}
    assert len(reached) == 1
    for _ in range(joints):
        reached |= {outer for inner, outer in bones if inner in reached}
    assert reached == set(range(joints))
    own, inwards, outwards = partitions(joints)
    assert torch.equal(own, torch.eye(joints))
    assert torch.equal((inwards > 0), (outwards > 0).t())
    sums = torch.stack([inwards, outwards]).sum(1)
    assert torch.all(torch.isclose(sums, torch.ones(())) | (sums == 0))


def test_a_skeleton_may_be_of_ones_own() -> None:
    model = STGCN(4, 2, 3, (8,), (3,), bones=[(0, 1), (1, 2), (1, 3)])
    assert model(torch.zeros(2, 2, 8, 4)).shape == (2, 3)
    own, inwards, _ = partitions(4, [(0, 1), (1, 2), (1, 3)])
    assert torch.equal(own, torch.eye(4)) and inwards.sum() == 3
    for bones in ([(0, 4)], [(0, 0)], [(0, 1, 2)], []):
        with pytest.raises(InvalidParameter, match="bones"):
            partitions(4, bones)


def test_a_joint_hears_of_its_neighbours_and_of_nobody_else() -> None:
    model = small(hidden_channels=(8,), temporal_kernel_sizes=(1,))
    block = model.blocks[0]
    motion = batch(1)[0]
    changed = motion.clone()
    changed[:, :, :, 11] += 1  # a hand
    before, after = (
        torch.einsum("npctv,pvw->nctw", block.neighbours(x).unflatten(1, (3, -1)), block.adjacency)  # type: ignore[operator]
        for x in (motion, changed)
    )
    touched = (before != after).flatten(0, 2).any(0).nonzero().flatten().tolist()
    assert touched == [9, 11]  # itself and its wrist


@pytest.mark.parametrize("attention", [True, False])
def test_examples_do_not_touch_each_other(attention: bool) -> None:
    model = small(use_attention=attention)
    motion, _ = batch()
    changed = motion.clone()
    changed[2] = -3 * changed[2]
    same = torch.isclose(model(motion), model(changed), atol=1e-6).all(1)
    assert same.tolist() == [True, True, False, True, True]


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("frames", [1, 12, 33])
def test_any_number_of_frames_gives_one_score_per_class(attention: bool, frames: int) -> None:
    assert small(use_attention=attention)(batch(2, frames)[0]).shape == (2, 6)


def test_attention_and_dropout_do_something() -> None:
    motion, _ = batch()
    assert not torch.allclose(small()(motion), small(use_attention=False)(motion))
    model = small(dropout=0.5)
    assert not torch.equal(model(motion), model(motion))
    model.eval()
    assert torch.equal(model(motion), model(motion))


@pytest.mark.parametrize("attention", [True, False])
def test_the_fast_engine_gives_the_sum_of_the_loop_over_examples(attention: bool) -> None:
    model = small(use_attention=attention)
    clip = Flat(max_norm=0.1)
    fast = engine_for("bookkeeping", model, cross_entropy, clip).clipped_sum(batch())
    slow = engine_for("naive", model, cross_entropy, clip).clipped_sum(batch())
    for found, wanted in zip(fast, slow, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temporal_kernel_sizes": (4, 3)}, "middle frame"), ({"temporal_kernel_sizes": (3, 3, 3)}, "one for each"),
        ({"hidden_channels": ()}, "empty"), ({"hidden_channels": (0,)}, "at least 1"), ({"dropout": 1.0}, "nothing"),
        ({"dropout": float("nan")}, "finite"), ({"temporal_kernel_sizes": (2.5, 3)}, "whole"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        small(**options)


def test_other_skeletons_and_shapes_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="17, 20, 25"):
        STGCN(21, 3, 6, (8,), (3,), 0.0, False)
    with pytest.raises(InvalidParameter, match=r"\(n, 3, frames, 20\)"):
        small()(torch.zeros(2, 12, 20, 3))
    with pytest.raises(InvalidParameter, match="at least 2"):
        STGCN(20, 3, 1, (8,), (3,), 0.0, False)


def test_one_number_serves_all_blocks() -> None:
    assert [block.time.kernel_size for block in small(temporal_kernel_sizes=(7,)).blocks] == [(7, 1), (7, 1)]  # type: ignore[union-attr]

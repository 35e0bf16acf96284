"""The four rules: what they share, and where they differ."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from quietsum.errors import InvalidParameter
from quietsum.learning.clipping import Automatic, Flat, FlatL1, PerLayer

NAMES = ("one.weight", "one.bias", "two.weight")
RULES = (Flat, FlatL1, PerLayer, Automatic)


@pytest.mark.parametrize("kind", RULES)
def test_no_clipped_gradient_is_longer_than_the_bound_and_none_that_is_not_finite_remains(kind: Any) -> None:
    rule = kind(max_norm=0.7)
    groups = len(rule.groups(NAMES))
    norms = torch.cat([torch.logspace(-6, 6, 200).double(), torch.tensor([0.0, math.nan, math.inf])])
    every = norms[:, None].expand(-1, groups).contiguous()
    factors = rule.factors(every)
    lengths = torch.linalg.vector_norm((factors * every)[:-2], ord=rule.order, dim=1)
    assert rule.sensitivity == rule.max_norm == 0.7
    assert float(lengths.max()) <= 0.7 * (1 + 1e-12)
    assert factors[-2:].eq(0).all()
    assert torch.equal(every[0], norms[:1].expand(groups)), "norms are left as they were"


@pytest.mark.parametrize("kind", RULES)
def test_a_rule_is_a_frozen_value_of_its_own_kind(kind: Any) -> None:
    rule = kind(max_norm=1.5)
    assert rule == kind(max_norm=1.5) != kind(max_norm=1.0)
    assert repr(rule).startswith(f"{kind.__name__}(max_norm=1.5") and "order" not in repr(rule)
    assert all(rule != other(max_norm=1.5) for other in RULES if other is not kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.max_norm = 2.0
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidParameter, match="max_norm"):
            kind(max_norm=bad)


def test_only_the_l1_rule_measures_in_l1_and_only_the_layers_have_norms_of_their_own() -> None:
    assert [kind(max_norm=1.0).order for kind in RULES] == [2, 1, 2, 2]
    assert [len(kind(max_norm=1.0).groups(NAMES)) for kind in RULES] == [1, 1, 2, 1]
    assert sorted(position for group in PerLayer(max_norm=1.0).groups(NAMES) for position in group) == [0, 1, 2]
    with pytest.raises(InvalidParameter, match="stability"):
        Automatic(max_norm=1.0, stability=0.0)

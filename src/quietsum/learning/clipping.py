"""Clipping: how much of one example's gradient may enter the sum.

DP-SGD adds noise in proportion to the most that one record can move the sum, so each example's gradient g is scaled
down to a bound C before anything is added up. With ‖g‖ the L2 norm over all trainable parameters:

    Flat        g · min(1, C / ‖g‖)                        Abadi et al. 2016, algorithm 1
    PerLayer    each layer's part of g to C/√L, L layers   McMahan et al. 2018
    Automatic   g · C / (‖g‖ + 0.01)                       Bu et al. 2023, "Automatic clipping"
    FlatL1      g · min(1, C / ‖g‖₁)                        for Laplace noise, whose scale follows the L1 norm

Every rule multiplies a gradient that is not finite by zero. :class:`QuantileClip` lets C follow a quantile of the norms
(Andrew, Thakkar, McMahan, Ramaswamy 2021, "Differentially Private Learning with Adaptive Clipping") and pays for the
count that it releases; the rule, its noise and its cost are those of :mod:`quietsum.mechanisms.quantile`, with records
as the units.

>>> round(QuantileClip(count_noise=12.8).gradient_noise(1.0), 6)
1.000764
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol, final

from torch import Tensor

from quietsum.mechanisms import QuantileRule, RandomSource, system_randomness
from quietsum.validate import positive

__all__ = ["Automatic", "Clip", "Flat", "FlatL1", "PerLayer", "QuantileClip"]

Groups = tuple[tuple[int, ...], ...]


class Clip(Protocol):
    """A rule that bounds one example's gradient."""

    @property
    def max_norm(self) -> float:
        """C: the bound that the rule was made with."""
        ...

    @property
    def sensitivity(self) -> float:
        """A bound on the norm of one example's clipped gradient: L2, and for ``order`` 1 also L1."""
        ...

    @property
    def order(self) -> int:
        """Which norm is measured: 2 for Euclid's, 1 for the sum of absolute values."""
        ...

    def groups(self, names: Sequence[str]) -> Groups:
        """Which trainable parameters share a norm, as positions in ``names``; every position in exactly one group."""
        ...

    def factors(self, norms: Tensor) -> Tensor:
        """From the (n, groups) norms the (n, groups) multipliers; 0 where a norm is not finite."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Bound:
    """What the rules share: C is the sensitivity, and one norm is taken over all parameters."""

    max_norm: float
    order: int = dataclasses.field(default=2, init=False, repr=False)

    def __post_init__(self) -> None:
        positive("max_norm", self.max_norm)

    @property
    def sensitivity(self) -> float:
        """See :class:`Clip`."""
        return self.max_norm

    def groups(self, names: Sequence[str]) -> Groups:
        """See :class:`Clip`."""
        return (tuple(range(len(names))),)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Flat(_Bound):
    """One norm over all parameters, cut at ``max_norm``.

    Guarantees: no example's clipped gradient is longer than ``max_norm``, up to the rounding of one multiplication.

    >>> import torch
    >>> Flat(max_norm=1.0).factors(torch.tensor([[0.5], [4.0], [float("nan")]])).flatten().tolist()
    [1.0, 0.25, 0.0]
    """

    def factors(self, norms: Tensor) -> Tensor:
        """See :class:`Clip`."""
        return _cut(norms, self.max_norm)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FlatL1(_Bound):
    """One L1 norm over all parameters, cut at ``max_norm``: what Laplace noise needs.

    Guarantees: no example's clipped gradient has an L1 norm above ``max_norm``; its L2 norm is then no larger.

    >>> FlatL1(max_norm=3.0).order
    1
    """

    order: int = dataclasses.field(default=1, init=False, repr=False)

    def factors(self, norms: Tensor) -> Tensor:
        """See :class:`Clip`."""
        return _cut(norms, self.max_norm)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PerLayer(_Bound):
    """One norm per layer, each cut at max_norm/√L, so that all L together stay within ``max_norm``.

    A layer is a module with its own parameters: weight and bias of one Linear share a norm.

    Guarantees: no example's clipped gradient is longer than ``max_norm``.

    >>> rule = PerLayer(max_norm=1.0)
    >>> rule.groups(["one.weight", "one.bias", "two.weight", "two.bias", "scale"])
    ((0, 1), (2, 3), (4,))
    """

    def groups(self, names: Sequence[str]) -> Groups:
        """See :class:`Clip`."""
        layers: dict[str, list[int]] = {}
        for position, name in enumerate(names):
            layers.setdefault(name.rpartition(".")[0], []).append(position)
        return tuple(tuple(layer) for layer in layers.values())

    def factors(self, norms: Tensor) -> Tensor:
        """See :class:`Clip`."""
        return _cut(norms, self.max_norm / math.sqrt(norms.shape[1]))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Automatic(_Bound):
    """Normalise instead of cutting: g · C / (‖g‖ + stability). Every example weighs nearly the same; C needs no tuning.

    Guarantees: no example's clipped gradient is longer than ``max_norm``; it is always a little shorter.

    >>> import torch
    >>> Automatic(max_norm=1.0).factors(torch.tensor([[0.99], [float("inf")]])).flatten().tolist()
    [1.0, 0.0]
    >>> Automatic(max_norm=2.0)
    Automatic(max_norm=2.0, stability=0.01)
    """

    stability: float = 0.01

    def __post_init__(self) -> None:
        positive("max_norm", self.max_norm)
        positive("stability", self.stability)

    def factors(self, norms: Tensor) -> Tensor:
        """See :class:`Clip`."""
        return (norms + self.stability).reciprocal_().mul_(self.max_norm).nan_to_num_(nan=0.0)


def _cut(norms: Tensor, bound: float) -> Tensor:
    """min(1, bound / norm), and 0 for a norm that is not finite."""
    return norms.reciprocal().mul_(bound).clamp_(max=1.0).nan_to_num_(nan=0.0)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantileClip:
    """:class:`~quietsum.mechanisms.quantile.QuantileRule` for records. ``count_noise`` is σ_b, usually batch / 20.

    Guarantees: the count's noise has exactly the law of a rounded normal on the half-integers, where the sum lies; its
    cost is inside ``joint_noise``, which never exceeds what was asked of ``gradient_noise``.
    """

    count_noise: float
    quantile: float = 0.5
    learning_rate: float = 0.2
    rng: RandomSource = dataclasses.field(default_factory=system_randomness, repr=False, compare=False)

    def __post_init__(self) -> None:
        _ = self.rule  # which checks the numbers

    @property
    def rule(self) -> QuantileRule:
        """The same without randomness."""
        return QuantileRule(count_noise=self.count_noise, quantile=self.quantile, learning_rate=self.learning_rate)

    def gradient_noise(self, noise_multiplier: float) -> float:
        """σ_Δ, rounded up: what the gradient gets so that both together cost ``noise_multiplier``."""
        return self.rule.sum_noise(noise_multiplier)

    def joint_noise(self, gradient_noise: float) -> float:
        """σ of the joint release of a gradient with noise σ_Δ and the count."""
        return self.rule.joint_noise(gradient_noise)

    def next_norm(self, max_norm: float, *, small: int, batch: int, expected_batch: float) -> float:
        """The bound for the next step, from ``small`` of ``batch`` records within the present one. A release.

        Records that were not drawn count as nothing, so the divisor is the public ``expected_batch``.
        """
        return self.rule.next_bound(max_norm, doubled=2 * small - batch, expected=expected_batch, rng=self.rng)

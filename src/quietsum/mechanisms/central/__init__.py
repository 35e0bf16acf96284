"""Mechanisms of a trusted curator, who holds the rows and adds the noise, once, to what leaves.

One number or one vector: :class:`LaplaceMechanism`, :class:`GaussianMechanism`; whole numbers:
:class:`DiscreteLaplaceMechanism`, :class:`DiscreteGaussianMechanism`, :class:`SkellamMechanism`; one choice of several:
:class:`ExponentialMechanism`, :class:`PermuteAndFlip`, :class:`ReportNoisyMax`. Each takes a sensitivity with its norm
(:class:`L1`, :class:`L2`, :class:`LInf`), has ``release`` and states its ``event()`` and its ``failure()``.

Guarantees: values are put on a grid that follows from public parameters alone, noise is integer with its exact law,
from the operating system's generator; what rounding may add to the sensitivity is inside the noise. The last bits of a
float betray nothing (Mironov 2012; Haney et al. 2022).
"""

from __future__ import annotations

from quietsum.mechanisms.central.additive import GaussianMechanism, LaplaceMechanism
from quietsum.mechanisms.central.integers import DiscreteGaussianMechanism, DiscreteLaplaceMechanism, SkellamMechanism
from quietsum.mechanisms.central.selection import ExponentialMechanism, PermuteAndFlip, ReportNoisyMax
from quietsum.mechanisms.central.sensitivity import L1, L2, LInf

__all__ = [
    "L1",
    "L2",
    "DiscreteGaussianMechanism",
    "DiscreteLaplaceMechanism",
    "ExponentialMechanism",
    "GaussianMechanism",
    "LInf",
    "LaplaceMechanism",
    "PermuteAndFlip",
    "ReportNoisyMax",
    "SkellamMechanism",
]

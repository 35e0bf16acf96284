"""Secure aggregation: the server learns one sum, and no party's vector.

The building blocks, each usable alone: :mod:`~quietsum.secagg.parameters` (how many neighbours and shares),
:mod:`~quietsum.secagg.graph` (who masks with whom), :mod:`~quietsum.secagg.keys`, :mod:`~quietsum.secagg.shamir` over
:mod:`~quietsum.secagg.field`, and :mod:`~quietsum.secagg.masks`. Nothing here talks to a network or a disk, but for an
identity's file.
"""

from __future__ import annotations

from quietsum.secagg.keys import Identity, Pair
from quietsum.secagg.parameters import Adversary, Parameters, choose

__all__ = ["Adversary", "Identity", "Pair", "Parameters", "choose"]

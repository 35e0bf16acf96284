"""Secure aggregation: the server learns one sum, and no party's vector.

The building blocks, each usable alone: :mod:`~quietsum.secagg.parameters` (how many neighbours and shares),
:mod:`~quietsum.secagg.graph` (who masks with whom), :mod:`~quietsum.secagg.keys`, :mod:`~quietsum.secagg.shamir` over
:mod:`~quietsum.secagg.field`, :mod:`~quietsum.secagg.masks`, and :mod:`~quietsum.secagg.layout` (named parts on integer
grids, with a proof that no sum wraps around). On them stands the protocol, as two machines that take and return bytes:
:class:`~quietsum.secagg.party.Party` and :class:`~quietsum.secagg.server.Server`, with their
:mod:`~quietsum.secagg.messages` and :mod:`~quietsum.secagg.outcomes`. Nothing here talks to a network or a disk, but
for an identity's file.
"""

from __future__ import annotations

from quietsum.secagg.keys import Identity, Pair
from quietsum.secagg.layout import Layout, NamedVector
from quietsum.secagg.messages import DRAWING, Step, Terms
from quietsum.secagg.outcomes import Outcome, Reason, Refused
from quietsum.secagg.parameters import Adversary, Parameters, choose
from quietsum.secagg.party import Party, Policy
from quietsum.secagg.server import GroupSum, Loss, Server

__all__ = [
    "DRAWING",
    "Adversary",
    "GroupSum",
    "Identity",
    "Layout",
    "Loss",
    "NamedVector",
    "Outcome",
    "Pair",
    "Parameters",
    "Party",
    "Policy",
    "Reason",
    "Refused",
    "Server",
    "Step",
    "Terms",
    "choose",
]

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

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.secagg.cost import SessionCost as SessionCost, estimate as estimate, measure as measure
    from quietsum.secagg.keys import Identity as Identity, KeyPair as KeyPair
    from quietsum.secagg.layout import Layout as Layout, NamedVector as NamedVector, centre_lift as centre_lift
    from quietsum.secagg.messages import DRAWING as DRAWING, DRAWS as DRAWS, SessionTerms as SessionTerms, Step as Step
    from quietsum.secagg.outcomes import Reason as Reason, Refused as Refused, SessionOutcome as SessionOutcome
    from quietsum.secagg.parameters import (
        FEWEST_IN_GROUP as FEWEST_IN_GROUP,
        SECURITY_FAILURE as SECURITY_FAILURE,
        SPARSE_FROM as SPARSE_FROM,
        Adversary as Adversary,
        Parameters as Parameters,
        choose_groups as choose_groups,
        choose_parameters as choose_parameters,
    )
    from quietsum.secagg.party import Demands as Demands, Party as Party
    from quietsum.secagg.rotation import (
        error as error,
        pad_to_power as pad_to_power,
        rotate as rotate,
        rotate_back as rotate_back,
    )
    from quietsum.secagg.server import GroupSum as GroupSum, LostParty as LostParty, Server as Server
else:
    __getattr__, __dir__, __all__ = open_door(__name__)

"""One round, over any carrier of messages: reserve, draw, ask, commit, step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.federation.canaries import (
        CarriedClients as CarriedClients,
        ClientCanaries as ClientCanaries,
        clients_folder as clients_folder,
        clients_label as clients_label,
    )
    from quietsum.federation.checks.clients import CheckedClients as CheckedClients
    from quietsum.federation.checks.shares import CheckedShares as CheckedShares
    from quietsum.federation.drills import refuse_drill as refuse_drill
    from quietsum.federation.flower.coordinator import FlowerTransport as FlowerTransport
    from quietsum.federation.flower.node import serve_node as serve_node
    from quietsum.federation.flower.superlink import (
        GivenUp as GivenUp,
        SuperLink as SuperLink,
        SuperLinkFailed as SuperLinkFailed,
        is_loopback as is_loopback,
        read_access as read_access,
    )
    from quietsum.federation.groups import group_name as group_name
    from quietsum.federation.local import LocalFederation as LocalFederation
    from quietsum.federation.messages import (
        QUESTIONS as QUESTIONS,
        Federation as Federation,
        Lost as Lost,
        PartyRefusal as PartyRefusal,
        StepAnswer as StepAnswer,
        StepQuestion as StepQuestion,
        Sums as Sums,
        TrainRequest as TrainRequest,
        Update as Update,
        model_hash as model_hash,
    )
    from quietsum.federation.remote.federation import RemoteFederation as RemoteFederation
    from quietsum.federation.remote.transport import (
        Arrival as Arrival,
        ListTransport as ListTransport,
        Transport as Transport,
    )
    from quietsum.federation.round import (
        first_state as first_state,
        fold_of as fold_of,
        limits_of as limits_of,
        refuse_unmasked as refuse_unmasked,
        run_round as run_round,
        tell_findings as tell_findings,
    )
    from quietsum.federation.watch import (
        FindingReported as FindingReported,
        GroupJudged as GroupJudged,
        GuardedWatcher as GuardedWatcher,
        PartyDropped as PartyDropped,
        PartyRejected as PartyRejected,
        RoundFinished as RoundFinished,
        RoundStarted as RoundStarted,
        RunEvent as RunEvent,
        RunFinished as RunFinished,
        RunStarted as RunStarted,
        Watcher as Watcher,
        event_to_dict as event_to_dict,
        guard as guard,
        tell as tell,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)

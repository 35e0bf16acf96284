"""A site: its data, its work in a round, its refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.party.alerting import SiteAlerts as SiteAlerts
    from quietsum.party.books import (
        SiteBooks as SiteBooks,
        canaries_beside as canaries_beside,
        charges_digest as charges_digest,
        enrolment_charges as enrolment_charges,
        find_enrolment as find_enrolment,
        site_charges as site_charges,
        write_resolved as write_resolved,
    )
    from quietsum.party.data import SHOWS as SHOWS, DataCheck as DataCheck, is_awaited as is_awaited
    from quietsum.party.peers import UnknownPeer as UnknownPeer, key_in as key_in
    from quietsum.party.policy import (
        AllowedTask as AllowedTask,
        CoordinatorAddress as CoordinatorAddress,
        Policy as Policy,
        layers_of as layers_of,
    )
    from quietsum.party.policy_file import (
        first_policy as first_policy,
        load_policy as load_policy,
        parse_policy as parse_policy,
    )
    from quietsum.party.secure import (
        AttemptKey as AttemptKey,
        Contribution as Contribution,
        SecureSite as SecureSite,
        absent as absent,
        contribution_of as contribution_of,
        sessions_of as sessions_of,
        terms_of as terms_of,
    )
    from quietsum.party.service import LogOnce as LogOnce, SiteService as SiteService
    from quietsum.party.site_task import (
        dataset_readers as dataset_readers,
        make_task as make_task,
        read_records as read_records,
        try_task as try_task,
    )
    from quietsum.party.status import (
        FILTER as FILTER,
        NO_GATE as NO_GATE,
        NOTHING as NOTHING,
        ONE_RUN as ONE_RUN,
        OVERDRAWN as OVERDRAWN,
        status_of as status_of,
    )
    from quietsum.party.work import (
        AnsweredBefore as AnsweredBefore,
        NotTouched as NotTouched,
        Site as Site,
        TooLate as TooLate,
        calmly as calmly,
        failure as failure,
        look_for_data as look_for_data,
        model_hash as model_hash,
        on_no_rows as on_no_rows,
        rehearse_task as rehearse_task,
        release as release,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)

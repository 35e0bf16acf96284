"""Audit: is a finished run what it claims to be, and are the claims of others?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.audit.claims.checking import (
        CheckedClaim as CheckedClaim,
        CheckedLine as CheckedLine,
        Ruling as Ruling,
        check_claim as check_claim,
    )
    from quietsum.audit.claims.files import read_claim as read_claim
    from quietsum.audit.claims.registry import SystemReader as SystemReader, list_systems as list_systems
    from quietsum.audit.claims.terms import StepTerms as StepTerms, step_terms as step_terms
    from quietsum.audit.claims.values import (
        ClaimFile as ClaimFile,
        ClaimLine as ClaimLine,
        Remark as Remark,
        RemarkKind as RemarkKind,
        Stated as Stated,
    )
    from quietsum.audit.clients import (
        CLIENT_AUDIT as CLIENT_AUDIT,
        ClientAudit as ClientAudit,
        audit_clients as audit_clients,
        audit_run_clients as audit_run_clients,
        estimate_epsilon as estimate_epsilon,
        name_client_faults as name_client_faults,
        read_client_audit as read_client_audit,
    )
    from quietsum.audit.evidence import (
        Evidence as Evidence,
        Observed as Observed,
        Power as Power,
        forecast_power as forecast_power,
    )
    from quietsum.audit.inversion.gradients import (
        attack_gradients as attack_gradients,
        invert_dense as invert_dense,
        invert_update as invert_update,
    )
    from quietsum.audit.inversion.models import attack_classes as attack_classes, invert_class as invert_class
    from quietsum.audit.linking.attributes import attack_attribute as attack_attribute
    from quietsum.audit.linking.people import link_people as link_people, link_recordings as link_recordings
    from quietsum.audit.membership.finished import ATTACKS as ATTACKS, audit_membership as audit_membership
    from quietsum.audit.membership.judge import (
        MembershipAudit as MembershipAudit,
        MembershipScore as MembershipScore,
        judge_membership as judge_membership,
    )
    from quietsum.audit.membership.rates import OperatingPoint as OperatingPoint
    from quietsum.audit.membership.scores import (
        measure_losses as measure_losses,
        score_by_loss as score_by_loss,
        score_by_references as score_by_references,
    )
    from quietsum.audit.membership.targets import draw_members as draw_members, draw_references as draw_references
    from quietsum.audit.one_run import bears_out as bears_out
    from quietsum.audit.outcome import (
        AttackOutcome as AttackOutcome,
        Success as Success,
        write_outcomes as write_outcomes,
    )
    from quietsum.audit.runs import audit_run as audit_run, folder_of as folder_of
    from quietsum.audit.shares import bound_share as bound_share
    from quietsum.audit.sites import audit_site as audit_site
    from quietsum.audit.trainings import AUDIT as AUDIT, audit_training as audit_training, read_audit as read_audit
    from quietsum.audit.verdict import (
        CanaryAudit as CanaryAudit,
        CanaryClaim as CanaryClaim,
        Conclusion as Conclusion,
        conclude as conclude,
        judge_canaries as judge_canaries,
        judge_parties as judge_parties,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)

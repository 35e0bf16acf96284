"""The audit that a site makes of itself: its own record of canaries against the plan that its own ledger has frozen.

A run's coordinator must not see such a record: if the run is not what it says, it may tell of real records. So it stays
where it was made, with the coins, and the site's owner holds it against the claim. What was concluded lies beside it,
for its owner alone, who may pass it on: under the claim it is a function of coins that know nothing of the data.
"""

from __future__ import annotations

from pathlib import Path

from quietsum.audit.runs import claims_of
from quietsum.audit.trainings import AUDIT, write_audit
from quietsum.audit.verdict import CanaryAudit, judge_canaries
from quietsum.errors import CorruptState, QuietsumError
from quietsum.files import PRIVATE
from quietsum.learning import read_party, site_folder
from quietsum.ledger import Ledger, ledger_exists
from quietsum.party import Policy, canaries_beside, find_enrolment

__all__ = ["audit_site"]


def audit_site(run: str, policy: Policy) -> tuple[CanaryAudit, Path]:
    """Judge what this site's steps in ``run`` did to its canaries; the verdict, and the file where it is written.

    Guarantees: no data is read and nothing is charged; a site whose draws, clip and noise are those of the plan is
    contradicted with a chance of at most 1e-6. Raises QuietsumError where the run carried no canaries here.
    """
    place = policy.path(policy.site.ledger)
    if not ledger_exists(place):
        raise QuietsumError(f"{place} does not exist, so there is no run to audit; name the site's --site policy.toml")
    with Ledger.open(place, read_only=True) as ledger:
        name, resolved = find_enrolment(ledger, run)
    if not resolved.plan.training.canaries:
        raise QuietsumError(
            f"{run} carried no canaries, and they cannot be added afterwards; they are part of a plan: "
            "training.canaries = 100"
        )
    folder = site_folder(canaries_beside(place), name, resolved.plan.digest)
    own = read_party(folder, name)
    if own is None:
        raise CorruptState(f"{folder} is missing, and the plan of {run} has canaries; restore it from a backup")
    claim = claims_of(resolved)(policy.name, own.rounds.tolist(), own.more.tolist())
    audit = judge_canaries(own.record, claim)
    write_audit(folder / AUDIT, run, audit.to_dict(), record=folder, mode=PRIVATE)
    return audit, folder / AUDIT

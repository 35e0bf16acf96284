"""Membership in a finished training of a workspace: its model's losses on who trained and on rows that did not.

Who trained was not chosen by coins here, so nothing is proved of the claim, and the answer is inconclusive about it; it
shows what a loss threshold gets out of this model, beside what the claim leaves any attacker. The figures are about
protected records. They are written for their owner alone, and cost nothing as long as they stay there.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from quietsum.audit.membership.judge import MembershipAudit, judge_membership
from quietsum.audit.membership.scores import measure_losses, score_by_loss
from quietsum.audit.outcome import write_outcomes
from quietsum.errors import InvalidParameter
from quietsum.files import read_file
from quietsum.runs import Workspace, open_model
from quietsum.tasks import optional_part, trainable_task

__all__ = ["ATTACKS", "audit_membership"]

ATTACKS = "attacks.json"
"""The file beside a training that holds what attacks made of it, for its owner alone."""


def audit_membership(run: str, workspace: Workspace) -> tuple[MembershipAudit, Path]:
    """Attack the model of the training ``run`` by its losses, and write ``attacks.json`` with mode 0600 beside it.

    The task must have ``hold_out()``, rows that need no protection. Raises InvalidParameter without them, and where
    ``run`` is no finished training.
    """
    folder = workspace.path / "training" / run
    if run == "latest" or not (folder / "options.json").is_file():
        problem = f"is no finished training of {workspace.path}"
        remedy = "quietsum train makes one; a federation's clients are audited with --attack clients"
        raise InvalidParameter("run", run, problem, remedy)
    found = open_model(run, workspace)
    task = trainable_task(json.loads(read_file(folder / "options.json"))["task"])  # open_model has looked at it
    hold_out = optional_part(task, "hold_out")
    if hold_out is None:
        problem = "has no hold_out(), rows to compare members with"
        remedy = "give the task one, or use quietsum.audit.judge_membership with rows of your own"
        raise InvalidParameter("task", str(task.name), problem, remedy)
    model = found.module
    members, others = (
        measure_losses(model, task.loss, tuple(rows)) for rows in (task.records(), hold_out())
    )  # fmt: skip
    included = np.arange(len(members) + len(others)) < len(members)
    audit = judge_membership(
        {"loss threshold": score_by_loss(np.concatenate([members, others]))}, included, by_coins=False,
        claim=found.guarantees[0],
    )  # fmt: skip
    path = folder / ATTACKS
    write_outcomes(path, {"run": run, "membership": audit.to_dict()})
    return audit, path

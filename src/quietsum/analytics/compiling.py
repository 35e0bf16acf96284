"""A file of questions as a plan of one round, and the noise of its answers.

The clip is 1, every record is in the batch and the step is as long as all declared sizes together, so that the model
after the round is the noisy sum itself: site i sends S_i · (n / n_i), its weight is n_i / n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from quietsum.analytics.questions import QuestionFile
from quietsum.plan import (
    AggregationPlan,
    FederationPlan,
    OptimizerPlan,
    PersonPlan,
    Plan,
    PrivacyPlan,
    RecordPlan,
    ResolvedPlan,
    TaskPlan,
    TrainingPlan,
)
from quietsum.privacy import Budget, PrivacyUnit

__all__ = ["TASK", "choose_budget", "deviation_of", "plan_of"]

TASK = "questions"
"""The task of such a plan."""
DEADLINE = 600.0
"""Seconds that sites elsewhere may take."""


def plan_of(asked: QuestionFile, tables: Mapping[str, str] | None = None) -> Plan:
    """The plan of one round. Without ``tables`` the sites know where theirs are.

    Every site must answer: a sum over some of them is no answer to the question.
    """
    promise, person = asked.privacy, asked.privacy.person
    return Plan(
        task=TaskPlan(name=TASK, options=asked.options(tables)),
        federation=FederationPlan(
            rounds=1, minimum_parties=len(asked.sites), deadline=DEADLINE if tables is None else None
        ),
        training=TrainingPlan(
            sample_rate=1.0,
            local_steps=1,
            optimizer=OptimizerPlan(learning_rate=float(sum(site.size for site in asked.sites))),
        ),
        privacy=PrivacyPlan(
            person=None
            if person is None
            else PersonPlan(
                id=person.column, max_records=person.max_records, epsilon=promise.epsilon, delta=promise.delta
            ),
            record=RecordPlan(
                epsilon=promise.epsilon if person is None else None,
                delta=promise.delta,
                noise_at="distributed" if promise.secure else "party",
                lifetime=promise.lifetime,
            ),
        ),
        aggregation=AggregationPlan(secure=promise.secure, weights="size", drop_outs=0.0 if promise.secure else None),
    )


def choose_budget(resolved: ResolvedPlan) -> Budget:
    """What such a plan promises: to people where it bounds their records, else to records."""
    return resolved.limit_of(PrivacyUnit.PERSON) or resolved.limit_of(PrivacyUnit.RECORD) or resolved.limits[0]


def deviation_of(resolved: ResolvedPlan) -> float:
    """The standard deviation of the noise in each coordinate of the sum of all sites' vectors."""
    count = len(resolved.parties)
    shares = resolved.noise_shares(PrivacyUnit.RECORD)
    if shares is not None:  # so many shares, of which the honest ones alone are worth the multiplier
        return shares.noise_multiplier * shares.max_norm * math.sqrt(count / shares.honest)
    mechanism = resolved.record_mechanism()
    assert mechanism is not None
    return mechanism.noise_multiplier * mechanism.max_norm * math.sqrt(count)

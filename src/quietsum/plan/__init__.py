"""The whole run as one frozen value, its charges and its forecast.

``run.toml`` ⇄ :class:`Plan`; :func:`resolve` meets it with what a task declares about its parties, refuses what would
break a promise, calibrates the noise, and answers with a :class:`ResolvedPlan`.
"""

from __future__ import annotations

from quietsum.plan.options import Options
from quietsum.plan.orders import LocalOrders
from quietsum.plan.presets import PRESETS, Preset, safe_delta
from quietsum.plan.resolution.forecast import ClientSignal, Forecast, ForecastRow, Profile, Signal
from quietsum.plan.resolution.resolved import NO_GUARANTEE, ResolvedPlan
from quietsum.plan.resolution.resolving import resolve
from quietsum.plan.secure import SecurePlan
from quietsum.plan.text.files import json_schema, keys, load_plan, read_plan
from quietsum.plan.values import (
    AdaptivePlan,
    AggregationPlan,
    AttackPlan,
    ClientPlan,
    FederationPlan,
    LifetimePlan,
    OptimizerPlan,
    PartyFacts,
    PersonPlan,
    Plan,
    PrivacyPlan,
    RecordPlan,
    SamplingPlan,
    ServerOptimizerPlan,
    SimulatePlan,
    StagePlan,
    Style,
    TaskPlan,
    TrainingPlan,
)

__all__ = [
    "NO_GUARANTEE",
    "PRESETS",
    "AdaptivePlan",
    "AggregationPlan",
    "AttackPlan",
    "ClientPlan",
    "ClientSignal",
    "FederationPlan",
    "Forecast",
    "ForecastRow",
    "LifetimePlan",
    "LocalOrders",
    "OptimizerPlan",
    "Options",
    "PartyFacts",
    "PersonPlan",
    "Plan",
    "Preset",
    "PrivacyPlan",
    "Profile",
    "RecordPlan",
    "ResolvedPlan",
    "SamplingPlan",
    "SecurePlan",
    "ServerOptimizerPlan",
    "Signal",
    "SimulatePlan",
    "StagePlan",
    "Style",
    "TaskPlan",
    "TrainingPlan",
    "json_schema",
    "keys",
    "load_plan",
    "read_plan",
    "resolve",
    "safe_delta",
]

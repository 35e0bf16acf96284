"""The whole run as one frozen value, its charges and its forecast.

``run.toml`` ⇄ :class:`Plan`; :func:`resolve` meets it with what a task declares about its parties, refuses what would
break a promise, calibrates the noise, and answers with a :class:`ResolvedPlan`.
"""

from __future__ import annotations

from quietsum.plan.files import json_schema, keys, load_plan, read_plan
from quietsum.plan.forecast import Forecast, ForecastRow, Profile, Signal
from quietsum.plan.options import Options
from quietsum.plan.presets import PRESETS, Preset, safe_delta
from quietsum.plan.resolved import NO_GUARANTEE, ResolvedPlan, resolve
from quietsum.plan.values import (
    AggregationPlan,
    ClientPlan,
    FederationPlan,
    LifetimePlan,
    OptimizerPlan,
    PartyFacts,
    Plan,
    PrivacyPlan,
    RecordPlan,
    SamplingPlan,
    SimulatePlan,
    Style,
    TaskPlan,
    TrainingPlan,
)

__all__ = [
    "NO_GUARANTEE",
    "PRESETS",
    "AggregationPlan",
    "ClientPlan",
    "FederationPlan",
    "Forecast",
    "ForecastRow",
    "LifetimePlan",
    "OptimizerPlan",
    "Options",
    "PartyFacts",
    "Plan",
    "Preset",
    "PrivacyPlan",
    "Profile",
    "RecordPlan",
    "ResolvedPlan",
    "SamplingPlan",
    "Signal",
    "SimulatePlan",
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

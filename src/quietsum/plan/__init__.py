"""The whole run as one frozen value, its charges and its forecast.

``run.toml`` ⇄ :class:`Plan`; :func:`resolve` meets it with what a task declares about its parties, refuses what would
break a promise, calibrates the noise, and answers with a :class:`ResolvedPlan`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.plan.attack import ATTACK_KINDS as ATTACK_KINDS
    from quietsum.plan.groups import (
        CONTAMINATED as CONTAMINATED,
        SESSIONS as SESSIONS,
        Grouping as Grouping,
        fewest_groups as fewest_groups,
        grouping as grouping,
        sessions_of as sessions_of,
    )
    from quietsum.plan.options import Options as Options
    from quietsum.plan.orders import LocalOrders as LocalOrders
    from quietsum.plan.promises import PRESETS as PRESETS, Preset as Preset, safe_delta as safe_delta
    from quietsum.plan.refusals import (
        REFUSALS as REFUSALS,
        check_plan as check_plan,
        cohort_of as cohort_of,
        taking_part as taking_part,
    )
    from quietsum.plan.refusals.robust import run_ends as run_ends
    from quietsum.plan.resolution.card import Clause as Clause, GuaranteeCard as GuaranteeCard, card as card
    from quietsum.plan.resolution.charging import charge as charge, span as span, units as units
    from quietsum.plan.resolution.forecast import (
        ClientSignal as ClientSignal,
        Forecast as Forecast,
        ForecastRow as ForecastRow,
        Profile as Profile,
        Signal as Signal,
    )
    from quietsum.plan.resolution.layers import LAYERS as LAYERS, OFF as OFF, ON as ON, Layer as Layer, layers as layers
    from quietsum.plan.resolution.learnable import Learnable as Learnable, Prospect as Prospect, predict as predict
    from quietsum.plan.resolution.lengths import (
        LARGEST as LARGEST,
        longest_update as longest_update,
        noise_in_update as noise_in_update,
    )
    from quietsum.plan.resolution.rehearsal import Rehearsal as Rehearsal, rehearse as rehearse
    from quietsum.plan.resolution.resolved import NO_GUARANTEE as NO_GUARANTEE, ResolvedPlan as ResolvedPlan
    from quietsum.plan.resolution.resolving import resolve as resolve
    from quietsum.plan.resolution.sight import sight as sight
    from quietsum.plan.secure import MAX_UPDATE as MAX_UPDATE, SecurePlan as SecurePlan, cohort_size as cohort_size
    from quietsum.plan.text.files import (
        load_plan as load_plan,
        parse_toml as parse_toml,
        read_plan as read_plan,
        read_toml as read_toml,
        value_of as value_of,
    )
    from quietsum.plan.text.reference import (
        json_schema as json_schema,
        keys as keys,
        keys_of as keys_of,
        page as page,
    )
    from quietsum.plan.text.tables import TomlTable as TomlTable
    from quietsum.plan.text.template import OTHER_DEFAULTS as OTHER_DEFAULTS, template as template
    from quietsum.plan.values import (
        AdaptivePlan as AdaptivePlan,
        AggregationPlan as AggregationPlan,
        AttackPlan as AttackPlan,
        ClientPlan as ClientPlan,
        FederationPlan as FederationPlan,
        LifetimePlan as LifetimePlan,
        OptimizerPlan as OptimizerPlan,
        PartyFacts as PartyFacts,
        PersonPlan as PersonPlan,
        Plan as Plan,
        PrivacyPlan as PrivacyPlan,
        RecordPlan as RecordPlan,
        SamplingPlan as SamplingPlan,
        ServerOptimizerPlan as ServerOptimizerPlan,
        SimulatePlan as SimulatePlan,
        StagePlan as StagePlan,
        Style as Style,
        TaskPlan as TaskPlan,
        TrainingPlan as TrainingPlan,
        digest_of as digest_of,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)

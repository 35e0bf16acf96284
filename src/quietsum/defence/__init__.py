"""Defence: data looked at before it is trained on, attacks for drills, and what gives attackers away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.defence.attacks import (
        ATTACKS as ATTACKS,
        Attack as Attack,
        Seen as Seen,
        attack_named as attack_named,
    )
    from quietsum.defence.attribution import Flag as Flag, Rates as Rates, Score as Score, scores as scores
    from quietsum.defence.detection import (
        Detector as Detector,
        Finding as Finding,
        anomaly_indices as anomaly_indices,
        model_triggers as model_triggers,
        trigger_findings as trigger_findings,
    )
    from quietsum.defence.poison import (
        DATA_ATTACKS as DATA_ATTACKS,
        Trigger as Trigger,
        flip_labels as flip_labels,
        plant_backdoor as plant_backdoor,
    )
    from quietsum.defence.rows import poison_task as poison_task, trigger_of as trigger_of
    from quietsum.defence.validation import (
        Problem as Problem,
        Result as Result,
        Schema as Schema,
        first_schema as first_schema,
        fitting as fitting,
        load_schema as load_schema,
        look_at_labels as look_at_labels,
        parse_schema as parse_schema,
        read_table as read_table,
        schema_of_plan as schema_of_plan,
        validate as validate,
    )
    from quietsum.defence.validation.checks import ROW_BY_ROW as ROW_BY_ROW
    from quietsum.defence.validation.tasks import extract_rows as extract_rows
else:
    __getattr__, __dir__, __all__ = open_door(__name__)

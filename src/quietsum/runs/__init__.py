"""Runs: a folder each, checkpoints that survive anything, and watchers that show what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.runs.asking import (
        Asked as Asked,
        answers_in as answers_in,
        ask as ask,
        local_plan as local_plan,
        task_in as task_in,
    )
    from quietsum.runs.checkpoint import (
        header_of as header_of,
        latest_checkpoint as latest_checkpoint,
        newest_checkpoint as newest_checkpoint,
        read_model as read_model,
    )
    from quietsum.runs.coordinator_alerts import AlertWatcher as AlertWatcher, alerting as alerting
    from quietsum.runs.drill import (
        Cell as Cell,
        DrillMatrix as DrillMatrix,
        parse_attack as parse_attack,
        run_drill as run_drill,
    )
    from quietsum.runs.facts import TaskFacts as TaskFacts
    from quietsum.runs.folder import RunFolder as RunFolder, Workspace as Workspace, new_name as new_name
    from quietsum.runs.looking.course import (
        FinishedRound as FinishedRound,
        RunCourse as RunCourse,
        count_drop_outs as count_drop_outs,
        read_course as read_course,
    )
    from quietsum.runs.pictures import heatmap as heatmap
    from quietsum.runs.progress import EventLines as EventLines, Progress as Progress
    from quietsum.runs.record import (
        LeftOut as LeftOut,
        Recorder as Recorder,
        findings as findings,
        plain_scores as plain_scores,
        read_groups as read_groups,
        read_left_out as read_left_out,
        scores_after as scores_after,
    )
    from quietsum.runs.recording import (
        Recording as Recording,
        check_known_rows as check_known_rows,
        open_recording as open_recording,
    )
    from quietsum.runs.run import (
        RunResult as RunResult,
        check_anchors as check_anchors,
        check_whom as check_whom,
        resume_run as resume_run,
        start as start,
    )
    from quietsum.runs.sealed import add_check as add_check, take_check as take_check
    from quietsum.runs.tracking.watcher import MlflowWatcher as MlflowWatcher
    from quietsum.runs.trained import TrainedModel as TrainedModel, open_model as open_model
else:
    __getattr__, __dir__, __all__ = open_door(__name__)

"""Tasks: what is learned, from whose rows. ``heart`` travels with the package; your own is ``"my_module:MyTask"``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.tasks.adapters import (
        AnyTask as AnyTask,
        FederatedNumpy as FederatedNumpy,
        FederatedOwn as FederatedOwn,
        as_task as as_task,
        optional_part as optional_part,
    )
    from quietsum.tasks.checks import check_labels as check_labels
    from quietsum.tasks.classes import refuse_path as refuse_path
    from quietsum.tasks.datafiles import DATASETS as DATASETS, DataSet as DataSet, data_folder as data_folder
    from quietsum.tasks.exporting import write_model as write_model
    from quietsum.tasks.federated import FederatedTorch as FederatedTorch
    from quietsum.tasks.gallery.stgcn import STGCN as STGCN
    from quietsum.tasks.lines import read_header as read_header
    from quietsum.tasks.models import predict_with as predict_with
    from quietsum.tasks.predictions import Predictions as Predictions
    from quietsum.tasks.protocol import (
        Metrics as Metrics,
        NumpyTask as NumpyTask,
        OwnTask as OwnTask,
        Rows as Rows,
        Settings as Settings,
        Task as Task,
        TorchTask as TorchTask,
    )
    from quietsum.tasks.questions import QuestionTask as QuestionTask, oddities as oddities
    from quietsum.tasks.registry import (
        TASKS as TASKS,
        TRAINABLE as TRAINABLE,
        make_named_task as make_named_task,
        make_own_task as make_own_task,
        nearest_name as nearest_name,
        refuse_lacking as refuse_lacking,
        require_torch as require_torch,
        task_named as task_named,
        task_of as task_of,
        trainable_task as trainable_task,
    )
    from quietsum.tasks.roots import (
        refuse_without_root as refuse_without_root,
        rehearse_root as rehearse_root,
        trial_for as trial_for,
    )
    from quietsum.tasks.scores import more_is_better as more_is_better
    from quietsum.tasks.table.drafting import (
        TableDraft as TableDraft,
        draft_table as draft_table,
        fill_from_public_rows as fill_from_public_rows,
        parse_column as parse_column,
        parse_site as parse_site,
        toml_of as toml_of,
    )
    from quietsum.tasks.table.landmarks import shape_of_landmarks as shape_of_landmarks
    from quietsum.tasks.table.options import TableOptions as TableOptions, find_blanks as find_blanks
    from quietsum.tasks.table.pictures import class_folders as class_folders
    from quietsum.tasks.table.samples import (
        SamplesOptions as SamplesOptions,
        SamplesTask as SamplesTask,
        count_samples as count_samples,
    )
    from quietsum.tasks.table.task import TableTask as TableTask
else:
    __getattr__, __dir__, __all__ = open_door(__name__)

"""Tasks: what is learned, from whose rows. ``heart`` travels with the package; your own is ``"my_module:MyTask"``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.tasks.checks import checked_labels as checked_labels
    from quietsum.tasks.datafiles import DATASETS as DATASETS, DataSet as DataSet, data_folder as data_folder
    from quietsum.tasks.federated import FederatedTorch as FederatedTorch
    from quietsum.tasks.protocol import (
        Comparable as Comparable,
        CountsConfusion as CountsConfusion,
        FederatedTask as FederatedTask,
        HasClassRows as HasClassRows,
        HasSlopes as HasSlopes,
        HoldsRoot as HoldsRoot,
        LeavesOut as LeavesOut,
        LooksForData as LooksForData,
        Metrics as Metrics,
        NamesPeople as NamesPeople,
        NumpyTask as NumpyTask,
        Rehearsed as Rehearsed,
        Rehearses as Rehearses,
        RehearsesUnseen as RehearsesUnseen,
        Rows as Rows,
        SumsGradients as SumsGradients,
        TrainsMany as TrainsMany,
        TrainsOnNothing as TrainsOnNothing,
    )
    from quietsum.tasks.questions import QuestionTask as QuestionTask, oddities as oddities, read_header as read_header
    from quietsum.tasks.registry import (
        TASKS as TASKS,
        Task as Task,
        made_by as made_by,
        nearest_name as nearest_name,
        own_steps as own_steps,
        refuse_lacking as refuse_lacking,
        task_named as task_named,
        task_of as task_of,
    )
    from quietsum.tasks.roots import (
        refuse_without_root as refuse_without_root,
        rehearse_root as rehearse_root,
        trial_for as trial_for,
    )
    from quietsum.tasks.scores import more_is_better as more_is_better
    from quietsum.tasks.torch_protocol import Settings as Settings, TorchTask as TorchTask
    from quietsum.tasks.trainable import TRAINABLE as TRAINABLE, trainable_task as trainable_task
else:
    __getattr__, __dir__, __all__ = open_door(__name__)

"""What one process of Flower's simulation keeps between clients: the model and the records."""

from __future__ import annotations

import workload  # type: ignore[import-not-found]  # isort: skip  # first: it decides about threads

import functools
from typing import Any

import torch

torch.set_num_threads(1)


@functools.cache
def model_and_records() -> tuple[Any, Any, Any]:
    """Made once a process."""
    features, labels = (torch.from_numpy(part) for part in workload.pool())
    return torch.nn.Linear(workload.FEATURES, workload.CLASSES), features, labels

"""Detection: what gives odd updates, odd models and odd records away, with the rate at which it errs.

``detector`` looks at the updates of a round and remembers, ``outliers`` holds its tests, ``drift`` looks at the model's
own steps, ``confusion`` at its answers on public rows, ``backdoors`` for short cuts in it and for odd records. What any
of them finds is a ``Finding``: a measurement, and no verdict.
"""

from __future__ import annotations

from quietsum.defence.detection.backdoors import (
    anomaly_indices,
    find_triggers,
    model_triggers,
    spectral_outliers,
    trigger_findings,
)
from quietsum.defence.detection.confusion import confusing, confusion_matrix, find_confusions
from quietsum.defence.detection.detector import RATE, Detector, Measured
from quietsum.defence.detection.drift import Cusum, Drift
from quietsum.defence.detection.findings import Finding
from quietsum.defence.detection.outliers import Outlier, find_opposed, outlying, too_quiet

__all__ = [
    "RATE",
    "Cusum",
    "Detector",
    "Drift",
    "Finding",
    "Measured",
    "Outlier",
    "anomaly_indices",
    "confusing",
    "confusion_matrix",
    "find_confusions",
    "find_opposed",
    "find_triggers",
    "model_triggers",
    "outlying",
    "spectral_outliers",
    "too_quiet",
    "trigger_findings",
]

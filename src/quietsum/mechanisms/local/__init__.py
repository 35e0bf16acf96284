"""Local differential privacy: each answer is randomised where it is given, and the collector is not trusted.

A protocol has two halves: ``privatize`` for the people, ``estimate`` for the collector. Every ε here is that of one
report; reports of the same person add up.

>>> from quietsum.mechanisms.local import choose
>>> survey = choose(["never", "monthly", "weekly", "daily"], epsilon=1.0, n=1000).protocol
>>> reports = survey.privatize(["never"] * 600 + ["daily"] * 400)
>>> estimate = survey.estimate(reports)
>>> estimate.labels[0], bool(abs(estimate.values[0] - 0.6) < 0.3)
('never', True)
"""

from __future__ import annotations

from quietsum.mechanisms.local.choice import NAMES, Choice, choose, make_protocol, protocol_from_dict
from quietsum.mechanisms.local.domain import Ball, Bins, Categories, Domain, Interval, Unfit, categories
from quietsum.mechanisms.local.hadamard import HadamardResponse
from quietsum.mechanisms.local.hashing import LocalHashing
from quietsum.mechanisms.local.mean import MeanProtocol
from quietsum.mechanisms.local.protocol import Estimate, FrequencyProtocol, LocalProtocol, Reports, Tally, on_simplex
from quietsum.mechanisms.local.randomized_response import KRandomizedResponse
from quietsum.mechanisms.local.reports import Header, ReportsReader, read_reports, reports_file
from quietsum.mechanisms.local.sketch import CountMeanSketch
from quietsum.mechanisms.local.unary import Rappor, UnaryEncoding
from quietsum.mechanisms.local.vectors import PrivUnit

__all__ = [
    "NAMES",
    "Ball",
    "Bins",
    "Categories",
    "Choice",
    "CountMeanSketch",
    "Domain",
    "Estimate",
    "FrequencyProtocol",
    "HadamardResponse",
    "Header",
    "Interval",
    "KRandomizedResponse",
    "LocalHashing",
    "LocalProtocol",
    "MeanProtocol",
    "PrivUnit",
    "Rappor",
    "Reports",
    "ReportsReader",
    "Tally",
    "UnaryEncoding",
    "Unfit",
    "categories",
    "choose",
    "make_protocol",
    "on_simplex",
    "protocol_from_dict",
    "read_reports",
    "reports_file",
]

"""Questions to sites: counts, means, quantiles, tables and survival curves, all of one file by one noisy sum.

:mod:`~quietsum.analytics.questions` reads ``questions.toml``, :mod:`~quietsum.analytics.encode` makes one vector of a
record, :mod:`~quietsum.analytics.answers` makes answers with intervals of the noisy sum, and
:func:`~quietsum.analytics.compiling.plan_of` makes a plan of one round, which runs like any other.
"""

from quietsum.analytics.answers import Answer, Estimate, answers_of
from quietsum.analytics.columns import Column
from quietsum.analytics.compiling import TASK, deviation_of, plan_of, promised
from quietsum.analytics.encode import Design
from quietsum.analytics.questions import (
    Question,
    QuestionFile,
    check_questions,
    load_questions,
    parse_questions,
)

__all__ = [
    "TASK",
    "Answer",
    "Column",
    "Design",
    "Estimate",
    "Question",
    "QuestionFile",
    "answers_of",
    "check_questions",
    "deviation_of",
    "load_questions",
    "parse_questions",
    "plan_of",
    "promised",
]

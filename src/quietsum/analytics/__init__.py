"""Questions to sites: counts, means, quantiles, tables and survival curves, all of one file by one noisy sum.

:mod:`~quietsum.analytics.questions` reads ``questions.toml``, :mod:`~quietsum.analytics.encode` makes one vector of a
record, :mod:`~quietsum.analytics.answers` makes answers with intervals of the noisy sum, and
:func:`~quietsum.analytics.compiling.plan_of` makes a plan of one round, which runs like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.analytics.answers import Answer as Answer, NoisyValue as NoisyValue, answers_of as answers_of
    from quietsum.analytics.columns import Column as Column
    from quietsum.analytics.compiling import (
        TASK as TASK,
        choose_budget as choose_budget,
        deviation_of as deviation_of,
        plan_of as plan_of,
    )
    from quietsum.analytics.encode import Design as Design
    from quietsum.analytics.questions import (
        ASKED as ASKED,
        AskedSite as AskedSite,
        Question as Question,
        QuestionFile as QuestionFile,
        check_questions as check_questions,
        load_questions as load_questions,
        parse_questions as parse_questions,
    )
    from quietsum.analytics.survival import series_of as series_of
else:
    __getattr__, __dir__, __all__ = open_door(__name__)

"""Trade-off: what privacy costs in score, and what finding out would cost in privacy.

``outcomes`` holds one run's score, ``analysis`` turns many into a table with intervals, ``searching`` prices a search
over settings, ``sweep`` makes the runs and ``picture`` draws them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.tradeoff.analysis import (
        PlainRow as PlainRow,
        PrivateRow as PrivateRow,
        Tradeoff as Tradeoff,
        analyze_privacy_utility_tradeoff as analyze_privacy_utility_tradeoff,
    )
    from quietsum.tradeoff.notebook_view import interval_text as interval_text
    from quietsum.tradeoff.outcomes import Outcome as Outcome
    from quietsum.tradeoff.picture import chart_of as chart_of
    from quietsum.tradeoff.searching import SearchCost as SearchCost, search_cost as search_cost
    from quietsum.tradeoff.sweep import (
        Job as Job,
        epsilons_in as epsilons_in,
        jobs_for as jobs_for,
        run_here as run_here,
        schedule_run as schedule_run,
    )
    from quietsum.tradeoff.workers import run_in_processes as run_in_processes
else:
    __getattr__, __dir__, __all__ = open_door(__name__)

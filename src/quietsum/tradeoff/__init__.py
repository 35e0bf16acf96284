"""Trade-off: what privacy costs in score, and what finding out would cost in privacy.

``outcomes`` holds one run's score, ``analysis`` turns many into a table with intervals, ``searching`` prices a search
over settings, ``sweep`` makes the runs and ``picture`` draws them.
"""

from __future__ import annotations

from quietsum.tradeoff.analysis import PlainRow, PrivateRow, Tradeoff, analyze_privacy_utility_tradeoff
from quietsum.tradeoff.outcomes import Outcome
from quietsum.tradeoff.searching import SearchCost, search_cost

__all__ = [
    "Outcome",
    "PlainRow",
    "PrivateRow",
    "SearchCost",
    "Tradeoff",
    "analyze_privacy_utility_tradeoff",
    "search_cost",
]

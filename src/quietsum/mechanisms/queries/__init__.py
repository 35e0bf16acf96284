"""Questions to one table, each with its noise: counts, sums, means, histograms, quantiles; rankings; draws from models.

Every query is a frozen value that holds only public things (bounds, categories, ε); rows are passed to ``release``. It
states its ``event()`` and ``failure(...)``, so that an accountant or a ledger can be charged before anything leaves.
One row is one protected unit: where a person may have k rows, bound them to k first and wrap the event in
``Group(size=k)``.

>>> from quietsum.privacy import ClassicalAccountant
>>> ages = [34.0, 51.5, 130.0, 47.0]
>>> query = NoisyMean(epsilon=1.0, bounds=(18, 100))
>>> 18 <= query.release(ages) <= 100
True
>>> ClassicalAccountant(rule="basic").compose(query.event()).epsilon(delta=1e-12).epsilon
1.0
"""

from __future__ import annotations

from quietsum.mechanisms.queries.models import PosteriorSample, PrivateNextToken
from quietsum.mechanisms.queries.rankings import PrivateRanking, ScoreRelease, TopK
from quietsum.mechanisms.queries.tables import NoisyCount, NoisyHistogram, NoisyMean, NoisyQuantile, NoisySum

__all__ = [
    "NoisyCount",
    "NoisyHistogram",
    "NoisyMean",
    "NoisyQuantile",
    "NoisySum",
    "PosteriorSample",
    "PrivateNextToken",
    "PrivateRanking",
    "ScoreRelease",
    "TopK",
]

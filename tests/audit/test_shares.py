"""The interval of a share, beside scipy's own, and by how often it covers."""

from __future__ import annotations

import pytest
from scipy import stats

from quietsum.audit import bound_share
from quietsum.errors import InvalidParameter


@pytest.mark.parametrize("count, trials", [(0, 10), (3, 10), (10, 10), (17, 4000), (1, 1)])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999999])
def test_it_is_the_interval_of_clopper_and_pearson(count: int, trials: int, confidence: float) -> None:
    theirs = stats.binomtest(count, trials).proportion_ci(confidence_level=confidence, method="exact")
    assert bound_share(count, trials, confidence=confidence) == pytest.approx((theirs.low, theirs.high), rel=1e-6)


@pytest.mark.parametrize("chance", [0.01, 0.3, 0.97])
def test_it_covers_as_often_as_it_says(chance: float) -> None:
    trials = 60
    covered = sum(
        stats.binom.pmf(count, trials, chance)
        for count in range(trials + 1)
        if bound_share(count, trials)[0] <= chance <= bound_share(count, trials)[1]
    )
    assert covered >= 0.95


def test_the_control_the_textbook_interval_covers_less() -> None:
    trials, chance = 60, 0.01
    covered = 0.0
    for count in range(trials + 1):
        share = count / trials
        half = 1.96 * (share * (1 - share) / trials) ** 0.5
        covered += stats.binom.pmf(count, trials, chance) if share - half <= chance <= share + half else 0.0
    assert covered < 0.95


def test_more_successes_than_trials_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="is more than the 3 trials"):
        bound_share(4, 3)

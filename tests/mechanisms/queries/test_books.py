"""Every mechanism and every query can be charged to a ledger, before anything leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quietsum import Budget, BudgetExhausted, Composed, PrivacyUnit, mechanisms as q
from quietsum.ledger import Charge, Dataset, Ledger, Terms
from quietsum.mechanisms import queries

EPSILON = 0.1
RELEASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "laplace": (q.LaplaceMechanism(epsilon=EPSILON, sensitivity=1), (3,)),
    "gaussian": (q.GaussianMechanism(epsilon=EPSILON, delta=1e-7, sensitivity=1), (3,)),
    "discrete laplace": (q.DiscreteLaplaceMechanism(epsilon=EPSILON, sensitivity=1), (3,)),
    "discrete gaussian": (q.DiscreteGaussianMechanism(epsilon=EPSILON, delta=1e-7, sensitivity=1), ()),
    "skellam": (q.SkellamMechanism(epsilon=EPSILON, delta=1e-7, sensitivity=q.L2(2), dimension=3), ()),
    "exponential": (q.ExponentialMechanism(epsilon=EPSILON, sensitivity=1), (5,)),
    "permute and flip": (q.PermuteAndFlip(epsilon=EPSILON, sensitivity=1), (5,)),
    "report noisy max": (q.ReportNoisyMax(epsilon=EPSILON, sensitivity=1), (5,)),
    "count": (queries.NoisyCount(epsilon=EPSILON), ()),
    "sum": (queries.NoisySum(epsilon=EPSILON, bounds=(0, 1)), ()),
    "mean": (queries.NoisyMean(epsilon=EPSILON, bounds=(0, 1)), ()),
    "histogram": (queries.NoisyHistogram(epsilon=EPSILON, categories="abc"), ()),
    "quantile": (queries.NoisyQuantile(epsilon=EPSILON, candidates=(1, 2)), ()),
    "top k": (queries.TopK(k=3, epsilon=EPSILON, sensitivity=1), (5,)),
    "ranking": (queries.PrivateRanking(epsilon=EPSILON, moves="one", sensitivity=1), (5,)),
    "score": (queries.ScoreRelease(epsilon=EPSILON, delta=1e-7), (1,)),
    "posterior": (queries.PosteriorSample(bounds=(-1, 0), epsilon=EPSILON), (5,)),
}


def charge(*names: str) -> Charge:
    """One charge for all of them together."""
    events = tuple(RELEASES[name][0].event() for name in names)
    failure = sum(release.failure(*arguments) for release, arguments in (RELEASES[name] for name in names))
    event = events[0] if len(events) == 1 else Composed(events=events)
    return Charge(party="Basel", dataset="heart", unit=PrivacyUnit.RECORD, event=event, failure=failure)


def opened(path: Path, names: list[str], budget: float) -> Ledger:
    ledger = Ledger.open(path / "ledger.db", create=True)
    ledger.open_run(
        "day", plan={"questions": names}, terms=Terms(limits=(Budget(epsilon=50, delta=1e-5),)),
        planned=[charge(*names)], datasets=[Dataset(party="Basel", dataset="heart", size=300)],
        lifetimes=(Budget(epsilon=budget, delta=1e-5),),
    )  # fmt: skip
    return ledger


@pytest.mark.parametrize("name", sorted(RELEASES))
def test_a_release_can_be_charged_and_costs_no_more_than_it_was_asked_for(name: str, tmp_path: Path) -> None:
    ledger = opened(tmp_path, [name], 1.0)
    ledger.commit(ledger.reserve("day", 1, 1, [charge(name)]))
    (spent, *_) = ledger.spending("day")
    assert 0.5 * EPSILON < spent.epsilon <= EPSILON * (1 + 1e-3)


def test_a_day_of_mixed_releases_is_refused_before_it_is_overspent(tmp_path: Path) -> None:
    names = sorted(RELEASES)
    ledger = opened(tmp_path, names, 2.0)
    ledger.commit(ledger.reserve("day", 1, 1, [charge(*names)]))
    assert EPSILON < ledger.spending("day")[0].epsilon <= EPSILON * len(names)
    (tmp_path / "tight").mkdir()
    with pytest.raises(BudgetExhausted):
        opened(tmp_path / "tight", names, 0.3)


def test_tokens_are_charged_one_by_one() -> None:
    decoder = queries.PrivateNextToken(epsilon=0.1, vocabulary=10)
    cost = Charge(party="Basel", dataset="heart", unit=PrivacyUnit.RECORD, event=decoder.event(tokens=7))
    assert Charge.from_dict(cost.to_dict()) == cost

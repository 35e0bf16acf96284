"""People with several records: who is kept, and what the whole person pays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mpmath
import numpy as np
import pytest

from quietsum.errors import InvalidParameter
from quietsum.learning.people import bounded, person_event, person_guarantee
from quietsum.privacy.events import Composed, Gaussian, Group, PoissonSampled, PureDP, Repeated
from quietsum.privacy.units import PrivacyUnit


def by_hand(people: Sequence[object], most: int) -> list[int]:
    seen: dict[object, int] = {}
    kept = []
    for place, person in enumerate(people):
        seen[person] = seen.get(person, 0) + 1
        if seen[person] <= most:
            kept.append(place)
    return kept


@pytest.mark.parametrize("most", [1, 2, 5, 100])
def test_of_every_person_the_first_records_are_kept(most: int) -> None:
    people = np.random.default_rng(4).integers(0, 30, 400)
    assert bounded(people, most=most).tolist() == by_hand(people.tolist(), most)


def test_a_person_who_leaves_takes_at_most_so_many_records_along_and_no_other_s() -> None:
    people = np.random.default_rng(5).integers(0, 12, 200)
    kept = set(bounded(people, most=3).tolist())
    for gone in range(12):
        places = np.flatnonzero(people != gone)
        without = {int(places[place]) for place in bounded(people[places], most=3)}
        assert without < kept and len(kept - without) <= 3
        assert all(people[place] == gone for place in kept - without)


def test_names_may_be_words_and_nobody_is_fine() -> None:
    assert bounded(["b", "a", "b", "b"], most=1).tolist() == [0, 1]
    assert bounded([], most=1).tolist() == []


@pytest.mark.parametrize(
    ("people", "most"), [([[1, 2], [3, 4]], 1), ([1.0, float("nan")], 1), ([1, 2], 0), ([1, 2], -1), ([1, 2], 1.5)]
)
def test_what_is_no_list_of_people_is_refused(people: object, most: object) -> None:
    with pytest.raises(InvalidParameter):
        bounded(people, most=most)  # type: ignore[arg-type]


def one_step_delta(epsilon: float, rate: float, noise: float, size: int) -> float:
    """δ(ε) of one step by definition, for a person who joins: the sum is N(j, σ²), j binomial, against N(0, σ²).

    ∫ max(0, p(x) − e^ε q(x)) dx, and the same with p and q exchanged; by quadrature.
    """
    weights = [mpmath.binomial(size, j) * rate**j * (1 - rate) ** (size - j) for j in range(size + 1)]

    def normal(x: float, mean: float) -> float:
        return mpmath.npdf(x, mean, noise)

    def gap(x: float, turned: bool) -> float:
        with_them = sum(w * normal(x, j) for j, w in enumerate(weights))
        without = normal(x, 0)
        one, two = (without, with_them) if turned else (with_them, without)
        return max(mpmath.mpf(0), one - mpmath.e**epsilon * two)

    places = list(np.linspace(-8 * noise, size + 8 * noise, 60))
    return max(float(mpmath.quad(lambda x, turned=turned: gap(x, turned), places)) for turned in (False, True))


@pytest.mark.parametrize(("rate", "noise", "size"), [(0.1, 1.0, 3), (0.3, 2.0, 5), (0.02, 0.8, 10)])
def test_one_step_of_a_person_agrees_with_the_definition(rate: float, noise: float, size: int) -> None:
    event = PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise))
    found = person_guarantee(event, size=size, delta=1e-4)
    assert one_step_delta(found.epsilon, rate, noise, size) == pytest.approx(1e-4, rel=1e-3)
    assert found.unit is PrivacyUnit.PERSON and found.group_size == size


def test_ten_records_are_not_ten_strangers_and_cost_less_than_generic_group_privacy() -> None:
    run = Repeated(times=300, event=PoissonSampled(rate=0.02, event=Gaussian(noise_multiplier=1.5)))
    record = person_guarantee(run, size=1, delta=1e-6).epsilon
    ten = person_guarantee(run, size=10, delta=1e-6).epsilon
    assert record < ten and ten > 10 * record  # δ does not grow with the group, so ε grows faster than tenfold
    from quietsum.privacy.exact import ExactAccountant
    from quietsum.privacy.groups import group_guarantee

    assert ten < group_guarantee(ExactAccountant().compose(run), size=10, delta=1e-6).epsilon


def test_every_part_of_a_schedule_is_seen_by_the_group() -> None:
    step = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=2.0))
    other = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=3.0))
    run = Composed(events=(Repeated(times=3, event=step), Repeated(times=2, event=other)))
    assert person_event(run, 4) == Composed(
        events=(
            Repeated(times=3, event=Group(size=4, event=step)),
            Repeated(times=2, event=Group(size=4, event=other)),
        )
    )
    assert math.isfinite(person_guarantee(run, size=4, delta=1e-5).epsilon)
    with pytest.raises(InvalidParameter, match="Poisson"):
        person_event(PureDP(epsilon=1.0), 2)

"""People with several records: who is kept, and what the whole person pays."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.learning.config import PrivacyConfig, plan_training
from quietsum.learning.rows.people import bound_people
from quietsum.learning.rows.records import Records
from quietsum.learning.spending import event_guarantee
from quietsum.learning.trainer import PrivateTrainer
from quietsum.privacy import person_event
from quietsum.privacy.accounting import accountant_for
from quietsum.privacy.events import Composed, Gaussian, Group, PoissonSampled, PureDP, Repeated
from quietsum.privacy.units import Neighbours, PrivacyUnit


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
    assert bound_people(people, most=most).tolist() == by_hand(people.tolist(), most)


def test_a_person_who_leaves_takes_at_most_so_many_records_along_and_no_other_s() -> None:
    people = np.random.default_rng(5).integers(0, 12, 200)
    kept = set(bound_people(people, most=3).tolist())
    for gone in range(12):
        places = np.flatnonzero(people != gone)
        without = {int(places[place]) for place in bound_people(people[places], most=3)}
        assert without < kept and len(kept - without) <= 3
        assert all(people[place] == gone for place in kept - without)


def test_names_may_be_words_and_nobody_is_fine() -> None:
    assert bound_people(["b", "a", "b", "b"], most=1).tolist() == [0, 1]
    assert bound_people([], most=1).tolist() == []


@pytest.mark.parametrize(
    ("people", "most"), [([[1, 2], [3, 4]], 1), ([1.0, float("nan")], 1), ([1, 2], 0), ([1, 2], -1), ([1, 2], 1.5)]
)
def test_what_is_no_list_of_people_is_refused(people: object, most: object) -> None:
    with pytest.raises(InvalidParameter):
        bound_people(people, most=most)  # type: ignore[arg-type]


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
@pytest.mark.some(1)
def test_one_step_of_a_person_agrees_with_the_definition(rate: float, noise: float, size: int) -> None:
    event = PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise))
    found = event_guarantee(event, size=size, delta=1e-4)
    assert one_step_delta(found.epsilon, rate, noise, size) == pytest.approx(1e-4, rel=1e-3)
    assert found.unit is PrivacyUnit.PERSON and found.group_size == size


def test_ten_records_are_not_ten_strangers_and_cost_less_than_generic_group_privacy() -> None:
    run = Repeated(times=300, event=PoissonSampled(rate=0.02, event=Gaussian(noise_multiplier=1.5)))
    record = event_guarantee(run, size=1, delta=1e-6).epsilon
    ten = event_guarantee(run, size=10, delta=1e-6).epsilon
    assert record < ten and ten > 10 * record  # δ does not grow with the group, so ε grows faster than tenfold
    from quietsum.privacy.exact.accountant import ExactAccountant
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
    assert math.isfinite(event_guarantee(run, size=4, delta=1e-5).epsilon)
    with pytest.raises(InvalidParameter, match="Poisson"):
        person_event(PureDP(epsilon=1.0), 2)


def records(count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, 4, generator=generator), torch.randint(0, 2, (count,), generator=generator)


def config(**changes: Any) -> PrivacyConfig:
    return PrivacyConfig(**{"epsilon": 4.0, "delta": 1e-4, "epochs": 2, "batch_size": 10, "public_size": 60, **changes})


def test_a_trainer_states_the_record_s_cost_and_the_person_s_beside_it(tmp_path: Path) -> None:
    people = np.arange(60) % 12  # five records each
    trainer = PrivateTrainer(nn.Linear(4, 2), config(max_records=3), workspace=tmp_path, selfcheck=False)
    trainer.train(records(), learning_rate=0.1, people=people)
    person, plan = trainer.person_guarantee(), trainer.plan
    assert plan is not None and person is not None
    assert (person.unit, person.group_size) == (PrivacyUnit.PERSON, 3)
    assert trainer.guarantee().unit is PrivacyUnit.RECORD and person.epsilon > trainer.guarantee().epsilon
    assert person.epsilon == pytest.approx(event_guarantee(plan.event(), size=3, delta=1e-4).epsilon)
    trainer.save(tmp_path / "kept.safetensors")
    trainer.close()
    with safe_open(tmp_path / "kept.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["quietsum"])["person"]["group_size"] == 3


@pytest.mark.parametrize("kind", ["tensors", "data set"])
def test_no_more_records_of_a_person_than_stated_are_ever_drawn(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, labels = records()
    inputs[:, 0] = torch.arange(60)  # a record tells which it is
    people = np.repeat([0, 1, 2], [40, 15, 5])
    drawn: set[int] = set()
    read = Records.read

    def seen(self: Records, draws: Any, device: Any = None) -> Any:
        for indices, batch in read(self, draws, device):
            drawn.update(batch[0][:, 0].int().tolist())
            yield indices, batch

    monkeypatch.setattr(Records, "read", seen)
    data: Any = (inputs, labels)
    if kind == "data set":
        data = [(one, two) for one, two in zip(inputs, labels, strict=True)]
    trainer = PrivateTrainer(nn.Linear(4, 2), config(max_records=4, epochs=30), selfcheck=False)
    trainer.train(data, learning_rate=1e-6, people=people, example=data[0] if kind == "data set" else None)
    assert drawn == {0, 1, 2, 3, 40, 41, 42, 43, 55, 56, 57, 58}


def test_people_and_their_bound_come_together_and_name_every_record() -> None:
    with pytest.raises(InvalidParameter, match="max_records"):
        PrivateTrainer(nn.Linear(4, 2), config(), selfcheck=False).train(records(), people=[0] * 60)
    with pytest.raises(InvalidParameter, match="people"):
        PrivateTrainer(nn.Linear(4, 2), config(max_records=2), selfcheck=False).train(records())
    with pytest.raises(InvalidParameter, match="for each record"):
        PrivateTrainer(nn.Linear(4, 2), config(max_records=2), selfcheck=False).train(records(), people=[0] * 59)
    with pytest.raises(InvalidParameter, match="max_records"):
        config(max_records=0)


def test_without_a_bound_there_is_no_word_about_people() -> None:
    trainer = PrivateTrainer(nn.Linear(4, 2), config(), selfcheck=False)
    trainer.train(records(), learning_rate=0.1)
    assert trainer.person_guarantee() is None


# ------------------------------------------------------------------------- what one record of a person costs


def test_a_record_that_leaves_moves_the_clipped_sum_by_twice_the_clip_and_is_priced_so() -> None:
    plan = plan_training(config(epsilon=None, noise_multiplier=1.0, max_records=1), size=60)
    alone = plan_training(config(epsilon=None, noise_multiplier=1.0), size=60)
    used = [
        torch.tensor([1.0, -1.0])[bound_people([7] * 2, most=1)].sum(),
        torch.tensor([-1.0])[bound_people([7], most=1)].sum(),
    ]
    assert abs(used[0] - used[1]) == 2.0
    step = PoissonSampled(rate=plan.rate, event=Gaussian(noise_multiplier=1.0))
    replaced = accountant_for("exact", neighbours=Neighbours.REPLACE_ONE).compose(step, plan.steps)
    found = plan.forecast
    assert found.epsilon == replaced.epsilon(delta=1e-4).epsilon > 1.3 * alone.forecast.epsilon
    assert found.neighbours is Neighbours.ADD_REMOVE and "one in, one out" in str(found)
    assert found.epsilon_lower > 1.3 * alone.forecast.epsilon  # the mechanism's own lower bound, too
    assert "one in" not in str(alone.forecast)


def test_a_training_of_sixty_four_records_costs_12_09_per_record_and_7_63_per_person() -> None:
    """320 steps at noise 1, one record of each person used; 7.63 used to be said of both."""
    settings = config(epsilon=None, delta=1e-5, noise_multiplier=1.0, epochs=20, batch_size=4, public_size=64)
    plan = plan_training(dataclasses.replace(settings, max_records=1), size=64)
    assert plan.steps == 320 and plan.forecast.epsilon == pytest.approx(12.0869, abs=1e-4)
    assert event_guarantee(plan.event(), size=1, delta=1e-5).epsilon == pytest.approx(7.62748, abs=1e-5)


def test_a_stated_epsilon_per_record_is_kept_by_the_noise() -> None:
    bounded_plan, plain = (plan_training(config(max_records=most), size=60) for most in (1, None))
    assert bounded_plan.forecast.epsilon == pytest.approx(4.0, rel=1e-5) and bounded_plan.forecast.epsilon <= 4.0
    assert bounded_plan.stages[0].noise_multiplier > 1.2 * plain.stages[0].noise_multiplier


def test_a_run_with_stated_noise_ends_before_the_step_that_would_overspend() -> None:
    changes = {"noise_multiplier": 1.0, "epochs": 50, "epsilon": 12.0}
    bounded_plan, plain = (plan_training(config(max_records=most, **changes), size=60) for most in (1, None))
    assert bounded_plan.cut and bounded_plan.steps < plain.steps and bounded_plan.forecast.epsilon <= 12.0


def test_under_zero_out_no_other_record_moves_and_the_price_stays() -> None:
    plans = [plan_training(config(max_records=most, public_size=None), size=60) for most in (1, None)]
    assert plans[0].neighbours is Neighbours.ZERO_OUT
    assert plans[0].forecast.epsilon == plans[1].forecast.epsilon and plans[0].stages == plans[1].stages


def test_under_replace_one_the_guarantee_says_that_a_record_keeps_its_person() -> None:
    plan = plan_training(config(max_records=1, neighbours=Neighbours.REPLACE_ONE), size=60)
    assert "a replaced record keeps its person" in str(plan.forecast)


def test_with_one_record_a_person_costs_less_than_a_record_and_both_are_right(tmp_path: Path) -> None:
    trainer = PrivateTrainer(nn.Linear(4, 2), config(max_records=1), workspace=tmp_path, selfcheck=False)
    trainer.train(records(), learning_rate=0.1, people=np.arange(60) % 12)
    person, record, plan = trainer.person_guarantee(), trainer.guarantee(), trainer.plan
    assert person is not None and plan is not None and person.epsilon < record.epsilon
    step = PoissonSampled(rate=plan.rate, event=Gaussian(noise_multiplier=plan.stages[0].noise_multiplier))
    whole = accountant_for("exact").compose(step, plan.steps).epsilon(delta=1e-4)
    assert person.epsilon == whole.epsilon  # a whole person moves the sum by C
    assert trainer._books is not None and trainer._books.price_spent().epsilon == pytest.approx(record.epsilon)
    trainer.close()


def test_what_has_no_price_per_record_or_person_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="laplace"):
        plan_training(config(max_records=1, noise_type="laplace"), size=60)
    assert plan_training(config(max_records=1, noise_type="laplace", public_size=None), size=60).steps
    for changes, words in (
        ({"neighbours": Neighbours.REPLACE_ONE, "public_size": None}, "fewer records"),
        ({"neighbours": Neighbours.REPLACE_ONE}, "no bound"),
    ):
        trainer = PrivateTrainer(
            nn.Linear(4, 2), config(max_records=2, **changes), workspace=tmp_path, run="refused", selfcheck=False
        )
        with pytest.raises(PlanRefused, match=words):
            trainer.train(records(), learning_rate=0.1, people=np.arange(60) % 12)
        trainer.close()
        assert not (tmp_path / "ledger.db").exists()

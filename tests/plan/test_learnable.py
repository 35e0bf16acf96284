"""The prediction of what can be learnt, against scores that were measured and against plans."""

from __future__ import annotations

import dataclasses
import math

import pytest

from quietsum.errors import PlanRefused
from quietsum.plan import PartyFacts, ResolvedPlan, load_plan, predict, resolve, template
from quietsum.plan.resolution.learnable import Prospect, prospect_of

MEASURED = (
    ("two Gaussians", 4.7, 0.34), ("two Gaussians", 37.5, 0.83), ("two Gaussians", 75.0, 0.95),
    ("hearts, linear", 1.4, 0.30), ("hearts, linear", 11.3, 0.77), ("hearts, linear", 90.5, 0.98),
    ("hearts, hidden layer", 6.0, 0.48), ("hearts, hidden layer", 96.2, 0.97),
    ("tumours, hidden layer", 1.2, 0.0), ("tumours, hidden layer", 5.8, -0.22), ("tumours, hidden layer", 46.0, 0.67),
    ("tumours, hidden layer", 184.2, 0.82),
)  # fmt: skip
"""Of what is possible above chance, the mean of eight runs: decision record 46."""


@pytest.mark.parametrize(("task", "signal", "share"), MEASURED)
def test_the_prospect_is_what_runs_gave(task: str, signal: float, share: float) -> None:
    prospect = prospect_of(signal)
    if prospect is Prospect.NOTHING:
        assert share < 0.5, task
    if prospect is Prospect.ENOUGH:
        assert share > 0.66, task


def parties(count: int, size: int) -> list[PartyFacts]:
    return [PartyFacts(name=f"site-{i}", dataset="d", size=size) for i in range(count)]


def plan_of(epsilon: float, style: str = "sample") -> object:
    plan = load_plan(template(task="my:Task", style=style))
    record = plan.privacy.record
    if record is None:
        return plan
    changed = dataclasses.replace(record, epsilon=epsilon)
    return dataclasses.replace(plan, privacy=dataclasses.replace(plan.privacy, record=changed))


def test_a_plan_of_one_s_own_learns_from_many_records_and_not_from_few_at_a_small_epsilon() -> None:
    many = predict(resolve(plan_of(1.0), parties(5, 10_000), 172))  # type: ignore[arg-type]
    few = predict(resolve(plan_of(0.1), parties(1, 100), 172))  # type: ignore[arg-type]
    assert many is not None and few is not None
    assert many.prospect is Prospect.ENOUGH
    assert not many.levers
    assert few.prospect is Prospect.NOTHING
    assert "nothing can be learnt" in few.sentence
    assert any("ε" in lever for lever in few.levers)


def test_the_signal_grows_with_epsilon_and_records_and_not_with_the_clip() -> None:
    base = predict(resolve(plan_of(1.0), parties(2, 5_000), 50))  # type: ignore[arg-type]
    more = predict(resolve(plan_of(2.0), parties(2, 5_000), 50))  # type: ignore[arg-type]
    larger = predict(resolve(plan_of(1.0), parties(2, 10_000), 50))  # type: ignore[arg-type]
    assert base is not None and more is not None and larger is not None
    assert 1.5 < more.together / base.together < 2.2
    assert 1.8 < larger.together / base.together < 2.2


@pytest.mark.parametrize("style", ["user", "hybrid"])
def test_five_clients_teach_nothing_and_the_lever_is_more_of_them(style: str) -> None:
    found = predict(resolve(plan_of(8.0, style), parties(5, 10_000), 172))  # type: ignore[arg-type]
    assert found is not None
    assert found.prospect is Prospect.NOTHING
    assert "clients in place of 5" in found.sentence


@pytest.mark.parametrize(
    ("count", "size", "dimension", "prospect"),
    [(600, 3, 4810, Prospect.LITTLE), (2000, 113, 32, Prospect.ENOUGH)],
    ids=["few records at each client: .18 where chance is .10", "many records at each client"],
)
def test_a_clip_after_noise_leaves_less_than_either_noise(
    count: int, size: int, dimension: int, prospect: Prospect
) -> None:
    dealt = [dataclasses.replace(one, public="digits") for one in parties(count, size)]
    found = predict(resolve(load_plan(template(task="digits", style="hybrid")), dealt, dimension))
    assert found is not None and found.records is not None and found.clients is not None
    apart = 1 / math.sqrt(1 / found.records**2 + 1 / found.clients**2)
    assert prospect_of(apart) is Prospect.ENOUGH, "the control: counted apart, both are enough"
    assert found.together < apart and found.prospect is prospect


def test_without_noise_there_is_nothing_to_predict() -> None:
    text = template(task="my:Task")
    silent = "\n".join(line for line in text.splitlines() if not line.startswith("record = "))
    plain = load_plan(silent.replace('style = "sample"', 'style = "none"'))
    assert predict(resolve(load_plan(text), parties(2, 50_000), 5)) is not None
    assert predict(resolve(plain, parties(2, 50_000), 5)) is None


def test_what_max_records_leaves_is_what_can_be_learnt_from_and_moves_no_noise_and_no_step() -> None:
    def resolved(kept: str) -> ResolvedPlan:
        text = template(task="pose")
        record = next(line for line in text.splitlines() if line.startswith("record = "))
        stated = f'{record}\nperson = {{ id = "subject", max_records = 4{kept} }}'
        return resolve(load_plan(text.replace(record, stated)), parties(3, 600), 200)

    all_, tenth = resolved(""), resolved(", kept = 0.1")
    first, second = predict(all_), predict(tenth)
    assert first is not None and second is not None
    assert second.together == pytest.approx(first.together / 10)
    assert all_.noise_multiplier == tenth.noise_multiplier
    assert all_.orders("site-0") == tenth.orders("site-0")
    assert "kept" not in all_.plan.to_dict()["privacy"]["person"], "older plans keep their digests"
    with pytest.raises(PlanRefused, match="leaves no record"):
        resolved(", kept = 0")


def test_of_five_people_at_four_per_person_nothing_can_be_learnt_and_the_plan_says_so() -> None:
    text = template(task="pose")
    record = next(line for line in text.splitlines() if line.startswith("record = "))
    # four trainings of pose scored .04 to .08, where chance is .055
    for kept, prospect in ((", kept = 0.07", Prospect.NOTHING), ("", Prospect.LITTLE)):
        stated = "record = { delta = 0.001, max_grad_norm = 0.3 }\n"
        stated += f'person = {{ id = "subject", max_records = 4, epsilon = 4.0{kept} }}'
        found = predict(resolve(load_plan(text.replace(record, stated)), parties(5, 58), 2720))
        assert found is not None and found.prospect is prospect

"""Rounds in random groups: means of groups, a robust rule between them, paid for before anything is unmasked."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from federation.masked import AT_PARTY, CLIENTS, NONE, RECORDS, Losing, Watched, secure_plan
from federation.sites import places_for
from federation.world import World
from quietsum import failpoints, wire
from quietsum.aggregation.robust import find_rule
from quietsum.errors import PlanRefused, TooFewParties
from quietsum.federation.groups import Between, between
from quietsum.federation.local import LocalFederation
from quietsum.federation.secure import ends_of_steps
from quietsum.federation.watch import GroupJudged
from quietsum.ledger.chain.entries import Kind
from quietsum.mechanisms.rng import randomness_for_tests, system_randomness
from quietsum.party.policy import AllowedTask, Rules, UnitPolicy
from quietsum.party.secure import SecureSite, sessions_of, terms_of
from quietsum.plan import Plan
from quietsum.plan.groups import SESSIONS
from quietsum.secagg import DRAWING, Identity, Reason, Refused, Server, Step
from tiny import TinyTask

Floats = NDArray[np.float64]
SIZES = {f"site-{place:02d}": 10 + place for place in range(15)}
NAMES = sorted(SIZES)
GROUPS: Mapping[str, object] = {"rule": "median", "groups": 3, "drop_outs": 0.2, "attackers": 1}


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


@pytest.fixture
def reached() -> Any:
    places: list[str] = []
    failpoints.install(places.append)
    yield places
    failpoints.install(None)


def world(folder: Path, privacy: Mapping[str, object] = NONE, *, aggregation: Mapping[str, object] = GROUPS,
          **more: Any) -> Watched:  # fmt: skip
    tables = {key: more.pop(key) for key in ("federation", "training") if key in more}
    plan = secure_plan(privacy, aggregation=aggregation, **tables)
    return Watched(folder, plan, **{"sizes": SIZES} | more)


def judged(found: Watched) -> list[GroupJudged]:
    return [event for event in found.events if isinstance(event, GroupJudged)]


def committed(found: Watched) -> int:
    return sum(entry.kind is Kind.COMMIT for entry in found.ledger.entries())


DELTAS = {name: np.array([0.01 * place, -0.02 * place]) for place, name in enumerate([*NAMES, "site-15"])}


class Fixed(TinyTask):
    """Every party's update is known, so that every group's mean is."""

    def train(self, party: str, params: Floats, orders: Any, rng: Any) -> Floats:
        return DELTAS[party]


class Poisoned(Fixed):
    def train(self, party: str, params: Floats, orders: Any, rng: Any) -> Floats:
        return np.full(2, 90.0) if party == NAMES[0] else DELTAS[party]


# --------------------------------------------------------------------------------------------------- the step


def test_the_step_is_the_median_of_the_means_of_the_groups(tmp_path: Path) -> None:
    found = world(tmp_path, task=Fixed)
    result = found.round()
    events = judged(found)
    assert sorted(itertools.chain(*(event.members for event in events))) == NAMES and len(events) == 3
    means = [np.mean([DELTAS[name] for name in event.survivors], axis=0) for event in events]
    np.testing.assert_allclose(found.state.params, np.median(means, axis=0), atol=1e-6)
    assert result.kept == tuple(NAMES) and result.rejected == ()


def test_one_party_that_sends_anything_does_not_move_the_model_out_of_the_others_means(tmp_path: Path) -> None:
    found = world(tmp_path, task=Poisoned)
    for number in (1, 2, 3):
        before = found.state.params
        found.round(number)
        step = found.state.params - before
        clean = [event for event in judged(found) if NAMES[0] not in event.survivors]
        means = np.array([np.mean([DELTAS[name] for name in event.survivors], axis=0) for event in clean])
        assert np.all(step <= means.max(axis=0) + 1e-4) and np.all(step >= means.min(axis=0) - 1e-4)


def test_groups_differ_from_round_to_round(tmp_path: Path) -> None:
    found = world(tmp_path)
    seen = set()
    for number in (1, 2, 3):
        found.round(number)
        seen.add(tuple(sorted(event.members for event in judged(found))))
    assert len(seen) > 1


def test_events_about_groups_are_for_the_operator_and_name_no_single_party_as_rejected(tmp_path: Path) -> None:
    found = world(tmp_path, task=Poisoned)
    found.round()
    assert GroupJudged.operator_only and all(event.rule == "median" for event in judged(found))
    assert not any(type(event).__name__ == "PartyRejected" for event in found.events)


# ------------------------------------------------------------------------------------------------ who is lost


@pytest.mark.parametrize("step", [Step.OPEN, Step.DRAW, Step.ROSTER, Step.SHARES, Step.SURVIVORS, Step.AGREED])
def test_a_party_lost_at_any_step_costs_nobody_else_its_place(tmp_path: Path, step: Step) -> None:
    found = world(tmp_path, task=Fixed, wrap=lambda inner: Losing(inner, losses={NAMES[3]: step}))
    kept = found.round().kept
    after_vector = step.turn > Step.SHARES.turn
    assert set(NAMES) - set(kept) == (set() if after_vector else {NAMES[3]})
    means = [np.mean([DELTAS[name] for name in event.survivors], axis=0) for event in judged(found)]
    np.testing.assert_allclose(found.state.params, np.median(means, axis=0), atol=1e-6)
    assert NAMES[3] in (found.silent if after_vector else found.dropped)


def test_a_group_that_is_lost_is_left_out_and_the_round_ends_without_enough_of_them(tmp_path: Path) -> None:
    """Three groups are the fewest for a step: with one of them lost, the round is charged and has none."""
    found = world(tmp_path, wrap=GroupLosing)
    with pytest.raises(TooFewParties, match="2 of 3 groups"):
        found.round()
    assert committed(found) == 1
    lost = {event.code for event in found.dropped.values()}
    assert lost == {Reason.GROUP_LOST.value, Reason.NO_ANSWER.value}


class GroupLosing(Losing):
    """Loses two parties of one group where masked vectors are asked for, found by who signs for whom."""

    def exchange(self, question: Any) -> Any:
        if question.step is Step.SHARES:
            server = _LAST["server"]
            self.losses = {name: Step.SHARES for name in server.groups[0][:2]}
        yield from super().exchange(question)


_LAST: dict[str, Server] = {}


@pytest.fixture(autouse=True)
def last_server(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Server.open

    def noted(self: Server) -> dict[str, bytes]:
        _LAST["server"] = self
        return real(self)

    monkeypatch.setattr(Server, "open", noted)


def test_four_groups_go_on_without_one(tmp_path: Path) -> None:
    found = world(
        tmp_path, task=Fixed, wrap=GroupLosing, aggregation={**GROUPS, "groups": 4, "drop_outs": 0.0},
        federation={"minimum_parties": 8}, sizes={**SIZES, "site-15": 25},
    )  # fmt: skip
    found.round()
    assert [event.group for event in judged(found)] == [1, 2, 3]


# ---------------------------------------------------------------------------------------------- money first


@pytest.mark.parametrize("privacy", [AT_PARTY, RECORDS, CLIENTS], ids=["at party", "records in shares", "clients"])
def test_the_ledger_commits_before_any_group_is_unmasked(
    tmp_path: Path, reached: list[str], privacy: Mapping[str, object]
) -> None:
    found = world(tmp_path, privacy)
    found.round()
    assert reached.index("round:committed") < reached.index("secure:survivors") < reached.index("secure:agreed")
    assert reached.index("secure:draw") < reached.index("secure:roster") < reached.index("secure:shares")
    assert committed(found) == 1


@pytest.mark.parametrize("place", ["secure:open", "secure:draw", "secure:roster", "secure:shares", "secure:survivors",
                                   "secure:agreed", "secure:unmasked"])  # fmt: skip
def test_a_death_anywhere_leaves_the_round_paid_for(tmp_path: Path, place: str) -> None:
    class Death(BaseException):
        pass

    def die(at: str) -> None:
        if at == place:
            raise Death

    found = world(tmp_path, AT_PARTY)
    failpoints.install(die)
    try:
        with pytest.raises(Death):
            found.round()
    finally:
        failpoints.install(None)
    reserved = [entry for entry in found.ledger.entries() if entry.kind is Kind.RESERVE]
    assert len(reserved) == 1 and not np.any(found.state.params)


def test_noise_in_shares_is_that_of_one_group_s_floor(tmp_path: Path) -> None:
    """Groups of five, one of which may be lost and one colludes: three honest make σ, so each share is σ/√3."""
    found = world(tmp_path, CLIENTS)
    noise = found.resolved.orders(NAMES[0]).distributed
    assert noise is not None and found.resolved.secure is not None
    assert (found.resolved.secure.floor, found.resolved.secure.honest, noise.honest, noise.parties) == (4, 3, 3, 5)
    whole = Watched(tmp_path / "whole", secure_plan(CLIENTS, aggregation={"drop_outs": 0.2}), sizes=SIZES)
    alone = whole.resolved.orders(NAMES[0]).distributed
    assert alone is not None and alone.honest == 11
    assert noise.deviation(1) / alone.deviation(1) == pytest.approx(math.sqrt(11 / 3), rel=1e-3)


def test_the_noise_of_a_group_s_mean_is_what_its_shares_say(tmp_path: Path) -> None:
    """20 rounds of zero updates: the spread of every group mean is that of five shares over five."""

    class Still(TinyTask):
        def train(self, party: str, params: Floats, orders: Any, rng: Any) -> Floats:
            return np.zeros(2)

    seen: list[Floats] = []
    real = Between.combine

    def noted(self: Between, sums: Any, how: Any, number: int) -> Any:
        seen.extend(how.step(one.total, one.survivors) for one in sums)
        return real(self, sums, how, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Between, "combine", noted)
        found = world(tmp_path, CLIENTS, task=Still, federation={"rounds": 20, "spare_attempts": 0})
        for number in range(1, 21):
            found.round(number)
    noise = found.resolved.orders(NAMES[0]).distributed
    assert noise is not None
    expected, values = noise.deviation(5) / 5, np.concatenate(seen)
    ratio = float(np.mean(values**2)) / expected**2  # 120 values: χ² with 120 degrees of freedom
    assert abs(ratio - 1) < 5 * math.sqrt(2 / len(values))


# ----------------------------------------------------------------------------------------- one update, one sum


def test_a_retry_is_a_new_session_with_new_groups_and_is_charged_again(tmp_path: Path) -> None:
    found = world(tmp_path, AT_PARTY, wrap=GroupLosing)
    with pytest.raises(TooFewParties):
        found.round()
    first = _LAST["server"].groups
    found.federation.losses = {}
    found.federation.exchange = found.federation.inner.exchange
    found.round()
    assert _LAST["server"].groups != first and committed(found) == 2


def test_a_party_takes_part_in_a_bounded_number_of_draws_of_a_run(tmp_path: Path) -> None:
    """A server that opens session after session, to draw until it likes the groups, is refused by the parties."""
    found = world(tmp_path)
    resolved = found.resolved
    most = sessions_of(resolved)
    assert most == SESSIONS * resolved.attempts == 16
    identities = {name: Identity.fresh() for name in NAMES}
    public = {name: one.public for name, one in identities.items()}
    boss = Identity.fresh()
    site = SecureSite(NAMES[0], identity=identities[NAMES[0]], contribute=lambda key, params: np.zeros(2, np.uint32))
    for attempt in range(1, most + 2):
        terms = terms_of(resolved, ("run", 1, attempt), "aa" * 32)
        letter = Server(terms=terms, identity=boss, identities=public).open()[NAMES[0]]
        if attempt <= most:
            site.open(terms, letter, server=boss.public, peers=public, sessions=most)
            continue
        with pytest.raises(Refused) as refusal:
            site.open(terms, letter, server=boss.public, peers=public, sessions=most)
        assert refusal.value.reason is Reason.TOO_MANY_DRAWS


def test_without_groups_there_is_no_such_bound(tmp_path: Path) -> None:
    plain = Watched(tmp_path, secure_plan(), sizes=SIZES)
    assert sessions_of(plain.resolved) is None and between(
        plain.resolved, memory={}, rng=system_randomness()
    ) is None  # fmt: skip


# ------------------------------------------------------------------------------------------------ other places


def test_time_for_draws_is_taken_from_training() -> None:
    ends = ends_of_steps(100.0, drawn=True)
    assert list(ends) == [Step.OPEN, *DRAWING, Step.ROSTER, Step.SHARES, Step.SURVIVORS, Step.AGREED]
    assert ends[Step.AGREED] == pytest.approx(100) and ends[Step.ROSTER] == pytest.approx(30)
    assert ends[Step.SHARES] == pytest.approx(80)


def test_simulated_losses_at_one_step_do_not_count_before_it(tmp_path: Path) -> None:
    found = world(
        tmp_path, aggregation={**GROUPS, "drop_outs": 0.2}, federation={"simulate": {"drop_outs": 0.03}},
        rng=randomness_for_tests(3),
    )  # fmt: skip
    done = 0
    for number in (1, 2, 3):
        try:
            done += bool(found.round(number).kept)
        except TooFewParties:
            continue
    assert done >= 1


def test_the_groups_of_a_robust_rule_need_the_masks(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match=r"groups without secure"):
        world(tmp_path, aggregation={"rule": "median", "groups": 3, "secure": False})


def test_the_rule_is_told_of_fewer_bad_means_where_fewer_groups_are_left(tmp_path: Path) -> None:
    found = world(tmp_path)
    assert found.resolved.secure is not None
    seated = found.resolved.secure.grouping
    assert seated is not None
    assert [seated.bad(find_rule("median"), opened) for opened in (1, 2, 3)] == [0, 0, 1]


def sized_plan(privacy: Mapping[str, object], **tables: Any) -> Plan:
    """The fifteen sites as options of the task, for whoever makes it anew."""
    task = {"name": "tiny:TinyTask", "options": {"sizes": SIZES, "public": "made up" if privacy is NONE else ""}}
    return secure_plan(privacy, task=task, aggregation=GROUPS, **tables)


def test_with_worker_processes_the_step_is_that_of_one_process(tmp_path: Path) -> None:
    """Keys and vectors live in the workers; every record is drawn, so the means of all groups are the same."""
    plan = sized_plan(NONE, training={"sample_rate": 1.0})
    models = []
    for workers in (1, 2):
        found = Watched(
            tmp_path / str(workers), plan, sizes=SIZES,
            federation=functools.partial(LocalFederation.of, workers=workers),
        )  # fmt: skip
        try:
            assert found.round().kept == tuple(NAMES)
        finally:
            found.federation.close()
        models.append(found.state.params)
    np.testing.assert_allclose(models[0], models[1], atol=1e-6)


def test_over_letters_the_groups_are_drawn_and_both_books_are_charged_alike(tmp_path: Path) -> None:
    plan = sized_plan(RECORDS, federation={"rounds": 2, "spare_attempts": 1, "deadline": 30.0})
    places = places_for(
        plan, tmp_path, record=UnitPolicy(epsilon=200.0, delta=1e-3, run=200.0), client=None,
        tasks=(AllowedTask(name="tiny:TinyTask", options=plan.task.options),),
        rules=Rules(aggregation=("mean", "distributed-noise"), smallest_cohort=4, smallest_threshold=4),
    )  # fmt: skip
    found = World(tmp_path, plan.to_toml(), places=places, start=NAMES).join()
    result = found.round()
    events = [event for event in found.events if isinstance(event, GroupJudged)]
    assert result.kept == tuple(NAMES) and [len(event.members) for event in events] == [5, 5, 5]
    sent = [wire.read_letter(content, most=2**26) for _, content in found.carrier.sent]
    steps = [letter.body["step"] for letter in sent if letter.kind == "secure"]
    assert list(dict.fromkeys(steps)) == ["open", "draw", "roster", "shares", "survivors", "agreed"]
    assert len(found.entries(Kind.COMMIT)) == 1
    assert all(len(found.entries(Kind.COMMIT, name)) == 1 for name in NAMES)


def test_a_site_s_policy_about_sums_is_held_against_one_group(tmp_path: Path) -> None:
    """Groups of five with a floor of four: a site that wants sums of five or more refuses the plan."""
    plan = sized_plan(RECORDS, federation={"rounds": 2, "deadline": 30.0})
    places = places_for(
        plan, tmp_path, record=UnitPolicy(epsilon=200.0, delta=1e-3, run=200.0), client=None,
        tasks=(AllowedTask(name="tiny:TinyTask", options=plan.task.options),),
        rules=Rules(aggregation=("mean", "distributed-noise"), smallest_cohort=5),
    )  # fmt: skip
    found = World(tmp_path, plan.to_toml(), places=places, start=NAMES)
    with pytest.raises(TooFewParties, match="sums of 4 sites would be unmasked"):
        found.join()

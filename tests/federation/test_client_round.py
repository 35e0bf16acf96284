"""Rounds that protect whole clients: noise that knows nobody, sums from elsewhere, charges that replies never lower."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quietsum.aggregation import ClientSum, Fold, ServerState, WeightedMean
from quietsum.aggregation.clients import ClientState
from quietsum.errors import InvalidParameter, PlanRefused, TooFewParties
from quietsum.federation.messages import Federation, Lost, PartyRefusal, Reply, Sums, TrainRequest, Update
from quietsum.federation.round import RoundResult, first_state, fold_of, run_round
from quietsum.federation.watch import PartyDropped, RunEvent
from quietsum.ledger import Ledger
from quietsum.mechanisms.rng import randomness_for_tests, system_randomness
from quietsum.plan import PartyFacts, Plan, ResolvedPlan, resolve
from quietsum.privacy.units import PrivacyUnit
from tiny import tiny_plan

Floats = NDArray[np.float64]
CLIENTS, CLIP = 40, 0.5
EVERYONE = {"kind": "everyone"}
HALF = {"kind": "poisson", "rate": 0.5}


def user_plan(client: Mapping[str, object] | None = None, style: str = "user", **changes: Mapping[str, object]) -> Plan:
    stated = {"noise_multiplier": 1.0, "delta": 1e-3, "max_norm": CLIP, **(client or {})}
    record = {"noise_multiplier": 2.0, "delta": 1e-3, "max_grad_norm": 1.0} if style == "hybrid" else None
    privacy = {"style": style, "client": stated, "record": record, **changes.pop("privacy", {})}
    federation = {"rounds": 30, "sampling": EVERYONE, **changes.pop("federation", {})}
    return tiny_plan(privacy=privacy, federation=federation, **changes)


def clients(count: int = CLIENTS, *, holder: str = "", public: str = "", size: int = 5) -> tuple[PartyFacts, ...]:
    return tuple(
        PartyFacts(name=f"c{index}", dataset="all" if holder else f"d{index}", size=size, holder=holder, public=public)
        for index in range(count)
    )


Answer = Callable[[str], Reply | None]


class Answering(Federation):
    """A federation whose parties answer by one rule, or by :class:`Sums` where ``sums`` are made."""

    def __init__(
        self, names: Iterable[str], answer: Answer, sums: Callable[..., Iterable[Reply]] | None = None
    ) -> None:
        self.names, self.answer, self.sums = tuple(names), answer, sums

    def registered(self) -> Sequence[str]:
        return self.names

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Fold[Any]) -> Iterator[Reply]:
        if self.sums is not None:
            yield from self.sums(cohort, fold)
            return
        yield from (reply for reply in map(self.answer, cohort) if reply is not None)


class Notes:
    def __init__(self) -> None:
        self.events: list[RunEvent] = []

    def saw(self, event: RunEvent) -> None:
        self.events.append(event)

    def dropped(self) -> dict[str, PartyDropped]:
        return {event.party: event for event in self.events if isinstance(event, PartyDropped)}


@dataclasses.dataclass
class Stage:
    ledger: Ledger
    resolved: ResolvedPlan
    notes: Notes
    state: ServerState
    number: int = 0

    def round(self, federation: object, *, state: ServerState | None = None, **more: Any) -> RoundResult:
        self.number += 1
        rng = more.pop("rng", None) or system_randomness()
        result = run_round(
            "run", self.number, state or self.state, resolved=self.resolved,
            federation=federation, ledger=self.ledger, rng=rng, watchers=[self.notes], own_steps=True, **more,  # type: ignore[arg-type]
        )  # fmt: skip
        self.state = result.state
        return result

    def asking(self, answer: Answer) -> Answering:
        return Answering((facts.name for facts in self.resolved.parties), answer)

    def summing(self, sums: Callable[..., Iterable[Reply]]) -> Answering:
        return Answering((facts.name for facts in self.resolved.parties), lambda name: None, sums)

    def spent(self) -> dict[tuple[str, PrivacyUnit], float]:
        found = self.ledger.spending_by_party("run").items()
        return {(party, guarantee.unit): guarantee.epsilon for (party, _), guarantee in found}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    opened: list[Ledger] = []

    def make(plan: Plan | None = None, parties: tuple[PartyFacts, ...] | None = None, dimension: int = 2) -> Stage:
        resolved = resolve(plan or user_plan(), parties or clients(), dimension)
        ledger = Ledger.open(tmp_path / f"ledger-{len(opened)}.db", create=True)
        opened.append(ledger)
        ledger.open_run(
            "run", plan=resolved.plan.to_dict(), terms=resolved.terms(), planned=resolved.all_charges(),
            datasets=resolved.datasets(),
        )  # fmt: skip
        state = first_state(resolved, np.zeros(dimension))
        return Stage(ledger=ledger, resolved=resolved, notes=Notes(), state=state)

    yield make
    for ledger in opened:
        ledger.close()


def ones(name: str, *, dimension: int = 2, length: float = 10.0) -> Update:
    vector = np.zeros(dimension)
    vector[0] = length
    return Update(party=name, delta=vector)


def seeded() -> Any:
    return randomness_for_tests(3)


PUBLIC = "made up for a test"


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


# --------------------------------------------------------------------------------------- noise and weights


def test_half_of_the_cohort_dropping_out_leaves_the_noise_of_the_released_sum_unchanged(
    stage: Callable[..., Stage],
) -> None:
    """60,000 coordinates: a standard deviation off by 3 % lies more than ten standard errors away."""
    dimension, measured = 60_000, {}
    for replies in (40, 20, 0):
        some = stage(user_plan(), dimension=dimension)

        def answer(name: str, replies: int = replies) -> Reply:
            there = int(name[1:]) < replies
            return ones(name, dimension=dimension) if there else Lost(party=name, reason="gone")

        result = some.round(some.asking(answer))
        assert len(result.kept) == replies
        measured[replies] = float(np.std(result.state.params[1:] * CLIENTS))
        assert result.state.params[0] * CLIENTS == pytest.approx(replies * CLIP, abs=5)
    assert all(noise == pytest.approx(1.0 * CLIP, rel=0.03) for noise in measured.values()), measured


def test_one_party_with_a_million_examples_moves_the_mean_by_at_most_the_clip_over_the_expected_cohort(
    stage: Callable[..., Stage],
) -> None:
    """Size and length of an update count for nothing: the same noise with and without it, subtracted."""
    means = []
    for giant in (False, True):
        parties = (PartyFacts(name="giant", dataset="g", size=10**6, public=PUBLIC), *clients(39, public=PUBLIC))
        some = stage(parties=parties)

        def answer(name: str, giant: bool = giant) -> Reply:
            if name == "giant":
                return ones(name, length=1e6) if giant else Lost(party=name, reason="gone")
            return ones(name, length=-0.3)

        means.append(some.round(some.asking(answer), rng=seeded()).state.params)
    moved = float(np.linalg.norm(means[1] - means[0]))
    assert moved <= CLIP / CLIENTS * (1 + 1e-9)
    assert moved >= 0.999 * CLIP / CLIENTS


def test_rule_9_a_draw_of_nobody_is_a_step_of_noise_and_no_error(stage: Callable[..., Stage]) -> None:
    some = stage(user_plan(federation={"sampling": {"kind": "poisson", "rate": 1e-9}}))
    result = some.round(some.asking(ones))
    assert result.asked == result.kept == ()
    assert np.all(result.state.params != 0)


def test_rule_9_a_cohort_that_is_lost_as_a_whole_is_a_step_of_noise_too(stage: Callable[..., Stage]) -> None:
    some = stage()
    result = some.round(some.asking(lambda name: Lost(party=name, reason="gone")))
    assert result.kept == ()
    assert np.all(result.state.params != 0)


def test_too_few_replies_never_end_a_round_of_the_client_level(stage: Callable[..., Stage]) -> None:
    """An abort would tell, without noise, how many replied, and one client may decide it."""
    with pytest.raises(PlanRefused, match="tells how many there were, without noise"):
        stage(user_plan(federation={"minimum_parties": 30}))
    some = stage(user_plan())
    assert some.round(some.asking(lambda name: None)).kept == ()


def test_without_client_level_nobody_replying_is_still_too_few_parties(stage: Callable[..., Stage]) -> None:
    some = stage(tiny_plan())
    with pytest.raises(TooFewParties):
        some.round(some.asking(lambda name: None))


def test_a_broken_update_drops_its_client_and_not_the_server(stage: Callable[..., Stage]) -> None:
    some = stage()
    result = some.round(some.asking(lambda name: ones(name, length=float("nan")) if name == "c7" else ones(name)))
    assert len(result.kept) == CLIENTS - 1
    assert "not finite" in some.notes.dropped()["c7"].reason
    assert np.isfinite(result.state.params).all()


def test_noise_at_the_party_leaves_the_server_a_plain_mean(stage: Callable[..., Stage]) -> None:
    """The updates carry their own noise; the server adds none, and nobody at all is no step."""
    some = stage(user_plan({"noise_at": "party"}, privacy={"neighbours": "zero-out"}))
    assert isinstance(fold_of(some.resolved, 1, some.state, ["c0", "c1"]), WeightedMean)
    result = some.round(some.asking(lambda name: ones(name, length=3.0)))
    np.testing.assert_allclose(result.state.params, [3.0, 0.0])
    after = some.round(some.asking(lambda name: None))
    np.testing.assert_array_equal(after.state.params, result.state.params)


def test_seeded_randomness_cannot_protect_clients(stage: Callable[..., Stage]) -> None:
    some = stage()
    with pytest.raises(InvalidParameter, match="seeded"):
        some.round(some.asking(ones), rng=seeded())
    assert set(some.spent().values()) == {0.0}  # refused before anything was reserved
    public = stage(parties=clients(public=PUBLIC))
    public.round(public.asking(ones), rng=seeded())  # the control


@pytest.mark.parametrize("count", [39, 41])
def test_a_federation_of_other_parties_than_the_plans_is_refused_before_anything_is_reserved(
    stage: Callable[..., Stage], count: int
) -> None:
    """The rate and the denominator were stated for forty of them."""
    some = stage()
    with pytest.raises(InvalidParameter, match="are not the 40 of the plan"):
        some.round(Answering([f"c{index}" for index in range(count)], ones))
    assert set(some.spent().values()) == {0.0}


# ------------------------------------------------------------------------------------------- adaptive clipping


def test_the_bound_is_a_slot_that_moves_towards_the_norms_and_clips_the_next_round(stage: Callable[..., Stage]) -> None:
    some = stage(user_plan({"adaptive": {"count_noise": 0.6}, "max_norm": 0.1}))
    assert some.state.clip == 0.1
    bounds = []
    for _ in range(25):
        fold = fold_of(some.resolved, 1, some.state, ())
        assert isinstance(fold, ClientSum)
        assert fold.mechanism.max_norm == some.state.clip
        some.round(some.asking(lambda name: ones(name, length=1.0)))
        bounds.append(some.state.clip)
    assert bounds[0] == pytest.approx(0.1 * np.exp(0.2 * 0.5), rel=0.03)
    assert 0.8 < (bounds[-1] or 0) < 1.25


def test_the_noise_of_a_round_follows_the_bound_that_clipped_not_the_next_one(stage: Callable[..., Stage]) -> None:
    """Every norm lies within the bound, so the next one is smaller by a quarter: e^(−½·½)."""
    dimension = 60_000
    some = stage(user_plan({"adaptive": {"count_noise": 1.0, "learning_rate": 0.5}}), dimension=dimension)
    result = some.round(some.asking(lambda name: ones(name, dimension=dimension, length=0.01)))
    assert result.state.clip == pytest.approx(CLIP * np.exp(-0.25), rel=0.1)
    joint = (1 - 0.5**2) ** -0.5  # σ_Δ for σ = 1 and σ_b = 1
    assert np.std(result.state.params[1:] * CLIENTS) == pytest.approx(joint * CLIP, rel=0.03)


# -------------------------------------------------------------------------------------------------- optimizers


@pytest.mark.parametrize(
    ("kind", "slots"),
    [
        ("fedavg", set()),
        ("fedavgm", {"velocity"}),
        ("fedadam", {"first", "second"}),
        ("adam", {"first", "second", "steps"}),
    ],
)
def test_a_round_steps_by_the_optimizer_of_the_plan(stage: Callable[..., Stage], kind: str, slots: set[str]) -> None:
    plan = tiny_plan(aggregation={"optimizer": {"kind": kind, "learning_rate": 0.1}})
    some = stage(plan, clients(2))
    for _ in range(2):
        some.round(some.asking(lambda name: Update(party=name, delta=np.array([1.0, -2.0]))))
    assert set(some.state.slots) == slots
    expected = {
        "fedavg": [0.2, -0.4],
        "fedavgm": [0.1 * (1 + 1.9), -0.2 * (1 + 1.9)],
        "fedadam": [
            sum(0.1 * sign * size * m / (np.sqrt(1e-6 * 0.99**t + size**2 * v) + 1e-3) for t, m, v in TWO_STEPS)
            for sign, size in ((1, 1.0), (-1, 2.0))
        ],
        "adam": [sum(0.1 * sign * size / (size + 1e-3) for _ in TWO_STEPS) for sign, size in ((1, 1.0), (-1, 2.0))],
    }[kind]
    np.testing.assert_allclose(some.state.params, expected, rtol=1e-12)


TWO_STEPS = ((1, 0.1, 0.01), (2, 0.19, 0.0199))
"""Of a constant update of size 1: the step's number, and the first and second moment after it."""


# ------------------------------------------------------------------------------------------------------- sums


def halves(cohort: Sequence[str], fold: Fold[Any]) -> Iterator[Reply]:
    """Two workers, each with half of the cohort."""
    for part in (cohort[: len(cohort) // 2], cohort[len(cohort) // 2 :]):
        rows = np.tile([10.0, 0.0], (len(part), 1))
        state, _ = fold.add_many(fold.start(), part, rows)
        yield Sums(parties=tuple(part), folded=state)


def test_sums_from_workers_give_the_bits_that_single_updates_give(stage: Callable[..., Stage]) -> None:
    one, other = stage(parties=clients(public=PUBLIC)), stage(parties=clients(public=PUBLIC))
    singly = one.round(one.asking(ones), rng=seeded())
    summed = other.round(other.summing(halves), rng=seeded())
    np.testing.assert_array_equal(singly.state.params, summed.state.params)
    assert set(singly.kept) == set(summed.kept)


def sums_of(fold: Fold[Any], *names: str, said: tuple[str, ...] | None = None) -> Sums:
    state, _ = fold.add_many(fold.start(), names, np.tile([10.0, 0.0], (len(names), 1)))
    return Sums(parties=names if said is None else said, folded=state)


SPOILT: dict[str, Callable[[Fold[Any]], list[Reply]]] = {
    "a stranger": lambda fold: [sums_of(fold, "c0", "c1", "nobody")],
    "heard before": lambda fold: [ones("c1"), sums_of(fold, "c0", "c1")],
    "refused before": lambda fold: [PartyRefusal(party="c1", reason="no"), sums_of(fold, "c0", "c1")],
    "twice the same sum": lambda fold: [sums_of(fold, "c1"), sums_of(fold, "c0", "c1")],
    "other names": lambda fold: [sums_of(fold, "c0", "c1", said=("c0",))],
    "more names than it holds": lambda fold: [sums_of(fold, "c0", said=("c0", "c1"))],
    "too long": lambda fold: [
        Sums(parties=("c0",), folded=ClientState(total=np.array([1 << 40, 0]), doubled=0, kept={"c0": None}))
    ],
    "a list of names": lambda fold: [
        Sums(parties=("c0",), folded=ClientState(total=np.array([1, 0]), doubled=0, kept=["c0"]))  # type: ignore[arg-type]
    ],
    "a name that is none": lambda fold: [Sums(parties=("c0", ["c1"]), folded=fold.start())],  # type: ignore[arg-type]
    "no state at all": lambda fold: [Sums(parties=("c0",), folded=None)],
    "a text": lambda fold: [Sums(parties=("c0",), folded="c0")],
}


@pytest.mark.parametrize("name", sorted(SPOILT))
def test_a_sum_that_should_not_be_is_left_out_as_a_whole(stage: Callable[..., Stage], name: str) -> None:
    some = stage()
    result = some.round(some.summing(lambda cohort, fold: SPOILT[name](fold)))
    assert "c0" not in result.kept
    assert "is left out" in some.notes.dropped()["c0"].reason


MALFORMED: dict[str, Callable[[Fold[Any]], Any]] = {
    "an unhashable party": lambda fold: Update(party=["c0"], delta=np.ones(2)),  # type: ignore[arg-type]
    "an unhashable party in a sum": lambda fold: Sums(parties=(["c0"],), folded=fold.start()),  # type: ignore[arg-type]
    "a sum of None": lambda fold: Sums(parties=None, folded=fold.start()),  # type: ignore[arg-type]
    "a text": lambda fold: "hello",
    "nothing": lambda fold: None,
    "a number for a party": lambda fold: PartyRefusal(party=7, reason="no"),  # type: ignore[arg-type]
    "an empty shell": lambda fold: object.__new__(Update),
    "an empty shell of a sum": lambda fold: object.__new__(Sums),
}


@pytest.mark.parametrize("deadline", [None, 5.0])
@pytest.mark.parametrize("name", sorted(MALFORMED))
def test_what_is_no_reply_is_left_out_and_the_round_goes_on(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture, name: str, deadline: float | None
) -> None:
    caplog.set_level("INFO", logger="quietsum")
    some = stage(user_plan(federation={"deadline": deadline}) if deadline else None)
    result = some.round(some.summing(lambda cohort, fold: [MALFORMED[name](fold), sums_of(fold, "c0", "c1")]))
    assert result.kept == ("c0", "c1")
    assert "a reply is left out" in caplog.text


@pytest.mark.parametrize(
    "first",
    [PartyRefusal(party="c0", reason=["no"]), Lost(party="c0", reason=None), Update(party="c0", delta=None)],  # type: ignore[arg-type]
    ids=["refusal", "lost", "update"],
)
def test_a_malformed_reply_is_the_only_word_of_its_party_and_no_refund(
    stage: Callable[..., Stage], first: Reply
) -> None:
    some = stage(user_plan(style="hybrid"))
    result = some.round(some.summing(lambda cohort, fold: [first, ones("c0"), ones("c1")]))
    assert result.kept == ("c1",) and "c0" in some.notes.dropped()
    spent = some.spent()
    assert spent["c0", PrivacyUnit.RECORD] == spent["c1", PrivacyUnit.RECORD] > 0


def test_an_update_that_the_fold_cannot_take_drops_its_party(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, state: object, party: str, update: Floats) -> None:
        raise AssertionError("the age of Ms Smith")

    monkeypatch.setattr(ClientSum, "add", broken)
    some = stage()
    assert some.round(some.asking(ones)).kept == ()
    assert some.notes.dropped()["c0"].reason == "its update cannot be used (AssertionError)"


def test_the_control_a_good_sum_is_taken(stage: Callable[..., Stage]) -> None:
    some = stage()
    result = some.round(some.summing(lambda cohort, fold: [sums_of(fold, "c0", "c1")]))
    assert result.kept == ("c0", "c1")
    assert some.notes.dropped() == {}


def test_an_update_after_a_sum_is_no_second_vote(stage: Callable[..., Stage]) -> None:
    some = stage()
    result = some.round(some.summing(lambda cohort, fold: [sums_of(fold, "c0", "c1"), ones("c1")]))
    assert result.kept == ("c0", "c1")
    assert "twice" in some.notes.dropped()["c1"].reason


def test_whoever_refuses_and_is_then_in_a_sum_is_not_refunded(stage: Callable[..., Stage]) -> None:
    some = stage(user_plan(style="hybrid"))
    some.round(some.summing(lambda cohort, fold: [PartyRefusal(party="c1", reason="no"), sums_of(fold, "c0", "c1")]))
    spent = some.spent()
    assert spent["c1", PrivacyUnit.RECORD] == spent["c0", PrivacyUnit.RECORD] > 0


def test_a_sum_after_the_deadline_is_lost_for_each_of_its_parties(stage: Callable[..., Stage]) -> None:
    some, now = stage(user_plan(federation={"deadline": 5.0})), [0.0]

    def late(cohort: Sequence[str], fold: Fold[Any]) -> Iterator[Reply]:
        yield sums_of(fold, "c0")
        now[0] = 6.0
        yield sums_of(fold, "c1", "c2")

    result = some.round(some.summing(late), clock=lambda: now[0])
    assert result.kept == ("c0",)
    dropped = some.notes.dropped()
    assert all("after the deadline" in dropped[name].reason for name in ("c1", "c2"))
    assert "had not replied" in dropped["c3"].reason
    assert len(dropped) == CLIENTS - 1


# ----------------------------------------------------------------------------------------------------- charges


def test_rule_1_every_registered_client_is_charged_drawn_or_not(stage: Callable[..., Stage]) -> None:
    some = stage(user_plan(federation={"sampling": HALF}))
    result = some.round(some.asking(ones))
    assert 0 < len(result.asked) < CLIENTS  # fails once in 2⁴⁰
    spent = some.spent()
    assert len(spent) == CLIENTS
    assert len(set(spent.values())) == 1


def test_rule_1_a_round_of_which_nothing_arrives_is_charged_like_any_other(stage: Callable[..., Stage]) -> None:
    silent, loud = stage(), stage()
    silent.round(silent.asking(lambda name: Lost(party=name, reason="gone")))
    loud.round(loud.asking(ones))
    assert silent.spent() == loud.spent()


def test_rule_2_a_refusal_is_refunded_for_records_and_never_for_clients(stage: Callable[..., Stage]) -> None:
    some = stage(user_plan(style="hybrid"))
    some.round(some.asking(lambda name: PartyRefusal(party=name, reason="no") if name == "c3" else ones(name)))
    spent = some.spent()
    assert spent.get(("c3", PrivacyUnit.RECORD), 0.0) == 0.0 < spent["c4", PrivacyUnit.RECORD]
    assert spent["c3", PrivacyUnit.CLIENT] == spent["c4", PrivacyUnit.CLIENT] > 0
    assert some.notes.dropped()["c3"].refunded


def test_rule_2_where_only_clients_are_protected_a_refusal_refunds_nothing(stage: Callable[..., Stage]) -> None:
    some = stage()
    some.round(some.asking(lambda name: PartyRefusal(party=name, reason="no")))
    assert len(set(some.spent().values())) == 1
    assert not some.notes.dropped()["c0"].refunded


def test_rule_2_a_holder_of_many_clients_is_charged_once_and_not_refunded_for_one(stage: Callable[..., Stage]) -> None:
    some = stage(tiny_plan(), clients(10, holder="all"))
    some.round(some.asking(lambda name: PartyRefusal(party=name, reason="no") if name == "c3" else ones(name)))
    assert list(some.spent()) == [("all", PrivacyUnit.RECORD)]
    assert some.spent()["all", PrivacyUnit.RECORD] > 0
    assert not some.notes.dropped()["c3"].refunded


def test_a_cohort_that_refuses_as_a_whole_is_not_said_to_be_free_where_it_is_not(stage: Callable[..., Stage]) -> None:
    some = stage(tiny_plan(), clients(3, holder="all"))
    with pytest.raises(TooFewParties, match="It is charged"):
        some.round(some.asking(lambda name: PartyRefusal(party=name, reason="no")))


@pytest.mark.parametrize("reason", ["", "  ", "\ud800", "x" * 10_000])
def test_no_words_of_a_refusal_end_the_round(stage: Callable[..., Stage], reason: str) -> None:
    some = stage(tiny_plan(), clients(5))
    result = some.round(
        some.asking(lambda name: PartyRefusal(party=name, reason=reason) if name == "c1" else ones(name))
    )
    assert len(result.kept) == 4
    told = some.notes.dropped()["c1"].reason
    assert 0 < len(told) < 600 and told.isprintable()

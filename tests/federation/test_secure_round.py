"""Secure rounds: one masked sum, paid for before it is opened, whoever is lost at whichever step."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from federation.masked import AT_PARTY, CLIENTS, FOUR, NONE, RECORDS, Losing, Watched, secure_plan
from quietsum import failpoints
from quietsum.errors import InvalidParameter, PlanRefused, TooFewParties
from quietsum.federation.messages import QUESTIONS, Federation, Lost, StepAnswer
from quietsum.federation.secure import ends_of_steps
from quietsum.ledger.chain.entries import Kind
from quietsum.mechanisms.distributed import DistributedNoise
from quietsum.mechanisms.rng import randomness_for_tests
from quietsum.party.secure import Noisy, Weighted, contribution_of
from quietsum.party.work import Site
from quietsum.plan import resolve
from quietsum.privacy.units import PrivacyUnit
from quietsum.secagg import Server, Step
from quietsum.tasks import Rows
from tiny import TinyTask, touches

Floats = NDArray[np.float64]


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


@pytest.fixture
def reached() -> Any:
    places: list[str] = []
    failpoints.install(places.append)
    yield places
    failpoints.install(None)


def committed(world: Watched) -> int:
    return sum(entry.kind is Kind.COMMIT for entry in world.ledger.entries())


# ------------------------------------------------------------------------------------------------- the same model


@pytest.mark.parametrize("weights", ["size", "equal"])
def test_the_model_is_that_of_the_run_without_masks_up_to_the_grid(tmp_path: Path, weights: str) -> None:
    models = []
    for secure in (False, True):
        plan = secure_plan(NONE, secure=secure, aggregation={"weights": weights})
        world = Watched(tmp_path / str(secure), plan, rng=randomness_for_tests(7))
        for number in (1, 2, 3):
            assert set(world.round(number).kept) == set(FOUR)
        models.append(world.state.params)
    how = contribution_of(world.resolved, 1)
    assert isinstance(how, Weighted) and np.linalg.norm(models[0]) > 0.1
    np.testing.assert_allclose(models[1], models[0], atol=3 * 4 / how.grid, rtol=0)


def test_a_party_that_is_lost_before_its_vector_leaves_the_mean_of_the_others(tmp_path: Path) -> None:
    deltas = {name: np.array([0.1 * size, -0.01 * size]) for name, size in FOUR.items()}

    class Fixed(TinyTask):
        def train(self, party: str, params: Floats, orders: Any, rng: Any) -> Floats:
            return deltas[party]

    world = Watched(tmp_path, secure_plan(), task=Fixed, wrap=lambda inner: Losing(inner, losses={"west": Step.SHARES}))
    assert world.round().kept == ("east", "north", "south")
    weights = {name: FOUR[name] / (FOUR["east"] + FOUR["north"] + FOUR["south"]) for name in ("east", "north", "south")}
    mean = sum(weight * deltas[name] for name, weight in weights.items())
    np.testing.assert_allclose(world.state.params, mean, atol=1e-6)


def test_no_sum_of_weighted_updates_leaves_the_ring_and_the_error_is_what_the_docstring_says() -> None:
    names = [f"p{index}" for index in range(40)]
    how = Weighted(weights={name: 1 / 40 for name in names}, largest=100.0, dimension=3)
    rng: Any = None
    longest = np.array([100.0, 0.0, 0.0])
    total = sum((how.of(name, sign * longest, rng) for name in names for sign in (1,)), np.zeros(3, dtype=np.uint32))
    np.testing.assert_allclose(how.step(total, names), longest, atol=40 / (2 * how.grid))
    total = sum((how.of(name, -5 * longest, rng) for name in names), np.zeros(3, dtype=np.uint32))
    np.testing.assert_allclose(how.step(total, names), -longest, atol=40 / (2 * how.grid))
    assert 2**29 < 100.0 * how.grid < 2**31  # no bit more than one is wasted


# ------------------------------------------------------------------------------------------------ distributed noise


def zeros(self: Site, key: Any, params: Floats) -> Floats:
    return np.zeros(len(params))


@pytest.mark.parametrize("privacy", [CLIENTS, RECORDS], ids=["clients", "records"])
@pytest.mark.parametrize("lost", [(), ("west",)], ids=["nobody lost", "one lost"])
@pytest.mark.some(2)
def test_the_noise_of_the_opened_sum_is_that_of_the_survivors_shares(
    tmp_path: Path, privacy: Any, lost: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The updates are zero, so that the step is noise alone; its spread is stated by the floor, never by who came."""
    monkeypatch.setattr(Site, "answer", zeros)
    plan = secure_plan(privacy, federation={"rounds": 60, "spare_attempts": 0})
    wrap = lambda inner: Losing(inner, losses=dict.fromkeys(lost, Step.SHARES))  # noqa: E731
    world = Watched(tmp_path, plan, task=Wide, wrap=wrap)
    how = contribution_of(world.resolved, 1)
    assert isinstance(how, Noisy) and world.resolved.secure is not None
    honest = how.noise.honest
    assert honest == world.resolved.secure.honest == 2  # four, less one drop-out, less one colluder
    survivors = len(FOUR) - len(lost)
    steps = []
    for number in range(1, 61):
        before = world.state.params
        assert len(world.round(number).kept) == survivors
        steps.append(world.state.params - before)
    kept = tuple(name for name in FOUR if name not in lost)
    scale = abs(how.factor) / world.resolved.divisor(kept)
    expected = how.noise.noise_multiplier * math.sqrt(survivors / honest) * scale  # C = 1; σ at the floor
    found = np.std(np.array(steps))
    assert abs(found / expected - 1) < 4 / math.sqrt(2 * 60 * Wide.dimension)
    assert abs(found / (expected * math.sqrt(honest / len(FOUR))) - 1) > 0.2  # the control: noise calibrated to n


@pytest.mark.parametrize("lost", [0, 1, 3], ids=["0 %", "10 %", "30 %"])
@pytest.mark.some(1)
def test_of_ten_parties_any_seven_bring_the_noise_that_is_charged(
    tmp_path: Path, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Site, "answer", zeros)
    ten = {f"p{number}": 10 for number in range(10)}
    plan = secure_plan(CLIENTS, aggregation={"drop_outs": 0.3}, federation={"rounds": 25, "spare_attempts": 0})
    gone = dict.fromkeys(list(ten)[:lost], Step.SHARES)
    world = Watched(
        tmp_path,
        plan,
        task=lambda sizes, **given: Wide(sizes=ten, **given),
        wrap=lambda inner: Losing(inner, losses=gone),
    )
    how = contribution_of(world.resolved, 1)
    assert isinstance(how, Noisy) and how.noise.honest == 6  # ten, less three, less one colluder
    sums, before = [], world.state.params
    for number in range(1, 26):
        kept = world.round(number).kept
        sums.append((world.state.params - before) * world.resolved.divisor(kept))
        before = world.state.params
    found, at_least = np.std(np.array(sums)), how.noise.noise_multiplier * how.noise.max_norm
    assert abs(found / (at_least * math.sqrt((10 - lost) / 6)) - 1) < 4 / math.sqrt(2 * 25 * Wide.dimension)
    assert found > at_least  # the six honest ones of any seven have the charged noise, and the seventh adds its own


class Wide(TinyTask):
    dimension = 40

    def initial(self) -> Floats:
        return np.zeros(self.dimension)

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        return np.tile(features[:, :1], (1, self.dimension)) * 3 - params

    def evaluate(self, params: Floats) -> Any:
        return super().evaluate(params[:2])


@pytest.mark.parametrize(("privacy", "unit"), [(RECORDS, PrivacyUnit.RECORD), (CLIENTS, PrivacyUnit.CLIENT)])
def test_the_charge_is_the_floors_whoever_came(tmp_path: Path, privacy: Any, unit: PrivacyUnit) -> None:
    spent = []
    for lost in ((), ("west",)):
        wrap = lambda inner, lost=lost: Losing(inner, losses=dict.fromkeys(lost, Step.SHARES))  # noqa: E731
        world = Watched(tmp_path / str(len(lost)), secure_plan(privacy), wrap=wrap)
        world.round()
        spent.append({one.epsilon for one in world.ledger.spending("run") if one.unit is unit})
        noise = world.resolved.noise_shares(unit)
        assert noise is not None and noise.honest == 2
    assert spent[0] == spent[1] and all(math.isfinite(value) for value in spent[0])


def test_a_record_round_is_one_step_of_the_pooled_batches_over_the_public_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its noise the step is minus the rate times the clipped sum of all batches over the expected ones."""
    monkeypatch.setattr(DistributedNoise, "share", DistributedNoise.round_to_grid)
    plan = secure_plan(RECORDS, training={"sample_rate": 1.0, "local_steps": 1})
    world = Watched(tmp_path, plan, task=Wide)
    world.round()
    total = np.zeros(Wide.dimension)
    for name in FOUR:
        rows = world.task.rows(name)
        for gradient in world.task.gradients(np.zeros(Wide.dimension), rows.features, rows.labels):
            total += gradient * min(1.0, 1 / max(float(np.linalg.norm(gradient)), 1e-12))
    np.testing.assert_allclose(world.state.params, -0.5 * total / sum(FOUR.values()), atol=1e-4)
    assert np.abs(total / sum(FOUR.values())).min() > 0.01


class Raising(TinyTask):
    def rows(self, party: str) -> Rows:
        if party == "west":
            raise ValueError("row 3 is odd")
        return super().rows(party)


@pytest.mark.parametrize("privacy", [RECORDS, CLIENTS, AT_PARTY], ids=["records", "clients", "at the party"])
def test_work_that_failed_adds_noise_alone_and_nobody_is_told(tmp_path: Path, privacy: Any) -> None:
    world = Watched(tmp_path, secure_plan(privacy), task=Raising)
    assert set(world.round().kept) == set(FOUR)
    assert not world.dropped and not world.silent


def test_without_a_promise_work_that_failed_is_a_loss_by_its_kind_alone(tmp_path: Path) -> None:
    world = Watched(tmp_path, secure_plan(NONE), task=Raising)
    assert set(world.round().kept) == set(FOUR) - {"west"}
    assert world.dropped["west"].reason == "its work failed (ValueError)"


# ---------------------------------------------------------------------------------------------------- losses


@pytest.mark.parametrize("step", QUESTIONS, ids=[step.name.lower() for step in QUESTIONS])
def test_a_party_lost_at_any_step_costs_at_most_its_own_vector(tmp_path: Path, step: Step) -> None:
    world = Watched(tmp_path, secure_plan(CLIENTS), wrap=lambda inner: Losing(inner, losses={"south": step}))
    found = world.round()
    answer = {"open": "advertise", "roster": "share", "shares": "masked", "survivors": "agree", "agreed": "unmask"}
    if step in (Step.SURVIVORS, Step.AGREED):
        assert set(found.kept) == set(FOUR) and not world.dropped
        told: Any = world.silent["south"]
    else:
        assert set(found.kept) == set(FOUR) - {"south"} and not world.silent
        told = world.dropped["south"]
        assert not told.refunded
    assert (told.step, told.code, told.reason) == (answer[step.name.lower()], "no-answer", "its line is dead")
    assert committed(world) == 1


@pytest.mark.parametrize("step", QUESTIONS, ids=[step.name.lower() for step in QUESTIONS])
def test_too_few_parties_at_any_step_are_paid_for_and_release_nothing(tmp_path: Path, step: Step) -> None:
    world = Watched(
        tmp_path, secure_plan(CLIENTS), wrap=lambda inner: Losing(inner, losses={"south": step, "west": step})
    )
    before = world.state.params.copy()
    with pytest.raises(TooFewParties, match=r"too few parties.*It is charged") as error:
        world.round()
    assert error.value.exit_code == 6 and committed(world) == 1
    np.testing.assert_array_equal(world.state.params, before)
    once = {one.epsilon for one in world.ledger.spending("run")}
    world.federation.losses.clear()
    world.round()  # a retry: the next attempt, with fresh keys, charged again
    assert committed(world) == 2 and min(one.epsilon for one in world.ledger.spending("run")) > max(once)
    keys = {content for at, _, content in world.federation.passed if at is Step.OPEN}
    assert len(keys) == len([1 for at, _, _ in world.federation.passed if at is Step.OPEN])


def test_simulated_drop_outs_strike_at_every_step(tmp_path: Path) -> None:
    plan = secure_plan(
        AT_PARTY,
        federation={"rounds": 60, "spare_attempts": 200, "simulate": {"drop_outs": 0.2, "stragglers": 0.1}},
    )
    world = Watched(tmp_path, plan)
    steps, short = set(), 0
    for number in range(1, 61):
        try:
            world.round(number)
        except TooFewParties:
            short += 1
        steps |= {event.step for event in world.dropped.values()} | {event.step for event in world.silent.values()}
        assert all(event.code == "no-answer" for event in world.dropped.values())
    assert steps == {"advertise", "share", "masked", "agree", "unmask"} and 0 < short < 60


def test_a_refusal_before_the_vector_is_asked_for_is_refunded_and_a_later_one_is_not(tmp_path: Path) -> None:
    plan = secure_plan(AT_PARTY, federation={"rounds": 3, "spare_attempts": 5, "simulate": {"refusing": ["west"]}})
    world = Watched(tmp_path, plan)
    assert set(world.round().kept) == set(FOUR) - {"west"}
    assert world.dropped["west"].refunded and world.dropped["west"].step == "advertise"
    assert [entry.body["party"] for entry in world.ledger.entries() if entry.kind is Kind.REFUND] == ["west"]

    class Late(Losing):
        def exchange(self, question: Any) -> Any:
            from quietsum.federation.messages import PartyRefusal

            for word in super().exchange(question):
                late = question.step is Step.SHARES and word.party == "west"
                yield PartyRefusal(party="west", reason="not any more") if late else word

    other = Watched(tmp_path / "late", secure_plan(AT_PARTY), wrap=Late)
    assert set(other.round().kept) == set(FOUR) - {"west"} and not other.dropped["west"].refunded
    assert not [entry for entry in other.ledger.entries() if entry.kind is Kind.REFUND]


# --------------------------------------------------------------------------------------------------- the order


def test_the_charge_is_durable_before_the_list_of_survivors_leaves(tmp_path: Path, reached: list[str]) -> None:
    world = Watched(tmp_path, secure_plan(CLIENTS))
    world.round()
    order = [place for place in reached if place.startswith(("secure:", "round:")) and place != "secure:answer"]
    assert order == [
        "round:before-reserve", "round:reserved", "secure:open", "secure:roster", "secure:shares",
        "round:before-commit", "round:committed", "secure:survivors", "secure:agreed", "secure:unmasked",
    ]  # fmt: skip


def test_a_ledger_that_cannot_be_written_opens_no_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Watched(tmp_path, secure_plan(CLIENTS), wrap=Losing)

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(world.ledger, "commit", full)
    with pytest.raises(OSError, match="no space"):
        world.round()
    assert {step for step, _, _ in world.federation.passed} == {Step.OPEN, Step.ROSTER, Step.SHARES}


def test_data_is_touched_at_the_step_of_masked_inputs_and_at_no_other(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    seen = []

    class Looking(Losing):
        def exchange(self, question: Any) -> Any:
            seen.append((question.step, sum(touches(diary).values())))
            yield from super().exchange(question)

    world = Watched(
        tmp_path, secure_plan(CLIENTS), diary=str(diary),
        wrap=lambda inner: Looking(inner, losses={"south": Step.ROSTER}),
    )  # fmt: skip
    world.round()
    assert seen == [(Step.OPEN, 0), (Step.ROSTER, 0), (Step.SHARES, 0), (Step.SURVIVORS, 3), (Step.AGREED, 3)]
    assert "south" not in touches(diary)


def test_the_deadline_is_divided_over_the_steps_and_training_has_most_of_it() -> None:
    ends = ends_of_steps(50.0)
    assert list(ends) == list(QUESTIONS) and ends[Step.AGREED] == pytest.approx(50.0)
    assert ends[Step.SHARES] - ends[Step.ROSTER] > 25.0


# ---------------------------------------------------------------------------------------------- what arrives


@pytest.mark.parametrize("step", QUESTIONS, ids=[step.name.lower() for step in QUESTIONS])
@pytest.mark.parametrize("harm", ["cut", "flipped", "foreign", "nonsense", "nothing"])
def test_nothing_that_arrives_ends_a_round_but_by_too_few_parties(tmp_path: Path, step: Step, harm: str) -> None:
    def spoil(at: Step, word: StepAnswer) -> Any:
        if at is not step or word.party != "east":
            return word
        content = word.content
        return {
            "cut": StepAnswer(party="east", content=content[:-3]),
            "flipped": StepAnswer(party="east", content=content[:60] + bytes([content[60] ^ 1]) + content[61:]),
            "foreign": StepAnswer(party="stranger", content=content),
            "nonsense": object(),
            "nothing": None,
        }[harm]

    world = Watched(tmp_path, secure_plan(CLIENTS), wrap=Losing)
    world.federation.spoil = spoil
    found = world.round()
    told: dict[str, Any] = {**world.dropped, **world.silent}
    assert set(told) == {"east"} and set(found.kept) >= set(FOUR) - {"east"}
    assert told["east"].code != "" and committed(world) == 1


def test_a_federation_that_carries_single_updates_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    class Plain(Federation):
        def registered(self) -> Any:
            return tuple(FOUR)

        def ask(self, *args: Any) -> Any:
            yield from (Lost(party=name, reason="") for name in FOUR)

    world = Watched(tmp_path, secure_plan(CLIENTS), wrap=lambda inner: Plain())
    with pytest.raises(PlanRefused, match="carries updates and no masked sums"):
        world.round()
    assert not [entry for entry in world.ledger.entries() if entry.kind is Kind.RESERVE]


def test_a_local_federation_without_the_plan_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    from quietsum.federation.local import LocalFederation
    from quietsum.mechanisms.rng import system_randomness

    def bare(task: Any, resolved: Any) -> Any:
        sites = {n: Site(n, task=task, resolved=resolved, rng=system_randomness()) for n in FOUR}
        return LocalFederation(sites, rng=system_randomness())

    world = Watched(tmp_path, secure_plan(CLIENTS), federation=bare)
    with pytest.raises(PlanRefused, match=r"use LocalFederation\.of"):
        world.round()
    assert not [entry for entry in world.ledger.entries() if entry.kind is Kind.RESERVE]


class OwnSteps(TinyTask):
    """Trains by code of its own, and cannot say what its gradients add up to."""

    def train(self, party: str, params: Floats, orders: Any, rng: Any) -> Floats:
        return np.zeros(2)


def test_a_task_that_cannot_sum_its_gradients_is_refused_before_its_records_are_promised_noise_in_shares() -> None:
    from quietsum.party.work import rehearse_task

    task = OwnSteps(sizes=FOUR)
    resolved = resolve(secure_plan(RECORDS), task.parties(), 2)
    with pytest.raises(InvalidParameter, match="cannot say what a batch's clipped gradients add up to"):
        rehearse_task(task, resolved, "north")
    rehearse_task(task, resolve(secure_plan(CLIENTS), task.parties(), 2), "north")


# ------------------------------------------------------------------------------------------------------ leaks


def marked(task: TinyTask) -> Floats:
    return np.array([0.123456789, -0.987654321])


class Marked(TinyTask):
    """Every party's update is the same marker."""

    def train(self, party: str, params: Floats, orders: Any, rng: Any) -> Floats:
        return marked(self)


def test_no_byte_that_passes_holds_an_unmasked_vector(tmp_path: Path) -> None:
    world = Watched(tmp_path, secure_plan(NONE), task=Marked, wrap=Losing)
    how = contribution_of(world.resolved, 1)
    world.round()
    patterns = {marked(world.task).tobytes()}
    for name in FOUR:
        whole = how.of(name, marked(world.task), None)  # type: ignore[arg-type]
        patterns |= {whole.tobytes(), whole.astype(np.int64).tobytes()}
    everything = b"".join(content for _, _, content in world.federation.passed)
    assert len(everything) > 4000 and not any(pattern in everything for pattern in patterns)
    plain = Watched(tmp_path / "plain", secure_plan(NONE, secure=False), task=Marked)
    deltas = [
        reply.delta.tobytes()
        for reply in plain.federation.ask(request(plain), tuple(FOUR), fold(plain))
        if hasattr(reply, "delta")
    ]
    assert marked(plain.task).tobytes() in deltas  # the control: without masks the server sees it


def held_by(root: object) -> Iterator[bytes]:
    """The bytes of every array and string that ``root`` leads to, types and functions left out."""
    seen, waiting = set[int](), [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
            continue
        seen.add(id(one))
        if isinstance(one, np.ndarray):
            yield one.tobytes()
        elif isinstance(one, bytes | bytearray):
            yield bytes(one)
        waiting.extend(gc.get_referents(one))


@pytest.mark.parametrize("place", ["secure:shares", "secure:survivors", "secure:agreed", "secure:unmasked"])
def test_no_object_of_the_server_holds_an_unmasked_vector_at_any_step(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quietsum.federation import secure

    made: list[Any] = []

    def server(**given: Any) -> Any:
        made.append(Server(**given))
        return made[0]

    monkeypatch.setattr(secure, "Server", server)
    world = Watched(tmp_path, secure_plan(NONE), task=Marked)
    whole = {contribution_of(world.resolved, 1).of(name, marked(world.task), None).tobytes() for name in FOUR}  # type: ignore[arg-type]
    wanted, found = {*whole, marked(world.task).tobytes()}, list[int]()

    def look(reached: str) -> None:
        if reached == place:
            held = b"\n".join(held_by(made[0]))
            found.append(sum(pattern in held for pattern in wanted))
            assert len(held) > 200

    failpoints.install(look)
    try:
        world.round()
    finally:
        failpoints.install(None)
    assert found == [0]
    made[0].kept = marked(world.task)  # the control
    assert marked(world.task).tobytes() in set(held_by(made[0]))


def request(world: Watched) -> Any:
    from quietsum.federation.messages import TrainRequest

    return TrainRequest(run="run", round=1, attempt=1, params=world.state.params.copy())


def fold(world: Watched) -> Any:
    from quietsum.federation.round import fold_of

    return fold_of(world.resolved, 1, world.state, tuple(FOUR))


def test_masked_zeros_look_uniform_and_no_two_sessions_share_a_byte_of_them(tmp_path: Path) -> None:
    class Large(Wide):
        dimension = 4000

        def train(self, party: str, params: Floats, orders: Any, rng: Any) -> Floats:
            return np.zeros(self.dimension)

    world = Watched(tmp_path, secure_plan(NONE), task=Large, wrap=Losing)
    world.round(1)
    world.round(2)
    masked = [
        np.frombuffer(content[-64 - 4 * 4000 : -64], dtype="<u4")
        for step, name, content in world.federation.passed
        if step is Step.SHARES and len(content) > 4 * 4000
    ]
    assert len(masked) == 8
    for vector in masked:
        counts = np.bincount(vector.view(np.uint8), minlength=256)
        chi = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
        assert chi < 255 + 8 * math.sqrt(2 * 255)
    words = np.concatenate(masked)
    assert len(np.unique(words)) > len(words) - 10


def test_what_both_sides_compute_of_the_grid_stands_in_the_terms(tmp_path: Path) -> None:
    from quietsum.party.secure import terms_of

    task = TinyTask(sizes=FOUR)
    one = resolve(secure_plan(AT_PARTY), task.parties(), 2)
    other = resolve(secure_plan(AT_PARTY, aggregation={"max_update": 3.0}), task.parties(), 2)
    key = ("run", 1, 1)
    assert terms_of(one, key, "m").plan != terms_of(other, key, "m").plan


# ------------------------------------------------------------------------------------------- what a log may hold


def told_by(log: str, deltas: dict[str, Floats]) -> set[str]:
    """Whose update stands in ``log``: any of its numbers to four digits, or its bytes in hexadecimal."""
    shown = {name: {f"{abs(value):.4f}" for value in delta} | {delta.tobytes().hex()} for name, delta in deltas.items()}
    return {name for name, forms in shown.items() if any(form in log for form in forms)}


def test_the_most_talkative_log_of_a_secure_round_holds_no_update(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deltas = {name: np.array([0.1234 + place, -7.4321 - place]) for place, name in enumerate(FOUR)}

    class Fixed(TinyTask):
        def train(self, party: str, params: Floats, orders: Any, rng: Any) -> Floats:
            return deltas[party]

    caplog.set_level(1)
    world = Watched(tmp_path, secure_plan(NONE), task=Fixed)
    assert set(world.round(1).kept) == set(FOUR)
    assert told_by(caplog.text, deltas) == set()
    assert told_by(f"{caplog.text} {deltas['north']}", deltas) == {"north"}

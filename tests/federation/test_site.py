"""A party: what it answers, once, and with which noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quietsum.errors import DataMissing, InvalidParameter, QuietsumError
from quietsum.learning.descent import private_steps
from quietsum.mechanisms.gaussian import ClippedSum
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests, system_randomness
from quietsum.party import Site
from quietsum.party.work import AnsweredBefore, NotTouched, TooLate
from quietsum.plan import PartyFacts
from quietsum.plan.orders import LocalOrders
from quietsum.sampling import Everyone
from quietsum.tasks import Metrics, Rows
from tiny import TinyTask

Floats = NDArray[np.float64]
KEY = ("run", 1, 1, "hash")


class Told:
    """A resolved plan that says just this."""

    def __init__(self, *, protected: bool = True, public: str = "", **orders: Any) -> None:
        values: dict[str, Any] = {"steps": 2, "sampling": Everyone(), "expected_batch": 12.0, "learning_rate": 0.5}
        self.told = LocalOrders(**{**values, **orders})
        self.protected, self.public = protected, public
        self.asked: list[tuple[str, int]] = []

    def orders(self, party: str, number: int) -> LocalOrders:
        self.asked.append((party, number))
        return self.told

    def facts_of(self, party: str) -> PartyFacts:
        return PartyFacts(name=party, dataset="points", size=12, public=self.public)


class Constant:
    """A federated task that answers with a fixed vector, or raises."""

    name = title = "constant"
    dimension = 2

    def __init__(self, delta: Floats | BaseException) -> None:
        self.delta = delta
        self.seen: list[tuple[str, LocalOrders]] = []

    def parties(self) -> tuple[PartyFacts, ...]:
        return (PartyFacts(name="north", dataset="points", size=12),)

    def initial(self) -> Floats:
        return np.zeros(2)

    def evaluate(self, params: Floats) -> Metrics:
        return Metrics(values={}, on="nothing")

    def train(self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        self.seen.append((party, orders))
        if isinstance(self.delta, BaseException):
            raise self.delta
        return self.delta


def site(task: Any, told: Told | None = None, **options: Any) -> Site:
    given: Any = told or Told()
    return Site("north", task=task, resolved=given, **{"rng": system_randomness(), **options})


# -------------------------------------------------------------------------------------------------- its work


def test_a_numpy_task_takes_the_steps_of_its_orders() -> None:
    task, told = TinyTask(), Told(momentum=0.5, proximal=0.7)
    found = site(task, told).answer(KEY, np.ones(2))
    wanted = private_steps(
        task, np.ones(2), task.rows("north"), steps=2, sampling=Everyone(), mechanism=None, expected_batch=12.0,
        learning_rate=0.5, momentum=0.5, proximal=0.7, rng=system_randomness(),
    )  # fmt: skip
    np.testing.assert_array_equal(found, wanted)
    assert told.asked == [("north", 1)]
    assert np.abs(site(task, Told(momentum=0.5)).answer(KEY, np.ones(2)) - wanted).max() > 0.01


def test_a_federated_task_is_given_its_orders() -> None:
    task, told = Constant(np.array([1.0, -2.0])), Told()
    assert site(task, told).answer(("run", 3, 1, ""), np.zeros(2)).tolist() == [1.0, -2.0]
    assert task.seen == [("north", told.told)] and told.asked == [("north", 3)]


def test_rows_of_a_person_are_bounded_before_they_are_drawn() -> None:
    class WithPeople(TinyTask):
        def people(self, party: str) -> NDArray[np.int64]:
            return np.array([1] * 10 + [2, 3])

    found = site(WithPeople(), Told(max_records=2, steps=1)).answer(KEY, np.zeros(2))
    features = TinyTask().rows("north").features[[0, 1, 10, 11]]
    np.testing.assert_allclose(found, 0.5 * features.sum(axis=0) / 12)
    everybody = site(WithPeople(), Told(steps=1)).answer(KEY, np.zeros(2))
    assert np.abs(everybody - found).max() > 0.01, "the control: without the bound they all count"
    with pytest.raises(InvalidParameter, match="whose each row is"):
        site(TinyTask(), Told(protected=False, max_records=2)).answer(KEY, np.zeros(2))


# ---------------------------------------------------------------------------------------- noise at the party

LOUD = ClippedSum(max_norm=0.5, noise_multiplier=3.0)
FAINT = ClippedSum(max_norm=0.5, noise_multiplier=1e-6)


def test_an_update_is_bounded_before_it_leaves() -> None:
    huge = site(Constant(np.array([3e6, -4e6])), Told(client=FAINT)).answer(KEY, np.zeros(2))
    np.testing.assert_allclose(huge, [0.3, -0.4], atol=1e-5)
    assert site(Constant(np.array([3e6, -4e6]))).answer(KEY, np.zeros(2)).tolist() == [3e6, -4e6]


def test_an_update_leaves_with_the_noise_that_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 answers: their spread is σ · C within 6 errors, and that of two thirds of it would be seen."""
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    told = Told(client=LOUD, public="made up")
    party = site(Constant(np.zeros(2)), told, rng=randomness_for_tests(seed=4))
    drawn = np.concatenate([party.answer(("run", number, 1, ""), np.zeros(2)) for number in range(1, 2001)])
    error = 6 * np.sqrt(2 / len(drawn))
    assert abs(np.mean((drawn / 1.5) ** 2) - 1) < error < abs(np.mean((drawn / 1.0) ** 2) - 1)


@pytest.mark.parametrize("bad", [ValueError("row 7 is odd"), RuntimeError("row 7"), np.array([np.nan, 1.0])])
def test_work_that_fails_leaves_as_noise_where_the_party_hides_itself(bad: Any) -> None:
    """Whether it failed may depend on its data, so the server must not see it; without that noise it may."""
    quiet = site(Constant(bad), Told(client=FAINT)).answer(KEY, np.zeros(2))
    assert np.abs(quiet).max() < 1e-4 and quiet.any()
    if isinstance(bad, Exception):
        with pytest.raises(type(bad)):
            site(Constant(bad), Told(protected=False)).answer(KEY, np.zeros(2))


def test_a_late_answer_does_not_leave_and_where_the_party_hides_itself_it_is_noise() -> None:
    class Slow(Constant):
        now = 0.0

        def train(self, *given: Any) -> Floats:
            self.now += 6.0
            return super().train(*given)

    for deadline, late in ((5.0, True), (7.0, False)):
        task = Slow(np.array([0.3, 0.0]))
        party = site(task, Told(client=FAINT), deadline=deadline, clock=lambda task=task: task.now)
        assert np.abs(party.answer(KEY, np.zeros(2))).max() == pytest.approx(0.0 if late else 0.3, abs=1e-4)
    task = Slow(np.ones(2))
    with pytest.raises(TooLate):
        site(task, Told(protected=False), deadline=5.0, clock=lambda: task.now).answer(KEY, np.zeros(2))


@pytest.mark.parametrize("raised", [NotTouched("Ms Smith"), AnsweredBefore("Ms Smith")])
def test_a_task_cannot_refuse_in_the_name_of_its_party(raised: Exception) -> None:
    with pytest.raises(QuietsumError) as error:
        site(Constant(raised), Told(protected=False)).answer(KEY, np.zeros(2))
    assert not isinstance(error.value, NotTouched | AnsweredBefore) and "Smith" not in str(error.value)


# ------------------------------------------------------------------------------------------- once, or not at all


def test_an_attempt_is_answered_once() -> None:
    party = site(Constant(np.ones(2)))
    party.answer(("run", 2, 1, "a"), np.zeros(2))
    for number, attempt, model in ((2, 1, "a"), (2, 1, "b"), (1, 9, "a")):
        with pytest.raises(AnsweredBefore):
            party.answer(("run", number, attempt, model), np.zeros(2))
    party.answer(("run", 2, 2, "a"), np.zeros(2))
    party.answer(("another run", 1, 1, "a"), np.zeros(2))


def test_an_attempt_that_began_has_been_answered() -> None:
    """Whoever trains several sites together begins each of them, and none answers the same request again."""
    party = site(Constant(np.ones(2)), Told(client=FAINT))
    orders = party.begin(KEY)
    np.testing.assert_allclose(party.finish(orders, np.array([9.0, 0.0])), [0.5, 0.0], atol=1e-5)
    with pytest.raises(AnsweredBefore):
        party.answer(KEY, np.zeros(2))
    failing = site(Constant(ValueError()), Told(protected=False))
    with pytest.raises(ValueError):
        failing.answer(KEY, np.zeros(2))
    with pytest.raises(AnsweredBefore):
        failing.answer(KEY, np.zeros(2))


def test_a_refusal_touches_no_data(tmp_path: Path) -> None:
    task = TinyTask(diary=str(tmp_path / "diary"))
    with pytest.raises(NotTouched, match="not today"):
        site(task, refuses="not today").answer(KEY, np.zeros(2))
    assert not (tmp_path / "diary").exists()


def test_a_party_without_data_says_so_and_not_why() -> None:
    """A reader may find in the middle of a file that something is missing; where that is promised to nobody."""
    with pytest.raises(NotTouched) as refusal:
        site(Constant(DataMissing("row 17: Ms Smith")), Told(protected=False)).answer(KEY, np.zeros(2))
    assert str(refusal.value) == "it has no data"


# ------------------------------------------------------------------------------------------- a promise to records

STEADY = ClippedSum(max_norm=1.0, noise_multiplier=2.0)


class Points(TinyTask):
    """Rows that can be read, or not."""

    def __init__(self, reads: Any) -> None:
        super().__init__()
        self.reads = reads

    def rows(self, party: str) -> Any:
        if isinstance(self.reads, BaseException):
            raise self.reads
        return self.reads


def some_rows() -> Any:
    yield Rows(features=np.ones((1, 2)), labels=np.ones(1))
    raise ValueError("line 7: Ms Smith")


class Vast(Rows):  # type: ignore[misc]
    """More rows than anybody has memory for, when they are drawn from."""

    def __init__(self) -> None:
        object.__setattr__(self, "features", np.broadcast_to(np.zeros(2), (2**50, 2)))
        object.__setattr__(self, "labels", np.broadcast_to(np.zeros(()), (2**50,)))


class Panic(BaseException):
    """What libraries in other languages raise."""


READS: dict[str, Any] = {
    "a line that is no number": ValueError("could not convert 'Ms Smith'"),
    "no memory": MemoryError(),
    "a panic": Panic("Ms Smith"),
    "an exit": SystemExit("Ms Smith"),
    "a file that ends": DataMissing("row 17: Ms Smith"),
    "nothing": None,
    "a list": [[1.0, 2.0]],
    "a generator that raises midway": some_rows(),
    "rows of another width": Rows(features=np.ones((3, 5)), labels=np.ones(3)),
    "rows of NaN": Rows(features=np.full((3, 2), np.nan), labels=np.ones(3)),
    "no rows": Rows(features=np.ones((0, 2)), labels=np.ones(0)),
    "far too many rows": Vast(),
}


@pytest.mark.parametrize("what", READS)
def test_whatever_rows_do_what_leaves_is_an_update_of_the_plan(what: str) -> None:
    told = Told(mechanism=STEADY, momentum=0.5, proximal=0.1)
    heard: list[str] = []
    party = site(Points(READS[what]), told, tell=lambda name, words: heard.append(f"{name}: {words}"))
    sent = party.answer(KEY, np.zeros(2))
    assert type(sent) is np.ndarray and sent.dtype == np.float64 and sent.shape == (2,)
    assert np.isfinite(sent).all() and sent.all()
    quiet = ("rows of another width", "rows of NaN", "no rows")  # each row counts as zero, which is no failure
    assert len(heard) == (what not in quiet) and "Smith" not in str(heard)


@pytest.mark.parametrize("people", [ValueError("Ms Smith"), np.arange(3), None])
def test_whatever_people_do_what_leaves_is_an_update_of_the_plan(people: Any) -> None:
    class WithPeople(TinyTask):
        def people(self, party: str) -> Any:
            if isinstance(people, BaseException):
                raise people
            return people

    heard: list[str] = []
    party = site(WithPeople(), Told(mechanism=STEADY, max_records=2), tell=lambda name, words: heard.append(words))
    assert party.answer(KEY, np.zeros(2)).all() and len(heard) == 1 and "Smith" not in heard[0]


@pytest.mark.parametrize(
    "returns",
    [None, "Ms Smith", 3.0, np.zeros(3), np.zeros((2, 1)), np.array([np.inf, 0.0]), np.zeros(2, dtype=np.float32),
     np.array(["a", "b"])],
)  # fmt: skip
def test_whatever_train_returns_what_leaves_is_an_update_of_the_plan(returns: Any) -> None:
    for told in (Told(mechanism=STEADY), Told(client=STEADY), Told()):
        heard: list[str] = []
        sent = site(Constant(returns), told, tell=lambda name, words, to=heard: to.append(words)).answer(
            KEY, np.zeros(2)
        )
        assert sent.dtype == np.float64 and sent.shape == (2,) and np.isfinite(sent).all()
        assert bool(sent.all()) == (told.told.mechanism is not None or told.told.client is not None)
        assert len(heard) == 1 and heard[0].startswith("its update is no")


def test_the_owner_is_told_the_line_of_the_task_and_not_that_of_a_library(tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("1,2\nMs Smith,3\n", encoding="utf-8")

    class Read(TinyTask):
        def rows(self, party: str) -> Any:
            return np.loadtxt(tmp_path / "points.csv", delimiter=",")

    heard: list[str] = []
    site(Read(), Told(mechanism=STEADY), tell=lambda name, words: heard.append(words)).answer(KEY, np.zeros(2))
    assert heard[0].startswith("ValueError in test_site.py, line ") and heard[0].endswith(" (rows)")


def test_ctrl_c_while_rows_are_read_stays_the_owners() -> None:
    with pytest.raises(KeyboardInterrupt):
        site(Points(KeyboardInterrupt()), Told(mechanism=STEADY)).answer(KEY, np.zeros(2))


class Fresh(TinyTask):
    def __init__(self, kind: type[Exception]) -> None:
        super().__init__()
        self.kind = kind

    def rows(self, party: str) -> Any:
        raise self.kind("line 7")


def law_of(reads: Any, monkeypatch: pytest.MonkeyPatch, seed: int, multiplier: float = 2.0) -> Floats:
    """4,000 numbers that a party sent."""
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    mechanism = ClippedSum(max_norm=1.0, noise_multiplier=multiplier)
    told = Told(mechanism=mechanism, momentum=0.5, proximal=0.1, public="made up")
    task = Points(reads) if isinstance(reads, Rows) else Fresh(reads)
    party = site(task, told, rng=randomness_for_tests(seed=seed), tell=lambda *_: None)
    return np.concatenate([party.answer(("run", number, 1, ""), np.zeros(2)) for number in range(1, 2001)])


def test_noise_alone_has_the_law_of_a_site_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variance is (η σ C / b)² (1 + (1 + β − η μ)²) for two steps; two thirds of the noise would be seen."""
    wanted = (0.5 * 2.0 / 12) ** 2 * (1 + (1 + 0.5 - 0.5 * 0.1) ** 2)
    error = 6 * np.sqrt(2 / 4000)
    empty = Rows(features=np.ones((0, 2)), labels=np.ones(0))
    for reads, seed in ((ValueError, 5), (empty, 7)):
        assert abs(np.mean(law_of(reads, monkeypatch, seed) ** 2) / wanted - 1) < error
    assert abs(np.mean(law_of(ValueError, monkeypatch, 8, 2.0 * 2 / 3) ** 2) / wanted - 1) > error


def test_where_the_noise_itself_overflows_what_leaves_is_finite() -> None:
    told = Told(mechanism=STEADY, learning_rate=1e300, momentum=0.9, proximal=1e300, steps=5)
    sent = site(Points(ValueError()), told).answer(KEY, np.zeros(2))
    assert sent.shape == (2,) and np.isfinite(sent).all()


def test_a_task_with_steps_of_its_own_says_what_no_rows_give() -> None:
    class Single(Constant):
        def train_on_nothing(self, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
            return np.full(2, 0.125)

    class Cannot(Constant):
        def train_on_nothing(self, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
            raise ZeroDivisionError("no rows")

    told = Told(mechanism=STEADY)
    assert site(Single(ValueError()), told).answer(KEY, np.zeros(2)).tolist() == [0.125, 0.125]
    assert site(Cannot(ValueError()), told).answer(KEY, np.zeros(2)).all()  # noise alone all the same


def test_with_noise_at_the_party_nobody_sees_that_data_is_missing() -> None:
    sent = site(Constant(DataMissing("gone")), Told(client=LOUD)).answer(KEY, np.zeros(2))
    assert sent.shape == (2,) and np.isfinite(sent).all() and sent.any()


def test_a_task_that_ends_the_process_is_a_failure_like_any_other() -> None:
    sent = site(Constant(SystemExit("Ms Smith is 141")), Told(client=LOUD)).answer(KEY, np.zeros(2))
    assert np.isfinite(sent).all() and sent.any()


def test_seeds_are_for_public_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    seeded = randomness_for_tests(seed=1)
    with pytest.raises(InvalidParameter, match="cannot protect the data of north"):
        site(TinyTask(), Told(), rng=seeded)
    with pytest.raises(InvalidParameter, match="cannot protect the data of north"):
        site(TinyTask(), Told(client=LOUD), rng=seeded)
    site(TinyTask(), Told(public="made up"), rng=seeded)
    site(TinyTask(), Told(protected=False), rng=seeded)


def test_rows_never_leave_in_an_error() -> None:
    assert "0." not in repr(Rows(features=np.full((2, 2), 0.123), labels=np.zeros(2)))

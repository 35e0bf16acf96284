"""Whether a site's rows fit its operator's schema is told to him alone: what leaves is of the same kind either way."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from party.asking import FACTS, RECORD, SENT, STYLES, Place, Server, Watched, plan, policy, reason, searched
from quietsum import wire
from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.ledger import Ledger
from quietsum.mechanisms.rng import system_randomness
from quietsum.party.data import DataCheck, is_awaited
from quietsum.party.policy import Policy, SiteData
from quietsum.party.requests import RequestRefused
from quietsum.party.service import SiteService
from quietsum.party.work import Site
from quietsum.plan import PartyFacts, Plan, resolve
from quietsum.tasks import Rows, as_task

SCHEMA = """
columns = [{ name = "x.0", min = 0, max = 120 }, { name = "x.1" }, { name = "label", type = "integer" }]
[rows]
duplicates = 1.0
[label]
column = "label"
classes = [0, 1]
"""
FITS, SECRET = 34.0, 777.125
"""An age, and one that is none: its digits must not be seen anywhere."""


@pytest.fixture(autouse=True)
def what_leaves(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG, logger="quietsum")
    SENT.clear()
    yield
    if SENT:
        searched()


class Shows(Watched):
    """A task whose rows can be looked at, with one age in them."""

    def __init__(self, age: float) -> None:
        super().__init__()
        self.age, self.looks = age, 0

    def rows(self, party: str) -> Rows:
        self.looks += 1
        features = np.column_stack([np.full(120, 50.0), np.linspace(0, 1, 120)])
        features[7, 0] = self.age
        return Rows(features=features, labels=np.arange(120.0) % 2.0)


def site(folder: Path, age: float, style: str = "sample", on_failure: str = "noise", **more: Any) -> Place:
    (folder / "data.toml").write_text(SCHEMA, encoding="utf-8")
    held = policy(style, data=SiteData(schema="data.toml", on_failure=on_failure, **more), folder=folder)
    place = Place(held)
    place.task = Shows(age)
    return place


@dataclasses.dataclass
class Seen:
    """All that a coordinator gets from one site in a run, but for what is fresh each time: keys, signatures, noise."""

    kinds: list[str]
    bodies: list[Any]
    shapes: list[Any]
    lengths: list[int]
    noisy: list[bool]


def seen(place: Place, style: str) -> Seen:
    """What comes back for an enrolment, three attempts at two rounds, one of them again, and a farewell."""
    server, resolved = Server(), plan(style)
    SENT.clear()
    letters = [server.enrol(place, resolved)]
    letters += [server.train(place, resolved, *key) for key in ((1, 1), (1, 2), (2, 1), (2, 1))]
    letters.append(server.say(place, "farewell", {"run": "first"}))
    return Seen(
        kinds=[letter.kind for letter in letters],
        bodies=[letter.body for letter in letters],
        shapes=[None if letter.vector is None else (letter.vector.shape, letter.vector.dtype) for letter in letters],
        lengths=[len(reply) for reply in SENT],
        noisy=[letter.vector is not None and bool(np.ptp(letter.vector)) for letter in letters],
    )


def the_same(good: Seen, bad: Seen, style: str) -> None:
    """Nothing but noise differs; what a site that fits sends in these tests is a constant, so noise is seen as such."""
    assert good.kinds == bad.kinds == ["enrolled", *4 * ["update"], "noted"]
    assert good.bodies == bad.bodies and good.shapes == bad.shapes and good.lengths == bad.lengths
    if style != "user":  # there the server adds the noise, and it is trusted with updates
        assert bad.noisy == [False, True, True, True, True, False]


@pytest.mark.parametrize("on_failure", ["noise", "refuse"])
@pytest.mark.parametrize("style", sorted(STYLES))
def test_the_coordinator_gets_the_same_kind_of_messages_whether_rows_fit_or_not(
    tmp_path: Path, style: str, on_failure: str, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = site(tmp_path, FITS, style, on_failure), site(tmp_path, SECRET, style, on_failure)
    first = seen(good, style)
    assert "does not fit" not in caplog.text and len(good.task.touched) == 3
    the_same(first, seen(bad, style), style)
    assert not bad.task.touched, "no training on rows that do not fit"
    assert len(bad.reserved) == bad.committed == len(good.reserved) == good.committed
    assert "the data does not fit its schema: range in x.0;" in caplog.text
    assert "777.125" not in caplog.text and all(b"range" not in reply and b"777.125" not in reply for reply in SENT)


def told_at_once(self: SiteService, enrolled: Any) -> None:
    """A broken site: its refusal depends on rows."""
    try:
        self._data.before_training(enrolled.task, self.policy.name, lambda told: None)  # type: ignore[union-attr]
    except Exception:
        raise RequestRefused("it has no data that it would train on") from None


def told_as_lost(self: SiteService, letter: wire.Letter) -> bytes:
    """Another one: after the charge, it says that its work failed."""
    place = self._runs["first", letter.sender.ledger]
    try:
        self._data.before_training(place.task, self.policy.name, lambda told: None)  # type: ignore[union-attr]
    except Exception:
        return self._lose(letter, "its work failed")
    return UNBROKEN(self, letter)


UNBROKEN: Callable[[SiteService, wire.Letter], bytes] = SiteService._train


@pytest.mark.parametrize(("name", "broken"), [("_check_files", told_at_once), ("_train", told_as_lost)])
def test_a_site_that_tells_it_by_a_refusal_or_a_failure_is_caught(
    tmp_path: Path, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above."""
    monkeypatch.setattr(SiteService, name, broken)
    good, bad = site(tmp_path, FITS), site(tmp_path, SECRET)
    first = seen(good, "sample")
    the_same(first, first, "user")
    with pytest.raises(AssertionError):
        the_same(first, seen(bad, "sample"), "sample")


def test_rows_are_looked_at_once_they_are_paid_for_and_not_before(tmp_path: Path) -> None:
    place, server, resolved = site(tmp_path, FITS), Server(), plan()
    assert server.enrol(place, resolved).kind == "enrolled" and not place.task.looks
    assert reason(server.train(place, resolved, 3)) and not place.task.looks
    for number in (1, 2):
        assert server.train(place, resolved, number).kind == "update"
    assert place.task.looks == 1, "once for a run"


def test_rows_that_were_mended_train_from_the_next_round_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place, server, resolved = site(tmp_path, SECRET), Server(), plan()
    server.enrol(place, resolved)
    for attempt in (1, 2):
        assert server.train(place, resolved, 1, attempt).kind == "update"
    assert not place.task.touched
    said = [record for record in caplog.records if "does not fit" in record.getMessage()]
    assert [record.levelname for record in said].count("WARNING") == 1, "said once"
    place.task.age = FITS
    assert server.train(place, resolved, 2).kind == "update" and len(place.task.touched) == 1


def test_with_warn_the_operator_is_told_and_rows_train_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, server, resolved = site(tmp_path, SECRET, on_failure="warn"), Server(), plan()
    server.enrol(place, resolved)
    assert server.train(place, resolved).kind == "update" and len(place.task.touched) == 1
    assert "the data does not fit its schema; trained on all the same: range in x.0" in caplog.text


# ------------------------------------------------------------------------------------------------- row by row


class Means:
    """A numpy task: the mean of rows, without noise to be seen in its gradients."""

    name, title, dimension = "points", "points", 3

    def __init__(self, ages: list[float]) -> None:
        self.ages, self.seen = ages, list[int]()

    def parties(self) -> Any:
        return Watched().parties()

    def initial(self) -> Any:
        return np.zeros(3)

    def evaluate(self, params: Any) -> Any:
        return Watched().evaluate(params)

    def rows(self, party: str) -> Rows:
        features = np.column_stack([self.ages, np.ones(len(self.ages))])
        return Rows(features=features, labels=np.arange(float(len(self.ages))) % 2.0)

    def gradients(self, params: Any, features: Any, labels: Any) -> Any:
        self.seen.extend(int(age) for age in features[:, 0])
        return np.zeros((len(labels), 3))


def test_with_drop_rows_that_do_not_fit_are_left_out_and_the_others_train(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, server, resolved = site(tmp_path, FITS, on_failure="drop"), Server(), plan(training={"sample_rate": 1.0})
    place.task = Means([34.0, SECRET, 56.0, np.inf, np.nan, 78.0])
    server.enrol(place, resolved)
    for number in (1, 2):
        assert server.train(place, resolved, number).kind == "update"
    assert set(place.task.seen) == {34, 56, 78}
    assert "rows that do not fit by themselves are left out: " in caplog.text and "777" not in caplog.text


class Sums(Means):
    """The same with a clipped sum of its own, over all its rows."""

    def clipped_sum(self, party: str, params: Any, orders: Any, rng: Any, *, max_norm: float) -> Any:
        self.gradients(params, self.rows(party).features, self.rows(party).labels)
        return np.zeros(3)


def test_with_drop_a_numpy_task_s_own_sum_does_not_bring_the_rows_back(tmp_path: Path) -> None:
    """Noise of records in shares asks for a batch's clipped sum; the control is the same task without a schema."""
    facts = [PartyFacts(name=name, dataset=f"points-{name}", size=120) for name in ("north", "a", "b", "c", "d")]
    values = {
        "task": {"name": "points"}, "federation": {"rounds": 2, "deadline": 20.0}, "training": {"sample_rate": 1.0},
        "privacy": {"style": "sample", "record": {**RECORD, "noise_at": "distributed"}},
        "aggregation": {"secure": True, "drop_outs": 0.2},
    }  # fmt: skip
    resolved = resolve(Plan.from_dict(values), facts, 3)
    (tmp_path / "data.toml").write_text(SCHEMA, encoding="utf-8")
    check = DataCheck(policy(data=SiteData(schema="data.toml", on_failure="drop"), folder=tmp_path))
    for fits, used in ((check.fits, {34, 56}), (None, {34, 56, 999})):
        task = Sums([34.0, 999.0, 56.0])
        wrapped = as_task(task)
        if fits is not None:
            wrapped.leave_out(fits)
        made = Site("north", task=wrapped, resolved=resolved, rng=system_randomness())
        made.work(np.zeros(3), resolved.orders("north"))
        assert set(task.seen) == used


def test_with_drop_a_task_that_cannot_leave_rows_out_is_refused_before_a_row_is_read(tmp_path: Path) -> None:
    place, server = site(tmp_path, FITS, on_failure="drop"), Server()
    assert reason(server.enrol(place, plan())) == "its task cannot run here"
    assert not place.task.looks and not place.reserved


def test_drop_and_a_table_beside_the_task_contradict_each_other() -> None:
    with pytest.raises(InvalidParameter, match="leaves out rows that the task shows"):
        SiteData(schema="data.toml", table="v.csv", on_failure="drop")


@pytest.mark.parametrize("table", ["ages.csv", "nowhere.csv"])
def test_a_file_may_be_checked_in_place_of_the_tasks_rows(tmp_path: Path, table: str) -> None:
    place, server, resolved = site(tmp_path, SECRET, table=table), Server(), plan()
    (tmp_path / "ages.csv").write_text("x.0,x.1,label\n34,1,0\n56,1,1\n", encoding="utf-8")
    server.enrol(place, resolved)
    assert server.train(place, resolved).kind == "update"
    assert len(place.task.touched) == (1 if table == "ages.csv" else 0)


def test_a_site_whose_schema_cannot_be_read_does_not_begin(tmp_path: Path) -> None:
    held = policy(data=SiteData(schema="data.toml"), folder=tmp_path)
    with pytest.raises(PlanRefused, match=r"quietsum data new"):
        Place(held)


def test_a_run_waits_for_a_site_until_its_last_round_was_asked_for(tmp_path: Path) -> None:
    place, server, resolved = site(tmp_path, FITS), Server(), plan()
    assert not is_awaited(place.ledger)
    server.enrol(place, resolved)
    assert is_awaited(place.ledger)
    server.train(place, resolved, 1)
    assert is_awaited(Ledger.on(place.store, place.key))
    server.train(place, resolved, 2)
    assert not is_awaited(Ledger.on(place.store, place.key))


def test_a_policy_without_data_and_with_every_word_is_read(tmp_path: Path) -> None:
    from quietsum.party.policy_file import first_policy, parse_policy

    text = first_policy(path="p", name="Bern", address="h:1", dataset="visits", size=2000, task="heart")
    assert parse_policy(text, "p").data is None
    found: Policy = parse_policy(text + '[data]\nschema = "data.toml"\ntable = "v.csv"\non_failure = "refuse"\n', "p")
    assert found.data == SiteData(schema="data.toml", table="v.csv", on_failure="refuse")
    with pytest.raises(PlanRefused, match="choose 'noise', 'drop', 'refuse' or 'warn'"):
        parse_policy(text + '[data]\nschema = "data.toml"\non_failure = "ignore"\n', "p")


def test_where_data_is_declared_public_the_coordinator_hears_that_the_work_failed_and_not_how(tmp_path: Path) -> None:
    """Nobody in it is protected, so its outcome is no secret; its rows are not quoted all the same."""
    from quietsum.party.policy import SiteDataset
    from quietsum.plan import Plan, resolve

    (tmp_path / "data.toml").write_text(SCHEMA, encoding="utf-8")
    public = SiteDataset(name="points-north", size=120, public="made up")
    held = policy(data=SiteData(schema="data.toml"), folder=tmp_path, dataset=public, record=None)
    place, server = Place(held), Server()
    place.task = Shows(SECRET)
    facts = tuple(dataclasses.replace(one, public="made up") for one in FACTS)
    values = {"task": {"name": "points"}, "federation": {"rounds": 2}, "privacy": {"style": "none"},
              "training": {"sample_rate": 0.25, "local_steps": 2}}  # fmt: skip
    resolved = resolve(Plan.from_dict(values), facts, 3)
    assert server.enrol(place, resolved).kind == "enrolled"
    assert reason(server.train(place, resolved), "lost") == "its work failed"
    place.task.age = FITS
    assert server.train(place, resolved, 2).kind == "update"

"""Questions to sites with policies and books of their own: what they answer, refuse, and stop."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analytics.asking import COLUMNS, EVERY, SURVIVAL, hospitals, questions_of
from quietsum.analytics import Column, Question, QuestionFile, plan_of
from quietsum.analytics.questions import People, Promise
from quietsum.errors import QuietsumError, TooFewParties
from quietsum.federation.remote.federation import RemoteFederation
from quietsum.federation.remote.transport import ListTransport
from quietsum.ledger import Ledger
from quietsum.party.policy import (
    AllowedTask,
    CoordinatorAddress,
    Policy,
    Rules,
    SiteData,
    SiteDataset,
    SiteName,
    SiteQuestions,
    UnitPolicy,
)
from quietsum.party.questions import AskedFiles
from quietsum.party.service import SiteService
from quietsum.plan import LifetimePlan
from quietsum.privacy.units import PrivacyUnit
from quietsum.runs.asking import Asked, ask
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start
from tiny import tiny_plan

SIZES = {"bern": 300, "basel": 200, "zug": 250, "genf": 300}
BEGIN = datetime.datetime(2026, 3, 1, 9, tzinfo=datetime.UTC)
ANSWERED = SiteQuestions(table="table.csv", columns=COLUMNS, epsilon=2.0, day=4.0)


class Clinics:
    """Sites without a network, each with a table, a policy and a ledger; started again at any time."""

    def __init__(self, folder: Path, sizes: Mapping[str, int] = SIZES, **changes: Any) -> None:
        self.folder, self.now, self.sizes = folder, BEGIN, dict(sizes)
        self.changes = changes
        for name, path in hospitals(folder, np.random.default_rng(2), sizes).items():
            (folder / name).mkdir()
            path.rename(folder / name / "table.csv")
        self.workspace = Workspace.at(folder / "coordinator")

    def policy(self, name: str) -> Policy:
        values: dict[str, Any] = {
            "site": SiteName(name=name),
            "coordinator": CoordinatorAddress(address="127.0.0.1:9092"),
            "dataset": SiteDataset(name=f"registry-{name}", size=self.sizes[name]),
            "rules": Rules(aggregation=("mean", "distributed-noise")),
            "record": UnitPolicy(epsilon=20.0, delta=1e-5),
            "questions": ANSWERED,
            "folder": self.folder / name,
        }
        return Policy(**{**values, **self.changes})

    def federation(self) -> RemoteFederation:
        self.ledgers = {
            name: Ledger.open(self.folder / name / "ledger.db", create=True, clock=lambda: self.now)
            for name in self.sizes
        }
        services = {
            name: SiteService(self.policy(name), ledger, now=lambda: self.now) for name, ledger in self.ledgers.items()
        }
        carrier = ListTransport({f"node-{name}": service.answer for name, service in services.items()})
        return RemoteFederation(carrier, roster=None, patience=2.0)

    def ask(self, asked: QuestionFile) -> Asked:
        federation = self.federation()
        try:
            found = ask(plan_of(asked), workspace=self.workspace, federation=federation)
        finally:
            federation.close()
            for ledger in self.ledgers.values():
                ledger.close()
        if found.error is not None:
            raise found.error
        return found

    def spent(self, name: str) -> dict[str, float]:
        """ε per record of every run that ``name`` has paid for, by its own books."""
        with Ledger.open(self.folder / name / "ledger.db", read_only=True) as ledger:
            return {run.partition(" @ ")[0]: epsilon for run, epsilon in _by_run(ledger, name).items()}

    def agree(self) -> None:
        """Both sides have the same runs at the same price, and both ledgers verify."""
        with Ledger.open(self.workspace.ledger, read_only=True) as ledger:
            ledger.verify()
            for name in self.sizes:
                assert self.spent(name) == pytest.approx(_by_run(ledger, name), rel=1e-12)
                with Ledger.open(self.folder / name / "ledger.db", read_only=True) as own:
                    own.verify()
                    for book in own.lifetime():
                        assert book.guarantee is not None and book.budget is not None
                        assert book.guarantee.epsilon <= book.budget.epsilon


def _by_run(ledger: Ledger, party: str) -> dict[str, float]:
    paid = {run.run: ledger.spending_by_party(run.run).get((party, PrivacyUnit.RECORD)) for run in ledger.runs()}
    return {run: one.epsilon for run, one in paid.items() if one is not None and one.epsilon > 0}


def file_of(*questions: Question, **promise: Any) -> QuestionFile:
    lifetime = LifetimePlan(epsilon=20.0, delta=1e-5)
    return questions_of(SIZES, *questions, tables=False, **{"lifetime": lifetime, **promise})


@pytest.mark.parametrize("secure", [False, True])
def test_sites_answer_and_both_sides_books_agree(tmp_path: Path, secure: bool) -> None:
    clinics = Clinics(tmp_path)
    found = clinics.ask(file_of(EVERY[0], EVERY[3], SURVIVAL, secure=secure))
    (count,) = found.answers[0].estimates
    assert abs(count.value - 1050) < 6 * found.answers[0].deviation
    assert 50 < found.answers[1].estimates[0].value < 75
    clinics.agree()
    assert list(clinics.spent("zug").values()) == [pytest.approx(2.0, abs=1e-3)]


def refusal(clinics: Clinics, asked: QuestionFile) -> str:
    with pytest.raises(TooFewParties) as problem:  # exit code 6
        clinics.ask(asked)
    assert not any(clinics.spent(name) for name in clinics.sizes)
    return str(problem.value)


def columns(**changes: Any) -> tuple[Column, ...]:
    return tuple(dataclasses.replace(one, **changes) if one.name == "age" else one for one in COLUMNS)


OTHERWISE = {
    "a kind that is not answered": ({"kinds": ("count",)}, file_of(EVERY[3]), "only count"),
    "a column that is not declared": ({"columns": COLUMNS[1:]}, file_of(EVERY[3]), "is not declared"),
    "a column that it calls an identifier": (
        {"columns": columns(kind="identifier", bounds=None, cells=None)}, file_of(EVERY[3]), "is an identifier"
    ),
    "a filter on an identifier": (
        {"columns": columns(kind="identifier", bounds=None, cells=None)}, file_of(EVERY[1]), "is an identifier"
    ),
    "bounds of the asker's own": ({"columns": columns(bounds=(0, 100))}, file_of(EVERY[3]), "as the site declares it"),
    "a grid of the asker's own": ({"columns": columns(cells=8)}, file_of(EVERY[5]), "as the site declares it"),
    "more than one file may cost": ({"epsilon": 1.0}, file_of(EVERY[0]), "for a file of questions"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERWISE)
def test_a_site_refuses_from_the_text_alone_and_nobody_is_charged(tmp_path: Path, case: str) -> None:
    changes: Any
    changes, asked, told = OTHERWISE[case]
    clinics = Clinics(tmp_path, questions=dataclasses.replace(ANSWERED, **changes))
    words = refusal(clinics, asked)
    assert told in words
    # the same words whatever stands in the tables: nobody, one person, everybody
    for name in SIZES:
        table = tmp_path / name / "table.csv"
        table.write_text(table.read_text().splitlines(keepends=True)[0])
    assert refusal(clinics, asked) == words


def test_a_site_without_questions_in_its_policy_answers_none(tmp_path: Path) -> None:
    clinics = Clinics(tmp_path, questions=None, tasks=(AllowedTask(name="heart"),))
    assert "answers no questions" in refusal(clinics, file_of(EVERY[0]))


def test_the_size_of_a_cell_never_decides(tmp_path: Path) -> None:
    """Nobody is in the cell, and the question is answered like any other."""
    clinics = Clinics(tmp_path)
    where = {"age": {"from": 95, "to": 100}, "sex": "f", "arm": "old"}
    found = clinics.ask(file_of(Question(name="nobody", kind="count", where=where)))  # type: ignore[arg-type]
    assert abs(found.answers[0].estimates[0].value) < 6 * found.answers[0].deviation


def test_a_days_questions_end_with_its_budget_also_after_a_restart_and_begin_anew_with_the_next(tmp_path: Path) -> None:
    clinics = Clinics(tmp_path)
    for hour in (0, 8):
        clinics.now = BEGIN + datetime.timedelta(hours=hour)
        clinics.ask(file_of(EVERY[0]))
    before = clinics.spent("zug")
    clinics.now = BEGIN + datetime.timedelta(hours=23)
    with pytest.raises(QuietsumError, match="its budget does not allow this plan"):  # every ask starts the sites anew
        clinics.ask(file_of(EVERY[0], epsilon=0.5))
    clinics.now = BEGIN - datetime.timedelta(days=3)  # a clock that was set back gives nothing back
    with pytest.raises(QuietsumError, match="its budget does not allow this plan"):
        clinics.ask(file_of(EVERY[0], epsilon=0.5))
    assert clinics.spent("zug") == before
    clinics.now = BEGIN + datetime.timedelta(hours=25)
    clinics.ask(file_of(EVERY[0], epsilon=0.5))
    assert len(clinics.spent("zug")) == len(before) + 1 == 3
    clinics.agree()


def test_a_question_that_another_process_answers_in_between_counts_for_the_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that look first and write later would both be allowed the last ε of a day."""
    clinics = Clinics(tmp_path)
    reserve = Ledger.reserve

    def late(ledger: Any, *args: Any, also: Any = None, **rest: Any) -> Any:
        def look() -> None:
            if ledger._journal.store._connection.in_transaction:  # the other one was first
                monkeypatch.setattr(AskedFiles, "since", lambda *_: 4.0)
            also()

        return reserve(ledger, *args, also=None if also is None else look, **rest)

    monkeypatch.setattr(Ledger, "reserve", late)
    with pytest.raises(QuietsumError):
        clinics.ask(file_of(EVERY[0]))
    assert not clinics.spent("zug")


def test_questions_and_a_training_share_one_lifetime_and_stop_before_it_is_overspent(tmp_path: Path) -> None:
    """A day of questions, one training in between, until the site's own lifetime of ε = 6 allows no more."""
    sizes = {"north": 12, "south": 8}
    lifetime = UnitPolicy(epsilon=6.0, delta=1e-3)
    clinics = Clinics(
        tmp_path, sizes, record=lifetime, tasks=(AllowedTask(name="tiny:TinyTask"),),
        questions=dataclasses.replace(ANSWERED, epsilon=2.0, day=6.0),
    )  # fmt: skip
    real = clinics.policy
    clinics.policy = lambda name: dataclasses.replace(  # type: ignore[method-assign]
        real(name), dataset=SiteDataset(name=f"points-{name}", size=sizes[name])
    )
    asked = QuestionFile(
        privacy=Promise(epsilon=1.2, delta=1e-3, lifetime=LifetimePlan(epsilon=6.0, delta=1e-3)),
        sites=tuple(
            dataclasses.replace(file_of(EVERY[0]).sites[0], name=name, size=size, dataset=f"points-{name}")
            for name, size in sizes.items()
        ),
        columns=COLUMNS,
        questions=(EVERY[0], EVERY[6]),
    )
    clinics.ask(asked)
    training = tiny_plan()
    federation = clinics.federation()
    result = start(training, workspace=clinics.workspace, federation=federation)
    federation.close()
    assert result.error is None
    for ledger in clinics.ledgers.values():
        ledger.close()
    answered = 1
    with pytest.raises(QuietsumError) as problem:
        for _ in range(12):
            clinics.ask(asked)
            answered += 1
    assert 2 <= answered <= 5 and "budget" in str(problem.value)
    assert all(len(clinics.spent(name)) == answered + 1 for name in sizes)  # and the training
    clinics.agree()


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe" * 1000, b"age,sex\n1,f\n", b'age\n"' + b"x" * (1 << 21)])
def test_a_table_that_cannot_be_read_leaves_noise_and_tells_nobody_else(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer comes as from any site, and is charged; without the records of zug."""
    clinics = Clinics(tmp_path)
    (tmp_path / "zug" / "table.csv").write_bytes(content)
    found = clinics.ask(file_of(EVERY[6]))
    assert abs(sum(one.value for one in found.answers[0].estimates) - 800) < 8 * found.answers[0].deviation
    clinics.agree()
    assert len(clinics.spent("zug")) == 1
    assert "zug: its work failed" in caplog.text or content.startswith(b"age,sex")


def test_a_site_that_protects_people_answers_what_promises_them_something_and_nothing_else(tmp_path: Path) -> None:
    person = People(column="patient_id", max_records=1)
    clinics = Clinics(tmp_path, person=UnitPolicy(epsilon=20.0, delta=1e-5))
    assert "promises nothing per person" in refusal(clinics, file_of(EVERY[0]))
    clinics.ask(file_of(EVERY[0], person=person))
    with Ledger.open(tmp_path / "zug" / "ledger.db", read_only=True) as ledger:
        paid = {
            str(unit) for run in ledger.runs() for (_, unit), one in ledger.spending_by_party(run.run).items() if one
        }
    assert paid == {"record", "person"}
    clinics.agree()


def test_people_are_told_apart_by_what_the_site_calls_an_identifier(tmp_path: Path) -> None:
    person = People(column="patient_id", max_records=1)
    others = tuple(column for column in COLUMNS if column.name != "patient_id")
    clinics = Clinics(
        tmp_path, person=UnitPolicy(epsilon=20.0, delta=1e-5), questions=dataclasses.replace(ANSWERED, columns=others)
    )
    assert "does not declare as an identifier" in refusal(clinics, file_of(EVERY[0], person=person))


@pytest.mark.parametrize("named", ["", "patient_id"])
def test_the_asker_does_not_choose_by_which_identifier_people_are_told_apart(tmp_path: Path, named: str) -> None:
    """By the number of a visit everybody is many people, and a bound on records of each bounds nothing."""
    visit = Column(name="visit_id", kind="identifier")
    own = dataclasses.replace(ANSWERED, columns=(*COLUMNS, visit), person=named)
    clinics = Clinics(tmp_path, person=UnitPolicy(epsilon=20.0, delta=1e-5), questions=own)
    asked = file_of(EVERY[0], person=People(column="patient_id", max_records=1))
    by_visit = dataclasses.replace(
        asked,
        columns=(*asked.columns, visit),
        privacy=dataclasses.replace(asked.privacy, person=People(column="visit_id", max_records=1)),
    )
    assert "questions.person says by which" in refusal(clinics, by_visit)
    if named:
        assert clinics.ask(asked).answers  # negative control: what the policy names is answered
    else:
        assert "questions.person says by which" in refusal(clinics, asked)


def test_one_record_that_does_not_fit_the_sites_schema_takes_no_answer_with_it(tmp_path: Path) -> None:
    """A check of the whole table would leave noise alone: one record would move a count by all of them."""
    clinics = Clinics(tmp_path, data=SiteData(schema="data.toml", table="table.csv", on_failure="noise"))
    for name in SIZES:
        (tmp_path / name / "data.toml").write_text(
            'reviewed = true\ncolumns = [{ name = "age", type = "number", min = 0, max = 150 }]\n'
        )
        table = tmp_path / name / "table.csv"
        header, first, *others = table.read_text().splitlines()
        values = first.split(",")
        values[header.split(",").index("age")] = "500"
        table.write_text("\n".join([header, ",".join(values), *others, ""]))
    found = clinics.ask(file_of(EVERY[0])).answers[0]
    assert found.estimates[0].value == pytest.approx(sum(SIZES.values()), abs=8 * found.deviation)
    assert found.deviation < 20

"""The rules of honest accounting, each at the level of whole rounds and runs, with a control that could fail.

======  ========================================================================  ==============================
rule    what it says                                                              where
======  ========================================================================  ==============================
1       an amplified charge falls on every registered party in each round         here
2       replies never lower a charge                                              here, federation/test_round.py
3       exact inside a plan, Rényi between plans; stopping early keeps ε          here, ledger/test_books.py
4       records get no amplification from cohort sampling                         here
5       who took part is for the operator only                                    here, ledger/test_export.py
6       neighbours are declared                                                   here
7       nothing is computed on private rows for free                              here, party/test_data_check.py
8       sums of discrete noise go through Rényi, charged at their floor           here, mechanisms/test_distributed.py
9       Poisson draws are never redrawn                                           here
10      randomness is never restored                                              here, runs/test_run.py
11      a chain alone forgets; anchors remember                                   here, ledger/test_tampering.py
12      person level holds within one site, or is paid at each                    here
13      rules after party-side noise are post-processing; central noise fails     here
14      "certified" is said of certified bounds only                              here
15      an upper bound is proven                                                  contracts/test_accountants.py
16      a record that leaves may let another in                                   privacy/test_one_in_one_out.py
17      a failure is a message                                                    federation/test_site.py
18      files are data                                                            cli/test_plans_are_data.py
19      what one draw releases is one joint event                                 learning/test_adaptive.py
20      distributed noise counts a colluder and is unamplified for clients        plan/test_secure.py
21      old books stay good                                                       old_books/test_corrections.py
22      nothing optional stands between reservation and release                   runs/test_optional.py
======  ========================================================================  ==============================
"""

from __future__ import annotations

import json
import pickle
import re
import shutil
import sqlite3
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from ledger.build import tamper
from quietsum import ExactAccountant, Gaussian, PldAccountant, PoissonSampled, RenyiAccountant, report
from quietsum.cli.app import app
from quietsum.errors import BudgetExhausted, DataMissing, PlanRefused, QuietsumError, UnsupportedEvent
from quietsum.ledger import Head, Ledger
from quietsum.ledger.chain.encoding import head_message
from quietsum.ledger.chain.entries import NOTHING, Kind, make_row
from quietsum.ledger.chain.export import export_ledger
from quietsum.ledger.chain.keys import load_key
from quietsum.ledger.chain.verify import read_anchors
from quietsum.ledger.history import RunHistory
from quietsum.ledger.stores.protocol import Row
from quietsum.ledger.stores.sqlite import SqliteStore
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests, system_randomness
from quietsum.plan import Plan, resolve
from quietsum.privacy.events import DiscreteGaussian, DiscreteGaussianSum, Skellam
from quietsum.report.pages.page import render_page
from quietsum.runs import checkpoint as checkpoints
from quietsum.runs.folder import RunFolder, Workspace
from quietsum.runs.run import RunResult, resume_run, start
from quietsum.sampling import Poisson
from quietsum.tasks import Rows
from quietsum.tasks.gallery import heart
from quietsum.tasks.gallery.heart import HeartTask, HospitalTable
from scenes import invoke, one_line
from tiny import TinyTask, tiny_plan, touches

TEN = {f"site-{number}": 10 for number in range(10)}


def go(folder: Path, plan: Plan | None = None, name: str = "run", task: TinyTask | None = None) -> RunResult:
    return start(plan or tiny_plan(), workspace=Workspace(path=folder), name=name, task=task or TinyTask())


def steps_paid(folder: Path, run: str = "run") -> dict[str, int]:
    """For how many noisy steps each party was charged."""
    with Ledger.open(folder / "ledger.db") as ledger:
        ledger.verify()
        paid = RunHistory(ledger, run).read().paid
    return {party: sum(events.values()) for (party, _), events in paid.items()}


def epsilons(folder: Path, run: str = "run") -> dict[str, float]:
    with Ledger.open(folder / "ledger.db") as ledger:
        return {party: found.epsilon for (party, _), found in ledger.spending_by_party(run).items()}


def test_the_table_of_rules_is_whole_and_names_files_that_are_there() -> None:
    rows = re.findall(r"^(\d+) +\S.*?  +(.*)$", __doc__ or "", re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 23))
    own = Path(__file__)
    for number, where in rows:
        for place in where.split(", "):
            if place == "here":
                assert f"def test_rule_{number}_" in own.read_text(encoding="utf-8"), number
            else:
                assert (own.parent / place).is_file(), place


def noisy(**record: object) -> Mapping[str, object]:
    """A privacy table with a stated noise."""
    return {"record": {"noise_multiplier": 3.0, "delta": 1e-3, "max_grad_norm": 1.0, **record}}


# ------------------------------------------------------------------------------------------------- rule 1


def test_rule_1_every_registered_party_is_charged_in_every_round_drawn_or_not(tmp_path: Path) -> None:
    plan = tiny_plan(federation={"rounds": 4, "sampling": {"kind": "poisson", "rate": 0.3}})
    diary = tmp_path / "diary"
    assert go(tmp_path, plan, task=TinyTask(sizes=TEN, diary=str(diary))).outcome == "finished"
    assert steps_paid(tmp_path) == dict.fromkeys(TEN, 4)
    assert len(set(epsilons(tmp_path).values())) == 1
    assert sum(touches(diary).values()) < 40  # the control: many were not drawn (all were with probability 0.3^40)


def test_rule_1_a_round_that_drew_nobody_is_charged_to_everybody_and_changes_no_model(tmp_path: Path) -> None:
    plan = tiny_plan(federation={"rounds": 4, "sampling": {"kind": "poisson", "rate": 1e-10}})
    diary = tmp_path / "diary"
    result = go(tmp_path, plan, task=TinyTask(diary=str(diary)))
    assert touches(diary) == {}
    assert steps_paid(tmp_path) == {"north": 4, "south": 4}
    assert result.outcome == "finished"
    np.testing.assert_array_equal(checkpoints.read_model(result.folder.model)[0], [0.0, 0.0])


def test_rule_1_an_aborted_round_is_charged_and_so_is_the_attempt_that_makes_it_again(tmp_path: Path) -> None:
    plan = tiny_plan(federation={"simulate": {"drop_outs": 1.0}, "spare_attempts": 2})
    result = go(tmp_path, plan)
    assert result.outcome == "too-few-parties"
    assert steps_paid(tmp_path) == {"north": 1, "south": 1}
    resume_run(result.folder, workspace=Workspace(path=tmp_path), task=TinyTask())
    assert steps_paid(tmp_path) == {"north": 2, "south": 2}


def test_rule_1_the_control_charging_only_those_drawn_reports_a_fifth_of_the_truth() -> None:
    step = PoissonSampled(rate=0.01, event=Gaussian(noise_multiplier=1.0))
    whole = ExactAccountant().compose(step, 1000).epsilon(delta=1e-5).epsilon_lower
    drawn_only = ExactAccountant().compose(step, 10).epsilon(delta=1e-5).epsilon
    assert whole == pytest.approx(1.83, abs=0.005)
    assert drawn_only == pytest.approx(0.38, abs=0.005)


# ------------------------------------------------------------------------------------------------- rule 2


class Faulty(TinyTask):
    """South reads its data, and then its arithmetic fails."""

    def gradients(self, params: Any, features: Any, labels: Any) -> Any:
        if self.sizes["south"] == len(labels):
            raise FloatingPointError("a site's own failure")
        return super().gradients(params, features, labels)


def test_rule_2_drop_outs_and_failures_cost_what_an_undisturbed_run_costs(tmp_path: Path) -> None:
    training = {"sample_rate": 1.0}
    go(tmp_path / "quiet", tiny_plan(training=training))
    failing = go(tmp_path / "failing", tiny_plan(training=training), task=Faulty())
    assert failing.outcome == "finished"
    assert epsilons(tmp_path / "failing") == epsilons(tmp_path / "quiet")
    assert steps_paid(tmp_path / "failing") == {"north": 3, "south": 3}


def test_rule_2_the_control_a_party_that_refuses_before_it_looks_gets_its_charge_back(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    go(tmp_path, tiny_plan(federation={"simulate": {"refusing": ["south"]}}), task=TinyTask(diary=str(diary)))
    assert touches(diary) == {"north": 3}
    assert steps_paid(tmp_path) == {"north": 3, "south": 0}


def test_rule_2_what_is_committed_is_what_was_reserved(tmp_path: Path) -> None:
    go(tmp_path)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        entries = list(ledger.entries())
        reserves = {entry.sequence: entry for entry in entries if entry.kind is Kind.RESERVE}
        commits = [entry for entry in entries if entry.kind is Kind.COMMIT]
        assert [entry.body["reserve"] for entry in commits] == list(reserves)
        assert [entry.kind for entry in entries].count(Kind.REFUND) == 0
        stated = [line["epsilon"] for line in commits[-1].body["spent"]]
    assert sorted(stated) == sorted(epsilons(tmp_path).values())


# ------------------------------------------------------------------------------------------------- rule 3


def first_and_second(folder: Path, lifetime: float) -> None:
    """Two equal plans on the same data, under one lifetime budget."""
    plan = tiny_plan(privacy=noisy(lifetime={"epsilon": lifetime, "delta": 1e-3}))
    go(folder, plan, "first")
    go(folder, plan, "second")


def composed_exactly(steps: int) -> float:
    task = TinyTask()
    resolved = resolve(tiny_plan(privacy=noisy()), task.parties(), task.dimension)
    assert resolved.mechanism is not None
    event = resolved.sampling_of("north").amplify(resolved.mechanism.event())
    return ExactAccountant().compose(event, steps).epsilon(delta=1e-3).epsilon


def test_rule_3_inside_one_plan_the_accounting_is_exact(tmp_path: Path) -> None:
    go(tmp_path, tiny_plan(privacy=noisy()))
    exact = composed_exactly(3)
    assert exact <= epsilons(tmp_path)["north"] <= exact * (1 + 1e-5)  # the noise's distance from its law included


def test_rule_3_two_plans_need_more_than_the_exact_composition_of_both(tmp_path: Path) -> None:
    both = composed_exactly(6)
    with pytest.raises(BudgetExhausted) as refused:
        first_and_second(tmp_path, 1.02 * both)
    needed = float(re.findall(r"--epsilon (\S+)", str(refused.value))[0])
    assert needed > 1.02 * both


def test_rule_3_the_control_one_plan_of_the_same_length_fits_and_two_fit_a_larger_budget(tmp_path: Path) -> None:
    both = composed_exactly(6)
    one = tiny_plan(federation={"rounds": 6}, privacy=noisy(lifetime={"epsilon": 1.02 * both, "delta": 1e-3}))
    assert go(tmp_path / "one", one).outcome == "finished"
    first_and_second(tmp_path / "two", 2 * both)
    with Ledger.open(tmp_path / "two" / "ledger.db") as ledger:
        for book in ledger.lifetime():
            assert book.plans == 2 and book.guarantee is not None
            assert book.guarantee.method == "Rényi filter"
            assert book.guarantee.epsilon == 2 * both  # what is left may have steered the second plan


def test_rule_3_a_run_that_stopped_early_reports_the_whole_plans_epsilon(tmp_path: Path) -> None:
    result = go(tmp_path, tiny_plan(federation={"simulate": {"drop_outs": 1.0}}))
    assert max(epsilons(tmp_path).values()) < 1.5
    values = report.build(result.folder, Workspace(path=tmp_path))
    _, about = checkpoints.read_model(result.folder.model)
    stated = [claim.epsilon for claim in result.claims]
    stated += [claim["epsilon"] for claim in (*values["guarantees"], *about["guarantees"])]
    assert stated == [pytest.approx(2.0, rel=1e-6)] * 6


def test_rule_3_what_is_spent_so_far_is_said_to_hold_if_the_schedule_runs_as_planned(tmp_path: Path) -> None:
    go(tmp_path)
    shown = CliRunner().invoke(app, ["ledger", "show", "--run", "run", "--workspace", str(tmp_path)]).stdout
    assert "if the schedule runs as planned" in " ".join(shown.split())


# ------------------------------------------------------------------------------------------------- rule 4


def test_rule_4_records_cost_the_same_with_cohort_sampling_as_without(tmp_path: Path) -> None:
    for name, federation in (
        ("everyone", {}),
        ("some", {"sampling": {"kind": "poisson", "rate": 0.3}}),
    ):
        go(tmp_path / name, tiny_plan(federation=federation, privacy=noisy()), task=TinyTask(sizes=TEN))
    assert epsilons(tmp_path / "some") == epsilons(tmp_path / "everyone")


def test_rule_4_the_control_multiplying_the_rates_would_report_far_less(tmp_path: Path) -> None:
    go(tmp_path, tiny_plan(federation={"sampling": {"kind": "poisson", "rate": 0.3}}, privacy=noisy()))
    event = PoissonSampled(rate=0.5 * 0.3, event=Gaussian(noise_multiplier=3.0))
    multiplied = ExactAccountant().compose(event, 3).epsilon(delta=1e-3).epsilon
    assert max(epsilons(tmp_path).values()) > 2 * multiplied


# ------------------------------------------------------------------------------------------------- rule 5

CLOSED = "the archive is closed for stocktaking"


class Closed(TinyTask):
    """South refuses before it looks at its data, in every round."""

    def look_for_data(self, party: str) -> None:
        if party == "south":
            raise DataMissing(CLOSED)


def command_line_run(folder: Path, monkeypatch: pytest.MonkeyPatch, task: type[TinyTask], plan: Plan) -> RunFolder:
    """A run as the command makes it, with all files; returns its folder."""
    module = types.ModuleType("rule_five")
    module.Site = task  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rule_five", module)
    file = folder / "run.toml"
    folder.mkdir(exist_ok=True)
    file.write_text(plan.to_toml().replace("tiny:TinyTask", "rule_five:Site"), encoding="utf-8")
    done = CliRunner().invoke(app, ["run", str(file), "--name", "run", "--workspace", str(folder)])
    assert done.exit_code == 0, done.output
    return Workspace(path=folder).find("run")


def for_recipients(folder: RunFolder, workspace: Path) -> dict[str, str]:
    """What leaves the operator's hands."""
    with Ledger.open(workspace / "ledger.db") as ledger:
        export_ledger(ledger, workspace / "ledger.jsonl")
    return {
        "ledger.jsonl": (workspace / "ledger.jsonl").read_text(),
        "report.json": (folder.path / "report.json").read_text(),
        "report.html": (folder.path / "report.html").read_text(),
        "model.safetensors": json.dumps(checkpoints.read_model(folder.model)[1]),
    }


def test_rule_5_who_took_part_is_in_no_file_for_recipients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = command_line_run(tmp_path, monkeypatch, Closed, tiny_plan())
    for name, text in for_recipients(folder, tmp_path).items():
        assert CLOSED not in text, name
        for word in ('"kept"', '"asked"', '"cohort"', "left_out", "left out", "party-dropped", '"refunded"', "refused"):
            assert word not in text, (name, word)


def test_rule_5_the_control_the_operator_can_read_who_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = command_line_run(tmp_path, monkeypatch, Closed, tiny_plan())
    database = sqlite3.connect(folder.path / "run.db")
    rows = database.execute("SELECT round, party, reason, refunded FROM left_out ORDER BY 1").fetchall()
    database.close()
    assert [(number, party, refunded) for number, party, _, refunded in rows] == [(n, "south", 1) for n in (1, 2, 3)]
    assert all("it has no data" in reason for *_, reason, _ in rows)
    events = [json.loads(line) for line in (folder.path / "events.jsonl").read_text().splitlines()]
    assert [event["kept"] for event in events if event["event"] == "round-finished"] == [["north"]] * 3
    assert sum(event["event"] == "party-dropped" and event["party"] == "south" for event in events) == 3


class Unequal(TinyTask):
    """South is small, so it is the worst party, whose ε is everybody's bound."""

    def __init__(self) -> None:
        super().__init__(sizes={"north": 400, "south": 8})


class UnequalClosed(Closed):
    """The same, but south refuses."""

    def __init__(self) -> None:
        super().__init__(sizes={"north": 400, "south": 8})


def test_rule_5_epsilon_in_a_report_does_not_give_away_that_the_worst_party_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An exported ledger withholds the ε of commits after a refund for this very reason; a report and the header of
    # the model must not state it either. Otherwise ε of north's charges alone tells that south took no part.
    plan = tiny_plan(
        training={"sample_rate": None, "batch_size": 4, "local_steps": 1},
        privacy={"record": {"noise_multiplier": 2.0, "delta": 1e-3, "max_grad_norm": 1.0}},
    )
    told = []
    for name, task in (("all", Unequal), ("without", UnequalClosed)):
        folder = command_line_run(tmp_path / name, monkeypatch, task, plan)
        values = json.loads((folder.path / "report.json").read_text())
        _, about = checkpoints.read_model(folder.model)
        for key in ("created", "dates", "ledger", "signature"):  # when, and by which ledger
            del values[key]
        del values["metrics"], values["utility"], values["artefacts"][0]["sha256"]  # of a noisy model
        told.append((values, about["guarantees"]))
    assert told[0][0].keys() >= {"guarantees", "spent", "lifetime", "sentences", "summary"}
    assert told[0] == told[1]


# ------------------------------------------------------------------------------------------------- rule 6


def spent_under(folder: Path, neighbours: str) -> float:
    privacy = {**noisy(), "neighbours": neighbours}
    go(folder / neighbours, tiny_plan(privacy=privacy))
    return max(epsilons(folder / neighbours).values())


def test_rule_6_zero_out_costs_what_add_or_remove_costs_and_replace_one_more(tmp_path: Path) -> None:
    added = spent_under(tmp_path, "add-or-remove-one")
    assert spent_under(tmp_path, "zero-out") == pytest.approx(added, rel=1e-12)
    assert spent_under(tmp_path, "replace-one") > 1.5 * added


@pytest.mark.parametrize("neighbours", ["add-or-remove-one", "zero-out", "replace-one"])
def test_rule_6_a_run_declares_its_relation_wherever_it_states_its_guarantee(tmp_path: Path, neighbours: str) -> None:
    plan = tiny_plan(privacy={**noisy(), "neighbours": neighbours})
    result = go(tmp_path, plan)
    values = report.build(result.folder, Workspace(path=tmp_path))
    assert {claim["neighbours"] for claim in values["guarantees"]} == {neighbours}
    assert neighbours in render_page(values)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        (entry,) = [entry for entry in ledger.entries() if entry.kind is Kind.RUN]
    assert entry.body["terms"]["neighbours"] == neighbours


def test_rule_6_a_dataset_that_was_accounted_under_one_relation_is_not_continued_under_another(tmp_path: Path) -> None:
    lifetime = {"epsilon": 50.0, "delta": 1e-3}
    plans = [
        tiny_plan(privacy={**noisy(lifetime=lifetime), "neighbours": name})
        for name in ("add-or-remove-one", "replace-one")
    ]
    go(tmp_path, plans[0], "first")
    with pytest.raises(PlanRefused, match="replace-one"):
        go(tmp_path, plans[1], "second")
    go(tmp_path, plans[0], "third")  # the control


# ------------------------------------------------------------------------------------------------- rule 7


def training_row(tables: Mapping[str, HospitalTable], site: str) -> int:
    """The place in its table of a row that trains."""
    held_out = heart.read_hold_out()[site]
    used = tables[site].complete().numbers
    return int(next(number for number in used if number not in held_out))


def other_patient(site: str = "va") -> HeartTask:
    """Heart with one private row replaced by somebody else."""
    tables = heart.read_tables()
    values = tables[site].values.copy()
    values[training_row(tables, site), :10] = [77, 0, 1, 200, 603, 1, 2, 60, 1, 6.2]
    return HeartTask({**tables, site: HospitalTable(values=values, numbers=tables[site].numbers)})


def facts(task: HeartTask) -> list[object]:
    """Everything that steers a run of heart before and beside its rows."""
    from quietsum.plan import load_plan

    plan = load_plan("[privacy]\nrecord = { epsilon = 1.0, delta = 1e-5 }\n[training]\nsample_rate = 0.5\n")
    resolved = resolve(plan, task.parties(), task.dimension)
    names = [party.name for party in resolved.parties]
    return [
        resolved.parties, resolved.noise_multiplier, resolved.charges(), resolved.all_charges(),
        task.initial().tolist(),
        [(resolved.weight_of(name), resolved.batch_of(name), resolved.steps_of(name)) for name in names],
        dict(task.evaluate(np.linspace(-1, 1, task.dimension)).values),
    ]  # fmt: skip


def changed_rows(one: HeartTask, other: HeartTask) -> dict[str, int]:
    found = {}
    for party in one.parties():
        left, right = one.rows(party.name), other.rows(party.name)
        found[party.name] = int(np.sum((left.features != right.features).any(axis=1)))
    return found


def test_rule_7_another_patient_changes_her_own_row_and_nothing_else() -> None:
    task, other = HeartTask.from_package(), other_patient()
    assert changed_rows(task, other) == {"cleveland": 0, "hungarian": 0, "switzerland": 0, "va": 1}
    assert facts(task) == facts(other)


def test_rule_7_the_control_features_centred_on_their_own_mean_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = heart.encode

    def centred(values: NDArray[np.float64]) -> Rows:
        rows = honest(values)
        return Rows(features=rows.features - rows.features.mean(axis=0), labels=rows.labels)

    monkeypatch.setattr(heart, "encode", centred)
    assert changed_rows(HeartTask.from_package(), other_patient())["va"] > 1


def test_rule_7_a_patient_who_leaves_changes_no_declared_size_and_no_step() -> None:
    tables = heart.read_tables()
    kept = tables["va"].numbers != training_row(tables, "va")
    fewer = HeartTask({**tables, "va": tables["va"].select(kept)})
    assert len(fewer.rows("va")) == len(HeartTask.from_package().rows("va")) - 1
    assert facts(fewer) == facts(HeartTask.from_package())


# ------------------------------------------------------------------------------------------------- rule 8

IN_MANY_DIMENSIONS = [
    DiscreteGaussian(sigma=4.0, dimension=2),
    Skellam(variance=16.0, l1_sensitivity=3.0, l2_sensitivity=1.5),
    DiscreteGaussianSum(sigma=2.0, shares=4, dimension=2),
    PoissonSampled(rate=0.1, event=Skellam(variance=16.0, l1_sensitivity=3.0, l2_sensitivity=1.5)),
    PoissonSampled(rate=0.1, event=DiscreteGaussianSum(sigma=2.0, shares=4, dimension=2)),
]


@pytest.mark.parametrize("event", IN_MANY_DIMENSIONS, ids=lambda event: event.kind)
def test_rule_8_exact_and_pld_refuse_discrete_sums_in_many_dimensions_and_renyi_takes_them(event: Any) -> None:
    for accountant in (ExactAccountant(), PldAccountant()):
        assert not accountant.supports(event)
        with pytest.raises(UnsupportedEvent):
            accountant.compose(event)
    assert 0 < RenyiAccountant().compose(event).epsilon(delta=1e-5).epsilon < 10


def test_rule_8_the_control_in_one_dimension_exact_takes_it() -> None:
    event = DiscreteGaussian(sigma=4.0, dimension=1)
    assert 0 < ExactAccountant().compose(event).epsilon(delta=1e-5).epsilon < 10


def test_rule_8_what_a_run_charges_is_supported_by_exact_in_any_dimension(tmp_path: Path) -> None:
    """Its noise is a rounded Gaussian, a function of a Gaussian, not a discrete one."""
    result = go(tmp_path)
    assert result.resolved.mechanism is not None
    assert isinstance(result.resolved.mechanism.event(), Gaussian)


# ------------------------------------------------------------------------------------------------- rule 9


def test_rule_9_an_empty_draw_is_a_step_of_noise_alone_drawn_once_and_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    honest = Poisson.draw

    def counted(self: Poisson, population: int, rng: RandomSource) -> NDArray[np.int64]:
        drawn = honest(self, population, rng)
        sizes.append(len(drawn))
        return drawn

    monkeypatch.setattr(Poisson, "draw", counted)
    training = {"sample_rate": 1e-10, "local_steps": 5}
    result = go(tmp_path / "noisy", tiny_plan(training=training, privacy=noisy()))
    assert sizes == [0] * (3 * 2 * 5)  # rounds × parties × steps, none drawn a second time
    assert steps_paid(tmp_path / "noisy") == {"north": 15, "south": 15}
    assert np.all(checkpoints.read_model(result.folder.model)[0] != 0)

    bare = tiny_plan(training=training, privacy={"style": "none", "record": None})
    still = go(tmp_path / "bare", bare, task=TinyTask(public="made up for a test"))
    np.testing.assert_array_equal(checkpoints.read_model(still.folder.model)[0], [0.0, 0.0])  # so it was the noise


# ------------------------------------------------------------------------------------------------ rule 10


def test_rule_10_randomness_cannot_be_saved_seeded_or_put_into_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="never copied or saved"):
        pickle.dumps(system_randomness())
    monkeypatch.delenv("QUIETSUM_TEST_SEEDS", raising=False)
    with pytest.raises(QuietsumError):
        randomness_for_tests(1)
    for table in ("training", "privacy", "federation"):
        with pytest.raises(QuietsumError, match="seed"):
            tiny_plan(**{table: {"seed": 1}})


def test_rule_10_no_file_of_a_run_holds_a_generators_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = command_line_run(tmp_path, monkeypatch, TinyTask, tiny_plan())
    headers = [checkpoints._open(path)[1] for path in folder.checkpoints.iterdir()]
    tensors = [set(checkpoints._open(path)[0]) for path in folder.checkpoints.iterdir()]
    assert tensors == [{"params"}] * 3
    texts = [json.dumps(header) for header in headers] + list(for_recipients(folder, tmp_path).values())
    for text in [*texts, (folder.path / "run.json").read_text(), (folder.path / "events.jsonl").read_text()]:
        assert not re.search(r"(?i)\b(seed|generator|rng|nonce|entropy)\b", text)


# ------------------------------------------------------------------------------------------------ rule 11


def anchors_of(folder: RunFolder) -> dict[str, Head]:
    """Heads kept elsewhere: in the newest checkpoint, in the model and in the report."""
    last = checkpoints.latest_checkpoint(folder.checkpoints)
    assert last is not None
    (from_report,) = read_anchors(folder.path / "report.json")
    model = Head.from_dict(checkpoints.read_model(folder.model)[1]["head"])
    return {"checkpoint": last.head, "model": model, "report": from_report}


def verify(workspace: Path, *anchors: Head) -> int:
    with Ledger.open(workspace / "ledger.db", read_only=True) as ledger:
        return ledger.verify(anchors).anchors


def cut_tail(workspace: Path, copy: Path) -> None:
    tamper(workspace / "ledger.db", "DELETE FROM entries WHERE sequence >= (SELECT max(sequence) - 1 FROM entries)")
    (workspace / "ledger.db.head").unlink()  # the mark beside the ledger would find it


def yesterdays_file(workspace: Path, copy: Path) -> None:
    for path in workspace.glob("ledger.db*"):
        path.unlink()
    for path in copy.glob("ledger.db*"):
        shutil.copy(path, workspace)


def rewritten_chain(workspace: Path, copy: Path) -> None:
    """The last round never happened and the run began long ago: fresh hashes, signed with the ledger's own key."""
    path = workspace / "ledger.db"
    store = SqliteStore(path, read_only=True)
    rows = list(store.rows())
    store.close()
    key = load_key(path, json.loads(rows[0].body)["public_key"])
    fresh: list[Row] = []
    for row in rows[:-2]:
        made = make_row(
            ledger=key.public.ledger, previous=fresh[-1].hash if fresh else NOTHING, sequence=row.sequence,
            kind=Kind(row.kind), body=json.loads(row.body),
            time=row.time.replace("20", "19", 1) if row.kind == "run" else row.time,
        )  # fmt: skip
        message = head_message(ledger=key.public.ledger, sequence=made.sequence, hash=made.hash)
        fresh.append(made._replace(signature=key.sign(message)))
    inserts = [("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", tuple(row)) for row in fresh]
    tamper(path, "DELETE FROM entries", *inserts)
    (workspace / "ledger.db.head").unlink()


@pytest.mark.parametrize("forge", [cut_tail, yesterdays_file, rewritten_chain], ids=lambda forge: forge.__name__)
def test_rule_11_each_forgery_verifies_by_itself_and_is_found_by_every_anchor_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forge: Any
) -> None:
    copy = tmp_path / "yesterday"
    copy.mkdir()
    with Ledger.open(tmp_path / "ledger.db", create=True):
        pass
    for path in tmp_path.glob("ledger.db*"):
        shutil.copy(path, copy)
    folder = command_line_run(tmp_path, monkeypatch, TinyTask, tiny_plan())
    anchors = anchors_of(folder)
    assert verify(tmp_path, *anchors.values()) >= 1  # the control: all of them are in the honest ledger
    forge(tmp_path, copy)
    assert verify(tmp_path) == 0  # a chain alone forgets
    for where, head in anchors.items():
        with pytest.raises(QuietsumError, match=r"cut off|rewritten"):
            verify(tmp_path, head)
            pytest.fail(f"the anchor in the {where} did not find it")
    found = CliRunner().invoke(
        app,
        ["ledger", "verify", "--workspace", str(tmp_path), "--anchor", str(folder.path / "report.json")],
    )
    assert found.exit_code == 4 and "error: the ledger's entry" in found.stderr
    begun = CliRunner().invoke(app, ["run", str(tmp_path / "run.toml"), "--name", "more", "--workspace", str(tmp_path)])
    assert begun.exit_code == 4, begun.output  # a forged ledger pays for no new run either
    assert not (tmp_path / "runs" / "more").exists()


def test_rule_11_a_workspace_whose_ledger_was_replaced_by_a_fresh_one_pays_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The runs that are there were paid from another ledger. A new one, with a key of its own, would forget them.
    command_line_run(tmp_path, monkeypatch, TinyTask, tiny_plan())
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    (tmp_path / "elsewhere").mkdir()
    with Ledger.open(tmp_path / "elsewhere" / "ledger.db", create=True):
        pass
    for path in (tmp_path / "elsewhere").iterdir():
        path.rename(tmp_path / path.name)
    begun = CliRunner().invoke(app, ["run", str(tmp_path / "run.toml"), "--name", "more", "--workspace", str(tmp_path)])
    assert begun.exit_code == 4, begun.output


def test_rule_11_a_deleted_ledger_is_not_begun_again_where_there_are_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command_line_run(tmp_path, monkeypatch, TinyTask, tiny_plan())
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    begun = CliRunner().invoke(app, ["run", str(tmp_path / "run.toml"), "--name", "more", "--workspace", str(tmp_path)])
    assert begun.exit_code != 0 and not (tmp_path / "ledger.db").exists()


# ------------------------------------------------------------------------------------------------ rule 12


class Visits(TinyTask):
    """Two visits of each patient, known by a number that both sites use."""

    def people(self, party: str) -> NDArray[np.int64]:
        return np.arange(self.sizes[party]) // 2


PER_PERSON = {**noisy(), "person": {"id": "person", "max_records": 2, "delta": 1e-3}}


def test_rule_12_a_person_is_charged_at_every_site_and_the_plan_and_the_report_say_where_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = command_line_run(tmp_path, monkeypatch, Visits, tiny_plan(privacy=PER_PERSON))
    said = one_line(invoke("plan", tmp_path / "run.toml", "--workspace", tmp_path).stdout.replace("│", ""))
    assert "within the worst party (who is at two pays at both)" in said
    values = json.loads((folder.path / "report.json").read_text())
    about_people = [one for one in values["sentences"] if "any one person" in one]
    assert about_people and all("it holds within one party" in one for one in about_people)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        paid = {party for party, unit in RunHistory(ledger, "run").read().paid if unit == "person"}
    assert paid == {"north", "south"}


def test_rule_12_the_control_a_plan_about_records_says_nothing_of_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command_line_run(tmp_path, monkeypatch, Visits, tiny_plan(privacy=noisy()))
    said = one_line(invoke("plan", tmp_path / "run.toml", "--workspace", tmp_path).stdout.replace("│", ""))
    assert "pays at both" not in said and "per record" in said


# ------------------------------------------------------------------------------------------------ rule 13

FIVE = {f"site-{number}": 10 for number in range(5)}
MEDIAN = {"rule": "median"}


def test_rule_13_a_rule_after_noise_of_the_parties_costs_what_the_mean_costs(tmp_path: Path) -> None:
    for rule in ("mean", "median"):
        plan = tiny_plan(privacy=noisy(), aggregation={"rule": rule})
        assert go(tmp_path / rule, plan, task=TinyTask(sizes=FIVE)).outcome == "finished"
    assert epsilons(tmp_path / "median") == epsilons(tmp_path / "mean")


def test_rule_13_central_noise_after_a_rule_without_a_sensitivity_is_refused_and_after_the_mean_it_is_not(
    tmp_path: Path,
) -> None:
    client = {"style": "user", "client": {"noise_multiplier": 3.0, "delta": 1e-3, "max_norm": 1.0}, "record": None}
    with pytest.raises(PlanRefused, match="median"):
        go(tmp_path / "median", tiny_plan(privacy=client, aggregation=MEDIAN), task=TinyTask(sizes=FIVE))
    assert go(tmp_path / "mean", tiny_plan(privacy=client), task=TinyTask(sizes=FIVE)).outcome == "finished"


# ------------------------------------------------------------------------------------------------ rule 14


@pytest.mark.parametrize(("accounting", "certified"), [("exact", True), ("rdp", False), ("moments", False)])
def test_rule_14_certified_is_said_of_certified_bounds_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accounting: str, certified: bool
) -> None:
    plan = tiny_plan(privacy={**noisy(), "accounting": accounting})
    folder = command_line_run(tmp_path, monkeypatch, TinyTask, plan)
    values = json.loads((folder.path / "report.json").read_text())
    assert {claim["certified"] for claim in values["guarantees"]} == {certified}
    html = (folder.path / "report.html").read_text()
    assert ("certified" in html) is certified
    monkeypatch.chdir(tmp_path)  # so that no path is printed with the name of this test in it
    for command in (["show"], ["runs"], ["plan", "run.toml"]):
        shown = CliRunner().invoke(app, [*command, "--workspace", "."]).stdout
        assert shown and (certified or "certified" not in shown)


def test_rule_14_noise_that_is_not_floating_point_safe_is_not_called_certified(tmp_path: Path) -> None:
    result = go(tmp_path, tiny_plan(privacy={**noisy(), "noise": "fast"}))
    values = report.build(result.folder, Workspace(path=tmp_path))
    assert not any(claim["certified"] for claim in values["guarantees"])
    assert "certified" not in render_page(values)


def test_rule_14_the_word_on_the_page_follows_the_bound(tmp_path: Path) -> None:
    """The control: the same report with the flag turned says the opposite."""
    result = go(tmp_path)
    values = report.build(result.folder, Workspace(path=tmp_path))
    assert "certified" in render_page(values)
    turned = {**values, "guarantees": [{**claim, "certified": False} for claim in values["guarantees"]]}
    assert "certified" not in render_page(turned)

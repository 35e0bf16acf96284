"""Runs on disk: what is there after each ending, and what resuming refuses."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quietsum import ExactAccountant
from quietsum.errors import (
    BudgetExhausted,
    CorruptState,
    DataMissing,
    InvalidParameter,
    LedgerBroken,
    PlanRefused,
    QuietsumError,
    TooFewParties,
)
from quietsum.federation.local import LocalFederation
from quietsum.federation.messages import Federation
from quietsum.federation.watch import RoundFinished, RunEvent
from quietsum.ledger import Head, Ledger, claim_guarantees
from quietsum.ledger.history import RunHistory
from quietsum.plan import Plan, resolve
from quietsum.runs import checkpoint as checkpoints
from quietsum.runs.folder import RunFolder, Workspace
from quietsum.runs.run import RunResult, check_anchors, resume_run, start
from tiny import TinyTask, tiny_plan, touches


def go(tmp_path: Path, plan: Plan | None = None, name: str | None = None, task: TinyTask | None = None) -> RunResult:
    return start(plan or tiny_plan(), workspace=Workspace(path=tmp_path), name=name, task=task or TinyTask())


class StopAfter:
    """A watcher that stops the run by hand, between rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def saw(self, event: RunEvent) -> None:
        if event.kind == "round-finished" and event.round == self.rounds:  # type: ignore[attr-defined]
            raise KeyboardInterrupt


def stopped(tmp_path: Path, plan: Plan, after: int, name: str = "run") -> RunFolder:
    place = Workspace(path=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        start(plan, workspace=place, name=name, task=TinyTask(), watchers=[StopAfter(after)])
    return place.find(name)


def spent(tmp_path: Path, run: str) -> dict[str, float]:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        return {party: guarantee.epsilon for (party, _), guarantee in ledger.spending_by_party(run).items()}


# ------------------------------------------------------------------------------------------- endings


def test_a_finished_run_leaves_a_model_a_checkpoint_and_a_frozen_plan(tmp_path: Path) -> None:
    result = go(tmp_path, name="first")
    assert (result.outcome, result.round, result.error) == ("finished", 3, None)
    folder = Workspace(path=tmp_path).find("first")
    assert folder.plan() == tiny_plan()
    last = checkpoints.latest_checkpoint(folder.checkpoints)
    assert last is not None
    params, about = checkpoints.read_model(folder.model)
    np.testing.assert_array_equal(params, last.state.params)
    assert about["outcome"] == "finished"
    assert about["guarantees"][0]["unit"] == "record"


def test_the_whole_plan_is_spent_and_no_more(tmp_path: Path) -> None:
    result = go(tmp_path, name="run")
    assert max(spent(tmp_path, "run").values()) <= 2.0
    assert max(spent(tmp_path, "run").values()) == pytest.approx(2.0, rel=1e-3)
    assert all(guarantee.epsilon <= 2.0 for guarantee in result.claims)


def test_epsilon_of_a_run_is_what_a_plain_composition_of_its_steps_says(tmp_path: Path) -> None:
    result = go(tmp_path, name="run")
    event = result.resolved.sampling_of("north").amplify(result.resolved.mechanism.event())  # type: ignore[union-attr]
    plain = ExactAccountant().compose(event, 3).epsilon(delta=1e-3).epsilon
    assert plain <= result.claims[0].epsilon <= plain * (1 + 1e-6)  # a millionth of δ is kept for the noise itself


def test_rule_3_a_run_stopped_by_hand_claims_the_whole_plan(tmp_path: Path) -> None:
    folder = stopped(tmp_path, tiny_plan(), 1)
    resolved = resolve(folder.plan(), TinyTask().parties(), 2)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert max(g.epsilon for g in ledger.spending("run")) < 1.5
    claimed = claim_guarantees(resolved.forecast(at=()).whole, finished=False)
    assert [g.epsilon for g in claimed] == pytest.approx([2.0, 2.0], rel=1e-6)
    assert all(g.epsilon_lower == 0.0 for g in claimed)


def test_rule_3_spare_attempts_that_were_not_needed_do_not_lower_the_claim(tmp_path: Path) -> None:
    result = go(tmp_path, tiny_plan(federation={"spare_attempts": 5}), name="run")
    assert max(spent(tmp_path, "run").values()) < 1.5
    assert result.claims[0].epsilon == pytest.approx(2.0, rel=1e-6)


def test_rule_5_a_refusal_does_not_lower_the_claim(tmp_path: Path) -> None:
    plan = tiny_plan(federation={"simulate": {"refusing": ["north", "south"]}})
    result = go(tmp_path, plan, name="run")
    assert result.outcome == "too-few-parties"
    assert result.claims[0].epsilon == pytest.approx(2.0, rel=1e-6)


def test_fast_noise_is_labelled_in_the_guarantee_itself(tmp_path: Path) -> None:
    result = go(tmp_path, tiny_plan(privacy={"noise": "fast"}))
    assert all("not floating-point safe" in guarantee.warnings for guarantee in result.claims)
    assert not any(guarantee.certified for guarantee in result.claims)


def test_the_control_secure_noise_is_certified_and_has_no_label(tmp_path: Path) -> None:
    result = go(tmp_path)
    assert all(guarantee.certified for guarantee in result.claims)
    assert not any("safe" in warning for guarantee in result.claims for warning in guarantee.warnings)


def test_record_epsilon_of_unequal_sites_is_the_worst_sites_not_the_mean(tmp_path: Path) -> None:
    plan = tiny_plan(
        training={"sample_rate": None, "batch_size": 4, "local_epochs": 1, "local_steps": None},
        privacy={"record": {"noise_multiplier": 2.0, "delta": 1e-3, "max_grad_norm": 1.0}},
    )
    task = TinyTask(sizes={"large": 400, "small": 8})
    result = go(tmp_path, plan, name="run", task=task)
    by_party = spent(tmp_path, "run")
    assert by_party["small"] > 2 * by_party["large"]
    assert result.claims[0].epsilon == by_party["small"]


def test_style_none_claims_nothing(tmp_path: Path) -> None:
    plan = tiny_plan(privacy={"style": "none", "record": None})
    result = go(tmp_path, plan, task=TinyTask(public="made up for a test"))
    assert result.claims == ()


def test_style_none_on_protected_data_is_refused_before_anything_runs(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    with pytest.raises(QuietsumError, match="public"):
        go(tmp_path, tiny_plan(privacy={"style": "none", "record": None}), task=TinyTask(diary=str(diary)))
    assert touches(diary) == {}
    assert not list((tmp_path / "runs").glob("*")) if (tmp_path / "runs").exists() else True


def test_without_privacy_the_tiny_mean_is_found(tmp_path: Path) -> None:
    plan = tiny_plan(
        privacy={"style": "none", "record": None},
        training={"sample_rate": 1.0},
        federation={"rounds": 40},
    )
    result = go(tmp_path, plan, task=TinyTask(public="made up for a test"))
    assert result.metrics.values["distance"] < 1e-6


def test_with_fewer_than_the_minimum_the_run_stops_and_keeps_its_model(tmp_path: Path) -> None:
    plan = tiny_plan(federation={"simulate": {"drop_outs": 1.0}})
    result = go(tmp_path, plan)
    assert result.outcome == "too-few-parties"
    assert isinstance(result.error, TooFewParties)
    assert result.folder.model.is_file()


# ---------------------------------------------------------------------------------------------- resume


def test_stopped_between_rounds_and_resumed_a_run_spends_exactly_what_an_unbroken_one_spends(tmp_path: Path) -> None:
    go(tmp_path / "unbroken", name="run")
    folder = stopped(tmp_path / "broken", tiny_plan(), 2)
    result = resume_run(folder, workspace=Workspace(path=tmp_path / "broken"), task=TinyTask())
    assert result.outcome == "finished"
    assert spent(tmp_path / "broken", "run") == spent(tmp_path / "unbroken", "run")


def test_the_model_goes_on_where_it_stopped(tmp_path: Path) -> None:
    plan = tiny_plan(privacy={"style": "none", "record": None}, training={"sample_rate": 1.0}, federation={"rounds": 6})
    public = "made up for a test"
    whole = start(plan, workspace=Workspace(path=tmp_path / "a"), name="run", task=TinyTask(public=public))
    place = Workspace(path=tmp_path / "b")
    with pytest.raises(KeyboardInterrupt):
        start(plan, workspace=place, name="run", task=TinyTask(public=public), watchers=[StopAfter(2)])
    halves = resume_run(place.find("run"), workspace=place, task=TinyTask(public=public))
    np.testing.assert_array_equal(
        checkpoints.read_model(whole.folder.model)[0], checkpoints.read_model(halves.folder.model)[0]
    )


def test_resuming_a_finished_run_spends_nothing(tmp_path: Path) -> None:
    before = go(tmp_path, name="run")
    again = resume_run(before.folder, workspace=Workspace(path=tmp_path), task=TinyTask())
    assert again.outcome == "finished"
    assert again.claims == before.claims


def test_rule_10_a_checkpoint_holds_no_generator_state(tmp_path: Path) -> None:
    folder = go(tmp_path, name="run").folder
    (path,) = sorted(folder.checkpoints.glob("*.safetensors"))[-1:]
    _, about = checkpoints._open(path)
    assert set(about) == {"version", "run", "plan", "round", "head", "privacy", "model", "slots"}
    assert set(about["privacy"]) == {
        "target_delta", "sample_history", "user_history", "cumulative_sample_epsilon", "cumulative_user_epsilon",
    }  # fmt: skip


def test_rule_10_two_resumes_of_one_checkpoint_draw_different_noise(tmp_path: Path) -> None:
    plan = tiny_plan(federation={"rounds": 2, "spare_attempts": 3})
    stopped(tmp_path / "one", plan, 1)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    models = []
    for name in ("one", "other"):
        place = Workspace(path=tmp_path / name)
        result = resume_run(place.find("run"), workspace=place, task=TinyTask())
        models.append(checkpoints.read_model(result.folder.model)[0])
    one, other = models
    assert not np.array_equal(one, other)


def test_the_privacy_block_is_readable_and_true(tmp_path: Path) -> None:
    folder = go(tmp_path, name="run").folder
    last = checkpoints.latest_checkpoint(folder.checkpoints)
    assert last is not None
    block = last.privacy
    assert block["target_delta"] == 1e-3
    assert [row["party"] for row in block["sample_history"]] == ["north", "south"]
    assert [row["steps"] for row in block["sample_history"]] == [3, 3]
    assert block["cumulative_sample_epsilon"] == max(spent(tmp_path, "run").values())
    assert block["user_history"] == []


def test_rule_5_a_checkpoint_does_not_tell_who_refused_and_one_of_before_still_resumes(tmp_path: Path) -> None:
    plans = {
        name: tiny_plan(federation={"simulate": {"refusing": refusing}, "minimum_parties": 1, "spare_attempts": 3})
        for name, refusing in (("everyone", []), ("without", ["south"]))
    }
    blocks = {}
    for name, plan in plans.items():
        folder = stopped(tmp_path / name, plan, 2)
        last = checkpoints.latest_checkpoint(folder.checkpoints)
        assert last is not None
        blocks[name] = last.privacy
    assert last is not None and blocks["everyone"] == blocks["without"]
    with Ledger.open(tmp_path / "without" / "ledger.db") as ledger:
        history = RunHistory(ledger, "run").read(last.head.sequence)
        paid = {party: sum(events.values()) for (party, unit), events in history.paid.items()}
    assert paid["south"] < paid["north"], "the control: the operator's ledger knows"

    def of_before(block: dict[str, Any]) -> None:
        for row in block["sample_history"]:
            row["steps"] = paid[row["party"]]
        block["sample_history"] = [row for row in block["sample_history"] if row["steps"]]

    rewrite(folder, of_before)
    assert resume_run(folder, workspace=Workspace(path=tmp_path / "without"), task=TinyTask()).outcome == "finished"


def rewrite(folder: RunFolder, change: Any) -> None:
    """Edit the newest checkpoint as a clever hand would: hashes fit, contents do not."""
    last = checkpoints.latest_checkpoint(folder.checkpoints)
    assert last is not None
    import dataclasses

    privacy = json.loads(json.dumps(dict(last.privacy)))
    change(privacy)
    checkpoints.save_checkpoint(folder.checkpoints, dataclasses.replace(last, privacy=privacy))


@pytest.mark.parametrize("name", ["cumulative_sample_epsilon", "target_delta"])
def test_a_privacy_block_that_was_edited_is_refused(tmp_path: Path, name: str) -> None:
    folder = stopped(tmp_path, tiny_plan(), 1)
    rewrite(folder, lambda block: block.__setitem__(name, block[name] / 2))
    with pytest.raises(CorruptState):
        resume_run(folder, workspace=Workspace(path=tmp_path), task=TinyTask())


def test_a_history_that_the_ledger_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path, tiny_plan(), 1)
    rewrite(folder, lambda block: block["sample_history"][0].__setitem__("steps", 0))
    with pytest.raises(LedgerBroken, match="disagree"):
        resume_run(folder, workspace=Workspace(path=tmp_path), task=TinyTask())


def test_the_control_a_rewritten_but_unchanged_block_is_accepted(tmp_path: Path) -> None:
    folder = stopped(tmp_path, tiny_plan(), 1)
    rewrite(folder, lambda block: None)
    assert resume_run(folder, workspace=Workspace(path=tmp_path), task=TinyTask()).outcome == "finished"


def test_rule_11_yesterdays_ledger_is_found_by_the_checkpoint(tmp_path: Path) -> None:
    folder = stopped(tmp_path, tiny_plan(), 1)
    yesterday = tmp_path / "yesterday"
    yesterday.mkdir()
    for path in tmp_path.glob("ledger.db*"):
        shutil.copy(path, yesterday)
    with pytest.raises(KeyboardInterrupt):
        resume_run(folder, workspace=Workspace(path=tmp_path), task=TinyTask(), watchers=[StopAfter(2)])
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    for path in yesterday.glob("ledger.db*"):
        shutil.copy(path, tmp_path)
    with pytest.raises(LedgerBroken, match="does not contain the head"):
        resume_run(folder, workspace=Workspace(path=tmp_path), task=TinyTask())


def rolled_back(tmp_path: Path, name: str) -> None:
    """Run once more, then put back the ledger of before."""
    yesterday = tmp_path / "yesterday"
    yesterday.mkdir()
    for path in tmp_path.glob("ledger.db*"):
        shutil.copy(path, yesterday)
    go(tmp_path, name=name, task=TinyTask(sizes={"west": 12, "east": 8}))
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    for path in yesterday.glob("ledger.db*"):
        shutil.copy(path, tmp_path)


def test_rule_11_a_new_run_does_not_start_on_yesterdays_ledger(tmp_path: Path) -> None:
    go(tmp_path, name="first")
    rolled_back(tmp_path, "forgotten")
    with pytest.raises(LedgerBroken, match="does not contain the head") as caught:
        go(tmp_path, name="again", task=TinyTask(sizes={"west": 12, "east": 8}))
    assert caught.value.exit_code == 4
    assert not (tmp_path / "runs" / "again").exists()


@pytest.mark.parametrize("kept", ["checkpoints", "model.safetensors"])
def test_rule_11_any_head_that_a_run_has_kept_is_enough(tmp_path: Path, kept: str) -> None:
    go(tmp_path, name="first")
    rolled_back(tmp_path, "forgotten")
    folder = tmp_path / "runs" / "forgotten"
    for name in {"checkpoints", "model.safetensors"} - {kept}:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(LedgerBroken, match="does not contain the head"):
        go(tmp_path, name="again", task=TinyTask(sizes={"west": 12, "east": 8}))


def test_a_start_reads_one_head_of_each_run_however_many_files_it_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    honest = checkpoints.head_of

    def counted(path: Path) -> Head:
        read.append(path)
        return honest(path)

    for name in ("first", "second", "third"):
        go(tmp_path, name=name, task=TinyTask(public="made up for a test"))
    (tmp_path / "runs" / "second" / "model.safetensors").unlink()
    shutil.rmtree(tmp_path / "runs" / "third" / "checkpoints")
    assert len(list(Workspace(path=tmp_path).anchors())) > 6
    monkeypatch.setattr(checkpoints, "head_of", counted)
    with Ledger.open(tmp_path / "ledger.db", read_only=True) as ledger:
        assert check_anchors(ledger, Workspace(path=tmp_path)) == 3
    newest = max((tmp_path / "runs" / "second" / "checkpoints").glob("*.safetensors"))
    assert read == [
        tmp_path / "runs" / "first" / "model.safetensors", newest, tmp_path / "runs" / "third" / "model.safetensors"
    ]  # fmt: skip


def test_rule_11_a_ledger_that_was_deleted_is_not_begun_anew(tmp_path: Path) -> None:
    go(tmp_path, name="first")
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    with pytest.raises(QuietsumError):
        go(tmp_path, name="again")
    assert not (tmp_path / "ledger.db").exists()


def test_a_refused_resume_writes_nothing_into_the_ledger(tmp_path: Path) -> None:
    folder = stopped(tmp_path, tiny_plan(), 1)
    rewrite(folder, lambda block: block["sample_history"][0].__setitem__("steps", 0))
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        before = ledger.head
    with pytest.raises(LedgerBroken):
        resume_run(folder, workspace=Workspace(path=tmp_path), task=TinyTask())
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.head == before


def test_a_task_that_cannot_differentiate_its_own_example_is_stopped_before_anything_is_spent(tmp_path: Path) -> None:
    from quietsum.tasks import Rows

    class Wrong(TinyTask):
        def example(self) -> Rows:
            return Rows(features=np.zeros((1, 2)), labels=np.zeros(1))

        def gradients(self, params, features, labels):  # type: ignore[no-untyped-def]
            raise ValueError("a slip of the author's")

    with pytest.raises(ValueError, match="slip"):
        go(tmp_path, task=Wrong())
    assert not (tmp_path / "ledger.db").exists()


def test_a_ledger_of_another_workspace_is_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "a", tiny_plan(), 1)
    go(tmp_path / "b")
    with pytest.raises(LedgerBroken, match="is not the one"):
        resume_run(folder, workspace=Workspace(path=tmp_path / "b"), task=TinyTask())


def test_a_truncated_checkpoint_is_refused_with_the_remedy_and_the_remedy_works(tmp_path: Path) -> None:
    folder = stopped(tmp_path, tiny_plan(federation={"spare_attempts": 1}), 2)
    newest = sorted(folder.checkpoints.glob("*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:-7])
    with pytest.raises(CorruptState, match="delete it to go on"):
        resume_run(folder, workspace=Workspace(path=tmp_path), task=TinyTask())
    newest.unlink()
    assert resume_run(folder, workspace=Workspace(path=tmp_path), task=TinyTask()).outcome == "finished"
    one_more = tiny_plan(federation={"rounds": 4})
    go(tmp_path / "four", one_more, name="run")
    last = checkpoints.latest_checkpoint(folder.checkpoints)
    assert last is not None
    by_steps = {row["party"]: row["steps"] for row in last.privacy["sample_history"]}
    assert by_steps == {"north": 4, "south": 4}


def test_a_checkpoint_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path, tiny_plan(), 1)
    newest = sorted(folder.checkpoints.glob("*.safetensors"))[-1]
    content = bytearray(newest.read_bytes())
    content[-3] ^= 1
    newest.write_bytes(bytes(content))
    with pytest.raises(CorruptState, match="not what was saved"):
        resume_run(folder, workspace=Workspace(path=tmp_path), task=TinyTask())


def test_a_plan_that_was_edited_after_the_start_is_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path, tiny_plan(), 1)
    path = folder.path / "plan.toml"
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 4"))
    with pytest.raises(CorruptState, match="frozen"):
        resume_run(folder, workspace=Workspace(path=tmp_path), task=TinyTask())


def test_a_run_that_another_process_holds_is_refused(tmp_path: Path) -> None:
    folder = stopped(tmp_path, tiny_plan(), 1)
    with folder.lock(), pytest.raises(QuietsumError, match="another process"):
        resume_run(folder, workspace=Workspace(path=tmp_path), task=TinyTask())


# ------------------------------------------------------------------------------- budgets outlive runs


def test_a_second_run_on_the_same_data_is_refused_when_the_budget_is_gone(tmp_path: Path) -> None:
    go(tmp_path, name="first")
    diary = tmp_path / "diary"
    with pytest.raises(BudgetExhausted) as caught:
        go(tmp_path, name="second", task=TinyTask(diary=str(diary)))
    assert caught.value.exit_code == 3
    assert touches(diary) == {}
    assert not (tmp_path / "runs" / "second").exists()
    assert (tmp_path / "runs" / "first" / "model.safetensors").is_file()


def test_deleting_a_run_refunds_nothing(tmp_path: Path) -> None:
    first = go(tmp_path, name="first")
    shutil.rmtree(first.folder.path)
    with pytest.raises(BudgetExhausted):
        go(tmp_path, name="second")


def test_raising_the_budget_with_a_reason_lets_the_second_run_in(tmp_path: Path) -> None:
    go(tmp_path, name="first")
    from quietsum.privacy.units import PrivacyUnit

    with Ledger.open(tmp_path / "ledger.db") as ledger:
        for party in ("north", "south"):
            ledger.raise_budget(
                party=party, dataset=f"points-{party}", unit=PrivacyUnit.RECORD, epsilon=8.0, delta=1e-3,
                reason="the board allowed a second study",
            )  # fmt: skip
    assert go(tmp_path, name="second").outcome == "finished"
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.verify()


def test_another_dataset_has_a_budget_of_its_own(tmp_path: Path) -> None:
    go(tmp_path, name="first")
    assert go(tmp_path, name="second", task=TinyTask(sizes={"west": 12, "east": 8})).outcome == "finished"


def test_public_data_may_be_used_as_often_as_one_likes(tmp_path: Path) -> None:
    for _ in range(3):
        assert go(tmp_path, task=TinyTask(public="made up for a test")).outcome == "finished"


def test_an_attempt_too_many_ends_in_an_exhausted_budget_with_the_model_kept(tmp_path: Path) -> None:
    folder = stopped(tmp_path, tiny_plan(), 2)
    newest = sorted(folder.checkpoints.glob("*.safetensors"))[-1]
    newest.unlink()  # round 2 must be made again, which the plan did not foresee
    result = resume_run(folder, workspace=Workspace(path=tmp_path), task=TinyTask())
    assert result.outcome == "budget"
    assert result.error is not None and result.error.exit_code == 3
    assert result.round == 2
    assert result.folder.model.is_file()


# ------------------------------------------------------------------------------------------ bad folders


def test_a_taken_name_is_refused_before_the_ledger_hears_of_it(tmp_path: Path) -> None:
    go(tmp_path, name="run", task=TinyTask(public="made up for a test"))
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        before = ledger.head
    with pytest.raises(InvalidParameter, match="is taken"):
        go(tmp_path, name="run", task=TinyTask(public="made up for a test"))
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.head == before


@pytest.mark.parametrize("name", ["../escape", "a/b", "", ".hidden", "latest", "x" * 101])
def test_names_that_would_leave_the_workspace_are_refused(tmp_path: Path, name: str) -> None:
    if name == "":
        assert go(tmp_path, name=name).folder.run.startswith("tiny")
        return
    with pytest.raises(InvalidParameter, match="cannot name"):
        go(tmp_path, name=name)


def test_a_foreign_folder_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "runs" / "photos").mkdir(parents=True)
    with pytest.raises(CorruptState, match="not a run folder"):
        Workspace(path=tmp_path).find("photos")


def test_an_old_format_names_its_version(tmp_path: Path) -> None:
    folder = go(tmp_path, name="run").folder
    marker = folder.path / "run.json"
    marker.write_text(marker.read_text().replace('"format": 1', '"format": 0'))
    with pytest.raises(CorruptState, match="format 0"):
        Workspace(path=tmp_path).find("run")


# ------------------------------------------------------------------------------------------- whom a run asks


class Sites(Federation):
    """Sites elsewhere, as far as a run can tell: they must be joined first."""

    remote = True

    def __init__(self, diary: Path) -> None:
        task, plan = TinyTask(diary=str(diary)), tiny_plan()
        self.inner = LocalFederation.of(task, resolve(plan, task.parties(), task.dimension))
        self.joined = 0

    def registered(self) -> Any:
        return self.inner.registered()

    def ask(self, request: Any, cohort: Any, fold: Any) -> Any:
        return self.inner.ask(request, cohort, fold)

    def join(self, run: str, resolved: Any, ledger: Ledger) -> None:
        self.joined += 1


class Strangers(Sites):
    """Sites of another roster: no plan can run there."""

    def check_plan(self, resolved: Any) -> None:
        raise PlanRefused("party 'north' is not in the roster")


@pytest.mark.parametrize("sites", [Strangers, Sites])
def test_a_start_that_sites_cannot_take_leaves_no_trace_in_a_budget(tmp_path: Path, sites: type[Sites]) -> None:
    place = Workspace(path=tmp_path)
    with pytest.raises((PlanRefused, KeyboardInterrupt)):
        start(tiny_plan(), workspace=place, task=TinyTask(), federation=sites(tmp_path / "d"), watchers=[StopAfter(1)])
    assert place.ledger.exists() is (sites is Sites)  # the control: a run that began has opened its ledger


def stopped_with_sites(tmp_path: Path) -> tuple[Workspace, RunFolder]:
    """A run of sites that was stopped by hand after its first round."""
    place, sites = Workspace(path=tmp_path), Sites(tmp_path / "theirs")
    with pytest.raises(KeyboardInterrupt):
        start(
            tiny_plan(), workspace=place, name="run", task=TinyTask(diary=str(tmp_path / "own")), federation=sites,
            watchers=[StopAfter(1)],
        )  # fmt: skip
    assert not (tmp_path / "own").exists() and touches(tmp_path / "theirs") == {"north": 1, "south": 1}
    return place, place.find("run")


def test_a_run_of_sites_does_not_go_on_without_them(tmp_path: Path) -> None:
    place, folder = stopped_with_sites(tmp_path)
    before = spent(tmp_path, "run")
    with pytest.raises(InvalidParameter, match="asks sites elsewhere") as refused:
        resume_run(folder, workspace=place, task=TinyTask(diary=str(tmp_path / "own")))
    command = f"quietsum run --resume run --on flower --keys DIR --superlink DIR --workspace {tmp_path} (or --listen"
    assert command in str(refused.value)
    assert not (tmp_path / "own").exists() and spent(tmp_path, "run") == before
    sites = Sites(tmp_path / "theirs")
    assert resume_run(folder, workspace=place, task=TinyTask(), federation=sites).outcome == "finished"
    assert sites.joined == 1 and touches(tmp_path / "theirs") == {"north": 3, "south": 3}


def test_the_control_a_folder_that_has_forgotten_its_sites_is_finished_on_this_machine(tmp_path: Path) -> None:
    place, folder = stopped_with_sites(tmp_path)
    marker = folder.path / "run.json"
    values = json.loads(marker.read_text())
    assert values.pop("sites") is True and values.pop("check")
    marker.write_text(json.dumps(values))  # as older versions wrote it
    resume_run(place.find("run"), workspace=place, task=TinyTask(diary=str(tmp_path / "own")))
    assert touches(tmp_path / "own") == {"north": 2, "south": 2}


def test_a_run_of_one_machine_does_not_turn_to_sites(tmp_path: Path) -> None:
    folder, sites = stopped(tmp_path, tiny_plan(), 1), Sites(tmp_path / "theirs")
    with pytest.raises(InvalidParameter, match="go on with: quietsum run --resume run --workspace") as refused:
        resume_run(folder, workspace=Workspace(path=tmp_path), task=TinyTask(), federation=sites)
    assert "flower" not in str(refused.value)
    assert sites.joined == 0 and not (tmp_path / "theirs").exists()


def test_the_command_that_a_refusal_names_has_no_workspace_where_the_usual_one_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUIETSUM_WORKSPACE", raising=False)
    place, folder = stopped_with_sites(tmp_path / "quietsum-workspace")
    with pytest.raises(InvalidParameter, match="--workspace"):
        resume_run(folder, workspace=place, task=TinyTask())
    with pytest.raises(InvalidParameter) as refused:
        resume_run(folder, workspace=Workspace.at(), task=TinyTask())
    assert "--workspace" not in str(refused.value)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_a_folder_that_does_not_say_plainly_whether_it_asks_sites_is_not_guessed_at(
    tmp_path: Path, value: object
) -> None:
    marker = go(tmp_path, name="run").folder.path / "run.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "sites": value}))
    with pytest.raises(CorruptState, match="whether the run asks sites"):
        Workspace(path=tmp_path).find("run")


# ---------------------------------------------------------------------------------- what others may see of ε

UNEQUAL = {"sample_rate": None, "batch_size": 4}  # 4 of 8 rows in the south, of 12 in the north: the south pays more


def rounds_of(tmp_path: Path, refusing: list[str], **changes: Any) -> list[RoundFinished]:
    seen: list[RoundFinished] = []

    class Seen:
        def saw(self, event: RunEvent) -> None:
            if isinstance(event, RoundFinished):
                seen.append(event)

    federation = {"simulate": {"refusing": refusing}, "minimum_parties": 1}
    plan = tiny_plan(federation=federation, training=UNEQUAL, **changes)
    task = TinyTask(public="made up for a test")
    start(plan, workspace=Workspace(path=tmp_path), name="run", task=task, watchers=[Seen()])
    assert len(seen) == 3
    return seen


@pytest.mark.parametrize("style", ["sample", "none"])
def test_rule_5_what_is_reserved_does_not_tell_who_refused(tmp_path: Path, style: str) -> None:
    changes = {"privacy": {"style": "none", "record": None}} if style == "none" else {}
    everyone = rounds_of(tmp_path / "everyone", [], **changes)
    without = rounds_of(tmp_path / "without", ["south"], **changes)
    assert [one.reserved for one in everyone] == [one.reserved for one in without]
    assert [one.reserved for one in everyone] == [one.spent for one in everyone], "who all stay, pay what is reserved"
    if style == "sample":
        for before, after in zip(everyone, without, strict=True):
            assert after.spent[0].epsilon < 0.9 * before.spent[0].epsilon, "the control: what is spent does tell"


def test_what_is_reserved_is_priced_once_however_many_rounds_there_were(tmp_path: Path) -> None:
    rounds = rounds_of(tmp_path, ["south"])
    with Ledger.open(tmp_path / "ledger.db", read_only=True) as ledger:
        history = RunHistory(ledger, "run").read()
        assert history.gross_spending() == rounds[-1].reserved
        assert history._prices.computed == 2, "one a party"
        assert [epsilon for _, epsilon in history.by_round()] == [one.reserved[0].epsilon for one in rounds]
        assert history._prices.computed == 6, "the control: all rounds"


def test_duplicate_party_names_are_refused(tmp_path: Path) -> None:
    class Twins(TinyTask):
        def parties(self):  # type: ignore[no-untyped-def]
            return super().parties() + super().parties()[:1]

    with pytest.raises(PlanRefused, match="north"):
        go(tmp_path, task=Twins())
    assert not (tmp_path / "ledger.db").exists()


def test_a_party_without_data_refuses_and_the_others_go_on(tmp_path: Path) -> None:
    class Empty(TinyTask):
        def look_for_data(self, party: str) -> None:
            if party == "south":
                raise DataMissing("points.csv is not there; mount the data")

    result = go(tmp_path, name="run", task=Empty())
    assert result.outcome == "finished"
    assert spent(tmp_path, "run").get("south", 0.0) == 0.0


def test_run_db_answers_questions(tmp_path: Path) -> None:
    from quietsum.runs.record import Recorder, history

    with Recorder(tmp_path / "run.db") as recorder:
        start(tiny_plan(), workspace=Workspace(path=tmp_path), task=TinyTask(), watchers=[recorder])
    database = sqlite3.connect(tmp_path / "run.db")
    rows = database.execute("SELECT round, attempt, asked, kept, finished FROM rounds").fetchall()
    database.close()
    assert rows == [(1, 1, 2, 2, 1), (2, 1, 2, 2, 1), (3, 1, 2, 2, 1)]
    numbers, epsilons, distances = zip(*history(tmp_path / "run.db", "distance"), strict=True)
    assert numbers == (1, 2, 3)
    assert list(epsilons) == sorted(epsilons)
    assert all(distance is not None for distance in distances)

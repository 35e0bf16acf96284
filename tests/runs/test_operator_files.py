"""What a rule remembers of each party is in a file of its own, for the operator, and as safe as the checkpoint."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from quietsum import failpoints
from quietsum.aggregation import ServerState
from quietsum.aggregation.robust import RULES, measure_memory
from quietsum.errors import CorruptState, PlanRefused
from quietsum.federation.messages import model_hash
from quietsum.learning.checks.numpy_step import Silent
from quietsum.ledger import Head
from quietsum.plan import PartyFacts, Plan, resolve
from quietsum.runs import checkpoint as checkpoints
from quietsum.runs.checkpoint import KEPT, RunCheckpoint, apart
from quietsum.runs.folder import Workspace
from quietsum.runs.run import resume_run, start
from quietsum.tasks import Rows
from runs.test_slots import StopAfter, newest, rewritten
from tiny import TinyTask, tiny_plan

PLAN = tiny_plan(
    federation={"rounds": 6},
    training={"sample_rate": 1.0},
    privacy={"style": "none", "record": None},
    aggregation={"rule": "foolsgold", "attackers": 1},
)
MEMORY = "rule_history"


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    yield
    failpoints.install(None)


class Unlike(TinyTask):
    """Every party has points of its own, so that their sums of updates differ."""

    def rows(self, party: str) -> Rows:
        rows = super().rows(party)
        return Rows(features=rows.features * (1 + int(party[1:]) / 8), labels=rows.labels)


def task() -> TinyTask:
    return Unlike(sizes={f"c{index}": 6 + index for index in range(8)}, public="made up for a test")


def stopped(place: Workspace, plan: Plan, **more: Any) -> Any:
    with pytest.raises(KeyboardInterrupt):
        start(plan, workspace=place, name="run", task=task(), watchers=[StopAfter(3)], **more)
    return place.find("run")


def run_of(folder: Path, **more: Any) -> Workspace:
    place = Workspace(path=folder)
    start(PLAN, workspace=place, name="run", task=task(), rng=Silent(), **more)
    return place


def files_of(place: Workspace) -> tuple[list[Path], list[Path]]:
    folder = place.find("run").checkpoints
    return sorted(folder.glob("round-*")), sorted(folder.glob("operator-*"))


def tensors_in(path: Path) -> dict[str, np.ndarray]:
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)


# ----------------------------------------------------------------------------------------- what can be handed on


def test_a_checkpoint_holds_nothing_of_single_parties_and_the_operator_s_file_is_his_alone(tmp_path: Path) -> None:
    place = run_of(tmp_path)
    rounds, beside = files_of(place)
    assert [apart(path) for path in rounds] == beside and len(beside) == KEPT
    state = newest(place).state
    assert state.slots[MEMORY].size == 8 * 2 and np.any(state.slots[MEMORY])
    for path, other in zip(rounds, beside, strict=True):
        assert set(tensors_in(path)) == {"params"} and set(tensors_in(other)) == {f"slots.{MEMORY}"}
        assert stat.S_IMODE(other.stat().st_mode) == 0o600
    content = rounds[-1].read_bytes()
    for kept in (state.slots[MEMORY], *state.slots[MEMORY].reshape(8, 2)):
        assert kept.tobytes() not in content and model_hash(kept).encode() not in content
    assert state.params.tobytes() in content  # so it would have been found


def test_rules_that_remember_parties_say_so_and_no_other_memory_grows_with_them() -> None:
    for name, rule in RULES.items():
        few, many = measure_memory(rule, 4, 10), measure_memory(rule, 9, 10)
        assert (few != many) == rule.facts.remembers, name
    assert {name for name, rule in RULES.items() if rule.facts.remembers} == {"foolsgold", "trust"}


def test_who_took_part_cannot_be_guessed_from_the_hash_in_a_checkpoint(tmp_path: Path) -> None:
    """The same memory twice: a bare hash would be the same, and confirm a guess."""
    told = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        path = checkpoints.save_checkpoint(folder, some(1), of_parties=[MEMORY])
        told.append(checkpoints.header_of(path)["operator"])
    assert told[0] != told[1]


def test_a_run_can_be_looked_at_where_the_operator_s_files_were_left_out(tmp_path: Path) -> None:
    from quietsum.ledger import Ledger
    from quietsum.report.contents import look

    place = run_of(tmp_path)
    for path in files_of(place)[1]:
        path.unlink()
    folder = place.find("run")
    with Ledger.open(place.ledger, read_only=True) as ledger:
        found = look(folder, place, ledger)
    assert found is not None and found.round == 6
    with pytest.raises(CorruptState, match=r"operator-000006.safetensors is missing: .* put it back"):
        resume_run(folder, workspace=place, task=task())


# ------------------------------------------------------------------------------------------------- going on


def test_a_resumed_run_ends_in_the_bits_of_an_unbroken_one(tmp_path: Path) -> None:
    whole, halves = run_of(tmp_path / "whole"), Workspace(path=tmp_path / "halves")
    resume_run(stopped(halves, PLAN, rng=Silent()), workspace=halves, task=task(), rng=Silent())
    one, other = newest(whole).state, newest(halves).state
    np.testing.assert_array_equal(one.params, other.params)
    np.testing.assert_array_equal(one.slots[MEMORY], other.slots[MEMORY])
    assert np.any(one.params)


def test_the_control_without_its_memory_the_run_would_end_elsewhere(tmp_path: Path) -> None:
    whole, halves = run_of(tmp_path / "whole"), Workspace(path=tmp_path / "halves")
    folder = stopped(halves, PLAN, rng=Silent())
    last = newest(halves)
    nothing = ServerState(params=last.state.params, slots={MEMORY: np.zeros(16)})
    forgot = RunCheckpoint(
        run=last.run, plan=last.plan, round=last.round, state=nothing, head=last.head, privacy=last.privacy
    )
    checkpoints.save_checkpoint(folder.checkpoints, forgot, of_parties=[MEMORY])
    resume_run(folder, workspace=halves, task=task(), rng=Silent())
    assert np.any(newest(whole).state.slots[MEMORY] != newest(halves).state.slots[MEMORY])


def test_a_checkpoint_of_before_which_holds_the_memory_itself_goes_on(tmp_path: Path) -> None:
    whole, halves = run_of(tmp_path / "whole"), Workspace(path=tmp_path / "halves")
    folder = stopped(halves, PLAN, rng=Silent())
    last = newest(halves)
    shutil.rmtree(folder.checkpoints)
    path = checkpoints.save_checkpoint(folder.checkpoints, last)
    assert set(tensors_in(path)) == {"params", f"slots.{MEMORY}"}
    assert checkpoints.header_of(path)["version"] == 2 and "operator" not in checkpoints.header_of(path)
    resume_run(folder, workspace=halves, task=task(), rng=Silent())
    np.testing.assert_array_equal(newest(whole).state.slots[MEMORY], newest(halves).state.slots[MEMORY])
    rounds, beside = files_of(halves)
    assert apart(rounds[-1]) == beside[-1] and set(tensors_in(rounds[-1])) == {"params"}


def test_an_operator_s_file_of_another_round_or_another_run_is_refused_and_so_is_a_changed_one(tmp_path: Path) -> None:
    place, other = run_of(tmp_path / "one"), run_of(tmp_path / "other")
    folder = place.find("run")
    (*_, before, last), theirs = files_of(place)[1], files_of(other)[1][-1]
    whole = last.read_bytes()
    strange = "is not the one that round-000006.safetensors was saved with"

    def plus(tensors: dict[str, Any], about: dict[str, Any]) -> None:
        tensors[f"slots.{MEMORY}"] = tensors[f"slots.{MEMORY}"] + 1e-9

    def rehashed(tensors: dict[str, Any], about: dict[str, Any]) -> None:
        plus(tensors, about)
        about["slots"] = {MEMORY: model_hash(tensors[f"slots.{MEMORY}"])}

    def fewer(tensors: dict[str, Any], about: dict[str, Any]) -> None:
        tensors["slots.other"] = tensors.pop(f"slots.{MEMORY}")

    for content, problem in (
        (before.read_bytes(), strange),
        (theirs.read_bytes(), strange),  # the same plan, name and round; the same numbers, even
        (whole[: len(whole) // 2], "it cannot be read"),
        (b"", "it cannot be read"),
        (plus, "is not what was saved"),
        (rehashed, strange),
        (fewer, "vectors that its header names"),
    ):
        last.write_bytes(whole if callable(content) else content)
        if callable(content):
            rewritten(last, content)
        with pytest.raises(CorruptState, match=problem) as refusal:
            resume_run(folder, workspace=place, task=task())
        assert "delete round-000006.safetensors to go on" in str(refusal.value)
    last.write_bytes(whole)
    assert resume_run(folder, workspace=place, task=task()).outcome == "finished"


# --------------------------------------------------------------------------------------------------- crashes


def some(number: int) -> RunCheckpoint:
    head = Head(ledger="ab" * 16, sequence=number + 1, hash="cd" * 32, signature="ef" * 64)
    state = ServerState(params=np.full(3, float(number)), slots={MEMORY: np.full(6, float(number)), "clip": np.ones(1)})
    return RunCheckpoint(run="run", plan="plan", round=number, state=state, head=head, privacy={})


def test_after_a_crash_anywhere_the_newest_checkpoint_has_the_memory_that_it_was_saved_with(tmp_path: Path) -> None:
    places: list[str] = []
    failpoints.install(places.append)
    count = tmp_path / "count"
    for number in range(5):
        checkpoints.save_checkpoint(count, some(number), of_parties=[MEMORY])
    assert places.count("checkpoint:memory") == places.count("checkpoint:written") == 5
    found = set()
    for at in range(len(places)):
        folder, left = tmp_path / f"at-{at}", at

        def hook(place: str) -> None:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1

        failpoints.install(hook)
        written = -1
        with pytest.raises(KeyboardInterrupt):
            for number in range(5):
                checkpoints.save_checkpoint(folder, some(number), of_parties=[MEMORY])
                written = number
        failpoints.install(None)
        last = checkpoints.latest_checkpoint(folder)
        if last is None:
            assert written < 0
            continue
        assert last.round in (written, written + 1)
        found.add(last.round - written)
        assert np.all(last.state.params == last.round) and np.all(last.state.slots[MEMORY] == last.round)
        checkpoints.save_checkpoint(folder, some(last.round + 1), of_parties=[MEMORY])  # and it goes on
        assert checkpoints.latest_checkpoint(folder).round == last.round + 1  # type: ignore[union-attr]
        beside = sorted(path.name for path in folder.glob("operator-*"))
        assert beside == sorted(apart(path).name for path in folder.glob("round-*"))
    assert found == {0, 1}


# ------------------------------------------------------------------------------------------------- how large


def asked(rule: str, parties: int, dimension: int) -> Any:
    facts = [PartyFacts(name=f"c{at}", dataset=f"d{at}", size=9, public="made up") for at in range(parties)]
    plan = Plan.from_dict({
        "task": {"name": "tiny:TinyTask"}, "federation": {"rounds": 2}, "training": {"sample_rate": 1.0},
        "privacy": {"style": "none"}, "aggregation": {"rule": rule, "attackers": 1},
    })  # fmt: skip
    return resolve(plan, facts, dimension)


def test_what_a_rule_remembers_is_counted_without_making_it() -> None:
    for name, rule in RULES.items():
        made = sum(vector.nbytes for vector in rule.memory(7, 11).values())
        assert measure_memory(rule, 7, 11) == made, name


def test_a_plan_whose_rule_would_remember_too_much_is_refused_with_the_nearest_possible_one() -> None:
    most = 2 * 2**30
    assert asked("foolsgold", 8, most // 64).remembered == most
    with pytest.raises(PlanRefused, match=r"remembers 2\.0 GiB of 8 parties.*\n  nearest possible plan: ") as refusal:
        asked("foolsgold", 8, most // 64 + 1)
    assert refusal.value.nearest
    for change in refusal.value.nearest:
        assert asked(change["aggregation.rule"], 8, most // 64 + 1).remembered == 0
    assert asked("median", 8, 10**9).remembered == 0


def test_a_folder_that_is_named_like_an_operator_s_file_holds_no_checkpoint_up(tmp_path: Path) -> None:
    (tmp_path / "operator-000001.safetensors").mkdir()
    for number in range(2, 2 + KEPT + 1):
        checkpoints.save_checkpoint(tmp_path, some(number), of_parties=[MEMORY])
    assert len(list(tmp_path.glob("round-*"))) == KEPT

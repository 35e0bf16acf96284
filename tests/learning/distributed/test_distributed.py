"""Facts about one training in several processes: one draw, one noise, one charge; with faults that must be seen."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch")

import quietsum  # noqa: E402
from learning.distributed import acting  # noqa: E402
from quietsum.errors import InvalidParameter, QuietsumError  # noqa: E402
from quietsum.learning import LocalSteps, PrivateTrainer, make_private  # noqa: E402
from quietsum.learning.distributed.processes import OneProcess, find_processes  # noqa: E402
from quietsum.learning.step import cross_entropy  # noqa: E402
from quietsum.ledger import Ledger, RunHistory  # noqa: E402
from quietsum.mechanisms import randomness_for_tests  # noqa: E402

FALSE_ALARM = 1e-9  # of a statistical test of something right
LONGEST = 120.0  # seconds for all processes of a scene; they take about ten
Found = Mapping[str, Any]


def environment(**more: str) -> dict[str, str]:
    """That of a process of its own, which finds the same source."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    source = str(Path(quietsum.__file__).parents[1])
    return {**kept, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "QUIETSUM_TEST_SEEDS": "1", **more}


def play(scene: str, folder: Path, count: int) -> list[Found | None]:
    """What each process of a scene has written; None for one that ended before. None is left behind."""
    (folder / "meeting").unlink(missing_ok=True)
    command = [sys.executable, "-W", "ignore", str(Path(acting.__file__)), scene, str(folder)]
    logs = [(folder / f"log{rank}").open("w") for rank in range(count)]
    started = [
        subprocess.Popen(command, env=environment(RANK=str(rank), WORLD_SIZE=str(count)), stdout=log, stderr=log)
        for rank, log in enumerate(logs)
    ]
    end = time.monotonic() + LONGEST
    try:
        for process in started:
            process.wait(timeout=max(0.1, end - time.monotonic()))
    finally:
        for process, log in zip(started, logs, strict=True):
            process.kill()
            process.wait()
            log.close()
    found: list[Found | None] = []
    for rank in range(count):
        path = folder / f"{rank}.json"
        found.append(json.loads(path.read_text()) if path.exists() else None)
        path.unlink(missing_ok=True)
    if all(one is None for one in found):
        pytest.fail("\n".join((folder / f"log{rank}").read_text() for rank in range(count)))
    return found


def play_whole(scene: str, folder: Path, count: int) -> list[Found]:
    """The same where every process comes to the end."""
    found = [one for one in play(scene, folder, count) if one is not None]
    assert len(found) == count, (folder / "log0").read_text() + (folder / "log1").read_text()
    return found


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def two(stage: Path) -> list[Found]:
    return play_whole("many", stage, 2)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return play_whole("three", tmp_path_factory.mktemp("three"), 3)


# --------------------------------------------------------------------------------------------------- the sum


def find_wrong_sums(found: Sequence[Found], kind: str) -> list[str]:
    """Draws whose shares are no partition, or whose sum among the processes is not that of one process."""
    wrong = []
    for (dtype, bound), (number, draw) in itertools.product(
        {"torch.float32": 1e-5, "torch.float64": 1e-10}.items(), enumerate(acting.SHARES)
    ):
        said = [one[f"sum {kind} {dtype} {number}"] for one in found]
        if sorted(itertools.chain(*(one["share"] for one in said))) != list(draw):
            wrong.append(f"{dtype}, draw {number}: shares")
        whole = np.array(said[0]["whole"])
        size = max(1.0, float(np.abs(whole).max()))
        if any(np.abs(np.array(one["among"]) - whole).max() > bound * size for one in said):
            wrong.append(f"{dtype}, draw {number}: sum")
        if any(one["among"] != said[0]["among"] for one in said):
            wrong.append(f"{dtype}, draw {number}: processes differ")
    return wrong


def test_the_sum_over_two_or_three_processes_is_that_of_one_also_where_some_have_no_record(
    two: Sequence[Found], three: Sequence[Found]
) -> None:
    assert find_wrong_sums(two, "ManyProcesses") == find_wrong_sums(three, "ManyProcesses") == []
    for found in (two, three):  # one record, then none: empty shares are shares
        assert [one["sum ManyProcesses torch.float64 2"]["share"] for one in found][1:] == [[]] * (len(found) - 1)


def test_shards_padded_by_repeated_records_are_seen_in_the_sum(two: Sequence[Found]) -> None:
    wrong = find_wrong_sums(two, "PaddedShards")
    assert "torch.float32, draw 2: sum" in wrong and "torch.float64, draw 0: shares" in wrong


def find_wrong_draws(found: Sequence[Found], kind: str) -> list[str]:
    """What shows that shares are not one Poisson draw: a record twice, a wrong rate, two records that go together."""
    shares = [one[f"draws {kind}"] for one in found]
    drawn = np.zeros((acting.DRAWS, acting.POPULATION), dtype=np.int64)
    for share in shares:
        for number, rows in enumerate(share):
            np.add.at(drawn[number], rows, 1)
    wrong = ["twice"] if drawn.max() > 1 else []
    pairs = list(itertools.combinations(range(acting.POPULATION), 2))
    level = FALSE_ALARM / (len(pairs) + acting.POPULATION)
    counts = drawn.clip(max=1)
    if any(stats.binomtest(int(n), acting.DRAWS, acting.RATE).pvalue < level for n in counts.sum(0)):
        wrong.append("rate")
    both = [int((counts[:, a] * counts[:, b]).sum()) for a, b in pairs]
    if any(stats.binomtest(n, acting.DRAWS, acting.RATE**2).pvalue < level for n in both):
        wrong.append("together")
    return wrong


def test_the_shares_are_one_poisson_draw(two: Sequence[Found]) -> None:
    assert find_wrong_draws(two, "ManyProcesses") == []


def test_one_seed_on_all_processes_is_seen_in_the_draws(two: Sequence[Found]) -> None:
    assert "together" in find_wrong_draws(two, "OneSeed")


def test_padding_is_seen_in_the_draws(two: Sequence[Found]) -> None:
    assert "twice" in find_wrong_draws(two, "PaddedShards")


# ------------------------------------------------------------------------------------------------- the noise


def has_right_noise(found: Sequence[Found], kind: str) -> bool:
    """Whether the squares add up as those of independent normals of variance (σC/E)², by a two-sided test."""
    said = [one[f"noise {kind}"] for one in found]
    assert all(one == said[0] for one in said), "what is released is not the same everywhere"
    share = stats.chi2.cdf(said[0]["squares"], said[0]["count"])
    return bool(FALSE_ALARM / 2 < share < 1 - FALSE_ALARM / 2)


def test_the_noise_of_all_processes_together_is_that_of_one(two: Sequence[Found], three: Sequence[Found]) -> None:
    assert has_right_noise(two, "ManyProcesses") and has_right_noise(three, "ManyProcesses")
    assert two[0]["noise ManyProcesses"]["repeats"] == 0


@pytest.mark.parametrize(("kind", "variance"), [("NoiseEverywhere", 2.0), ("NoiseOfAShare", 0.5)])
def test_noise_on_each_process_and_noise_of_one_share_are_seen(
    two: Sequence[Found], kind: str, variance: float
) -> None:
    assert not has_right_noise(two, kind)
    said = two[0][f"noise {kind}"]
    assert said["squares"] / said["count"] == pytest.approx(variance, rel=0.05)


def test_an_empty_process_that_is_skipped_stops_the_others(two: Sequence[Found]) -> None:
    assert two[0]["skipped"].startswith("ProcessLost: another of the 2 processes")


# ------------------------------------------------------------------------------------------------- trainings


class DrawsAhead:
    """One process that makes its draws when several would, so that a seed gives it the same ones."""

    def __getattr__(self, name: str) -> Any:
        return getattr(OneProcess(), name)

    def share_out(self, draw: Callable[[], Any], count: int) -> Iterator[Any]:
        return iter([draw() for _ in range(count)])


@pytest.mark.parametrize("name", ["chosen", "adaptive"])
def test_a_training_in_two_processes_is_that_of_one_with_the_same_draws_and_noise(
    two: Sequence[Found], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    monkeypatch.setattr("quietsum.learning.trainer.find_processes", DrawsAhead)
    more = {"clipping": "adaptive", "count_noise": 3.0} if name == "adaptive" else {}
    model = acting.make_model(torch.float64)
    trainer = PrivateTrainer(model, acting.settle(**more), selfcheck=False, rng=randomness_for_tests(5))
    if name == "adaptive":  # the same source goes on in the second training
        used = PrivateTrainer(
            acting.make_model(torch.float64), acting.settle(), selfcheck=False, rng=(rng := randomness_for_tests(5))
        )
        used.train(acting.make_data(torch.float64))
        trainer = PrivateTrainer(model, acting.settle(**more), selfcheck=False, rng=rng)
    history = trainer.train(acting.make_data(torch.float64), [acting.make_data(torch.float64, seed=4)])
    for one in two:
        said = one[name]
        assert said["weights"] == two[0][name]["weights"]
        np.testing.assert_allclose(said["weights"], acting.flat(list(model.parameters())), rtol=0, atol=1e-10)
        assert said["norm"] == pytest.approx(history.epochs[-1].max_grad_norm, rel=1e-12)
        assert said["epsilon"] == [epoch.spent.epsilon for epoch in history.epochs]
        assert said["guarantee"] == json.loads(json.dumps(trainer.guarantee().to_dict()))
        assert said["stopped"] == history.stopped
        for mine, theirs in zip(said["metrics"], history.epochs, strict=True):
            assert mine == pytest.approx(dict(theirs.metrics), rel=1e-9)


def test_the_first_process_alone_has_ledger_files_and_callbacks(two: Sequence[Found], stage: Path) -> None:
    assert two[0]["chosen"]["calls"] == list(range(1, 13)) and two[1]["chosen"]["calls"] == []
    assert "rank0/ledger.db" in two[0]["chosen"]["files"] and two[1]["chosen"]["files"] == []
    with Ledger.open(stage / "rank0" / "ledger.db", read_only=True, trusted=True) as ledger:
        paid = RunHistory(ledger, "training").read().paid
        assert sum(sum(events.values()) for events in paid.values()) == 48  # 12 epochs of 4 steps, once
        ledger.verify()


def test_a_callback_of_the_first_process_stops_all(two: Sequence[Found]) -> None:
    assert [one["stopping"] for one in two] == [{"stopped": "early", "epochs": 2}] * 2


def test_a_loop_by_hand_is_shared_out_too(two: Sequence[Found], three: Sequence[Found]) -> None:
    for found in (two, three):
        assert all(one["by hand"]["weights"] == found[0]["by hand"]["weights"] for one in found)
        assert all(len(one["by hand"]["sizes"]) == 16 and one["by hand"]["spent"] <= 8 for one in found)
        sizes = np.array([one["by hand"]["sizes"] for one in found])
        assert (sizes.max(0) - sizes.min(0)).max() <= 1  # nobody has the whole batch
        assert len({tuple(row) for row in sizes.T}) > 1


def test_processes_that_read_ahead_at_their_own_pace_make_the_same_steps(two: Sequence[Found]) -> None:
    for place in (0, 1):
        assert two[0][f"ahead {place}"] == two[1][f"ahead {place}"]


def test_weights_that_one_process_moves_by_itself_are_noticed(two: Sequence[Found]) -> None:
    assert all("the weights of the 2 processes are no longer the same" in one["drift"] for one in two)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("shards", "a record = 'that of process 1' is not that of process 0"),
        ("lengths", "the number of records = 'that of process 1'"),
        ("models", "the model = 'that of process 1'"),
        ("configs", "the config = 'that of process 1'"),
        ("sampler", "DistributedSampler' gives each process a shard, filled up with records that are in another one"),
        ("wrapped", "DistributedDataParallel' averages the gradients of whole batches"),
        ("cut", "FSDPModule' keeps pieces of every parameter"),
        ("cut by hand", "FSDPModule' keeps pieces of every parameter"),
        ("canaries", "a training with canaries is done by one process, and this is one of 2"),
        ("parties", "the work of a federation's parties is done by one process"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_by_every_process(two: Sequence[Found], case: str, words: str) -> None:
    assert all(words in one[case] for one in two)


def test_a_process_that_does_not_answer_ends_the_wait_of_the_others(two: Sequence[Found]) -> None:
    assert all(one["silent"].startswith("ProcessLost: another of the 2 processes") for one in two)
    assert "Timed out" in two[0]["silent"]


def test_an_error_of_a_callback_is_heard_by_the_other_processes(two: Sequence[Found]) -> None:
    assert two[0]["callback"] == "own error"
    assert "the first of 2 processes could not go on at the callbacks: ZeroDivisionError" in two[1]["callback"]


# ----------------------------------------------------------------------------------------------- those that end


def count_paid(folder: Path) -> int:
    with Ledger.open(folder / "workspace" / "ledger.db", read_only=True, trusted=True) as ledger:
        ledger.verify()
        return sum(sum(events.values()) for events in RunHistory(ledger, "long").read().paid.values())


@pytest.mark.long
def test_a_process_that_dies_in_a_step_leaves_a_charge_and_a_word_and_resume_goes_on(tmp_path: Path) -> None:
    first, second = play("train:step@1", tmp_path, 2)
    assert first is not None and second is None
    assert first["word"].startswith("ProcessLost: another of the 2 processes of this training has ended")
    assert "what was reserved stays charged" in first["word"] and first["seconds"] < 20
    assert count_paid(tmp_path) == 4  # the epoch in which it died

    resumed = play_whole("resume@9", tmp_path, 2)
    assert [one["word"] for one in resumed] == ["", ""]
    assert resumed[0]["weights"] == resumed[1]["weights"]
    assert [one["lost"] for one in resumed] == [4, 4]
    assert resumed[1]["epochs"] == list(range(2, 13))
    assert count_paid(tmp_path) == 48  # as many as the plan has, those that were lost included


def test_no_process_reads_a_record_for_a_charge_that_was_not_reserved(tmp_path: Path) -> None:
    first, second = play("ledger.reserve:before-append@0", tmp_path, 2)
    assert first is None and second is not None  # the one that keeps the ledger has died
    assert second["word"].startswith("ProcessLost") and "at the charge" in second["word"]
    assert second["reads"] == 0  # behind the last step that was paid for
    assert count_paid(tmp_path) == 8


# ------------------------------------------------------------------------------------------------ launchers


@pytest.mark.parametrize(
    "act",
    [
        lambda: PrivateTrainer(acting.make_model(), acting.settle(), selfcheck=False).train(acting.make_data()),
        lambda: make_private(
            (model := acting.make_model()), torch.optim.SGD(model.parameters(), lr=0.1), acting.make_data(),
            config=acting.settle(), selfcheck=False,
        ),
        lambda: LocalSteps(acting.make_model(), cross_entropy),
    ],
    ids=["trainer", "loop", "party"],
)  # fmt: skip
def test_processes_that_do_not_know_of_each_other_are_refused(
    act: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(QuietsumError, match=r"one of 2 processes \(WORLD_SIZE\).*init_process_group"):
        act()
    monkeypatch.setenv("WORLD_SIZE", "1")
    act()


def test_without_others_a_process_is_alone() -> None:
    assert isinstance(find_processes(), OneProcess)


def test_a_model_in_data_parallel_is_refused_without_any_group() -> None:
    with pytest.raises(InvalidParameter, match="DataParallel' cuts every batch up itself"):
        PrivateTrainer(torch.nn.DataParallel(acting.make_model()), acting.settle())


def test_the_page_runs_under_torchrun(tmp_path: Path) -> None:
    """The program of docs/how-to/several-devices.md, in two processes that torchrun starts."""
    page = Path(quietsum.__file__).parents[2] / "docs" / "how-to" / "several-devices.md"
    program = re.search(r"```python\n(import os.*?)```", page.read_text(), re.DOTALL)
    assert program is not None
    (tmp_path / "train.py").write_text(program[1])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("per record") == 1  # said once
    with Ledger.open(tmp_path / "workspace" / "ledger.db", read_only=True, trusted=True) as ledger:
        ledger.verify()
        assert len(ledger.runs()) == 1

"""Workers read each record alone and ahead of the step; what happens to one of them is a fact about one record."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from quietsum.errors import QuietsumError
from quietsum.learning.config import PrivacyConfig
from quietsum.learning.own_loop import make_private
from quietsum.learning.rows import workers as workers_module
from quietsum.learning.rows.records import Records
from quietsum.learning.spending import Spending
from quietsum.learning.trainer import PrivateTrainer

ROWS = 300
HERE = torch.device("cpu")


class Watched(Dataset[Any]):
    """Records by number. Who read which is on disk; some kill their reader, raise, or come in another shape."""

    def __init__(self, log: Path, **kinds: int) -> None:
        self.log, self.kinds = log, {number: kind for kind, number in kinds.items()}

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with self.log.open("a") as file:  # one write a line, so that processes do not mix them
            file.write(f"{os.getpid()} {index}\n")
        kind = self.kinds.get(index, "")
        if kind.startswith("kills"):
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "exits":
            os._exit(3)
        if kind == "leaves":
            raise SystemExit(4)
        if kind == "raises":
            raise ValueError(index)
        return torch.full((4 if kind == "longer" else 3,), float(index)), index

    def reads(self) -> list[tuple[int, int]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(int(process), int(index)) for process, index in (line.split() for line in lines)]


def of(data: Dataset[Any], workers: int = 2, **values: Any) -> Records:
    return Records.of(DataLoader(data, num_workers=workers, **values), quiet=True, example=(torch.zeros(3), 0))


def draws_of(*sizes: int, seed: int = 0) -> list[NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    return [np.sort(generator.choice(ROWS, size, replace=False)).astype(np.int64) for size in sizes]


def numbers(batch: tuple[Tensor, ...]) -> list[int]:
    assert torch.equal(batch[0], batch[1][:, None].float().expand(-1, 3))  # inputs and label of the same record
    return batch[1].tolist()


def read(records: Records, draws: list[NDArray[np.int64]]) -> list[list[int]]:
    try:
        return [numbers(batch) for _, batch in records.read(iter(draws), HERE)]
    finally:
        records.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "reads"


# ------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_each_draw_comes_whole_and_in_order_however_large_or_small(workers: int, log: Path) -> None:
    draws = draws_of(40, 0, 1, 290, 0, 300, 7)
    assert read(of(Watched(log), workers), draws) == [drawn.tolist() for drawn in draws]


def test_records_are_read_in_the_workers_alone_and_once(log: Path) -> None:
    data, draws = Watched(log), draws_of(150, 200)
    read(of(data), draws)
    assert sorted(index for _, index in data.reads()) == sorted(np.concatenate(draws).tolist())
    assert os.getpid() not in {process for process, _ in data.reads()}
    assert len({process for process, _ in data.reads()}) == 2
    read(of(data, 0), draws[:1])
    assert os.getpid() in {process for process, _ in data.reads()}  # the control


def test_the_rows_of_workers_are_those_of_one_process(log: Path) -> None:
    def scaled(rows: list[Any]) -> Any:
        assert len(rows) == 1
        inputs, labels = default_collate(rows)
        return inputs / 7, labels

    for collate in (None, scaled):
        kinds = {"raises": 5, "longer": 9}
        one, two = (of(Watched(log, **kinds), count, collate_fn=collate) for count in (0, 2))
        for left, right in zip(one.batch(np.arange(ROWS)), two.batch(np.arange(ROWS)), strict=True):
            assert len(left) == ROWS - 2 and torch.equal(left, right)
        two.close()


def test_more_rows_than_all_pieces_hold_still_make_one_batch(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_PIECE_ROWS": 3, "_LEAST_PIECES": 4, "_PIECES_EACH": 2}.items():
        monkeypatch.setattr(workers_module, name, value)
    draws = draws_of(200, 300, 1)
    assert read(of(Watched(log)), draws) == [drawn.tolist() for drawn in draws]


# ---------------------------------------------------------------------------------------------- broken records


@pytest.mark.parametrize("kind", ["kills", "exits", "leaves", "raises", "longer"])
@pytest.mark.some(2)
def test_a_record_that_ends_its_reader_is_left_out_and_no_other_one(kind: str, log: Path) -> None:
    data, draws = Watched(log, **{kind: 33}), [np.arange(ROWS), np.arange(30, 40), np.arange(33, 34), np.arange(20)]
    found = read(of(data), draws)
    assert found == [[number for number in drawn.tolist() if number != 33] for drawn in draws]
    assert os.getpid() not in {process for process, _ in data.reads()}


@pytest.mark.parametrize(
    "deadly",
    [{"kills": 0, "kills_too": 1}, pytest.param({"kills": 0, "kills_too": 1, "kills_there": 64, "exits": 299},
                                                marks=pytest.mark.long)],
)  # fmt: skip
def test_several_that_kill_are_found_one_by_one(deadly: dict[str, int], log: Path) -> None:
    data = Watched(log, **deadly)
    assert read(of(data, 3), [np.arange(ROWS)]) == [[n for n in range(ROWS) if n not in deadly.values()]]


def test_a_worker_that_is_killed_from_outside_takes_no_record_along(log: Path) -> None:
    class Slow(Watched):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            time.sleep(0.002)
            return super().__getitem__(index)

    data = Slow(log)
    records = of(data)
    batches = records.read(iter([np.arange(10), np.arange(ROWS), np.arange(50)]), HERE)
    assert len(numbers(next(batches)[1])) == 10
    os.kill(data.reads()[-1][0], signal.SIGKILL)
    assert [numbers(batch) for _, batch in batches] == [list(range(ROWS)), list(range(50))]
    records.close()


def test_workers_that_end_before_they_read_are_heard_of(log: Path) -> None:
    def broken(number: int) -> None:
        raise RuntimeError(number)

    with pytest.raises(QuietsumError, match="worker_init_fn raises RuntimeError"):
        read(of(Watched(log), worker_init_fn=broken), draws_of(3))
    with pytest.raises(QuietsumError, match="end before they read any"):
        read(of(Watched(log), worker_init_fn=lambda number: os._exit(1)), draws_of(3))


# ------------------------------------------------------------------------------------------ like the loader's


def test_workers_are_begun_as_the_loader_begins_them(log: Path) -> None:
    class Told(Watched):
        started = -1

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            about = get_worker_info()
            assert about is not None and about.num_workers == 2 and about.dataset is self and self.started == about.id
            return super().__getitem__(index)

    def begin(number: int) -> None:
        about = get_worker_info()
        assert about is not None
        about.dataset.started = number  # type: ignore[attr-defined]

    draws = draws_of(40)
    assert read(of(Told(log), worker_init_fn=begin), draws) == [draws[0].tolist()]
    assert read(of(Told(log), 0, worker_init_fn=begin), draws) == [[]]  # the control


@pytest.mark.some(1)
def test_workers_that_do_not_fork_read_the_same(log: Path) -> None:
    draws = draws_of(20, 30)
    found = read(of(Watched(log), multiprocessing_context="spawn"), draws)
    assert found == [drawn.tolist() for drawn in draws]


def test_a_data_set_that_cannot_be_handed_over_is_refused_in_words(log: Path) -> None:
    data: Any = Watched(log)
    data.open = lambda: None
    with pytest.raises(QuietsumError, match="cannot be handed to the loader's workers"):
        read(of(data, multiprocessing_context="spawn"), draws_of(3))


def test_a_reading_that_is_given_up_ends_its_workers_and_the_next_one_starts_others(log: Path) -> None:
    records = of(Watched(log))
    batches = records.read(iter(draws_of(300, 300, 300)), HERE)
    next(batches)
    children = multiprocessing.active_children()
    batches.close()
    assert children and not any(child.is_alive() for child in children)
    draws = draws_of(50, 60, seed=1)
    assert read(records, draws) == [drawn.tolist() for drawn in draws]
    assert not multiprocessing.active_children()


# --------------------------------------------------------------------------- in a training: charge, then read


def config(**values: Any) -> PrivacyConfig:
    return PrivacyConfig(**{"epsilon": 3.0, "epochs": 3, "batch_size": 60, **values})


class Small(Watched):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        inputs, label = super().__getitem__(index)
        return inputs / ROWS, label % 2


def train(data: Dataset[Any], **values: Any) -> PrivateTrainer:
    trainer = PrivateTrainer(nn.Linear(3, 2), config(), selfcheck=False, **values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train(DataLoader(data, num_workers=2), example=(torch.zeros(3), 0))
    return trainer


def find_draws_before_charges(run: Callable[[], Any], patch: pytest.MonkeyPatch) -> list[str]:
    """Places where a draw was taken that no charge had paid for. Surveys, scores and rehearsals take none."""
    from quietsum.learning.step import PrivateStep

    taken, charged, faults = [0], [0], []
    sample, charge = PrivateStep.sample, Spending.charge

    def watch_sample(self: PrivateStep, population: int) -> Any:
        taken[0] += 1
        if taken[0] > charged[0]:
            faults.append(f"draw {taken[0]} with {charged[0]} steps charged")
        return sample(self, population)

    def watch_charge(self: Spending, stage: Any, steps: int) -> Any:
        if taken[0] != charged[0]:
            faults.append(f"{charged[0]} steps charged and {taken[0]} drawn when others are charged")
        receipt = charge(self, stage, steps)
        charged[0] += steps
        return receipt

    with patch.context() as inside:
        inside.setattr(PrivateStep, "sample", watch_sample)
        inside.setattr(Spending, "charge", watch_charge)
        run()
    assert taken[0] == charged[0] > 0
    return faults


def test_nothing_is_read_ahead_of_its_charge(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not find_draws_before_charges(
        lambda: train(Small(log), workspace=tmp_path, public="made up", checkpoint_every=1), monkeypatch
    )


def test_the_mutant_that_reads_ahead_of_the_charge_is_seen(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quietsum.learning.step import PrivateStep

    kept: list[Any] = []

    def eager(self: PrivateStep, population: int, count: int) -> Iterator[Any]:
        """One draw of the next chunk as well, to be read meanwhile."""
        *drawn, more = [self.sample(population) for _ in range(count + 1)]
        kept.append(more)
        return iter(drawn)

    with monkeypatch.context() as inside:
        inside.setattr(PrivateStep, "sample_many", eager)
        with pytest.raises(AssertionError):
            assert not find_draws_before_charges(lambda: train(Small(log)), monkeypatch)


# ------------------------------------------------------------- readers that are wrong, and what sees that they are

Read = Callable[[Iterator[NDArray[np.int64]]], Iterator[tuple[NDArray[np.int64], tuple[Tensor, ...]]]]


def find_fault(read: Read, *, broken: frozenset[int]) -> str:
    """What is wrong with a reader of records whose labels are their numbers; empty where nothing is."""
    draws, asked = draws_of(150, 0, 90, 300, 20, seed=3), [0]

    def given() -> Iterator[NDArray[np.int64]]:
        for drawn in draws:
            asked[0] += 1
            yield drawn

    found = list(read(given()))
    if asked[0] != len(draws) or [drawn.tolist() for drawn, _ in found] != [drawn.tolist() for drawn in draws]:
        return "not the draws that were given"
    for drawn, batch in found:
        wanted = [number for number in drawn.tolist() if number not in broken]
        got = numbers(batch)
        if len(set(got)) != len(got):
            return "a record counts twice"
        if set(got) - set(wanted):
            return "a record that was not drawn, or is broken, counts"
        if set(wanted) - set(got):
            return "a record that was drawn does not count"
    return ""


Mutant = Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]
MUTANTS: dict[str, tuple[str, Mutant]] = {
    "cut to a shape": ("does not count", lambda batch: tuple(part[:128] for part in batch)),
    "filled up to a shape": (
        "counts twice", lambda batch: tuple(torch.cat([part, part[: max(0, 128 - len(part))]]) for part in batch)
    ),
    "a piece read twice": ("counts twice", lambda batch: tuple(torch.cat([part, part[-5:]]) for part in batch)),
    "a dead worker's piece dropped": (
        "does not count", lambda batch: tuple(part[batch[1] // 8 != 33 // 8] for part in batch)
    ),
}  # fmt: skip


def test_a_reader_with_records_that_kill_has_no_fault(log: Path) -> None:
    records = of(Watched(log, kills=33, raises=34))
    assert not find_fault(lambda draws: records.read(draws, HERE), broken=frozenset({33, 34}))
    records.close()


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_of_reading_are_seen(name: str, log: Path) -> None:
    wrong, mutate = MUTANTS[name]
    records = of(Watched(log, raises=33), 0)

    def read(draws: Iterator[NDArray[np.int64]]) -> Any:
        return ((drawn, mutate(batch)) for drawn, batch in records.read(draws, HERE))

    assert wrong in find_fault(read, broken=frozenset({33}))
    assert not find_fault(lambda draws: records.read(draws, HERE), broken=frozenset({33}))  # the control


def test_a_reader_that_draws_again_is_seen(log: Path) -> None:
    records = of(Watched(log), 0)

    def again(draws: Iterator[NDArray[np.int64]]) -> Any:
        others = (drawn if len(drawn) else np.arange(20) for drawn in draws)  # an empty draw does not suit
        return records.read(others, HERE)

    assert "not the draws" in find_fault(again, broken=frozenset())


@pytest.mark.long
def test_a_training_with_records_that_kill_is_one_without_them_in_silence(
    log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer = train(Small(log, kills=7, exits=150, raises=200))
    assert trainer.get_privacy_spent()[0] > 0
    assert not multiprocessing.active_children()
    said = capfd.readouterr()
    assert not said.out and not said.err


def test_a_loop_by_hand_charges_what_is_read_ahead_and_loses_none_of_it(log: Path) -> None:
    model = nn.Linear(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, optimizer, loader = make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(Small(log), num_workers=2),
            config=config(), example=(torch.zeros(3), 0), selfcheck=False,
        )  # fmt: skip
    steps, plan = 0, loader.spending.plan
    for _ in loader:  # left after one batch
        optimizer.step()
        steps += 1
        break
    assert steps <= loader.spending.charged <= steps + workers_module._AHEAD
    while loader.left > 0:
        for _ in loader:
            optimizer.step()
            steps += 1
            assert steps <= loader.spending.charged
    assert steps == plan.steps == loader.spending.charged

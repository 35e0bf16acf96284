"""What one of several processes does: ``python acting.py scene folder``, under RANK and WORLD_SIZE.

Starting a process costs seconds, so one start shows many facts: each is written, by process, to a file of numbers in
the folder, which the tests read. Nothing is judged here.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from quietsum import failpoints
from quietsum.errors import QuietsumError
from quietsum.learning import (
    Canaries,
    EarlyStopping,
    Epoch,
    Flat,
    LocalSteps,
    PrivacyConfig,
    PrivateTrainer,
    make_private,
)
from quietsum.learning.distributed import processes as room
from quietsum.learning.distributed.processes import ManyProcesses
from quietsum.learning.step import PrivateStep, cross_entropy
from quietsum.mechanisms import randomness_for_tests

DEVICE = os.environ.get("QUIETSUM_TEST_DEVICE", "cpu")
"""Where the models lie; cuda:0 for the same facts on a card, which all processes share."""
RECORDS, POPULATION, RATE, DRAWS, WIDE, RELEASES = 41, 12, 0.25, 600, 20_000, 6
SHARES = (tuple(range(RECORDS)), (3, 5, 8), (7,), ())
"""Draws: all, an odd number of a few, one record (other processes have none), and none at all."""


def make_data(dtype: torch.dtype = torch.float32, seed: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(RECORDS) % 2
    inputs = torch.randn(RECORDS, 6, generator=generator, dtype=torch.float64) + 2 * labels[:, None]
    return inputs.to(dtype), labels


def make_model(dtype: torch.dtype = torch.float32, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).to(DEVICE, dtype)


def make_step(model: nn.Module, *, noise: float = 1.3) -> PrivateStep:
    clip = Flat(max_norm=0.5)
    return PrivateStep.build(model, cross_entropy, clip, noise_multiplier=noise, rate=RATE, expected_batch=10.0)


def settle(**more: Any) -> PrivacyConfig:
    return PrivacyConfig(**{"epsilon": 8.0, "epochs": 12, "batch_size": 10, "delta": 1e-3, **more})


def flat(parts: Sequence[Tensor]) -> list[float]:
    return torch.cat([part.detach().double().reshape(-1) for part in parts]).tolist()


def hear(act: Callable[[], object]) -> str:
    """What a refusal says; empty if there was none."""
    try:
        act()
    except QuietsumError as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Mutant:
    """Processes with one fault; the rest is done as it should be."""

    def __init__(self) -> None:
        self._right = ManyProcesses()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._right, name)


class NoiseEverywhere(Mutant):
    def release(self, sums: Sequence[Tensor], make: Any, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return self._right.release(tuple(make(list(sums))), lambda total: total, like)


class NoiseOfAShare(Mutant):
    """The noise of one process where every one should have added a share of it."""

    def release(self, sums: Sequence[Tensor], make: Any, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
        def smaller(total: Sequence[Tensor]) -> list[Tensor]:
            noisy = make([part.clone() for part in total])
            scale = self._right.count**-0.5
            return [a + (b - a) * scale for a, b in zip((t / 10.0 for t in total), noisy, strict=True)]

        return self._right.release(sums, smaller, like)


class PaddedShards(Mutant):
    """Every process gets as many records as the largest share, as DistributedSampler does it."""

    def share_out(self, draw: Callable[[], NDArray[np.int64]], count: int) -> Iterator[NDArray[np.int64]]:
        def pad() -> NDArray[np.int64]:
            drawn = draw()
            extra = -len(drawn) % self._right.count
            return np.concatenate([drawn, drawn[:1].repeat(extra)]) if len(drawn) else drawn

        return self._right.share_out(pad, count)


class OneSeed(Mutant):
    """Every process draws from its own shard, all with one seed."""

    def __init__(self) -> None:
        super().__init__()
        self._rng = randomness_for_tests(9)

    def share_out(self, draw: Callable[[], NDArray[np.int64]], count: int) -> Iterator[NDArray[np.int64]]:
        mine = np.arange(dist.get_rank(), POPULATION, self._right.count)
        return (mine[self._rng.coins(RATE, len(mine))] for _ in range(count))


class EmptySkipped(Mutant):
    """A process whose share is empty does not take part in the sum."""

    def release(self, sums: Sequence[Tensor], make: Any, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if not any(bool(part.any()) for part in sums) and not self._right.first:
            return tuple(torch.zeros_like(part) for part in like)
        return self._right.release(sums, make, like)


# ------------------------------------------------------------------------------------------------ scenes


def add_up(kinds: Sequence[Callable[[], Any]]) -> Iterator[tuple[str, Any]]:
    """Clipped sums of given draws, beside those of one process."""
    for kind in kinds:
        processes = kind()
        for dtype in (torch.float32, torch.float64):
            step, data = make_step(make_model(dtype)), tuple(part.to(DEVICE) for part in make_data(dtype))
            for number, draw in enumerate(SHARES):
                (share,) = processes.share_out(lambda draw=draw: np.array(draw, dtype=np.int64), 1)
                whole = step.deterministic(tuple(part[torch.tensor(draw, dtype=torch.int64)] for part in data))
                mine = step.deterministic(tuple(part[torch.from_numpy(share)] for part in data))
                both = processes.release(mine, lambda total: total, mine)
                name = f"sum {getattr(kind, '__name__', kind)} {dtype} {number}"
                yield name, {"share": share.tolist(), "whole": flat(whole), "among": flat(both)}
        processes.leave()


def draw_many(kinds: Sequence[Callable[[], Any]]) -> Iterator[tuple[str, Any]]:
    for kind in kinds:
        step = make_step(make_model())
        step.processes = kind()
        yield f"draws {kind.__name__}", [share.tolist() for share in step.sample_many(POPULATION, DRAWS)]
        step.processes.leave()


def release_noise(kinds: Sequence[Callable[[], Any]]) -> Iterator[tuple[str, Any]]:
    """Releases of empty batches: their squares, in units of σC/E, and what every process got."""
    torch.manual_seed(0)
    for kind in kinds:
        step = make_step(nn.Linear(WIDE // 2 - 1, 2).to(DEVICE))
        step.processes = kind()
        nothing = tuple(part.to(DEVICE) for part in (torch.zeros(0, WIDE // 2 - 1), torch.zeros(0, dtype=torch.int64)))
        unit = step.noise_multiplier * step.sensitivity / step.expected_batch
        found = [torch.cat([p.double().reshape(-1) for p in step.gradient(nothing)]) / unit for _ in range(RELEASES)]
        whole = torch.cat(found)
        yield f"noise {kind.__name__}", {
            "count": len(whole), "squares": float(whole.square().sum()), "first": whole[:5].tolist(),
            "repeats": int((found[0] == found[1]).sum()),
        }  # fmt: skip
        step.processes.leave()


def note_in(calls: list[int]) -> Callable[[Epoch], None]:
    return lambda epoch: calls.append(epoch.epoch)


def train_all(folder: Path) -> Iterator[tuple[str, Any]]:
    """Trainings with seeds, which one process repeats in the test."""
    rng = randomness_for_tests(5)
    choices: Mapping[str, Mapping[str, Any]] = {"chosen": {}, "adaptive": {"clipping": "adaptive", "count_noise": 3.0}}
    for name, more in choices.items():
        data = make_data(torch.float64)
        calls: list[int] = []
        trainer = PrivateTrainer(
            make_model(torch.float64, seed=1 if dist.get_rank() == 0 else 2), settle(**more), selfcheck=False, rng=rng,
            workspace=folder / f"rank{dist.get_rank()}" if name == "chosen" else None,
        )  # fmt: skip
        history = trainer.train(
            DataLoader(TensorDataset(*data), batch_size=7),
            val_loader=[make_data(torch.float64, seed=4)],
            callbacks=note_in(calls),
        )
        yield name, {
            "weights": flat(list(trainer.model.parameters())), "epsilon": [e.spent.epsilon for e in history.epochs],
            "metrics": [dict(e.metrics) for e in history.epochs], "stopped": history.stopped, "calls": calls,
            "norm": history.epochs[-1].max_grad_norm, "guarantee": trainer.guarantee().to_dict(),
            "files": sorted(str(path.relative_to(folder)) for path in folder.glob(f"rank{dist.get_rank()}/**/*")),
        }  # fmt: skip
        trainer.close()
    trainer = PrivateTrainer(make_model(), settle(), selfcheck=False)
    history = trainer.train(make_data(), [make_data(seed=4)], callbacks=EarlyStopping(patience=1, least=9.0))
    yield "stopping", {"stopped": history.stopped, "epochs": len(history.epochs)}


def read_ahead() -> Iterator[tuple[str, Any]]:
    """A loop by hand and a trainer whose loaders have workers: each process reads ahead at its own pace."""
    for place in (0, 1):  # one process is slow: the other one is far ahead
        loader: Any = DataLoader(Slow(pause=0.002 * (dist.get_rank() == place)), batch_size=4, num_workers=1)
        by_hand = make_model()
        model, optimizer, batches = make_private(
            by_hand, torch.optim.SGD(by_hand.parameters(), lr=0.5), loader, config=settle(epochs=3), selfcheck=False
        )
        for _ in range(3):
            for _ in batches:
                optimizer.step()
        trained = make_model()
        PrivateTrainer(trained, settle(epochs=3), selfcheck=False).train(loader)
        yield f"ahead {place}", [flat(list(one.parameters())) for one in (model, trained)]


def loop_by_hand() -> Iterator[tuple[str, Any]]:
    model = make_model(seed=1 + dist.get_rank())
    model, optimizer, loader = make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.5), make_data(), config=settle(epochs=4), selfcheck=False
    )
    sizes = []
    for _ in range(4):
        for batch in loader:
            sizes.append(len(batch[0]))
            optimizer.step()
    yield from read_ahead()
    yield "by hand", {"weights": flat(list(model.parameters())), "sizes": sizes, "spent": optimizer.get_epsilon()}


def refuse_all() -> Iterator[tuple[str, Any]]:
    """What cannot be shared out, each a sentence."""
    rank = dist.get_rank()

    def train(model: nn.Module, data: Any, *, config: PrivacyConfig | None = None, **more: Any) -> Callable[[], object]:
        return lambda: PrivateTrainer(model, config or settle(), selfcheck=False, **more).train(data)

    inputs, labels = make_data()
    shard = (inputs[rank * 10 : rank * 10 + 10], labels[rank * 10 : rank * 10 + 10])
    sampler: Any = DistributedSampler(TensorDataset(inputs, labels))
    loader: Any = DataLoader(TensorDataset(inputs, labels), sampler=sampler, batch_size=4)
    wider = nn.Linear(6, 2).to(DEVICE) if rank else make_model()
    wrapped = nn.parallel.DistributedDataParallel(make_model().cpu())
    cut: Any = make_model().cpu()
    fully_shard(cut, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    cases: Mapping[str, Callable[[], object]] = {
        "shards": train(make_model(), shard),
        "lengths": train(make_model(), (inputs[: 40 - rank], labels[: 40 - rank])),
        "models": train(wider, make_data()),
        "configs": train(make_model(), make_data(), config=settle(epsilon=8.0 + rank)),
        "sampler": train(make_model(), loader),
        "wrapped": lambda: train(wrapped, make_data())(),
        "cut": lambda: train(cut, make_data())(),
        "cut by hand": lambda: make_private(
            cut, torch.optim.SGD(cut.parameters(), lr=0.5), make_data(), config=settle(), selfcheck=False
        ),
        "canaries": train(make_model(), make_data(), audit=Canaries(count=20)),
        "parties": lambda: LocalSteps(make_model(), cross_entropy),
        "callback": lambda: PrivateTrainer(make_model(), settle(), selfcheck=False).train(
            make_data(), callbacks=lambda _: 1 / 0
        ),
    }
    for name, act in cases.items():
        try:
            yield name, hear(act)
        except ZeroDivisionError:
            yield name, "own error"


def drift() -> Iterator[tuple[str, Any]]:
    """A process that moves its weights by itself."""
    moved = make_model()
    model, optimizer, loader = make_private(
        moved, torch.optim.SGD(moved.parameters(), lr=0.5), make_data(), config=settle(), selfcheck=False
    )

    def go() -> None:
        for _ in range(12):
            for number, _ in enumerate(loader):
                optimizer.step()
                if dist.get_rank() == 1 and number == 1:
                    with torch.no_grad():
                        next(model.parameters()).view(-1)[0] += 1e-6

    yield "drift", hear(go)


def wait_in_vain() -> Iterator[tuple[str, Any]]:
    """A process that lives and does not answer."""
    patience = room._find_patience
    room._find_patience = lambda: datetime.timedelta(seconds=1)
    processes = ManyProcesses()
    if dist.get_rank() == 1:
        time.sleep(3.0)
    yield "silent", hear(lambda: processes.decide("a word", lambda: 1) and processes.gather("another", b""))
    processes.leave()
    room._find_patience = patience


def skip_empty() -> Iterator[tuple[str, Any]]:
    """The mutant that leaves an empty share out: the others wait for it, and no step is made. The last of all."""
    room._find_patience = lambda: datetime.timedelta(seconds=2)
    step = make_step(make_model())
    step.processes = EmptySkipped()
    nothing = tuple(part.to(DEVICE) for part in (torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64)))
    yield "skipped", hear(lambda: [step.gradient(nothing) for _ in range(2)])


class Slow(Dataset[Any]):
    """Records that take their time."""

    def __init__(self, pause: float) -> None:
        self.data, self.pause = make_data(), pause

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.pause)
        return self.data[0][index], self.data[1][index]


class Marked(Dataset[Any]):
    """Records that note how often they are read."""

    def __init__(self) -> None:
        self.data, self.reads = make_data(), 0

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.reads += 1
        return self.data[0][index], self.data[1][index]


def die(folder: Path, place: str, victim: int, *, resume: bool) -> Iterator[tuple[str, Any]]:
    """A training with a ledger in which one process ends at the third time that it reaches ``place``."""
    rank, reached = dist.get_rank(), [0]
    records = Marked()

    def hook(where: str) -> None:
        if where in ("train:step", "train:reserved"):
            records.reads = 0
        if where == place and rank == victim:
            reached[0] += 1
            if reached[0] == 3:
                os._exit(9)

    trainer = PrivateTrainer(
        make_model(), settle(), workspace=folder / "workspace", run="long", selfcheck=False, check_labels=False
    )
    failpoints.install(hook)
    began = time.monotonic()
    history: list[Any] = []
    word = hear(lambda: history.append(trainer.train(records, resume=resume, learning_rate=0.5)))
    failpoints.install(None)
    yield "word", word
    yield "seconds", time.monotonic() - began
    yield "reads", records.reads
    if history:
        yield "weights", flat(list(trainer.model.parameters()))
        yield "lost", history[0].lost_steps
        yield "epochs", [epoch.epoch for epoch in history[0].epochs]


def act(scene: str, folder: Path) -> Iterator[tuple[str, Any]]:
    right = ManyProcesses
    if scene == "many":
        yield from add_up([right, PaddedShards])
        yield from draw_many([right, PaddedShards, OneSeed])
        yield from release_noise([right, NoiseEverywhere, NoiseOfAShare])
        yield from train_all(folder)
        yield from loop_by_hand()
        yield from refuse_all()
        yield from drift()
        yield from wait_in_vain()
        yield from skip_empty()
    elif scene == "three":
        yield from add_up([right])
        yield from release_noise([right])
        yield from loop_by_hand()
    else:
        name, _, victim = scene.rpartition("@")
        yield from die(folder, name, int(victim), resume=name == "resume")


def main(scene: str, folder: Path) -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=int(os.environ["WORLD_SIZE"]),
        timeout=datetime.timedelta(seconds=40),
    )  # fmt: skip
    found = dict(act(scene, folder))
    (folder / f"{rank}.json").write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads of a group that has lost somebody may hold up an ordinary end


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

"""What does privacy cost in a whole training? Epochs of ours beside a plain loop and Opacus' own, reading included.

    python benchmarks/epoch.py [--records 20000] [--batch 1000] [--models MLP CNN …] [--epochs 3] [--sources …]
    python benchmarks/epoch.py --device cuda --tf32 --budget 220
    python benchmarks/epoch.py --device cuda --tf32 --setup   # where the seconds before the first step go, part by part
    python benchmarks/epoch.py --device cuda --waits          # does any step wait for the card? torch itself says so
    python benchmarks/epoch.py --records 400 --batch 100 --workers 1 --epochs 2          # a few minutes on a laptop

Five models, from tensors and from a Dataset whose loader has workers. A plain loop shuffles and takes batches as its
users write it: tensors on the card, or a loader with workers that stay and pinned memory. ``PrivateTrainer`` and
``make_private`` get the same data, draw Poisson batches and add noise at σ = 1; ``fast`` says which noise, and
secure is the default. Opacus runs by its ``PrivacyEngine``, from a loader, with per-example gradients by hooks.

The contenders take turns, an epoch each; the first epoch of each is left out of ratios and stands in its own column. A
figure is the median over rounds of the ratio to the plain epoch of the same round, with the least and the largest.
Set-up is everything before the first step: rehearsal, plan and self-check. Memory is the most that a card held for this
contender, its model and records included. A contender that cannot run a model has its reason in the row.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import platform
import statistics
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

SIDE, CLASSES, TOKENS, WORDS = 32, 10, 128, 512
RATE = 0.01
PLAIN, TRAINER, FAST, LOOP, OPACUS = "plain", "PrivateTrainer", "PrivateTrainer, fast", "make_private, fast", "Opacus"
OURS = (TRAINER, FAST, LOOP)


# ---------------------------------------------------------------------------------------------------- models


def make_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
        nn.Linear(256, CLASSES),
    )  # fmt: skip


def make_cnn() -> nn.Module:
    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(3, 32), *block(32, 64), *block(64, 128), nn.Flatten(), nn.Linear(2048, CLASSES))


class Residual(nn.Module):
    """Two convolutions around which the input goes too."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(8, after), nn.GroupNorm(8, after)])
        self.short = nn.Conv2d(before, after, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """As torch calls it."""
        inner = self.norms[0](self.one(x)).relu()
        return (self.norms[1](self.two(inner)) + self.short(x)).relu()


def make_resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.GroupNorm(8, 32), nn.ReLU(), Residual(32, 32, 1),
        Residual(32, 64, 2), Residual(64, 128, 2), Residual(128, 256, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(256, CLASSES),
    )  # fmt: skip


class Block(nn.Module):
    """Attention and a feed-forward net, both behind a norm."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attend, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """As torch calls it."""
        rows, places, width = x.shape
        parts = self.attend(self.norms[0](x)).view(rows, places, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, places, width))
        inner = nn.functional.gelu(self.wide(self.norms[1](x)))
        return x + self.narrow(inner)


class Vit(nn.Module):
    """Patches of 4 × 4, mean over places."""

    def __init__(self, width: int = 192, depth: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Embedding((SIDE // 4) ** 2, width)
        self.blocks = nn.Sequential(*(Block(width, 4, causal=False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """As torch calls it."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(x)).mean(1))


class Gpt(nn.Module):
    """Positions are looked up once for all rows, as models of this kind do."""

    def __init__(self, width: int = 192, depth: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(TOKENS, width)
        self.blocks = nn.Sequential(*(Block(width, 4, causal=True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """As torch calls it."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "MLP": make_mlp, "CNN": make_cnn, "ResNet-like": make_resnet, "ViT": Vit, "GPT-like": Gpt,
}  # fmt: skip


def lose(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """One value per record: of a class, or the mean over next tokens."""
    scores, labels = model(batch[0]), batch[1]
    if labels.dim() == 1:
        return nn.functional.cross_entropy(scores, labels, reduction="none")
    return nn.functional.cross_entropy(scores.transpose(1, 2), labels, reduction="none").mean(1)


# ---------------------------------------------------------------------------------------------------- records


class Decoded(Dataset[Any]):
    """Records that are made into floats when they are read, as pictures are; tokens come as they are."""

    def __init__(self, inputs: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> None:
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Any]:
        part = torch.from_numpy(self.inputs[index])
        label = self.labels[index]
        ready = part if part.dtype is torch.int64 else part.float().div_(255).sub_(0.5)
        return ready, torch.from_numpy(label) if label.ndim else int(label)


def make_records(model: str, count: int) -> Decoded:
    rng = np.random.default_rng(0)
    if model == "GPT-like":
        tokens = rng.integers(0, WORDS, (count, TOKENS + 1), dtype=np.int64)
        return Decoded(tokens[:, :-1].copy(), tokens[:, 1:].copy())
    pictures = rng.integers(0, 256, (count, 3, SIDE, SIDE), dtype=np.uint8)
    return Decoded(pictures, rng.integers(0, CLASSES, count, dtype=np.int64))


def as_tensors(data: Decoded) -> tuple[Tensor, Tensor]:
    inputs = torch.from_numpy(data.inputs)
    ready = inputs if inputs.dtype is torch.int64 else inputs.float().div_(255).sub_(0.5)
    return ready, torch.from_numpy(data.labels)


@dataclasses.dataclass(frozen=True)
class Case:
    """What all contenders of a row get."""

    model: str
    source: str
    data: Decoded
    tensors: tuple[Tensor, Tensor]
    batch: int
    epochs: int
    workers: int
    device: torch.device

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return max(1, len(self.data) // self.batch)

    def build(self) -> nn.Module:
        """The model, the same for every contender."""
        torch.manual_seed(0)
        return MODELS[self.model]().to(self.device).train()

    def loader(self, *, from_tensors: bool) -> DataLoader[Any]:
        """As its users make it."""
        data: Any = TensorDataset(*self.tensors) if from_tensors else self.data
        workers = 0 if from_tensors else self.workers
        return DataLoader(
            data, self.batch, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0,
            pin_memory=self.device.type == "cuda",
        )  # fmt: skip

    def wait(self) -> None:
        """Until a card has done all that it was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


# ------------------------------------------------------------------------------------------------- contenders
# Each is a generator: what comes before its first yield is set-up, and every later yield ends an epoch.


def run_plain(case: Case) -> Iterator[None]:
    model = case.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    near = tuple(part.to(case.device) for part in case.tensors) if case.source == "tensors" else ()
    loader = None if near else case.loader(from_tensors=False)

    def batches() -> Iterator[tuple[Tensor, ...]]:
        if loader is None:
            order = torch.randperm(len(near[0]), device=case.device)
            for start in range(case.steps):
                chosen = order[start * case.batch : (start + 1) * case.batch]
                yield tuple(part[chosen] for part in near)
        else:
            for batch in loader:
                yield tuple(part.to(case.device, non_blocking=True) for part in batch)

    yield
    while True:
        for batch in batches():
            optimizer.zero_grad()
            lose(model, batch).mean().backward()
            optimizer.step()
        case.wait()
        yield


def config_of(case: Case, mode: str) -> Any:
    from quietsum.learning import PrivacyConfig

    return PrivacyConfig(
        noise_multiplier=1.0, epochs=case.epochs, batch_size=case.batch, max_grad_norm=1.0, noise=mode,
        clipping="flat",
    )  # fmt: skip


def data_of(case: Case) -> Any:
    return case.tensors if case.source == "tensors" else case.loader(from_tensors=False)


def run_loop(case: Case) -> Iterator[None]:
    from quietsum.learning import make_private

    model = case.build()
    model, optimizer, loader = make_private(
        model, torch.optim.SGD(model.parameters(), lr=RATE), data_of(case), config=config_of(case, "fast"), loss=lose
    )
    yield
    for _ in range(case.epochs):
        for _batch in loader:
            optimizer.step()
        case.wait()
        yield


def run_opacus(case: Case) -> Iterator[None]:
    from opacus import PrivacyEngine

    plain = case.build()
    sgd = torch.optim.SGD(plain.parameters(), lr=RATE)
    model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        module=plain, optimizer=sgd, data_loader=case.loader(from_tensors=case.source == "tensors"),
        noise_multiplier=1.0, max_grad_norm=1.0,
    )  # fmt: skip
    yield
    while True:
        for inputs, labels in loader:
            optimizer.zero_grad()
            batch = inputs.to(case.device, non_blocking=True), labels.to(case.device, non_blocking=True)
            lose(model, batch).mean().backward()
            optimizer.step()
        case.wait()
        yield


class InTurn:
    """``PrivateTrainer`` runs its epochs by itself: it does so in a thread that stands still after each."""

    def __init__(self, case: Case, mode: str) -> None:
        self._case, self._mode = case, mode
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._over, self._given_up = False, False

    def __iter__(self) -> Iterator[None]:
        thread = threading.Thread(target=self._train, daemon=True)
        thread.start()
        try:
            while True:
                self._stopped.acquire()
                if self._error is not None:
                    raise self._error
                if self._over:
                    return
                yield
                self._go.release()
        finally:
            self._given_up = True
            self._go.release()
            thread.join(30)

    def _stand(self) -> None:
        self._case.wait()
        self._stopped.release()
        self._go.acquire()
        if self._given_up:
            raise KeyboardInterrupt

    def _train(self) -> None:
        try:
            from quietsum.failpoints import install
            from quietsum.learning import PrivateTrainer

            def reached(place: str) -> None:
                if place == "train:reserved":
                    install(None)
                    self._stand()

            trainer = PrivateTrainer(self._case.build(), config_of(self._case, self._mode), loss=lose)
            install(reached)  # the first charge ends the set-up
            trainer.train(
                data_of(self._case), learning_rate=RATE, callbacks=lambda epoch: self._stand(), progress=False
            )
        except BaseException as error:
            self._error = None if self._given_up else error
        self._over = True
        self._stopped.release()


CONTENDERS: dict[str, Callable[[Case], Iterator[None]]] = {
    PLAIN: run_plain, TRAINER: lambda case: iter(InTurn(case, "secure")), FAST: lambda case: iter(InTurn(case, "fast")),
    LOOP: run_loop, OPACUS: run_opacus,
}  # fmt: skip


# -------------------------------------------------------------------------------------------------- measuring


@dataclasses.dataclass
class Found:
    """One contender in one case."""

    setup: float = 0.0
    epochs: list[float] = dataclasses.field(default_factory=list)
    memory: float | None = None
    problem: str = ""


def held(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def measure(case: Case, chosen: list[str], until: float) -> dict[str, Found]:
    """Set up one after the other, then an epoch of each in turn; who fails is left out from there on."""
    found = {name: Found() for name in chosen}
    running: dict[str, Iterator[None]] = {}
    own: dict[str, int] = {}
    for name in chosen:
        if time.monotonic() > until:
            continue
        before = held(case.device)
        began = time.perf_counter()
        try:
            running[name] = CONTENDERS[name](case)
            next(running[name])
            case.wait()
            found[name].setup = time.perf_counter() - began
            own[name] = held(case.device) - before
        except Exception as error:
            found[name].problem = told(error)
            running.pop(name, None)
    for _ in range(case.epochs):
        for name, contender in list(running.items()):
            if time.monotonic() > until and found[name].epochs:
                continue
            if case.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(case.device)
            before, began = held(case.device), time.perf_counter()
            try:
                next(contender)
                found[name].epochs.append(time.perf_counter() - began)
            except Exception as error:
                found[name].problem = told(error)
                running.pop(name)
            if case.device.type == "cuda":
                most = (torch.cuda.max_memory_allocated(case.device) - before + max(0, own[name])) / 2**20
                found[name].memory = max(most, found[name].memory or 0.0)
    for contender in running.values():
        contender.close()  # type: ignore[attr-defined]
    return found


def told(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed"
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first[:90]}"


# ------------------------------------------------------------------------------------------------------ waits


def find_wait(case: Case, mode: str) -> str:
    """Where a step of the second epoch waits for the card, by torch's own check; empty where none does."""
    from quietsum.failpoints import install
    from quietsum.learning import PrivateTrainer
    from quietsum.learning.step import PrivateStep

    chunks, steps, found = [0], [0], [""]
    real = PrivateStep._row_by_row

    def note(error: BaseException | None) -> None:
        torch.cuda.set_sync_debug_mode("default")
        places = [frame for frame in traceback.extract_tb(error.__traceback__) if "quietsum" in frame.filename]
        place = places[-1] if places else None
        where = "" if place is None else f" at {place.filename.rsplit('quietsum/', 1)[-1]}:{place.lineno}"
        found[0] = found[0] or f"{type(error).__name__}{where}: {str(error)[:80]}"

    def by_rows(self: Any, batch: Any) -> Any:
        note(sys.exc_info()[1])  # what a batch raises is swallowed there, and a wait raises here
        return real(self, batch)

    def reached(place: str) -> None:
        if place == "train:reserved":
            chunks[0], steps[0] = chunks[0] + 1, 0
        steps[0] += place == "train:step"
        watched = chunks[0] == 2 and 0 < steps[0] < case.steps  # from the first step to the last
        torch.cuda.set_sync_debug_mode("error" if watched and not found[0] else "default")

    trainer = PrivateTrainer(case.build(), config_of(case, mode), loss=lose, selfcheck=False)
    PrivateStep._row_by_row = by_rows  # type: ignore[method-assign]
    install(reached)
    try:
        trainer.train(data_of(case), learning_rate=RATE, progress=False)
    except RuntimeError as error:
        note(error)
    finally:
        install(None)
        torch.cuda.set_sync_debug_mode("default")
        PrivateStep._row_by_row = real  # type: ignore[method-assign]
    return found[0]


def show_waits(cases: Iterator[Case]) -> None:
    """A line for each model, source and kind of noise."""
    for case in cases:
        for mode in ("fast", "secure"):
            try:
                found = find_wait(dataclasses.replace(case, epochs=2), mode)
            except Exception as error:
                found = told(error)
            print(
                f"* {case.model} from {case.source}, {mode} noise: {found or 'no step waits for the card'}", flush=True
            )


# ------------------------------------------------------------------------------------------------------ set-up


class Clock:
    """Seconds of named parts, each without those of the parts within it, and how often each was entered."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.seconds: dict[str, float] = {}
        self.times: dict[str, int] = {}
        self._wait, self._inner = wait, [0.0]

    def watch(self, work: Callable[..., Any], label: Callable[..., str]) -> Callable[..., Any]:
        """``work`` with its time noted; a card is waited for behind it, so that its work counts here."""

        def timed(*given: Any, **named: Any) -> Any:
            part, began = label(*given), time.perf_counter()
            self._inner.append(0.0)
            try:
                return work(*given, **named)
            finally:
                self._wait()
                taken, within = time.perf_counter() - began, self._inner.pop()
                self._inner[-1] += taken
                self.seconds[part] = self.seconds.get(part, 0.0) + taken - within
                self.times[part] = self.times.get(part, 0) + 1

        return timed


def time_setup(case: Case, mode: str) -> Clock:
    """From making a trainer to its first charge, by its parts."""
    clock = Clock(case.wait)
    began = time.perf_counter()
    import quietsum.learning.noise.whole as whole
    import quietsum.learning.rehearsal as rehearsal
    import quietsum.learning.trainer as trainer
    import quietsum.selfcheck.suite as suite
    from quietsum.failpoints import install
    from quietsum.learning.engines.batch_mixing import SteadyEngine
    from quietsum.learning.noise import chacha
    from quietsum.learning.noise.gradient_noise import TorchNoise

    clock.seconds["imports"], clock.times["imports"] = time.perf_counter() - began, 1
    parts: list[tuple[Any, str, str]] = [
        (trainer, "rehearse_model", "model and loss on made-up rows"), (trainer, "refuse_dropped", "what moves"),
        (trainer, "plan_training", "plan"), (trainer, "build_step", "engine"),
        (trainer, "rehearse_step", "engine on made-up rows"), (rehearsal, "rehearse_large", "large batches, mixing"),
        (trainer, "check_step", "self-check, the rest"), (SteadyEngine, "clipped_sum", "sums by the engine"),
        (TorchNoise, "add", "noise added"), (TorchNoise, "draw", "noise drawn"),
        (chacha, "_kernel", "the keystream's kernel"), (whole, "is_exact", "card's integers compared"),
    ]  # fmt: skip
    found = [(owner, name, getattr(owner, name), label) for owner, name, label in parts]

    class Charged(BaseException):
        pass

    def reached(place: str) -> None:
        if place == "train:reserved":
            raise Charged

    for owner, name, work, label in found:
        setattr(owner, name, clock.watch(work, lambda *_, label=label: label))
    tests = suite._ran
    suite._ran = clock.watch(tests, lambda test, run: f"self-check, {test}")  # type: ignore[assignment]
    install(reached)
    try:
        model = case.build()
        make = clock.watch(lambda: trainer.PrivateTrainer(model, config_of(case, mode), loss=lose), lambda: "trainer")
        run = clock.watch(lambda: make().train(data_of(case), learning_rate=RATE, progress=False), lambda: "all else")
        with contextlib.suppress(Charged):
            run()
    finally:
        install(None)
        suite._ran = tests
        for owner, name, work, _ in found:
            setattr(owner, name, work)
    return clock


def show_setup(cases: Iterator[Case]) -> None:
    """For each model a table of parts: the first set-up, and another one in the same process."""
    for case in cases:
        for mode in ("secure", "fast"):
            first, again = time_setup(case, mode), time_setup(case, mode)
            print(f"\n| {case.model}, {mode} noise | times | first, s | again, s |\n|---|---:|---:|---:|")
            labels = sorted(first.seconds | again.seconds, key=lambda part: -again.seconds.get(part, 0.0))
            for part in labels:
                one, two = first.seconds.get(part, 0.0), again.seconds.get(part, 0.0)
                print(f"| {part} | {again.times.get(part, 0)} | {one:.3f} | {two:.3f} |")
            print(f"| in all | | {sum(first.seconds.values()):.2f} | {sum(again.seconds.values()):.2f} |", flush=True)


# -------------------------------------------------------------------------------------------------- reporting


def ratios(one: Found, plain: Found) -> list[float]:
    """Epoch by epoch, without the first unless it is the only one."""
    pairs = list(zip(one.epochs, plain.epochs, strict=False))
    return [mine / base for mine, base in (pairs[1:] or pairs)]


def line_of(case: Case, name: str, one: Found, plain: Found) -> str:
    head = f"| {case.model}, {case.source} | {name} | "
    if not one.epochs:
        return head + f"{one.problem or 'no time left'} | | | | |"
    every = ratios(one, plain)
    ratio = "1" if name == PLAIN else f"{statistics.median(every):.2f}×" if every else "–"
    spread = "" if name == PLAIN or len(every) < 2 else f"{min(every):.2f}–{max(every):.2f}"
    step = 1000 * statistics.median(one.epochs[1:] or one.epochs) / case.steps
    memory = "–" if one.memory is None else f"{one.memory:,.0f}"
    note = f" ({one.problem})" if one.problem else ""
    return head + f"{step:.2f}{note} | {ratio} | {spread} | {one.epochs[0]:.2f} | {one.setup:.2f} | {memory} |"


def targets(case: Case, found: dict[str, Found]) -> Iterator[str]:
    """One line per target, met or not."""

    def line(what: str, value: float, most: float) -> str:
        verdict = "met" if value <= most else "NOT MET"
        return f"* {verdict}: {case.model} from {case.source}, {what} {value:.2f}, wanted ≤ {most:g}"

    plain = found.get(PLAIN, Found())
    for name in OURS:
        one = found.get(name, Found())
        every = ratios(one, plain)
        if not every:
            continue
        step = 1000 * statistics.median(plain.epochs[1:] or plain.epochs) / case.steps
        if step >= 5:
            yield line(f"{name} / plain at {step:.1f} ms a step", statistics.median(every), 1.5)
        theirs = ratios(one, found.get(OPACUS, Found()))
        if theirs:
            yield line(f"{name} / Opacus", statistics.median(theirs), 1.0)
        yield line(f"{name}, seconds of set-up", one.setup, 2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--epochs", type=int, default=3, help="of each contender, the first one among them")
    parser.add_argument("--workers", type=int, default=8, help="of the loader of a Dataset")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--sources", nargs="+", choices=("tensors", "Dataset"), default=["tensors", "Dataset"])
    parser.add_argument("--contenders", nargs="+", choices=tuple(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds after which nothing new is begun")
    parser.add_argument("--setup", action="store_true", help="seconds before the first step, part by part")
    parser.add_argument("--waits", action="store_true", help="on a card: does any step wait for it?")
    parser.add_argument("--tf32", action="store_true", help="let a card multiply in TF32")
    chosen = parser.parse_args()
    if chosen.tf32:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    device = torch.device("cuda", torch.cuda.current_device()) if chosen.device == "cuda" else torch.device("cpu")
    machine = torch.cuda.get_device_name() if chosen.device == "cuda" else f"{platform.machine()}, CPU"
    until = time.monotonic() + chosen.budget
    print(
        f"torch {torch.__version__}, {machine}, {torch.get_num_threads()} threads, {chosen.records:,} records, batches "
        f"of {chosen.batch:,}, {chosen.workers} workers, {'TF32' if chosen.tf32 else 'float32'}\n"
    )
    if chosen.setup:
        return show_setup(
            Case(model, "tensors", data, as_tensors(data), chosen.batch, chosen.epochs, chosen.workers, device)
            for model in chosen.models
            for data in [make_records(model, 2 * chosen.batch)]
        )
    if chosen.waits:
        made = {model: make_records(model, 4 * chosen.batch) for model in chosen.models}
        return show_waits(
            Case(model, source, data, as_tensors(data), chosen.batch, 2, chosen.workers, device)
            for source in chosen.sources
            for model, data in made.items()
        )
    print("| model, records | loop | ms a step | epoch / plain | spread | first epoch, s | set-up, s | peak MiB |")
    print("|---|---|---:|---:|---|---:|---:|---:|", flush=True)
    lines: list[str] = []
    names = [PLAIN, *(name for name in chosen.contenders if name != PLAIN)]
    for source in chosen.sources:
        for model in chosen.models:
            if time.monotonic() > until:
                print(f"| {model}, {source} | all | no time left | | | | | |", flush=True)
                continue
            data = make_records(model, chosen.records)
            case = Case(model, source, data, as_tensors(data), chosen.batch, chosen.epochs, chosen.workers, device)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    found = measure(case, names, until)
                except Exception as error:
                    print(f"| {model}, {source} | all | {told(error)} | | | | | |", flush=True)
                    continue
            for name in names:
                print(line_of(case, name, found[name], found[PLAIN]), flush=True)
            lines += targets(case, found)
            del found
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    print()
    print("\n".join(lines))


if __name__ == "__main__":
    main()

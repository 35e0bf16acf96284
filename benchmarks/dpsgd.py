"""What does privacy cost per step? Ours beside Opacus and vmap, as ratios to the step without privacy.

    python benchmarks/dpsgd.py [--batch 64 256 512] [--models MLP CNN GRU ST-GCN] [--rounds N] [--markdown]
    python benchmarks/dpsgd.py --device cuda [--tf32]
    python benchmarks/dpsgd.py --device cuda --decoders [--rows "GPT:256:tf32" …] [--budget SECONDS]
    python benchmarks/dpsgd.py --count [--models GPT "Llama, LoRA"] [--batch N]

Every step does the same: forward, loss, gradient (private: clip each example at 1, add noise at σ = 1, divide by the
batch), SGD update. All run in one process in turn, a step each; the figure is the median over rounds of the ratio to
the plain step of the same round. A step of half a millisecond finds the processor's caches full of its neighbours'
code that way; in training it follows itself. So small models are measured a second time, 40 steps of each in a row.
On a CPU: one thread, process time. On a GPU: CUDA events and the peak of allocated memory. Opacus runs as its users run
it: its modules, its optimizer, its noise. ``ours`` draws fast noise; ``ours, secure`` draws noise that is safe against
floating-point attacks.

``--decoders`` measures a GPT (6 × 384) and a Llama-like model (12 × 768) on texts of 256 tokens, whole and with LoRA,
in TF32 and under bfloat16 autocast, eager and compiled, plain and ours. ``--count`` needs no card: it lists a step's
operations, multiplications and bytes moved beside those of the plain step, and what they would take on a card that
does 400 (TF32) or 700 (bfloat16) Tflop/s and moves 4 TB/s.

The script needs torch and numpy, and the files of this repository beside it; Opacus has columns where it is installed.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import collections
import contextlib
import dataclasses
import gc
import importlib.util
import platform
import statistics
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import flop_registry

ROOT = Path(__file__).resolve().parents[1]


def _bare_packages() -> None:
    """Where quietsum's other dependencies are missing: its torch modules alone, without the packages' front doors."""
    for name in ("quietsum", "quietsum.learning"):
        package = types.ModuleType(name)
        package.__path__ = [str(ROOT / "src" / name.replace(".", "/"))]
        sys.modules[name] = package
    mechanisms = types.ModuleType("quietsum.mechanisms")  # adaptive clipping takes its rule from there; no row uses it
    for name in ("QuantileRule", "RandomSource", "system_randomness"):
        setattr(mechanisms, name, object)
    sys.modules["quietsum.mechanisms"] = mechanisms


def _load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


try:
    from quietsum.learning.noise.gradient_noise import TorchNoise
except ImportError:
    for _name in [name for name in sys.modules if name.split(".")[0] == "quietsum"]:
        del sys.modules[_name]
    _bare_packages()
    TorchNoise = None  # type: ignore[assignment, misc]

from quietsum.learning.clipping import Flat
from quietsum.learning.engines import layers
from quietsum.learning.engines.bookkeeping import BookkeepingEngine
from quietsum.learning.engines.hardware import half as half_precision
from quietsum.learning.engines.protocol import Loss, engine_for

models = _load("speed_table_models", ROOT / "tests" / "learning" / "models.py")
decoders = _load("speed_table_decoders", ROOT / "tests" / "learning" / "decoders.py")

RATE = 0.01
WARM = 5  # steps before the clock: our engine follows the rows of its first batches through the layers
CPU_MODELS, GPU_ROWS = ("MLP", "CNN", "GRU", "ST-GCN"), (
    ("MLP", 1024), ("CNN", 1024), ("ResNet-18-GN", 256), ("ResNet-18-GN", 1024), ("ViT", 256), ("ViT", 1024),
)  # fmt: skip
OURS, SECURE, VMAP = "ours", "ours, secure", "vmap"
HOOKS, FAST, GHOST = "Opacus hooks", "Opacus fast", "Opacus ghost"
PLAIN_COMPILED, COMPILED = "plain, compiled", "ours, compiled"
DECODER_ROWS = (
    "GPT:256:tf32", "GPT:256:bf16", "Llama:64:tf32", "Llama:64:bf16",
    "Llama, LoRA:64:tf32", "Llama, LoRA:64:bf16", "GPT, LoRA:256:tf32", "GPT, LoRA:256:bf16",
)  # fmt: skip
TFLOPS, HALF_TFLOPS, BYTES = 400e12, 700e12, 4e12  # of the card that --count thinks of

Step = Callable[[], None]


class DeviceNoise:
    """Float64 normals from a generator of its own, seeded by the operating system: for cards, and bare machines."""

    def __init__(self, device: torch.device) -> None:
        self._generator = torch.Generator(device).manual_seed(int.from_bytes(os.urandom(8)) >> 1)

    def add(self, sums: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The sums with fresh noise, in float64."""
        return tuple(
            torch.randn(part.shape, generator=self._generator, dtype=torch.float64, device=part.device).add_(part)
            for part in sums
        )


def noise_of(mode: str, batch: int, device: torch.device) -> Any:
    if TorchNoise is None:
        return DeviceNoise(device)
    return TorchNoise(noise_multiplier=1.0, sensitivity=1.0, mode=mode, expected_batch=float(batch))


# ------------------------------------------------------------------------------------------------ the steps


def subject_of(name: str, small: bool = False) -> tuple[Any, Loss]:
    """A model of either table with its loss for each example."""
    if name in decoders.DECODERS:
        return decoders.decoder(name, small=small), decoders.next_token
    return models.build(name, small=small), models.cross_entropy


def halved(loss: Loss, device: torch.device, half: bool) -> Loss:
    """The loss under autocast to bfloat16."""
    if not half:
        return loss

    def mixed(model: nn.Module, rows: tuple[Tensor, ...]) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            return loss(model, rows)

    return mixed


def plain(
    name: str, batch: int, device: torch.device, *, half: bool = False, compiler: str = "", small: bool = False
) -> Step:
    subject, loss = subject_of(name, small)
    loss = halved(loss, device, half)
    model, rows = subject.model.to(device), subject.batch(batch, device=str(device))
    optimizer = torch.optim.SGD([part for part in model.parameters() if part.requires_grad], lr=RATE)
    mean = (lambda: loss(model, rows).mean()) if not compiler else _compiled(loss, model, rows, compiler)

    def step() -> None:
        optimizer.zero_grad()
        mean().backward()
        optimizer.step()

    return step


def _compiled(loss: Loss, model: nn.Module, rows: Any, backend: str) -> Callable[[], Tensor]:
    run = torch.compile(lambda: loss(model, rows).mean(), backend=backend)
    return run  # type: ignore[no-any-return]


def engine(
    name: str, batch: int, device: torch.device, which: str, mode: str = "fast", *, half: bool = False,
    compiler: str = "", small: bool = False,
) -> Step:  # fmt: skip
    subject, loss = subject_of(name, small)
    loss = halved(loss, device, half)
    model, rows = subject.model.to(device), subject.batch(batch, device=str(device))
    if compiler:
        worker: Any = BookkeepingEngine(model, loss, Flat(max_norm=1.0), backend=compiler)
    else:
        worker = engine_for(which, model, loss, Flat(max_norm=1.0))
    noise = noise_of(mode, batch, device)
    optimizer = torch.optim.SGD(worker.parameters, lr=RATE)
    buffer = torch.cat([parameter.detach().flatten() for parameter in worker.parameters])  # gradients, end to end
    start = 0
    for parameter in worker.parameters:
        parameter.grad = buffer[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()

    def step() -> None:
        flat = torch.cat([part.view(-1) for part in worker.clipped_sum(rows)])
        (noisy,) = noise.add((flat,))  # one long vector: fewer calls than parameter by parameter
        buffer.copy_(noisy.mul_(1 / batch))
        optimizer.step()

    for _ in range(WARM if compiler else 0):
        step()
    if compiler and "not compiled" in worker.why:
        raise RuntimeError(worker.why)
    return step


def opacus(name: str, batch: int, device: torch.device, mode: str, *, half: bool = False) -> Step:
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.layers.dp_rnn import RNNLinear
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    subject, loss = subject_of(name)
    loss = halved(loss, device, half)
    model = models.Gru(linear=RNNLinear) if name == "GRU" and mode != HOOKS else subject.model
    model, rows = model.to(device), subject.batch(batch, device=str(device))
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": batch}
    sgd = torch.optim.SGD([part for part in model.parameters() if part.requires_grad], lr=RATE)
    if mode == HOOKS:
        hooked = GradSampleModule(model, strict=False)
        optimizer = DPOptimizer(sgd, **settings)

        def step() -> None:
            optimizer.zero_grad()
            loss(hooked, rows).mean().backward()
            optimizer.step()

        return step
    fast = GradSampleModuleFastGradientClipping(
        model, max_grad_norm=1.0, use_ghost_clipping=mode == GHOST, strict=False
    )
    fast_optimizer = DPOptimizerFastGradientClipping(sgd, **settings)
    criterion = DPLossFastGradientClipping(fast, fast_optimizer, nn.CrossEntropyLoss(reduction="mean"))
    autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=half)

    def ghost_step() -> None:
        fast_optimizer.zero_grad()
        with autocast:
            scores = fast(rows[0])
            one = criterion(scores if scores.dim() == 2 else scores.transpose(1, 2), rows[1])
        one.backward()
        fast_optimizer.step()

    return ghost_step


def contenders(name: str, batch: int, device: torch.device) -> dict[str, Callable[[], Step]]:
    """Everybody who can run this model: by name, how to set up a step."""
    makers: dict[str, Callable[[], Step]] = {
        "plain": lambda: plain(name, batch, device),
        OURS: lambda: engine(name, batch, device, "auto"),
    }
    if TorchNoise is not None and device.type == "cpu":
        makers[SECURE] = lambda: engine(name, batch, device, "auto", "secure")
    if importlib.util.find_spec("opacus"):
        for mode in (HOOKS, FAST, GHOST):
            makers[mode] = lambda mode=mode: opacus(name, batch, device, mode)  # type: ignore[misc]
    makers[VMAP] = lambda: engine(name, batch, device, "vmap")
    return makers


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ------------------------------------------------------------------------------------------------ measuring


@dataclasses.dataclass(frozen=True)
class Row:
    """One model at one batch: plain milliseconds, ratios, and on a GPU peak MiB."""

    model: str
    batch: int
    milliseconds: float
    ratios: dict[str, float]
    memory: dict[str, float] = dataclasses.field(default_factory=dict)
    in_a_row: int = 1


def measure(name: str, batch: int, device: torch.device, chosen: int | None) -> list[Row]:
    """The contenders in turn, and for steps of a few milliseconds on a CPU also 40 steps of each in a row."""
    makers = contenders(name, batch, device)
    memory = {who: peak(make, device) for who, make in makers.items()} if device.type == "cuda" else {}
    steps = {}
    for who, make in makers.items():
        with quiet():
            steps[who] = make()
            for _ in range(WARM):
                steps[who]()
    with quiet():
        once = max(_time(steps["plain"], device), 1e-5)
        rounds = max(5, min(400, int(1.5 / once))) if chosen is None else chosen
        inner = max(1, min(40, int(0.02 / once)))
        if device.type == "cuda":
            return [_row(name, batch, steps, device, max(5, rounds // inner), inner, memory)]
        rows = [_row(name, batch, steps, device, rounds, 1, memory)]
        if inner > 1:
            rows.append(_row(name, batch, steps, device, max(5, rounds // inner), inner, memory))
        return rows


def _row(
    name: str,
    batch: int,
    steps: dict[str, Step],
    device: torch.device,
    rounds: int,
    inner: int,
    memory: dict[str, float],
) -> Row:
    times: dict[str, list[float]] = {who: [] for who in steps}
    for _ in range(rounds):
        for who, step in steps.items():
            times[who].append(_time(step, device, inner) / inner)
    ratios = {
        who: statistics.median(mine / base for mine, base in zip(times[who], times["plain"], strict=True))
        for who in steps
        if who != "plain"
    }
    return Row(name, batch, 1000 * statistics.median(times["plain"]), ratios, memory, inner)


def peak(make: Callable[[], Step], device: torch.device) -> float:
    """The most MiB that a contender holds at once, alone on the card."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    with quiet():
        step = make()
        step()
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def _time(step: Step, device: torch.device, times: int = 1) -> float:
    """Seconds for so many steps in a row, as in training."""
    if device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(times):
            step()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000
    begun = time.process_time()
    for _ in range(times):
        step()
    return time.process_time() - begun


# ------------------------------------------------------------------------------------------------ decoders


@dataclasses.dataclass(frozen=True)
class Line:
    """One decoder in one precision: milliseconds and MiB of each contender, and why some did not run."""

    model: str
    batch: int
    precision: str
    milliseconds: dict[str, float]
    memory: dict[str, float]
    failed: dict[str, str]


def decode(row: str, device: torch.device, deadline: float, small: bool, backend: str, eager: bool) -> Line:
    """One row of ``--decoders``: contenders one after the other, each alone on the card, until the budget ends."""
    name, size, precision = row.rsplit(":", 2)
    batch, half = int(size), precision == "bf16"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    makers: dict[str, Callable[[], Step]] = {
        "plain": lambda: plain(name, batch, device, half=half, small=small),
        OURS: lambda: engine(name, batch, device, "auto", half=half, small=small),
    }
    if not eager:
        makers[PLAIN_COMPILED] = lambda: plain(name, batch, device, half=half, compiler=backend, small=small)
        makers[COMPILED] = lambda: engine(name, batch, device, "", half=half, compiler=backend, small=small)
    if importlib.util.find_spec("opacus") and not small:
        makers[HOOKS] = lambda: opacus(name, batch, device, HOOKS, half=half)
        makers[GHOST] = lambda: opacus(name, batch, device, GHOST, half=half)
    line = Line(name, batch, precision, {}, {}, {})
    for who, make in makers.items():
        if time.monotonic() > deadline:
            line.failed[who] = "no time left"
            continue
        try:
            with quiet():
                line.memory[who], line.milliseconds[who] = alone(make, device)
            print(f"… {row} {who}: {line.milliseconds[who]:.1f} ms", file=sys.stderr, flush=True)
        except Exception as problem:  # a contender that cannot run this model is a result
            line.failed[who] = f"{type(problem).__name__}: {next(iter(str(problem).splitlines()), '')}"[:160]
        torch.compiler.reset()
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return line


def alone(make: Callable[[], Step], device: torch.device) -> tuple[float, float]:
    """Peak MiB and milliseconds of a step in a row of steps."""
    card = device.type == "cuda"
    before = torch.cuda.memory_allocated(device) if card else 0
    step = make()
    for _ in range(WARM):
        step()
    if card:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats(device)
    once = _time(step, device)
    most = (torch.cuda.max_memory_allocated(device) - before) / 2**20 if card else 0.0
    times = max(3, min(30, int(0.6 / max(once, 1e-5))))
    return most, 1000 * statistics.median(_time(step, device, times) / times for _ in range(3))


def report_decoders(lines: list[Line], markdown: bool) -> None:
    """Milliseconds, then the targets."""
    columns = ("plain", OURS, PLAIN_COMPILED, COMPILED, HOOKS, GHOST)
    edge, gap = ("| ", " | ") if markdown else ("", "  ")
    print(edge + gap.join(["model, batch, precision", *(f"{who} ms (MiB)" for who in columns)]) + edge[::-1])
    if markdown:
        print("|---" * (1 + len(columns)) + "|")
    for line in lines:
        cells = [
            f"{line.milliseconds[who]:.1f} ({line.memory[who]:.0f})" if who in line.milliseconds else "–"
            for who in columns
        ]
        print(edge + gap.join([f"{line.model}, {line.batch}, {line.precision}", *cells]) + edge[::-1])
    for line in lines:
        for who, why in line.failed.items():
            print(f"– {line.model}, {line.batch}, {line.precision}, {who}: {why}")
    for line in lines:
        what, time_of, room = f"{line.model} at {line.batch}, {line.precision}", line.milliseconds, line.memory
        best = min((time_of[who] for who in (OURS, COMPILED) if who in time_of), default=None)
        if OURS in time_of and "plain" in time_of:
            judge(f"{what}, ours / plain", time_of[OURS] / time_of["plain"], 1.3 if line.precision == "tf32" else 1.5)
            if room["plain"]:
                judge(f"{what}, peak memory / plain", room[OURS] / room["plain"], 1.3)
        if best is not None and PLAIN_COMPILED in time_of:
            limit = 1.3 if "LoRA" in line.model else 1.7
            judge(f"{what}, ours at its best / plain compiled", best / time_of[PLAIN_COMPILED], limit)
        for who in (HOOKS, GHOST):
            if who in time_of and best is not None:
                judge(f"{what}, {who} / ours at its best", time_of[who] / best, 1.0, most=False)


# ------------------------------------------------------------------------------------------------ counting


class Counter(TorchDispatchMode):
    """Operations that touch memory, their multiplications and bytes, and seconds on the card of the header."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.calls: collections.Counter[str] = collections.Counter()
        self.flops = self.bytes = self.seconds = 0.0
        self._scale = scale

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it and note what it was."""
        out = func(*args, **(kwargs or {}))
        parts = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        made = [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, Tensor)]
        notes = [one.alias_info for one in func._schema.returns]
        if any(note is not None and not note.is_write for note in notes) or "empty" in func.__name__:
            return out  # a view, or memory alone
        packet = func.overloadpacket
        flops = flop_registry[packet](*args, **(kwargs or {}), out_val=out) if packet in flop_registry else 0
        moved = sum(min(p.numel() * p.element_size(), p.untyped_storage().nbytes()) for p in parts + made)
        fast = HALF_TFLOPS if any(part.dtype is torch.bfloat16 for part in parts) else TFLOPS
        self.calls[func.__name__.split(".")[0]] += 1
        self.flops, self.bytes = self.flops + flops, self.bytes + moved
        self.seconds += max(flops / fast, moved / BYTES) * self._scale
        return out


def count(name: str, rows: int, batch: int, half: bool, small: bool) -> None:
    """One line: a step on a few rows of the model, as a card would choose to take it with ``batch`` rows."""
    subject, loss = subject_of(name, small)
    loss, examples = halved(loss, torch.device("cpu"), half), subject.batch(rows)
    model, scale = subject.model, batch / rows
    trained = [part for part in model.parameters() if part.requires_grad]
    worker = engine_for("auto", model, loss, Flat(max_norm=1.0))
    for _ in range(WARM):
        worker.clipped_sum(examples)

    def plainly() -> None:
        torch.autograd.grad(loss(model, examples).mean(), trained)

    found = []
    for run in (plainly, lambda: worker.clipped_sum(examples)):
        with Counter(scale) as counted:
            run()
        found.append(counted)
    one, two = found
    print(
        f"{name}, {'bfloat16' if half else 'TF32'}: {one.calls.total()} → {two.calls.total()} operations, "
        f"{two.flops / one.flops:.2f}× multiplications, {two.bytes / one.bytes:.2f}× bytes, "
        f"{1000 * one.seconds:.1f} ms → {two.seconds / one.seconds:.2f}× at {batch} if nothing else costs time"
    )


@contextlib.contextmanager
def as_on_a_card(rows: int, batch: int) -> Iterator[None]:
    """Our engine chooses its ways as on a card with ``batch`` rows, and multiplies bfloat16 as it is."""
    kept = layers.balance_of, layers._KEEP_BYTES, half_precision.multiply_pairs, half_precision.multiply_matrices
    layers.balance_of = lambda part: 80.0 if part.dtype is torch.bfloat16 else 45.0
    layers._KEEP_BYTES = kept[1] * rows // batch
    half_precision.multiply_pairs = lambda left, right: torch.bmm(left, right).float()
    half_precision.multiply_matrices = lambda left, right: torch.mm(left, right).float()
    try:
        yield
    finally:
        layers.balance_of, layers._KEEP_BYTES, half_precision.multiply_pairs, half_precision.multiply_matrices = kept


# ------------------------------------------------------------------------------------------------ reporting


def table(rows: list[Row], markdown: bool) -> None:
    columns = [who for who in (OURS, SECURE, HOOKS, FAST, GHOST, VMAP) if any(who in row.ratios for row in rows)]
    if markdown:
        print("| model, batch | plain ms | " + " | ".join(columns) + " |")
        print("|---|---|" + "---|" * len(columns))
    else:
        print(f"{'model, batch':20}{'plain ms':>9}" + "".join(f"{who.replace('Opacus', 'Op.'):>13}" for who in columns))
    for row in rows:
        cells = [f"{row.ratios[who]:.2f}×" if who in row.ratios else "–" for who in columns]
        head = f"{row.model}, {row.batch}" + (", in a row" if row.in_a_row > 1 and not row.memory else "")
        if markdown:
            print(f"| {head} | {row.milliseconds:.2f} | " + " | ".join(cells) + " |")
        else:
            print(f"{head:20}{row.milliseconds:9.2f}" + "".join(f"{cell:>13}" for cell in cells))
    for row in rows:
        if row.memory:
            parts = ", ".join(f"{who} {size:.0f}" for who, size in row.memory.items())
            print(f"{'' if not markdown else '- '}peak MiB, {row.model} at {row.batch}: {parts}")


def judge(what: str, value: float, limit: float, *, most: bool = True) -> None:
    met = value <= limit if most else value >= limit
    print(f"{'met   ' if met else 'MISSED'} {what}: {value:.2f}, wanted {'≤' if most else '≥'} {limit}")


def wanted(rows: list[Row]) -> None:
    """One line per target, met or not."""

    for row in rows:
        ours, hooks = row.ratios.get(OURS), row.ratios.get(HOOKS)
        if ours is None:
            continue
        where = f"{row.model} at {row.batch}"
        if row.in_a_row > 1 and not row.memory:
            if (row.model, row.batch) == ("MLP", 256):
                judge(f"{where} in a row, ours / plain", ours, 1.5)
            continue
        if not row.memory and row.batch == 256:
            judge(f"{where}, ours / plain", ours, 1.6 if row.model == "MLP" else 1.4)
            faster = {"MLP": 4.0, "GRU": 2.0, "CNN": 1.3}.get(row.model)
            if hooks is not None and faster is not None:
                judge(f"{where}, Opacus hooks / ours", hooks / ours, faster, most=False)
        if row.memory:
            judge(f"{where}, ours / plain", ours, 1.4)
            if (row.model, row.batch) == ("ViT", 1024):
                judge(f"{where}, peak memory / plain", row.memory[OURS] / row.memory["plain"], 1.5)
            for who in (HOOKS, FAST, GHOST):
                if who in row.ratios:
                    judge(f"{where}, {who} / ours", row.ratios[who] / ours, 1.0, most=False)
            if HOOKS in row.memory:
                judge(f"{where}, peak memory of {HOOKS} / ours", row.memory[HOOKS] / row.memory[OURS], 1.0, most=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument(
        "--models", nargs="+", default=list(CPU_MODELS), choices=sorted({**models.MODELS, **decoders.DECODERS})
    )
    parser.add_argument("--rounds", type=int, help="rounds per row (default: by time)")
    parser.add_argument("--tf32", action="store_true", help="let a card multiply in TF32, as the anchors did")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--decoders", action="store_true", help="GPT and Llama, each row as in --rows")
    parser.add_argument("--rows", nargs="+", default=list(DECODER_ROWS), help='such as "GPT, LoRA:256:bf16"')
    parser.add_argument("--budget", type=float, default=600.0, help="seconds after which no contender starts")
    parser.add_argument("--backend", default="inductor", help="the compiler of the compiled contenders")
    parser.add_argument("--eager", action="store_true", help="leave the compiled contenders out")
    parser.add_argument("--small", action="store_true", help="tiny versions of the decoders, to try the script")
    parser.add_argument("--count", action="store_true", help="count what a step does, without a clock")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.tf32:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    device = torch.device(chosen.device)
    if chosen.count:
        names, rows_each = [name for name in chosen.models if name in decoders.DECODERS] or list(decoders.DECODERS), 2
        for name in names:
            for half in (False, True):
                with as_on_a_card(rows_each, max(chosen.batch)):
                    count(name, rows_each, max(chosen.batch), half, chosen.small)
        return
    if chosen.decoders:
        machine = torch.cuda.get_device_name() if chosen.device == "cuda" else platform.machine()
        print(f"torch {torch.__version__}, {machine}; milliseconds of a step, each contender alone")
        deadline = time.monotonic() + chosen.budget
        lines = [decode(row, device, deadline, chosen.small, chosen.backend, chosen.eager) for row in chosen.rows]
        report_decoders(lines, chosen.markdown)
        return
    which = GPU_ROWS if chosen.device == "cuda" else [(name, size) for name in chosen.models for size in chosen.batch]
    machine = torch.cuda.get_device_name() if chosen.device == "cuda" else f"{platform.machine()}, one thread"
    print(f"torch {torch.__version__}, {machine}; ratios to the plain step, {'TF32' if chosen.tf32 else 'float32'}")
    rows = []
    for name, size in which:
        if name in chosen.models or chosen.device == "cuda":
            rows += measure(name, size, device, chosen.rounds)
            print(f"… {name} at {size}: ours {rows[-1].ratios[OURS]:.2f}×", file=sys.stderr, flush=True)
    table(rows, chosen.markdown)
    wanted(rows)


if __name__ == "__main__":
    main()

"""What does privacy cost per step? Ours beside Opacus and vmap, as ratios to the step without privacy.

    python benchmarks/dpsgd.py [--batch 64 256 512] [--models MLP CNN GRU ST-GCN] [--rounds N] [--markdown]
    python benchmarks/dpsgd.py --device cuda [--tf32]

Every step does the same: forward, loss, gradient (private: clip each example at 1, add noise at σ = 1, divide by the
batch), SGD update. All run in one process in turn, a step each; the figure is the median over rounds of the ratio to
the plain step of the same round. A step of half a millisecond finds the processor's caches full of its neighbours'
code that way; in training it follows itself. So small models are measured a second time, 40 steps of each in a row.
On a CPU: one thread, process time. On a GPU: CUDA events and the peak of allocated memory. Opacus runs as its users run
it: its modules, its optimizer, its noise. ``ours`` draws fast noise; ``ours, secure`` draws noise that is safe against
floating-point attacks.

The script needs torch and numpy, and the files of this repository beside it; Opacus has columns where it is installed.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
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

ROOT = Path(__file__).resolve().parents[1]


def _bare_packages() -> None:
    """Where quietsum's other dependencies are missing: its torch modules alone, without the packages' front doors."""
    for name in ("quietsum", "quietsum.learning"):
        package = types.ModuleType(name)
        package.__path__ = [str(ROOT / "src" / name.replace(".", "/"))]
        sys.modules[name] = package


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
from quietsum.learning.engines.protocol import engine_for

models = _load("speed_table_models", ROOT / "tests" / "learning" / "models.py")

RATE = 0.01
WARM = 5  # steps before the clock: our engine follows the rows of its first batches through the layers
CPU_MODELS, GPU_ROWS = ("MLP", "CNN", "GRU", "ST-GCN"), (
    ("MLP", 1024), ("CNN", 1024), ("ResNet-18-GN", 256), ("ResNet-18-GN", 1024), ("ViT", 256), ("ViT", 1024),
)  # fmt: skip
OURS, SECURE, VMAP = "ours", "ours, secure", "vmap"
HOOKS, FAST, GHOST = "Opacus hooks", "Opacus fast", "Opacus ghost"

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


def plain(name: str, batch: int, device: torch.device) -> Step:
    subject = models.build(name)
    model, rows = subject.model.to(device), subject.batch(batch, device=str(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        models.cross_entropy(model, rows).mean().backward()
        optimizer.step()

    return step


def engine(name: str, batch: int, device: torch.device, which: str, mode: str = "fast") -> Step:
    subject = models.build(name)
    model, rows = subject.model.to(device), subject.batch(batch, device=str(device))
    worker = engine_for(which, model, models.cross_entropy, Flat(max_norm=1.0))
    noise = noise_of(mode, batch, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
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

    return step


def opacus(name: str, batch: int, device: torch.device, mode: str) -> Step:
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.layers.dp_rnn import RNNLinear
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    subject = models.build(name)
    model = models.Gru(linear=RNNLinear) if name == "GRU" and mode != HOOKS else subject.model
    model, rows = model.to(device), subject.batch(batch, device=str(device))
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": batch}
    sgd = torch.optim.SGD(model.parameters(), lr=RATE)
    if mode == HOOKS:
        hooked = GradSampleModule(model, strict=False)
        optimizer = DPOptimizer(sgd, **settings)

        def step() -> None:
            optimizer.zero_grad()
            models.cross_entropy(hooked, rows).mean().backward()
            optimizer.step()

        return step
    fast = GradSampleModuleFastGradientClipping(
        model, max_grad_norm=1.0, use_ghost_clipping=mode == GHOST, strict=False
    )
    fast_optimizer = DPOptimizerFastGradientClipping(sgd, **settings)
    criterion = DPLossFastGradientClipping(fast, fast_optimizer, nn.CrossEntropyLoss(reduction="mean"))

    def ghost_step() -> None:
        fast_optimizer.zero_grad()
        criterion(fast(rows[0]), rows[1]).backward()
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


def wanted(rows: list[Row]) -> None:
    """One line per target, met or not."""

    def line(what: str, value: float, limit: float, *, most: bool) -> None:
        met = value <= limit if most else value >= limit
        print(f"{'met   ' if met else 'MISSED'} {what}: {value:.2f}, wanted {'≤' if most else '≥'} {limit}")

    for row in rows:
        ours, hooks = row.ratios.get(OURS), row.ratios.get(HOOKS)
        if ours is None or (row.in_a_row > 1 and not row.memory):
            continue
        where = f"{row.model} at {row.batch}"
        if not row.memory and row.batch == 256:
            line(f"{where}, ours / plain", ours, 1.6 if row.model == "MLP" else 1.4, most=True)
            faster = {"MLP": 4.0, "GRU": 2.0, "CNN": 1.3}.get(row.model)
            if hooks is not None and faster is not None:
                line(f"{where}, Opacus hooks / ours", hooks / ours, faster, most=False)
        if row.memory:
            limit = {("ViT", 1024): 1.4, ("ResNet-18-GN", 1024): 2.5}.get((row.model, row.batch))
            if limit is not None:
                line(f"{where}, ours / plain", ours, limit, most=True)
            if (row.model, row.batch) == ("ViT", 1024):
                line(f"{where}, peak memory / plain", row.memory[OURS] / row.memory["plain"], 1.5, most=True)
            for who in (HOOKS, FAST, GHOST):
                if who in row.ratios:
                    line(f"{where}, {who} / ours", row.ratios[who] / ours, 1.0, most=False)
            if HOOKS in row.memory:
                line(f"{where}, peak memory of {HOOKS} / ours", row.memory[HOOKS] / row.memory[OURS], 1.0, most=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument("--models", nargs="+", default=list(CPU_MODELS), choices=sorted(models.MODELS))
    parser.add_argument("--rounds", type=int, help="rounds per row (default: by time)")
    parser.add_argument("--tf32", action="store_true", help="let a card multiply in TF32, as the anchors did")
    parser.add_argument("--markdown", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.tf32:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    device = torch.device(chosen.device)
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

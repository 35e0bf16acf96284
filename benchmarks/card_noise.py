"""How fast is cryptographic noise on a graphics card? ChaCha20 there, beside torch's own generator.

    python benchmarks/card_noise.py [--device cuda]

Needs torch for a card, numpy, scipy and cryptography; triton, which comes with torch for a card, makes the keystream in
one kernel, and without it torch operations make it, many times slower: the first line says which. The keystream on the
card is compared with that of the processor before anything is timed, and so is secure noise: the same integers for the
same key. Times are the median of several runs; secure noise is timed beside the exact sampler of the processor.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from torch import nn

from quietsum.learning.clipping import Flat
from quietsum.learning.noise import chacha, whole
from quietsum.learning.noise.ahead import WholeAhead
from quietsum.learning.noise.gradient_noise import TorchNoise
from quietsum.learning.step import PrivateStep, cross_entropy
from quietsum.mechanisms import system_randomness


def seconds(device: torch.device, run: Callable[[], Any], times: int = 15) -> float:
    """Of one run, when the card is done."""
    taken = []
    for number in range(times + 3):
        wait(device)
        start = time.perf_counter()
        run()
        wait(device)
        if number >= 3:
            taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def check(device: torch.device) -> None:
    key = os.urandom(32)
    if not torch.equal(chacha.words(key, 100_003, device).cpu(), chacha.words(key, 100_003, "cpu")):
        raise SystemExit("the keystream on the device is not that of the processor")
    made = TorchNoise(noise_multiplier=1.0, sensitivity=1.0).draw([torch.zeros(4_000_000, device=device)])[0]
    mean, deviation, beyond = float(made.mean()), float(made.std()), float((made.abs() > 4).double().mean())
    print(
        f"4,000,000 normals: mean {mean:+.5f}, deviation {deviation:.5f}, beyond four {beyond:.2e} (6.33e-05 is right)"
    )
    ends = torch.tensor([-(2**63), 2**63 - 1], device=device).to(torch.float64).mul_(2.0**-63 * (1 - 2.0**-53))
    print(f"the farthest normal: {float(ends.erfinv_().abs().max()) * 2**0.5:.3f} standard deviations")


def check_secure(device: torch.device, count: int = 1_000_003) -> None:
    """The card's integers are those of the exact sampler for the same words, on a fine grid and on a coarse one."""
    print(f"secure noise is drawn {'there' if whole.is_exact(device) else 'ON THE PROCESSOR: see the warning'}")
    for scale in (3.0, 2.0**24, 2.0**34):
        key = os.urandom(32)
        found = whole.CardDraw(scale, count, device, whole._read_zeros, lambda _, key=key: key).finish().cpu()
        right = whole._decide(chacha.words(key, count, device).cpu(), scale, whole._read_zeros)
        if not torch.equal(found, right):
            raise SystemExit(
                f"{int((found != right).sum())} of {count} integers at scale {scale:g} are not the exact ones"
            )
    print(f"{count:,} integers at each of three scales are those of the exact sampler")


def secure(device: torch.device, sizes: list[int]) -> None:
    """Integers of secure noise: by the exact sampler alone, by this machine's threads, and as a step gets them."""
    print(
        f"\n{'integers':>12} {'exact sampler':>15} {'one thread':>13} {'threads':>13} {'a step gets':>13} {'ratio':>7}"
    )
    source, ahead, scale = system_randomness(), WholeAhead(), 2.0**24
    for size in sizes:
        out = torch.empty(size, dtype=torch.int64)
        ways: list[Callable[[], Any]] = [
            lambda size=size: source.rounded_normals(scale, size),
            lambda out=out: whole.fill_whole(out, scale, source),
            lambda size=size: ahead.draw(scale, size),
            lambda size=size: ahead.draw(scale, size) if device.type == "cpu" else ahead.take(scale, size, device),
        ]
        turns = [[seconds(device, way, 1) for way in ways] for _ in range(5)]  # in turn, so that all see the same load
        taken = [statistics.median(one) for one in zip(*turns, strict=True)]
        ratio = statistics.median(one[-1] / one[0] for one in turns)
        print(f"{size:>12,} " + " ".join(f"{1e3 * one:>10.3f} ms" for one in taken) + f" {ratio:>7.3f}")


def throughput(device: torch.device, sizes: list[int]) -> None:
    print(f"\n{'values':>12} {'torch.randn':>12} {'ChaCha20':>12} {'ratio':>6}   of which the keystream   ns a value")
    noise = TorchNoise(noise_multiplier=1.0, sensitivity=1.0)
    for size in sizes:
        like = [torch.zeros(size, device=device)]
        theirs = seconds(device, lambda n=size: torch.randn(n, dtype=torch.float64, device=device))
        ours = seconds(device, lambda like=like: noise._device.draw(like[0].numel(), device, "gaussian"))
        stream = seconds(device, lambda n=size: chacha.words(os.urandom(32), n, device))
        line = f"{size:>12,} {theirs * 1e3:>9.3f} ms {ours * 1e3:>9.3f} ms {ours / theirs:>6.2f}"
        print(f"{line}   {stream * 1e3:>15.3f} ms {ours / size * 1e9:>17.3f}")


class Philox:
    """The noise of before, for comparison alone: torch's generator, seeded with 64 bits."""

    def __init__(self, device: torch.device) -> None:
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(int.from_bytes(os.urandom(8), "little", signed=True))

    def draw(self, count: int, device: torch.device, law: str) -> torch.Tensor:
        """Normals, whatever the law."""
        return torch.randn(count, dtype=torch.float64, device=device, generator=self._generator)


def training(device: torch.device) -> None:
    models: dict[str, tuple[nn.Module, tuple[int, ...], int]] = {
        "convolutions, 0.3 M parameters": (
            nn.Sequential(
                nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                nn.MaxPool2d(4), nn.Flatten(), nn.Linear(64 * 16, 256), nn.ReLU(), nn.Linear(256, 10),
            ), (3, 32, 32), 512,
        ),
        "dense, 35 M parameters": (
            nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 3000),
                          nn.ReLU(), nn.Linear(3000, 10)), (1024,), 512,
        ),
    }  # fmt: skip
    print(f"\n{'a private step':<34} {'Philox':>11} {'ChaCha20':>11} {'ratio':>6} {'secure':>11} {'ratio':>6}")
    for name, (model, shape, rows) in models.items():
        model = model.to(device)
        batch = (torch.randn(rows, *shape, device=device), torch.randint(0, 10, (rows,), device=device))
        step = PrivateStep.build(
            model, cross_entropy, Flat(max_norm=1.0), noise_multiplier=1.0, rate=0.01, expected_batch=float(rows)
        )
        ours = seconds(device, lambda step=step, batch=batch: step.gradient(batch))
        step.mechanism._device = Philox(device)  # type: ignore[assignment]
        theirs = seconds(device, lambda step=step, batch=batch: step.gradient(batch))
        safe = PrivateStep.build(
            model, cross_entropy, Flat(max_norm=1.0), noise_multiplier=1.0, rate=0.01, expected_batch=float(rows),
            mode="secure",
        )  # fmt: skip
        most = seconds(device, lambda step=safe, batch=batch: step.gradient(batch))
        line = f"{name:<34} {theirs * 1e3:>8.2f} ms {ours * 1e3:>8.2f} ms {ours / theirs:>6.2f}"
        print(f"{line} {most * 1e3:>8.2f} ms {most / theirs:>6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", type=int, nargs="*", default=[100_000, 1_000_000, 10_000_000, 100_000_000])
    told = parser.parse_args()
    device = torch.device(told.device if told.device != "cuda" else "cuda:0")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "a processor"
    way = "one kernel in triton" if device.type == "cuda" and chacha._kernel(device) is not None else "torch operations"
    print(f"torch {torch.__version__} on {name}; the keystream by {way}")
    check(device)
    check_secure(device)
    sizes = told.sizes if device.type == "cuda" else [size for size in told.sizes if size <= 1_000_000]
    secure(device, [size for size in sizes if size <= 10_000_000])
    throughput(device, sizes)
    if device.type == "cuda":
        training(device)


if __name__ == "__main__":
    main()

"""What secure aggregation costs: ours beside Flower's SecAgg+ in one run, then a hundred and a thousand parties.

    python benchmarks/secagg.py [--part flower] [--part hundred] [--part thousand] [--repeat 3]

Everything runs in one process, one party after another, so that memory stays that of one vector, and every message is
written to bytes and read from bytes on both sides. Times are seconds of the processor (``process_time``), since the
machine may be busy; of several sessions the median is shown, and the smallest and largest beside it. A party's time is
the median of the parties that stayed to the end. Memory is what the process grew by in the calls of the server, from
the first masked vector on. Drop-outs fall silent after their shares are out, which is the most expensive moment for the
server. Beside each line stands the cost model (:mod:`quietsum.secagg.cost`), with constants measured at the start of
the same run. Sums are compared with the plain sum, to the bit.

Flower's workflow and client mod run as they are, with Flower's protobuf messages (``peers/flower_secagg.py``): both
sides start from float32 and end with floats, over the complete graph with the same threshold.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import argparse
import dataclasses
import importlib.metadata
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quietsum.mechanisms.distributed import DistributedNoise
from quietsum.mechanisms.rng import system_randomness
from quietsum.secagg import Adversary, Identity, Parameters, Party, Server, SessionTerms, Step, choose_parameters, cost
from quietsum.secagg.layout import Layout, NamedVector

Vector = NDArray[np.uint32]
PARTS = ("flower", "hundred", "thousand")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """What one session cost: seconds of the server and of each party that stayed, and bytes of memory.

    ``grown`` is what the process held more after the calls of the server than before them, from the first masked vector
    on: one vector and some messages, if the server adds vectors up as they come.
    """

    server: float
    parties: tuple[float, ...]
    sent: int
    grown: int

    @property
    def party(self) -> float:
        """The median of the parties that stayed."""
        return statistics.median(self.parties)


def graph_of(count: int, dropped: int) -> Parameters:
    """The complete graph, two thirds and one as threshold, against a server that may lie and a tenth of colluders."""
    return Parameters(
        parties=count,
        neighbours=count - 1,
        threshold=2 * count // 3 + 1,
        adversary=Adversary.SEMI_MALICIOUS,
        corrupt=count // 10,
        may_drop=dropped,
    )


def run(
    parameters: Parameters,
    dimension: int,
    *,
    dropped: int,
    vector: Callable[[int], Vector],
    finish: Callable[[Vector, int], None],
) -> Session:
    """One session; ``vector`` is part of a party's time, ``finish`` of the server's."""
    names = [f"site {place:04d}" for place in range(parameters.parties)]
    identities = {name: Identity.fresh() for name in names}
    public = {name: identity.public for name, identity in identities.items()}
    ours = Identity.fresh()
    terms = SessionTerms(
        run="benchmark",
        round=1,
        attempt=0,
        model="0" * 64,
        plan="1" * 64,
        dimension=dimension,
        parameters=parameters,
        floor=parameters.threshold,
    )
    clock = time.process_time
    seconds, sent = dict.fromkeys(names, 0.0), 0
    gone = set(names[:dropped])
    server_seconds = -clock()
    server = Server(terms=terms, identity=ours, identities=public)
    parties = {
        name: Party(name=name, identity=identities[name], server=ours.public, peers=public, terms=terms, remember=False)
        for name in names
    }
    grown = 0
    questions = server.open()
    while questions:
        step = server.step
        assert step is not None
        for place, (name, question) in enumerate(questions.items()):
            if step is Step.MASKED and name in gone:
                continue
            party = parties[name]
            start = clock()
            match step:
                case Step.ADVERTISE:
                    answer = party.advertise(question)
                case Step.SHARE:
                    answer = party.share(question)
                case Step.MASKED:
                    answer = party.mask(question, vector(place))
                case Step.AGREE:
                    answer = party.agree(question)
                case _:
                    answer = party.unmask(question)
            spent = clock() - start
            seconds[name] += spent
            server_seconds -= spent
            sent += len(answer) * (name == names[-1])
            start, before = clock(), resident()
            server_seconds -= clock() - start
            if (reason := server.take(name, answer)) is not None:
                raise RuntimeError(f"{name}: {reason}")
            start = clock()
            grown += (resident() - before) * (step >= Step.MASKED)
            server_seconds -= clock() - start
            del answer
        before = resident()
        questions = server.advance()
        grown += (resident() - before) * (step >= Step.MASKED)
    finish(server.total(), parameters.parties - dropped)
    server_seconds += clock()
    stayed = tuple(seconds[name] for name in names if name not in gone)
    return Session(server=server_seconds, parties=stayed, sent=sent, grown=grown)


def resident() -> int:
    """Bytes of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


# --------------------------------------------------------------------------------------------- what goes in and out


def whole_numbers(dimension: int) -> tuple[Callable[[int], Vector], Callable[[Vector, int], None]]:
    """Integers as they are, and the exact sum."""
    base = np.arange(dimension, dtype=np.uint32) * np.uint32(2654435761)

    def check(total: Vector, count: int) -> None:
        if not np.array_equal(total, base * np.uint32(count)):
            raise RuntimeError("the sum is wrong")

    return lambda place: base, check


def quantised(dimension: int, count: int) -> tuple[Callable[[int], Vector], Callable[[Vector, int], None]]:
    """Floats onto the grid at the party, back to floats at the server."""
    layout = Layout(vectors=(NamedVector(name="update", size=dimension, bound=1.0, scale=2.0**22),), parties=count)
    values = np.linspace(-1, 1, dimension, dtype=np.float32)

    def check(total: Vector, present: int) -> None:
        mean = layout.decode(total)["update"] / present
        if np.abs(mean - values).max() > 2.0**-22:
            raise RuntimeError("the mean is wrong")

    return lambda place: layout.encode({"update": values}), check


def noised(dimension: int, count: int, honest: int) -> tuple[Callable[[int], Vector], Callable[[Vector, int], None]]:
    """Clipped, rounded with its integer norm checked, a share of Skellam noise, then onto the ring."""
    noise = DistributedNoise(
        max_norm=1.0, noise_multiplier=1.0, honest=honest, dimension=dimension, unit="client", parties=count
    )
    bound = noise.largest / noise.scale
    layout = Layout(
        vectors=(NamedVector(name="update", size=dimension, bound=bound, scale=noise.scale),), parties=count
    )
    values = np.full(dimension, 0.9 / np.sqrt(dimension))
    rng = system_randomness()

    def check(total: Vector, present: int) -> None:
        found = noise.decode(layout.sums(total)["update"])
        deviation = float(np.std(found - present * values))
        wanted = np.sqrt(present / honest)
        if not 0.98 * wanted < deviation < 1.02 * wanted:
            raise RuntimeError(f"the noise of the sum is {deviation:.3f} where {wanted:.3f} was asked for")

    return lambda place: layout.pack({"update": noise.share(values, rng)}), check


# ------------------------------------------------------------------------------------------------------- the tables


def spread(values: list[float], form: str = "{:.3f}") -> str:
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{form.format(middle)} ({form.format(low)}–{form.format(high)})"


def beside_flower(repeat: int, machine: cost.Machine) -> list[str]:
    sys.path.insert(0, str(Path(__file__).parent / "peers"))
    import flower_secagg  # type: ignore[import-not-found]

    count, dimension, dropped = 50, 100_000, 5
    parameters = graph_of(count, dropped)
    updates = {place + 1: np.linspace(-1, 1, dimension, dtype=np.float32) for place in range(count)}
    rows: list[tuple[float, float, float, float]] = []
    sent = theirs = 0
    for _ in range(repeat):
        vector, finish = quantised(dimension, count)
        ours = [run(parameters, dimension, dropped=dropped, vector=vector, finish=finish) for _ in range(3)]
        server, parties, theirs, mean = flower_secagg.session(
            updates, dropped=set(range(1, dropped + 1)), threshold=parameters.threshold
        )
        if np.abs(mean - updates[1]).max() > 1e-5:
            raise RuntimeError("Flower's mean is wrong")
        sent = ours[0].sent
        rows.append(
            (
                statistics.median(each.server for each in ours),
                server,
                statistics.median(each.party for each in ours),
                statistics.median(parties),
            )
        )
    price = cost.estimate(parameters, dimension=dimension, drop_outs=dropped, machine=machine)
    ours_server, flower_server, ours_party, flower_party = (list(column) for column in zip(*rows, strict=True))
    servers = [theirs_ / mine for mine, theirs_ in zip(ours_server, flower_server, strict=True)]
    clients = [theirs_ / mine for mine, theirs_ in zip(ours_party, flower_party, strict=True)]
    version = importlib.metadata.version("flwr")
    return [
        f"| 50 × 100k, complete, {dropped} drop-outs | quietsum | model | Flower {version} | ratio |",
        "|---|---|---|---|---|",
        f"| server, CPU seconds | {spread(ours_server)} | {price.server.seconds:.3f} "
        f"| {spread(flower_server, '{:.1f}')} | **{spread(servers, '{:.0f}')}** |",
        f"| party, CPU seconds | {spread(ours_party, '{:.4f}')} | {price.party.seconds:.4f} | {spread(flower_party)} "
        f"| **{spread(clients, '{:.1f}')}** |",
        f"| bytes a party sends | {sent:,} | {_close(price.party.sent, sent)} | {theirs:,} | {theirs / sent:.1f} |",
    ]


def _close(model: int, measured: int) -> str:
    return "the same" if abs(model - measured) <= 16 else f"{model:,}"


def table(title: str, lines: list[tuple[str, list[Session], cost.SessionCost]]) -> list[str]:
    rows = [f"| {title} | server | model | party | model | memory |", "|---|---|---|---|---|---|"]
    for name, sessions, price in lines:
        rows.append(
            f"| {name} | {spread([each.server for each in sessions], '{:.2f}')} | {price.server.seconds:.2f} "
            f"| {spread([each.party for each in sessions])} | {price.party.seconds:.3f} "
            f"| {max(each.grown for each in sessions) / 1e6:.0f} MB |"
        )
    return rows


def hundred(repeat: int, machine: cost.Machine) -> list[str]:
    count, dimension = 100, 1_000_000
    kinds = {
        "integers, 10 drop-outs": (10, whole_numbers(dimension)),
        "with rounding": (10, quantised(dimension, count)),
        "with rounding and noise": (10, noised(dimension, count, honest=80)),
        "integers, no drop-outs": (0, whole_numbers(dimension)),
        "integers, 30 drop-outs": (30, whole_numbers(dimension)),
    }
    lines = []
    for name, (dropped, (vector, finish)) in kinds.items():
        parameters = graph_of(count, dropped)
        sessions = [run(parameters, dimension, dropped=dropped, vector=vector, finish=finish) for _ in range(repeat)]
        noisy = name.endswith("noise")
        price = cost.estimate(parameters, dimension=dimension, drop_outs=dropped, machine=machine, noise=noisy)
        lines.append((name, sessions, price))
    return table("100 × 1M, complete", lines)


def thousand(machine: cost.Machine) -> list[str]:
    count, dimension, dropped = 1000, 1_000_000, 100
    lines = []
    for adversary in (Adversary.SEMI_MALICIOUS,):
        parameters = choose_parameters(count, corrupt=count // 10, drop_outs=0.1, adversary=adversary)
        vector, finish = whole_numbers(dimension)
        session = run(parameters, dimension, dropped=dropped, vector=vector, finish=finish)
        price = cost.estimate(parameters, dimension=dimension, drop_outs=dropped, machine=machine)
        lines.append((f"{adversary}, k = {parameters.neighbours}, t = {parameters.threshold}", [session], price))
    return table("1000 × 1M, sparse, 100 drop-outs", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--part", action="append", choices=PARTS, help="one part alone; may be repeated")
    parser.add_argument("--repeat", type=int, default=3, help="sessions of each kind (one of a thousand parties)")
    options = parser.parse_args()
    machine = cost.measure()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "cryptography"))
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {versions}, load {os.getloadavg()[0]:.1f}")
    words = (f"{field.name} {getattr(machine, field.name) * 1e9:.3g}" for field in dataclasses.fields(machine))
    print(f"measured, nanoseconds: {', '.join(words)}\n")
    work: dict[str, Callable[[], list[str]]] = {
        "flower": lambda: beside_flower(options.repeat, machine),
        "hundred": lambda: hundred(options.repeat, machine),
        "thousand": lambda: thousand(machine),
    }
    for part in options.part or PARTS:
        print("\n".join(work[part]()), end="\n\n", flush=True)


if __name__ == "__main__":
    main()

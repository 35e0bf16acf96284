"""How long are the ways through the package? Files, functions and calls of a round, a private step, a charge, a report.

Each way is traced with ``sys.setprofile`` while it really runs: the rounds of four hospitals (``quietsum run`` on
examples/heart.toml, all parties in one process) and a trainer with a workspace and a tiny torch model. A way begins
where a function of its name is entered, whichever file that stands in, and ends where it returns. Only frames inside
the package count. The second time is counted, so that late imports are done; what an import runs, or a door that looks
up a late name, is left out in any case. A generator that is resumed counts as one more call. An edge leads from one
file to another; code of other libraries in between is passed over.

Then the source as a whole, by its syntax trees: how it is divided, and what the rooms import from each other.

    python benchmarks/ways.py --source ../old/src --source src

traces each source tree in a process of its own and prints one column for each. ``--json`` prints the numbers,
``--files`` the files on each way as well. Counts may differ by a few calls between runs, as rows are drawn at random.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import ast
import contextlib
import dataclasses
import importlib
import io
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))  # the drawing of the rooms reads the same imports

from house import PACKAGE, Source, read_layers, read_source, room_of

# The functions that a way leads through from entry to return, by qualified name; ROOM:NAME where that says too little.
STEP = "a private step"
WAYS = {
    "a round": ["run_round"],
    STEP: ["PrivateTrainer._chunk"],
    "a charge": ["Ledger.reserve", "Ledger.commit"],
    "a report": ["report:build"],
}
MEASURES = ("files", "functions", "calls", "edges")
LATE_NAMES = ("__getattr__", "open_door.<locals>.find")  # of a module, of a door: they look up a late name
WHICH = 2  # the second time that a way is taken, when everything is loaded


# ------------------------------------------------------------------------------------------------------- tracing


@dataclasses.dataclass(kw_only=True)
class Way:
    """What was met between the entry of one function and its return."""

    calls: int = 0
    functions: set[CodeType] = dataclasses.field(default_factory=set)
    files: Counter[str] = dataclasses.field(default_factory=Counter)
    edges: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)

    def numbers(self) -> dict[str, int]:
        """The measures by name."""
        counts = (len(self.files), len(self.functions), self.calls, len(self.edges))
        return dict(zip(MEASURES, counts, strict=True))


class Tracer:
    """A profile function that follows each wanted function the second time it is entered."""

    def __init__(self, package: Path, wanted: dict[str, list[str]]) -> None:
        self._inside = str(package) + os.sep
        self._wanted = {name: way for way, names in wanted.items() for name in names}
        self._entered: Counter[str] = Counter()
        self._open: dict[str, FrameType] = {}  # the wanted functions that are running, each by its outermost frame
        self._skipping: FrameType | None = None  # an import, or a door that looks for a late name
        self.ways: dict[str, Way] = {}

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:  # noqa: D102
        if event == "return":
            if frame is self._skipping:
                self._skipping = None
            for name in [name for name, first in self._open.items() if first is frame]:
                del self._open[name]
        elif event == "call" and self._skipping is None and frame.f_code.co_filename.startswith(self._inside):
            self._enter(frame, frame.f_code)

    def _enter(self, frame: FrameType, code: CodeType) -> None:
        name, qualified = code.co_name, code.co_qualname
        if name == "<module>" or qualified in LATE_NAMES:
            self._skipping = frame
            return
        room = code.co_filename.removeprefix(self._inside).split(os.sep)[0].removesuffix(".py")
        for known in (qualified, f"{room}:{qualified}"):
            if known in self._wanted and known not in self._open:
                self._open[known] = frame
                self._entered[known] += 1
        firsts: dict[str, list[FrameType]] = {}
        for known, first in self._open.items():
            if self._entered[known] == WHICH:
                firsts.setdefault(self._wanted[known], []).append(first)
        for way, begun in firsts.items():
            self._count(self.ways.setdefault(way, Way()), frame, code, begins=frame in begun)

    def _count(self, way: Way, frame: FrameType, code: CodeType, *, begins: bool) -> None:
        here = code.co_filename.removeprefix(self._inside)
        way.calls += 1
        way.files[here] += 1
        if not code.co_name.startswith("<"):  # comprehensions and lambdas are part of the function around them
            way.functions.add(code)
        if begins:  # who calls it is not on the way
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(self._inside):
            caller = caller.f_back
        if caller is not None and (there := caller.f_code.co_filename.removeprefix(self._inside)) != here:
            way.edges[there, here] += 1

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Follow what the block does."""
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)


def command(*arguments: str) -> None:
    """Run a command of the package in this process, without its output."""
    main = importlib.import_module(f"{PACKAGE}.cli").main
    before, sys.argv = sys.argv, [PACKAGE, *arguments]
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            main()
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"{PACKAGE} {' '.join(arguments)} ended with {ended.code}: {told.getvalue()}") from None
    finally:
        sys.argv = before


def federate(folder: Path) -> None:
    """Four hospitals, three rounds; then one look at the run, whose report is then built a second time."""
    plan = (ROOT / "examples" / "heart.toml").read_text(encoding="utf-8").replace("rounds = 20", "rounds = 3")
    (folder / "run.toml").write_text(plan, encoding="utf-8")
    workspace = str(folder / "workspace")
    command("run", str(folder / "run.toml"), "--workspace", workspace)
    command("show", "latest", "--workspace", workspace)
    command("show", "latest", "--workspace", workspace)


def train(folder: Path) -> None:
    """Three epochs of one step each, charged to a ledger."""
    import torch

    learning = importlib.import_module(f"{PACKAGE}.learning")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    records = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randint(2, (32,)))
    config = learning.PrivacyConfig(noise_multiplier=2.0, delta=1e-3, epochs=3, batch_size=32)
    trainer = learning.PrivateTrainer(model, config, workspace=folder / "training", checkpoint_every=1)
    trainer.train(records)


def trace(source: Path, ways: dict[str, list[str]]) -> dict[str, Any]:
    """Every way through the package in ``source``, which is the one that this process imports."""
    package = Path(str(importlib.import_module(PACKAGE).__file__)).resolve().parent
    if package != source / PACKAGE:
        raise SystemExit(f"{package} was imported instead of {source / PACKAGE}")
    found: dict[str, Way] = {}
    jobs: list[tuple[Callable[[Path], None], set[str]]] = [(federate, ways.keys() - {STEP}), (train, {STEP})]
    for job, mine in jobs:
        tracer = Tracer(package, {way: ways[way] for way in mine})
        with tempfile.TemporaryDirectory() as folder, tracer.following():
            job(Path(folder))
        for way in sorted(mine - tracer.ways.keys()):
            print(f"{way}: no function named {' or '.join(ways[way])} was entered twice", file=sys.stderr)
        found |= tracer.ways
    return {way: {**found[way].numbers(), "which": sorted(found[way].files)} for way in ways if way in found}


# ------------------------------------------------------------------------------------------------------- the source


def survey(folder: Path) -> dict[str, int]:
    """How the source is divided, and what its rooms import from each other."""
    source = read_source(folder)
    folders = Counter(str(path.parent) for path in (folder / PACKAGE).rglob("*.py"))
    between = {
        one
        for one in source.imports
        if room_of(one.importer) and room_of(one.target) and room_of(one.importer) != room_of(one.target)
    }
    inside = {
        (one.importer, one.target)
        for one in source.imports
        if room_of(one.importer) and room_of(one.importer) == room_of(one.target)
    }
    return {
        "modules": len(source.trees),
        "folders": len(folders),
        "most modules in a folder": max(folders.values()),
        "rooms": len(source.rooms),
        "imports inside rooms": len(inside),
        "imports between rooms": sum(source.between_rooms().values()),
        "of these against the layers": against_layers(source, folder.parent / "pyproject.toml"),
        "of these past a door": len(past_doors(source)),
        "names that cross rooms": len({(source.see_through(i.target, i.name), i.name) for i in between if i.name}),
        "modules with one importer": sum(count == 1 for count in importers(source).values()),
        "modules with no importer": sum(count == 0 for count in importers(source).values()),
        "isinstance about Protocols": asked_of_protocols(source),
    }


def against_layers(source: Source, pyproject: Path) -> int:
    """Imports from a lower room to a higher one, or between rooms of a layer that are independent of each other."""
    layers = read_layers(pyproject)
    rank = {room: number for number, (rooms, _) in enumerate(layers) for room in rooms}
    apart = {room for rooms, independent in layers if independent for room in rooms}
    return sum(
        count
        for (importer, target), count in source.between_rooms().items()
        if rank[importer] > rank[target] or (rank[importer] == rank[target] and importer in apart)
    )


def past_doors(source: Source) -> set[tuple[str, str]]:
    """Imports of another room's inner modules. A module that the door itself lists in ``__all__`` is no inner one."""
    found = set()
    for one in source.imports:
        importer, room = room_of(one.importer), room_of(one.target)
        door = f"{PACKAGE}.{room}"
        if importer and room and importer != room and one.target != door:
            inner = one.target.removeprefix(f"{door}.")
            if one.name or not source.offers(door, inner):
                found.add((one.importer, one.target))
    return found


def importers(source: Source) -> dict[str, int]:
    """How many modules use each module that is no door. Doors are seen through, and are not counted as users."""
    users: dict[str, set[str]] = {name: set() for name in source.trees if name not in source.packages}
    for one in source.imports:
        target = source.see_through(one.target, one.name)
        if target in users and one.importer not in source.packages:
            users[target].add(one.importer)
    return {name: len(found) for name, found in users.items() if not name.endswith("__main__")}


def asked_of_protocols(source: Source) -> int:
    """Calls of isinstance whose classes include a Protocol of the package."""
    protocols = {
        (name, node.name)
        for name, tree in source.trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(_last(base) == "Protocol" for base in node.bases)
    }
    names = {name for _, name in protocols}
    count = 0
    for module, tree in source.trees.items():
        origin = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.module in source.trees:
                for alias in node.names:
                    origin[alias.asname or alias.name] = (source.see_through(node.module, alias.name), alias.name)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _last(node.func) == "isinstance" and len(node.args) == 2:
                asked = [part for part in ast.walk(node.args[1]) if isinstance(part, ast.Name | ast.Attribute)]
                count += any(
                    origin.get(part.id, (module, part.id)) in protocols if isinstance(part, ast.Name)
                    else part.attr in names
                    for part in asked
                )  # fmt: skip
    return count


def _last(node: ast.expr) -> str:
    """The last name of ``a.b`` or ``b[c]``."""
    if isinstance(node, ast.Subscript):
        return _last(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


# ------------------------------------------------------------------------------------------------------- printing


def measure(source: Path, step: str | None) -> dict[str, Any]:
    """Both halves, the traced one in a process that imports the package from ``source``."""
    traced = subprocess.run(
        [sys.executable, __file__, "--source", str(source), "--trace", *(["--step", step] if step else [])],
        env={**os.environ, "PYTHONPATH": str(source)}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return {"ways": json.loads(traced.stdout), "source": survey(source)}


def table(found: dict[str, dict[str, Any]]) -> str:
    """One row a number, one column a source tree, as Markdown."""
    lines = [f"| | {' | '.join(found)} |", f"|---|{'--:|' * len(found)}"]
    for way in WAYS:
        for name in MEASURES:
            counts = [one["ways"].get(way, {}).get(name, "–") for one in found.values()]
            lines.append(f"| {way}: {name} | {' | '.join(f'{n:,}' if isinstance(n, int) else n for n in counts)} |")
    for name in next(iter(found.values()))["source"]:
        lines.append(f"| {name} | {' | '.join(format(one['source'][name], ',') for one in found.values())} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--source", type=Path, action="append", help="a src folder; may be given more than once")
    parser.add_argument("--step", metavar="NAME", help=f"the function that is {STEP}, where it is not {WAYS[STEP][0]}")
    parser.add_argument("--json", action="store_true", help="print the numbers and the files on each way as JSON")
    parser.add_argument("--files", action="store_true", help="print the files on each way below the table")
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)  # what the inner process does
    arguments = parser.parse_args()
    sources = [source.resolve() for source in arguments.source or [ROOT / "src"]]
    if arguments.trace:
        ways = {**WAYS, STEP: [arguments.step or WAYS[STEP][0]]}
        print(json.dumps(trace(sources[0], ways)))
        return
    found = {os.path.relpath(source): measure(source, arguments.step) for source in sources}
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    print(table(found))
    if arguments.files:
        for source, one in found.items():
            for way, numbers in one["ways"].items():
                print(f"\n{source}, {way}:\n  " + "\n  ".join(numbers["which"]))


if __name__ == "__main__":
    main()

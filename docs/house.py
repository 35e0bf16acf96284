"""Draw the rooms of the package and who leans on whom: ``docs/_static/house.svg`` and the table in architecture.md.

``python docs/house.py`` writes both; ``python docs/house.py --check`` writes nothing and exits with 1 where one of them
is not what the source gives. The layers are those of import-linter in ``pyproject.toml``; the imports are read from the
syntax trees, late imports and imports for types included, and nothing of the package is run.

A *room* is a sub-package or module directly inside the package. Its *door* is its ``__init__``. An import is counted
once for each pair of an importing module and an imported module. The drawing leaves out a line where a path of other
lines leads to the same room; the table and the numbers in the boxes count every import.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import html
import itertools
import math
import re
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "quietsum"
BEGIN, END = "<!-- rooms -->", "<!-- /rooms -->"


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Import:
    """One import inside the package: the module that imports, the module it names, and the name it takes, if any."""

    importer: str
    target: str
    name: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The syntax trees of a package by module name, with its imports of itself."""

    trees: Mapping[str, ast.Module]
    packages: frozenset[str]
    imports: tuple[Import, ...]

    def see_through(self, module: str, name: str) -> str:
        """The module that defines ``name`` where ``module`` only passes it on, as a door does."""
        seen = set()
        while name and module in self.packages and (module, name) not in seen:
            seen.add((module, name))
            behind = self._passed_on.get(module, {}).get(name)
            if behind is None:
                break
            module, name = behind
        return module

    @functools.cached_property
    def _passed_on(self) -> dict[str, dict[str, tuple[str, str]]]:
        """For each door, where its names come from: the module, and the name there."""
        found: dict[str, dict[str, tuple[str, str]]] = {}
        for door in self.packages:
            for node in ast.walk(self.trees[door]):
                if isinstance(node, ast.ImportFrom) and node.module is not None and node.module in self.trees:
                    names = {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
                    found.setdefault(door, {}).update(names)
        return found

    def offers(self, door: str, name: str) -> bool:
        """Whether the ``__all__`` of ``door`` lists ``name``."""
        for statement in self.trees[door].body:
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                value = getattr(statement, "value", None)
                listed = value.elts if isinstance(value, ast.List | ast.Tuple) else []
                return any(isinstance(item, ast.Constant) and item.value == name for item in listed)
        return False

    @property
    def rooms(self) -> dict[str, list[str]]:
        """The modules of each room."""
        found: dict[str, list[str]] = {}
        for name in sorted(self.trees):
            if room := room_of(name):
                found.setdefault(room, []).append(name)
        return found

    def between_rooms(self) -> Counter[tuple[str, str]]:
        """How many pairs of modules import each other from one room to another."""
        pairs = set()
        for one in self.imports:
            target = one.target if room_of(one.target) else self.see_through(one.target, one.name)
            if room_of(one.importer) and room_of(target) and room_of(one.importer) != room_of(target):
                pairs.add((one.importer, target))
        return Counter((room_of(importer), room_of(target)) for importer, target in pairs)


def room_of(module: str) -> str:
    """The room of a module; "" for the front door and ``__main__``.

    >>> room_of("quietsum.privacy.units"), room_of("quietsum.errors"), room_of("quietsum")
    ('privacy', 'errors', '')
    """
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else ""


def read_source(folder: Path, package: str = PACKAGE) -> Source:
    """Parse every module of ``package`` below ``folder``."""
    trees, packages = {}, set()
    for path in sorted((folder / package).rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        if parts[-1] == "__init__":
            packages.add(name)
    imports = {one for name, tree in trees.items() for one in _imports(name, tree, name in packages, trees, package)}
    return Source(trees=trees, packages=frozenset(packages), imports=tuple(sorted(imports)))


def _imports(
    name: str, tree: ast.Module, door: bool, known: Mapping[str, ast.Module], package: str
) -> Iterable[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == package and alias.name in known:
                    yield Import(importer=name, target=alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                above = parts[: len(parts) - node.level + door]
                base = ".".join([*above, *([base] if base else [])])
            if base not in known:
                continue
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                if inner in known:
                    yield Import(importer=name, target=inner)
                else:
                    yield Import(importer=name, target=base, name=alias.name)


def read_layers(pyproject: Path) -> list[tuple[tuple[str, ...], bool]]:
    """The layers of the package, the highest first: its rooms, and whether they may not lean on each other."""
    contracts = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(
        contract["layers"] for contract in contracts
        if contract["type"] == "layers" and contract.get("containers", [PACKAGE]) == [PACKAGE]
    )  # fmt: skip
    found = []
    for layer in layers:
        names = tuple(name.strip(" ()").removeprefix(f"{PACKAGE}.") for name in re.split(r"[|:]", layer))
        found.append((names, "|" in layer))
    return found


def first_sentence(tree: ast.Module) -> str:
    """The first sentence of a module's docstring, without markup.

    >>> first_sentence(ast.parse("'''What an event costs: :mod:`~a.events`, ``x``. More.'''"))
    'What an event costs: events, x.'
    """
    paragraph = " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())
    paragraph = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", paragraph).replace("``", "")
    found = re.match(r".+?[.?!](?=\s|$)", paragraph)
    return found.group() if found else paragraph


@dataclasses.dataclass(frozen=True, kw_only=True)
class House:
    """Everything that is drawn: rooms by layer, their sizes and sentences, and the imports between them."""

    layers: tuple[tuple[str, ...], ...]
    modules: Mapping[str, int]
    sentences: Mapping[str, str]
    imports: Mapping[tuple[str, str], int]

    @classmethod
    def read(cls, root: Path = ROOT) -> House:
        """The house as source and contract say. A room without a layer is an error."""
        source = read_source(root / "src")
        rooms = source.rooms
        layers = [tuple(name for name in names if name in rooms) for names, _ in read_layers(root / "pyproject.toml")]
        placed = {name for names in layers for name in names}
        if missing := sorted(rooms.keys() - placed):
            raise SystemExit(f"no layer in pyproject.toml holds: {', '.join(missing)}")
        return cls(
            layers=tuple(names for names in layers if names),
            modules={room: len(names) for room, names in rooms.items()},
            sentences={room: first_sentence(source.trees[f"{PACKAGE}.{room}"]) for room in rooms},
            imports=dict(source.between_rooms()),
        )

    def leans_on(self, room: str) -> list[tuple[str, int]]:
        """The rooms that ``room`` imports from, most imports first, without the lowest, which all lean on."""
        pairs = [(target, count) for (importer, target), count in self.imports.items() if importer == room]
        found = [(target, count) for target, count in pairs if target not in self.layers[-1]]
        return sorted(found, key=lambda one: (-one[1], one[0]))

    def is_used_by(self, room: str) -> tuple[int, int]:
        """How many rooms import from ``room``, and how often."""
        counts = [count for (_, target), count in self.imports.items() if target == room]
        return len(counts), sum(counts)

    def lines(self) -> dict[tuple[str, str], int]:
        """The imports that are drawn: those that no path over other rooms stands for."""
        after: dict[str, set[str]] = {}
        for importer, target in self.imports:
            after.setdefault(importer, set()).add(target)
        rank = {room: number for number, names in enumerate(self.layers) for room in names}

        def reaches(start: str, end: str) -> bool:
            todo, seen = [room for room in after.get(start, ()) if room != end], set()
            while todo:
                room = todo.pop()
                if room == end:
                    return True
                if room not in seen and rank[room] > rank[start]:
                    seen.add(room)
                    todo += after.get(room, ())
            return False

        return {pair: self.imports[pair] for pair in sorted(self.imports) if not reaches(*pair)}


# ------------------------------------------------------------------------------------------------------- table


def table(house: House) -> str:
    """The rooms as Markdown, the highest layer first."""
    lines = ["| layer | room | modules | what it is for | leans most on |", "|--:|---|--:|---|---|"]
    for number, names in enumerate(reversed(house.layers), 1):
        for room in names:
            found = house.leans_on(room)
            most = ", ".join(f"`{name}`" for name, _ in found[:3]) or "–"
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            sentence = house.sentences[room].replace("|", "\\|")
            lines.append(f"| {number} | `{room}` | {house.modules[room]} | {sentence} | {most}{more} |")
    return "\n".join([*lines[:2], *reversed(lines[2:])])


def with_table(text: str, house: House) -> str:
    """``text`` with the table between its two markers."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table(house)}\n\n{END}{after}"


# ------------------------------------------------------------------------------------------------------- drawing

_WIDTH, _BOX, _HEIGHT, _GAP, _PITCH, _TOP, _PER_ROW, _LANE = 760, 244, 60, 20, 86, 80, 2, 12
_LETTERS = 33  # of a line in a box

_STYLE = """
svg { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
.ground { fill: #ffffff; } .band { fill: #f1f4f8; } .box { fill: #ffffff; stroke: #33415c; stroke-width: 1.2; }
.name { fill: #14213d; font-size: 14px; font-weight: 600; } .small { fill: #43506b; font-size: 12px; }
.title { fill: #14213d; font-size: 16px; font-weight: 600; }
.line { fill: none; stroke: #0072b2; stroke-opacity: .75; } .tip { fill: #0072b2; }
@media (prefers-color-scheme: dark) {
.ground { fill: #12161c; } .band { fill: #1b222c; } .box { fill: #12161c; stroke: #9fb0cc; }
.name, .title { fill: #eef2f8; } .small { fill: #b9c4d6; }
.line { stroke: #56b4e9; } .tip { fill: #56b4e9; }
}
""".strip()


@dataclasses.dataclass(kw_only=True)
class _Node:
    """A box, or a place where a long line passes a row."""

    room: str = ""
    x: float = 0.0

    @property
    def width(self) -> float:
        return _BOX if self.room else _LANE


def _rows(house: House) -> tuple[list[list[_Node]], list[int]]:
    """The rows from top to bottom, at most two boxes each, and the layer of each row."""
    rows, layer_of = [], []
    for number, names in enumerate(house.layers):
        count = -(-len(names) // _PER_ROW)
        each = -(-len(names) // count)
        for first in range(0, len(names), each):
            rows.append([_Node(room=room) for room in names[first : first + each]])
            layer_of.append(number)
    return rows, layer_of


def _chains(rows: list[list[_Node]], lines: Iterable[tuple[str, str]]) -> dict[tuple[str, str], list[_Node]]:
    """The nodes that each line runs through; a lane is put into every row that it passes."""
    place = {node.room: (number, node) for number, row in enumerate(rows) for node in row}
    chains = {}
    for importer, target in lines:
        (top, first), (bottom, last) = place[importer], place[target]
        lanes = [_Node() for _ in range(top + 1, bottom)]
        for number, lane in enumerate(lanes, top + 1):
            rows[number].append(lane)
        chains[importer, target] = [first, *lanes, last]
    return chains


def _spread(row: list[_Node], wanted: Sequence[float]) -> None:
    """Give the nodes of a row their x, near the wanted ones, without overlap and within the drawing."""
    gaps = [_GAP if left.room and right.room else 8 for left, right in itertools.pairwise(row)]
    for node, x in zip(row, wanted, strict=True):
        node.x = x
    for _ in range(60):
        for left, right, gap in zip(row, row[1:], gaps, strict=False):
            if (short := (left.width + right.width) / 2 + gap - (right.x - left.x)) > 0:
                left.x, right.x = left.x - short / 2, right.x + short / 2
        for node in row:
            node.x = min(max(node.x, 16 + node.width / 2), _WIDTH - 16 - node.width / 2)


def _arrange(rows: list[list[_Node]], chains: Iterable[Sequence[_Node]]) -> None:
    """Order each row by where its neighbours are, a few times down and up, so that few lines cross."""
    above: dict[int, list[_Node]] = {}
    below: dict[int, list[_Node]] = {}
    for chain in chains:
        for upper, lower in itertools.pairwise(chain):
            below.setdefault(id(upper), []).append(lower)
            above.setdefault(id(lower), []).append(upper)
    for row in rows:
        step = (_WIDTH - 32) / len(row)
        _spread(row, [16 + step * (index + 0.5) for index in range(len(row))])
    for sweep in range(24):
        near = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            goal = {}
            for node in row:
                found = [other.x for other in near.get(id(node), ())] if sweep < 20 else [
                    other.x for other in (*above.get(id(node), ()), *below.get(id(node), ()))
                ]  # fmt: skip
                goal[id(node)] = sum(found) / len(found) if found else node.x
            row.sort(key=lambda node: goal[id(node)])
            _spread(row, [goal[id(node)] for node in row])


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _width_of(count: int) -> float:
    """How wide a line is: by the square root, so that forty imports do not hide one."""
    return min(0.8 + 0.55 * math.sqrt(count), 6.0)


def _path(chain: Sequence[_Node], rows: Mapping[int, int], ends: tuple[float, float]) -> str:
    """A smooth line from the foot of the first box to just above the last one."""
    y: list[float] = [_TOP + rows[id(node)] * _PITCH for node in chain]
    points = [(ends[0], y[0] + _HEIGHT)]
    for node, top in zip(chain[1:-1], y[1:-1], strict=True):
        points += [(node.x, top - 2.0), (node.x, top + _HEIGHT + 2.0)]
    points.append((ends[1], y[-1] - 7.0))
    found = [f"M{_number(points[0][0])} {_number(points[0][1])}"]
    for (x, top), (to_x, to_y) in itertools.pairwise(points):
        if x == to_x:
            found.append(f"V{_number(to_y)}")
        else:
            middle = _number((top + to_y) / 2)
            found.append(f"C{_number(x)} {middle} {_number(to_x)} {middle} {_number(to_x)} {_number(to_y)}")
    return "".join(found)


def svg(house: House) -> str:
    """The drawing: the same text for the same house."""
    rows, layer_of = _rows(house)
    drawn = house.lines()
    place = {node.room: number for number, row in enumerate(rows) for node in row}
    downward = {pair: count for pair, count in drawn.items() if place[pair[0]] < place[pair[1]]}
    chains = _chains(rows, downward)
    _arrange(rows, chains.values())
    row_of = {id(node): number for number, row in enumerate(rows) for node in row}
    height = _TOP + len(rows) * _PITCH + 48
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'aria-labelledby="house-title house-about">',
        '<title id="house-title">The rooms of quietsum and who leans on whom</title>',
        '<desc id="house-about">Rooms in layers, the commands at the top and the errors at the bottom. '
        "Lines run from a room down to the rooms it imports from.</desc>",
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="ground" width="{_WIDTH}" height="{height}"/>',
        '<text class="title" x="16" y="28">Rooms lean downwards only</text>',
        '<text class="small" x="16" y="48">A line runs from a room to one that it imports from, and is wider for more '
        "imports.</text>",
        '<text class="small" x="16" y="64">It is left out where a path of other lines leads to the same room.</text>',
    ]
    for number in range(len(house.layers)):
        mine = [row for row, layer in enumerate(layer_of) if layer == number]
        top, bottom = _TOP + mine[0] * _PITCH - 6, _TOP + mine[-1] * _PITCH + _HEIGHT + 6
        parts.append(f'<rect class="band" x="6" y="{top}" width="{_WIDTH - 12}" height="{bottom - top}" rx="6"/>')
    starts, ends = _ends(chains, downward)
    for pair, count in sorted(downward.items(), key=lambda one: (-one[1], one[0])):
        path = _path(chains[pair], row_of, (starts[pair], ends[pair]))
        x, y = ends[pair], _TOP + place[pair[1]] * _PITCH
        words = f"{pair[0]} imports from {pair[1]}: {count}"
        parts.append(
            f'<g><title>{words}</title><path class="line" stroke-width="{_number(_width_of(count))}" d="{path}"/>'
            f'<path class="tip" d="M{_number(x - 4.5)} {y - 9}L{_number(x + 4.5)} {y - 9}L{_number(x)} {y - 1}Z"/></g>'
        )
    for number, row in enumerate(rows):
        for node in sorted((node for node in row if node.room), key=lambda node: node.x):
            parts += _box(house, node, _TOP + number * _PITCH)
    y = height - 36
    parts.append(f'<text class="small" x="16" y="{y + 4}">imports:</text>')
    for index, count in enumerate((1, 10, 40)):
        x = 76 + index * 84
        parts.append(f'<path class="line" stroke-width="{_number(_width_of(count))}" d="M{x} {y}H{x + 34}"/>')
        parts.append(f'<text class="small" x="{x + 42}" y="{y + 4}">{count}</text>')
    parts.append(f'<text class="small" x="330" y="{y + 4}">A grey band is one layer.</text>')
    beside = [f"{one} imports from {two} ({drawn[one, two]})" for one, two in sorted(set(drawn) - set(downward))]
    if beside:
        words = html.escape(f"Inside a layer: {', '.join(beside)}.")
        parts.append(f'<text class="small" x="16" y="{y + 22}">{words}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _ends(
    chains: Mapping[tuple[str, str], Sequence[_Node]], pairs: Iterable[tuple[str, str]]
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """Where each line leaves its box and where it meets the other: side by side, in the order of where they go."""
    found: tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]] = ({}, {})
    for side, at, other in ((0, 0, 1), (1, -1, -2)):
        by_box: dict[int, list[tuple[str, str]]] = {}
        for pair in pairs:
            by_box.setdefault(id(chains[pair][at]), []).append(pair)
        for mine in by_box.values():
            mine.sort(key=lambda pair: (chains[pair][other].x, pair))
            step = min(30.0, (_BOX - 40) / len(mine))
            for index, pair in enumerate(mine):
                found[side][pair] = chains[pair][at].x + (index - (len(mine) - 1) / 2) * step
    return found


def _without(room: str, sentence: str) -> str:
    """``sentence`` without a first word that only repeats the room's name.

    >>> _without("tradeoff", "Trade-off: what privacy costs in score.")
    'What privacy costs in score.'
    """
    first, colon, rest = sentence.partition(": ")
    same = first.lower().removeprefix("the ").replace("-", "") == room
    return rest[0].upper() + rest[1:] if colon and same else sentence


def _box(house: House, node: _Node, top: float) -> list[str]:
    left, room = node.x - _BOX / 2, node.room
    count = house.modules[room]
    rooms, imports = house.is_used_by(room)
    sentence = house.sentences[room]
    wrapped = textwrap.wrap(_without(room, sentence), _LETTERS)
    if len(wrapped) > 2:
        second = textwrap.shorten(" ".join(wrapped[1:]), _LETTERS, placeholder="\n")
        wrapped = [wrapped[0], second.rstrip(",;:\n") + " …"]
    words = f"{room}: {sentence} {imports} imports from {rooms} rooms lead here."
    size = f"{count} module" + ("" if count == 1 else "s")
    parts = [
        f"<g><title>{html.escape(words)}</title>"
        f'<rect class="box" x="{_number(left)}" y="{top}" width="{_BOX}" height="{_HEIGHT}" rx="5"/>',
        f'<text class="name" x="{_number(left + 10)}" y="{top + 19}">{room}</text>',
        f'<text class="small" x="{_number(left + _BOX - 10)}" y="{top + 19}" text-anchor="end">{size}</text>',
    ]
    for index, line in enumerate(wrapped):
        text = html.escape(line, quote=False)
        parts.append(f'<text class="small" x="{_number(left + 10)}" y="{top + 36 + 14 * index}">{text}</text>')
    return [*parts, "</g>"]


# ------------------------------------------------------------------------------------------------------- files


def wanted(root: Path = ROOT) -> dict[Path, str]:
    """What the two files should hold."""
    house, page = House.read(root), root / "docs" / "architecture.md"
    return {
        root / "docs" / "_static" / "house.svg": svg(house),
        page: with_table(page.read_text(encoding="utf-8"), house),
    }


def stale(root: Path = ROOT) -> list[Path]:
    """The files that are not what the source gives."""
    return [
        path
        for path, text in wanted(root).items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write the files, or check them; the exit code."""
    parser = argparse.ArgumentParser(description="Draw the rooms of the package and who leans on whom.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a file is out of date")
    if parser.parse_args(arguments).check:
        for path in (found := stale(root)):
            print(f"{path.relative_to(root)} is not what the source gives; run python docs/house.py", file=sys.stderr)
        return 1 if found else 0
    for path, text in wanted(root).items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

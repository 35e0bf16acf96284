"""Draw the way of a round and the way of a charge: ``docs/_static/round.svg`` and ``charge.svg``.

``python docs/flows.py`` writes both; ``python docs/flows.py --check`` writes nothing and exits with 1 where one of them
is out of date. A flow is a value: who takes part, and one line for each thing that is said or done, from top to bottom.
The pictures follow the reader's light or dark scheme, and say in words what they show.
"""

from __future__ import annotations

import dataclasses
import html
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "_static"
WIDTH, TOP, LINE, SIDE = 860, 96, 44, 90
STYLE = """
    .paper { fill: #ffffff; } .head { fill: #ddf4ff; stroke: #0969da; } .mark { fill: #0969da; }
    text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f; }
    .title { font-size: 17px; font-weight: 600; } .who { font-weight: 600; } .number { fill: #ffffff; font-size: 12px; }
    .life { stroke: #d0d7de; stroke-dasharray: 3 4; } .arrow { stroke: #57606a; stroke-width: 1.5; fill: none; }
    .tip { fill: #57606a; } .back { fill: #ffffff; opacity: 0.85; }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117; } .head { fill: #0c2d6b; stroke: #58a6ff; } .mark { fill: #1f6feb; }
      text { fill: #e6edf3; } .number { fill: #ffffff; } .life { stroke: #3d444d; } .arrow { stroke: #9198a1; }
      .tip { fill: #9198a1; } .back { fill: #0d1117; }
    }
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """Something that ``source`` says to ``target``, or does by itself if both are one."""

    source: str
    target: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flow:
    """A picture: its title, who takes part from left to right, and the steps from top to bottom."""

    name: str
    title: str
    lanes: tuple[str, ...]
    steps: tuple[Step, ...]


def _steps(*lines: tuple[str, str, str]) -> tuple[Step, ...]:
    return tuple(Step(source=source, target=target, text=text) for source, target, text in lines)


FLOWS = (
    Flow(
        name="round", title="One round: spend first, release after", lanes=("ledger", "coordinator", "parties"),
        steps=_steps(
            ("coordinator", "ledger", "reserve the charge of every registered party"),
            ("ledger", "ledger", "on disk, or BudgetExhausted: the round ends here"),
            ("coordinator", "coordinator", "draw the cohort"),
            ("coordinator", "parties", "request: round, attempt, model"),
            ("parties", "parties", "own policy, own ledger: reserve, or refuse"),
            ("parties", "parties", "draw records, clip each, add noise"),
            ("parties", "coordinator", "update, masked if the plan says so"),
            ("coordinator", "ledger", "commit what was reserved, never less"),
            ("coordinator", "coordinator", "unmask, or noise, or judge; then step"),
            ("coordinator", "parties", "next model; checkpoint and watchers"),
        ),
    ),
    Flow(
        name="charge", title="One charge: events first, ε last",
        lanes=("mechanism", "sampling", "plan", "ledger", "accountant"),
        steps=_steps(
            ("mechanism", "sampling", "event of its noise"),
            ("sampling", "plan", "amplified by its draw"),
            ("plan", "ledger", "charge: unit, event"),
            ("ledger", "accountant", "all events so far"),
            ("accountant", "ledger", "ε at the budget's δ"),
            ("ledger", "ledger", "within run and lifetime? else refuse"),
            ("ledger", "ledger", "chain, sign, write"),
            ("ledger", "plan", "receipt: it may begin"),
        ),
    ),
)  # fmt: skip


def svg(flow: Flow) -> str:
    """``flow`` as one SVG that needs nothing from outside."""
    gap = (WIDTH - 2 * SIDE) / (len(flow.lanes) - 1)
    at = {lane: SIDE + gap * place for place, lane in enumerate(flow.lanes)}
    height = TOP + LINE * len(flow.steps) + 40
    about = "; ".join(f"{number}. {_sentence(step)}" for number, step in enumerate(flow.steps, 1))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-labelledby="{flow.name}-title {flow.name}-about">',
        f'  <title id="{flow.name}-title">{html.escape(flow.title)}</title>',
        f'  <desc id="{flow.name}-about">{html.escape(about)}</desc>',
        f"  <style>{STYLE}  </style>",
        f'  <rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>',
        f'  <text class="title" x="24" y="32">{html.escape(flow.title)}</text>',
    ]
    for lane, x in at.items():
        parts += [
            f'  <line class="life" x1="{x:.0f}" x2="{x:.0f}" y1="76" y2="{height - 20}"/>',
            f'  <rect class="head" x="{x - 58:.0f}" y="50" width="116" height="28" rx="6"/>',
            f'  <text class="who" x="{x:.0f}" y="69" text-anchor="middle">{html.escape(lane)}</text>',
        ]
    for number, step in enumerate(flow.steps, 1):
        parts += _draw(step, number, at, TOP + LINE * number - 16)
    return "\n".join([*parts, "</svg>", ""])


def _sentence(step: Step) -> str:
    return (
        f"{step.source}: {step.text}" if step.source == step.target else f"{step.source} to {step.target}: {step.text}"
    )


def _draw(step: Step, number: int, at: dict[str, float], y: float) -> list[str]:
    """One step at height ``y``: an arrow with its words above it, or words beside a lane."""
    start, end = at[step.source], at[step.target]
    mark = [
        f'  <circle class="mark" cx="{start:.0f}" cy="{y:.0f}" r="10"/>',
        f'  <text class="number" x="{start:.0f}" y="{y + 4:.0f}" text-anchor="middle">{number}</text>',
    ]
    if step.source == step.target:
        last = start > WIDTH - 2 * SIDE
        x, anchor = (start - 18, "end") if last else (start + 18, "start")
        return [*_words(step.text, x, y + 4, anchor), *mark]
    way = 1 if end > start else -1
    tip = f"M{end:.0f},{y:.0f}l{-9 * way},-5v10z"
    return [
        f'  <path class="arrow" d="M{start:.0f},{y:.0f}H{end - 8 * way:.0f}"/>',
        f'  <path class="tip" d="{tip}"/>',
        *_words(step.text, (start + end) / 2, y - 7, "middle"),
        *mark,
    ]


def _words(text: str, x: float, y: float, anchor: str) -> list[str]:
    """A text on a patch of paper, so that lines behind it do not cross it."""
    width = 6.6 * len(text) + 8
    left = {"start": x - 4, "middle": x - width / 2, "end": x - width + 4}[anchor]
    return [
        f'  <rect class="back" x="{left:.0f}" y="{y - 13:.0f}" width="{width:.0f}" height="17"/>',
        f'  <text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{html.escape(text)}</text>',
    ]


def stale(folder: Path = FOLDER) -> list[Path]:
    """The pictures that are not what the flows say."""
    paths = {folder / f"{flow.name}.svg": svg(flow) for flow in FLOWS}
    return [path for path, text in paths.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]


def main(arguments: Sequence[str] | None = None, folder: Path = FOLDER) -> int:
    """Write the pictures, or check them; returns the exit code."""
    if "--check" in (sys.argv[1:] if arguments is None else arguments):
        found = stale(folder)
        for path in found:
            print(f"{path.name} is out of date: python docs/flows.py", file=sys.stderr)
        return 1 if found else 0
    for flow in FLOWS:
        (folder / f"{flow.name}.svg").write_text(svg(flow), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

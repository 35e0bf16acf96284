"""``quietsum drill``: rules against attacks, on public rows, as a table and a picture."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Annotated, final

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import WIDTH, console, print_json, print_next
from quietsum.errors import InvalidParameter, printable

if TYPE_CHECKING:
    from quietsum.runs import Cell, DrillMatrix

__all__ = ["drill"]

PlanArgument = Annotated[
    str, typer.Argument(metavar="RUN.TOML", help="The plan; \\[attack] in it says who attacks. With --triggers, a run.")
]
TriggersOption = Annotated[
    bool, typer.Option("--triggers", help="Look for a backdoor in the finished model of a run; nothing is trained.")
]
RulesOption = Annotated[
    str, typer.Option("--rules", metavar="A,B,…", help="\\[default: mean and every rule that fits]", show_default=False)
]
AttacksOption = Annotated[
    str,
    typer.Option("--attacks", metavar="X,Y:5,…", help="Kinds, with a strength or without.", show_default=False),
]
RoundsOption = Annotated[
    int | None, typer.Option("--rounds", metavar="N", help="\\[default: the plan's]", show_default=False)
]
SeedsOption = Annotated[int, typer.Option("--seeds", metavar="K", help="Trainings of each; they never seed noise.")]
OutputOption = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE.svg", help="Draw the matrix.", show_default=False)
]
DeviceOption = Annotated[str, typer.Option("--device", metavar="D", help="Where torch models train: cpu or cuda.")]


def drill(
    plan: PlanArgument,
    rules: RulesOption = "",
    attacks: AttacksOption = "",
    rounds: RoundsOption = None,
    seeds: SeedsOption = 1,
    output: OutputOption = None,
    device: DeviceOption = "cpu",
    triggers: TriggersOption = False,
    workspace: opt.WorkspaceOption = None,
    as_json: opt.JsonOption = False,
) -> int:
    """Try rules against attacks: train a plan once for each pair, on public rows.

    Example: quietsum drill run.toml --rules mean,signguard --attacks lie,ipm:5
    Example: quietsum drill latest --triggers

    Nothing is kept and nothing is charged, so protected rows are refused: put
    \\[attack] into the plan and use quietsum run, which charges it.
    """
    from quietsum.plan import load_plan
    from quietsum.runs import parse_attack, run_drill
    from quietsum.tasks import task_of

    if triggers:
        if rules or attacks or rounds is not None or output is not None:
            remedy = "leave out --rules, --attacks, --rounds and --output"
            raise InvalidParameter("--triggers", triggers, "looks at a model that is finished", remedy)
        return _look(plan, workspace, device, as_json=as_json)
    if output is not None and output != "-" and not output.endswith(".svg"):
        raise InvalidParameter("output", output, "is not named .svg", "the picture is an SVG")
    if output == "-" and as_json:
        raise InvalidParameter("output", output, "and --json both want stdout", "name a file for the picture")
    if output is not None:
        from quietsum.charts import check_picture

        check_picture(output)
    wanted = _words(attacks)
    for attack in wanted:
        parse_attack(attack)
    loaded = load_plan(plan)
    task = task_of(loaded, device=device)
    quiet = as_json or output == "-"
    if not quiet:
        print(textwrap.fill(f"DRILL: {printable(task.title)}; nothing is kept, nothing is charged", WIDTH), flush=True)
    matrix = run_drill(
        loaded, task, rules=_words(rules), attacks=wanted, rounds=rounds, repeats=seeds,
        tell=(lambda cell: None) if quiet else _Progress(),
    )  # fmt: skip
    if output is not None:
        from quietsum.charts import save_picture
        from quietsum.runs import heatmap

        save_picture(heatmap(matrix, f"{printable(task.title)}: rules against attacks"), output)
    if as_json:
        print_json(matrix.to_dict())
    elif not quiet:
        _print(matrix)
        if output is not None:
            print(f"wrote {output}")
        print_next(["plan", plan])
    return 0


def _look(run: str, workspace: str | None, device: str, *, as_json: bool) -> int:
    """Look for triggers in the finished model of ``run``, on the task's public rows."""
    from quietsum.defence import anomaly_indices, model_triggers, trigger_findings
    from quietsum.runs import Workspace, read_model
    from quietsum.tasks import task_of

    folder = Workspace.at(workspace).find(run)
    if not folder.model.is_file():
        raise InvalidParameter("run", folder.run, "has no finished model", f"finish it with --resume {folder.run}")
    params = read_model(folder.model)[0]
    task = task_of(folder.plan(), device=device)
    if not as_json:
        about = f"TRIGGERS: {printable(task.title)}, the model of {folder.run}; nothing is trained, nothing is charged"
        print(textwrap.fill(about, WIDTH), flush=True)
    found = model_triggers(task, params)
    indices, findings = anomaly_indices([one.size for one in found]), trigger_findings(found)
    if as_json:
        rows = [
            {"class": one.target, "size": one.size, "turned": one.success, "index": float(index)}
            for one, index in zip(found, indices, strict=True)
        ]
        print_json({"run": folder.run, "triggers": rows, "findings": [one.to_dict() for one in findings]})
        return 0
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("class", "smallest trigger", "rows turned", "index"):
        table.add_column(title, justify="right")
    for one, index in zip(found, indices, strict=True):
        table.add_row(str(one.target), f"{one.size:.1f}", f"{100 * one.success:.0f} %", f"{index:.1f}")
    console().print(table)
    told = [finding.sentence for finding in findings] or ["No class has a trigger that is smaller than chance allows."]
    told.append(
        f"Sizes are in inputs of {len(found[0].mask)}; the index is how far a size lies below the middle one, in "
        "deviations. Triggers that are spread out or depend on the input are not seen: nothing found is no clean bill."
    )
    for text in told:
        print(f"\n{textwrap.fill(text, WIDTH)}")
    return 0


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


@final
class _Progress:
    """A line for each pair, as soon as it is known; a refusal is explained once for each rule."""

    def __init__(self) -> None:
        self._refused: set[tuple[str, str]] = set()

    def __call__(self, cell: Cell) -> None:
        told = "no score" if not math.isfinite(cell.score) else f"{cell.score:.4f}"
        if cell.refused:
            known = (cell.rule, cell.refused) in self._refused
            told = "refused for the same reason" if known else f"refused: {cell.refused}"
            self._refused.add((cell.rule, cell.refused))
        against = "no attack" if cell.attack == "none" else f"under {cell.attack}"
        print(textwrap.shorten(f"{cell.rule}, {against}: {told}", WIDTH, placeholder=" …"), flush=True)


def _print(matrix: DrillMatrix) -> None:
    """The summary, the matrix in as many parts as 80 columns need, and what it does not say."""
    from rich.table import Table

    screen = console()
    what = f"{matrix.metric.replace('_', ' ')} {matrix.unit}on {matrix.on}"
    better = "more" if matrix.more_is_better else "less"
    about = (
        f"{what}, {better} is better: {matrix.parties} parties, {matrix.attackers} of them attackers, {matrix.rounds} "
        "rounds. Left out: the share of attackers' / of others' updates that entered no step, under the worst attack."
    )
    print(f"\n{textwrap.fill(about, WIDTH)}\n")
    summary = Table(box=None, pad_edge=False)
    for name, side in (("rule", "left"), ("no attack", "right"), ("worst", "right"), ("under", "left")):
        summary.add_column(name, justify="right" if side == "right" else "left")
    summary.add_column("left out", justify="right")
    for rule in matrix.rules:
        worst, calm = matrix.worst(rule), matrix.in_words(matrix.cell(rule, "none"))
        if worst is None:
            summary.add_row(rule, calm, "–", "", "")
        else:
            summary.add_row(rule, calm, matrix.in_words(worst), worst.attack, _shares(worst))
    screen.print(summary)
    attacks = [attack for attack in matrix.attacks if attack != "none"]
    room = WIDTH - max(len(rule) for rule in matrix.rules) - 2
    for part in _parts(attacks, room):
        table = Table(box=None, pad_edge=False)
        table.add_column("rule")
        for attack in part:
            table.add_column(attack, justify="right", no_wrap=True)
        for rule in matrix.rules:
            table.add_row(rule, *(matrix.in_words(matrix.cell(rule, attack)) for attack in part))
        print()
        screen.print(table)
    _print_triggers(matrix)
    if outnumbered := matrix.outnumbered:
        told = ", ".join(f"{rule} ({count})" for rule, count in outnumbered.items())
        text = f"withstand fewer attackers among {matrix.parties} parties than there are, and expect so few: {told}"
        print(f"\n{textwrap.fill(text, WIDTH)}")
    reasons: dict[str, dict[str, None]] = {}
    for cell in matrix.cells:
        if cell.refused:
            told = "; ".join(" ".join(line.split()) for line in cell.refused.splitlines() if line.strip())
            reasons.setdefault(told, {})[cell.rule] = None
    for reason, rules in list(reasons.items())[:5]:
        print()
        print(textwrap.fill(f"– {', '.join(rules)}: {reason}", WIDTH))
    caution = (
        "What a rule withstands here it withstands in this form, on these rows; nothing is proved about an attacker "
        "who knows the rule and looks for another way."
    )
    print(f"\n{textwrap.fill(caution, WIDTH)}")
    if (safest := matrix.safest) is not None and len(matrix.rules) > 1:
        text = (
            f"Of these rules, {safest.rule} has the best worst case: {matrix.in_words(safest)} under {safest.attack}. "
            f'To use it, say aggregation.rule = "{safest.rule}" in the plan; the next command shows what else it needs.'
        )
        print(f"\n{textwrap.fill(text, WIDTH)}")


def _print_triggers(matrix: DrillMatrix) -> None:
    """How often a backdoor's trigger won, where that was counted."""
    for attack in matrix.attacks:
        wins = {rule: matrix.cell(rule, attack).mean("success") for rule in matrix.rules}
        told = [f"{rule} {100 * win:.1f}" for rule, win in wins.items() if win is not None]
        if told:
            print()
            print(textwrap.fill(f"the trigger of {attack} wins, in percent: {', '.join(told)}", WIDTH))


def _shares(cell: Cell) -> str:
    caught, accused = cell.mean("caught"), cell.mean("accused")
    return " / ".join("–" if share is None else f"{100 * share:.0f} %" for share in (caught, accused))


def _parts(names: list[str], room: int) -> list[list[str]]:
    """Columns that fit side by side."""
    parts: list[list[str]] = [[]]
    used = 0
    for name in names:
        wide = max(len(name), 5) + 2
        if parts[-1] and used + wide > room:
            parts.append([])
            used = 0
        parts[-1].append(name)
        used += wide
    return [part for part in parts if part]

"""``quietsum runs | show | compare``: what was run, what it cost and how good it is."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import layer_lines, print_json, print_next, text_width
from quietsum.errors import CorruptState, InvalidParameter, LedgerBroken, QuietsumError, printable

if TYPE_CHECKING:
    from quietsum.defence import Finding
    from quietsum.runs import LeftOut, RunFolder, Workspace

__all__ = ["compare", "runs", "show"]

OutputOption = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE.svg", help="Draw what each round cost, as .svg or .png.")
]
MoreRunsArgument = Annotated[
    list[str], typer.Argument(metavar="RUN…", help="More runs.", autocompletion=opt.complete_run)
]
MOST_FINDINGS = 12
"""Lines of findings that ``show`` prints."""
MOST_LEFT_OUT = 12
"""Parties that ``show`` prints of those whom the rule left out."""
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run's name or folder; latest is the newest.", autocompletion=opt.complete_run
    ),
]


def runs(workspace: opt.WorkspaceOption = None, as_json: opt.JsonOption = False) -> None:
    """List the runs of a workspace; exit code 4 where something in it is damaged."""
    from quietsum.runs import Workspace

    place = Workspace.at(workspace)
    damaged, folders = place.find_damaged(), list(place.folders())
    found, broken = _lines(folders, place, damaged)
    trained = _trainings(place) if broken is None else []
    if as_json:
        listed = [{"run": run, "problem": problem} for run, problem in damaged]
        trouble = {} if broken is None else {"ledger": str(broken)}
        alone = {"trainings": trained} if trained else {}
        print_json({"workspace": str(place.path), "runs": found, "damaged": listed, **alone, **trouble})
    else:
        for run, problem in damaged:
            print(textwrap.fill(f"{run} is damaged: {problem}", text_width()))
        if found:
            _print_runs(found)
        _print_trainings(trained)
        if broken is not None:
            said = {run for run, _ in damaged} | {row["run"] for row in found}
            _print_unpriced([folder for folder in folders if folder.run not in said])
        elif found:
            print_next(["show", found[-1]["run"], *_where(workspace)])
        elif trained:
            print_next(["show", trained[-1]["run"], *_where(workspace)])
        elif not damaged:
            print(f"no runs in {place.path} yet")
            print_next(["new", "run.toml"])
    if broken is not None:
        raise broken
    if damaged:
        raise typer.Exit(CorruptState.exit_code)


def show(
    run: RunArgument = "latest",
    workspace: opt.WorkspaceOption = None,
    output: OutputOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Show one run: its guarantee, its metrics, its defence and where its files are."""
    from quietsum import report
    from quietsum.plan import GuaranteeCard
    from quietsum.runs import Workspace, findings, read_groups, read_left_out

    place = Workspace.at(workspace)
    folder = report.find_run(run, place)
    if isinstance(folder, report.Training):
        values = report.build_training(folder, place)
    else:
        values = report.build(folder, place)
    found = findings(folder.path / "run.db")
    rejected, groups = read_left_out(folder.path / "run.db"), read_groups(folder.path / "run.db")
    if output is not None:
        from quietsum.charts import check_picture_name, save

        check_picture_name("output", output)
        chart = report.curve(values)
        if chart is None:
            raise InvalidParameter(
                "output", output, "has nothing to draw", "draw a run with two rounds and a guarantee"
            )
        save(chart, output)
        if output == "-":
            return
    if as_json:
        told: dict[str, Any] = {"findings": [one.to_dict() for one in found]} if found else {}
        if rejected is not None:
            told["left_out"] = rejected.to_dict()
        if groups:
            told["groups"] = {"judged": len(groups), "left_out": sum(not kept for *_, kept in groups)}
        print_json({**values, **({"operator_only": told} if told else {})})
        return
    print(textwrap.fill(values["summary"], text_width()), end="\n\n")
    for sentence in values["sentences"]:
        print(textwrap.fill(sentence, text_width()), end="\n\n")
    for warning in values["warnings"]:
        print(textwrap.fill(f"warning: {warning}", text_width()), end="\n\n")
    _plot(values)
    for note in values["notes"]:
        print(textwrap.fill(note, text_width()), end="\n\n")
    for metric in values["metrics"]:
        print(f"{metric['name'].replace('_', ' '):<24} {metric['value']:.3f}  on {metric['on']}")
    if values.get("verdict"):  # reports of older versions have none
        print(textwrap.fill(values["verdict"], text_width()))
    if values.get("layers"):  # reports of older versions have none
        print("\nLayers of defence")
        for line in layer_lines(values["layers"], text_width()):
            print(line)
    if values.get("card"):
        print(f"\n{GuaranteeCard.from_dict(values['card']).to_text()}")
    if rejected is not None:
        _print_left_out(rejected, frozenset() if isinstance(folder, report.Training) else _attackers(folder))
    if out := sum(not kept for *_, kept in groups):
        print(f"\nfor the operator alone: the rule left out {out} of {len(groups)} group means; a party's share")
        print(f"in that: quietsum suspects {folder.run}")
    _print_findings(found)
    print(f"\nfolder  {folder.path}")
    if output is not None:
        print(f"wrote   {output}")
    asked = (folder.path / "answers.json").is_file()
    if asked:
        print("answers answers.json in it")
    elif folder.model.is_file():
        named = ", and weights.safetensors for load_state_dict" * (folder.path / "weights.safetensors").is_file()
        print(f"model   model.safetensors in it{named}")
        print(
            textwrap.fill(
                f"use it  quietsum predict {folder.run} rows.csv -o out.csv", text_width(), break_long_words=False
            )
        )
    print(f"ledger  entry {values['ledger']['head']['sequence']}, {values['ledger']['head']['hash'][:16]}…")
    if values["outcome"] == "interrupted" and isinstance(folder, report.Training):
        print_next(["train", "--resume", folder.run, *_where(workspace)])
    elif not isinstance(folder, report.Training) and values["outcome"] == "interrupted":
        sites = ["--on", "flower", "--keys", "DIR", "--superlink", "DIR"] if folder.sites else []
        print_next(["run", "--resume", folder.run, *sites, *_where(workspace)])
    elif asked:
        print_next(["ask", "--run", folder.run, *_where(workspace)])
    else:
        print_next(["ledger", "verify", *_where(workspace)])


def compare(
    first: RunArgument, others: MoreRunsArgument,
    workspace: opt.WorkspaceOption = None, as_json: opt.JsonOption = False,
) -> None:  # fmt: skip
    """Compare runs: what differs in their plans, what they cost, how good they are."""
    from quietsum import report
    from quietsum.runs import Workspace

    place = Workspace.at(workspace)
    folders = [report.find_run(name, place) for name in (first, *others)]
    if len({folder.run for folder in folders}) < len(folders):
        raise InvalidParameter("run", first, "is named twice", "name different runs")
    listed = iter(_lines([folder for folder in folders if not isinstance(folder, report.Training)], place)[0])
    found, plans = [], []
    for folder in folders:
        if isinstance(folder, report.Training):
            found.append(report.list_training(folder, place))
            plans.append(_settings(report.build_training(folder, place)["plan"]))
        else:
            found.append(next(listed))
            plans.append(dict(_flat(folder.plan().to_dict())))
    keys = sorted({key for plan in plans for key in plan if len({str(p.get(key)) for p in plans}) > 1})
    if as_json:
        differing = {key: [plan.get(key) for plan in plans] for key in keys}
        print_json({"workspace": str(place.path), "runs": found, "plan": differing})
        return
    _print_runs(found)
    if keys:
        print("\nwhat differs in the plans")
        for key in keys:
            print(textwrap.fill(f"  {key}: " + " | ".join(_text(plan.get(key)) for plan in plans), text_width()))
    else:
        print("\nthe plans are equal")
    print_next(["show", found[-1]["run"], *_where(workspace)])


def _settings(plan: dict[str, Any]) -> dict[str, object]:
    """The plan of a training, with the range of its noise and clips in place of one line for each step."""
    training = dict(plan["training"])
    stages = training.pop("stages", [])
    for name, key in (("noise_multiplier", "noise_multiplier"), ("max_grad_norm", "max_norm")):
        values = sorted({stage[key] for stage in stages})
        training[name] = (
            " to ".join(f"{value:.5g}" for value in dict.fromkeys((values[0], values[-1]))) if values else None
        )
    training["steps"] = sum(stage["steps"] for stage in stages)
    return dict(_flat({**plan, "training": training}))


def _attackers(folder: RunFolder) -> frozenset[str]:
    """The attackers of a drill; empty for any other run."""
    from quietsum.plan import taking_part
    from quietsum.runs import TaskFacts

    plan, facts = folder.plan(), TaskFacts.read(folder.path)
    if plan.attack is None or facts is None:
        return frozenset()
    return frozenset(plan.attack.among([party.name for party in taking_part(plan, facts.parties)]))


def _print_left_out(rejected: LeftOut, attackers: Collection[str]) -> None:
    """Whom the rule left out, and how often. For the operator: no report holds it."""
    text = (
        f"left out by {rejected.rule}, for the operator alone, in how many of {rejected.rounds} rounds, with the "
        "reason given last. That an update was unlike the others is no verdict"
    )
    print("\n" + textwrap.fill(text, text_width()))
    shown = rejected.parties[:MOST_LEFT_OUT]
    names, digits = max(len(party) for party, *_ in shown), len(str(shown[0][1]))
    for party, rounds, reason in shown:
        drill = "; attacks in this drill" if party in attackers else ""
        head = f"  {printable(party):<{names}}  {rounds:>{digits}}  "
        print(
            textwrap.fill(
                f"{printable(reason)}{drill}", text_width(), initial_indent=head, subsequent_indent=" " * len(head)
            )
        )
    if len(rejected.parties) > len(shown):
        print(f"  and {len(rejected.parties) - len(shown)} more in the table rejected of run.db")


def _print_findings(found: Sequence[Finding]) -> None:
    """What detection found, the last word of each rule on each subject. For the operator: no report holds it."""
    if not found:
        return
    last = {(one.rule, str(one.subject_kind), one.subject): one for one in found}
    times = Counter((one.rule, str(one.subject_kind), one.subject) for one in found)
    print(f"\ndetection, for the operator alone: {len(found)} finding{'s' * (len(found) > 1)}, which are no verdicts")
    for key, one in list(last.items())[:MOST_FINDINGS]:
        again = f", {times[key]} times up to" if times[key] > 1 else ","
        text = f"  {one.sentence}{again} round {one.round}"
        print(textwrap.fill(text, text_width(), subsequent_indent="    "))
    if len(last) > MOST_FINDINGS:
        print(f"  and {len(last) - MOST_FINDINGS} more in the table findings of run.db")


def _text(value: object) -> str:
    return "not stated" if value is None else str(value)


def _where(workspace: str | None) -> Sequence[str]:
    return [] if workspace is None else ["--workspace", workspace]


def _lines(
    folders: Sequence[RunFolder], place: Workspace, damaged: list[tuple[str, str]] | None = None
) -> tuple[list[dict[str, Any]], LedgerBroken | None]:
    """A few words on each run, and what is wrong with the ledger, which is opened once, for reading.

    Runs that cannot be read are added to ``damaged``; without it, the first trouble is the error.
    """
    from quietsum import report
    from quietsum.ledger import Ledger, StoreFailed

    found: list[dict[str, Any]] = []
    if not folders:
        return found, None
    try:
        with Ledger.open(place.ledger, read_only=True) as ledger:
            for folder in folders:
                try:
                    found.append(report.list_run(folder, place, ledger))
                except (LedgerBroken, StoreFailed):
                    raise
                except QuietsumError as error:
                    if damaged is None:
                        raise
                    damaged.append((folder.run, str(error)))
    except LedgerBroken as error:
        if damaged is None:
            raise
        return found, error
    return found, None


def _trainings(place: Workspace) -> list[dict[str, Any]]:
    """The runs of ``quietsum train`` that the ledger knows: whether they left a model, and what they cost.

    ``spent`` is what was charged so far. What may be said about their weights is ``claim``, the ε of the whole plan:
    when to stop may have been decided by people who saw results (rule 3).
    """
    from quietsum.ledger import Ledger, ledger_exists
    from quietsum.report import claim_of_training

    folders = {path.parent.name: path.parent for path in sorted((place.path / "training").glob("*/options.json"))}
    if not folders or not ledger_exists(place.ledger):
        return []
    with Ledger.open(place.ledger, read_only=True) as ledger:
        return [
            {
                "run": known.run,
                "outcome": "finished" if (folders[known.run] / "model.safetensors").is_file() else "interrupted",
                "spent": [one.to_dict() for one in ledger.spending(known.run)],
                "claim": [one.to_dict() for one in claim_of_training(ledger, known)],
            }
            for known in ledger.runs()
            if known.run in folders
        ]


def _print_trainings(trained: Sequence[dict[str, Any]]) -> None:
    """Runs at one site, which have epochs instead of rounds."""
    from quietsum.cli.shared.output import figure

    if trained:
        print("\ntrained at one site by quietsum train")
    for row in trained:
        claims = [
            f"ε ≤ {figure(_number(one['epsilon']))} per {one['unit']}, δ {one['delta']:g}" for one in row["claim"]
        ]
        cost = "; ".join(dict.fromkeys(claims))  # observers of one price are one line
        if row["claim"] and _number(row["spent"][0]["epsilon"]) < _number(row["claim"][0]["epsilon"]):
            cost += f"; of that plan ε = {figure(_number(row['spent'][0]['epsilon']))} is charged so far"
        print(textwrap.fill(f"  {row['run']}  {row['outcome']}  {cost}", text_width(), subsequent_indent="    "))


def _print_unpriced(folders: Sequence[RunFolder]) -> None:
    """The runs that a broken ledger cannot vouch for: that they are there, and nothing of what they cost."""
    for folder in folders:
        text = f"{folder.run} was begun {folder.created}; what it cost is not known, the ledger is broken"
        print(textwrap.fill(text, text_width()))


def _print_runs(found: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table

    from quietsum.cli.shared.output import figure, line_width, print_rows
    from quietsum.plan import NO_GUARANTEE

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("run", "outcome", "rounds", "guarantee", "measured"):
        table.add_column(name, justify="left", overflow="fold")
    lines: list[tuple[str, ...]] = []
    for row in found:
        claims = [
            f"ε ≤ {figure(_number(g['epsilon']))} per {g['unit']}, δ {g['delta']:g}"
            + "".join(f", {w}" for w in g["warnings"])
            for g in row["guarantees"]
        ]
        if row["drill"]:
            claims = ["none: a drill"]
        measured = "" if row["metric"] is None else f"{row['metric']} {row['value']:.3f}"
        rounds = f"{row['round']}/{row['rounds']}"
        lines.append((row["run"], row["outcome"], rounds, "; ".join(claims) or NO_GUARANTEE, measured))
        table.add_row(*lines[-1])
    if sum(max(len(line[place]) for line in lines) + 2 for place in range(5)) <= line_width():
        print_rows(table)
    else:  # a name is never broken, and a guarantee is read as a sentence, not as a column of three words
        for run, outcome, rounds, claim, measured in lines:
            head, rest = f"{run}  {outcome}", "  ".join(filter(None, (f"{rounds} rounds", measured)))
            print(f"{head}  {rest}" if len(head) + len(rest) + 2 <= text_width() else f"{head}\n  {rest}")
            print(textwrap.fill(claim, text_width(), initial_indent="  ", subsequent_indent="  "))
    data = dict.fromkeys(row["metric_on"] for row in found if row["metric"])
    for text in data:
        print(textwrap.fill(f"measured on {text}", text_width()))


def _number(value: float | str) -> float:
    return float("inf") if isinstance(value, str) else value


def _plot(values: dict[str, Any]) -> None:
    from quietsum import report
    from quietsum.charts import show

    chart = report.curve(values)
    if chart is not None:
        show(chart, height=10)
        print()


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name, value in values.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]
    return found

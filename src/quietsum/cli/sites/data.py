"""``quietsum data``: is this site's table what its operator says it is? The answer goes to his terminal."""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import console, print_json, print_next, text_width
from quietsum.errors import InvalidParameter, printable

if TYPE_CHECKING:
    from quietsum.defence import Problem, Result, Schema
    from quietsum.tasks import TableTask

__all__ = ["app"]

app = typer.Typer(
    name="data",
    help="A site's own table: what it should hold, and whether it does.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

UNFIT = 2
_OF_A_KIND = 8
_SCHEMA = Path("data.toml")
_STAYS = "facts about protected rows; they stay at the site"
TableArgument = Annotated[
    Path | None, typer.Argument(metavar="[TABLE]", help="A CSV, npz or Parquet file.", show_default=False)
]
SchemaOption = Annotated[
    Path | None,
    typer.Option(
        "--schema", metavar="DATA.TOML", help="What the table should hold. \\[default: data.toml]", show_default=False
    ),
]
TaskOption = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help='Check what a task, or "my_module:MyTask", trains on.',
                 show_default=False),
]  # fmt: skip
PartyOption = Annotated[
    str | None, typer.Option("--party", metavar="NAME", help="With --task or --plan: whose rows.", show_default=False)
]
PlanOption = Annotated[
    Path | None,
    typer.Option("--plan", metavar="RUN.TOML", help="Take task, split and parties from a plan.", show_default=False),
]
PolicyOption = Annotated[
    Path | None,
    typer.Option("--policy", metavar="POLICY.TOML", help="Check what this site's policy names under \\[data].",
                 show_default=False),
]  # fmt: skip
LabelsOption = Annotated[
    bool, typer.Option("--labels", help="Also train a simple model, and tell where it disagrees with the labels.")
]
PartiesOption = Annotated[
    int | None,
    typer.Option("--parties", metavar="N", help="With --task: deal rows out to N.", show_default=False),
]


@app.command()
def new(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="A CSV, npz or Parquet file.")],
    path: Annotated[Path, typer.Argument(metavar="[DATA.TOML]", help="The file to write.")] = _SCHEMA,
    label: Annotated[
        str, typer.Option("--label", metavar="COLUMN", help="The column to learn.", show_default=False)
    ] = "",
    as_json: opt.JsonOption = False,
) -> None:
    """Write a first data.toml from a table, for you to correct.

    Example: quietsum data new visits.csv --label back

    TABLE is a CSV, npz or Parquet file. The draft says what its rows show:
    columns, types, bounds and classes. Those are facts about people: keep the
    file at the site, and write what should be instead of what was seen.
    """
    from quietsum.defence import first_schema, parse_schema
    from quietsum.files import write_atomically

    text = first_schema(table, label=label)
    try:
        write_atomically(path, text.encode(), mode=0o600, replace=False, remedy="make room, or choose another place")
    except FileExistsError:
        raise InvalidParameter("path", str(path), "exists", "choose another name; nothing is overwritten") from None
    schema = parse_schema(text)
    if as_json:
        print_json({"written": str(path), "columns": len(schema.columns), "reviewed": False})
        return
    print(f"wrote {path}, a draft: {len(schema.columns)} columns")
    _say(
        "It says what the rows show, not what is right. Go through it line by line, write what should be, and set "
        "reviewed = true. Keep it at this site: it tells of the people in the rows."
    )
    if schema.label is None:
        _say("No label was found: add [label], or write the draft again with --label COLUMN.")
    elif not label:
        _say(f"{printable(schema.label.column)} was taken for the label; --label COLUMN names another.")
    print_next(["data", "check", str(table), *([] if path == _SCHEMA else ["--schema", str(path)])])


@app.command()
def check(
    table: TableArgument = None,
    schema: SchemaOption = None,
    task: TaskOption = None,
    party: PartyOption = None,
    plan: PlanOption = None,
    parties: PartiesOption = None,
    policy: PolicyOption = None,
    labels: LabelsOption = False,
    as_json: opt.JsonOption = False,
) -> int:
    """Check a table, or what a task trains on, before anything is trained.

    Example: quietsum data check visits.csv --schema data.toml
    Example: quietsum data check visits.csv --plan run.toml
    Example: quietsum data check --task fraud --parties 10 --party client-0003

    TABLE is a CSV, npz or Parquet file, held against data.toml, or against the
    plan for which quietsum new --from has read its first line. Problems are
    listed by line and column; their values are shown on a terminal only, never
    in a pipe or a file. Exit code 2 where the data does not fit.
    """
    from quietsum.defence import load_schema, look_at_labels, read_table, validate

    named = {"TABLE": table, "--task": task, "--plan": plan, "--policy": policy}
    given = [name for name, value in named.items() if value is not None]
    made = None if plan is None else _table_in(plan)
    if made is not None and set(given) <= {"TABLE", "--plan"} and schema is None and parties is None:
        assert plan is not None
        return _by_plan(made, table, plan, party, labels, as_json)
    if len(given) != 1:
        problem = "do not go together" if given else "is missing"
        remedy = "name a table, a task, a plan or a policy"
        raise InvalidParameter("TABLE", " and ".join(given) or None, problem, remedy)
    if policy is not None:
        others = {"--schema": schema, "--party": party, "--parties": parties, "--labels": labels or None}
        if extra := [name for name, value in others.items() if value is not None]:
            raise InvalidParameter(extra[0], "", "does not go with --policy", "the policy says what is checked")
        return _by_policy(policy, as_json)
    held: Schema | None = None
    if table is not None:
        for name, value in (("--party", party), ("--parties", parties)):
            if value is not None:
                raise InvalidParameter(name, value, "means nothing to a table", "it goes with --task")
        rows: Any = read_table(table, held := load_schema(schema or _SCHEMA))
        found = validate(rows, held)
        what, against = str(table), str(schema or _SCHEMA)
    else:
        held = None if schema is None else dataclasses.replace(load_schema(schema), cleaning=())  # it shows what trains
        rows, what = _rows_of(task, plan, party, parties)
        found, against = validate(rows, held), "" if schema is None else str(schema)
    if labels:
        problems, counted = look_at_labels(rows, held)
        counts = {**found.counts, "labels": counted}
        found = dataclasses.replace(found, problems=(*found.problems, *problems), counts=counts)
    if as_json:
        print_json(_values(found, what, against))
    else:
        _print(found, what, against, held)
        if not found.ok and table is not None:
            print("Correct the table, or the schema where that is wrong, and check again.")
            print_next(["data", "check", str(table), *([] if schema is None else ["--schema", str(schema)])])
        elif found.ok:
            print_next(["party", "check"] if table is not None else ["plan", "run.toml" if plan is None else str(plan)])
    return 0 if found.ok else UNFIT


def _values(found: Result, what: str, against: str) -> dict[str, Any]:
    return {"of": what, "schema": against, **found.to_dict(), "note": _STAYS}


def _table_in(plan: Path) -> TableTask | None:
    """The task of a plan that reads a table; None for any other plan."""
    from quietsum.plan import load_plan
    from quietsum.tasks import TableTask

    task = load_plan(plan).task
    return TableTask.from_options(task.options) if task.name == "table" else None


def _by_plan(task: TableTask, table: Path | None, plan: Path, party: str | None, labels: bool, as_json: bool) -> int:
    """Check a table against the columns, classes and sizes that its plan states."""
    from quietsum.defence import look_at_labels, read_table, schema_of_plan, validate

    names = [facts.name for facts in task.parties()]
    if table is None and party is None and task.options.tables:
        raise InvalidParameter("--party", None, "is missing", f"say whose table: {', '.join(names[:12])}")
    path = task.file_of(party or names[0]) if table is None else table
    held = schema_of_plan(task)
    rows = read_table(path, held)
    found = validate(rows, held)
    if labels:
        problems, counted = look_at_labels(rows, held)
        found = dataclasses.replace(
            found, problems=(*found.problems, *problems), counts={**found.counts, "labels": counted}
        )
    if as_json:
        print_json(_values(found, str(path), str(plan)))
        return 0 if found.ok else UNFIT
    _print(found, str(path), str(plan), held)
    if found.ok:
        print_next(["plan", str(plan)])
    else:
        print("Correct the table, or the plan where that is wrong. Rows that stay as they are count as zero.")
        print_next(["data", "check", str(path), "--plan", str(plan)])
    return 0 if found.ok else UNFIT


def _by_policy(path: Path, as_json: bool) -> int:
    """Check what ``party serve`` would, task by task."""
    from quietsum.cli.sites.check import task_at_site
    from quietsum.party import DataCheck, load_policy

    policy = load_policy(path)
    if policy.data is None:
        problem = "names no data.toml"
        raise InvalidParameter("--policy", str(path), problem, 'add [data] schema = "data.toml", or name a table')
    check, against, told, fits = DataCheck(policy), policy.data.schema, list[dict[str, Any]](), True
    for allowed in (None,) if policy.data.table else policy.tasks:  # a table is checked once, whoever reads it
        what = policy.data.table if allowed is None else f"{allowed.name} at {policy.name}"
        found = check.look(None if allowed is None else task_at_site(allowed), policy.name)
        fits = fits and found.ok
        if as_json:
            told.append(_values(found, what, against))
        else:
            _print(found, what, against, check.schema)
    if as_json:
        print_json({"site": policy.name, "ok": fits, "checks": told})
    elif fits:
        print_next(["party", "check", str(path)])
    return 0 if fits else UNFIT


def _rows_of(task: str | None, plan: Path | None, party: str | None, parties: int | None) -> tuple[Any, str]:
    """What a task trains on, and its name."""
    from quietsum.defence import extract_rows
    from quietsum.plan import FederationPlan, Plan, TaskPlan, load_plan
    from quietsum.tasks import TASKS, TRAINABLE, nearest_name, task_of, trainable_task

    if plan is None:
        assert task is not None
        if party is None and parties is None and (task in TRAINABLE or ":" in task):
            made = _alone(task)
            if made is not None:
                return extract_rows(made), task
        if task not in TASKS and task not in TRAINABLE and ":" not in task:
            remedy = nearest_name(task, (*TASKS, *TRAINABLE), 'or write "my_module:MyTask"')
            raise InvalidParameter("--task", task, "is not known", remedy)
        if (
            party is not None
            and parties is None
            and task in TRAINABLE
            and hasattr(trainable_task(task), "without_sites")
        ):
            problem = f"is no site of {task}, which has none"
            raise InvalidParameter("--party", party, problem, "say --parties 10, or --plan run.toml")
        dealt = FederationPlan() if parties is None else FederationPlan(split="iid", parties=parties)
        loaded = Plan(task=TaskPlan(name=task), federation=dealt)
    else:
        if parties is not None:
            raise InvalidParameter("--parties", parties, "contradicts --plan", "the plan says how many there are")
        loaded = load_plan(plan)
    made = task_of(loaded)
    names = [facts.name for facts in made.parties()]
    if party is None:
        known = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
        raise InvalidParameter("--party", None, "is missing", f"say whose rows: {known}")
    if party not in names:
        raise InvalidParameter("--party", party, f"is no party of {made.name}", nearest_name(party, names))
    return extract_rows(made, party), f"{made.name} at {party}"


def _alone(task: str) -> Any:
    """A torch task by itself, all its records in one place; None for any other."""
    from quietsum.tasks import TRAINABLE, make_own_task, trainable_task

    made = trainable_task(task) if task in TRAINABLE else make_own_task(task, {})
    return made if callable(getattr(made, "records", None)) else None


# ----------------------------------------------------------------------------------------------------------- printing


def _print(found: Result, what: str, against: str, schema: Schema | None) -> None:
    errors, others = len(found.errors), len(found.problems) - len(found.errors)
    verdict = "fits" if found.ok else "does not fit"
    by = f" {against}" if against else "" if found.ok else " what any task needs"
    told = [f"{errors} problem{'s' * (errors != 1)}"] if errors else []
    told += [f"{others} thing{'s' * (others != 1)} to look at"] if others else []
    _say(f"{printable(what)} {verdict}{by}" + (f": {', '.join(told)}" if told else ""))
    rows, columns = found.counts["rows"], found.counts["columns"]
    print(f"{rows:,} rows, {columns:,} columns; for this site's operator alone")
    shows = sys.stdout.isatty()
    told_of: dict[tuple[str, str], int] = {}
    for problem in sorted(found.problems, key=lambda one: one.severity != "error"):
        kind = problem.severity, problem.check
        told_of[kind] = told_of.get(kind, 0) + 1
        if told_of[kind] <= _OF_A_KIND:
            _print_problem(problem, found.unit, shows=shows)
    for (_, name), count in told_of.items():
        if count > _OF_A_KIND:
            print(f"{name}: {count - _OF_A_KIND} more columns; --json lists them all")
    if not shows and any(problem.examples for problem in found.problems):
        _say("The values themselves are shown on a terminal only.")
    for line in _count_lines(found):
        _say(line)
    if schema is not None and not schema.reviewed:
        _say(
            f"{against} is still a draft (reviewed = false): it says what rows show. Write what should be, and set "
            "reviewed = true."
        )


def _print_problem(problem: Problem, unit: str, *, shows: bool) -> None:
    from rich.text import Text

    word, style = ("error", "bold red") if problem.severity == "error" else ("look", "yellow")
    where = f" ({_where(problem, unit)})" if problem.count else ""
    about = f"{problem.column}: " if problem.column else ""
    width = text_width() - 8
    lines = textwrap.wrap(printable(f"{about}{problem.message}{where}"), width, break_on_hyphens=False)
    if shows and problem.examples:
        lines += textwrap.wrap(f"for instance {', '.join(problem.examples)}", width, break_on_hyphens=False)
    if problem.remedy:
        lines += textwrap.wrap(printable(problem.remedy), width, break_on_hyphens=False)
    screen = console()
    for place, line in enumerate(lines):
        screen.print(Text.assemble((f"{word:6s} " if place == 0 else " " * 7, style), line), soft_wrap=True)


def _where(problem: Problem, unit: str) -> str:
    rows = f"{problem.count:,} row{'s' * (problem.count != 1)}"
    if not problem.lines:
        return rows
    several = len(problem.lines) > 1 or problem.count > 1
    lines = ", ".join(str(line) for line in problem.lines) + (", …" if problem.count > len(problem.lines) else "")
    return f"{rows}: {unit}{'s' * several} {lines}"


def _count_lines(found: Result) -> list[str]:
    told, counts = [], found.counts
    if classes := counts.get("classes"):
        total = sum(classes.values()) or 1
        shares = ", ".join(
            f"{name} {count:,} ({100 * count / total:.3g} %)" for name, count in list(classes.items())[:12]
        )
        told.append(f"classes: {shares}" + (", …" if len(classes) > 12 else ""))
    if looked := counts.get("labels"):
        shares = ", ".join(f"{name} {100 * one['otherwise'] / one['rows']:.3g} %" for name, one in looked.items())
        told.append(f"labels: the share of each class that a simple model labels otherwise: {shares}")
        if any(one["declared"] is not None for one in looked.values()):
            least = ", ".join(f"{name} {one['threshold']:,}" for name, one in looked.items())
            told.append(
                f"labels: a class is reported from so many such rows on: {least} (by chance once in "
                f"{1 / _rate(looked):,.0f} checks a class)"
            )
        told.append("labels: classes that are exchanged throughout are not seen so; declare label.shares")
    if cleaned := counts.get("cleaned"):
        told.append("cleaned, row by row: " + ", ".join(f"{rule} {count:,}" for rule, count in cleaned.items()))
    if skipped := counts.get("outliers_not_judged"):
        told.append(
            f"outliers: not looked for in {skipped} column{'s' * (skipped != 1)} (fewer than 30 values, or more than "
            "half of them equal)"
        )
    return told


def _rate(looked: dict[str, Any]) -> float:
    return float(next(iter(looked.values()))["rate"])


def _say(words: str) -> None:
    print(textwrap.fill(words, text_width(), subsequent_indent="  ", break_on_hyphens=False, break_long_words=False))

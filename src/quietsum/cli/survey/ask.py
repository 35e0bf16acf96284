"""``quietsum ask``: counts, means, tables and survival curves over all sites, by one noisy sum."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.logs import watch_log
from quietsum.cli.shared.output import console, print_json, print_next, print_warning, text_width
from quietsum.cli.shared.signals import Interruption
from quietsum.cli.train.flower import (
    PATIENCE,
    InsecureOption,
    KeysOption,
    ListenOption,
    Runtime,
    SuperLinkOption,
    WaitOption,
)
from quietsum.cli.train.run import NameOption, OnOption
from quietsum.errors import InvalidParameter, printable

if TYPE_CHECKING:
    from quietsum.analytics import Answer, QuestionFile
    from quietsum.federation import Federation
    from quietsum.plan import Plan, ResolvedPlan
    from quietsum.runs import Asked, Recording, Workspace
    from quietsum.tasks import QuestionTask

__all__ = ["ask"]

FileArgument = Annotated[
    str | None, typer.Argument(metavar="[QUESTIONS.TOML]", help="Questions, columns, sites and ε.", show_default=False)
]
RunOption = Annotated[
    str | None,
    typer.Option("--run", metavar="RUN", help="Show the answers of this run again, at no cost.", show_default=False),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Also write the answers here, as JSON.")
]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw a histogram, quantiles or survival curves.")
]
QuestionOption = Annotated[
    str | None, typer.Option("--question", metavar="NAME", help="With --plot: which one.", show_default=False)
]
LevelOption = Annotated[
    float | None, typer.Option("--level", metavar="P", help="Level of the intervals.", show_default=False)
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Say what it would cost and how noisy it is; ask no site.")]


def ask(
    questions: FileArgument = None,
    run: RunOption = None,
    on: OnOption = "local",
    name: NameOption = None,
    dry_run: DryOption = False,
    output: OutputOption = None,
    plot: PlotOption = None,
    question: QuestionOption = None,
    level: LevelOption = None,
    keys: KeysOption = None,
    listen: ListenOption = None,
    superlink: SuperLinkOption = None,
    wait: WaitOption = PATIENCE,
    insecure: InsecureOption = False,
    same_rows: opt.SameRowsOption = "",
    workspace: opt.WorkspaceOption = None,
    verbose: opt.VerboseOption = 0,
    as_json: opt.JsonOption = False,
) -> int:
    """Ask all sites: counts, means, quantiles, tables, survival curves.

    Example: quietsum ask questions.toml

    All questions of a file cost one ε together, which is reserved before any
    row is read. Exit code 3: a budget is spent; 6: not every site answered.
    """
    from quietsum.runs import Workspace

    runtime = Runtime(on=on, keys=keys, listen=listen, folder=superlink, wait=wait, insecure=insecure)
    runtime.check()
    _check_words(questions, run, output, plot, question)
    if level is not None:
        _check_level(level)
    watch_log(verbose)
    place = Workspace.at(workspace)
    where = [] if workspace is None else ["--workspace", workspace]
    if run is not None:
        from quietsum.runs import answers_in

        asked = answers_in(place.find(run), level=0.95 if level is None else level)
        return _finish(asked, where, output, plot, question, as_json, new=False)
    from quietsum.analytics import load_questions, plan_of
    from quietsum.runs import local_plan

    loaded = load_questions(str(questions))
    if plot is not None:
        _drawable([(one.name, one.kind) for one in loaded.questions], question)
    folder = Path(str(questions)).parent
    held = on == "local" and all(site.table and (folder / site.table).is_file() for site in loaded.sites)
    plan = local_plan(loaded, folder) if on == "local" and (held or not dry_run) else plan_of(loaded)
    if dry_run:
        if held:
            from quietsum.runs import task_in

            _look_at_tables(task_in(plan, "this file"), _resolve(plan))
        return _dry(loaded, plan, as_json, str(questions))
    if not as_json:
        _introduce(loaded, plan)
    interruption = Interruption()
    with interruption.listen():
        try:
            from quietsum.runs import open_recording

            lines = sys.stderr if as_json else None
            with (
                open_recording(place, warn=print_warning, alert_lines=lines) as kept,
                runtime.open(place.path / "superlink", quiet=as_json) as sites,
            ):
                asked = _ask(plan, place, loaded.level if level is None else level, name, sites, same_rows, kept)
        except KeyboardInterrupt:
            text = "stopped: what was charged stays charged; quietsum ask --run shows answers if the run had got so far"
            print(textwrap.fill(text, text_width()), file=sys.stderr)
            return interruption.exit_code
    return _finish(asked, [*runtime.words, *where], output, plot, question, as_json, new=True)


def _check_words(
    questions: str | None, run: str | None, output: Path | None, plot: Path | None, question: str | None
) -> None:
    if (questions is None) == (run is None):
        problem = "is missing" if questions is None else "and --run are alternatives"
        remedy = "quietsum ask questions.toml, or quietsum ask --run latest"
        raise InvalidParameter("questions", questions, problem, remedy)
    if question is not None and plot is None:
        raise InvalidParameter("question", question, "is for --plot", "say --plot FILE.svg, too")
    for path, word in ((output, "output"), (plot, "plot")):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            problem = "is a folder" if path.is_dir() else "lies in a folder that is not there"
            raise InvalidParameter(word, str(path), problem, "name a file, before anything is charged")
        if path is not None:
            _writable(word, path)
    if plot is not None and plot.suffix != ".svg":
        raise InvalidParameter("plot", str(plot), "is no picture that is drawn here", "name a file that ends in .svg")


def _writable(word: str, path: Path) -> None:
    from quietsum.files import check_output

    try:
        check_output(path)
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise InvalidParameter(word, str(path), problem, "name another place, before anything is charged") from None


def _check_level(level: float) -> None:
    if not 0.5 <= level <= 0.9999:
        raise InvalidParameter("level", level, "lies outside [0.5, 0.9999]", "0.95 is usual")


def _ask(
    plan: Plan,
    place: Workspace,
    level: float,
    name: str | None,
    sites: Federation | None,
    same_rows: str,
    kept: Recording,
) -> Asked:
    from quietsum.runs import ask as ask_all, check_known_rows

    def check_data(task: QuestionTask, resolved: ResolvedPlan) -> None:
        """Warn of what is odd in the tables: the operator holds them, as no site is asked."""
        _look_at_tables(task, resolved)
        check_known_rows(place, task, resolved, reason=same_rows, warn=kept.warn)

    with kept.show():
        return ask_all(
            plan, workspace=place, level=level, name=name, federation=sites, watchers=[kept],
            allowed=check_data if sites is None else None, opened=kept.open,
        )  # fmt: skip


# ------------------------------------------------------------------------------------------------ what is printed


def _look_at_tables(task: QuestionTask, resolved: ResolvedPlan) -> None:
    """The operator who asks here holds the tables, and sees what is odd about them before anything is charged."""
    for facts in resolved.parties:
        for told in task.oddities(facts.name):
            if "declared size" in told:
                raise InvalidParameter(f"size of {facts.name}", facts.size, "is too small", told)
            print(textwrap.fill(f"warning: {told}", text_width()), file=sys.stderr)


def _introduce(loaded: QuestionFile, plan: Plan) -> None:
    from quietsum.analytics import deviation_of

    resolved = _resolve(plan)
    names = ", ".join(site.name for site in loaded.sites)
    promise = loaded.privacy
    told = "one noisy sum in all" if promise.secure else "one noisy sum of each site"
    print(textwrap.fill(f"{printable(loaded.title) or 'questions'}: {names}; {told}", text_width()))
    whom = "record" if promise.person is None else f"person with up to {promise.person.max_records} records"
    count = len(loaded.questions)
    asks = "the question costs" if count == 1 else f"all {count} together cost"
    text = f"{asks} ε = {promise.epsilon:g} per {whom} at δ = {promise.delta:g}"
    print(textwrap.fill(f"{text}; noise in the sum: {deviation_of(resolved):.4g}", text_width()))
    for warning in resolved.warnings:
        print(textwrap.fill(f"warning: {warning}", text_width()))


def _resolve(plan: Plan) -> ResolvedPlan:
    from quietsum.plan import resolve
    from quietsum.tasks import task_of

    task = task_of(plan)
    return resolve(plan, task.parties(), task.dimension)


def _dry(loaded: QuestionFile, plan: Plan, as_json: bool, path: str) -> int:
    from quietsum.analytics import deviation_of
    from quietsum.runs import task_in

    deviation = deviation_of(_resolve(plan))
    rows = [
        (block.question.name, block.question.sentence, deviation / block.scale)
        for block in task_in(plan, "this file").design.blocks
    ]
    promise = loaded.privacy
    if as_json:
        asks = [{"name": name, "asks": sentence, "deviation": noise} for name, sentence, noise in rows]
        print_json({
            "epsilon": promise.epsilon, "delta": promise.delta, "questions": asks,
            "unit": "record" if promise.person is None else "person",
            "sites": [site.name for site in loaded.sites], "digest": loaded.digest,
        })  # fmt: skip
        return 0
    _introduce(loaded, plan)
    for name, sentence, noise in rows:
        print(textwrap.fill(f"{name}: {sentence}; a count of it has noise ±{1.96 * noise:.3g} (95 %)", text_width()))
    print("no site was asked and nothing was charged")
    print_next(["ask", path])
    return 0


def _finish(
    asked: Asked,
    where: list[str],
    output: Path | None,
    plot: Path | None,
    question: str | None,
    as_json: bool,
    *,
    new: bool,
) -> int:
    from quietsum.analytics import choose_budget
    from quietsum.files import write_output

    if asked.error is not None:
        told = str(asked.error).replace("then resume", "then ask again: a sum over some of the sites is no answer")
        raise type(asked.error)(told)
    values = asked.to_dict()
    if plot is not None:
        _plot(asked, plot, question)
    if output is not None:
        write_output(output, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    if as_json:
        print_json(values)
        return 0
    for answer in asked.answers:
        _show(answer, asked.level)
    limit = choose_budget(asked.resolved)
    accounts = ", ".join(
        facts.name if facts.dataset == facts.name else f"{facts.name} ({facts.dataset})"
        for facts in asked.resolved.parties
    )
    text = f"charged: ε = {limit.epsilon:g} per {limit.unit} at δ = {limit.delta:g}, once for the file, at {accounts}"
    print(textwrap.fill(text, text_width()))
    written = [asked.folder.path / "answers.json"] if new else []
    for path in (*written, *(() if output is None else (output,))):
        print(f"wrote {path}")
    if plot is not None:
        print(f"wrote {plot}")
    print_next(["ledger", "show", *[word for word in where if word == "--workspace" or where[0] == "--workspace"]])
    return 0


def _show(answer: Answer, level: float) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(f"{printable(answer.name)}: {printable(answer.sentence)}"), title_justify="left")
    table.add_column("")
    table.add_column("estimate", justify="right")
    table.add_column(f"{100 * level:g} %, noise alone", justify="right")
    table.add_column("of the population", justify="right")
    width = min((end - start for start, end in (one.noise for one in answer.estimates) if end > start), default=0.0)
    for one in answer.estimates:
        population = "" if one.population is None else _range(one.population, width)
        table.add_row(Text(printable(one.label)), in_figures(one.value, width), _range(one.noise, width), population)
    console().print(table)
    if answer.test is not None:
        test, kind = answer.test, "log-rank test" if answer.kind == "survival" else "test"
        degrees = f"{test['degrees']:g} degree" + "s" * (test["degrees"] != 1)
        print(f"{kind}: χ² = {test['statistic']:.3f} on {degrees} of freedom, p = {test['p']:.2g}")
    for remark in answer.remarks:
        print(textwrap.fill(remark, text_width()))


def in_figures(value: float, width: float) -> str:
    """A number as precisely as an interval of this ``width`` deserves: to about a fiftieth of it.

    >>> in_figures(203_012.34, 57.0), in_figures(0.66666, 0.1), in_figures(54.6612, 3.8)
    ('203,012', '0.67', '54.7')
    """
    digits = min(max(1 - math.floor(math.log10(width)), 0), 12) if 0 < width < math.inf else 4
    return f"{value:,.{digits}f}"


def _range(interval: tuple[float, float], width: float) -> str:
    return f"{in_figures(interval[0], width)} to {in_figures(interval[1], width)}"


# ---------------------------------------------------------------------------------------------------- the picture


def _drawable(known: list[tuple[str, str]], wanted: str | None) -> str:
    """The question that is drawn: the one that is named, or the first that can be."""
    drawn = [name for name, kind in known if kind in ("histogram", "survival", "quantiles")]
    if wanted is not None and wanted not in drawn:
        remedy = f"choose among {', '.join(drawn)}" if drawn else "ask for a histogram or a survival curve"
        raise InvalidParameter("question", wanted, "cannot be drawn", remedy)
    if not drawn:
        raise InvalidParameter("plot", "", "has nothing to draw", "ask for a histogram or a survival curve")
    return wanted or drawn[0]


def _plot(asked: Asked, path: Path, wanted: str | None) -> None:
    from quietsum import charts
    from quietsum.analytics import choose_budget
    from quietsum.runs import task_in

    name = _drawable([(one.name, one.kind) for one in asked.answers], wanted)
    answer = next(one for one in asked.answers if one.name == name)
    design = task_in(asked.resolved.plan, asked.folder.run).design
    limit = choose_budget(asked.resolved)
    about = "for the population" if answer.kind == "survival" else "for the noise alone"
    note = f"{100 * asked.level:g} % intervals {about}; ε = {limit.epsilon:g} per {limit.unit} at δ = {limit.delta:g}"
    charts.save_picture(picture_of(answer, design, note), str(path))


def picture_of(answer: Answer, design: Any, note: str) -> str:
    """An SVG of one answer, its intervals as error bars."""
    from quietsum.charts import Chart, Series, decimals, interval_svg, svg

    question = next(one for one in design.questions if one.name == answer.name)
    if answer.kind == "survival":
        from quietsum.analytics import series_of

        lines = series_of(design, question, answer)
        dashes: Any = ("solid", "dashed", "dotted")
        series = tuple(
            Series(
                label=f"{question.group} = {label}" if label else "all",
                points=points,
                bars=bars,
                dash=dashes[index % 3],
            )
            for index, (label, points, bars) in enumerate(lines)
        )
        y_label = "share without event"
        return svg(Chart(title=answer.name, x_label=question.time, y_label=y_label, series=series, note=note))
    rows = [(printable(one.label), one.value, *one.noise) for one in answer.estimates]
    shown = decimals(one.noise[1] - one.noise[0] for one in answer.estimates)
    x_label = question.column if answer.kind == "quantiles" else "records"
    return interval_svg(answer.name, x_label, rows, note=note, shown=shown)

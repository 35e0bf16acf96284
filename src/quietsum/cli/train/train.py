"""``quietsum train``: one site, one model, every epoch paid for first."""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import bounds, facts, print_json, print_next, text_width
from quietsum.errors import InvalidParameter, QuietsumError, printable
from quietsum.files import write_atomically

if TYPE_CHECKING:
    from quietsum.learning import Epoch, PrivateTrainer, TrainingHistory
    from quietsum.runs import Workspace
    from quietsum.tasks import Metrics, TorchTask

__all__ = ["train"]

TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help="digits, mnist, fraud, … or my_module:MyTask.",
        show_default=False,
        autocompletion=opt.complete_task,
    ),
]
EpsilonOption = Annotated[
    float | None,
    typer.Option("--epsilon", "-e", metavar="ε", help="What one record may cost.", show_default=False),
]
DeltaOption = Annotated[
    float | None, typer.Option("--delta", "-d", metavar="δ", help="\\[default: 1/(10 n)]", show_default=False)
]
EpochsOption = Annotated[
    int | None, typer.Option("--epochs", metavar="N", help="\\[default: the task's]", show_default=False)
]
BatchOption = Annotated[
    int | None,
    typer.Option("--batch-size", metavar="N", help="Expected batch. \\[default: the task's]", show_default=False),
]
RateOption = Annotated[
    float | None, typer.Option("--learning-rate", metavar="R", help="\\[default: the task's]", show_default=False)
]
NormOption = Annotated[
    float | None,
    typer.Option("--max-grad-norm", metavar="C", help="Clip norm. \\[default: the task's]", show_default=False),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine", metavar="NAME", show_default=False,
        help="auto, bookkeeping, vmap, opacus, opacus-ghost, naive or compiled. \\[default: auto]",
    ),
]  # fmt: skip
NoiseModeOption = Annotated[
    str | None,
    typer.Option(
        "--noise", metavar="MODE", help="secure: on an integer grid; or fast. \\[default: secure]", show_default=False
    ),
]
PersonOption = Annotated[
    float | None,
    typer.Option(
        "--person-epsilon", metavar="ε", help="What a person may cost, with --max-records.", show_default=False
    ),
]
FixOption = Annotated[bool, typer.Option("--fix", help="Replace batch norms by group norms.")]
ResumeOption = Annotated[
    str | None, typer.Option("--resume", metavar="RUN", help="Go on with this run.", show_default=False)
]


PeopleOption = Annotated[
    int | None,
    typer.Option("--max-records", metavar="K", help="Records of one person, at most.", show_default=False),
]
AuditOption = Annotated[
    int | None,
    typer.Option(
        "--audit", metavar="N", help="Carry N canaries for quietsum audit; 500 are usual.", show_default=False
    ),
]


def train(
    task: TaskOption = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    epochs: EpochsOption = None,
    batch_size: BatchOption = None,
    learning_rate: RateOption = None,
    max_grad_norm: NormOption = None,
    max_records: PeopleOption = None,
    person_epsilon: PersonOption = None,
    engine: EngineOption = None,
    noise: NoiseModeOption = None,
    fix: FixOption = False,
    audit: AuditOption = None,
    same_rows: opt.SameRowsOption = "",
    workspace: opt.WorkspaceOption = None,
    resume: ResumeOption = None,
    as_json: opt.JsonOption = False,
) -> int:
    """Train one model on one site's records, privately.

    Example: quietsum train --task digits --epsilon 3

    The noise is calibrated so that the whole run costs ε per record; every
    epoch is charged to the workspace's ledger before it begins. With
    --max-records, on tasks that know whose a record is, what a whole person
    pays stands beside it; with --person-epsilon the noise is calibrated to it.
    """
    from quietsum.runs import Workspace
    from quietsum.tasks import trainable_task

    place = Workspace.at(workspace)
    if resume is not None:
        typed = {
            "--task": task, "--epsilon": epsilon, "--delta": delta, "--epochs": epochs, "--batch-size": batch_size,
            "--learning-rate": learning_rate, "--max-grad-norm": max_grad_norm, "--max-records": max_records,
            "--person-epsilon": person_epsilon,
            "--engine": engine, "--noise": noise, "--fix": fix or None, "--audit": audit,
        }  # fmt: skip
        given = [name for name, value in typed.items() if value is not None]
        if given:
            verb = "is" if len(given) == 1 else "are"
            raise QuietsumError(
                f"--resume {resume} goes on with that run's own options, and {', '.join(given)} {verb} beside it: a "
                "run keeps its plan; leave that out, or begin a new run"
            )
        chosen = _read_options(place, resume)
    else:
        if task is None or (epsilon is None and person_epsilon is None):
            missing = "--task" if task is None else "--epsilon"
            raise QuietsumError(f"{missing} is missing; for instance: quietsum train --task digits --epsilon 3")
        chosen = {
            "task": task, "engine": engine or "auto", "noise": noise or "secure", "fix": fix,
            "learning_rate": learning_rate,
            "config": {
                "epsilon": epsilon, "delta": delta, "epochs": epochs, "batch_size": batch_size,
                "max_grad_norm": max_grad_norm, "max_records": max_records, "person_epsilon": person_epsilon,
            },
            **({} if audit is None else {"audit": audit}),
        }  # fmt: skip
    return _go(trainable_task(chosen["task"]), chosen, place, workspace, resume, as_json, same_rows)


def _go(
    work: TorchTask,
    chosen: dict[str, Any],
    place: Workspace,
    workspace: str | None,
    resume: str | None,
    as_json: bool,
    same_rows: str = "",
) -> int:
    from quietsum.alerts import Alerts
    from quietsum.learning import Canaries, PrivacyConfig, PrivateTrainer, find_uncovered_norms, fix_batch_norm
    from quietsum.runs import new_name

    _check_ledger(place)
    if callable(getattr(work, "sites", None)) and not str(work.public).strip():
        raise QuietsumError(
            f"the protected records of {work.name} lie at sites that keep books of their own, and a second book would "
            'let each record be spent twice; run it as a federation (quietsum run, split = "natural")'
        )
    settings = work.settings
    stated = {name: value for name, value in chosen["config"].items() if value is not None}
    config = PrivacyConfig(
        **{**settings.training, "public_size": work.size, **stated}, engine=chosen["engine"], noise=chosen["noise"]
    )
    people = _people(work, config.max_records)
    rate = settings.learning_rate if chosen["learning_rate"] is None else chosen["learning_rate"]
    model = fix_batch_norm(work.model()) if chosen["fix"] else work.model()
    run = resume or new_name(work.name)
    untrained = work.evaluate(model)
    where = untrained.on
    screen = _Screen(quiet=as_json)
    alerts = Alerts.at(place.path, terminal=True)
    trainer = PrivateTrainer(
        model, config, loss=work.loss, workspace=place.path, run=run, dataset=work.name, public=work.public,
        metrics=lambda trained: work.evaluate(trained).values, watch=screen.saw, same_rows=same_rows,
        alerts=alerts, audit=None if chosen.get("audit") is None else Canaries(count=chosen["audit"]),
    )  # fmt: skip
    if not as_json:
        print(textwrap.fill(f"{printable(work.title)}: {work.size} records; scores stand on {where}", text_width()))
        if work.public:
            print(textwrap.fill(f"No lifetime budget is used: {work.public}.", text_width()))
        if chosen.get("audit") is not None:
            _print_canaries(chosen["audit"], work.size)
        print(f"run {run}" + (" goes on after its last checkpoint" if resume else ""))
    if config.noise == "secure" and (told := find_uncovered_norms(model)):
        print(textwrap.fill(f"warning: {told}", text_width()), file=sys.stderr)
    records = work.records()
    if resume is None:
        folder = place.path / "training" / run
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "options.json", json.dumps(chosen, indent=2).encode() + b"\n")
    try:
        history = trainer.train(
            records,
            learning_rate=rate,
            optimizer=settings.optimizer,
            resume=resume is not None,
            val_name=where,
            people=people,
            progress=False,
        )
        _finish(trainer, history, run, place, workspace, untrained, as_json)
    finally:
        trainer.close()
        alerts.close()
        if resume is None and trainer.plan is None:  # refused before it was opened: there is nothing to go on with
            _forget(place, run)
    return 0


def _print_canaries(count: int, size: int) -> None:
    """What canaries cost: half of them are in, each one more row."""
    share = count / 2 / max(1, size)
    text = f"For an audit it carries {count} canaries: about {100 * share:.1f} % more rows; ε stays what it is."
    print(textwrap.fill(text, text_width()))
    if share > 0.05:
        fitting = f"{size // 10} would be at most a twentieth"
        print(
            textwrap.fill(f"warning: that is more than a twentieth of the work; {fitting}", text_width()),
            file=sys.stderr,
        )


def _people(work: TorchTask, most: int | None) -> Any:
    """Whose each record is, where a bound on people is asked for."""
    if most is None:
        return None
    people = getattr(work, "people", None)
    if people is None:
        problem = f"bounds people, and {work.name} does not know whose its records are"
        raise InvalidParameter("max_records", most, problem, "leave it out, or use a task with people, such as cards")
    return people()


def _forget(place: Workspace, run: str) -> None:
    folder = place.path / "training" / run
    for name in ("options.json", ".lock"):
        (folder / name).unlink(missing_ok=True)
    for empty in (folder, folder.parent):
        with contextlib.suppress(OSError):  # something else is in there
            empty.rmdir()


def _check_ledger(place: Workspace) -> None:
    """A ledger that was rolled back behind the workspace's federated runs pays for nothing."""
    from quietsum.ledger import ledger_exists

    if place.has_runs() and ledger_exists(place.ledger):
        from quietsum.ledger import Ledger
        from quietsum.runs import check_anchors

        with Ledger.open(place.ledger, read_only=True, trusted=True) as ledger:
            check_anchors(ledger, place)


def _read_options(place: Workspace, run: str) -> dict[str, Any]:
    path = place.path / "training" / run / "options.json"
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return values
    except FileNotFoundError:
        known = ", ".join(_runs_in(place)) or "none yet"
        raise InvalidParameter("resume", run, f"is no training run in {place.path}", f"known: {known}") from None
    except (OSError, ValueError) as error:
        raise InvalidParameter("resume", run, f"has options that cannot be read ({error})", "restore them") from None


def _runs_in(place: Workspace) -> list[str]:
    """The runs with options that the ledger knows: a run that was refused has nothing to go on with."""
    from quietsum.ledger import Ledger, ledger_exists

    if not ledger_exists(place.ledger):
        return []
    with Ledger.open(place.ledger, read_only=True, trusted=True) as ledger:
        runs = {summary.run for summary in ledger.runs()}
    return sorted(
        path.parent.name for path in (place.path / "training").glob("*/options.json") if path.parent.name in runs
    )


class _Screen:
    """A line on a terminal that is written over, and a plain line for about every tenth epoch elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._live = quiet, sys.stdout.isatty()

    def saw(self, epoch: Epoch) -> None:
        from quietsum.learning import progress_line

        if self._quiet:
            return
        line = progress_line(epoch)
        last = epoch.epoch == epoch.epochs
        if self._live:
            width = text_width()
            print(f"\r{line[:width]:<{width}}", end="\n" if last else "", flush=True)
        elif last or epoch.epoch % max(1, epoch.epochs // 10) == 0:
            print(textwrap.shorten(line, text_width(), placeholder=" …"))


def _finish(
    trainer: PrivateTrainer,
    history: TrainingHistory,
    run: str,
    place: Workspace,
    workspace: str | None,
    untrained: Metrics,
    as_json: bool,
) -> None:
    from quietsum.report import judge_scores

    guarantee, plan = history.guarantee, trainer.plan
    assert plan is not None
    model = place.path / "training" / run / "model.safetensors"
    last, where = history.epochs[-1], untrained.on
    scores: list[dict[str, Any]] = [
        {"name": name, "value": value, "on": where, **_chance(untrained, name)} for name, value in last.metrics.items()
    ]
    verdict = judge_scores(scores, {})
    _keep_scores(model, scores)
    person = trainer.person_guarantee()
    if as_json:
        print_json({
            "run": run, "model": str(model), "engine": trainer.engine, "stopped": history.stopped,
            "guarantee": guarantee.to_dict(), "plan": plan.to_dict(),
            "person": None if person is None else person.to_dict(),
            "metrics": scores, "verdict": verdict,
        })  # fmt: skip
        return
    print()
    print(f"{bounds(guarantee)} per record at δ = {guarantee.delta:.3g}")
    if person is not None:
        print(f"{bounds(person)} per person at δ = {person.delta:.3g}, of at most {person.group_size} records")
        if person.epsilon < guarantee.epsilon:
            print("No person takes the place of one who leaves, so it costs less than one record.")
    for name, text in facts(guarantee):
        print(textwrap.fill(f"{name:<11} {text}", text_width(), subsequent_indent=" " * 12))
    steps = f"{plan.steps} of {plan.expected_batch:g} expected records, noise multiplier "
    print(f"{'steps':<11} {steps}{plan.stages[0].noise_multiplier:.4g}")
    print(textwrap.fill(f"{'engine':<11} {trainer.engine}", text_width(), subsequent_indent=" " * 12))
    for warning in dict.fromkeys((*guarantee.warnings, *(() if person is None else person.warnings))):
        print(textwrap.fill(f"{'warning':<11} {warning}", text_width(), subsequent_indent=" " * 12))
    for one in scores:
        beside = f", {one['chance']:.4f} by chance" if "chance" in one else ""
        print(
            textwrap.fill(
                f"{one['name']:<11} {one['value']:.4f} on {where}{beside}", text_width(), subsequent_indent=" " * 12
            )
        )
    if verdict:
        print(textwrap.fill(verdict, text_width()))
    print(f"wrote {model}")
    place_option = [] if workspace is None else ["--workspace", workspace]
    print_next(["show", run, *place_option] if trainer.canaries is None else ["audit", run, *place_option])


def _chance(untrained: Metrics, name: str) -> dict[str, float]:
    """What a model that knows nothing scores, where the task knows it."""
    return {"chance": untrained.chance[name]} if name in untrained.chance else {}


def _keep_scores(model: Path, scores: list[dict[str, Any]]) -> None:
    """Write the last scores beside the model that they are about, for its report."""
    from quietsum.report import SCORES_FILE, hash_file
    from quietsum.runs import add_check

    values = add_check({"model": hash_file(model)[1], "scores": scores})
    write_atomically(model.with_name(SCORES_FILE), json.dumps(values, indent=2, ensure_ascii=False).encode() + b"\n")

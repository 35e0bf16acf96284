"""``quietsum new``: a commented run.toml to start from."""

from __future__ import annotations

import enum
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quietsum.cli.shared.options import JsonOption, complete_task
from quietsum.cli.train import new_table as of
from quietsum.cli.train.new_samples import SamplesDraft, draft_samples, is_samples, say_about_samples
from quietsum.errors import InvalidParameter

if TYPE_CHECKING:
    from quietsum.plan import Plan
    from quietsum.tasks import TableDraft

__all__ = ["new"]


class PresetName(enum.StrEnum):
    """Promises with a name."""

    PRIVACY_HIGH = "privacy_high"
    PRIVACY_MEDIUM = "privacy_medium"
    PERFORMANCE = "performance"


class StyleName(enum.StrEnum):
    """Whom the plan protects."""

    SAMPLE = "sample"
    USER = "user"
    HYBRID = "hybrid"


def new(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where to write the plan.")] = Path("run.toml"),
    preset: Annotated[
        PresetName | None, typer.Option("--preset", help="A promise with a name.", show_default=False)
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="NAME",
            help='A task, or "my_module:MyTask". \\[default: heart]',
            show_default=False,
            autocompletion=complete_task,
        ),
    ] = None,
    table: of.FromOption = None,
    label: of.LabelOption = "",
    site_column: of.SiteColumnOption = "",
    person_column: of.PersonColumnOption = "",
    declare: of.DeclareOption = None,
    site: of.SiteOption = None,
    columns: of.ColumnsOption = None,
    public: of.PublicOption = "",
    holdout: of.HoldoutOption = None,
    holdout_public: of.HoldoutPublicOption = "",
    classes: of.ClassesOption = None,
    side: of.SideOption = 64,
    model: of.ModelOption = "",
    encoding: of.EncodingOption = "utf-8",
    delimiter: of.DelimiterOption = "",
    decimal: of.DecimalOption = ".",
    style: Annotated[
        StyleName, typer.Option("--style", help="Protect each record, each client (user), or both (hybrid).")
    ] = StyleName.SAMPLE,
    secure: Annotated[bool, typer.Option("--secure", help="Masked sums, and noise in shares.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a commented run.toml to start from. No data is needed.

    Example: quietsum new run.toml --task digits --style user
    Example: quietsum new run.toml --from visits.csv --label back --site-column ward

    With --from, TABLE's first line names the columns, and no row is read. What
    a header does not say is declared, or left blank for you to fill in: types,
    ranges, classes, sizes. Rows are read if --public says why they may be.
    TABLE may be a folder of pictures, class/name.png, or landmarks in an .npz.
    """
    from quietsum.cli.shared.output import print_json, print_next, text_width
    from quietsum.plan import load_plan, template

    asked = of.FromOptions(
        label=label, site_column=site_column, person_column=person_column, declare=tuple(declare or ()),
        site=tuple(site or ()), columns=columns, public=public, holdout=holdout, holdout_public=holdout_public,
        classes=tuple(classes or ()), side=side, model=model, encoding=encoding, delimiter=delimiter, decimal=decimal,
    )  # fmt: skip
    draft: TableDraft | SamplesDraft | None = None
    if table is None:
        asked.refuse_alone()
        task = task or "heart"
        _check_task(task)
        text = template(task=task, preset=preset.value if preset else None, style=style.value, secure=secure)
    else:
        if task is not None:
            raise InvalidParameter("--task", task, "does not go with --from", "a table is a task of its own")
        draft = draft_samples(table, asked) if is_samples(table) else of.draft_from(table, asked)
        stated = draft.options if isinstance(draft, SamplesDraft) else draft.to_options()
        person = str(stated.get("person_column", "") or stated.get("person", ""))
        text = template(
            task=draft.task, preset=preset.value if preset else None, style=style.value, secure=secure,
            options=draft.to_toml(), settings=of.settings_for(stated, person),
        )  # fmt: skip
    plan = load_plan(text)
    _write(file, text, force=force)
    blanks = [] if draft is None else of.blanks_of(plan)
    if as_json:
        privacy = plan.privacy
        told = {"task": plan.task.name, "style": privacy.style.value, "preset": privacy.preset, "digest": plan.digest}
        print_json({"file": str(file), **told, **({} if draft is None else {"to_fill_in": blanks})})
        return
    print(f"wrote {file}")
    print(f"task {plan.task.name}, {plan.federation.rounds} rounds, {_promises(plan)}; nothing is spent yet")
    if draft is not None:
        say_about_samples(draft, blanks) if isinstance(draft, SamplesDraft) else of.say_about(draft, blanks)
    promises = (plan.privacy.record, plan.privacy.client)
    protected = ":" in plan.task.name or (draft is not None and not public.strip())
    if protected and not any(one is not None and one.lifetime is not None for one in promises):
        text = (
            "no lifetime is stated, so this run would be the last one on protected data; see quietsum explain lifetime"
        )
        print(textwrap.fill(text, text_width()))
    print_next(["plan", file])


def _check_task(task: str) -> None:
    """Refuse an unknown name with the nearest one. Nothing is made, so neither data nor torch is needed."""
    from quietsum.tasks import TASKS, TRAINABLE, nearest_name, refuse_path

    refuse_path(task)
    if ":" in task or task in TASKS or task in TRAINABLE:
        return
    remedy = nearest_name(task, (*TASKS, *TRAINABLE), 'or write "my_module:MyTask"')
    raise InvalidParameter("task", task, "is not known", remedy)


def _promises(plan: Plan) -> str:
    """One part for each unit, never a sum."""
    record, client = plan.privacy.record, plan.privacy.client
    told = []
    if plan.privacy.preset is not None:
        told.append(f"preset {plan.privacy.preset} per record")
    elif record is not None:
        told.append(f"ε {record.epsilon:g} per record")
    if client is not None:
        told.append(f"ε {client.epsilon:g} per client")
    return " and ".join(told)


def _write(path: Path, text: str, *, force: bool) -> None:
    """All of ``text`` at ``path``, or nothing; an existing file stays unless ``force`` is given."""
    import os

    from quietsum.files import DiskFull, NoRoom, write_atomically

    if path.is_dir():
        raise InvalidParameter("FILE", str(path), "is a directory", f"name a file, {path / 'run.toml'} for instance")
    try:
        if not force and os.path.lexists(path):
            raise FileExistsError
        write_atomically(path, text.encode(), replace=force, remedy="choose another place")
    except FileExistsError:
        raise InvalidParameter(
            "FILE", str(path), "exists already", "choose another name, or add --force to overwrite"
        ) from None
    except DiskFull:
        raise
    except (NoRoom, ValueError) as error:
        reason = str(error).split(": ", 1)[-1].split(";")[0]
        raise InvalidParameter("FILE", str(path), f"cannot be written ({reason})", "choose another place") from None

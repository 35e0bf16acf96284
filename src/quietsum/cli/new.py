"""``quietsum new``: a commented run.toml to start from."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from quietsum.cli.options import JsonOption
from quietsum.errors import InvalidParameter

__all__ = ["new"]


class PresetName(enum.StrEnum):
    """Promises with a name."""

    PRIVACY_HIGH = "privacy_high"
    PRIVACY_MEDIUM = "privacy_medium"
    PERFORMANCE = "performance"


def new(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where to write the plan.")] = Path("run.toml"),
    preset: Annotated[
        PresetName | None, typer.Option("--preset", help="A promise with a name.", show_default=False)
    ] = None,
    task: Annotated[str, typer.Option("--task", metavar="NAME", help='A task, or "my_module:MyTask".')] = "heart",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a commented run.toml to start from.

    Example: quietsum new run.toml --preset privacy_medium
    """
    from quietsum.cli.output import print_json, print_next
    from quietsum.plan import load_plan
    from quietsum.plan.template import template

    if ":" not in task:
        from quietsum.tasks import task_named

        task_named(task, {})  # an unknown name is refused here, with the nearest one
    text = template(task=task, preset=preset.value if preset else None)
    plan = load_plan(text)
    _write(file, text, force=force)
    if as_json:
        print_json({"file": str(file), "task": plan.task.name, "preset": plan.privacy.preset, "digest": plan.digest})
        return
    record = plan.privacy.record
    stated = f"ε {record.epsilon:g} per record" if record and record.epsilon else f"preset {plan.privacy.preset}"
    print(f"wrote {file}")
    print(f"task {plan.task.name}, {plan.federation.rounds} rounds, {stated}; nothing is spent yet")
    print_next(["plan", file])


def _write(path: Path, text: str, *, force: bool) -> None:
    """All of ``text`` at ``path``, or nothing; an existing file stays unless ``force`` is given."""
    import os
    import tempfile

    if path.is_dir():
        raise InvalidParameter("FILE", str(path), "is a directory", f"name a file, {path / 'run.toml'} for instance")
    try:
        if not force and os.path.lexists(path):
            raise FileExistsError
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".new")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(draft, 0o666 & ~mask)
            if force or not _linked(draft, path):
                os.replace(draft, path)
        finally:
            if os.path.lexists(draft):
                os.unlink(draft)
    except FileExistsError:
        raise InvalidParameter(
            "FILE", str(path), "exists already", "choose another name, or add --force to overwrite"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidParameter("FILE", str(path), f"cannot be written ({reason})", "choose another place") from None


def _linked(draft: str, path: Path) -> bool:
    """Give ``draft`` its name: unlike a rename, this never takes the place of a file that has just appeared."""
    import os

    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(path):
            raise FileExistsError from None
        return False
    return True

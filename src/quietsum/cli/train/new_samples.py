"""``quietsum new --from`` a folder of pictures by class, or a file of landmarks in motion."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quietsum.errors import InvalidParameter, printable

if TYPE_CHECKING:
    from quietsum.cli.train.new_table import FromOptions

__all__ = ["SamplesDraft", "draft_samples", "is_samples", "say_about_samples"]


def is_samples(path: Path) -> bool:
    """Whether ``path`` is a folder, or a file of arrays."""
    try:
        return path.is_dir() or path.suffix.lower() == ".npz"
    except (OSError, ValueError):
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplesDraft:
    """A task's name, its options, and in words what of the data was looked at."""

    task: str
    options: Mapping[str, Any]
    looked_at: str

    def to_toml(self) -> str:
        """``[task.options]`` as a text."""
        from quietsum.tasks import toml_of

        lines = ["[task.options]"]
        for name, value in self.options.items():
            blank = (name == "classes" and not value) or (name == "sites" and not all(one["size"] for one in value))
            lines.append(f"{name} = {toml_of(value)}{'  # fill in' if blank else ''}")
        return "\n".join(lines)


def draft_samples(path: Path, asked: FromOptions) -> SamplesDraft:
    """The draft for a folder or an ``.npz`` file. Guarantees: records are read only if they are declared public."""
    from quietsum.tasks import require_torch

    require_torch()
    from quietsum.tasks import class_folders, count_samples, parse_site, shape_of_landmarks

    refused = ("label", "site_column", "declare", "columns", "encoding", "delimiter", "decimal")
    for name in refused:
        if getattr(asked, name) != next(one.default for one in dataclasses.fields(asked) if one.name == name):
            problem = f"is about a table, and {path.name} {'is a folder' if path.is_dir() else 'holds arrays'}"
            raise InvalidParameter(f"--{name.replace('_', '-')}", "…", problem, "leave it out")
    stem = re.sub(r"\W+", "-", path.resolve().stem).strip("-") or "samples"
    sites = [parse_site(text) for text in asked.site]
    options: dict[str, Any] = {"name": stem, "path": str(path)}
    if path.is_dir():
        task = "images"
        options["classes"] = list(class_folders(path / sites[0]["name"] if len(sites) > 1 else path))
        options["side"] = asked.side
        looked_at = f"the folders in {path} are the classes, public by this layout: {', '.join(options['classes'])}"
    else:
        task = "landmarks"
        frames, joints, dims, names = shape_of_landmarks(path)
        options |= {"classes": list(asked.classes), "frames": frames, "joints": joints, "dims": dims}
        options |= {"person": asked.person_column or "person"} if "people" in names else {}
        looked_at = f"of {path} the shape of a clip was read ({frames} frames, {joints} joints), and no clip"
        if asked.person_column and "people" not in names:
            raise InvalidParameter("--person-column", asked.person_column, "needs people in the file", "add them")
    options["sites"] = sites or [{"name": stem, "size": 0}]
    if asked.model not in ("", "linear", "network"):
        raise InvalidParameter("--model", asked.model, "is not known", "choose network or linear")
    options["model"] = asked.model or "network"
    asked.check_holdout()
    if asked.public.strip():
        options |= {"public": asked.public.strip(), **({} if asked.holdout else {"held_out": 0.2})}
        options = count_samples(task, options)
        looked_at += f"; records were read, since they need no protection: {asked.public.strip()}"
    if asked.holdout is not None:
        options |= {"holdout": str(asked.holdout), "holdout_public": asked.holdout_public.strip()}
    options["stated"] = "by the holder" if not asked.public else "read off records that need no protection"
    return SamplesDraft(task=task, options=options, looked_at=looked_at)


def say_about_samples(draft: SamplesDraft, blanks: Sequence[str]) -> None:
    """Say what was looked at, and what is left to do."""
    from quietsum.cli.shared.output import text_width

    told = [draft.looked_at]
    if "holdout" not in draft.options and "held_out" not in draft.options:
        told.append("no records are declared public, so there will be no score: --holdout names some")
    for words in (*told, *(["to be filled in before it can be planned:"] if blanks else []), *blanks):
        print(textwrap.fill(printable(words), text_width(), subsequent_indent="  ", break_on_hyphens=False))

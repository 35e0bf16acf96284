"""What a run's task says about itself, kept in the run's folder, so that a look at a run need not make the task.

A workspace may come from a stranger. ``quietsum runs``, ``show`` and ``compare`` read: the plan, the ledger, the
checkpoints, and ``task.json``, which the run wrote when it began. They never import or make what a plan names.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from quietsum.errors import CorruptState, QuietsumError, printable
from quietsum.files import read_file, write_atomically
from quietsum.plan import PartyFacts
from quietsum.runs.sealed import add_check, take_check
from quietsum.validate import whole_number

if TYPE_CHECKING:
    from quietsum.ledger import Ledger
    from quietsum.plan import Plan
    from quietsum.tasks import Task

__all__ = ["FILE", "TaskFacts"]

FILE = "task.json"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """The public words of a task: its title, the size of its model and its parties. Sizes are declared."""

    title: str
    dimension: int
    parties: tuple[PartyFacts, ...]

    @classmethod
    def of(cls, task: Task) -> Self:
        """What ``task`` says."""
        return cls(title=printable(str(task.title)), dimension=int(task.dimension), parties=tuple(task.parties()))

    def write(self, folder: Path) -> None:
        """Keep it in a run's folder."""
        values = {
            "title": self.title, "dimension": self.dimension,
            "parties": [dataclasses.asdict(party) for party in self.parties],
        }  # fmt: skip
        write_atomically(folder / FILE, json.dumps(add_check(values), ensure_ascii=False).encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """What :meth:`write` kept; None in folders of older versions, which kept nothing."""
        path = folder / FILE
        try:
            values = take_check(json.loads(read_file(path)))
            return cls(
                title=printable(_text(values["title"])),
                dimension=whole_number("dimension", values["dimension"], 1),
                parties=tuple(PartyFacts(**party) for party in values["parties"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, RecursionError, QuietsumError) as error:
            raise CorruptState(f"{path} cannot be read ({error}); restore it, or delete it and use --resume") from None

    @classmethod
    def from_ledger(cls, ledger: Ledger, run: str, plan: Plan, dimension: int) -> Self | None:
        """What the ledger's entry of a run tells of an older folder; None where its clients were dealt out."""
        if plan.federation.split != "natural" or isinstance(plan.federation.parties, int):
            return None
        parties = tuple(
            PartyFacts(name=one["party"], dataset=one["dataset"], size=one["size"], public=one["public"])
            for one in ledger.run_entry(run).body["datasets"]
        )
        return cls(title=plan.task.name, dimension=dimension, parties=parties)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a title is a text")
    return value

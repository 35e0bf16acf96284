"""What ``[task.options]`` of a task from a table says: columns, label, sites, model and where the files lie.

Everything that decides how a row becomes numbers stands in the plan: each column with its type and its range or
categories, the classes, the declared sizes. So all sites encode alike, the plan's digest binds it, and nothing of it is
counted from protected rows. ``quietsum new --from`` writes it; what it does not know it leaves blank, and
:func:`refuse_blanks` says what is missing, one sentence for each.

>>> options = TableOptions(label={"name": "back", "kind": "category", "categories": ["no", "yes"]},
...                        columns=[{"name": "age", "kind": ""}], sites=[{"name": "north", "size": 0}])
>>> for sentence in find_blanks(options):
...     print(sentence)
columns: age has no kind: say kind = "number" with bounds = [lowest, highest], or kind = "category" with \
categories = ["one", "other"]; or delete a line, or say kind = "identifier"
sites: north has no size: declare a round number above its rows, which is public
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

from quietsum.analytics import Column
from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.keys import FRACTION, NAME, choices, declarations, key, table, whole
from quietsum.plan import Options, PartyFacts

__all__ = ["ENCODINGS", "MOST_COLUMNS", "TableOptions", "find_blanks", "refuse_blanks", "refuse_own_records"]

ENCODINGS: Final = ("utf-8", "latin-1", "cp1252", "utf-16")
MOST_COLUMNS: Final = 2000
"""Columns that a model reads; noise grows with each, and more are a slip of the pen."""
_SITE: Final = frozenset({"name", "size", "dataset", "public"})
_KINDS = 'say kind = "number" with bounds = [lowest, highest], or kind = "category" with categories = ["one", "other"]'


@final
@table
class TableOptions:
    """The options of a task from a table. A site adds where its own file lies, under ``here`` of its policy."""

    name: str = key("What the table is called; budgets are kept under this name.", default="table", bound=NAME)
    label: Mapping[str, Any] = key("The column that is learned: a category, or a number.", default_factory=Options)
    columns: tuple[Mapping[str, Any], ...] = key("The columns, each as everybody may know it.", default=())
    sites: tuple[Mapping[str, Any], ...] = key("Who holds rows, with declared sizes.", default=())
    table: str = key("The file that holds the rows, of all sites or of the one that reads it.", default="")
    tables: Mapping[str, Any] = key("Instead of one file: a file for each site.", default_factory=Options)
    site_column: str = key("The column that says at which site a row lies.", default="")
    person_column: str = key("The column that says whose a row is.", default="")
    model: str = key("A linear model, or one hidden layer.", default="linear", bound=choices("linear", "mlp"))
    hidden: int = key("With mlp: units of the hidden layer.", default=16, bound=whole(1, 1024))
    delimiter: str = key("What separates fields.", default=",", bound=choices(",", ";", "\t", "|"))
    decimal: str = key("The decimal sign.", default=".", bound=choices(".", ","))
    encoding: str = key("How the file writes letters.", default="utf-8", bound=choices(*ENCODINGS))
    public: str = key("Why no row needs protection; leave it out for protected rows.", default="")
    held_out: float = key("The share of public rows that is scored and not trained on.", default=0.0, bound=FRACTION)
    holdout: str = key("A file of other rows, which need no protection: models are scored on it.", default="")
    holdout_public: str = key("Why the rows of that file need no protection.", default="")
    stated: str = key("How columns, classes and sizes came to be known.", default="")

    def __post_init__(self) -> None:
        if self.held_out and not self.public.strip():
            problem = "is scored, and the rows are protected"
            raise InvalidParameter("held_out", self.held_out, problem, "name a holdout, or say why the rows are public")
        if self.held_out == 1:
            raise InvalidParameter("held_out", 1, "leaves no row to train on", "0.2 scores a fifth of the rows")
        if len(self.columns) > MOST_COLUMNS:
            problem = f"are more than {MOST_COLUMNS:,}"
            raise InvalidParameter("columns", len(self.columns), problem, "keep those that say something")
        if self.delimiter == self.decimal:
            raise InvalidParameter("decimal", self.decimal, "separates fields, too", 'use delimiter = ";"')
        for place, one in enumerate(self.sites):
            if not set(one) <= _SITE or "name" not in one:
                problem = "is no site"
                raise InvalidParameter(f"sites[{place}]", "…", problem, f"known keys are {', '.join(sorted(_SITE))}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TableOptions:
        """The options that a plan states."""
        known = set(declarations(cls))
        if unknown := sorted(set(values) - known):
            problem = "is no option of a table"
            raise InvalidParameter(f"task.options.{unknown[0]}", "…", problem, f"known are {', '.join(sorted(known))}")
        return cls(**values)

    def read_columns(self) -> tuple[Column, ...]:
        """The columns that the model reads."""
        found = tuple(_column(f"columns[{place}]", one) for place, one in enumerate(self.columns))
        names = [column.name for column in found]
        for name in names:
            if names.count(name) > 1 or name in (self.label.get("name"), self.site_column, self.person_column):
                problem = "stands there twice" if names.count(name) > 1 else "is label, site or person"
                raise InvalidParameter("columns", name, problem, "name each column once")
        return tuple(column for column in found if column.kind != "identifier")

    def read_label(self) -> Column:
        """The column that is learned."""
        found = _column("label", self.label)
        if found.kind == "identifier":
            raise InvalidParameter("label", found.name, "tells people apart", "learn a category or a number")
        return found

    def read_sites(self) -> tuple[PartyFacts, ...]:
        """The sites, each with its dataset's name and its declared size."""
        alone = len(self.sites) == 1
        return tuple(
            PartyFacts(
                name=str(one["name"]), size=one["size"], public=str(one.get("public", "")) or self.public,
                dataset=str(one.get("dataset", "")) or (self.name if alone else f"{self.name}-{one['name']}"),
            )
            for one in self.sites
        )  # fmt: skip


def _column(where: str, values: Mapping[str, Any]) -> Column:
    try:
        return Column.from_dict(values)
    except InvalidParameter as error:
        name = str(values.get("name", "")) or where
        raise InvalidParameter(f"task.options.{where}", name, f"does not fit: {error}", "mend its line") from None


# ------------------------------------------------------------------------------------------------- what is missing


def find_blanks(options: TableOptions) -> Iterator[str]:
    """A sentence for each kind of thing that the holder has still to say."""
    label = str(options.label.get("name", ""))
    if not label.strip():
        yield 'label: no column is named: say label = { name = "outcome", kind = "category", categories = […] }'
    yield from _blank("label", [options.label] if label else [], _KINDS)
    yield from _blank("columns", options.columns, f'{_KINDS}; or delete a line, or say kind = "identifier"')
    if not options.columns:
        yield "columns: none is named, so there is nothing to learn from"
    if not options.sites:
        yield 'sites: none is named: say sites = [{ name = "north", size = 1200 }], with declared, public sizes'
    if unsized := [str(one["name"]) for one in options.sites if not one.get("size")]:
        yield f"sites: {_has(unsized)} no size: declare a round number above its rows, which is public"
    if options.holdout and not options.holdout_public.strip():
        yield 'holdout_public: say why the rows of the holdout need no protection: "published in 2024", for instance'


def _blank(where: str, columns: Sequence[Mapping[str, Any]], kinds: str) -> Iterator[str]:
    def lacking(kind: str, part: str) -> list[str]:
        return [str(one.get("name", "?")) for one in columns if one.get("kind", "") == kind and not one.get(part)]

    if found := lacking("", "kind"):
        yield f"{where}: {_has(found)} no kind: {kinds}"
    if found := lacking("number", "bounds"):
        yield f"{where}: {_has(found)} no bounds: say bounds = [lowest, highest], from what is known without the data"
    if found := lacking("category", "categories"):
        yield f'{where}: {_has(found)} no categories: list all that are public, categories = ["one", "other"]'


def _has(names: Sequence[str]) -> str:
    return f"{', '.join(names[:8])}{', …' if len(names) > 8 else ''} {'has' if len(names) == 1 else 'have'}"


def refuse_own_records(holdout: str, paths: Iterable[str], public: str) -> None:
    """Raise if ``holdout`` is one of the files or folders of the protected records themselves; nothing is opened."""
    if not holdout or public.strip():
        return
    for path in filter(None, paths):
        if _same_place(holdout, path):
            problem = "holds the protected records: scores on them are a release without a charge"
            raise InvalidParameter("task.options.holdout", holdout, problem, "name other records, or none")


def _same_place(one: str, other: str) -> bool:
    try:
        return Path(one).resolve() == Path(other).resolve()
    except (OSError, ValueError, RuntimeError):  # no path at all, as the reader says
        return False


def refuse_blanks(options: TableOptions) -> None:
    """Raise :class:`~quietsum.errors.PlanRefused` with all blanks at once."""
    if found := list(find_blanks(options)):
        raise PlanRefused("[task.options] is still to be filled in:\n  " + "\n  ".join(found))

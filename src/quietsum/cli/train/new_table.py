"""``quietsum new --from``: a run.toml for a table of one's own, with no class to write."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietsum.errors import InvalidParameter

if TYPE_CHECKING:
    from quietsum.plan import Plan
    from quietsum.tasks import TableDraft

__all__ = ["FromOptions", "blanks_of", "draft_from", "say_about", "settings_for"]

FromOption = Annotated[
    Path | None,
    typer.Option("--from", metavar="TABLE", help="Learn from this CSV file; no class is written.", show_default=False),
]
LabelOption = Annotated[
    str, typer.Option("--label", metavar="COLUMN", help="With --from: what is learned.", show_default=False)
]
SiteColumnOption = Annotated[
    str,
    typer.Option("--site-column", metavar="COLUMN", help="With --from: at which site a row lies.", show_default=False),
]
PersonColumnOption = Annotated[
    str, typer.Option("--person-column", metavar="COLUMN", help="With --from: whose a row is.", show_default=False)
]
DeclareOption = Annotated[
    list[str] | None,
    typer.Option(
        "--declare", metavar="COLUMN=…", show_default=False,
        help='With --from: what is known of a column, "age=number 0..120" or "ward=category north south".',
    ),
]  # fmt: skip
SiteOption = Annotated[
    list[str] | None,
    typer.Option(
        "--site", metavar="NAME=SIZE", help="With --from: a site and its declared, public size.", show_default=False
    ),
]
ColumnsOption = Annotated[
    Path | None,
    typer.Option(
        "--columns", metavar="DATA.TOML", help="With --from: columns from a reviewed data.toml.", show_default=False
    ),
]
PublicOption = Annotated[
    str,
    typer.Option(
        "--public", metavar="REASON", show_default=False,
        help="With --from: why no row needs protection; what is not declared is then read off rows.",
    ),
]  # fmt: skip
HoldoutOption = Annotated[
    Path | None,
    typer.Option(
        "--holdout", metavar="TABLE", help="With --from: other rows, public, to score models on.", show_default=False
    ),
]
HoldoutPublicOption = Annotated[
    str,
    typer.Option(
        "--holdout-public", metavar="REASON", help="Why the rows of --holdout need no protection.", show_default=False
    ),
]
ClassesOption = Annotated[
    list[str] | None,
    typer.Option("--class", metavar="NAME", help="With --from landmarks: a class.", show_default=False),
]
SideOption = Annotated[
    int, typer.Option("--side", metavar="PIXELS", help="With --from a folder of pictures: pixels a side.")
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model", metavar="NAME", help="With --from: linear, mlp, or network for pictures.", show_default=False
    ),
]
EncodingOption = Annotated[
    str,
    typer.Option("--encoding", metavar="NAME", help="With --from: utf-8, cp1252, latin-1, utf-16.", show_default=False),
]
DelimiterOption = Annotated[
    str,
    typer.Option(
        "--delimiter", metavar="MARK", show_default=False,
        help="With --from: what separates fields. \\[default: as in the first line]",
    ),
]  # fmt: skip
DecimalOption = Annotated[
    str, typer.Option("--decimal", metavar="MARK", help="With --from: the decimal sign.", show_default=False)
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FromOptions:
    """What was said beside ``--from``."""

    label: str = ""
    site_column: str = ""
    person_column: str = ""
    declare: Sequence[str] = ()
    site: Sequence[str] = ()
    columns: Path | None = None
    public: str = ""
    holdout: Path | None = None
    holdout_public: str = ""
    classes: Sequence[str] = ()
    side: int = 64
    model: str = ""
    encoding: str = "utf-8"
    delimiter: str = ""
    decimal: str = "."

    def refuse_alone(self) -> None:
        """Raise if anything was said, and no table was named."""
        for field in dataclasses.fields(self):
            if getattr(self, field.name) != field.default:
                option = f"--{field.name.replace('_', '-')}"
                raise InvalidParameter(option, "…", "says something about a table", "name it: --from data.csv")

    def check_holdout(self) -> None:
        """Raise if a holdout is named without the reason why it needs no protection, or the other way round."""
        if bool(self.holdout) != bool(self.holdout_public.strip()):
            problem = "goes with the reason why those rows need no protection"
            remedy = 'say --holdout rows.csv --holdout-public "published in 2024"'
            raise InvalidParameter("--holdout", "…", problem, remedy)


def draft_from(path: Path, asked: FromOptions) -> TableDraft:
    """The draft for the table at ``path``. Guarantees: its rows are read only if they are declared public."""
    from quietsum.tasks import draft_table, fill_from_public_rows, parse_column, parse_site

    if not asked.label:
        raise InvalidParameter("--label", "", "is missing", "name the column that is learned")
    if asked.model not in ("", "linear", "mlp"):
        raise InvalidParameter("--model", asked.model, "is not known", "choose linear or mlp")
    if asked.classes or asked.side != 64:
        problem = "is about pictures or landmarks, and this is a table"
        raise InvalidParameter("--class" if asked.classes else "--side", "…", problem, 'say --declare "y=category a b"')
    asked.check_holdout()
    stated = [] if asked.columns is None else _reviewed(asked.columns)
    own = [parse_column(text) for text in asked.declare]
    stated = [one for one in stated if one["name"] not in {each["name"] for each in own}] + own
    draft = draft_table(
        path, label=asked.label, site_column=asked.site_column, person_column=asked.person_column, stated=stated,
        sites=[parse_site(text) for text in asked.site], encoding=asked.encoding, delimiter=asked.delimiter,
        decimal=asked.decimal, model=asked.model or "linear",
    )  # fmt: skip
    if asked.public.strip():
        draft = fill_from_public_rows(draft, path, asked.public.strip(), held_out=0.0 if asked.holdout else 0.2)
    if asked.holdout is not None:
        draft = dataclasses.replace(draft, holdout=str(asked.holdout), holdout_public=asked.holdout_public.strip())
    return draft


def _reviewed(path: Path) -> list[dict[str, Any]]:
    """The columns of a data.toml that its operator has reviewed."""
    from quietsum.defence import load_schema

    schema = load_schema(path)
    if not schema.reviewed:
        problem = "is a draft: it says what rows show"
        raise InvalidParameter("--columns", str(path), problem, "write what should be, and set reviewed = true")
    found = []
    label = schema.label
    for column in schema.columns:
        one: dict[str, Any] = {"name": column.name, "kind": ""}
        if label is not None and column.name == label.column and label.classes:
            one |= {"kind": "category", "categories": [str(value) for value in label.classes]}
        elif column.allowed:
            one |= {"kind": "category", "categories": [str(value) for value in column.allowed]}
        elif column.type in ("number", "integer") and column.min is not None and column.max is not None:
            one |= {"kind": "number", "bounds": list(column.bounds)}
        elif column.type == "date":
            one["kind"] = "ignore"
        found.append(one)
    return found


def blanks_of(plan: Plan) -> list[str]:
    """A sentence for each line of the plan that is still to be filled in."""
    from quietsum.tasks import TableOptions, find_blanks

    if plan.task.name != "table":
        from quietsum.tasks import SamplesOptions

        return list(SamplesOptions.from_dict(plan.task.options).blanks())
    return list(find_blanks(TableOptions.from_dict(plan.task.options)))


def say_about(draft: TableDraft, blanks: Sequence[str]) -> None:
    """Say what was read of the table and what is left to do."""
    import textwrap

    from quietsum.cli.shared.output import text_width
    from quietsum.errors import printable

    def say(words: str, indent: str = "") -> None:
        print(textwrap.fill(printable(words), text_width(), initial_indent=indent, subsequent_indent=indent + "  ",
                            break_on_hyphens=False, break_long_words=False))  # fmt: skip

    if draft.public:
        say(f"rows of {draft.table} were read, since they need no protection: {draft.public}")
        if draft.left_out:
            names = "; ".join(f"{name} ({why})" for name, why in draft.left_out)
            say(f"not learned from: {names}. To use one, say --declare")
    else:
        say(f"of {draft.table} the first line was read, and no row")
    if not draft.holdout and not draft.held_out:
        say("no rows are declared public, so there will be no score: --holdout names some")
    if blanks:
        say("to be filled in before it can be planned:")
        for sentence in blanks:
            say(sentence, "  ")


def settings_for(options: Mapping[str, Any], person: str) -> Any:
    """The settings of a first plan: a function of declared numbers alone."""
    from quietsum.plan import OTHER_DEFAULTS, safe_delta

    sizes = [int(one["size"]) for one in options["sites"] if one["size"]]
    delta = min(1e-5, float(f"{safe_delta(sizes):.0e}")) if sizes else 1e-5
    promised = (person, 4) if person else None
    pace = _pace(options.get("columns", ()))
    return dataclasses.replace(
        OTHER_DEFAULTS, delta=delta, person=promised, promises_person=bool(person), pace=pace
    )  # fmt: skip


def _pace(columns: Sequence[Mapping[str, Any]]) -> float:
    """How much further than usual a weight should move: rows of few columns are short, and so are their gradients.

    A row is as long as the root of a third for each number, which lies anywhere in [−1, 1], and of one for each
    category. The factor is (4 / length)^¾ from 0.4 to 3, as in a training of one site, which has to ask its rows for it
    (docs/decisions/0060-pace-by-the-length-of-inputs.md). With a column that is not declared yet it is 1.
    """
    square = sum({"number": 1 / 3, "category": 1.0}.get(one.get("kind", ""), math.nan) for one in columns)
    return min(max((4.0 / math.sqrt(square)) ** 0.75, 0.4), 3.0) if square > 0 else 1.0

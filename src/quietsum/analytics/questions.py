"""``questions.toml``: which questions, of which columns, to which sites, at which ε; all of it public.

All questions of one file are one release (:mod:`quietsum.analytics.encode`): each record adds one vector of length at
most 1 to its site's sum, the sum gets noise once, and every answer is read off it. ``weight`` says how much of that
length a question gets; asking two questions together costs less than asking them one after the other.

A question is judged by its text alone, before any row is looked at: it may read declared columns only, and no
identifier, neither as what it counts nor in ``where``. How many rows it will meet decides nothing, since a refusal
that depends on a count would tell that count.

>>> text = '''
... [privacy]
... epsilon = 1.0
... delta = 1e-5
... [[sites]]
... name = "bern"
... size = 400
... [[columns]]
... name = "sex"
... kind = "category"
... categories = ["f", "m"]
... [[questions]]
... name = "women"
... kind = "count"
... where = { sex = "f" }
... '''
>>> asked = parse_questions(text)
>>> asked.questions[0].sentence
'how many records have sex = f'
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

from quietsum.analytics.columns import Column
from quietsum.errors import InvalidParameter
from quietsum.keys import FILLED, OPEN_FRACTION, POSITIVE, key, table, whole
from quietsum.plan import LifetimePlan, Options, keys_of, parse_toml, read_toml, value_of
from quietsum.validate import finite_number, open_probability

__all__ = [
    "ASKED",
    "MOST_QUESTIONS",
    "AskedSite",
    "Filter",
    "People",
    "Promise",
    "Question",
    "QuestionFile",
    "check_questions",
    "load_questions",
    "parse_questions",
    "question_keys",
]

MOST_QUESTIONS = 100
FEWEST = 4
"""Sites under masks: one counts as a colluder, and three honest ones hide each other."""

ASKED: dict[str, tuple[str, ...]] = {
    "count": (),
    "sum": ("column",),
    "mean": ("column",),
    "variance": ("column",),
    "histogram": ("column",),
    "contingency": ("columns",),
    "quantiles": ("column", "at"),
    "correlation": ("columns",),
    "survival": ("time", "event", "event_value", "group"),
}
"""Every kind of question, with the keys that it reads beside ``name``, ``where`` and ``weight``."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Filter:
    """Records that count: those in some ``categories`` of a column, or between two edges of its grid."""

    column: str
    categories: tuple[str, ...] = ()
    between: tuple[float, float] | None = None

    @property
    def words(self) -> str:
        """What must hold."""
        if self.between is not None:
            return f"{self.column} from {self.between[0]:g} to {self.between[1]:g}"
        return f"{self.column} = {' or '.join(self.categories)}"

    def to_value(self) -> Any:
        """As it stands in a file."""
        return list(self.categories) if self.between is None else {"from": self.between[0], "to": self.between[1]}


def _filters(where: object) -> tuple[Filter, ...]:
    """The filters of a table ``{ sex = "f", age = { from = 40, to = 60 } }``."""
    if isinstance(where, tuple) and all(isinstance(one, Filter) for one in where):
        return where
    if not isinstance(where, Mapping):
        raise InvalidParameter("where", where, "is no table", 'write where = { sex = "f" }')
    found = []
    for column, value in where.items():
        remedy = f'write where = {{ {column} = "one category" }}, a list of them, or {{ from = EDGE, to = EDGE }}'
        if isinstance(value, Mapping):
            if set(value) != {"from", "to"}:
                raise InvalidParameter(f"where.{column}", dict(value), "is no range", remedy)
            edges = (finite_number(f"where.{column}", value["from"]), finite_number(f"where.{column}", value["to"]))
            found.append(Filter(column=column, between=edges))
            continue
        words = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else ()
        if not words or not all(isinstance(word, str) for word in words):
            raise InvalidParameter(f"where.{column}", value, "is no category", remedy)
        found.append(Filter(column=column, categories=words))
    return tuple(sorted(found, key=lambda one: one.column))


@final
@table
class Question:
    """A question. Which of the keys it needs depends on its ``kind``: :data:`ASKED`."""

    name: str = key("What the answer is called.", bound=FILLED)
    kind: str = key("What is asked: count, sum, mean, variance, histogram, and so on.", bound=FILLED)
    column: str = key("The column that is asked about.", default="")
    columns: tuple[str, ...] = key("The two columns of a contingency table or a correlation.", default=())
    at: tuple[float, ...] = key("Which quantiles; the quartiles if omitted.", default=())
    time: str = key("Survival: the column of times, on its grid.", default="")
    event: str = key("Survival: the column that says how observation ended.", default="")
    event_value: str = key("Survival: the category of event that is the event.", default="")
    group: str = key("Survival: the column of groups to compare.", default="")
    where: tuple[Filter, ...] = key(
        "Records that count: categories by column, or { from, to } on its grid.", default=(), free=True
    )
    weight: float = key("Its share of the budget, against the other questions'.", default=1.0, bound=POSITIVE)

    def __post_init__(self) -> None:
        if not all(self.columns):
            raise InvalidParameter("columns", list(self.columns), "are no words", "name two columns")
        if not self.name.strip() or not self.name.isprintable():
            raise InvalidParameter("name", self.name, "is no name", "call the question by a word or two")
        if self.kind not in ASKED:
            close = difflib.get_close_matches(str(self.kind), ASKED, n=1)
            remedy = f"did you mean '{close[0]}'?" if close else f"choose {', '.join(ASKED)}"
            raise InvalidParameter("kind", self.kind, "is unknown", remedy)
        object.__setattr__(self, "where", _filters(self.where))
        if not 1e-6 <= self.weight <= 1e6:
            raise InvalidParameter("weight", self.weight, "lies outside [1e-6, 1e6]", "1 for each question is usual")
        for field in ("column", "columns", "at", "time", "event", "event_value", "group"):
            if getattr(self, field) and field not in ASKED[self.kind]:
                problem = f"is not read by a question of kind {self.kind!r}"
                raise InvalidParameter(field, getattr(self, field), problem, "leave it out")
        for field in ASKED[self.kind]:
            if not getattr(self, field) and field not in ("group", "at"):
                raise InvalidParameter(field, getattr(self, field), "is missing", f"a {self.kind} question needs it")
        if self.kind == "quantiles":
            shares = self.at or (0.25, 0.5, 0.75)
            object.__setattr__(self, "at", tuple(open_probability("at", one, "0.5 is the median") for one in shares))
        if self.kind in ("contingency", "correlation") and (len(self.columns) != 2 or len(set(self.columns)) != 2):
            raise InvalidParameter("columns", list(self.columns), "are not two", "name two columns")

    @property
    def reads(self) -> tuple[str, ...]:
        """Every column that it looks at, filters included."""
        words = (self.column, *self.columns, self.time, self.event, self.group, *(one.column for one in self.where))
        return tuple(dict.fromkeys(word for word in words if word))

    @property
    def sentence(self) -> str:
        """What is asked, in words."""
        about = {
            "count": "how many records",
            "sum": f"the sum of {self.column}",
            "mean": f"the mean of {self.column}",
            "variance": f"the variance of {self.column}",
            "histogram": f"how {self.column} is distributed",
            "contingency": f"{' by '.join(self.columns)}",
            "quantiles": f"quantiles of {self.column}",
            "correlation": f"the correlation of {' and '.join(self.columns)}",
            "survival": f"survival over {self.time} ({self.event} = {self.event_value})"
            + (f" by {self.group}" if self.group else ""),
        }[self.kind]
        given = " and ".join(one.words for one in self.where)
        return f"{about} {'have' if self.kind == 'count' else 'where'} {given}" if given else about

    def to_dict(self) -> dict[str, Any]:
        """Plain values; what the kind does not read is left out."""
        found: dict[str, Any] = {"name": self.name, "kind": self.kind}
        for field in ASKED[self.kind]:
            value = getattr(self, field)
            if value:
                found[field] = list(value) if isinstance(value, tuple) else value
        if self.where:
            found["where"] = {one.column: one.to_value() for one in self.where}
        if self.weight != 1:
            found["weight"] = self.weight
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Question:
        """The question that :meth:`to_dict` wrote."""
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, Mapping) or not set(values) <= known or not {"name", "kind"} <= set(values):
            raise InvalidParameter("questions", "…", "hold what is no question", f"known keys are {sorted(known)}")
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        return cls(**given)


@final
@table
class AskedSite:
    """A site.

    ``size`` is public and at least the number of its rows: more than so many records can add is cut under masks, and
    taken for no answer without them.
    """

    name: str = key("The site's name.", bound=FILLED)
    size: int = key("Its declared, public number of records: at least as many as its table has.", bound=whole(1))
    dataset: str = key("The name under which its budget is kept; the site's own if omitted.", default="")
    table: str = key("On one machine: its CSV table, seen from the folder of this file.", default="")
    public: str = key("Why its records need no protection; leave it out for protected data.", default="")

    def __post_init__(self) -> None:
        for field in ("name", "dataset"):
            value = getattr(self, field) or (self.name if field == "dataset" else "")
            if not isinstance(value, str) or not value.strip() or not value.isprintable():
                raise InvalidParameter(field, value, "is no name", "name the site, and its dataset")
            object.__setattr__(self, field, value)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the place of the table."""
        found: dict[str, Any] = {"name": self.name, "size": self.size, "dataset": self.dataset}
        return {**found, "public": self.public} if self.public else found


@final
@table
class People:
    """People with several records."""

    column: str = key("The identifier that tells people apart; no question reads it.", bound=FILLED)
    max_records: int = key("How many records of one person are used, at most.", bound=whole(1))


@final
@table
class Promise:
    """What a record may lose.

    With ``person`` it is what one person may lose, with all of her records at a site. With ``secure`` the sites add
    shares of one noise under masks: one noisy sum in all, instead of one a site.
    """

    epsilon: float = key("What all questions of the file may cost one record, or person, together.", bound=POSITIVE)
    delta: float = key("The δ that belongs to it; below 1/size of every site.", bound=OPEN_FRACTION)
    secure: bool = key("Whether sites add shares of one noise under masks.", default=False)
    person: People | None = key("Protect people with all their records of a site.", default=None)
    lifetime: LifetimePlan | None = key("The lifetime budget of datasets not known yet.", default=None)


@final
@table
class QuestionFile:
    """A file of questions."""

    privacy: Promise = key("What a record may lose.")
    sites: tuple[AskedSite, ...] = key("Who is asked.", bound=FILLED)
    columns: tuple[Column, ...] = key("The columns, as everybody may know them.", default=())
    questions: tuple[Question, ...] = key("What is asked.", bound=FILLED)
    title: str = key("A line for the answers.", default="")
    level: float = key("The level of all intervals.", default=0.95, bound=OPEN_FRACTION)

    def __post_init__(self) -> None:
        for field in ("sites", "columns", "questions"):
            names = [one.name for one in getattr(self, field)]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise InvalidParameter(field, twice[0], "is there twice", "names tell them apart")
        if self.privacy.secure and len(self.sites) < FEWEST:
            problem = f"hides no site's sum among {len(self.sites)}: one of them may tell what it knows"
            raise InvalidParameter("privacy.secure", True, problem, "ask four sites or more, or leave secure out")
        self._check_people()
        check_questions(self.questions, self.columns)
        if not 0.5 <= self.level <= 0.9999:
            raise InvalidParameter("level", self.level, "lies outside [0.5, 0.9999]", "0.95 is usual")

    def _check_people(self) -> None:
        person = self.privacy.person
        kinds = {column.name: column.kind for column in self.columns}
        if person is not None and kinds.get(person.column) != "identifier":
            problem = "is no declared identifier" if person.column in kinds else "is not declared"
            remedy = "declare it under [[columns]] with kind = 'identifier'; no question reads it all the same"
            raise InvalidParameter("privacy.person.column", person.column, problem, remedy)

    # ----------------------------------------------------------------------------------- plain values

    def options(self, tables: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What a plan passes to its task: the questions, the columns that they read, the sites; ``tables`` by site."""
        read = {name for one in self.questions for name in one.reads}
        found: dict[str, Any] = {
            "questions": [one.to_dict() for one in self.questions],
            "columns": [one.to_dict() for one in self.columns if one.name in read],
            "sites": [one.to_dict() for one in self.sites],
        }
        if self.title:
            found["title"] = self.title
        if self.privacy.person is not None:
            found["person"] = self.privacy.person.column
        return {**found, "tables": dict(tables)} if tables else found

    @property
    def digest(self) -> str:
        """SHA-256 of the questions, the columns that they read and the sites."""
        plain = json.dumps(Options(self.options()).to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(plain.encode()).hexdigest()


def check_questions(questions: Sequence[Question], columns: Iterable[Column]) -> None:
    """Raise :class:`~quietsum.errors.InvalidParameter` where a question cannot be asked of such columns.

    Guarantees: decided from the texts alone. No identifier and no column that is not declared is read.
    """
    known = {column.name: column for column in columns}
    if not questions:
        raise InvalidParameter("questions", "[]", "ask nothing", 'write [[questions]] name = "all" kind = "count"')
    if len(questions) > MOST_QUESTIONS:
        raise InvalidParameter("questions", len(questions), f"are more than {MOST_QUESTIONS}", "ask them in two files")
    for number, question in enumerate(questions):
        where = f"questions[{number}]"
        for name in question.reads:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                remedy = f"did you mean '{close[0]}'?" if close else "declare it under [[columns]], or ask another"
                raise InvalidParameter(f"{where} ({question.name!r})", name, "is not a declared column", remedy)
            if known[name].kind == "identifier":
                raise InvalidParameter(
                    f"{where} ({question.name!r})", name,
                    "is an identifier: a question that reads it aims at single people, however many rows it meets",
                    "ask about columns that many people share",
                )  # fmt: skip
        _check_kinds(where, question, known)


def _check_kinds(where: str, question: Question, known: Mapping[str, Column]) -> None:
    """Every column is of the kind that the question needs."""

    def need(key: str, name: str, *, number: bool = False, category: bool = False, grid: bool = False) -> None:
        column = known[name]
        if number and column.kind != "number":
            raise InvalidParameter(f"{where}.{key}", name, "is no number", "name a column of kind 'number'")
        if category and column.kind != "category":
            raise InvalidParameter(f"{where}.{key}", name, "has no categories", "name a column of kind 'category'")
        if grid and not column.labels:
            remedy = "declare cells = 20, say, or a grid"
            raise InvalidParameter(f"{where}.{key}", name, "lies on no public grid", remedy)

    match question.kind:
        case "sum" | "mean" | "variance":
            need("column", question.column, number=True)
        case "histogram":
            need("column", question.column, grid=True)
        case "quantiles":
            need("column", question.column, number=True, grid=True)
        case "contingency":
            for name in question.columns:
                need("columns", name, grid=True)
        case "correlation":
            for name in question.columns:
                need("columns", name, number=True)
        case "survival":
            need("time", question.time, number=True, grid=True)
            need("event", question.event, category=True)
            if question.event_value not in known[question.event].categories:
                choices = " or ".join(known[question.event].categories)
                raise InvalidParameter(
                    f"{where}.event_value", question.event_value, "is no category of event", f"choose {choices}"
                )
            if question.group:
                need("group", question.group, category=True)
    for one in question.where:
        column = known[one.column]
        if one.between is None:
            need(f"where.{one.column}", one.column, category=True)
            for word in one.categories:
                if word not in column.categories:
                    choices = ", ".join(column.categories[:12])
                    raise InvalidParameter(f"{where}.where.{one.column}", word, "is no category", f"choose {choices}")
        else:
            need(f"where.{one.column}", one.column, number=True, grid=True)
            for edge in one.between:
                if not any(math.isclose(edge, known_edge, rel_tol=1e-12) for known_edge in column.edges):
                    edges = ", ".join(f"{value:g}" for value in column.edges[:24])
                    raise InvalidParameter(f"{where}.where.{one.column}", edge, "is no edge of its grid", edges)
            if not one.between[0] < one.between[1]:
                problem = "holds nothing"
                raise InvalidParameter(f"{where}.where.{one.column}", list(one.between), problem, "from < to")


# ---------------------------------------------------------------------------------------------- the file


_EXAMPLE = "docs/reference/questions-toml.md shows a whole one"


def load_questions(path: str | os.PathLike[str]) -> QuestionFile:
    """The questions in the file at ``path``; raises :class:`~quietsum.errors.PlanRefused` with all problems."""
    values = read_toml(path, "questions.toml", _EXAMPLE)
    found: QuestionFile = value_of(QuestionFile, values, where=os.fspath(path), remedy=_EXAMPLE)
    return found


def parse_questions(text: str, where: str = "questions.toml") -> QuestionFile:
    """The questions in a text; ``where`` stands in front of its problems."""
    found: QuestionFile = value_of(QuestionFile, parse_toml(text, where, _EXAMPLE), where=where, remedy=_EXAMPLE)
    return found


def question_keys() -> dict[str, str]:
    """Every key of ``questions.toml`` by its full path, with its meaning."""
    return keys_of(QuestionFile)

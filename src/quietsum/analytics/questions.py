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
from quietsum.plan import LifetimePlan, Options
from quietsum.validate import finite_number, open_probability, positive, whole_number

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
@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """One question. Which of the keys it needs depends on its ``kind``: :data:`ASKED`."""

    name: str
    kind: str
    column: str = ""
    columns: tuple[str, ...] = ()
    at: tuple[float, ...] = ()
    time: str = ""
    event: str = ""
    event_value: str = ""
    group: str = ""
    where: tuple[Filter, ...] = ()
    weight: float = 1.0

    def __post_init__(self) -> None:
        for key in ("name", "kind", "column", "time", "event", "event_value", "group"):
            if not isinstance(getattr(self, key), str):
                raise InvalidParameter(key, getattr(self, key), "is no text", "write a word in quotes")
        for key in ("columns", "at"):
            if not isinstance(getattr(self, key), list | tuple):
                raise InvalidParameter(key, getattr(self, key), "is no list", "write [ …, … ]")
        if not all(isinstance(one, str) and one for one in self.columns):
            raise InvalidParameter("columns", list(self.columns), "are no words", "name two columns")
        if not self.name.strip() or not self.name.isprintable():
            raise InvalidParameter("name", self.name, "is no name", "call the question by a word or two")
        if self.kind not in ASKED:
            close = difflib.get_close_matches(str(self.kind), ASKED, n=1)
            remedy = f"did you mean '{close[0]}'?" if close else f"choose {', '.join(ASKED)}"
            raise InvalidParameter("kind", self.kind, "is unknown", remedy)
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "at", tuple(self.at))
        object.__setattr__(self, "where", _filters(self.where))
        object.__setattr__(self, "weight", positive("weight", self.weight, "a share of the budget; 1 for each"))
        if not 1e-6 <= self.weight <= 1e6:
            raise InvalidParameter("weight", self.weight, "lies outside [1e-6, 1e6]", "1 for each question is usual")
        for key in ("column", "columns", "at", "time", "event", "event_value", "group"):
            if getattr(self, key) and key not in ASKED[self.kind]:
                problem = f"is not read by a question of kind {self.kind!r}"
                raise InvalidParameter(key, getattr(self, key), problem, "leave it out")
        for key in ASKED[self.kind]:
            if not getattr(self, key) and key not in ("group", "at"):
                raise InvalidParameter(key, getattr(self, key), "is missing", f"a {self.kind} question needs it")
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
        for key in ASKED[self.kind]:
            value = getattr(self, key)
            if value:
                found[key] = list(value) if isinstance(value, tuple) else value
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
@dataclasses.dataclass(frozen=True, kw_only=True)
class AskedSite:
    """A site: its declared public size, the name under which its budget is kept, and on one machine its table.

    ``size`` is public and at least the number of its rows: more than so many records can add is cut under masks, and
    taken for no answer without them.
    """

    name: str
    size: int
    dataset: str = ""
    table: str = ""
    public: str = ""

    def __post_init__(self) -> None:
        for key in ("name", "dataset"):
            value = getattr(self, key) or (self.name if key == "dataset" else "")
            if not isinstance(value, str) or not value.strip() or not value.isprintable():
                raise InvalidParameter(key, value, "is no name", "name the site, and its dataset")
            object.__setattr__(self, key, value)
        object.__setattr__(self, "size", whole_number("size", self.size, 1, "its declared, public number of records"))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the place of the table."""
        found: dict[str, Any] = {"name": self.name, "size": self.size, "dataset": self.dataset}
        return {**found, "public": self.public} if self.public else found


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class People:
    """Who stands behind several records: an identifier ``column``, and how many records of each person are used."""

    column: str
    max_records: int

    def __post_init__(self) -> None:
        remedy = "records of one person that are used, at most"
        object.__setattr__(self, "max_records", whole_number("max_records", self.max_records, 1, remedy))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Promise:
    """What one record may lose by all questions of the file together, and whether sites see each other's sums.

    With ``person`` it is what one person may lose, with all of her records at a site. With ``secure`` the sites add
    shares of one noise under masks: one noisy sum in all, instead of one a site.
    """

    epsilon: float
    delta: float
    secure: bool = False
    person: People | None = None
    lifetime: LifetimePlan | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive("epsilon", self.epsilon, "what the whole file may cost a record"))
        object.__setattr__(self, "delta", open_probability("delta", self.delta))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionFile:
    """All of it. ``level`` is that of every interval."""

    privacy: Promise
    sites: tuple[AskedSite, ...]
    columns: tuple[Column, ...]
    questions: tuple[Question, ...]
    title: str = ""
    level: float = 0.95

    def __post_init__(self) -> None:
        for key in ("sites", "columns", "questions"):
            values = tuple(getattr(self, key))
            object.__setattr__(self, key, values)
            names = [one.name for one in values]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise InvalidParameter(key, twice[0], "is there twice", "names tell them apart")
        if not self.sites:
            raise InvalidParameter("sites", "[]", "name nobody", 'write [[sites]] name = "bern" size = 400')
        if self.privacy.secure and len(self.sites) < FEWEST:
            problem = f"hides no site's sum among {len(self.sites)}: one of them may tell what it knows"
            raise InvalidParameter("privacy.secure", True, problem, "ask four sites or more, or leave secure out")
        self._check_people()
        check_questions(self.questions, self.columns)
        if not 0.5 <= open_probability("level", self.level, "0.95 is usual") <= 0.9999:
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


def load_questions(path: str | os.PathLike[str]) -> QuestionFile:
    """The questions in the file at ``path``; :class:`~quietsum.errors.PlanRefused` tells all problems at once."""
    from quietsum.analytics.tables import NEW, FileTable
    from quietsum.plan import read_toml, value_of

    where = os.fspath(path)
    found: QuestionFile = value_of(FileTable, read_toml(path, "questions.toml", NEW), where=where, remedy=NEW)
    return found


def parse_questions(text: str, where: str = "questions.toml") -> QuestionFile:
    """The questions in a text; ``where`` stands in front of its problems."""
    from quietsum.analytics.tables import NEW, FileTable
    from quietsum.plan import parse_toml, value_of

    found: QuestionFile = value_of(FileTable, parse_toml(text, where, NEW), where=where, remedy=NEW)
    return found

"""Which questions a site answers: ``[questions]`` of its policy, held against the text of a plan.

The site declares its columns itself: kind, bounds, categories and grid. A plan that describes one in another way, reads
one that is not declared, or one that identifies people, is refused, under any name. All of that is decided by two
texts, so a refusal tells nothing about the table: not whether anybody is in it.

``epsilon`` bounds one file of questions, ``day`` all files of any 24 hours. The ε of a day are added up from the
reservations in the site's own ledger, so they outlive a restart; entries from the future, by a clock that was set back,
count. Both stand beside the lifetime that questions and trainings share.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, final

from quietsum.analytics import ASKED, TASK, Column, Question, check_questions
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.keys import FILLED, POSITIVE, key, table
from quietsum.ledger import Kind

if TYPE_CHECKING:
    from quietsum.ledger import Ledger
    from quietsum.plan import ResolvedPlan

__all__ = ["DAY", "AskedFiles", "SiteQuestions", "is_question"]

DAY = datetime.timedelta(hours=24)


def is_question(resolved: ResolvedPlan) -> bool:
    """Whether a plan asks questions, and trains nothing."""
    return resolved.plan.task.name == TASK


@final
@table
class SiteQuestions:
    """What may be asked of the site's table.

    The site says which identifier tells people apart (``person``), since by another one, of visits say, the records of
    one person would be those of many.
    """

    table: str = key("The CSV file that is asked, beside this file.", bound=FILLED)
    epsilon: float = key("The largest ε of one file of questions.", bound=POSITIVE)
    day: float = key("The largest ε of all files of questions in any 24 hours, added up.", bound=POSITIVE)
    kinds: tuple[str, ...] = key("Kinds of questions that are answered; all if omitted.", default=())
    person: str = key("The identifier that tells people apart; if omitted, the only identifier.", default="")
    columns: tuple[Column, ...] = key(
        "The columns that may be read, as everybody may know them, and the identifiers.", default=()
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", self.kinds or tuple(ASKED))
        if not self.table.strip():
            raise InvalidParameter("table", self.table, "names no file", "name a CSV file beside the policy")
        for kind in self.kinds:
            if kind not in ASKED:
                raise InvalidParameter("kinds", kind, "is unknown", f"choose among {', '.join(ASKED)}")
        names = [column.name for column in self.columns]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InvalidParameter("columns", twice[0], "is there twice", "declare each column once")
        if self.person and self.person not in self._identifiers:
            raise InvalidParameter("person", self.person, "is no declared identifier", "declare it among the columns")
        if self.epsilon > self.day:
            raise InvalidParameter("epsilon", self.epsilon, f"is more than day = {self.day:g}", "lower one of the two")

    def problems(self, options: Mapping[str, Any]) -> Iterator[str]:
        """What is wrong with the questions of a plan's options, by its text alone; at most one reason a question."""
        known = {column.name: column for column in self.columns}
        try:
            if set(options) - {"questions", "columns", "sites", "title", "person"}:
                yield "the plan names more than questions, columns, sites and people"
                return
            asked = [Question.from_dict(one) for one in options.get("questions", ())]
            described = {one.name: one for one in (Column.from_dict(each) for each in options.get("columns", ()))}
        except (QuietsumError, TypeError, ValueError, AttributeError) as error:
            told = str(error) if isinstance(error, QuietsumError) else type(error).__name__
            yield f"its questions cannot be read ({told})"
            return
        if "person" in options:
            yield from self.about_people(options["person"])
        for question in asked:
            yield from self._about(question, known, described)
        if not asked:
            yield "the plan asks nothing"

    def about_people(self, column: object) -> Iterator[str]:
        """What is wrong with a plan that tells people apart by ``column``."""
        if column not in self._identifiers:
            yield f"people are distinguished by {column!r}, which the site does not declare as an identifier"
        elif len(self._identifiers) > 1 and column != self.person:
            own = f"the site says by {self.person!r}" if self.person else "the site has several identifiers"
            yield f"people are distinguished by {column!r}, and {own}: questions.person says by which"

    @property
    def _identifiers(self) -> list[str]:
        return [column.name for column in self.columns if column.kind == "identifier"]

    def _about(self, question: Question, known: Mapping[str, Column], described: Mapping[str, Column]) -> Iterator[str]:
        if question.kind not in self.kinds:
            yield f"question {question.name!r}: a {question.kind} is not answered, only {', '.join(self.kinds)}"
            return
        for name in question.reads:
            if name not in known:
                yield f"question {question.name!r}: column {name!r} is not declared"
                return
            if known[name].kind == "identifier":
                yield f"question {question.name!r}: column {name!r} is an identifier, and no question reads one"
                return
            if name not in described or not described[name].alike(known[name]):
                yield f"question {question.name!r}: column {name!r} is not described as the site declares it"
                return
        try:
            check_questions([question], self.columns)
        except QuietsumError as error:
            yield f"question {question.name!r}: {error}"


@final
class AskedFiles:
    """The files of questions in a site's ledger. Each look reads the entries that came since the last one."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._next = ledger, 1
        self._files: dict[str, float] = {}
        self._reserved: list[tuple[datetime.datetime, float]] = []

    def since(self, moment: datetime.datetime) -> float:
        """Σ ε of all files of which an attempt was reserved after ``moment``: an upper bound of their cost."""
        for entry in self._ledger.entries(self._next):
            self._next = entry.sequence + 1
            run = str(entry.body.get("run"))
            if entry.kind is Kind.RUN:
                resolved = entry.body["plan"].get("resolved", {})
                plan = resolved.get("plan", entry.body["plan"])
                if plan.get("task", {}).get("name") == TASK:
                    limits = entry.body["terms"]["limits"]
                    self._files[run] = max((float(one["epsilon"]) for one in limits), default=0.0)
            elif entry.kind is Kind.RESERVE and run in self._files:
                self._reserved.append((_moment(entry.time), self._files[run]))
        return sum(epsilon for when, epsilon in self._reserved if when > moment)


def _moment(text: str) -> datetime.datetime:
    """The time of an entry; one that cannot be read counts as yet to come."""
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        when = datetime.datetime.max
    return when.replace(tzinfo=datetime.UTC) if when.tzinfo is None else when

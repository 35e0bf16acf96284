"""The tables of ``questions.toml``: which keys there are and what they mean."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from quietsum.analytics import columns, questions
from quietsum.plan import LifetimePlan, Table, keys_of

__all__ = ["NEW", "ColumnTable", "FileTable", "question_keys"]

NEW = "docs/reference/questions-toml.md shows a whole one"
Positive = Annotated[float, Field(gt=0)]
Delta = Annotated[float, Field(gt=0, lt=1)]


class LifetimeTable(Table):
    """The lifetime of the datasets."""

    value = LifetimePlan
    epsilon: Positive = Field(description="The largest ε of everything ever asked of the dataset or learned from it.")
    delta: Delta = Field(description="The δ that belongs to it.")


class PeopleTable(Table):
    """People with several records."""

    value = questions.People
    column: str = Field(min_length=1, description="The identifier that tells people apart; no question reads it.")
    max_records: int = Field(ge=1, description="How many records of one person are used, at most.")


class PromiseTable(Table):
    """What a record may lose."""

    value = questions.Promise
    epsilon: Positive = Field(description="What all questions of the file may cost one record, or person, together.")
    delta: Delta = Field(description="The δ that belongs to it; below 1/size of every site.")
    secure: bool = Field(default=False, description="Whether sites add shares of one noise under masks.")
    person: PeopleTable | None = Field(default=None, description="Protect people with all their records of a site.")
    lifetime: LifetimeTable | None = Field(default=None, description="The lifetime budget of datasets not known yet.")


class SiteTable(Table):
    """A site."""

    value = questions.AskedSite
    name: str = Field(min_length=1, description="The site's name.")
    size: int = Field(ge=1, description="Its declared, public number of records: at least as many as its table has.")
    dataset: str = Field(default="", description="The name under which its budget is kept; the site's own if omitted.")
    table: str = Field(default="", description="On one machine: its CSV table, seen from the folder of this file.")
    public: str = Field(default="", description="Why nobody in it needs protection; leave it out for protected data.")


class ColumnTable(Table):
    """A column, as everybody may know it."""

    value = columns.Column
    name: str = Field(min_length=1, description="The column's name in the tables' first line.")
    kind: Literal["number", "category", "identifier"] = Field(description="What its values are.")
    bounds: Annotated[list[float], Field(min_length=2, max_length=2)] | None = Field(
        default=None, description="A number's smallest and largest value; others are clamped to them."
    )
    cells: int | None = Field(default=None, ge=2, description="So many cells of equal width between the bounds.")
    grid: list[float] = Field(default=[], description="All edges of its cells, instead of bounds and cells.")
    categories: list[str] = Field(default=[], description="All categories, as they stand in the tables.")
    identifies_nobody: str = Field(
        default="", description="Why a column whose name looks like an identifier's is none."
    )


class QuestionTable(Table):
    """A question."""

    value = questions.Question
    name: str = Field(min_length=1, description="What the answer is called.")
    kind: str = Field(min_length=1, description="What is asked: count, sum, mean, variance, histogram, and so on.")
    column: str = Field(default="", description="The column that is asked about.")
    columns: list[str] = Field(default=[], description="The two columns of a contingency table or a correlation.")
    at: list[float] = Field(default=[], description="Which quantiles; the quartiles if omitted.")
    time: str = Field(default="", description="Survival: the column of times, on its grid.")
    event: str = Field(default="", description="Survival: the column that says how observation ended.")
    event_value: str = Field(default="", description="Survival: the category of event that is the event.")
    group: str = Field(default="", description="Survival: the column of groups to compare.")
    where: dict[str, Any] = Field(
        default={}, description="Records that count: categories by column, or { from, to } on its grid."
    )
    weight: Positive = Field(default=1.0, description="Its share of the budget, against the other questions'.")


class FileTable(Table):
    """The file."""

    value = questions.QuestionFile
    privacy: PromiseTable = Field(description="What a record may lose.")
    sites: list[SiteTable] = Field(min_length=1, description="Who is asked.")
    columns: list[ColumnTable] = Field(default=[], description="The columns, as everybody may know them.")
    questions: list[QuestionTable] = Field(min_length=1, description="What is asked.")
    title: str = Field(default="", description="A line for the answers.")
    level: float = Field(default=0.95, gt=0, lt=1, description="The level of all intervals.")


def question_keys() -> dict[str, str]:
    """Every key of ``questions.toml`` by its full path, with its meaning."""
    return keys_of(FileTable)

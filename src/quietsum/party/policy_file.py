"""``policy.toml``: which keys there are and what they mean. What follows from them is :mod:`quietsum.party.policy`."""

from __future__ import annotations

import dataclasses
import os
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from quietsum.analytics import ColumnTable
from quietsum.party import policy as values
from quietsum.plan import Table, keys_of, parse_toml, read_toml, value_of

__all__ = ["PolicyTable", "first_policy", "load_policy", "parse_policy", "policy_keys"]

Positive = Annotated[float, Field(gt=0)]
Delta = Annotated[float, Field(gt=0, lt=1)]
Relations = Annotated[
    list[Literal["add-or-remove-one", "zero-out", "replace-one"]],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]
Words = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
_NEW = "write a fresh one with: quietsum party new policy.toml"


class SiteTable(Table):
    """Who this site is."""

    value = values.SiteName
    name: str = Field(min_length=1, description="The site's name in plans.")
    ledger: str = Field(default="ledger.db", description="The file of the site's own ledger, beside this file.")


class CoordinatorTable(Table):
    """Where the coordinator is."""

    value = values.CoordinatorAddress
    address: str = Field(description='Host and port of its SuperLink, "server.example.org:9092".')
    root_certificate: str = Field(default="", description="The certificate that its own is signed with, a PEM file.")
    node_key: str = Field(default="", description="This site's private key, which the coordinator has registered.")
    ledger: str = Field(
        default="", description="The name of the coordinator's ledger; if omitted, the first one counts."
    )


class DatasetTable(Table):
    """The data."""

    value = values.SiteDataset
    name: str = Field(min_length=1, description="The dataset's declared name; budgets are kept under it.")
    size: int = Field(ge=1, description="Its declared size, which is public.")
    public: str = Field(default="", description="Why nobody in it needs protection; leave it out for protected data.")
    same_rows: str = Field(
        default="", description="Why rows that are known here under another name have a budget of their own."
    )


class TaskTable(Table):
    """A task that may run here."""

    value = values.AllowedTask
    name: str = Field(min_length=1, description='A task\'s name, or "my_module:MyTask".')
    options: dict[str, Any] = Field(default={}, description="The options that the plan must state.")
    here: dict[str, Any] = Field(default={}, description="Options that this site adds, paths for instance.")


class RulesTable(Table):
    """Aggregation and trust."""

    value = values.Rules
    aggregation: list[Literal["mean", "noisy-sum", "party-noise", "distributed-noise"]] = Field(
        default=["mean"], description="Ways of aggregation that are allowed."
    )
    trust_server_sampling: bool = Field(
        default=False, description="Whether the server's draw of parties makes a client's charge smaller."
    )
    secure: Literal["allowed", "required"] = Field(
        default="allowed", description="Whether the server may see this site's own update, or masked sums alone."
    )
    smallest_cohort: int = Field(
        default=0, ge=0, description="Secure aggregation: this site helps to unmask no sum of fewer sites."
    )
    smallest_threshold: int = Field(
        default=0, ge=0, description="Secure aggregation: the smallest number of sites whose shares unmask a sum."
    )
    adversary: Literal["curious", "semi-malicious"] = Field(
        default="curious",
        description="Secure aggregation: the kind of server that a plan must hold against.",
    )
    peers: dict[str, str] = Field(
        default={},
        description="Secure aggregation: names of other sites' ledgers, by site; if omitted, a run's first one counts.",
    )
    largest_message: int = Field(
        default=values.LARGEST_MESSAGE, ge=1024, description="Messages of more bytes are not read."
    )
    rule: Words = Field(
        default=[], description="Rules of aggregation that a plan may use, a word or a list; any if omitted."
    )
    lost_sessions: int | None = Field(
        default=None,
        ge=0,
        description="Random groups: sessions over the dataset's life beyond two for each charged attempt and two for "
        "the one at hand; those of the plan's other attempts if omitted.",
    )


class UnitTable(Table):
    """What one unit may cost."""

    value = values.UnitPolicy
    epsilon: Positive = Field(description="The largest ε of all runs together.")
    delta: Delta = Field(description="The δ that belongs to it; for records and people below 1/size.")
    run: Positive | None = Field(
        default=None, description="The largest ε of one run, at most epsilon; that of all runs if omitted."
    )
    smallest_noise: float = Field(default=0.0, ge=0, description="The smallest noise multiplier.")
    largest_clip: Positive | None = Field(default=None, description="The largest clip.")
    neighbours: Relations = Field(
        default=["add-or-remove-one", "zero-out", "replace-one"],
        description="How a plan may compare datasets, a word or a list; the same noise has another ε by each.",
    )


with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Field name .schema.", UserWarning)  # the old name of model_json_schema

    class DataTable(Table):
        """What the site's table should hold."""

        value = values.SiteData
        schema: str = Field(min_length=1, description="A data.toml, beside this file.")  # type: ignore[assignment]
        table: str = Field(
            default="", description="The file that is checked; if omitted, the rows that the task shows."
        )
        on_failure: Literal["noise", "drop", "refuse", "warn"] = Field(
            default="noise",
            description="Rows that do not fit: noise alone leaves, they are left out one by one (drop), the site does "
            "not start, or they are trained on (warn).",
        )


class QuestionsTable(Table):
    """What may be asked."""

    value = values.SiteQuestions
    table: str = Field(min_length=1, description="The CSV file that is asked, beside this file.")
    epsilon: Positive = Field(description="The largest ε of one file of questions.")
    day: Positive = Field(description="The largest ε of all files of questions in any 24 hours, added up.")
    kinds: list[str] = Field(default=[], description="Kinds of questions that are answered; all if omitted.")
    person: str = Field(
        default="", description="The identifier that tells people apart; if omitted, the only identifier."
    )
    columns: list[ColumnTable] = Field(
        default=[], description="The columns that may be read, as everybody may know them, and the identifiers."
    )


class PolicyTable(Table):
    """A site's policy."""

    value = values.Policy
    site: SiteTable = Field(description="Who this site is.")
    coordinator: CoordinatorTable = Field(description="Where the coordinator is.")
    dataset: DatasetTable = Field(description="The data.")
    tasks: list[TaskTable] = Field(default=[], description="What may be learned from it.")
    rules: RulesTable = Field(default=RulesTable(), description="Aggregation and trust.")
    record: UnitTable | None = Field(default=None, description="What a record may cost.")
    person: UnitTable | None = Field(default=None, description="What a person may cost.")
    client: UnitTable | None = Field(default=None, description="What this site as a whole may cost.")
    data: DataTable | None = Field(default=None, description="What the site's table should hold.")
    questions: QuestionsTable | None = Field(default=None, description="What may be asked of its table.")
    alerts: dict[str, Any] = Field(
        default={}, description="Whom to tell, by the keys of alerts.toml; all of it is the site operator's alone."
    )


def load_policy(path: str | os.PathLike[str]) -> values.Policy:
    """The policy in the file at ``path``; all its problems are told at once."""
    where = os.fspath(path)
    found: values.Policy = value_of(PolicyTable, read_toml(path, "policy.toml", _NEW), where=where, remedy=_NEW)
    return dataclasses.replace(found, folder=Path(path).absolute().parent)


def parse_policy(text: str, where: str) -> values.Policy:
    """The policy in a text; ``where`` stands in front of its problems."""
    found: values.Policy = value_of(PolicyTable, parse_toml(text, where, _NEW), where=where, remedy=_NEW)
    return found


def first_policy(*, path: object, name: str, address: str, dataset: str, size: int, task: str) -> str:
    """A policy to begin with, as a text: its δ is a power of ten, at most 1/(10 n) and 1e-5.

    >>> text = first_policy(path="p", name="Bern", address="h:1", dataset="visits", size=200_000, task="heart")
    >>> text.splitlines()[-1]
    'delta = 1e-7'
    """
    digits = max(5, len(str(10 * size - 1)))
    return _FIRST.format(
        path=path, name=name, address=address, dataset=dataset, size=size, task=task, delta=f"1e-{digits}"
    )


def policy_keys() -> dict[str, str]:
    """Every key of ``policy.toml`` by its full path, with its meaning."""
    return keys_of(PolicyTable)


_FIRST = """\
# What may be asked of this site's data, whoever asks. Check it with:
#   quietsum party check {path}

[site]
name = "{name}"
ledger = "ledger.db"                # this site's own books; back them up

[coordinator]
address = "{address}"
root_certificate = "ca.crt"
node_key = "node.key"

[dataset]
name = "{dataset}"
size = {size}                          # declared and public

[[tasks]]
name = "{task}"

[rules]
aggregation = ["mean"]              # also "noisy-sum", "party-noise", "distributed-noise"
# secure = "required"               # the server sees masked sums alone, ...
# smallest_cohort = 4               # ... of at least so many sites
# rule = ["mean", "signguard"]      # how updates may be combined; any rule if omitted
trust_server_sampling = false

# [questions]                       # what may be asked: quietsum ask
# table = "visits.csv"
# epsilon = 0.5                     # for one file of questions
# day = 1.0                         # for all of 24 hours
#   [[questions.columns]]           # only these are read, and no identifier
#   name = "age"
#   kind = "number"
#   bounds = [0, 110]

# [data]                            # held to its schema before a run trains on it
# schema = "data.toml"              # quietsum data new TABLE drafts one

[record]                            # what one record may cost
run = 3.0                           # in one run
smallest_noise = 0.5
largest_clip = 1.0
epsilon = 8.0                       # over all runs together
delta = {delta}
"""

"""Files of questions and tables to try them on."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quietsum.analytics import Answer, Column, Design, Question, QuestionFile
from quietsum.analytics.answers import NoisyValue
from quietsum.analytics.questions import AskedSite, Promise

COLUMNS = (
    Column(name="age", kind="number", bounds=(20, 100), cells=16),
    Column(name="bmi", kind="number", bounds=(10, 50), cells=8),
    Column(name="sex", kind="category", categories=("f", "m")),
    Column(name="arm", kind="category", categories=("old", "new")),
    Column(name="weeks", kind="number", bounds=(0, 60), cells=12),
    Column(name="died", kind="category", categories=("0", "1")),
    Column(name="patient_id", kind="identifier"),
)
SURVIVAL = Question(name="curve", kind="survival", time="weeks", event="died", event_value="1", group="arm")
EVERY = (
    Question(name="all", kind="count"),
    Question(name="women", kind="count", where={"sex": "f", "age": {"from": 40, "to": 60}}),  # type: ignore[arg-type]
    Question(name="years", kind="sum", column="age"),
    Question(name="age", kind="mean", column="age"),
    Question(name="spread", kind="variance", column="age"),
    Question(name="ages", kind="histogram", column="age"),
    Question(name="sexes", kind="histogram", column="sex"),
    Question(name="both", kind="contingency", columns=("sex", "arm")),
    Question(name="quartiles", kind="quantiles", column="age"),
    Question(name="together", kind="correlation", columns=("age", "bmi")),
    SURVIVAL,
)


def people(count: int, rng: np.random.Generator, ratio: float = 1.0) -> dict[str, list[str]]:
    """Made-up patients, as texts of a table; ``ratio`` is the hazard ratio of the old arm against the new one."""
    age = rng.normal(62, 11, count)
    arm = rng.integers(0, 2, count)
    event, end = rng.exponential(np.where(arm == 0, 25 / ratio, 25)), rng.uniform(8, 59, count)
    return {
        "patient_id": [f"p{index}" for index in range(count)],
        "age": [f"{value:.2f}" for value in age],
        "bmi": [
            f"{27 + 0.12 * (value - 62) + more:.2f}" for value, more in zip(age, rng.normal(0, 3, count), strict=True)
        ],
        "sex": [("f", "m")[one] for one in rng.integers(0, 2, count)],
        "arm": [("old", "new")[one] for one in arm],
        "weeks": [f"{value:.2f}" for value in np.minimum(event, end)],
        "died": [str(int(one)) for one in event < end],
    }


def interval_of(estimate: NoisyValue) -> tuple[float, float]:
    """The interval for the population, which the estimate must have."""
    assert estimate.population is not None
    return estimate.population


def chance_of(answer: Answer) -> float:
    """The p-value of an answer that must have a test."""
    assert answer.test is not None
    return answer.test["p"]


def holds(interval: tuple[float, float], value: float) -> bool:
    return interval[0] <= value <= interval[1]


def design(*questions: Question) -> Design:
    return Design(questions or EVERY, COLUMNS)


def write_table(path: Path, texts: Mapping[str, Sequence[str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(texts)
        writer.writerows(zip(*texts.values(), strict=True))
    return path


def hospitals(folder: Path, rng: np.random.Generator, sizes: Mapping[str, int]) -> dict[str, Path]:
    return {name: write_table(folder / f"{name}.csv", people(size, rng)) for name, size in sizes.items()}


def questions_of(sizes: Mapping[str, int], *questions: Question, tables: bool = True, **promise: Any) -> QuestionFile:
    """A file that asks sites of these sizes."""
    return QuestionFile(
        privacy=Promise(**{"epsilon": 2.0, "delta": 1e-5, **promise}),
        sites=tuple(
            AskedSite(name=name, size=size, dataset=f"registry-{name}", table=f"{name}.csv" if tables else "")
            for name, size in sizes.items()
        ),
        columns=COLUMNS,
        questions=questions or EVERY,
    )


def toml_of(asked: QuestionFile) -> str:
    """The same as a text."""
    lines = ["[privacy]", f"epsilon = {asked.privacy.epsilon}", f"delta = {asked.privacy.delta}"]
    if asked.privacy.secure:
        lines.append("secure = true")
    if (person := asked.privacy.person) is not None:
        lines.append(f'person = {{ column = "{person.column}", max_records = {person.max_records} }}')
    if asked.privacy.lifetime is not None:
        lifetime = asked.privacy.lifetime
        lines.append(f"lifetime = {{ epsilon = {lifetime.epsilon}, delta = {lifetime.delta} }}")
    for site in asked.sites:
        lines += ["[[sites]]", *_pairs({**site.to_dict(), "table": site.table})]
    for column in asked.columns:
        lines += ["[[columns]]", *_pairs(column.to_dict())]
    for question in asked.questions:
        lines += ["[[questions]]", *_pairs(question.to_dict())]
    return "\n".join(lines) + "\n"


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_plain(value)}" for key, value in values.items()]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(_pairs(value)) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_plain(one) for one in value) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)

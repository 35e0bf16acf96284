"""Questions as a task: a record's "gradient" is minus its vector, so one step from zero is the noisy sum of them all.

A file of questions becomes a plan of one round (:func:`quietsum.analytics.plan_of`): everyone takes part, every record
is in the batch, the clip is 1 and no record's vector is longer (:mod:`quietsum.analytics.encode`). So questions are
reserved, refused, noised, masked, committed and kept in the books by the same code as a training, and a site's policy
sees both.

The table is a CSV file at the site whose first line names the columns; each other line is one record, read by itself. A
quote that is never closed therefore ends with its line: the usual reader would take all that follows for one field, and
one record would move the sum by many. What stands in those lines never makes this raise: a value that is no number, or
none of the categories, is missing, and a line that is no record of the table (its quotes are not closed, it has fewer
or more fields, it is longer than a line may be) counts as nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from quietsum.analytics import AskedSite, Column, Design, Question, check_questions
from quietsum.errors import DataMissing, InvalidParameter
from quietsum.plan import PartyFacts
from quietsum.tasks.lines import hashes_of_lines, is_record, lines_of, open_lines, place_of, width_of
from quietsum.tasks.protocol import Metrics, Rows

__all__ = ["QuestionTask", "oddities"]

Floats = npt.NDArray[np.float64]
_KEYS = {"questions", "columns", "sites", "title", "tables", "person"}


@final
class QuestionTask:
    """The questions of a plan's options. ``tables`` says where each site's table lies, at the site or on one machine.

    Guarantees: rows are read in :meth:`rows` and :meth:`records_of` alone. One record moves the sum of its site's
    gradients by at most 1 in L2.
    """

    name = "questions"

    def __init__(
        self,
        *,
        questions: Sequence[Mapping[str, Any]] = (),
        columns: Sequence[Mapping[str, Any]] = (),
        sites: Sequence[Mapping[str, Any]] = (),
        title: str = "",
        tables: Mapping[str, str] | None = None,
        person: str = "person",
    ) -> None:
        asked = tuple(Question.from_dict(one) for one in questions)
        known = tuple(Column.from_dict(one) for one in columns)
        check_questions(asked, known)
        self.design = Design(asked, known)
        self.title = title or f"questions: {', '.join(one.name for one in asked)}"
        self.person = person
        self._sites = tuple(_site(one) for one in sites)
        self._tables = {str(name): Path(path) for name, path in (tables or {}).items()}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> QuestionTask:
        """The task of a plan's ``[task.options]``."""
        unknown = sorted(set(options) - _KEYS)
        if unknown:
            raise InvalidParameter("task.options", unknown[0], "is unknown", f"known are {', '.join(sorted(_KEYS))}")
        listed = ("questions", "columns", "sites")
        for key in (*listed, "title", "person"):
            if key in options and not isinstance(options[key], (tuple, list) if key in listed else str):
                raise InvalidParameter(f"task.options.{key}", "…", "is not what it should be", "use quietsum ask")
        if not isinstance(options.get("tables", {}), Mapping):
            raise InvalidParameter("task.options.tables", "…", "is no table", "name a file for each site")
        return cls(**options)

    @property
    def dimension(self) -> int:
        """Coordinates of a record's vector."""
        return self.design.dimension

    def parties(self) -> tuple[PartyFacts, ...]:
        """The sites, with their declared sizes."""
        return tuple(
            PartyFacts(name=one.name, dataset=one.dataset, size=one.size, public=one.public) for one in self._sites
        )

    def initial(self) -> Floats:
        """Zeros: the sum over no record."""
        return np.zeros(self.dimension)

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        """Minus each record's vector; the same for all ``params``."""
        return -self.design.vectors(features)

    def evaluate(self, params: Floats) -> Metrics:
        """Nothing: answers are no scores."""
        return Metrics(values={}, on="no rows, since answers are no scores")

    def example(self) -> Rows:
        """Two made-up records, one with nothing in it."""
        texts = {
            column.name: (column.labels[0] if column.kind == "category" else str((column.bounds or (0,))[0]), "")
            for column in self.design.columns
        }
        return self._rows(texts, 2)

    # ----------------------------------------------------------------------------------------------- rows

    def look_for_data(self, party: str) -> None:
        """:class:`~quietsum.errors.DataMissing` where the party's table is not there; it is not opened."""
        path = self._tables.get(party)
        if path is None:
            raise DataMissing(f"no table is named for {party}")
        if not path.is_file():
            raise DataMissing(f"the table {path} of {party} is not there")

    def rows(self, party: str) -> Rows:
        """The coded values of one site's table."""
        texts, count = self._read(party, [column.name for column in self.design.columns])
        return self._rows(texts, count)

    def people(self, party: str) -> npt.NDArray[np.int64]:
        """The person of each row, by the text in the column ``person``; rows without one count as one person's."""
        texts, _ = self._read(party, [self.person])
        seen: dict[str, int] = {}  # numbers, since an array of texts is as wide as the longest one
        return np.array([seen.setdefault(text.strip(), len(seen)) for text in texts[self.person]], dtype=np.int64)

    def _read(self, party: str, names: Sequence[str]) -> tuple[dict[str, list[str]], int]:
        """These columns of a site's table as texts, and how many rows it has."""
        self.look_for_data(party)
        texts: dict[str, list[str]] = {name: [] for name in names}
        count = 0
        with open_lines(self._tables[party]) as file:
            lines = lines_of(file)
            header = next(lines, [])
            places = [(name, place_of(header, name)) for name in names]
            width = width_of(header)
            for line in lines:
                if not is_record(line, width):
                    continue
                count += 1
                for name, place in places:
                    texts[name].append(line[place])
        return texts, count

    def oddities(self, party: str) -> list[str]:
        """What the holder of the party's table should know: :func:`oddities`."""
        self.look_for_data(party)
        size = next(one.size for one in self._sites if one.name == party)
        return oddities(self._tables[party], self.design.columns, size)

    def records_of(self, party: str) -> tuple[npt.NDArray[np.uint64]]:
        """A hash of each line of the table, for the holder's own look whether it is known under another name."""
        self.look_for_data(party)
        return (hashes_of_lines(self._tables[party]),)

    def _rows(self, texts: Mapping[str, Sequence[str]], count: int) -> Rows:
        values = self.design.encode(texts) if self.design.columns else np.zeros((count, 1))  # counts of everything
        return Rows(features=values, labels=np.zeros(count))


def oddities(path: Path, columns: Sequence[Column], size: int) -> list[str]:
    """What the holder of a table should know before it is asked, in words for the holder alone: it reads all rows.

    More rows than the declared size make a sum that cannot pass for this site's; a column of which hardly a value can
    be read has perhaps another decimal sign, or other words than its categories.
    """
    with open_lines(path) as file:
        lines = lines_of(file)
        header = [word.strip() for word in next(lines, [])]
        listed = list(lines)
    rows = [line for line in listed if is_record(line, width_of(header))]
    found = []
    if len(rows) < len(listed):
        problem = "has lines that are no records (quotes not closed, fewer or more fields than the first line)"
        found.append(f"{path.name} {problem}: they count as nothing")
    if len(rows) > size:
        found.append(f"{path.name} has more rows than its declared size of {size}: declare a larger one")
    for column in columns:
        if column.kind == "identifier" or header.count(column.name) != 1 or not rows:
            continue
        place = header.index(column.name)
        missing = np.isnan(column.encode([row[place] if place < len(row) else "" for row in rows])).mean()
        if missing > 0.5:
            what = "none of its categories" if column.kind == "category" else "no number"
            found.append(f"{path.name}: most values of {column.name} are {what}, and count as missing")
    return found


def _site(values: Mapping[str, Any]) -> AskedSite:
    known = {"name", "size", "dataset", "public"}
    if not isinstance(values, Mapping) or not set(values) <= known or not {"name", "size"} <= set(values):
        raise InvalidParameter("task.options.sites", "…", "hold what is no site", f"known keys are {sorted(known)}")
    return AskedSite(**values)

"""The task of a table: rows of CSV files at sites, a small model, and scores on public rows.

No class is written for it: ``quietsum new --from visits.csv --label back`` writes its options, and the plan is data
like any other. On one machine the rows of all sites may lie in one file, with a column that says whose they are; a site
elsewhere names its own file under ``here`` in its policy.

>>> task = TableTask.from_options({
...     "name": "visits", "label": {"name": "back", "kind": "category", "categories": ["no", "yes"]},
...     "columns": [{"name": "age", "kind": "number", "bounds": [0, 100]}], "sites": [{"name": "north", "size": 900}],
... })
>>> task.title, task.dimension, task.parties()[0].dataset
('back from 1 column of visits (linear)', 3, 'visits')
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.plan import PartyFacts
from quietsum.tasks.lines import check_file, is_record, lines_of, open_lines, place_of, places_of, width_of
from quietsum.tasks.protocol import Metrics, Rows
from quietsum.tasks.scores import accuracy, majority, mean_auc
from quietsum.tasks.table.encoding import Encoding
from quietsum.tasks.table.models import RowModel
from quietsum.tasks.table.options import TableOptions, refuse_blanks, refuse_own_records

__all__ = ["TableTask"]

Floats = npt.NDArray[np.float64]
Hashes = npt.NDArray[np.uint64]
NO_SCORE: Final = "no rows: none are declared public, so there is no score"
MOST_FEATURES: Final = 20_000
_LABEL, _SITE, _PERSON = "\0label", "\0site", "\0person"


@final
class TableTask:
    """What the options say, with the rows of each site read when they are first asked for.

    Guarantees: rows are read in :meth:`rows`, :meth:`people`, :meth:`records_of` and :meth:`evaluate` alone, and in the
    last one rows that the options declare public. What becomes of a line depends on that line and on the options.
    """

    def __init__(self, options: TableOptions) -> None:
        refuse_blanks(options)
        refuse_own_records(options.holdout, [options.table, *map(str, options.tables.values())], options.public)
        self.options = options
        self.encoding = Encoding(columns=options.read_columns(), label=options.read_label(), decimal=options.decimal)
        inputs = len(self.encoding.names)
        if inputs > MOST_FEATURES:
            problem = f"make {inputs:,} features, more than {MOST_FEATURES:,}"
            raise InvalidParameter("task.options.columns", len(self.encoding.columns), problem, "use fewer categories")
        hidden = options.hidden if options.model == "mlp" else 0
        self.network = RowModel(inputs=inputs, classes=len(self.encoding.classes), hidden=hidden)
        self.name = options.name
        self.person = options.person_column
        self.people: Callable[[str], npt.NDArray[np.int64]] | None = self._people if self.person else None
        self._sites = {facts.name: facts for facts in options.read_sites()}
        if len(self._sites) < len(options.sites):
            raise InvalidParameter("task.options.sites", len(options.sites), "name one twice", "name each site once")
        self._read: dict[str, _Held] = {}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> TableTask:
        """The task of a plan's ``[task.options]``. Raises if something is still to be filled in; no row is read."""
        return cls(TableOptions.from_dict(options))

    # ------------------------------------------------------------------------------------- what is public

    @property
    def title(self) -> str:
        """One line for a report."""
        many = len(self.encoding.columns)
        columns = f"{many} column{'s' * (many != 1)}"
        return f"{self.encoding.label.name} from {columns} of {self.name} ({self.options.model})"

    @property
    def dimension(self) -> int:
        """How many weights the model has."""
        return self.network.dimension

    def parties(self) -> tuple[PartyFacts, ...]:
        """The sites, with their declared sizes."""
        return tuple(self._sites.values())

    def initial(self) -> Floats:
        """The first weights."""
        return self.network.initial()

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        """One gradient per row; NaN, which counts as zero, for a row without a declared label."""
        return self.network.gradients(params, features, labels)

    def example(self) -> Rows:
        """Two made-up rows."""
        return Rows(features=np.zeros((2, self.network.inputs)), labels=np.array([0.0, 1.0]))

    def class_rows(self) -> Mapping[str, npt.NDArray[np.int64]]:
        """By class, the places of its row of the last layer, where there is one for each and a layer before it."""
        if not self.network.hidden or self.network.classes <= 2:
            return {}
        last = np.arange(self.dimension)[self.network.hidden * self.network.inputs :]
        return dict(zip(self.encoding.classes, last.reshape(self.network.classes, -1), strict=True))

    # --------------------------------------------------------------------------------------------- rows

    def look_for_data(self, party: str) -> None:
        """Raise :class:`~quietsum.errors.DataMissing` if the party's file is not there; it is not opened."""
        check_file(self.file_of(party))

    def file_of(self, party: str) -> Path:
        """Where the rows of ``party`` lie; nothing is looked at."""
        if party not in self._sites:
            known = ", ".join(self._sites)
            raise InvalidParameter("party", party, f"is no site of {self.name}", f"choose from {known}")
        named = self.options.tables.get(party) or self.options.table
        if not isinstance(named, str) or not named:
            raise DataMissing(f"no table is named for {party}: say table under here of its policy, or in task.options")
        return Path(named)

    def rows(self, party: str) -> Rows:
        """The features and labels of one site's rows that are trained on. Private."""
        held = self._read_site(party)
        return Rows(features=held.features[held.trained], labels=held.labels[held.trained])

    def _people(self, party: str) -> npt.NDArray[np.int64]:
        """The person of each row, as a hash of the text in its column; rows without one count as one person's."""
        held = self._read_site(party)
        assert held.people is not None
        return held.people[held.trained].view(np.int64)

    def records_of(self, party: str) -> tuple[Hashes]:
        """A hash of each line, for the holder's own look whether it is known under another name. Private."""
        held = self._read_site(party)
        return (held.lines[held.trained],)

    def labels_of(self, party: str) -> Floats:
        """The label of each row. Private."""
        return self.rows(party).labels

    def _read_site(self, party: str) -> _Held:
        if party not in self._read:
            self.look_for_data(party)
            self._read[party] = self._of_file(self.file_of(party), party, self.options.held_out)
        return self._read[party]

    def _of_file(self, path: Path, party: str | None, held_out: float) -> _Held:
        """The rows of ``path`` that lie at ``party``, or all of them."""
        options = self.options
        wanted = {column.name: column.name for column in self.encoding.columns} | {_LABEL: self.encoding.label.name}
        if party is not None and options.site_column and party not in options.tables:
            wanted[_SITE] = options.site_column
        if options.person_column and party is not None:
            wanted[_PERSON] = options.person_column
        texts, lines = self._texts(path, wanted, party if _SITE in wanted else None)
        people = _hashes(texts[_PERSON]) if _PERSON in wanted else None
        scored = (lines if people is None else people) % np.uint64(1000) < np.uint64(round(1000 * held_out))
        return _Held(
            features=self.encoding.features(texts, len(lines)), labels=self.encoding.labels(texts[_LABEL]),
            lines=lines, people=people, scored=scored,
        )  # fmt: skip

    def _texts(self, path: Path, wanted: Mapping[str, str], party: str | None) -> tuple[dict[str, list[str]], Hashes]:
        """These columns of the records of ``path`` as texts, and a hash of each record."""
        found: dict[str, list[str]] = {name: [] for name in wanted}
        hashes: list[str] = []
        with open_lines(path, self.options.encoding) as file:
            lines = lines_of(file, self.options.delimiter)
            header = next(lines, [])
            places = [(name, place_of(header, column)) for name, column in wanted.items()]
            width = width_of(header)
            where = dict(places).get(_SITE)
            for line in lines:
                if not is_record(line, width) or (party is not None and line[where or 0].strip() != party):
                    continue
                hashes.append(self.options.delimiter.join(line))
                for name, place in places:
                    found[name].append(line[place])
        return found, _hashes(hashes)

    # ------------------------------------------------------------------------------------------- scores

    def _read_scored(self) -> tuple[Floats, Floats, str] | None:
        """Features and labels of the rows that are declared public for scores, and what they are; None without any."""
        options = self.options
        if options.holdout:
            path = Path(options.holdout)
            check_file(path)
            held = self._of_file(path, None, 0.0)
            features, labels, what = held.features, held.labels, f"rows of {path.name} ({options.holdout_public})"
        elif options.held_out:
            parts = [self._read_site(party) for party in self._sites]
            features = np.concatenate([held.features[held.scored] for held in parts])
            labels = np.concatenate([held.labels[held.scored] for held in parts])
            what = f"public rows that were held out ({options.public})"
        else:
            return None
        known = ~np.isnan(labels)
        return features[known], labels[known], f"{int(known.sum()):,} {what}"

    def evaluate(self, params: Floats) -> Metrics:
        """Scores on rows declared public; none where there are none."""
        found = self._read_scored()
        if found is None or not len(found[1]):
            return Metrics(values={}, on=NO_SCORE)
        features, labels, what = found
        answers = self.network.answers(params, features)
        if not self.encoding.classes:
            values, middle = self.encoding.in_units(answers[:, 0]), self.encoding.in_units(labels)
            error = float(np.abs(values - middle).mean())
            alone = float(np.abs(np.median(middle) - middle).mean())
            return Metrics(values={"mean_absolute_error": error}, on=what, chance={"mean_absolute_error": alone})
        wanted = labels.astype(np.int64)
        told = {"auc": mean_auc(wanted, answers), "accuracy": accuracy(wanted, answers.argmax(axis=1))}
        return Metrics(values=told, on=what, chance={"auc": 0.5, "accuracy": majority(wanted)})

    def confusion(self, params: Floats) -> npt.NDArray[np.int64] | None:
        """Public rows by true class and answer; None where there are none, or a number is learned."""
        found = self._read_scored() if self.encoding.classes else None
        if found is None:
            return None
        counts = np.zeros((self.network.classes,) * 2, dtype=np.int64)
        answers = self.network.answers(params, found[0]).argmax(axis=1)
        np.add.at(counts, (found[1].astype(np.int64), answers), 1)
        return counts

    def classes_of(self, params: Floats, features: npt.NDArray[Any]) -> npt.NDArray[np.int64] | None:
        """The class that the model answers for each row; None where a number is learned."""
        if not self.encoding.classes:
            return None
        found: npt.NDArray[np.int64] = (
            self.network.answers(params, np.asarray(features)).argmax(axis=1).astype(np.int64)
        )
        return found

    # -------------------------------------------------------------------------------------- predictions

    def encode_file(self, path: Path) -> Floats:
        """The features of a table without labels: row i is line i below the header, NaN if that is no record.

        Empty lines are not counted. The columns of the task must be in the header; others, and the label, may be there
        or not.
        """
        check_file(path)
        texts: dict[str, list[str]] = {column.name: [] for column in self.encoding.columns}
        whole: list[bool] = []
        with open_lines(path, self.options.encoding) as file:
            lines = lines_of(file, self.options.delimiter)
            header = next(lines, [])
            columns = list(zip(texts, places_of(header, texts), strict=True))
            width = width_of(header)
            for line in lines:
                whole.append(is_record(line, width))
                if whole[-1]:
                    for name, place in columns:
                        texts[name].append(line[place])
        found = np.full((len(whole), self.network.inputs), np.nan)
        found[np.array(whole, dtype=np.bool_)] = self.encoding.features(texts, sum(whole))
        return found

    @property
    def answer_names(self) -> tuple[str, ...]:
        """The columns of :meth:`answers`: the classes, or the number that is learned."""
        return self.encoding.classes or (self.encoding.label.name,)

    def answers(self, params: Floats, features: Floats) -> Floats:
        """The chance of each class, (n, classes), or the number that is learned in its own units, (n, 1)."""
        found = self.network.answers(params, features)
        return found if self.encoding.classes else self.encoding.in_units(found)

    def layers(self, params: Floats) -> list[tuple[Floats, Floats, str]]:
        """The model layer by layer, on encoded rows: scores of the classes, or the number in its own units."""
        found = self.network.layers(params)
        if self.encoding.classes:
            return found
        weights, bias, _ = found[-1]
        low, high = self.encoding.in_units(np.array([-1.0, 1.0])).tolist()
        units = (np.array([[(high - low) / 2]]), np.array([(high + low) / 2]), "")
        return [*found[:-1], (weights, bias, "clip"), units]


@final
class _Held:
    """The encoded rows of one file. ``lines`` are hashes of the records, ``scored`` says which are not trained on."""

    def __init__(
        self, *, features: Floats, labels: Floats, lines: Hashes, people: Hashes | None, scored: npt.NDArray[np.bool_]
    ) -> None:
        self.features, self.labels, self.lines, self.people, self.scored = features, labels, lines, people, scored

    @property
    def trained(self) -> npt.NDArray[np.bool_]:
        """Which rows are trained on."""
        return np.asarray(~self.scored)


def _hashes(texts: list[str]) -> Hashes:
    """A hash of each text, without the spaces around it."""
    found = (hashlib.blake2b(text.strip().encode("utf-8", "replace"), digest_size=8).digest() for text in texts)
    return np.array([int.from_bytes(one) for one in found], dtype=np.uint64)

"""Four hospitals predict heart disease: logistic regression on the UCI data of 1988, the demo's task.

Rows and split are those of FLamby's Fed-Heart-Disease: ``slope``, ``ca`` and ``thal`` are left out, 740 rows have no
missing value in the rest, and about a third of each hospital's rows is held out. Everything else is chosen so that
training may be private: each feature is computed from its own row and the public constants of :data:`FEATURES`.

>>> task = HeartTask.from_package()
>>> [(party.name, party.size) for party in task.parties()]
[('cleveland', 199), ('hungarian', 172), ('switzerland', 30), ('va', 85)]
>>> task.rows("va")
Rows(85 examples, 15 features)
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import numpy as np
import numpy.typing as npt

from quietsum.errors import CorruptState, InvalidParameter
from quietsum.plan import PartyFacts
from quietsum.tasks.lines import check_file, is_record, lines_of, open_lines, places_of, width_of
from quietsum.tasks.protocol import Metrics, Rows
from quietsum.tasks.roots import MADE_UP, RowsTrial, check_root, root_rows
from quietsum.validate import non_negative

if TYPE_CHECKING:
    from quietsum.aggregation import Trial
    from quietsum.mechanisms import RandomSource
    from quietsum.plan import LocalOrders

__all__ = ["FEATURES", "HeartTask", "HospitalTable", "encode", "read_folder", "read_tables", "reference_scores"]

Found = TypeVar("Found")

Floats = npt.NDArray[np.float64]

COLUMNS: Final = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak",
    "slope", "ca", "thal", "num",
)  # fmt: skip
UNUSED: Final = frozenset({"slope", "ca", "thal"})  # FLamby leaves them out: most hospitals did not measure them

# Declared and public, as are the names. They are not counted from the rows.
TRAINING_SIZES: Final = {"cleveland": 199, "hungarian": 172, "switzerland": 30, "va": 85}
HELD_OUT_SIZES: Final = {"cleveland": 104, "hungarian": 89, "switzerland": 16, "va": 45}
WHY_PUBLIC: Final = "the UCI heart data is published, anyone may download it"

# sha256 of the published files. The embedded table holds the same lines.
PUBLISHED: Final = {
    "cleveland": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}
SPLIT_DIGEST: Final = "856671ce12f84024baac8659e46b4cabf4772852282f55f64b32bb4813018eed"
RESTORE: Final = "reinstall quietsum, or fetch the file again from https://doi.org/10.24432/C52P4X"

LARGEST: Final = 3.0  # every feature lies in [-3, 3]

# Public constants from clinical practice, never computed from rows: (value − centre) / scale, clipped to ±LARGEST.
# Zero stands for "not measured" where a living patient cannot have it; such a value becomes the centre.
MEASURED: Final[Mapping[str, tuple[float, float]]] = {
    "age": (54.0, 9.0),  # years; adults who are sent to a heart catheter are mostly 40 to 70
    "trestbps": (130.0, 18.0),  # mm Hg at rest; 120–139 was "high normal"
    "chol": (240.0, 60.0),  # mg/dl; 240 and above is called high
    "thalach": (140.0, 25.0),  # the largest heart rate in an exercise test
    "oldpeak": (1.0, 1.0),  # mm ST depression; 1 mm is the usual sign of ischaemia
}
CANNOT_BE_ZERO: Final = frozenset({"age", "trestbps", "chol", "thalach"})
# Questions with two answers are +1 for yes and −1 for no: (column, value that means yes).
YES_OR_NO: Final[Mapping[str, tuple[str, int]]] = {
    "male": ("sex", 1),
    "fasting_sugar_above_120": ("fbs", 1),
    "pain_on_exercise": ("exang", 1),
    "no_chest_pain": ("cp", 4),
}
# What is left of the two columns with several kinds, 1 or 0; the first kind of each is left out.
KINDS: Final[Mapping[str, tuple[str, int]]] = {
    "atypical_angina": ("cp", 2),
    "other_chest_pain": ("cp", 3),
    "ecg_st_t_abnormal": ("restecg", 1),
    "ecg_hypertrophy": ("restecg", 2),
}

# What every textbook says raises (+) or lowers (−) the chance of heart disease, per feature unit. Rough, and not fitted
# to anything: it labels made-up patients, on which the server may try what hospitals send.
SAID: Final[Mapping[str, float]] = {
    "age": 0.4, "trestbps": 0.2, "chol": 0.2, "thalach": -0.5, "oldpeak": 0.7, "male": 0.6, "pain_on_exercise": 0.6,
    "no_chest_pain": 0.8, "atypical_angina": -0.5, "chol_not_measured": 0.5,
}  # fmt: skip
MADE_UP_PATIENTS: Final = 200
_MADE_UP_YEAR: Final = 1988  # a public seed: every process makes the same patients

FEATURES: Final = (
    *MEASURED,
    *YES_OR_NO,
    *KINDS,
    "chol_not_measured",
    "bias",
)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class HospitalTable:
    """The raw rows of one hospital, (n, 14) with NaN for a missing value, and each row's ``number`` in its file."""

    values: Floats
    numbers: npt.NDArray[np.int64]

    def complete(self) -> HospitalTable:
        """The rows without a missing value in the columns that are used: a rule that looks at one row at a time."""
        used = [index for index, column in enumerate(COLUMNS) if column not in UNUSED]
        kept = ~np.isnan(self.values[:, used]).any(axis=1)
        return HospitalTable(values=self.values[kept], numbers=self.numbers[kept])

    def select(self, mask: npt.NDArray[np.bool_]) -> HospitalTable:
        """The rows where ``mask`` holds."""
        return HospitalTable(values=self.values[mask], numbers=self.numbers[mask])


def encode(values: Floats) -> Rows:
    """Raw rows as features and labels (1 means ill).

    Guarantees: row i of the result depends on row i of ``values`` and on public constants only.
    """
    column = {name: values[:, index] for index, name in enumerate(COLUMNS)}
    found: list[Floats] = []
    for name, (centre, scale) in MEASURED.items():
        value = column[name]
        known = np.where((value == 0) & (name in CANNOT_BE_ZERO), centre, value)
        found.append(np.clip((known - centre) / scale, -LARGEST, LARGEST))
    found += [np.where(column[name] == yes, 1.0, -1.0) for name, yes in YES_OR_NO.values()]
    found += [np.where(column[name] == kind, 1.0, 0.0) for name, kind in KINDS.values()]
    found.append(np.where(column["chol"] == 0, 1.0, 0.0))
    found.append(np.ones(len(values)))
    features, labels = np.stack(found, axis=1), np.where(column["num"] > 0, 1.0, 0.0)
    features.flags.writeable = labels.flags.writeable = False
    return Rows(features=features, labels=labels)


def read_tables() -> dict[str, HospitalTable]:
    """The four tables inside the package, checked against the published digests."""
    lines: dict[str, list[str]] = {name: [] for name in PUBLISHED}
    for line in _read_package("heart_4centers.csv").splitlines()[1:]:
        centre, _, rest = line.partition(",")
        lines.setdefault(centre, []).append(rest)
    return {name: _parse(name, "\n".join(lines[name]) + "\n", "heart_4centers.csv") for name in PUBLISHED}


def read_folder(folder: str | Path) -> dict[str, HospitalTable]:
    """The four tables from a folder with UCI's own ``processed.cleveland.data`` and its three siblings."""
    tables = {}
    for name in PUBLISHED:
        file, raw = _of_folder(folder, name, lambda file: file.read_bytes())
        tables[name] = _parse(name, raw.decode("ascii", errors="replace").replace("\r\n", "\n"), str(file))
    return tables


def _of_folder(folder: str | Path, name: str, look: Callable[[Path], Found]) -> tuple[Path, Found]:
    file = Path(folder) / f"processed.{name}.data"
    try:
        return file, look(file)
    except OSError as error:
        raise InvalidParameter(
            "path", str(folder), f"has no readable processed.{name}.data ({error.strerror})",
            "unpack UCI's heart-disease archive there, or leave the option out: the rows are in the package",
        ) from None  # fmt: skip


def read_hold_out() -> dict[str, frozenset[int]]:
    """Per hospital, the numbers of the rows that FLamby's rule holds out (see data/README.md)."""
    text = _read_package("heart_split.csv")
    if hashlib.sha256(text.encode()).hexdigest() != SPLIT_DIGEST:
        raise CorruptState("heart_split.csv is not the file that quietsum was published with; reinstall quietsum")
    pairs = [line.split(",") for line in text.splitlines()[1:]]
    return {name: frozenset(int(row) for centre, row in pairs if centre == name) for name in PUBLISHED}


def _read_package(file: str) -> str:
    try:
        raw = resources.files("quietsum.tasks.data").joinpath(file).read_bytes()
    except OSError:
        raise CorruptState(f"{file} is missing from the installed package; reinstall quietsum") from None
    return raw.decode("ascii", errors="replace").replace("\r\n", "\n")


def _parse(name: str, text: str, file: str) -> HospitalTable:
    digest = hashlib.sha256(text.encode()).hexdigest()
    if digest != PUBLISHED[name]:
        raise CorruptState(
            f"the rows of {name} in {file} are not the published ones (sha256 {digest[:12]}…, expected "
            f"{PUBLISHED[name][:12]}…): the file was altered or truncated; {RESTORE}"
        )
    cells = [line.split(",") for line in text.splitlines()]
    values = np.array([[math.nan if cell == "?" else float(cell) for cell in row] for row in cells])
    return HospitalTable(values=values, numbers=np.arange(len(values), dtype=np.int64))


@final
class HeartTask:
    """Predict illness from ten clinical values.

    ``tables`` are the raw rows by hospital, or what reads them: no row is read, or compared with what was published,
    before somebody asks for rows, scores or a rehearsal. ``l2`` adds l2 / 2 · |params|² to the loss of each example.
    ``root`` is how many hold-out rows are kept for trials at the server instead of being scored, or "made-up": patients
    drawn from the public ranges above and labelled by what textbooks say (:func:`make_patients`).
    """

    name: Final = "heart"
    title: Final = "heart disease at four hospitals (UCI, logistic regression)"
    dimension: Final = len(FEATURES)

    def __init__(
        self,
        tables: Mapping[str, HospitalTable] | Callable[[], Mapping[str, HospitalTable]],
        *,
        l2: float = 0.0,
        root: int | str = 0,
    ) -> None:
        self.l2 = non_negative("l2", l2)
        self._tables, self._made_up = tables, root == MADE_UP
        self.root_size = MADE_UP_PATIENTS if self._made_up else check_root(root, self.name)

    @cached_property
    def _complete(self) -> dict[str, HospitalTable]:
        tables = self._tables() if callable(self._tables) else self._tables
        return {name: tables[name].complete() for name in TRAINING_SIZES}

    @cached_property
    def _private(self) -> dict[str, HospitalTable]:
        """Raw until a party is asked for its rows."""
        return {name: table.select(~_outside(name, table)) for name, table in self._complete.items()}

    @cached_property
    def _published(self) -> dict[str, Rows]:
        return {name: encode(table.select(_outside(name, table)).values) for name, table in self._complete.items()}

    @cached_property
    def _roots(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Which hold-out rows of each hospital are in the root set: ill and well, its share of all."""
        kinds = np.concatenate([2 * place + rows.labels for place, rows in enumerate(self._published.values())])
        chosen = root_rows(kinds, 0 if self._made_up else self.root_size)
        ends = np.cumsum([len(rows) for rows in self._published.values()])[:-1]
        return dict(zip(self._published, np.split(chosen, ends), strict=True))

    @cached_property
    def _held_out(self) -> dict[str, Rows]:
        """The rows that are scored."""
        return {name: _some(rows, ~self._roots[name]) for name, rows in self._published.items()}

    @cached_property
    def _root(self) -> Rows:
        if self._made_up:
            return make_patients()
        return pool(_some(rows, self._roots[name]) for name, rows in self._published.items())

    @classmethod
    def from_package(cls, *, l2: float = 0.0) -> HeartTask:
        """The task on the rows inside the package."""
        return cls(read_tables, l2=l2)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> HeartTask:
        """The task as ``[task.options]`` of a plan describes it: ``path``, ``missing``, ``split``, ``l2``, ``root``."""
        from quietsum.tasks.registry import nearest_name

        known = {"path": None, "missing": "drop", "split": "flamby", "l2": 0.0, "root": 0}
        for key in options:
            if key not in known:
                raise InvalidParameter(
                    f"task.options.{key}", options[key], "is no option of heart", nearest_name(key, known)
                )
        chosen = {**known, **options}
        if chosen["missing"] != "drop":
            raise InvalidParameter(
                "task.options.missing", chosen["missing"], "is not offered",
                'use "drop": rows with a missing value are left out, which looks at one row at a time',
            )  # fmt: skip
        if chosen["split"] != "flamby":
            raise InvalidParameter("task.options.split", chosen["split"], "is not offered", 'use "flamby"')
        if chosen["path"] is not None and not isinstance(chosen["path"], str | Path):
            raise InvalidParameter("task.options.path", chosen["path"], "is no path", "name a folder")
        if (path := chosen["path"]) is None:
            return cls(read_tables, l2=chosen["l2"], root=chosen["root"])
        for name in PUBLISHED:
            _of_folder(path, name, lambda file: file.stat())
        return cls(lambda: read_folder(path), l2=chosen["l2"], root=chosen["root"])

    def parties(self) -> tuple[PartyFacts, ...]:
        """The four hospitals with their declared sizes."""
        return tuple(
            PartyFacts(name=name, dataset=f"uci-heart-{name}", size=size, public=WHY_PUBLIC)
            for name, size in TRAINING_SIZES.items()
        )

    def initial(self) -> Floats:
        """Zeros: every patient is as likely ill as well."""
        return np.zeros(self.dimension)

    def rows(self, party: str) -> Rows:
        """The training rows of one hospital."""
        if party not in TRAINING_SIZES:
            raise InvalidParameter(
                "party", party, "is no hospital of heart", f"choose from {', '.join(TRAINING_SIZES)}"
            )
        return encode(self._private[party].values)

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        """(p − y)·x + l2·params for each example, p = 1 / (1 + exp(−x·params)).

        Guarantees: a row's gradient is the same bits beside any other rows in the batch.
        """
        away = probabilities(params, features) - labels
        return away[:, None] * features + self.l2 * params

    def losses(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        """ln(1 + exp(−x·params)) for the ill, ln(1 + exp(x·params)) for the well, + l2 / 2 · |params|²."""
        logits = features @ params
        return np.asarray(np.logaddexp(0.0, logits) - labels * logits + self.l2 / 2 * float(params @ params))

    def trial(self, params: Floats, orders: LocalOrders, rng: RandomSource) -> Trial:
        """The root set tried on ``params``. Guarantees: no hospital's training row is looked at."""
        return RowsTrial(self, self._root, params, orders, rng)

    def evaluate(self, params: Floats) -> Metrics:
        """Accuracy and AUC on the published hold-out rows of all hospitals.

        ``accuracy`` pools the rows; ``accuracy_mean_of_sites`` is FLamby's figure, the mean of the four hospitals'.
        """
        if np.shape(params) != (self.dimension,) or not np.isfinite(params).all():
            raise InvalidParameter(
                "params", f"an array of shape {np.shape(params)}", f"must be {self.dimension} finite numbers"
            )
        sites = {name: _accuracy(params, rows) for name, rows in self._held_out.items()}
        pooled = pool(self._held_out.values())
        values = {
            "accuracy": _accuracy(params, pooled),
            "auc": area_under_curve(pooled.labels, pooled.features @ params),
            "accuracy_mean_of_sites": sum(sites.values()) / len(sites),
            **{f"accuracy_{name}": value for name, value in sites.items()},
        }
        kind = "published hold-out rows"
        parts = {f"accuracy_{name}": f"{len(rows)} {kind} of {name}" for name, rows in self._held_out.items()}
        share = float(np.mean(pooled.labels))
        chance = {"accuracy": max(share, 1 - share), "auc": 0.5}
        return Metrics(values=values, on=f"{len(pooled)} {kind}", parts=parts, chance=chance)

    answer_names: Final = ("well", "ill")

    def answers(self, params: Floats, features: Floats) -> Floats:
        """The chances of being well and ill, (n, 2)."""
        ill = probabilities(params, features)
        return np.stack([1 - ill, ill], axis=1)

    def layers(self, params: Floats) -> list[tuple[Floats, Floats, str]]:
        """One layer with one score, the log-odds of being ill."""
        return [(np.asarray(params, dtype=np.float64)[None], np.zeros(1), "")]

    def encode_file(self, path: Path) -> Floats:
        """The features of patients in a table with the used columns of :data:`COLUMNS`; NaN where a value is missing.

        A value that is empty, "?" or no number is missing. The column ``num``, which is the label, is not looked at.
        """
        check_file(path)
        used = [name for name in COLUMNS if name not in UNUSED and name != "num"]
        rows: list[list[float]] = []
        with open_lines(path) as file:
            lines = lines_of(file)
            header = next(lines, [])
            places, width = places_of(header, used), width_of(header)
            for line in lines:
                rows.append([_value(line[at]) for at in places] if is_record(line, width) else [math.nan] * len(used))
        values = np.zeros((len(rows), len(COLUMNS)))
        values[:, [COLUMNS.index(name) for name in used]] = np.array(rows).reshape(len(rows), len(used))
        features = encode(values).features.copy()
        features[np.isnan(values).any(axis=1)] = np.nan
        return features

    def example(self) -> Rows:
        """An average patient, once ill and once well. Made up."""
        return Rows(features=np.zeros((2, self.dimension)), labels=np.array([0.0, 1.0]))

    def rehearse(self, orders: LocalOrders | None = None) -> None:
        """Read the tables, which must be the published ones, and try the gradients."""
        _ = self._private, self._held_out  # each is read, and verified, when it is first asked for
        if self.root_size:
            _ = self._root
        self.rehearse_unseen(orders)

    def rehearse_unseen(self, orders: LocalOrders | None = None) -> None:
        """Try the gradients on the made-up patient. Guarantees: no row is read."""
        rows = self.example()
        self.gradients(self.initial(), rows.features, rows.labels)

    def references(self, parties: Sequence[str]) -> Mapping[str, float]:
        """Accuracy of :func:`reference_scores` on the same rows. The data is published, so this is allowed."""
        scores = reference_scores(self, parties)
        alone = {
            f"{name} alone, no privacy": scores[name].values["accuracy"]
            for name in sorted(parties, key=lambda name: -TRAINING_SIZES[name])
        }
        every = "all rows" if len(parties) == len(TRAINING_SIZES) else "their rows"
        return {f"{every} in one place, no privacy": scores["pooled"].values["accuracy"], **alone}


def make_patients(count: int = MADE_UP_PATIENTS) -> Rows:
    """Patients that do not exist: values spread as :data:`MEASURED` says, labels by the odds of :data:`SAID`.

    They know which way a risk goes and roughly how far. That is enough to tell an update that reverses it, and not
    enough to train on.

    >>> rows = make_patients()
    >>> len(rows), bool(0.3 < rows.labels.mean() < 0.7)
    (200, True)
    """
    draw = np.random.default_rng(_MADE_UP_YEAR)
    column = {name: np.clip(draw.normal(size=count), -LARGEST, LARGEST) for name in MEASURED}
    column |= {name: draw.choice([-1.0, 1.0], size=count) for name in YES_OR_NO}
    column |= {name: (draw.random(count) < 0.2).astype(np.float64) for name in KINDS}
    column |= {"chol_not_measured": (draw.random(count) < 0.1).astype(np.float64), "bias": np.ones(count)}
    features = np.stack([column[name] for name in FEATURES], axis=1)
    odds = features @ np.array([SAID.get(name, 0.0) for name in FEATURES])
    return Rows(features=features, labels=(draw.random(count) < 0.5 * (1 + np.tanh(odds / 2))).astype(np.float64))


def _value(text: str) -> float:
    """The number that ``text`` is; NaN if it is none, or is not finite."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _some(rows: Rows, chosen: npt.NDArray[np.bool_]) -> Rows:
    return Rows(features=rows.features[chosen], labels=rows.labels[chosen])


def _outside(name: str, table: HospitalTable) -> npt.NDArray[np.bool_]:
    return np.isin(table.numbers, sorted(read_hold_out()[name]))


def probabilities(params: Floats, features: Floats) -> Floats:
    """1 / (1 + exp(−x·params)), written with tanh because that never overflows.

    Each row is summed by itself: a matrix product may round a row differently in another batch, and then the presence
    of one patient would show in the last bits of the others.
    """
    logits: Floats = (np.ascontiguousarray(features) * params).sum(axis=1)
    return 0.5 * (1.0 + np.tanh(0.5 * logits))


def pool(parts: Iterable[Rows]) -> Rows:
    """All rows of ``parts`` in one."""
    held = list(parts)
    return Rows(
        features=np.concatenate([rows.features for rows in held]), labels=np.concatenate([rows.labels for rows in held])
    )


def area_under_curve(labels: Floats, scores: Floats) -> float:
    """The chance that an ill patient scores above a well one, ties counted half (Mann and Whitney).

    >>> area_under_curve(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.1, 0.4, 0.4, 0.8]))
    0.875
    """
    ill, well = scores[labels == 1], scores[labels == 0]
    if not len(ill) or not len(well):
        return math.nan
    above = np.sign(ill[:, None] - well[None, :])
    return float((above.mean() + 1) / 2)


def _accuracy(params: Floats, rows: Rows) -> float:
    return float(np.mean((rows.features @ params > 0) == (rows.labels == 1)))


def reference_scores(task: HeartTask, parties: Sequence[str] = tuple(TRAINING_SIZES)) -> dict[str, Metrics]:
    """What no privacy buys, on the same hold-out rows: ``pooled`` (all training rows in one place, which is also where
    federated training without noise arrives) and, by name, each hospital's model trained on its own rows alone; of
    these ``parties``.

    These models see the training rows without protection. That is allowed here because the rows are published.
    """
    scores = {"pooled": task.evaluate(fit(pool(task.rows(name) for name in parties)))}
    return scores | {name: task.evaluate(fit(task.rows(name))) for name in parties}


def fit(rows: Rows, *, l2: float = 0.01, steps: int = 30) -> Floats:
    """The minimum of mean log-loss + l2 / 2 · |params|² by Newton's method; no privacy, no randomness."""
    params = np.zeros(rows.features.shape[1])
    for _ in range(steps):
        chance = probabilities(params, rows.features)
        slope = rows.features.T @ (chance - rows.labels) / len(rows) + l2 * params
        curvature = (rows.features.T * (chance * (1 - chance))) @ rows.features / len(rows)
        params = params - np.linalg.solve(curvature + l2 * np.eye(len(params)), slope)
    return params

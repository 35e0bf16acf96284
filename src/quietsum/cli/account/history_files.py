"""Histories in files: CSV with one row a round, or a JSON list of the same rows or of events.

A row says ``noise_multiplier``, ``sample_rate`` and ``steps``, and if needed ``round``, ``party``, ``level`` (sample or
user), ``mechanism``, ``sampling``, ``keep_probability`` and ``step_epsilon``. A wide row may hold both levels, in the
words of ``PrivacyAccountant.record_round``: ``noise_multiplier_sample``, ``noise_multiplier_user`` and so on. What
``PrivacyAccountant.state_dict`` wrote as JSON is a history, too.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from quietsum import privacy
from quietsum.cli.account.events import charge_of, mechanism_event
from quietsum.cli.account.pricing import Charge
from quietsum.cli.shared.options import Mechanism, Sampling
from quietsum.errors import CorruptState, InvalidParameter, QuietsumError
from quietsum.privacy import Neighbours
from quietsum.validate import finite_number, whole_number

__all__ = ["RoundRow", "Rounds", "read_rounds"]

_MOST_BYTES = 64 * 1024 * 1024
_NUMBERS = ("noise_multiplier", "sample_rate", "steps", "keep_probability", "step_epsilon")
_WIDE = {
    f"{name}_{level}": (level, name)
    for level in ("sample", "user")
    for name in ("noise_multiplier", "sample_rate", "steps")
}
_COLUMNS = ("round", "party", "level", "mechanism", "sampling", *_NUMBERS)
_OTHER_NAMES = {"round_num": "round", "sigma": "noise_multiplier", "q": "sample_rate", "times": "steps"}
_LEVELS = {"sample": "sample", "record": "sample", "user": "user", "client": "user"}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundRow:
    """One charge: at which level, at which party (None: at every one), and how it was sampled."""

    charge: Charge
    level: str = "sample"
    party: str | None = None
    sampling: Sampling | None = None
    round_num: int | None = None


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rounds:
    """The rows of a file, and the relation where the file states one."""

    rows: tuple[RoundRow, ...]
    neighbours: Neighbours | None = None


def read_rounds(path: str) -> Rounds:
    """What a history file says; ``-`` is standard input. Every mistake names its line and column."""
    name = "standard input" if path == "-" else path
    text = _read(path)
    is_json = text.lstrip()[:1] in ("[", "{")
    rounds = _from_json(text, name) if is_json else Rounds(rows=tuple(_from_csv(text, name)))
    if not rounds.rows:
        raise InvalidParameter("history", path, "holds no rounds", "write one row a round")
    return dataclasses.replace(rounds, rows=tuple(_once(rounds.rows)))


def _once(rows: Iterable[RoundRow]) -> Iterator[RoundRow]:
    """Several parties' words for one client-level charge of a round as one charge; a party's second word is another."""
    reports: dict[tuple[int | None, Charge], set[str]] = {}
    for row in rows:
        if row.level == "user" and row.party is not None:
            reported = reports.setdefault((row.round_num, row.charge), set())
            if reported and row.party not in reported:
                reported.add(row.party)
                continue
            reports[row.round_num, row.charge] = {row.party}
        yield row


def _read(path: str) -> str:
    try:
        data = sys.stdin.buffer.read(_MOST_BYTES + 1) if path == "-" else _bytes(Path(path))
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise InvalidParameter("history", path, "does not exist", "pass a CSV or JSON file of rounds") from None
    except IsADirectoryError:
        raise InvalidParameter("history", path, "is a folder", "pass a CSV or JSON file of rounds") from None
    except OSError as error:
        raise InvalidParameter("history", path, f"cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, ValueError):
        raise InvalidParameter("history", path, "is not text", "pass a CSV or JSON file in UTF-8") from None
    if len(data) > _MOST_BYTES:
        raise InvalidParameter("history", path, "is larger than 64 MiB", "merge equal rounds by adding up their steps")
    if "\0" in text:
        raise InvalidParameter("history", path, "is not text", "pass a CSV or JSON file in UTF-8")
    if not text.strip():
        raise InvalidParameter("history", path, "is empty", "write one row a round, below a line of column names")
    return text


def _bytes(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(_MOST_BYTES + 1)


# ---------------------------------------------------------------------------------------------- CSV


def _from_csv(text: str, name: str) -> Iterator[RoundRow]:
    header = text.lstrip().splitlines()[0]
    reader = csv.DictReader(io.StringIO(text.lstrip()), strict=True, delimiter="\t" if "\t" in header else ",")
    try:
        columns = [(column or "").strip() for column in reader.fieldnames or []]
        for column in columns:
            _check_column(column, name)
        if len(set(columns)) < len(columns):
            raise InvalidParameter(name, ", ".join(columns), "names a column twice", "keep one of them")
        reader.fieldnames = columns
        for cells in reader:
            where = f"{name} line {reader.line_num}"
            if None in cells:
                raise InvalidParameter(where, cells[None], "has more cells than the header", "remove them")
            yield from _rows({key: (value or "").strip() for key, value in cells.items()}, where)
    except csv.Error as error:
        raise InvalidParameter("history", name, f"is not CSV: {error}", "separate cells by commas") from None


def _check_column(column: str, where: str) -> None:
    known = (*_COLUMNS, *_WIDE, *_OTHER_NAMES, "event")
    if column in known:
        return
    if ";" in column:
        raise InvalidParameter(where, column, "is one column", "separate cells by commas, decimals by points")
    close = difflib.get_close_matches(column.lower().replace("-", "_").replace(" ", "_"), known, n=1, cutoff=0.5)
    remedy = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(_COLUMNS)}"
    raise InvalidParameter(f"{where}: column", column, "is unknown", remedy)


# --------------------------------------------------------------------------------------------- JSON


def _from_json(text: str, name: str) -> Rounds:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter("history", name, f"is not JSON: {error}", "write a list of rounds") from None
    if isinstance(values, dict) and isinstance(values.get("privacy"), dict):
        values = values["privacy"]
    if not isinstance(values, dict):
        return Rounds(rows=tuple(_from_list(values, name)))
    if not {"sample_history", "user_history"} & set(values):
        return Rounds(rows=tuple(_from_list([values], name)))
    stated = None
    if "digest" in values:  # written by PrivacyAccountant, which also knows how to tell when it was altered
        from quietsum.privacy import PrivacyAccountant

        accountant = PrivacyAccountant(delta=0.5)
        accountant.load_state_dict(values)
        stated = accountant.neighbours
    return Rounds(rows=tuple(_from_checkpoint(values, name)), neighbours=stated)


def _from_list(values: list[Any], name: str) -> Iterator[RoundRow]:
    for number, value in enumerate(values, start=1):
        where = f"{name} entry {number}"
        if not isinstance(value, dict):
            raise InvalidParameter(where, value, "is no object", "write the columns of a round, or an event")
        if "kind" in value:
            yield RoundRow(charge=(_event(value, where), 1))
            continue
        if "event" in value and value.get("version", privacy.EVENT_VERSION) != privacy.EVENT_VERSION:
            raise InvalidParameter(
                f"{where}: version",
                value["version"],
                f"is not {privacy.EVENT_VERSION}",
                "use the quietsum that wrote it",
            )
        cells = {key: cell for key, cell in value.items() if not (key == "version" and "event" in value)}
        for key in cells:
            _check_column(key, where)
        yield from _rows(cells, where)


def _from_checkpoint(values: Mapping[str, Any], name: str) -> Iterator[RoundRow]:
    """(σ, q, T) for each round and level, as older checkpoints keep them."""
    for level in ("sample", "user"):
        history = values.get(f"{level}_history") or []
        if not isinstance(history, list):
            raise InvalidParameter(f"{name}: {level}_history", history, "is no list", "write [[σ, q, T], …]")
        for number, entry in enumerate(history, start=1):
            where = f"{name} {level}_history[{number}]"
            if isinstance(entry, dict):
                for key in entry:
                    _check_column(key, where)
                kept = {key: cell for key, cell in entry.items() if key != "party" or level == "sample"}
                yield from _rows({"level": level, **kept}, where)  # a saved client-level charge is one of its own
            elif isinstance(entry, list) and len(entry) == 3:
                yield from _rows({"level": level, **dict(zip(_NUMBERS, entry, strict=False))}, where)
            else:
                raise InvalidParameter(where, entry, "is not (σ, q, T)", "write three numbers")


def _event(values: object, where: str) -> privacy.PrivacyEvent:
    try:
        return privacy.from_dict(values)  # type: ignore[arg-type]  # from_dict checks it
    except (CorruptState, RecursionError) as error:
        raise InvalidParameter(where, "event", "cannot be read", str(error)) from None


# --------------------------------------------------------------------------------------------- rows


def _rows(cells: Mapping[str, Any], where: str) -> Iterator[RoundRow]:
    """One row as one charge, or a wide row as one charge for each level."""
    values = {_OTHER_NAMES.get(key, key): cell for key, cell in cells.items() if cell not in ("", None)}
    try:
        wide = {key: values.pop(key) for key in _WIDE if key in values}
        if not wide:
            yield _row(values)
            return
        if clash := sorted({"level", *_NUMBERS} & set(values)):
            raise InvalidParameter(clash[0], values[clash[0]], "stands beside columns for both levels", "keep one form")
        for level in ("sample", "user"):
            part = {name: wide[f"{name}_{level}"] for name in _NUMBERS[:3] if f"{name}_{level}" in wide}
            if part:
                yield _row({**values, **part, "level": level})
    except InvalidParameter as error:
        raise InvalidParameter(f"{where}: {error.parameter}", error.value, error.problem, error.remedy) from None
    except QuietsumError as error:
        raise InvalidParameter(where, "this row", "cannot be charged", str(error)) from None


def _row(values: Mapping[str, Any]) -> RoundRow:
    level = _choice("level", values.get("level", "sample"), _LEVELS)
    party = values.get("party")
    round_num = whole_number("round", _number("round", values["round"])) if "round" in values else None
    if level == "user" and party is not None and round_num is None:
        raise InvalidParameter(
            "party", party, "reports a client-level charge without its round",
            "such a charge falls on every party once a round; add a round column, or leave party empty",
        )  # fmt: skip
    numbers = {name: _number(name, values[name]) for name in _NUMBERS if name in values}
    steps = whole_number("steps", numbers.pop("steps")) if "steps" in numbers else None
    party = None if party is None else str(party)
    if "event" in values:
        if clash := sorted({"mechanism", "sampling", *numbers} & set(values)):
            raise InvalidParameter(clash[0], values[clash[0]], "stands beside an event", "the event says it all")
        charge = (_event(values["event"], "event"), 1 if steps is None else steps)
        return RoundRow(charge=charge, level=level, party=party, round_num=round_num)
    mechanism = Mechanism(
        _choice("mechanism", values.get("mechanism", "gaussian"), {m.value: m.value for m in Mechanism})
    )
    sampling = Sampling(_choice("sampling", values.get("sampling", "poisson"), {s.value: s.value for s in Sampling}))
    rate = numbers.pop("sample_rate", None)
    charge = charge_of(mechanism_event(mechanism, **numbers), sampling, rate, steps, least_steps=0)
    return RoundRow(charge=charge, level=level, party=party, sampling=sampling, round_num=round_num)


def _number(name: str, value: object) -> float:
    if isinstance(value, str):
        try:
            value = int(value) if value.lstrip("+-").isdigit() else float(value)
        except ValueError:
            raise InvalidParameter(name, value, "is not a number", "write it with a decimal point") from None
    return finite_number(name, value) if not isinstance(value, int) or isinstance(value, bool) else value


def _choice(name: str, value: object, known: Mapping[str, str]) -> str:
    word = str(value).lower()
    if word in known:
        return known[word]
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    raise InvalidParameter(
        name, value, "is unknown", f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(known)}"
    )

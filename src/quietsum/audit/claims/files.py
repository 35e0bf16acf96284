"""Claims in files: TOML, JSON, plain YAML or CSV, ours or the other system's own.

A claim of ours names its ``system``, its ``settings`` and what is promised (``claim``). Files that another system wrote
are known by what they hold: a DP-FedMed checkpoint by its block ``privacy`` with a ``sample_history``, a report of the
fraud system by its nine names, its configuration by ``dp_enabled``, a table by its columns.

**Files are data.** Nothing in one is executed or imported. A claim is at most a megabyte, a name may not stand twice,
and NaN and infinity are no numbers.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quietsum.audit.claims.plain_yaml import parse_plain_yaml
from quietsum.audit.claims.values import ClaimFile
from quietsum.errors import InvalidParameter, QuietsumError, may_pass, printable

__all__ = ["read_claim"]

LARGEST = 1_000_000
_NAMED = 5  # unknown columns that an error names
NINE = frozenset(
    {
        "target_epsilon",
        "target_delta",
        "achieved_epsilon",
        "noise_multiplier",
        "max_grad_norm",
        "sampling_probability",
        "training_steps",
        "mechanism",
        "accounting",
    }
)
"""The names in a report of the fraud system."""
_WRITE = "write TOML: system, [settings] and [claim], as docs/how-to/check-a-claim.md shows"


def read_claim(source: str | os.PathLike[str] | Mapping[str, Any]) -> ClaimFile:
    """The claim in a file, or in values that were read already.

    Raises :class:`~quietsum.errors.QuietsumError` with what to write instead if it is none.
    """
    from quietsum.plan import value_of

    if isinstance(source, Mapping):
        where, values = "the claim", dict(source)
    else:
        where, values = os.fspath(source), _read(Path(source))
    claim = _envelope(values)
    if claim.get("system") == "dp-fedmed" and isinstance(claim.get("settings"), Mapping):
        from quietsum.audit.claims.documents import triples

        claim = {**claim, "settings": triples(dict(claim["settings"]))}
    found: ClaimFile = value_of(ClaimFile, claim, where=where, remedy=_WRITE)
    return found


def _envelope(values: dict[str, Any]) -> dict[str, Any]:
    """``values`` as a claim of ours: files that other systems wrote become the settings of that system."""
    if "system" in values:
        return values
    privacy = values.get("privacy")
    if isinstance(privacy, Mapping) and "sample_history" in privacy:
        return {"system": "dp-fedmed", "settings": dict(privacy)}
    if {"sample_history", "user_history"} & set(values):
        return {"system": "dp-fedmed", "settings": values}
    if isinstance(privacy, Mapping) and "dp_enabled" in privacy:
        return {"system": "fraud-config", "settings": dict(privacy)}
    if len(NINE & set(values)) >= 5:
        if "ledger" in values:
            raise InvalidParameter(
                "claim",
                "report.json",
                "is a report of quietsum, which can be recomputed whole",
                "use quietsum report --verify",
            )
        return {"system": "fraud-report", "settings": values}
    from quietsum.audit.claims.registry import list_systems

    raise InvalidParameter(
        "system",
        None,
        "is missing, and the file is none that another system is known to write",
        f"name one of {', '.join(one.name for one in list_systems())}",
    )


# ------------------------------------------------------------------------------------------------------- files


def _read(path: Path) -> dict[str, Any]:
    data = _bytes(path)
    if data[:2] == b"PK":
        return _checkpoint(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidParameter("claim", str(path), "is not UTF-8 text", "save it as UTF-8") from None
    if "\0" in text or not text.strip():
        raise InvalidParameter("claim", str(path), "is empty" if not text.strip("\0 \r\n\t") else "is not text", _WRITE)
    kind = path.suffix.lower()
    if kind == ".json" or text.lstrip()[:1] in ("{", "["):
        values = _json(text, path)
    elif kind == ".csv":
        values = _csv(text, path)
    elif kind in (".yaml", ".yml"):
        values = parse_plain_yaml(text, where=str(path))
    else:
        values = _toml(text, path)
    if not isinstance(values, dict):
        raise InvalidParameter("claim", str(path), "holds no names and values", _WRITE)
    return values


def _bytes(path: Path) -> bytes:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise InvalidParameter("claim", str(path), "is a folder", "name the file in it")
        if not stat.S_ISREG(mode):  # a pipe or a device may never end
            raise InvalidParameter("claim", str(path), "is not a regular file", "name a file of settings")
        with path.open("rb") as file:
            if (head := file.read(2)) == b"PK":
                return head
            data = head + file.read(LARGEST)
    except (OSError, ValueError) as error:
        if isinstance(error, QuietsumError) or (isinstance(error, OSError) and may_pass(error)):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidParameter("claim", str(path), f"cannot be read ({reason})", "check the path") from None
    if len(data) > LARGEST:
        raise InvalidParameter("claim", str(path), f"is larger than {LARGEST:,} bytes", "keep the settings alone")
    return data


def _toml(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter("claim", str(path), f"is not TOML: {_brief(error)}", _WRITE) from None


def _json(text: str, path: Path) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name stands twice in one object")
        return found

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is no number")

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter("claim", str(path), f"is not JSON: {_brief(error)}", _WRITE) from None


def _csv(text: str, path: Path) -> dict[str, Any]:
    """A table of a paper: one line of column names, one row a training."""
    try:
        rows = list(csv.DictReader(io.StringIO(text.strip()), strict=True))
    except csv.Error as error:
        raise InvalidParameter("claim", str(path), f"is not CSV: {_brief(error)}", "separate cells by commas") from None
    _check_columns(list(rows[0]) if rows else [], path)
    found = []
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise InvalidParameter(
                f"{path} line {number}", number, "has not one cell for each column", "check its commas"
            )
        found.append({name.strip(): number_of(cell.strip()) for name, cell in row.items() if cell.strip()})
    return {"system": "table", "title": path.stem, "settings": {"rows": found}}


def _check_columns(names: list[Any], path: Path) -> None:
    """Raise, once for the whole table, where its columns are not those of a table of trainings."""
    from quietsum.audit.claims.dp_sgd import TableRow

    fields = dataclasses.fields(TableRow)
    needed = [field.name for field in fields if field.default is dataclasses.MISSING]
    known, given = {field.name for field in fields}, [name.strip() for name in names if name is not None]
    problems = [f"has no column {name}" for name in needed if name not in given]
    if odd := [printable(name)[:40] for name in given if name not in known]:
        more = f" and {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
        problems.append(f"has unknown columns ({', '.join(odd[:_NAMED])}{more})")
    if problems:
        remedy = f"name its columns {', '.join(field.name for field in fields)}; {', '.join(needed)} are needed"
        raise InvalidParameter("claim", str(path), f"is no table of trainings: it {', '.join(problems)}", remedy)


def number_of(text: str) -> Any:
    """A cell as a number, where it is one."""
    for kind in (int, float) if len(text) <= 40 and text.isascii() else ():
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _checkpoint(path: Path) -> dict[str, Any]:
    """A file of ``torch.save``: tensors and numbers, and nothing that would be executed."""
    import pickle

    try:
        import torch
    except ModuleNotFoundError:
        raise InvalidParameter(
            "claim",
            str(path),
            "is a file of torch, which is not installed",
            "install quietsum[train], or save its privacy block as JSON",
        ) from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, OSError, EOFError, ValueError, KeyError) as error:
        problem = f"holds more than numbers and tensors, or is broken ({_brief(error)})"
        raise InvalidParameter("claim", str(path), problem, "save its privacy block as JSON") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise InvalidParameter("claim", str(path), "holds no dict", "save its privacy block as JSON")
    return _plain(found) if "privacy" not in found else {"privacy": _plain(found["privacy"])}


def _plain(value: Any) -> Any:
    """Tuples of a checkpoint as lists, as JSON would have them."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _brief(error: Exception) -> str:
    return printable(str(error).partition("\n")[0])[:160]

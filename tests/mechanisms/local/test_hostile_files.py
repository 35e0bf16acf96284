"""Files of reports from a stranger: whatever they state costs little to refuse, and is refused in a sentence."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quietsum.errors import QuietsumError, Unreadable
from quietsum.mechanisms.local import Bins, Header, make_protocol, read_reports, reports_file
from quietsum.mechanisms.local.domain import MOST_LABELS


def written(path: Path, header: dict[str, Any], lines: list[str], end: str | None = None) -> Path:
    body = ("# " + json.dumps(header) + "\n" + "".join(f"{line}\n" for line in lines)).encode()
    last = {"end": len(lines) - 1, "sha256": hashlib.sha256(body).hexdigest()}
    path.write_bytes(body + (end or "# " + json.dumps(last)).encode() + b"\n")
    return path


def looked_at(path: Path) -> int:
    with read_reports(path) as reader:
        return sum(reader.header.protocol.tally(piece).users for piece in reader)


def header(name: str, domain: Any = ("a", "b")) -> dict[str, Any]:
    return Header(protocol=make_protocol(name, domain, 1.0)).to_dict()


def test_a_million_answers_of_which_one_is_named_twice_are_refused_at_once(tmp_path: Path) -> None:
    stated = header("k-rr")  # pair by pair it would be hours
    stated["domain"]["labels"] = [str(place) for place in range(MOST_LABELS - 1)] + [str(MOST_LABELS - 2)]
    with pytest.raises(Unreadable, match="names no domain"):
        looked_at(written(tmp_path / "reports.csv", stated, ["answer", "0"]))


@pytest.mark.parametrize("name", ["k-rr", "hcms", "rappor"])
def test_answers_that_no_file_can_hold_are_refused(tmp_path: Path, name: str) -> None:
    stated = header(name)
    stated["domain"]["labels"] = ["a", "\ud800"]
    with pytest.raises(Unreadable, match="names no domain"):
        looked_at(written(tmp_path / "reports.csv", stated, ["answer", "0"]))


def test_more_bins_than_answers_in_a_list_are_refused() -> None:
    with pytest.raises(QuietsumError, match="more than 1,048,576 bins"):
        Bins(edges=tuple(range(MOST_LABELS + 2)))


def test_an_end_that_is_nested_deeply_is_refused(tmp_path: Path) -> None:
    stated = header("oue", 1 << 18)
    with pytest.raises(Unreadable, match="cut inside its last line"):
        looked_at(written(tmp_path / "reports.csv", stated, ["bits"], "# " + "[" * 60_000))


@pytest.mark.long
def test_long_reports_are_written_and_read_a_few_at_once(tmp_path: Path) -> None:
    found = make_protocol("oue", 1 << 20, 1.0)
    reports = np.zeros(130, dtype=found.layout)
    reports["bits"][:, 0] = np.arange(130)
    with reports_file(tmp_path / "reports.csv", Header(protocol=found)) as writer:
        writer.add(reports)
    with read_reports(tmp_path / "reports.csv") as reader:
        pieces = list(reader)
    assert [piece.size for piece in pieces] == [128, 2]
    np.testing.assert_array_equal(np.concatenate(pieces), reports)

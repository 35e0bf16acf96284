"""A shuffler for files of local reports: all of them in one random order, and nothing of who sent what, when or where.

It reads whole files of one survey, permutes their reports uniformly with randomness from the operating system, and
writes one file whose header states the protocol alone: notes, versions, the cut into files and every earlier order are
gone. What that buys is in :mod:`quietsum.mechanisms.shuffle_model`. The one who runs it must be trusted with the link
between people and reports, and must destroy the files it read.

Reports are permuted in memory: twice their own bytes (4 each for k-ary response, d/8 for unary encodings) and 32 for
the place of each. What needs more than ``most_bytes`` is refused before anything is written.

A person counts once. For RAPPOR, whose permanent response may be kept, the local ε is the permanent one: all reports of
a person about one answer are then one report to the bound, and shuffling each collection by itself shows less.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import numpy as np

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.local.exact import share
from quietsum.mechanisms.local.hashing import LocalHashing
from quietsum.mechanisms.local.protocol import LocalProtocol, Reports
from quietsum.mechanisms.local.randomized_response import KRandomizedResponse
from quietsum.mechanisms.local.reports import PIECE, Header, read_reports, reports_file
from quietsum.mechanisms.local.unary import Rappor, UnaryEncoding
from quietsum.mechanisms.rng import RandomSource, system_randomness
from quietsum.mechanisms.shuffle_model import ShuffledReports, shuffled_epsilon
from quietsum.validate import whole_number

__all__ = ["MOST_BYTES", "Shuffling", "blanket_of", "permute", "shuffle_protocol", "shuffle_reports"]

MOST_BYTES = 1 << 31
"""How much memory reports and their order may take, unless said otherwise."""
ORDER = 32  # bytes for the place of one report, while keys are sorted
TELLING = 128  # so many reports never come out the same twice


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Shuffling:
    """What was written, and what it bought."""

    protocol: str
    reports: int
    bought: ShuffledReports


def blanket_of(protocol: LocalProtocol) -> float | None:
    """The mass γ of the lower level of a two-level protocol, from its real chances; None for any other protocol."""
    match protocol:
        case KRandomizedResponse():
            return protocol.domain.size * share(protocol.cells.low)
        case LocalHashing():
            return protocol.values * share(protocol.cells.low)
        case UnaryEncoding():
            own, other = map(share, protocol.thresholds)
            return (1 - own) / (1 - other)
        case _:
            return None


def shuffle_protocol(protocol: LocalProtocol, *, n: int, delta: float, colluders: int = 0) -> ShuffledReports:
    """What shuffling ``n`` reports of ``protocol``, one a person, buys.

    >>> from quietsum.mechanisms.local import make_protocol
    >>> answers = make_protocol("k-rr", ["never", "monthly", "weekly", "daily"], 1.0)
    >>> round(shuffle_protocol(answers, n=10_000, delta=1e-6).epsilon, 3)
    0.034
    """
    local = protocol.permanent_epsilon if isinstance(protocol, Rappor) else protocol.epsilon
    return shuffled_epsilon(epsilon0=local, n=n, delta=delta, blanket=blanket_of(protocol), colluders=colluders)


def shuffle_reports(
    files: Sequence[Path],
    output: Path,
    *,
    delta: float,
    declared: int | None = None,
    colluders: int = 0,
    note: str = "",
    most_bytes: int = MOST_BYTES,
    rng: RandomSource | None = None,
    progress: Callable[[int], None] | None = None,
) -> Shuffling:
    """Write all reports of ``files`` to ``output`` in one random order; returns what that buys.

    ``declared`` is a number of people known beforehand: the central ε is stated for it, and where fewer reports come
    nothing is written. Without it n is the number of reports, which the written file shows. Files of different surveys,
    the same file twice and unreadable files are refused, and then nothing is written. ``note`` is a public name for
    what was asked; the notes of the files are not taken over.
    """
    header, held = _gather(files, output, most_bytes, progress)
    if declared is not None and held.size < whole_number("n", declared, 1):
        raise InvalidParameter(
            "n",
            declared,
            f"was declared, and only {held.size} reports came",
            "wait for more, or declare fewer next time",
        )
    bought = shuffle_protocol(
        header.protocol, n=held.size if declared is None else declared, delta=delta, colluders=colluders
    )
    held = permute(held, rng)
    with reports_file(output, Header(protocol=header.protocol, note=note)) as writer:
        for start in range(0, held.size, PIECE):
            writer.add(held[start : start + PIECE])
            if progress is not None:
                progress(min(PIECE, held.size - start))
    return Shuffling(protocol=header.protocol.name, reports=held.size, bought=bought)


def permute(reports: Reports, rng: RandomSource | None = None) -> Reports:
    """``reports`` in an order of which each is equally likely."""
    return reports[(rng or system_randomness()).permutation(reports.size)]


def _gather(
    files: Sequence[Path], output: Path, most_bytes: int, progress: Callable[[int], None] | None
) -> tuple[Header, Reports]:
    if not files:
        raise InvalidParameter("reports", "none", "is nothing to shuffle", "name one or more files of reports")
    seen: dict[tuple[int, int], Path] = {}
    digests: dict[str, Path] = {}
    header: Header | None = None
    pieces: list[Reports] = []
    taken = 0
    for path in files:
        with read_reports(path) as reader:
            state = os.stat(path)
            if (before := seen.get((state.st_dev, state.st_ino))) is not None:
                raise InvalidParameter("reports", str(path), f"is the same file as {before}", "name each file once")
            seen[state.st_dev, state.st_ino] = path
            if header is not None and (difference := header.differs(reader.header)):
                raise InvalidParameter(
                    "reports", str(path), f"is of another survey: {difference}", "shuffle each survey by itself"
                )
            header = header or reader.header
            for piece in reader:
                _require_possible(header.protocol, piece)
                taken += piece.size * (2 * piece.itemsize + ORDER)
                if taken > most_bytes:
                    raise InvalidParameter(
                        "reports",
                        str(path),
                        f"brings the reports, which are permuted in memory, to more than {most_bytes:,} bytes",
                        "raise the limit, or shuffle fewer at a time: each part has the ε of its own number",
                    )
                pieces.append(piece)
                if progress is not None:
                    progress(piece.size)
            if reader.count >= TELLING and (twice := digests.setdefault(reader.digest, path)) is not path:
                raise InvalidParameter(
                    "reports", str(path), f"holds the same reports as {twice}", "name each file once"
                )
    if output.exists() and (state := output.stat()) and (state.st_dev, state.st_ino) in seen:
        raise InvalidParameter("output", str(output), "is one of the files that are shuffled", "name another file")
    if header is None or not pieces:
        raise InvalidParameter("reports", str(files[0]), "holds no report", "there is nothing to shuffle")
    return header, np.concatenate(pieces)


def _require_possible(protocol: LocalProtocol, reports: Reports) -> None:
    """Refuse reports that the protocol cannot have made, while their file is still known."""
    if isinstance(protocol, LocalHashing):  # whose tally takes d hashes a report; its answers are checked here
        if int(reports["answer"].max(initial=0)) >= protocol.values:
            raise InvalidParameter("reports", int(reports["answer"].max()), "is no value of the hash", "check the file")
    else:
        protocol.tally(reports)

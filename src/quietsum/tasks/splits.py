"""Which record lies at which party: the sites that the data knows, or clients that are made up for a simulation.

* ``natural``: what the records say themselves, hospitals, microscopes, people, cards. With ``parties = n`` the sites
  are gathered into n clients, as many in each, by a hash of their name; a site lies wholly in one client.
* ``iid``: a public order of the record *numbers* (a hash with a fixed constant) cut into n equal pieces. It looks at no
  value. It depends on how many records there are, which is declared and public.
* ``dirichlet(α)``: every client has label shares of its own, drawn from Dir(α · shares of all) (Hsu, Qi, Brown 2019,
  section 3.1), α → 0 one label each, α → ∞ as iid. It looks at labels, so it is for public data only.

All three are functions of (task, split, n) alone: the same for everyone, on every machine, for ever. Where it is known
whose a record is, a person's records stay together, because a person in two clients pays twice.

Below them are the public rules that look at one row alone: which part it belongs to, which bucket a name falls into
(:func:`places`, :func:`buckets`). A split by shuffling, by rank or by every fourth row changes for all rows when one
comes or goes. A hash of the row's own key does not, and rows with equal keys stay together.

>>> parse("dirichlet(0.5)")
Split(kind='dirichlet', alpha=0.5)
>>> iid(10, 3).sizes.tolist()
[4, 3, 3]
>>> places(np.array([7, 8, 7])).round(3).tolist()
[0.39, 0.619, 0.39]
"""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.validate import positive, whole_number

__all__ = [
    "Partition", "Split", "bucket_of", "buckets", "by_dirichlet", "gather", "iid", "natural", "parse", "places",
]  # fmt: skip

_IID: Final = 0x1D  # public constants: another one would be another split
_SHARES: Final = 0xD1
_LABELS: Final = 0x1A
_ORDER: Final = 0x0D

Numbers = NDArray[np.int64]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """What a plan's ``split`` says."""

    kind: str
    alpha: float | None = None


def parse(text: str) -> Split:
    """``"natural"``, ``"iid"`` or ``"dirichlet(0.5)"``."""
    remedy = "choose 'natural', 'iid' or 'dirichlet(0.5)'"
    if text in ("natural", "iid"):
        return Split(kind=text)
    found = re.fullmatch(r"dirichlet\(\s*([^()\s]+)\s*\)", text) if isinstance(text, str) else None
    if found is None:
        raise InvalidParameter("split", text, "is not known", remedy)
    try:
        alpha = float(found[1])
    except ValueError:
        raise InvalidParameter("split", text, "holds no number", remedy) from None
    return Split(kind="dirichlet", alpha=positive("split: dirichlet's α", alpha, "0.1 is uneven, 100 nearly iid"))


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
    """Names of parties, and for each record the number of its party.

    Guarantees: every record is at exactly one party.
    """

    names: tuple[str, ...]
    party: Numbers

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names) or not self.names:
            raise InvalidParameter("parties", f"{len(self.names)} names", "are empty or repeat", "name each party once")
        if self.party.ndim != 1 or not ((self.party >= 0) & (self.party < len(self.names))).all():
            raise InvalidParameter("parties", self.party.shape, "name no party", "give each record one of the names")

    def __repr__(self) -> str:
        return f"Partition({len(self.names)} parties)"

    @cached_property
    def sizes(self) -> Numbers:
        """How many records each party has. Public only where the records are."""
        return np.bincount(self.party, minlength=len(self.names)).astype(np.int64)

    @cached_property
    def _sorted(self) -> tuple[Numbers, Numbers]:
        return np.argsort(self.party, kind="stable").astype(np.int64), np.concatenate([[0], np.cumsum(self.sizes)])

    @cached_property
    def _number(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def records(self, name: str) -> Numbers:
        """The numbers of a party's records, in their order."""
        if name not in self._number:
            raise InvalidParameter("party", name, "takes no part", f"there are {_few(self.names)}")
        order, starts = self._sorted
        number = self._number[name]
        return order[starts[number] : starts[number + 1]]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 5 else f"{', '.join(names[:2])} … {names[-1]}"


def _clients(count: int) -> tuple[str, ...]:
    width = max(4, len(str(count)))
    return tuple(f"client-{number:0{width}d}" for number in range(1, count + 1))


def _check_count(count: int, most: int, what: str) -> int:
    count = whole_number("parties", count, 1, "how many clients to make")
    if count > most:
        raise InvalidParameter("parties", count, f"are more clients than the {most} {what}", f"make at most {most}")
    return count


# ------------------------------------------------------------------------------------------------- natural


def natural(sites: Sequence[str], names: Iterable[str] | None = None) -> Partition:
    """The sites themselves, in the order of their names: those that the records name, or those that are declared.

    A declared site without records is a party all the same: that it has none is private.

    >>> natural(["south", "north", "south"]).records("south").tolist()
    [0, 2]
    >>> natural(["south"], names=["north", "south"]).sizes.tolist()
    [0, 1]
    """
    found = np.asarray(sites, dtype=str)
    if names is None and not len(found):
        raise InvalidParameter("sites", 0, "names no site", "name the site of each record")
    known = np.unique(found if names is None else np.array(sorted(names), dtype=str))
    if not np.isin(found, known).all():
        problem = "does not declare every site that a record names"
        raise InvalidParameter("site_sizes", known.tolist(), problem, "declare a size for every site")
    return Partition(names=tuple(known.tolist()), party=np.searchsorted(known, found).astype(np.int64))


def gather(keys: Sequence[str] | NDArray[Any], count: int, *, what: str = "sites", salt: str = "") -> Partition:
    """Sites or people, named by the key of each record, in ``count`` clients, alike in the number of keys up to one.

    Guarantees: records with equal keys lie in one client. Which one is decided by a hash of the key, ranked among all
    keys.

    >>> gather(["ada", "bob", "ada", "cy", "bob"], 2).sizes.tolist()
    [4, 1]
    """
    names, owner = np.unique(np.asarray(keys), return_inverse=True)
    count = _check_count(count, len(names), f"{what}, whose records stay together")
    hashed = np.array([zlib.crc32(str(name).encode()) for name in names.tolist()], dtype=np.uint64)
    order = np.argsort(places(hashed, _salt(_IID, salt)), kind="stable")
    client = np.empty(len(names), dtype=np.int64)
    client[order] = _even(len(names), count)
    return Partition(names=_clients(count), party=client[owner])


# ----------------------------------------------------------------------------------------------- made clients


def iid(size: int, count: int, *, salt: str = "") -> Partition:
    """``size`` records in ``count`` clients, alike in size up to one record, by a hash of their numbers."""
    count = _check_count(count, size, "records")
    order = np.argsort(places(np.arange(size), _salt(_IID, salt)), kind="stable")
    party = np.empty(size, dtype=np.int64)
    party[order] = _even(size, count)
    return Partition(names=_clients(count), party=party)


def by_dirichlet(labels: NDArray[np.integer], count: int, alpha: float, *, salt: str = "") -> Partition:
    """Clients of equal size (up to one record) whose label shares are drawn from Dir(α · shares of all).

    A client draws each of its records' labels from its shares, and takes the next record of that label in a public
    order; where a label is used up, its share falls to the others. Gamma variates come from hashed numbers through
    the inverse distribution function, so no generator's version matters.
    """
    alpha = positive("alpha", alpha)
    if labels.ndim != 1:
        raise InvalidParameter("labels", labels.shape, "are not one per record", "choose split = 'iid' or 'natural'")
    count = _check_count(count, len(labels), "records")
    classes, label = np.unique(labels, return_inverse=True)
    shuffled = np.argsort(places(np.arange(len(labels)), _salt(_ORDER, salt)), kind="stable")
    waiting = [shuffled[label[shuffled] == number] for number in range(len(classes))]
    left = np.array([len(queue) for queue in waiting])
    logs = _log_gammas(count, alpha * left / len(labels), salt)
    party = np.empty(len(labels), dtype=np.int64)
    for client, quota in enumerate(np.bincount(_even(len(labels), count), minlength=count).tolist()):
        coins = places(np.arange(quota), client, _salt(_LABELS, salt))
        for number, taken in enumerate(_take(coins, logs[client], left).tolist()):
            start = len(waiting[number]) - left[number]
            party[waiting[number][start : start + taken]] = client
            left[number] -= taken
    return Partition(names=_clients(count), party=party)


def _log_gammas(count: int, weights: NDArray[np.float64], salt: str) -> NDArray[np.float64]:
    """(count, classes) logarithms of Gamma(weight) variates; normalised, their exponentials are Dir(weights).

    Where a variate is too small for a float, P(w, x) ≈ x^w / Γ(w + 1) is inverted instead (DLMF 8.7.1, first term).
    """
    from scipy.special import gammaincinv, gammaln

    rows, columns = np.arange(count)[:, None], np.arange(len(weights))[None, :]
    uniform = places(np.broadcast_to(rows, (count, len(weights))), columns, _salt(_SHARES, salt)) + 2.0**-54
    with np.errstate(all="ignore"):
        variates = gammaincinv(weights, uniform)
        small = (np.log(uniform) + gammaln(weights + 1)) / weights
        return np.asarray(np.where(variates > 1e-250, np.log(variates), small))


def _take(coins: NDArray[np.float64], logs: NDArray[np.float64], left: Numbers) -> Numbers:
    """How many of each label for so many coins, none beyond what is ``left``: a label that is used up has no share."""
    taken = np.zeros(len(left), dtype=np.int64)
    while len(coins):
        unused = left > taken
        shares = np.where(unused, np.exp(logs - logs[unused].max(), where=unused, out=np.zeros(len(logs))), 0.0)
        edges = np.cumsum(shares / shares.sum())
        drawn = np.minimum(np.searchsorted(edges, coins, side="right"), np.flatnonzero(shares)[-1])
        wanted = np.bincount(drawn, minlength=len(left))
        fitting = np.minimum(wanted, left - taken)
        over = np.concatenate([coins[drawn == label][fitting[label] :] for label in range(len(left))])
        taken, coins = taken + fitting, places((over * 2**53).astype(np.uint64), _LABELS)
    return taken


def _even(size: int, count: int) -> Numbers:
    """0 … count − 1 in turn, for ``size`` places in a row; sizes differ by at most one."""
    return np.repeat(np.arange(count), [len(piece) for piece in np.array_split(np.arange(size), count)])


def _salt(constant: int, salt: str) -> int:
    return constant ^ (zlib.crc32(salt.encode("utf-8")) << 8)


# ----------------------------------------------------------------------------------------- rules for single rows


def places(*keys: NDArray[np.integer] | int) -> NDArray[np.float64]:
    """A number in [0, 1) for each row, from its whole-number ``keys`` alone; over many keys they are spread evenly."""
    return (_hash(keys) >> np.uint64(11)).astype(np.float64) / 2**53


def buckets(keys: NDArray[np.integer], count: int) -> NDArray[np.int64]:
    """A bucket 0 … count − 1 for each row, from its key alone."""
    return (places(keys) * count).astype(np.int64)


def bucket_of(words: Iterable[str], count: int) -> NDArray[np.int64]:
    """A bucket for each word; no list of known words is needed, so none is learned from data."""
    return buckets(np.array([zlib.crc32(word.encode("utf-8")) for word in words], dtype=np.uint64), count)


def _hash(keys: Iterable[NDArray[np.integer] | int]) -> NDArray[np.uint64]:
    found = np.zeros(1, dtype=np.uint64)
    for key in keys:
        found = _mix(found ^ np.asarray(key).astype(np.uint64))
    return found


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): every bit of the result depends on every bit of the value."""
    with np.errstate(over="ignore"):
        found = values + np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))

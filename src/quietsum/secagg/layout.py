"""What travels in the one masked vector: named parts on integer grids, with a proof that no sum wraps around.

Secure aggregation adds modulo 2ᵇ. A party's part x with |xᵢ| ≤ B goes onto the grid of s steps to the unit,
q = round(s x), and the sum is read back by the *centre lift*: the one representative in [−2ᵇ⁻¹, 2ᵇ⁻¹).

**No wrap-around.** Rounding to the nearest integer gives |qᵢ| ≤ ⌈sB⌉ = L for every party, for all data.
With at most n parties in the sum and noise of magnitude at most T in it, |Σ q + noise| ≤ n L + T. If n L + T ≤ 2ᵇ⁻¹
− 1, the sum lies in the range of the centre lift, and since reduction modulo 2ᵇ commutes with addition, lifting the
sum of the reduced vectors gives the sum itself. A :class:`Layout` for which n L + T is larger cannot be made. A
subset of the parties has a smaller bound, so drop-outs change nothing. Encoding moves a coordinate by at most
1/(2s), so a sum of n by n/(2s).

A **rotated** part has its *norm* bounded by B. Turned by public random signs (:mod:`quietsum.secagg.rotation`), its
coordinates stay below B √(2 ln(2m/β)/m) but for a chance of β = 2⁻⁴⁰; what exceeds that is cut there, so L is ⌈s times
that⌉, the argument above holds with certainty, and the chance of a cut is in ``doubt``. Cutting makes no norm longer.

Parts that are integers already, with noise in them, go in by :meth:`Layout.pack` under the same bound L; a caller
that knows more about the *sum* of its part than n L (noise of many parties adds up by its square root) states the
bound as ``total`` with the chance that it fails as ``doubt``. Each part has its own L and T: they share one vector,
not one bound.

**Weighted sums.** A layout with ``heaviest`` W multiplies every part by the party's weight 0 ≤ w ≤ W before rounding
(bounds count the weight) and carries w itself as the part ``weight``, so that nothing travels in clear. Under a privacy
guarantee weights are private, too: they need noise and a charge of their own, or must be public.

>>> layout = Layout(vectors=(NamedVector(name="update", size=2, bound=1.0, scale=2.0**16),), parties=10)
>>> total = layout.encode({"update": [0.25, -1.0]}) + layout.encode({"update": [0.5, 0.125]})
>>> layout.decode(total)["update"].tolist()
[0.75, -0.875]
>>> Layout(vectors=(NamedVector(name="update", size=2, bound=1.0, scale=2.0**30),), parties=10)
Traceback (most recent call last):
...
quietsum.errors.PlanRefused: the sum of 'update' could wrap around: 10 parties of at most 1073741824 steps ...
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.secagg import rotation
from quietsum.validate import non_negative, positive, whole_number

__all__ = ["BITS", "WEIGHT", "Layout", "NamedVector", "centre_lift", "from_wire", "to_wire", "wire_size"]

BITS = (16, 20, 24, 32)
"""Sizes of the ring that a sum may live in."""

WEIGHT = "weight"
"""The part of a weighted sum that carries the weights."""

_PIECE = 1 << 14

CUT = 2.0**-40
"""The chance that a rotated part is cut anywhere."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedVector:
    """A part: ``size`` numbers of magnitude at most ``bound`` each, in steps of 1/``scale``.

    With ``rotated``, ``bound`` is the norm of the whole part. ``noise_tail`` bounds the magnitude of all noise in a
    coordinate of the sum, in steps. ``total``, if given, bounds a coordinate of the whole sum in steps, noise included,
    but for a chance of ``doubt``; the caller has the proof.
    """

    name: str
    size: int
    bound: float
    scale: float
    noise_tail: int = 0
    rotated: bool = False
    total: int | None = None
    doubt: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidParameter("name", self.name, "must be a word", "give every part a name of its own")
        values: dict[str, Any] = {
            "size": whole_number("size", self.size, minimum=1),
            "bound": positive("bound", self.bound, "state the largest magnitude that a party may send"),
            "scale": positive("scale", self.scale, "state how many steps of the grid make one unit"),
            "noise_tail": whole_number("noise_tail", self.noise_tail),
            "doubt": non_negative("doubt", self.doubt),
        }
        if self.total is not None:
            values["total"] = whole_number("total", self.total, minimum=1)
        if self.rotated:
            values["doubt"] += CUT
        if values["doubt"] >= 1:
            raise InvalidParameter("doubt", self.doubt, "must be a chance below 1")
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def length(self) -> int:
        """Places in the masked vector: the size, padded to a power of two where the part is rotated."""
        return rotation.pad_to_power(self.size) if self.rotated else self.size

    @property
    def largest(self) -> int:
        """L: the largest magnitude of a coordinate of one party, in steps, noise not counted."""
        share = rotation.bound_largest(self.size, CUT) if self.rotated else 1.0
        return math.ceil(self.bound * share * self.scale)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Where each part stands in the masked vector, for at most ``parties`` in a sum and a ring of 2 to the ``bits``.

    Guarantees: what :meth:`decode` returns is the exact sum of what :meth:`encode` and :meth:`pack` made, for every
    subset of the parties, but for the chance ``doubt``. Raises :class:`~quietsum.errors.PlanRefused` if it could wrap.
    """

    vectors: tuple[NamedVector, ...]
    parties: int
    bits: int = 32
    heaviest: float | None = None
    weight_scale: float = 2.0**10

    def __post_init__(self) -> None:
        parties = whole_number("parties", self.parties, minimum=1)
        if self.bits not in BITS:
            raise InvalidParameter("bits", self.bits, "is no size that is used here", f"choose one of {list(BITS)}")
        vectors = tuple(self.vectors)
        if self.heaviest is not None:
            heaviest = positive("heaviest", self.heaviest, "state the largest weight of a party")
            vectors = tuple(one for one in vectors if one.name != WEIGHT)
            weight = NamedVector(name=WEIGHT, size=1, bound=heaviest, scale=self.weight_scale)
            vectors = (*vectors, weight)
            object.__setattr__(self, "heaviest", heaviest)
        names = [one.name for one in vectors]
        if not names or len(set(names)) != len(names):
            raise InvalidParameter("vectors", names, "must be at least one, each with a name of its own")
        object.__setattr__(self, "parties", parties)
        object.__setattr__(self, "vectors", vectors)
        for one in vectors:
            self._require_room(one)

    def _require_room(self, one: NamedVector) -> None:
        most = (1 << self.bits - 1) - 1
        reach = self.parties * self._largest(one) + one.noise_tail if one.total is None else one.total
        if reach <= most:
            return
        more = "" if self.bits == BITS[-1] else ", or more bits"
        if one.total is not None:
            problem = f"its sum reaches {reach}"
        else:
            noise = f"noise of {one.noise_tail}"
            problem = f"{self.parties} parties of at most {self._largest(one)} steps and {noise} reach {reach}"
        room = max(0.0, (most - one.noise_tail) / self.parties - 1) * one.scale / self._largest(one)
        remedy = f"use a scale below {room:.4g}{more}" if room else f"use less noise on the grid, a smaller scale{more}"
        raise PlanRefused(
            f"the sum of {one.name!r} could wrap around: {problem}, and {self.bits} bits hold {most}; {remedy}"
        )

    def _largest(self, one: NamedVector) -> int:
        """L of a part, with the weight counted."""
        if self.heaviest is None or one.name == WEIGHT:
            return one.largest
        share = rotation.bound_largest(one.size, CUT) if one.rotated else 1.0
        return math.ceil(one.bound * self.heaviest * share * one.scale)

    # ------------------------------------------------------------------------------------------------- its shape

    @property
    def dimension(self) -> int:
        """How long the masked vector is."""
        return sum(one.length for one in self.vectors)

    @property
    def doubt(self) -> float:
        """A bound on the chance that a party cuts a rotated part or a stated ``total`` fails, in one round."""
        return min(1.0, sum(one.doubt * (self.parties if one.rotated else 1) for one in self.vectors))

    @property
    def places(self) -> Mapping[str, slice]:
        """Where each part stands."""
        found, start = {}, 0
        for one in self.vectors:
            found[one.name] = slice(start, start + one.length)
            start += one.length
        return MappingProxyType(found)

    def to_bytes(self) -> bytes:
        """One spelling of this layout, for hashing: parties with other layouts must not reach one session."""
        parts = [dataclasses.astuple(one) for one in self.vectors]
        return repr((parts, self.parties, self.bits, self.heaviest, self.weight_scale)).encode()

    # ------------------------------------------------------------------------------------------- at the party

    def encode(
        self, values: Mapping[str, ArrayLike], *, weight: float | None = None, seed: bytes | None = None
    ) -> NDArray[np.uint32]:
        """Real numbers for every part as one vector to be masked.

        ``weight`` belongs to layouts with ``heaviest``; ``seed`` (32 public bytes, the same for all) to those with a
        rotated part. What is not finite, has another size or exceeds its bound is refused.
        """
        factor = self._weight(weight)
        given = dict(values)
        if self.heaviest is not None:
            if WEIGHT in given:
                raise InvalidParameter(WEIGHT, "…", "is a part of its own", "pass it as weight=")
            given[WEIGHT] = [1.0]
        vector = np.empty(self.dimension, dtype=np.uint32)
        places = self.places
        for one in self._match(given):
            numbers = _numbers(one, given[one.name])
            place = vector[places[one.name]]
            if one.rotated:
                self._round(one, self._rotate(one, numbers * factor, seed), 1.0, place)
            else:
                self._round(one, numbers, factor, place)
        return vector

    def _rotate(self, one: NamedVector, numbers: NDArray[np.floating], seed: bytes | None) -> NDArray[np.float64]:
        """A part in the rotated basis, cut where its coordinates exceed what the proof allows for."""
        values = numbers.astype(np.float64, copy=False)
        norm = float(np.sqrt(values @ values))
        limit = one.bound * (self.heaviest or 1.0)
        if not norm <= limit * (1 + 1e-9):
            raise InvalidParameter(one.name, norm, f"is no norm of at most {limit:g}", "clip it first")
        largest = self._largest(one) / one.scale
        return np.clip(rotation.rotate(values, seed=_seed(seed)), -largest, largest)

    def _round(self, one: NamedVector, numbers: NDArray[np.floating], factor: float, out: NDArray[np.uint32]) -> None:
        """Onto the grid and into ``out``, in pieces that stay in the processor's cache."""
        most = self._largest(one)
        for start in range(0, numbers.size, _PIECE):
            steps = numbers[start : start + _PIECE].astype(np.float64)
            if factor != 1:
                steps *= factor
            steps *= one.scale
            np.rint(steps, out=steps)
            if not (-most <= steps.min() and steps.max() <= most):  # a NaN fails this, too
                _refuse(one, steps, most)
            out[start : start + _PIECE] = steps.astype(np.int32).view(np.uint32)  # n L < 2³¹

    def pack(self, whole: Mapping[str, ArrayLike]) -> NDArray[np.uint32]:
        """Whole numbers for every place of every part, in steps, as one vector; noise may be in them.

        A number that exceeds its part's bound for one party is refused: it could make the sum wrap around.
        """
        vector = np.empty(self.dimension, dtype=np.uint32)
        places = self.places
        for one in self._match(whole):
            numbers = np.asarray(whole[one.name])
            if numbers.shape != (one.length,):
                problem = f"has shape {numbers.shape}, and the layout has ({one.length},)"
                raise InvalidParameter(one.name, "…", problem, "pass one flat vector")
            if numbers.dtype.kind not in "fiu":
                raise InvalidParameter(one.name, str(numbers.dtype), "holds no whole numbers")
            most = self._largest(one) + one.noise_tail if one.total is None else (1 << 31) - 1
            if not (-most <= numbers.min() and numbers.max() <= most):  # a NaN fails this, too
                _refuse(one, numbers, most)
            if numbers.dtype.kind == "f" and (numbers != np.rint(numbers)).any():
                raise InvalidParameter(one.name, "…", "holds numbers that are not whole", "use encode")
            vector[places[one.name]] = numbers.astype(np.int64, copy=False).astype(np.uint32)
        return vector

    # ------------------------------------------------------------------------------------------- at the server

    def sums(self, total: NDArray[np.uint32]) -> Mapping[str, NDArray[np.int64]]:
        """The sum of every part in steps, by the centre lift."""
        if total.dtype != np.uint32 or total.shape != (self.dimension,):
            problem = f"has shape {total.shape}, and the layout needs ({self.dimension},) of uint32"
            raise InvalidParameter("total", str(total.dtype), problem)
        lifted = centre_lift(total, bits=self.bits)
        return MappingProxyType({name: lifted[place] for name, place in self.places.items()})

    def decode(self, total: NDArray[np.uint32], *, seed: bytes | None = None) -> Mapping[str, NDArray[np.float64]]:
        """The sum of every part in its own unit; rotated parts are turned back with the ``seed`` of the round."""
        found = {}
        for one, steps in zip(self.vectors, self.sums(total).values(), strict=True):
            values = steps / one.scale
            found[one.name] = rotation.rotate_back(values, one.size, seed=_seed(seed)) if one.rotated else values
        return MappingProxyType(found)

    def mean(self, total: NDArray[np.uint32], *, seed: bytes | None = None) -> Mapping[str, NDArray[np.float64]]:
        """The weighted mean of every part but the weights. A sum of weights that is not positive is refused."""
        found = dict(self.decode(total, seed=seed))
        if self.heaviest is None:
            raise InvalidParameter("heaviest", None, "is not in this layout", "divide by a public number of parties")
        weight = float(found.pop(WEIGHT)[0])
        if not weight > 0:
            raise InvalidParameter(WEIGHT, weight, "is no sum that one can divide by", "leave this round out")
        return MappingProxyType({name: values / weight for name, values in found.items()})

    # ---------------------------------------------------------------------------------------------------- checks

    def _match(self, given: Mapping[str, Any]) -> Sequence[NamedVector]:
        names = [one.name for one in self.vectors]
        if set(given) != set(names):
            raise InvalidParameter("values", sorted(map(str, given)), f"must be exactly the parts {sorted(names)}")
        return self.vectors

    def _weight(self, weight: float | None) -> float:
        if self.heaviest is None:
            if weight is not None:
                remedy = "state heaviest, the largest weight"
                raise InvalidParameter("weight", weight, "has no place in this layout", remedy)
            return 1.0
        if weight is None:
            raise InvalidParameter("weight", weight, "is missing", f"pass a number from 0 to {self.heaviest:g}")
        factor = non_negative("weight", weight)
        if factor > self.heaviest:
            raise InvalidParameter("weight", factor, f"exceeds heaviest = {self.heaviest:g}", "cut it there")
        return factor


def centre_lift(total: NDArray[np.uint32], *, bits: int) -> NDArray[np.int64]:
    """The representatives in [−2ᵇ⁻¹, 2ᵇ⁻¹) of the lowest ``bits`` bits: the sum itself, if it was in that range."""
    unused = np.uint32(32 - bits)
    lifted = (np.asarray(total, dtype=np.uint32) << unused).view(np.int32) >> unused.astype(np.int32)
    return lifted.astype(np.int64)


def to_wire(vector: NDArray[np.uint32], *, bits: int) -> bytes:
    """The lowest ``bits`` bits of every word, packed without gaps: what travels of a masked vector.

    A mask modulo 2³² is a mask modulo 2ᵇ, so the rest may be left out before or after masking.
    """
    words = np.ascontiguousarray(vector, dtype="<u4")
    if bits == 32:
        return words.tobytes()
    if bits == 16:
        return words.astype("<u2").tobytes()
    octets = words.view(np.uint8).reshape(-1, 4)
    if bits == 24:
        return np.ascontiguousarray(octets[:, :3]).tobytes()
    if bits != 20:
        raise InvalidParameter("bits", bits, "is no size that is used here", f"choose one of {list(BITS)}")
    pairs = np.zeros((-(-words.size // 2), 2), dtype=np.uint64)
    pairs.reshape(-1)[: words.size] = words & np.uint32(0xFFFFF)
    joined = (pairs[:, 0] | (pairs[:, 1] << np.uint64(20))).astype("<u8")
    return np.ascontiguousarray(joined.view(np.uint8).reshape(-1, 8)[:, :5]).tobytes()


def wire_size(size: int, *, bits: int) -> int:
    """Bytes of :func:`to_wire` for so many words."""
    return 5 * -(-size // 2) if bits == 20 else size * bits // 8


def from_wire(raw: bytes, *, size: int, bits: int) -> NDArray[np.uint32]:
    """What :func:`to_wire` packed, the bits above as zeros; another length is refused."""
    if bits not in BITS:
        raise InvalidParameter("bits", bits, "is no size that is used here", f"choose one of {list(BITS)}")
    if len(raw) != wire_size(size, bits=bits):
        raise InvalidParameter("raw", len(raw), f"bytes are not the {wire_size(size, bits=bits)} of {size} words")
    if bits == 32:
        return np.frombuffer(raw, dtype="<u4").astype(np.uint32)
    if bits == 16:
        return np.frombuffer(raw, dtype="<u2").astype(np.uint32)
    wide = 3 if bits == 24 else 5
    rows = np.frombuffer(raw, dtype=np.uint8).reshape(-1, wide)
    room = np.zeros((rows.shape[0], 4 if bits == 24 else 8), dtype=np.uint8)
    room[:, :wide] = rows
    if bits == 24:
        return room.view("<u4").ravel().astype(np.uint32)
    joined = room.view("<u8").ravel()
    pairs = np.stack((joined & np.uint64(0xFFFFF), joined >> np.uint64(20)), axis=1)
    return pairs.ravel()[:size].astype(np.uint32)


def _refuse(one: NamedVector, steps: NDArray[Any], most: int) -> NoReturn:
    low, high = float(steps.min()), float(steps.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidParameter(one.name, "…", "holds a NaN or an infinity", "leave such an update out")
    worst = low if abs(low) > abs(high) else high
    problem = f"steps exceed the {most} that one party may send, so that the sum could wrap around"
    raise InvalidParameter(one.name, worst, problem, "clip the values before they are encoded")


def _numbers(one: NamedVector, given: ArrayLike) -> NDArray[np.floating]:
    numbers = np.asarray(given)
    if numbers.dtype.kind not in "fiu":
        raise InvalidParameter(one.name, str(numbers.dtype), "holds no real numbers", "pass float64")
    if numbers.shape != (one.size,):
        problem = f"has shape {numbers.shape}, and the layout has ({one.size},)"
        raise InvalidParameter(one.name, "…", problem, "pass one flat vector")
    return numbers


def _seed(seed: bytes | None) -> bytes:
    if seed is None:
        raise InvalidParameter("seed", None, "is missing", "pass the public seed of the round for a rotated part")
    return seed

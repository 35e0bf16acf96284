"""Randomness for noise and draws: AES-256 in counter mode, keyed by the operating system, never saved.

A guarantee is only as good as the coins behind it. Who can guess or replay the noise can subtract it, so every draw,
and all noise but that made on a graphics card (:mod:`quietsum.learning.noise.chacha`), comes from a
:class:`RandomSource`: a keystream of AES-256-CTR under a key from ``os.urandom``. It is rekeyed after 4 GiB, forgets
what it handed out, gives a forked child a key of its own, and can be neither copied nor pickled: there is no state that
a checkpoint could restore. A snapshot of the whole process or machine (CRIU, a virtual machine) does hold the key, and
what is resumed from one repeats the keystream: resume from a checkpoint instead. Seeds exist for tests alone, behind an
explicit switch.

Everything else is derived from that keystream without rounding away what privacy needs: coins are exact for any float
probability, permutations are exactly uniform, rounded normals have exactly their law
(:mod:`quietsum.mechanisms.noise.rounded_normal`), and float64 normals reach beyond thirteen standard deviations.

>>> rng = system_randomness()
>>> rng.normals((2, 3)).shape, rng.for_tests
((2, 3), False)
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray
from scipy.special import ndtri

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.mechanisms.noise.rounded_normal import rounded_normals
from quietsum.validate import probability, whole_number

__all__ = [
    "RandomSource",
    "Shape",
    "choose_source",
    "dimensions",
    "is_from_system",
    "random_keys",
    "randomness_for_tests",
    "system_randomness",
]

Shape: TypeAlias = int | Sequence[int]
Octets: TypeAlias = bytes  # inside the class below, ``bytes`` is the name of a method

TEST_SWITCH = "QUIETSUM_TEST_SEEDS"
"""The environment variable that must be 1 before a seeded source is handed out."""

_REKEY_AFTER = 1 << 32
_CHUNK = 1 << 20
_BUFFER = 1 << 14
_SMALL = 1 << 12
_PIECE = 1 << 15
_ZEROS = bytes(_CHUNK)
_PADDING = 16  # what update_into asks for beyond the data
_MOST = 1 << 34  # draws in one call: what asks for more is a mistake
_TAIL = 1 << 52  # of 2^63: below it one word has fewer than 53 leading bits left, so another word follows


class RandomSource(Protocol):
    """What noise and draws take. Every method uses fresh bits; nothing is ever handed out twice."""

    @property
    def for_tests(self) -> bool:
        """Whether this source repeats itself from a seed, so that nothing it made may count as private."""
        ...

    def bytes(self, count: int) -> Octets:
        """``count`` random bytes."""
        ...

    def words(self, count: int) -> NDArray[np.uint64]:
        """Random 64-bit words."""
        ...

    def uniforms(self, count: int) -> NDArray[np.float64]:
        """Uniform odd multiples of 2⁻⁵³: inside (0, 1), symmetric around 1/2."""
        ...

    def normals(self, shape: Shape) -> NDArray[np.float64]:
        """Standard normals in float64."""
        ...

    def rounded_normals(self, scale: float, shape: Shape) -> NDArray[np.int64]:
        """Integers with exactly the law of round(scale · N(0, 1))."""
        ...

    def coins(self, probability: float, count: int) -> NDArray[np.bool_]:
        """Independent coins, each True with exactly the given probability."""
        ...

    def permutation(self, count: int) -> NDArray[np.int64]:
        """0 … count − 1 in an order drawn uniformly."""
        ...


def system_randomness() -> RandomSource:
    """A new source keyed from the operating system.

    Guarantees: no two sources, processes or forks share a key; the key is in no repr, copy or pickle.
    """
    return _Source(_Keystream(lambda: os.urandom(32)), for_tests=False)


def is_from_system(rng: RandomSource) -> bool:
    """Whether ``rng`` is one of :func:`system_randomness`, so that another of these may draw in its place."""
    return type(rng) is _Source and not rng.for_tests


def choose_source(rng: RandomSource | None) -> RandomSource:
    """``rng``, or a new source of the system's if it is None. A generator of numpy's or of Python's is refused."""
    if rng is None:
        return system_randomness()
    if not callable(getattr(rng, "words", None)):
        remedy = "leave it out: the state of another generator, once known, lets one subtract the noise"
        raise InvalidParameter("rng", type(rng).__name__, "is not a random source of quietsum", remedy)
    return rng


def randomness_for_tests(seed: int) -> RandomSource:
    """The same source under a key made from ``seed``: reproducible, hence worthless as noise.

    Refused unless the environment says QUIETSUM_TEST_SEEDS=1, so that no seed reaches real data by accident.
    """
    if os.environ.get(TEST_SWITCH) != "1":
        raise QuietsumError(
            f"seeded randomness is refused: with the seed one can subtract the noise; use system_randomness(), "
            f"or set {TEST_SWITCH}=1 in a test"
        )
    seed = whole_number("seed", seed)
    made = 0

    def key() -> Octets:
        nonlocal made
        made += 1
        return hashlib.sha256(f"quietsum test randomness {seed} {made}".encode()).digest()

    return _Source(_Keystream(key), for_tests=True)


# --------------------------------------------------------------------------------------------- the keystream


@final
class _Keystream:
    """AES-256-CTR over zeros. Each key makes at most 4 GiB; a forked child starts under a key of its own."""

    __slots__ = ("__weakref__", "_buffer", "_encryptor", "_fresh_key", "_lock", "_made", "_position", "_process")

    def __init__(self, fresh_key: Callable[[], Octets]) -> None:
        self._fresh_key = fresh_key
        self._begin()
        _LIVING.add(self)

    def _begin(self) -> None:
        """A new key, with everything that stems from the last one forgotten."""
        self._lock = threading.Lock()  # a fork may have copied a locked one
        self._process = os.getpid()
        self._buffer = bytearray(_BUFFER + _PADDING)
        self._position = _BUFFER
        self._rekey()

    def _rekey(self) -> None:
        self._encryptor: CipherContext = Cipher(algorithms.AES(self._fresh_key()), modes.CTR(bytes(16))).encryptor()
        self._made = 0

    def fill(self, count: int) -> bytearray:
        """``count`` fresh bytes, followed by padding that the caller cuts off."""
        if self._process != os.getpid():  # a fork that Python was not told about
            self._begin()
        with self._lock:
            if count > _SMALL:
                out = bytearray(count + _PADDING)
                self._write(memoryview(out), count)
                return out
            if self._position + count > _BUFFER:
                self._write(memoryview(self._buffer), _BUFFER)
                self._position = 0
            start, self._position = self._position, self._position + count
            taken = self._buffer[start : start + count]
            self._buffer[start : start + count] = bytes(count)  # handed out once, then forgotten
            return taken

    def _write(self, out: memoryview, count: int) -> None:
        for start in range(0, count, _CHUNK):
            size = min(_CHUNK, count - start)
            if self._made + size > _REKEY_AFTER:
                self._rekey()
            self._encryptor.update_into(_ZEROS if size == _CHUNK else memoryview(_ZEROS)[:size], out[start:])
            self._made += size


_LIVING: weakref.WeakSet[_Keystream] = weakref.WeakSet()


def _begin_again() -> None:
    for stream in list(_LIVING):
        stream._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_again)


# ------------------------------------------------------------------------------------------------ the source


def dimensions(shape: Shape) -> tuple[tuple[int, ...], int]:
    """A shape as a tuple, and how many draws it takes."""
    sizes = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    sizes = tuple(whole_number("shape", size) for size in sizes)
    count = 1
    for size in sizes:
        count *= size
    return sizes, _count(count)


def _count(count: int) -> int:
    count = whole_number("count", count)
    if count > _MOST:
        raise InvalidParameter("count", count, f"is more than the {_MOST} of one call", "draw in several calls")
    return count


@final
class _Source:
    """A RandomSource over a keystream."""

    __slots__ = ("_for_tests", "_stream")

    def __init__(self, stream: _Keystream, *, for_tests: bool) -> None:
        self._stream = stream
        self._for_tests = for_tests

    def __repr__(self) -> str:
        return f"<random source, AES-256-CTR, {'seeded for tests' if self._for_tests else 'operating system'}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a random source is never copied or saved: noise drawn twice cancels; "
            "call system_randomness() for a new one"
        )

    @property
    def for_tests(self) -> bool:
        return self._for_tests

    def bytes(self, count: int) -> Octets:
        count = _count(count)
        return Octets(memoryview(self._stream.fill(count))[:count])

    def words(self, count: int) -> NDArray[np.uint64]:
        count = _count(count)
        return np.frombuffer(self._stream.fill(8 * count), dtype=np.uint64, count=count)

    def uniforms(self, count: int) -> NDArray[np.float64]:
        return ((self.words(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def normals(self, shape: Shape) -> NDArray[np.float64]:
        """Standard normals by the inverse distribution function, the sign by a bit of its own.

        The tail probability has 64 bits, and another 64 when it is below 2⁻¹², so that it keeps at least 53 leading
        bits down to 2⁻⁷⁶ and values reach to −Φ⁻¹(2⁻¹²⁹) = 13.1 standard deviations. Float32 would end at 5.8.
        """
        sizes, count = dimensions(shape)
        values = np.empty(count)
        for start in range(0, count, _PIECE):  # pieces that stay in the processor's cache
            self._fill_normals(values[start : start + _PIECE])
        return values.reshape(sizes)

    def _fill_normals(self, out: NDArray[np.float64]) -> None:
        words = self.words(out.size)
        tails = words >> np.uint64(1)
        small = np.flatnonzero(tails < _TAIL)
        out[:] = tails
        out += 0.5
        if small.size:
            more = (self.words(small.size).astype(np.float64) + 0.5) * 2.0**-64
            out[small] = tails[small].astype(np.float64) + more
        out *= 2.0**-64
        ndtri(out, out=out)
        np.negative(out, out=out, where=(words & np.uint64(1)).astype(np.bool_))

    def rounded_normals(self, scale: float, shape: Shape) -> NDArray[np.int64]:
        sizes, count = dimensions(shape)
        return rounded_normals(scale, count, self.words).reshape(sizes)

    def coins(self, probability: float, count: int) -> NDArray[np.bool_]:
        """Exact: 64 bits are compared with the probability's first 64, and where they tie (2⁻⁶⁴) the rest decides."""
        chance = _probability(probability)
        words = self.words(count)
        if chance == 1.0:
            return np.ones(words.size, dtype=np.bool_)
        scaled = chance * 2.0**64  # exact, as is the split into whole and rest
        whole = int(scaled)
        heads: NDArray[np.bool_] = words < np.uint64(whole)
        rest = scaled - whole
        if rest:
            for tie in np.flatnonzero(words == np.uint64(whole)):
                heads[tie] = self.coins(rest, 1)[0]
        return heads

    def permutation(self, count: int) -> NDArray[np.int64]:
        """The order of distinct random keys. Keys with a tie are all drawn anew, so the order is exactly uniform."""
        return np.argsort(random_keys(self, count)).astype(np.int64)


def random_keys(rng: RandomSource, count: int) -> NDArray[np.uint64]:
    """Distinct random 64-bit keys: given that no two tie, every order of them is equally likely."""
    while True:
        keys = rng.words(count)
        ordered = np.sort(keys)
        if not np.any(ordered[1:] == ordered[:-1]):
            return keys


def _probability(value: float) -> float:
    return probability("probability", value, "a coin's chance lies between 0 and 1")

"""Noise for gradients in torch: one value that adds it and states its event.

A step of DP-SGD adds N(0, (σC)²) to every coordinate of a sum whose records are clipped to C. Two modes:

* ``fast``: float64 normals by the inverse distribution function from AES words keyed by the operating system, about
  5 ns a value on one core. Values reach √2 erf⁻¹(1 − 2⁻⁵³) = 8.3 standard deviations, where float32 normals end at 5.8.
  Floats are added to floats, so the last bits of a result may betray its inputs (Mironov 2012): the label says "not
  floating-point safe".
* ``secure``: the sum is rounded to an integer grid, integers with exactly the law of a rounded normal are added, and
  only then is it scaled back. The noise is measured against Δ = C/h + √d + m grid units: h is the grid's width, √d what
  rounding d coordinates can add, and m a margin for the float error of the sum itself (:func:`float_margin`).

On a graphics card noise is made there, in the same way from other words: those of ChaCha20 under a key of 256 bits that
the operating system makes for each draw (:mod:`quietsum.learning.noise.chacha`). Secure noise is begun a step before it
is needed, for the processor decides the draws that floats cannot (:mod:`quietsum.learning.noise.whole`); on a processor
several threads draw it, each from a source of its own (:mod:`quietsum.learning.noise.ahead`). No generator is ever
saved, restored, seeded by hand or shared with torch's own.

>>> noise = TorchNoise(noise_multiplier=1.1, sensitivity=0.5)
>>> noise.event(), noise.label
(Gaussian(noise_multiplier=1.1), 'not floating-point safe')
>>> TorchNoise(noise_multiplier=1.1, sensitivity=0.5, mode="secure").label
''
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from quietsum.errors import InvalidParameter
from quietsum.learning.engines.protocol import LARGEST_BLOCK, is_on_card
from quietsum.learning.noise import chacha
from quietsum.learning.noise.ahead import WholeAhead
from quietsum.learning.noise.chacha import KEY_BYTES
from quietsum.learning.rows.memory import carry
from quietsum.mechanisms import FAILURE_PER_DRAW, RandomSource, is_from_system, system_randomness
from quietsum.privacy import Gaussian, Laplace, PrivacyEvent
from quietsum.validate import positive

__all__ = [
    "DEFAULT_NOISE",
    "LAWS",
    "MODES",
    "TorchNoise",
    "fast_laplace",
    "fast_normals",
    "find_uncovered_norms",
    "float_margin",
    "more_noise",
    "refuse_coarse",
]

LAWS = ("gaussian", "laplace")
MODES = ("fast", "secure")
DEFAULT_NOISE = "secure"
"""What a training gets that states nothing, as a plan does (docs/decisions/0017-one-default-noise.md)."""

_PIECE = 1 << 14  # values that stay in the processor's cache
_ON_GRID = 1 << 15  # values that are rounded to the grid at a time
_AHEAD = 1 << 17  # values that are drawn ahead for small models
_ROOT = math.sqrt(2.0)
_UNIT = 2.0**-63 * (1.0 - 2.0**-53)
_FINEST, _COARSEST, _WIDEST = 24, 8, 34  # bits of the clip norm on the grid, and of the noise


@final
class TorchNoise:
    """What is added to a sum of clipped gradients, on CPU or GPU.

    Guarantees: every draw is fresh; ``event()`` states the noise really added over ``sensitivity``, the bound on one
    record's part of the sum: in L2 for ``gaussian``, in L1 for ``laplace``.
    """

    __slots__ = (
        "_ahead", "_device", "_source", "_whole_ahead", "expected_batch", "law", "mode", "noise_multiplier",
        "sensitivity",
    )  # fmt: skip

    def __init__(
        self,
        *,
        noise_multiplier: float,
        sensitivity: float,
        law: str = "gaussian",
        mode: str = "fast",
        expected_batch: float = 1.0,
        source: RandomSource | None = None,
    ) -> None:
        self.noise_multiplier = positive("noise_multiplier", noise_multiplier, "noise is what makes it private")
        self.sensitivity = positive("sensitivity", sensitivity, "pass the clip norm")
        self.expected_batch = positive("expected_batch", expected_batch)
        if law not in LAWS:
            raise InvalidParameter("noise_type", law, "is unknown", "choose 'gaussian' or 'laplace'")
        if mode not in MODES:
            raise InvalidParameter("noise", mode, "is unknown", "choose 'fast' or 'secure'")
        if law == "laplace" and mode == "secure":
            problem = "has no Laplace noise: rounding d coordinates can add d to an L1 norm, more than the clip itself"
            raise InvalidParameter("noise", mode, problem, "use noise_type='gaussian', or noise='fast'")
        if self.noise_multiplier > 2.0 ** (_WIDEST - _COARSEST):
            raise InvalidParameter("noise_multiplier", noise_multiplier, "leaves nothing to see", "use less noise")
        self.law, self.mode = law, mode
        self._source = system_randomness() if source is None else source
        self._device = _DeviceNoise(self._source)
        self._ahead = _DrawnAhead(self._source)
        self._whole_ahead = WholeAhead()

    def rescale(self, *, noise_multiplier: float, sensitivity: float) -> TorchNoise:
        """The same noise at another scale, from the same source, which goes on where it is."""
        other = TorchNoise(
            noise_multiplier=noise_multiplier, sensitivity=sensitivity, law=self.law, mode=self.mode,
            expected_batch=self.expected_batch, source=self._source,
        )  # fmt: skip
        other._ahead, other._device, other._whole_ahead = self._ahead, self._device, self._whole_ahead
        return other

    # ------------------------------------------------------------------------------------------- drawing

    def draw(self, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """A fresh draw of what :meth:`add` adds, in float64, shaped like the tensors given."""
        count, device = sum(part.numel() for part in like), like[0].device
        scale = self.noise_multiplier * self.sensitivity
        if self.mode == "secure":
            width, whole = self._whole(like)
            flat = carry(whole, device).to(torch.float64).mul_(width)
        elif device.type != "cpu":
            flat = self._device.draw(count, device, self.law).mul_(scale)
        elif self.law == "gaussian":
            flat = self._ahead.take(count) * (scale * _ROOT)
        else:
            flat = fast_laplace(count, self._source).mul_(scale)
        return _split(carry(flat, device), like)

    def add(self, sums: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The noisy sums in float64. In secure mode integers are added to integers, then scaled."""
        if self.mode == "secure":
            width, flat = self._whole(sums)
            extras = _split(carry(flat, sums[0].device), sums)
            return tuple(_add_whole(part, extra, width) for part, extra in zip(sums, extras, strict=True))
        if self.law == "gaussian" and sums[0].device.type == "cpu":
            halves = _split(self._ahead.take(sum(part.numel() for part in sums)), sums)
            scale = self.noise_multiplier * self.sensitivity * _ROOT
            return tuple(torch.add(part, extra, alpha=scale) for part, extra in zip(sums, halves, strict=True))
        return tuple(extra.add_(part) for part, extra in zip(sums, self.draw(sums), strict=True))

    def _whole(self, like: Sequence[Tensor]) -> tuple[float, Tensor]:
        """The grid's width, and noise in whole steps of it."""
        width, scale = self.grid(like)
        count = sum(part.numel() for part in like)
        if is_on_card(like[0]) and not self._source.for_tests:
            return width, self._whole_ahead.take(scale, count, like[0].device)
        if is_from_system(self._source):
            return width, self._whole_ahead.draw(scale, count)
        return width, torch.from_numpy(self._source.rounded_normals(scale, count))

    def grid(self, like: Sequence[Tensor]) -> tuple[float, float]:
        """The grid's width and the noise's standard deviation on it, both from public values."""
        bits = max(_COARSEST, min(_FINEST, _WIDEST - math.ceil(math.log2(self.noise_multiplier))))
        coordinates = sum(part.numel() for part in like)
        margin = max(float_margin(dtype, self.expected_batch) for dtype in {part.dtype for part in like})
        moved = math.ldexp(1.0 + margin, bits) + math.sqrt(coordinates)
        return math.ldexp(self.sensitivity, -bits), self.noise_multiplier * moved

    def more(self, like: Sequence[Tensor]) -> float:
        """How many times the noise is that which ``sensitivity`` alone would need; 1 for fast noise.

        The rest covers rounding: to the grid, and of the sum itself, which is long in single precision and large
        batches.
        """
        if self.mode == "fast":
            return 1.0
        width, scale = self.grid(like)
        return scale * width / (self.noise_multiplier * self.sensitivity)

    # ---------------------------------------------------------------------------------------- what it costs

    def event(self) -> PrivacyEvent:
        """The event to account for, before sampling."""
        kind = Gaussian if self.law == "gaussian" else Laplace
        return kind(noise_multiplier=self.noise_multiplier)

    @property
    def variance(self) -> float:
        """The variance of one coordinate's noise: that of a Laplace number is twice its scale squared."""
        scale = self.noise_multiplier * self.sensitivity
        return scale * scale * (1.0 if self.law == "gaussian" else 2.0)

    def failure(self, coordinates: int) -> float:
        """How far that many draws may be from the ideal law in total variation; to be paid from δ."""
        return min(1.0, coordinates * FAILURE_PER_DRAW) if self.mode == "secure" else 0.0

    @property
    def label(self) -> str:
        """What a guarantee must say beside its figure; empty for secure noise."""
        return "" if self.mode == "secure" else "not floating-point safe"


def float_margin(dtype: torch.dtype, expected_batch: float) -> float:
    """How far float rounding may move a clipped sum, in units of C: u · m · (32 + min(m, B)/64), m = 2E + 64.

    u is the unit roundoff, E the expected batch, and a batch of more than m has a chance below e^(−0.38 E − 24)
    (Chernoff). The factor is the error of summing up to B = 2,048 numbers in blocks of 64 (Higham 2002, section 4.2),
    with 32 for norms, factors and products; more of them are added in float64
    (:data:`~quietsum.learning.engines.protocol.LARGEST_BLOCK`). It is a stated allowance: the order in which a GPU or
    BLAS adds is its own.

    >>> round(float_margin(torch.float32, 256), 4), round(float_margin(torch.float32, 100_000), 2)
    (0.0014, 0.76)
    """
    most = 2 * expected_batch + 64
    return float(torch.finfo(dtype).eps) / 2 * most * (32 + min(most, LARGEST_BLOCK) / 64)


def _add_whole(part: Tensor, extra: Tensor, width: float) -> Tensor:
    """The sum rounded to the grid, with whole steps of it added, in float64; on a processor piece by piece."""
    if part.is_cuda or part.numel() <= _ON_GRID or not part.is_contiguous():
        whole = part.to(torch.float64).div(width).round_().to(torch.int64)
        return whole.add_(extra).to(torch.float64).mul_(width)
    out = torch.empty(part.shape, dtype=torch.float64)
    for to, piece, more in zip(*(torch.split(one.view(-1), _ON_GRID) for one in (out, part, extra)), strict=True):
        whole = to.copy_(piece).div_(width).round_().to(torch.int64)
        to.copy_(whole.add_(more)).mul_(width)
    return out


def _split(flat: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    pieces, start = [], 0
    for part in like:
        pieces.append(flat[start : start + part.numel()].view(part.shape))
        start += part.numel()
    return tuple(pieces)


# ------------------------------------------------------------------------------------------- on the CPU


def fast_normals(count: int, source: RandomSource) -> Tensor:
    """Standard normals in float64: √2 erf⁻¹(v), v uniform between −1 and 1 from 64 random bits."""
    return _halves(count, source).mul_(_ROOT)


def _halves(count: int, source: RandomSource) -> Tensor:
    """Normals of variance ½: erf⁻¹(v). The factor that follows v is a hair below 2⁻⁶³, so that v never reaches ±1."""
    out = torch.empty(count, dtype=torch.float64)
    for start in range(0, count, _PIECE):
        piece = out[start : start + _PIECE]
        piece.copy_(torch.from_numpy(source.words(len(piece)).view("int64"))).mul_(_UNIT).erfinv_()
    return out


@final
class _DrawnAhead:
    """Noise for several steps of a small model at once: one call for many steps costs less than many calls.

    Guarantees: each value is handed out once, to whichever thread asked, and is neither read nor written here again; a
    forked child draws its own.
    """

    __slots__ = ("_left", "_lock", "_process", "_source", "_start")

    def __init__(self, source: RandomSource) -> None:
        self._source, self._lock = source, threading.Lock()
        self._left, self._start, self._process = torch.empty(0, dtype=torch.float64), 0, os.getpid()

    def take(self, count: int) -> Tensor:
        """``count`` fresh normals of variance ½."""
        if 2 * count > _AHEAD:
            return _halves(count, self._source)
        if self._process != os.getpid():  # a fork may have copied a locked lock
            self._left, self._lock, self._process = self._left[:0], threading.Lock(), os.getpid()
        with self._lock:
            end = self._start + count
            if end > len(self._left):
                self._left, end = _halves(_AHEAD, self._source), count
            self._start = end
            return self._left[end - count : end]


def fast_laplace(count: int, source: RandomSource) -> Tensor:
    """Laplace numbers of scale 1 in float64: −ln u with the sign of a coin."""
    out = torch.empty(count, dtype=torch.float64)
    for start in range(0, count, _PIECE):
        size = min(_PIECE, count - start)
        out[start : start + size] = _laplace(torch.from_numpy(source.words(2 * size).view("int64")))
    return out


def _laplace(words: Tensor) -> Tensor:
    """From 2n words n numbers: the first half sets the sizes, the second the signs."""
    uniform = _uniforms(words)
    size = len(words) // 2
    sign = (uniform[size:] < 0.5).to(torch.float64).mul_(2.0).sub_(1.0)
    return uniform[:size].log_().mul_(sign)


def _uniforms(words: Tensor) -> Tensor:
    """(k + ½) · 2⁻⁵³ for the first 53 bits of each word, k from 0 to 2⁵³ − 1."""
    return (words >> 11).to(torch.float64).add_(2.0**52).add_(0.5).mul_(2.0**-53)


# ------------------------------------------------------------------------------------------- on a card


@final
class _DeviceNoise:
    """Float64 noise made on the device that it is for, each draw under a key of its own.

    Guarantees: nothing is kept from one draw to the next, so neither a fork nor a process that was stopped and copied
    repeats one, as long as the operating system's generator does not. Normals reach 8.3 standard deviations, as on a
    processor. A source for tests makes the keys, so that they repeat.
    """

    __slots__ = ("_source",)

    def __init__(self, source: RandomSource) -> None:
        self._source = source

    def draw(self, count: int, device: torch.device, law: str) -> Tensor:
        """``count`` numbers of scale 1."""
        key = self._source.bytes(KEY_BYTES) if self._source.for_tests else os.urandom(KEY_BYTES)
        if law == "gaussian":
            return chacha.words(key, count, device).to(torch.float64).mul_(_UNIT).erfinv_().mul_(_ROOT)
        return _laplace(chacha.words(key, 2 * count, device))


_WORTH_A_WORD = 1.05
"""Secure noise that is so many times what ε asks for is spoken of."""


def refuse_coarse(names: Sequence[str], parameters: Sequence[Tensor]) -> None:
    """Refuse trainable parameters in half precision."""
    for name, parameter in zip(names, parameters, strict=True):
        if parameter.dtype not in (torch.float32, torch.float64):
            problem = "has too few digits for sums of clipped gradients and their noise"
            raise InvalidParameter("model", f"{name}: {parameter.dtype}", problem, "use float32; autocast is fine")


def find_uncovered_norms(model: nn.Module) -> str:
    """What secure noise does not cover in this model; empty where there is nothing to say.

    It covers the rounding of sums. A norm over nearly equal values magnifies rounding beyond that.
    """
    kinds = (nn.GroupNorm, nn.LayerNorm, _InstanceNorm)
    names = sorted({type(module).__name__ for module in model.modules() if isinstance(module, kinds)})
    if not names or all(parameter.dtype == torch.float64 for parameter in model.parameters()):
        return ""
    return (
        f"secure noise covers the rounding of sums, not that of {', '.join(names)} in float32, where one record's "
        "arrival can move the last digits of the others' gradients; train such a model in float64"
    )


def more_noise(noise: TorchNoise, parameters: Sequence[Tensor]) -> str:
    """That secure noise has to be larger than ε asks for, where that is worth a word; else empty."""
    more = noise.more(parameters)
    if more < _WORTH_A_WORD:
        return ""
    return (
        f"the noise is {more:.2f} times what the clip needs, since sums of {noise.expected_batch:,.0f} gradients in "
        "single precision round by so much; train in float64, in smaller batches, or with noise = 'fast'"
    )

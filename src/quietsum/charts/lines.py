"""A line chart as a frozen value: lines, axes with their ticks, and how numbers are written on them.

A :class:`Chart` says what is shown. How it is drawn, in characters or as a picture, is the business of other modules.

>>> line = Series(label="ε", points=((1.0, 1.0), (2.0, 3.0)))
>>> Chart(title="spent", x_label="steps", y_label="ε", series=(line,)).y_scale.ticks()
[0.0, 1.0, 2.0, 3.0]
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Literal, final

from quietsum.errors import InvalidParameter

__all__ = ["Chart", "Scale", "Series", "decimals", "number"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """One line: its name, its (x, y) points from left to right, and how it is drawn, so that no one needs colours.

    ``bars`` are error bars, (low, high) for each point, or none; a terminal does not show them. A series that is not
    ``joined`` is drawn as dots.
    """

    label: str
    points: tuple[tuple[float, float], ...]
    dash: Literal["solid", "dashed", "dotted"] = "solid"
    bars: tuple[tuple[float, float], ...] = ()
    joined: bool = True

    @property
    def heights(self) -> list[float]:
        """Every y that must be seen: those of points and of error bars."""
        return [*(y for _, y in self.points), *itertools.chain.from_iterable(self.bars)]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines over common axes. ``limit`` is a horizontal rule with a name, a budget for instance.

    The legend states where each line ends; with a ``note``, which an SVG shows below the legend, it does not.

    ``x_marks`` are the ticks of the x axis where they are stated. ``y_from_zero`` keeps differences honest; scores that
    all lie close together need it off to be distinguished. ``x_from_zero`` does the same for the other axis, which then
    ends at a tick. With ``share`` no y is
    above 1 or below 0: error bars are cut there, and a point beyond is refused.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    description: str = ""
    x_log: bool = False
    y_log: bool = False
    limit: tuple[str, float] | None = None
    y_from_zero: bool = True
    note: str = ""
    share: bool = False
    x_from_zero: bool = False
    x_marks: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.share:
            _check_shares(self.series)
            object.__setattr__(self, "series", tuple(_cut_bars(line) for line in self.series))
        points = [point for line in self.series for point in line.points]
        if not points:
            raise InvalidParameter("series", self.series, "holds no points", "give each line at least one point")
        if any(line.bars and len(line.bars) != len(line.points) for line in self.series):
            raise InvalidParameter("bars", self.series, "do not pair with points", "give each point one (low, high)")
        heights = [y for line in self.series for y in line.heights]
        for name, values, log in (("x", [x for x, _ in points], self.x_log), ("y", heights, self.y_log)):
            for value in values:
                if not math.isfinite(value) or (log and value <= 0):
                    raise InvalidParameter(name, value, "cannot be drawn", "leave such points out of the chart")

    def _repr_html_(self) -> str:
        from quietsum.charts.vector import svg  # draws what is stated here
        from quietsum.notebook import show_picture

        return show_picture(svg(self))

    @property
    def x_scale(self) -> Scale:
        """From x values to [0, 1]."""
        values = [x for line in self.series for x, _ in line.points]
        if self.x_from_zero and not self.x_log:
            return Scale.around([*values, 0.0], log=False, rounded=True)
        return Scale.around(values, log=self.x_log)

    @property
    def y_scale(self) -> Scale:
        """From y values to [0, 1]; starts at zero unless logarithmic, or not wanted."""
        values = [y for line in self.series for y in line.heights]
        if self.limit is not None:
            values.append(self.limit[1])
        if not self.y_log and self.y_from_zero:
            values.append(0.0)
        return Scale.around(values, log=self.y_log, rounded=True)


def _check_shares(series: Iterable[Series]) -> None:
    for line in series:
        for _, y in line.points:
            if not 0 <= y <= 1:
                raise InvalidParameter("y", y, "is no share", "draw it without share = True")


def _cut_bars(line: Series) -> Series:
    """``line`` with error bars between 0 and 1: an interval may reach beyond, a share cannot."""
    return dataclasses.replace(line, bars=tuple((max(0.0, low), min(1.0, high)) for low, high in line.bars))


_TOLD_APART = 0.01
"""How long an axis is at least, of its largest value: a tick's label has four digits."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """A linear or logarithmic axis with its ticks."""

    low: float
    high: float
    log: bool

    @classmethod
    def around(cls, values: Sequence[float], *, log: bool, rounded: bool = False) -> Scale:
        """The axis that shows all ``values``; ``rounded`` widens it to the next ticks.

        Values that differ by less than their labels could tell get an axis that is wider than they need.
        """
        low, high = min(values), max(values)
        if low == high:
            low, high = (low / 2, high * 2) if log else (min(0.0, low), high if high > 0 else low + 1.0)
        least = _TOLD_APART * max(abs(low), abs(high))
        if not log and high - low < least:
            low, high = (low + high - least) / 2, (low + high + least) / 2
        scale = cls(low=low, high=high, log=log)
        if rounded and not log:
            step = _step(low, high, 5)
            scale = cls(low=math.floor(low / step) * step, high=math.ceil(high / step - 1e-9) * step, log=False)
        return scale

    def place(self, value: float) -> float:
        """Where ``value`` lies, 0 at the low end and 1 at the high end."""
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers inside the axis."""
        if not self.log:
            step = _step(self.low, self.high, about)
            first = math.ceil(self.low / step - 1e-9)
            return [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)):
            found = [float(f"{digit}e{power}") for power in decades for digit in digits]
            found = [tick for tick in found if self.low * (1 - 1e-9) <= tick <= self.high * (1 + 1e-9)]
            if len(found) >= 3:
                break
        every = max(1, math.ceil(len(found) / (about + 2)))
        return found[::every] or [self.low, self.high]


def _step(low: float, high: float, about: int) -> float:
    """1, 2 or 5 times a power of ten, about ``about`` of which span the axis."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    return next(digit * power for digit in (1.0, 2.0, 5.0, 10.0) if digit * power >= raw * (1 - 1e-9))


def number(value: float) -> str:
    """A tick's label: 0.25, 1500, 10k, 2M, 1e-05.

    >>> [number(value) for value in (0, 0.25, 1500, 31_200, 2e6, 1e-5)]
    ['0', '0.25', '1500', '31.2k', '2M', '1e-05']
    """
    if value == 0:
        return "0"
    for size, name in ((1e6, "M"), (1e3, "k")):
        if 10 * size / (10 if name == "M" else 1) <= abs(value) < 1000 * size:
            return f"{value / size:.4g}{name}"
    return f"{value:.4g}" if abs(value) >= 1e-3 else f"{value:.0e}"


def decimals(errors: Iterable[float], *, most: int = 8) -> int:
    """How many decimals to print of values with these errors: two digits of the smallest error.

    >>> decimals([0.0093, 0.0106]), decimals([0.6]), decimals([1700.0]), decimals([0.0])
    (4, 2, 0, 4)
    """
    found = [float(error) for error in errors if math.isfinite(error) and error > 0]
    return min(most, max(0, 1 - math.floor(math.log10(min(found))))) if found else 4

"""How far one unit may move a value, and in which norm.

A sensitivity without its norm is half a statement: noise of Laplace's law hides what moves by at most Δ in the L1 norm,
Gaussian noise what moves by at most Δ in the L2 norm, and between the two lies a factor of √d for d coordinates. A
plain number means the norm that the noise needs, which for a single number is the same as every other.

The move is that of one unit which comes or goes, or becomes null. For added noise accountants double it themselves
where they are asked about a unit that is replaced by another one (:mod:`quietsum.privacy.units`); for choices the
sensitivity is stated for the relation itself (:mod:`quietsum.mechanisms.central.selection`).

>>> L1(2), L2(0.5).bound
(L1(2.0), 0.5)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias, final

from quietsum.errors import InvalidParameter
from quietsum.validate import positive

__all__ = ["L1", "L2", "LARGEST_SENSITIVITY", "SMALLEST_SENSITIVITY", "LInf", "Norm", "Sensitivity", "in_l1", "in_l2"]

SMALLEST_SENSITIVITY, LARGEST_SENSITIVITY = 1e-100, 1e100


def _check(value: object) -> float:
    bound = positive("sensitivity", value, "it is how far one unit may move the value; bound each unit first")
    if not SMALLEST_SENSITIVITY <= bound <= LARGEST_SENSITIVITY:
        problem = f"lies outside [{SMALLEST_SENSITIVITY:g}, {LARGEST_SENSITIVITY:g}]"
        raise InvalidParameter("sensitivity", bound, problem, "rescale the value")
    return bound


@final
@dataclass(frozen=True, repr=False)
class L1:
    """One unit moves the coordinates by at most ``bound`` in sum: ``Σ |aᵢ − bᵢ| ≤ bound``."""

    bound: float
    name: ClassVar[str] = "L1"

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", _check(self.bound))

    def __repr__(self) -> str:
        return f"L1({self.bound!r})"


@final
@dataclass(frozen=True, repr=False)
class L2:
    """One unit moves the vector by at most ``bound`` in Euclid's length: √Σ (aᵢ − bᵢ)² ≤ bound."""

    bound: float
    name: ClassVar[str] = "L2"

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", _check(self.bound))

    def __repr__(self) -> str:
        return f"L2({self.bound!r})"


@final
@dataclass(frozen=True, repr=False)
class LInf:
    """One unit moves each coordinate by at most ``bound``, and it may move all of them: ``max |aᵢ − bᵢ| ≤ bound``."""

    bound: float
    name: ClassVar[str] = "LInf"

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", _check(self.bound))

    def __repr__(self) -> str:
        return f"LInf({self.bound!r})"


Norm: TypeAlias = L1 | L2 | LInf
Sensitivity: TypeAlias = Norm | float
"""A bound with its norm, or a plain number in the norm of the noise."""


def in_l1(sensitivity: Sensitivity) -> L1 | LInf:
    """The sensitivity for noise that needs the L1 norm. An L2 bound is refused: it bounds no L1 norm by itself."""
    if isinstance(sensitivity, L2):
        raise InvalidParameter(
            "sensitivity", sensitivity,
            "is a bound in the L2 norm, but Laplace noise hides moves in the L1 norm, which may be √d times as long "
            "in d coordinates, so that ε would be √d times what is claimed",
            "use GaussianMechanism, or bound each unit in the L1 norm and say L1(...)",
        )  # fmt: skip
    return sensitivity if isinstance(sensitivity, L1 | LInf) else L1(sensitivity)


def in_l2(sensitivity: Sensitivity) -> Norm:
    """The sensitivity for Gaussian noise: any of the norms, for an L2 norm never exceeds an L1 norm."""
    return sensitivity if isinstance(sensitivity, L1 | L2 | LInf) else L2(sensitivity)

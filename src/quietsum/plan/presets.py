"""Three promises with a name, for those who would rather not choose an ε.

===================  =====  =======
preset                   ε        δ
===================  =====  =======
``privacy_high``       0.1     1e-6
``privacy_medium``       1     1e-5
``performance``         10     1e-4
===================  =====  =======

A δ of 1/n would allow publishing one record in full, so a preset's δ is lowered to 1/(10 n) where that is less, with n
the size of the *largest* party: δ must be small against every party's own n, and 1/n is smallest there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from types import MappingProxyType
from typing import final

__all__ = ["PRESETS", "Preset", "safe_delta"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Preset:
    """A target ε with the largest δ that goes with it."""

    epsilon: float
    delta: float

    def delta_for(self, sizes: Iterable[int]) -> float:
        """min(δ of the preset, 1/(10 n)) over all sizes.

        >>> PRESETS["performance"].delta_for([303, 123])
        0.0001
        >>> PRESETS["performance"].delta_for([303, 50_000])
        2e-06
        """
        return min(self.delta, safe_delta(sizes))


PRESETS = MappingProxyType(
    {
        "privacy_high": Preset(epsilon=0.1, delta=1e-6),
        "privacy_medium": Preset(epsilon=1.0, delta=1e-5),
        "performance": Preset(epsilon=10.0, delta=1e-4),
    }
)


def safe_delta(sizes: Iterable[int]) -> float:
    """1/(10 n) for the largest n: a δ that is small against one record in n at every party."""
    return 1 / (10 * max((size for size in sizes if size > 0), default=1))

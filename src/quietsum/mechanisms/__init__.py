"""What adds the noise: randomness from the operating system, the Gaussian mechanism, and noise on the integers.

Import from the rooms themselves: :mod:`~quietsum.mechanisms.rng`, :mod:`~quietsum.mechanisms.gaussian`,
:mod:`~quietsum.mechanisms.discrete`, :mod:`~quietsum.mechanisms.distributed`.
"""

from __future__ import annotations

__all__: list[str] = []

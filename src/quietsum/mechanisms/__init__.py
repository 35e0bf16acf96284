"""What adds the noise: randomness from the operating system, mechanisms for one value, questions to a table, sums.

Import from the rooms themselves: :mod:`~quietsum.mechanisms.rng`, :mod:`~quietsum.mechanisms.central`,
:mod:`~quietsum.mechanisms.queries`, :mod:`~quietsum.mechanisms.gaussian`, :mod:`~quietsum.mechanisms.discrete`,
:mod:`~quietsum.mechanisms.distributed`.
"""

from __future__ import annotations

__all__: list[str] = []

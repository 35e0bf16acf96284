"""What the memory of another process holds, and what an unmasked update looks like there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from federation.marking import NAMES, marker
from quietsum.party.secure import contribution_of


def patterns(resolved: Any, number: int = 1) -> dict[str, bytes]:
    """An update as floats, weighted, on the grid of the masked sum as unsigned and as signed integers."""
    how, found = contribution_of(resolved, number), {}
    for name in NAMES:
        found[f"{name}, floats"] = marker(name)[100:116].tobytes()
        found[f"{name}, weighted"] = (marker(name) * resolved.weight_of(name))[100:116].tobytes()
        whole = how.of(name, marker(name), None)  # type: ignore[arg-type]
        found[f"{name}, 32 bits"] = whole[100:132].tobytes()
        found[f"{name}, 64 bits"] = whole.view(np.int32).astype(np.int64)[100:116].tobytes()
    return found


def scan(process: int, wanted: Mapping[str, bytes]) -> set[str]:
    """Which of the patterns lie in the memory of ``process``, read through /proc."""
    found: set[str] = set()
    with open(f"/proc/{process}/maps", encoding="utf-8") as maps, open(f"/proc/{process}/mem", "rb", 0) as memory:
        for line in maps:
            words = line.split()
            if "r" not in words[1] or words[-1] in ("[vvar]", "[vsyscall]", "[vdso]"):
                continue
            first, last = (int(part, 16) for part in words[0].split("-"))
            try:
                memory.seek(first)
                content = memory.read(last - first)
            except (OSError, ValueError, OverflowError):
                continue
            found |= {name for name, pattern in wanted.items() if pattern in content}
    return found

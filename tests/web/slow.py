"""A tiny federation that takes its time, so that there is something to watch."""

from __future__ import annotations

import time

from quietsum.tasks import Rows
from tiny import TinyTask


class SlowTask(TinyTask):
    """Each site's work takes a few hundredths of a second."""

    def rows(self, party: str) -> Rows:
        time.sleep(0.06)
        return super().rows(party)

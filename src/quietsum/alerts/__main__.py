"""``python -m quietsum.alerts reference``: the tables of docs/reference/alerts-toml.md, made from what errors quote."""

from __future__ import annotations

import sys

from quietsum.alerts.settings import reference

if __name__ == "__main__":
    if sys.argv[1:] != ["reference"]:
        sys.exit("usage: python -m quietsum.alerts reference")
    print(reference(), end="")

"""``python -m quietsum.party reference``: prints the tables of docs/reference/policy-toml.md."""

from __future__ import annotations

import sys

from quietsum.party.policy import Policy
from quietsum.plan import page

if __name__ == "__main__":
    if sys.argv[1:] != ["reference"]:
        sys.exit("usage: python -m quietsum.party reference")
    print(page(Policy), end="")

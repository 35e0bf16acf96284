"""``python -m quietsum.analytics reference``: the tables of docs/reference/questions-toml.md."""

from __future__ import annotations

import sys

from quietsum.analytics.questions import QuestionFile
from quietsum.plan import page

if __name__ == "__main__":
    if sys.argv[1:] != ["reference"]:
        sys.exit("usage: python -m quietsum.analytics reference")
    print(page(QuestionFile), end="")

"""``python -m quietsum.plan schema`` or ``… reference``: prints what docs/reference holds about run.toml."""

from __future__ import annotations

import json
import sys

from quietsum.plan.text.reference import json_schema, page

if __name__ == "__main__":
    if sys.argv[1:] == ["schema"]:
        print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    elif sys.argv[1:] == ["reference"]:
        print(page(), end="")
    else:
        sys.exit("usage: python -m quietsum.plan schema|reference")

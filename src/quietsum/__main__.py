"""``python -m quietsum``: the same as the ``quietsum`` command."""

from __future__ import annotations

from quietsum.cli import main

if __name__ == "__main__":
    main()

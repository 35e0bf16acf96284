"""The commands. Each lives in a file of its own and imports what it needs when it runs, so that ``--help`` is quick."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """What the ``quietsum`` command runs."""
    from quietsum.cli.app import app

    app(prog_name="quietsum")

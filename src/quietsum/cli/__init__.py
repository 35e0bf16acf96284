"""The commands. Each lives in a file of its own and imports what it needs when it runs, so that ``--help`` is quick."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """What the ``quietsum`` command runs."""
    import signal
    import sys

    answer = signal.getsignal(signal.SIGINT)
    if answer is not signal.SIG_IGN:  # as it is in the background of a script
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C in the middle of an import ends it without a word
    from quietsum.cli.app import app

    signal.signal(signal.SIGINT, answer)
    try:
        app(prog_name="quietsum")
    except KeyboardInterrupt:  # while the commands were put together; later ones are caught in the application
        sys.exit(130)

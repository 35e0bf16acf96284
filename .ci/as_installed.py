"""What a user meets after `pip install quietsum`: run by the Python of an environment that holds the wheel alone.

Each command must end with its exit code, say something, and show no traceback. Nothing of the source tree is used.

    python .ci/as_installed.py
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

COMMAND = Path(sys.executable).with_name("quietsum")
GROUPS = ("ledger", "party", "keys")
COMMANDS = (
    "new", "plan", "run", "train", "tradeoff", "selfcheck", "superlink", "datasets", "runs", "show", "compare",
    "spend", "calibrate", "curve", "explain", "report", "audit", "ask", "predict", *GROUPS,
)  # fmt: skip
SPEND = ("--noise-multiplier", "1.1", "--sample-rate", "0.01", "--steps", "1000", "--delta", "1e-5")
FLIPPED = {"flipped.json": "first.json", "flipped.zip": "first.zip", "flipped.jsonl": "first.jsonl"}
USES: tuple[tuple[int, tuple[str, ...], str], ...] = (
    (0, ("--version",), "quietsum"),
    (0, (), "Usage"),
    *((0, (name, "--help"), "Usage") for name in COMMANDS),
    *((0, (name,), "Usage") for name in GROUPS),
    (2, ("speend",), "No such command"),
    (2, ("spend", "--nosie", "1"), "No such option"),
    (2, ("spend", "--steps", "many"), "--steps"),
    (2, ("show",), "error"),
    (2, ("ledger", "verfy"), "No such command"),
    (0, ("spend", *SPEND), "ε"),
    (0, ("explain", "delta"), "delta"),
    (0, ("new", "run.toml"), "wrote run.toml"),
    (0, ("plan", "run.toml"), "ε"),
    (0, ("run", "run.toml", "--name", "first"), "ε"),
    (0, ("runs",), "first"),
    (0, ("show", "first"), "first"),
    (0, ("ledger", "show"), "spent"),
    (0, ("ledger", "verify"), "whole"),
    (0, ("report", "first", "-o", "first.html"), "signed"),
    (0, ("ledger", "export", "first.jsonl"), "first.jsonl"),
    (0, ("report", "--verify", "first.json", "--export", "first.jsonl"), "NOT CHECKED"),
    (0, ("report", "first", "--pack", "first.zip"), "first.zip"),
    (0, ("report", "--verify", "first.zip"), "NOT CHECKED"),
    *((4, ("report", "--verify", name), "error") for name in FLIPPED if name != "flipped.jsonl"),
    (4, ("report", "--verify", "first.json", "--export", "flipped.jsonl"), "error"),
    (2, ("audit", "first"), "carried no canaries"),
    (2, ("train", "--task", "digits", "--epsilon", "3"), "quietsum[train]"),
    (2, ("run", "run.toml", "--on", "flower", "--keys", "k", "--listen", "127.0.0.1:9092"), "quietsum[federate]"),
)


def main() -> None:
    """Try every use; exit code 1 where one went wrong."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for code, words, said in USES:
            if words and words[-1] in FLIPPED:
                content = bytearray(Path(folder, FLIPPED[words[-1]]).read_bytes())
                content[len(content) // 2] ^= 1
                Path(folder, words[-1]).write_bytes(content)
            done = subprocess.run([COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=600)
            output = done.stdout + done.stderr
            if done.returncode != code or said not in output or "Traceback" in output:
                failed += 1
                print(
                    f"quietsum {' '.join(words)}: exit code {done.returncode} where {code} is right, and {said!r} in:"
                )
                print(output[-2000:])
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("typer", "rich", "numpy", "pydantic")
    )
    print(f"as installed, Python {sys.version.split()[0]}, {versions}: {len(USES) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

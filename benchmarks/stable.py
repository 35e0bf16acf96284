"""The tests that start servers, again and again, beside processes that keep the machine busy.

``python benchmarks/stable.py [--times 20] [--busy 2] [FILE …]`` prints one line for each time and ends with 1 if one
failed. No outcome may depend on how long something took: a test that fails here and passes alone is to be mended.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SERVERS = [
    "tests/federation/flower",
    "tests/e2e/test_flower.py",
    "tests/e2e/test_flower_parity.py",
    "tests/cli/test_superlink.py",
    "tests/federation/test_crew.py",
]


def main() -> int:
    """Run them; 0 if all passed every time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after so long")
    parser.add_argument("files", nargs="*", default=SERVERS)
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background ignore it, and what it starts
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(given.busy)]
    failed = done = 0
    begun = time.monotonic()
    try:
        while done < given.times and time.monotonic() - begun < given.seconds:
            start = time.monotonic()
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", *given.files]
            ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            done += 1
            failed += ran.returncode != 0
            last = ran.stdout.strip().splitlines()[-1] if ran.stdout.strip() else ran.stderr[-200:]
            print(f"{done:3} {last}; {time.monotonic() - start:.0f} s, load {os.getloadavg()[0]:.1f}", flush=True)
            if ran.returncode:
                print(ran.stdout[-6000:], flush=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    print(f"{done - failed} of {done} times all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Which pins of constraints.txt have a known vulnerability, by a checkout of the Python Packaging Advisory Database.

    git clone https://github.com/pypa/advisory-database
    .venv/bin/python .ci/advisories.py advisory-database

Exit code 1 where one is found. A checkout knows nothing that was published after it, so its date is printed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]


def pins() -> dict[str, Version]:
    """The exact version of each distribution."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def affects(advisory: dict[str, Any], name: str, version: Version) -> bool:
    """Whether the advisory names this version, one by one or by a range; withdrawn ones count for nothing."""
    if advisory.get("withdrawn"):
        return False
    for affected in advisory.get("affected", ()):
        if canonicalize_name(affected["package"]["name"]) != name:
            continue
        if str(version) in affected.get("versions", ()):
            return True
        ranges = (part for part in affected.get("ranges", ()) if part["type"] == "ECOSYSTEM")
        if any(_inside(part["events"], version) for part in ranges):
            return True
    return False


def _inside(events: list[dict[str, str]], version: Version) -> bool:
    inside = False
    for event in events:
        if "introduced" in event and (event["introduced"] == "0" or version >= Version(event["introduced"])):
            inside = True
        if "fixed" in event and version >= Version(event["fixed"]):
            inside = False
        if "last_affected" in event and version > Version(event["last_affected"]):
            inside = False
    return inside


def main() -> None:
    """Print every pin that an advisory affects, then the count."""
    checkout = Path(sys.argv[1])
    date = subprocess.run(
        ["git", "-C", checkout, "log", "-1", "--format=%cs"], capture_output=True, text=True, check=True
    ).stdout.strip()
    pinned, read, found = pins(), 0, 0
    for name, version in pinned.items():
        for path in sorted((checkout / "vulns" / name).glob("*.yaml")):
            advisory = yaml.safe_load(path.read_text(encoding="utf-8"))
            read += 1
            if affects(advisory, name, version):
                found += 1
                print(f"{name} {version}: {advisory['id']} {', '.join(advisory.get('aliases', ()))}")
    print(f"{len(pinned)} pins, {read} advisories of {date} read, {found} of them affect a pin")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

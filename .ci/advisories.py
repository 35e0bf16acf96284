"""Which pins of constraints.txt have a known vulnerability. ``--record`` writes down that it was looked up, and when.

With a network, before each release (pip-audit asks the package index and OSV for each pin):

    python -m pip install pip-audit
    python .ci/advisories.py --live --record

Without one, by a checkout of the Python Packaging Advisory Database (a checkout knows nothing that came after it):

    git clone https://github.com/pypa/advisory-database
    python .ci/advisories.py --checkout advisory-database --record

``--record`` writes ``[audit]`` of ``src/quietsum/cli/look/pins.toml``, which ``quietsum doctor`` reads out, and the
same sentence into SECURITY.md. Nothing else writes there, so no date in them is one that somebody typed. Exit code 1
where a pin is affected or could not be looked up; that is recorded, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

PINS = ROOT / "src" / "quietsum" / "cli" / "look" / "pins.toml"
SECURITY = ROOT / "SECURITY.md"
BEGIN, END = "<!-- audit -->", "<!-- /audit -->"
SERVICES = ("pypi", "osv")
_TABLE = re.compile(r"^\[audit\]\n.*?(?=^\[)", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LookUp:
    """One look at all pins."""

    source: str
    live: bool
    pins: int
    affected: tuple[str, ...]
    open: tuple[str, ...] = ()
    """Pins that the source says nothing about, and why."""


def pins() -> dict[str, str]:
    """The exact version of each distribution, by its plain name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {plain(name): version.strip() for name, version in pairs}


def plain(name: str) -> str:
    """A distribution's name as the index writes it."""
    return re.sub(r"[-_.]+", "-", name).strip().lower()


# ------------------------------------------------------------------------------------------------ a checkout


def affects(advisory: dict[str, Any], name: str, version: str) -> bool:
    """Whether the advisory names this version, one by one or by a range; withdrawn ones count for nothing."""
    from packaging.version import Version

    if advisory.get("withdrawn"):
        return False
    for affected in advisory.get("affected", ()):
        if plain(affected["package"]["name"]) != name:
            continue
        if version in affected.get("versions", ()):
            return True
        ranges = (part for part in affected.get("ranges", ()) if part["type"] == "ECOSYSTEM")
        if any(_inside(part["events"], Version(version)) for part in ranges):
            return True
    return False


def _inside(events: list[dict[str, str]], version: Any) -> bool:
    from packaging.version import Version

    inside = False
    for event in events:
        if "introduced" in event and (event["introduced"] == "0" or version >= Version(event["introduced"])):
            inside = True
        if "fixed" in event and version >= Version(event["fixed"]):
            inside = False
        if "last_affected" in event and version > Version(event["last_affected"]):
            inside = False
    return inside


def look_into(checkout: Path) -> LookUp:
    """Every advisory of the checkout about a pin."""
    import yaml

    git = ["git", "-C", str(checkout), "log", "-1", "--format=%cs"]
    date = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    if not (checkout / "vulns").is_dir():
        raise SystemExit(f"{checkout} is no checkout of the advisory database: it has no folder vulns")
    pinned, read, found = pins(), 0, []
    for name, version in pinned.items():
        for path in sorted((checkout / "vulns" / name).glob("*.yaml")):
            advisory = yaml.safe_load(path.read_text(encoding="utf-8"))
            read += 1
            if affects(advisory, name, version):
                found.append(f"{name} {version}: {' '.join([advisory['id'], *advisory.get('aliases', ())])}")
    source = f"{read} advisories of the PyPA advisory database as it was on {date}"
    return LookUp(source=source, live=False, pins=len(pinned), affected=tuple(found))


# ---------------------------------------------------------------------------------------------------- live


def ask() -> LookUp:
    """What pip-audit finds for the pins, in both of its services."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        tool = version("pip-audit")
    except PackageNotFoundError:
        raise SystemExit(f"pip-audit is not installed; run: {sys.executable} -m pip install pip-audit") from None
    answers = []
    for service in SERVICES:
        words = ["-r", str(ROOT / "constraints.txt"), "--no-deps", "--disable-pip", "-f", "json", "-s", service]
        done = subprocess.run([sys.executable, "-m", "pip_audit", *words], capture_output=True, text=True, check=False)
        answers.append(done.stdout)
        if not done.stdout.strip():  # no answer is no good answer
            raise SystemExit(
                f"pip-audit got no answer from {service}, nothing is recorded: {done.stderr.strip()[-300:]}"
            )
    return read_answers(answers, pins(), f"pip-audit {tool}")


def read_answers(answers: list[str], pinned: dict[str, str], tool: str) -> LookUp:
    """pip-audit's answers as one. A pin that one of them leaves out or skips was not looked up.

    Where the index cannot be reached, pip-audit skips every pin, says "no known vulnerabilities" and ends with 0.
    """
    affected: dict[str, None] = {}
    left: dict[str, None] = {}
    for service, answer in zip(SERVICES, answers, strict=True):
        seen = {plain(one["name"]): one for one in json.loads(answer)["dependencies"]}
        for name, version in pinned.items():
            one = seen.get(name, {"skip_reason": "it is not in the answer"})
            if "skip_reason" in one or one.get("version", version) != version:
                left[f"{name} {version} in {service}: {one.get('skip_reason', 'another version was looked up')}"] = None
            for found in one.get("vulns", ()):
                affected[f"{name} {version}: {' '.join([found['id'], *found.get('aliases', ())])}"] = None
    source = f"{' and '.join(SERVICES)}, by {tool}"
    return LookUp(source=source, live=True, pins=len(pinned), affected=tuple(affected), open=tuple(left))


# -------------------------------------------------------------------------------------------------- recording


def record(found: LookUp, day: datetime.date, *, table: Path = PINS, page: Path = SECURITY) -> None:
    """Write the look-up into the table that the doctor reads and into the page about security."""
    import tomllib

    from quietsum.cli.look.machine import describe_audit, digest_of_pins

    text = table.read_text(encoding="utf-8")
    before = tomllib.loads(text)
    values = {
        "date": day, "source": found.source, "live": day if found.live else before["audit"].get("live", "never"),
        "pins": found.pins, "affected": list(found.affected), "open": list(found.open),
        "digest": digest_of_pins(before["pins"]),
    }  # fmt: skip
    lines = [f"{name} = {value.isoformat() if isinstance(value, datetime.date) else json.dumps(value)}"
             for name, value in values.items()]  # fmt: skip
    made = "\n".join(["[audit]", "# Written by .ci/advisories.py --record, and by nothing else.", *lines, "", ""])
    found_tables = len(_TABLE.findall(text))
    about = page.read_text(encoding="utf-8")
    if found_tables != 1 or about.count(BEGIN) != 1 or about.count(END) != 1:
        raise SystemExit(f"{table} has no table [audit], or {page} no place between {BEGIN} and {END}")
    text = _TABLE.sub(lambda _: made, text)
    sentence = describe_audit(tomllib.loads(text))
    table.write_text(text, encoding="utf-8")
    start, rest = about.split(BEGIN)
    page.write_text(
        f"{start}{BEGIN}\n{sentence[0].upper()}{sentence[1:]}.\n{END}{rest.split(END)[1]}", encoding="utf-8"
    )


def main() -> None:
    """Look the pins up, print what was found, and record it."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = options.add_mutually_exclusive_group(required=True)
    where.add_argument("--live", action="store_true", help="ask the package index and OSV through pip-audit")
    where.add_argument("--checkout", type=Path, metavar="FOLDER", help="a checkout of the PyPA advisory database")
    options.add_argument("--record", action="store_true", help="write down that it was looked up today")
    chosen = options.parse_args()
    found = ask() if chosen.live else look_into(chosen.checkout)
    for line in (*found.affected, *(f"not looked up: {one}" for one in found.open)):
        print(line)
    print(f"{found.pins} pins in {found.source}: {len(found.affected)} affected, {len(found.open)} not looked up")
    if chosen.record:
        record(found, datetime.datetime.now(datetime.UTC).date())
    sys.exit(1 if found.affected or found.open else 0)


if __name__ == "__main__":
    main()

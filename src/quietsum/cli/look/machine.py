"""What ``quietsum doctor`` looks at: each check is a function that returns findings, and none of them spends anything.

A finding is *fine*, a *note* (a run works, and somebody may want to know), or it *stops* a run. The checks ask the
system itself: a folder is writable if an unnamed file can be made in it, not if its permission bits say so, which mean
nothing to a superuser or on a read-only mount. Nothing with a name is written, and no key and no ledger is opened.

Versions are compared with the ranges that the installed package states and with the pins of ``pins.toml``, the
versions that the tests ran with. A version outside of its range stops a run, another one than the pin is a note.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import importlib.resources
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, final

from quietsum.errors import printable

__all__ = ["Finding", "describe_audit", "digest_of_pins", "examine", "read_pins"]

State = Literal["fine", "note", "stops"]

LEAST_ROOM = 64 << 20
"""Bytes without which no run is begun here; a checkpoint of a small model and its ledger need less."""
LITTLE_ROOM = 2 << 30
LARGEST_SKEW = 2.0
"""Seconds between the clock and the file system's beyond which times in a ledger and of its files disagree visibly."""
RELEASED = 1_767_225_600
"""1 January 2026 in seconds since 1970. A clock before it is wrong: this version did not exist."""
OLDEST = (3, 11)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the doctor: what was looked at, how it is, and what to do if it is not fine."""

    name: str
    state: State
    text: str
    remedy: str = ""
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**dataclasses.asdict(self), "values": dict(self.values)}


def examine(workspace: Path) -> list[Finding]:
    """All findings about this machine and the folder ``workspace``, in the order in which they are shown.

    A check that fails itself is a note with the kind of its failure: the doctor always has an answer.
    """
    pins = read_pins()
    checks: tuple[Callable[[], Finding], ...] = (
        check_python, lambda: check_base(pins), check_randomness, lambda: check_folder(workspace),
        lambda: check_room(workspace), lambda: check_clock(workspace), check_card, lambda: report_audit(pins),
    )  # fmt: skip
    names = ("python", "libraries", "randomness", "workspace", "disk", "clock", "graphics card", "pins looked up")
    found = [_guard(name, check) for name, check in zip(names, checks, strict=True)]
    return [*found, *(check_extra(name, use, pins) for name, use in pins["extras"].items())]


def _guard(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:  # whatever a broken installation raises is what the doctor is asked for
        return Finding(name=name, state="note", text=f"could not be looked at ({type(error).__name__})")


def read_pins() -> dict[str, Any]:
    """``pins.toml``: the pins, when they were looked up, and what each extra is for."""
    text = importlib.resources.files(__package__).joinpath("pins.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


# ------------------------------------------------------------------------------------------------- versions


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Requirement:
    """A library that the package states, with its range and the extra that it belongs to, "" for the base."""

    name: str
    bounds: tuple[tuple[str, str], ...]
    extra: str

    @property
    def text(self) -> str:
        """The range as pip writes it."""
        return ",".join(f"{sign}{version}" for sign, version in self.bounds)

    def allows(self, version: str) -> bool:
        """Whether ``version`` lies in the range. Only ``>=`` and ``<`` stand in ours; a test holds that."""
        mine = release_of(version)
        return all(
            mine >= release_of(bound) if sign == ">=" else mine < release_of(bound) for sign, bound in self.bounds
        )


def release_of(version: str) -> tuple[int, ...]:
    """The numbers of a version, without trailing zeros, local parts and suffixes.

    >>> release_of("2.13.0+cpu"), release_of("2.14.0rc1"), release_of("3") < release_of("3.0.1")
    ((2, 13), (2, 14), True)
    """
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def read_requirements(lines: Iterable[str] | None = None) -> list[Requirement]:
    """What the installed package states that it needs; empty if it is not installed, as in a bare checkout."""
    if lines is None:
        try:
            lines = importlib.metadata.requires("quietsum") or ()
        except importlib.metadata.PackageNotFoundError:
            lines = ()
    found = []
    for line in lines:
        words, _, marker = line.partition(";")
        name = re.match(r"[A-Za-z0-9._-]+", words.strip())
        extra = re.search(r"""extra\s*==\s*['"]([\w-]+)['"]""", marker)
        if name is not None:
            bounds = tuple(sorted(re.findall(r"(>=|<)\s*([\w.]+)", words), reverse=True))
            plain = re.sub(r"[-_.]+", "-", name[0]).lower()
            found.append(Requirement(name=plain, bounds=bounds, extra="" if extra is None else extra[1]))
    return found


def version_of(name: str) -> str | None:
    """The installed version, None if there is none."""
    try:
        return printable(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return None


def compare(
    needed: Iterable[Requirement], pins: Mapping[str, str]
) -> tuple[list[str], list[str], list[str], dict[str, Any]]:
    """Which libraries are absent, which lie outside of their range, which differ from the pin, and all versions."""
    absent, outside, other, versions = [], [], [], {}
    for one in needed:
        version, pin = version_of(one.name), pins.get(one.name)
        versions[one.name] = {"installed": version, "range": one.text, "pin": pin}
        if version is None:
            absent.append(one.name)
        elif not one.allows(version):
            outside.append(f"{one.name} {version} (needs {one.text})")
        elif pin is not None and release_of(version) != release_of(pin):
            other.append(f"{one.name} {version} (tested with {pin})")
    return absent, outside, other, versions


def check_python(version: tuple[int, ...] | None = None) -> Finding:
    """The interpreter and quietsum itself."""
    from quietsum import __version__

    running = version or sys.version_info[:3]
    text = ".".join(str(part) for part in running)
    values = {"python": text, "quietsum": __version__}
    if running[:2] < OLDEST:
        least = ".".join(str(part) for part in OLDEST)
        return Finding(name="python", state="stops", text=f"{text} is older than {least}",
                       remedy=f"install Python {least} or newer", values=values)  # fmt: skip
    return Finding(name="python", state="fine", text=f"{text}, quietsum {__version__}", values=values)


def check_base(pins: Mapping[str, Any], requirements: Iterable[Requirement] | None = None) -> Finding:
    """The libraries of the base install beside their ranges and pins."""
    stated = read_requirements() if requirements is None else requirements
    needed = [one for one in stated if not one.extra]
    if not needed:
        return Finding(name="libraries", state="note", text="quietsum runs from a checkout and states no ranges",
                       remedy="install it: pip install .")  # fmt: skip
    absent, outside, other, versions = compare(needed, pins["pins"])
    if absent or outside:
        wrong = [*(f"{name} is missing" for name in absent), *outside]
        remedy = "reinstall: pip install --force-reinstall quietsum"
        return Finding(name="libraries", state="stops", text="; ".join(wrong), remedy=remedy, values=versions)
    if other:
        return Finding(name="libraries", state="note", text="; ".join(other), values=versions,
                       remedy="the tests' versions: pip install -c constraints.txt quietsum")  # fmt: skip
    return Finding(name="libraries", state="fine", text=f"all {len(needed)} as the tests ran with", values=versions)


def check_extra(
    name: str, use: str, pins: Mapping[str, Any], requirements: Iterable[Requirement] | None = None
) -> Finding:
    """One extra: what it is for, and what of it is here. No extra stops a run that does not need it."""
    needed = [one for one in (read_requirements() if requirements is None else requirements) if one.extra == name]
    title = f"[{name}]"
    absent, outside, other, versions = compare(needed, pins["pins"])
    remedy = f"pip install 'quietsum[{name}]'"
    if outside:
        return Finding(name=title, state="note", text="; ".join(outside), remedy=remedy, values=versions)
    if not needed or len(absent) == len(needed):
        return Finding(name=title, state="note", text=f"absent. {use}", remedy=remedy, values=versions)
    if absent:
        text = f"{', '.join(absent)} missing. {use}"
        return Finding(name=title, state="note", text=text, remedy=remedy, values=versions)
    return Finding(name=title, state="fine", values=versions, text=f"{use}{'; ' if other else ''}{'; '.join(other)}")


def report_audit(pins: Mapping[str, Any]) -> Finding:
    """When the pins were last held against known vulnerabilities, by what, and what was left out."""
    audit = pins["audit"]
    values = {**audit, "date": str(audit["date"]), "live": str(audit["live"])}
    fine = audit["live"] != "never" and not audit["affected"] and not audit["open"] and _covers(pins)
    return Finding(
        name="pins looked up", state="fine" if fine else "note", text=describe_audit(pins), values=values,
        remedy="" if fine else "pip-audit looks up what is installed here",
    )  # fmt: skip


def describe_audit(pins: Mapping[str, Any]) -> str:
    """What the record of the last look-up says, without a word that it does not hold."""
    audit = pins["audit"]
    live = "never in a live database" if audit["live"] == "never" else f"last in live databases on {audit['live']}"
    affected, left = (", ".join(audit[name]) or "none" for name in ("affected", "open"))
    where = "" if audit["live"] == audit["date"] else f"; on {audit['date']}"
    text = f"{live}{where} in {audit['source']}: {audit['pins']} pins, affected: {affected}"
    text += f", not looked up: {left}" if audit["open"] else ""
    return text if _covers(pins) else f"{text}. Pins have changed since"


def digest_of_pins(pins: Mapping[str, str]) -> str:
    """A digest of the pins, by which a record says which ones it is about."""
    return hashlib.sha256(json.dumps(pins, sort_keys=True).encode()).hexdigest()


def _covers(pins: Mapping[str, Any]) -> bool:
    return str(pins["audit"]["digest"]) == digest_of_pins(pins["pins"])


# ------------------------------------------------------------------------------------------------- machine


def check_randomness(draw: Callable[[int], bytes] = os.urandom) -> Finding:
    """Whether the operating system gives random bytes: all noise and all draws are keyed by them."""
    remedy = "run where the operating system has a random generator"
    try:
        if hasattr(os, "getrandom"):
            os.getrandom(16, os.GRND_NONBLOCK)  # raises while the system has gathered too little chance
        first, second = draw(32), draw(32)
    except (OSError, NotImplementedError) as error:
        why = "it is not ready yet" if isinstance(error, BlockingIOError) else type(error).__name__
        return Finding(name="randomness", state="stops", text=f"the system gives no random bytes: {why}", remedy=remedy)
    if len(first) != 32 or first == second or len({*first, *second}) < 8:
        return Finding(name="randomness", state="stops", text="the system's random bytes repeat", remedy=remedy)
    if os.environ.get("QUIETSUM_TEST_SEEDS") == "1":
        return Finding(name="randomness", state="note", text="QUIETSUM_TEST_SEEDS=1: seeded noise is possible here",
                       remedy="unset it outside of tests")  # fmt: skip
    return Finding(name="randomness", state="fine", text="the operating system's generator keys every draw")


def nearest_folder(path: Path) -> Path:
    """``path`` if it is there, else the closest folder above it, in which it would be made."""
    path = path.absolute()
    return next((one for one in (path, *path.parents) if os.path.lexists(one)), Path("/"))


def check_folder(workspace: Path) -> Finding:
    """Whether runs can be written: an unnamed file is made in the folder, synced, and gone again."""
    place = nearest_folder(workspace)
    shown = printable(str(workspace))
    values = {"path": str(workspace), "exists": place == workspace.absolute()}
    remedy = "name another folder with --workspace, or ask its owner for permission to write"
    if not place.is_dir():
        return Finding(name="workspace", state="stops", text=f"{shown}: {printable(str(place))} is no folder",
                       remedy=remedy, values=values)  # fmt: skip
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"quietsum")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return Finding(name="workspace", state="stops", text=f"{shown} cannot be written: {reason}",
                       remedy=remedy, values=values)  # fmt: skip
    sealed = [one for one in ("ledger.db", "ledger.db.key") if _is_sealed(place / one)]
    if values["exists"] and sealed:
        return Finding(name="workspace", state="stops", text=f"{' and '.join(sealed)} in {shown} cannot be opened",
                       remedy="give the files to the user who runs quietsum", values=values)  # fmt: skip
    return Finding(name="workspace", state="fine", values=values,
                   text=f"{shown} {'can be written' if values['exists'] else 'can be made'}")  # fmt: skip


def _is_sealed(path: Path) -> bool:
    """Whether a file of the ledger is there and this user may not use it; the key need only be read."""
    return path.exists() and not os.access(path, os.R_OK if path.suffix == ".key" else os.R_OK | os.W_OK)


def check_room(workspace: Path, free: int | None = None) -> Finding:
    """How many bytes the disk of ``workspace`` has left for this user."""
    left = shutil.disk_usage(nearest_folder(workspace)).free if free is None else free
    text = f"{left / (1 << 30):.1f} GiB free"
    remedy = "make room, or name a folder on another disk with --workspace"
    state: State = "stops" if left < LEAST_ROOM else "note" if left < LITTLE_ROOM else "fine"
    if state == "stops":
        text = f"{left / (1 << 20):.0f} MiB free, too little for a run"
    return Finding(name="disk", state=state, text=text, remedy="" if state == "fine" else remedy, values={"free": left})


def check_clock(
    workspace: Path, now: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
) -> Finding:
    """Whether time goes on, is of this age, and is the file system's; deadlines go by the first, entries by the other.

    A wrong clock changes no ε: nothing in the accounting goes by time.
    """
    ticks = [steady() for _ in range(1000)]
    moment, skew = now(), _skew(nearest_folder(workspace), now)
    zone = time.strftime("%Z %z", time.localtime(moment))
    values = {"utc": moment, "zone": zone, "skew": skew}
    remedy = "set the clock, by NTP say"
    if any(later < earlier for earlier, later in itertools.pairwise(ticks)):
        return Finding(name="clock", state="stops", text="the steady clock went back, and deadlines go by it",
                       remedy="use another machine", values=values)  # fmt: skip
    text = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(moment))} UTC, zone {zone}"
    if moment < RELEASED:
        return Finding(name="clock", state="note", text=f"{text}: before this version existed", remedy=remedy,
                       values=values)  # fmt: skip
    if skew is not None and abs(skew) > LARGEST_SKEW:
        return Finding(name="clock", state="note", text=f"{text}: {abs(skew):.0f} s apart from the file system's",
                       remedy=remedy, values=values)  # fmt: skip
    return Finding(name="clock", state="fine", values=values,
                   text=text + ("" if skew is None else "; the file system agrees"))  # fmt: skip


def _skew(folder: Path, now: Callable[[], float]) -> float | None:
    """Seconds by which the clock is ahead of the time that a new file gets; None where no file can be made."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"now")
            file.flush()
            return now() - os.fstat(file.fileno()).st_mtime
    except OSError:
        return None


def check_card() -> Finding:
    """Whether torch is here and sees a graphics card. Everything runs without one."""
    name = "graphics card"
    if version_of("torch") is None:
        return Finding(name=name, state="fine", text="not looked for: torch is absent", values={"cards": []})
    from quietsum.learning import list_cards

    cards, cuda = list_cards()
    values: dict[str, Any] = {"cards": [printable(card) for card in cards], "cuda": cuda}
    if not cards:
        text = "none; training runs on the processor" if cuda else "none; this torch is built for processors only"
    else:
        text = f"{', '.join(values['cards'])}, CUDA {cuda}"
    return Finding(name=name, state="fine", text=text, values=values)

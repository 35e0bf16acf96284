"""What a folder of keys holds: whether its files fit together, how long they last, and what somebody should see to."""

from __future__ import annotations

import dataclasses
import datetime
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.identity.certificates import (
    OWN_NAMES,
    check_server,
    fingerprint,
    names_of,
    read_certificates,
    read_node_key,
    read_roster,
    read_server_key,
    require_private,
)
from quietsum.identity.keyring import CLIENTS, ROSTER

if TYPE_CHECKING:
    from cryptography import x509

__all__ = ["Holder", "Keyring", "Validity", "check_serving", "look"]

SOON = datetime.timedelta(days=30)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Validity:
    """A certificate as people compare it."""

    fingerprint: str
    until: datetime.datetime
    names: tuple[str, ...] = ()


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """A party of the roster, and whether its private key still lies in this folder."""

    party: str
    fingerprint: str
    private_key_here: bool


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Keyring:
    """What a folder of keys holds, and what somebody should see to."""

    authority: Validity
    server: Validity | None
    parties: tuple[Holder, ...]
    warnings: tuple[str, ...]
    expired: bool = False


def look(folder: Path, *, now: datetime.datetime | None = None) -> Keyring:
    """Read every file of ``folder`` and check that they fit together; broken or foreign files are errors."""
    moment = now or datetime.datetime.now(datetime.UTC)
    if not (folder / "ca.crt").is_file():
        raise InvalidParameter("DIR", str(folder), "has no ca.crt", "make one with: quietsum keys make DIR")
    warnings: list[str] = []
    roots = read_certificates(folder / "ca.crt")
    authority = Validity(fingerprint=fingerprint(roots[0]), until=roots[0].not_valid_after_utc)
    warnings += _ending("the authority's certificate", authority.until, moment)
    server = None
    if (folder / "server.crt").exists():
        chain = read_certificates(folder / "server.crt")
        found = chain[0]
        server = Validity(fingerprint=fingerprint(found), until=found.not_valid_after_utc, names=tuple(names_of(found)))
        _require_belongs(folder, chain)
        warnings += _ending("the server's certificate", server.until, moment)
        if min(server.until, authority.until) > moment:
            check_server(roots, chain, now=moment)
    else:
        warnings.append("there is no server.crt: no SuperLink can be started from this folder")
    roster = read_roster(folder / ROSTER) if (folder / ROSTER).exists() else {}
    if (folder / CLIENTS).exists():
        ends = min(found.not_valid_after_utc for found in read_certificates(folder / CLIENTS))
        warnings += [] if ends == authority.until else _ending(f"{CLIENTS}, for sites' certificates,", ends, moment)
        bare = [
            name
            for name in roster
            if (folder / name / "node.pub").exists() and not (folder / name / "node.crt").exists()
        ]
        if bare:
            said = f"have no node.crt, and {CLIENTS} makes the SuperLink ask for one"
            warnings.append(f"{', '.join(bare)} {said}: make their folders anew, or remove {CLIENTS}")
    holders = []
    for party, key in roster.items():
        here = folder / party / "node.key"
        holders.append(Holder(party=party, fingerprint=fingerprint(key), private_key_here=here.exists()))
        if here.exists() and _mode(here) & 0o077 == 0 and read_node_key(here).public_key() != key:
            warnings.append(f"{here} is not the key that the roster holds for {party}")
    for here in sorted((*folder.glob("*.key"), *folder.glob("[!.]*/node.key"))):
        if _mode(here) & 0o077:
            warnings.append(f"{here} can be read by others (mode {_mode(here):o}): chmod 600, or make a new key")
    for other in sorted(folder.glob("[!.]*/node.pub")):
        if other.parent.name not in roster:
            warnings.append(f"{other.parent.name} has a folder and is not in the roster: quietsum keys admit")
    expired = min(authority.until, authority.until if server is None else server.until) <= moment
    return Keyring(
        authority=authority, server=server, parties=tuple(holders), warnings=tuple(warnings), expired=expired
    )


def check_serving(folder: Path, *, host: str, now: datetime.datetime | None = None) -> tuple[str, ...]:
    """Refuse files with which no site would be served; returns what may still keep sites away.

    ``host`` is where a SuperLink is to listen. Guarantees: the certificate holds now and leads to ``ca.crt``, the key
    belongs to it, and nobody but its owner can read the key.
    """
    roots, chain = read_certificates(folder / "ca.crt"), read_certificates(folder / "server.crt")
    check_server(roots, chain, now=now)
    _require_belongs(folder, chain)
    require_private(folder / "server.key")
    if (folder / CLIENTS).exists():
        ends = min(found.not_valid_after_utc for found in read_certificates(folder / CLIENTS))
        if ends <= (now or datetime.datetime.now(datetime.UTC)):
            raise QuietsumError(
                f"{folder / CLIENTS} has expired on {ends:%Y-%m-%d}; no site could show a certificate of it"
            )
    names = names_of(chain[0])
    if host in ("0.0.0.0", "::"):
        if set(names) <= set(OWN_NAMES):
            said = f"the server's certificate is for {', '.join(names)} only"
            return (f"{said}; sites on other machines will refuse it: it must hold the name or address that they dial",)
        return ()
    try:
        check_server(roots, chain, name=host, now=now)
    except QuietsumError:
        return (f"the server's certificate is for {', '.join(names)}; a site that dials {host} will refuse it",)
    return ()


def _require_belongs(folder: Path, chain: Sequence[x509.Certificate]) -> None:
    if read_server_key(folder / "server.key").public_key() != chain[0].public_key():
        raise QuietsumError(f"{folder / 'server.key'} does not belong to server.crt; put the right one back")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) if os.name == "posix" else 0o600


def _ending(what: str, until: datetime.datetime, now: datetime.datetime) -> list[str]:
    if until <= now:
        return [f"{what} has expired on {until:%Y-%m-%d}"]
    if until - now <= SOON:
        days = (until - now).days
        left = "less than a day" if days < 1 else "1 day" if days == 1 else f"{days} days"
        return [f"{what} expires on {until:%Y-%m-%d}, in {left}"]
    return []

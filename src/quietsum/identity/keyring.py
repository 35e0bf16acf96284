"""A folder of keys for a federation across machines.

::

    keys/
      ca.crt  ca.key          the authority; ca.key signs, so lock it away once the certificates are made
      server.crt  server.key  what the coordinator's SuperLink shows to sites
      clients.crt             the authority of the certificates that the SuperLink asks sites for; if omitted, none
      parties.toml            the roster: the public key of every party
      Basel/                  what one hands to Basel, by a safe way, and nothing else
        ca.crt  node.pub  node.key  node.crt

A party that made its own key sends ``node.pub`` only (:func:`admit_party`); then no private key travels, and its folder
here holds none. With an existing PKI ``ca.key`` is not here at all. ``node.crt`` is a certificate for the node key: a
caller without one from ``clients.crt``'s authority is turned away before anything is read from it. Which party a caller
is, is decided by the roster alone.

Guarantees: nothing that is here is ever overwritten; folders appear with all that is in them or not at all, and the
roster holds all old parties or all old ones and the new one, whenever the power fails; private keys are readable by
their owner only from their first byte on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

from quietsum import files
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.failpoints import reach
from quietsum.files import PRIVATE
from quietsum.identity.certificates import (
    OWN_NAMES,
    Credentials,
    check_server,
    host_names,
    make_authority,
    make_client,
    make_server,
    read_certificates,
    read_server_key,
)
from quietsum.identity.nodekeys import (
    NodeKey,
    fingerprint,
    make_node_key,
    public_line,
    read_node_key,
    read_parties,
    read_public_key,
    require_private,
)
from quietsum.ledger import fold, label

if TYPE_CHECKING:
    from cryptography import x509

__all__ = [
    "CLIENTS", "ROSTER", "SOON", "Holder", "Keyring", "Validity", "add_party", "admit_party", "check_serving",
    "folder_name", "inspect_keyring", "make_keyring", "make_site_keys",
]  # fmt: skip

PUBLIC = 0o644
ROSTER = "parties.toml"
CLIENTS = "clients.crt"
"""The file with the certificates that clients may come with."""
HEADER = "# Who may take part, by the public half of their node key. Keep this file from being changed by others.\n"
_FORBIDDEN = re.compile(r'[<>:"/\\|?*]')
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
_OURS = {"ca.crt", "ca.key", "server.crt", "server.key", ROSTER, CLIENTS}


def folder_name(party: str) -> str:
    """The party's name where it can be a folder on every system.

    >>> folder_name("Zürich Nord")
    'Zürich Nord'
    >>> folder_name("../etc")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    quietsum.errors.InvalidParameter: party = '../etc' cannot be a folder's name; leave out ...
    """
    name = label("party", party)
    stem = fold(name).split(".")[0]
    if (
        _FORBIDDEN.search(name)
        or name.startswith((".", "-"))
        or name.endswith(".")
        or stem in _RESERVED
        or fold(name) in _OURS
        or len(name.encode()) > 200
    ):
        remedy = 'leave out < > : " / \\ | ? * and a dot or dash at its beginning, and keep it short'
        raise InvalidParameter("party", party, "cannot be a folder's name", remedy)
    return name


# ---------------------------------------------------------------------------------------------------- making


def make_keyring(
    folder: Path,
    *,
    servers: Sequence[str],
    parties: Sequence[str],
    days: int = 365,
    now: datetime.datetime | None = None,
) -> None:
    """Make ``folder`` with an authority, a server certificate, and a folder with a key for each of the ``parties``."""
    names = [folder_name(party) for party in parties]
    for position, name in enumerate(names):
        _not_among(name, names[:position])
    authority = make_authority(days=days, now=now)
    server = make_server(authority, servers, days=days, now=now)
    with _new_folder(folder) as draft:
        _write(draft / "ca.key", authority.key, PRIVATE)
        _write(draft / "ca.crt", authority.certificate, PUBLIC)
        _write(draft / "server.key", server.key, PRIVATE)
        _write(draft / "server.crt", server.certificate, PUBLIC)
        _write(draft / CLIENTS, authority.certificate, PUBLIC)
        roster = HEADER
        for name in names:
            key = make_node_key()
            (draft / name).mkdir(mode=0o700)
            _fill(draft / name, authority.certificate, key)
            _certify(draft / name, name, key.public, authority, now)
            roster += _table(name, key.public)
        _write(draft / ROSTER, roster.encode(), PUBLIC)


def make_site_keys(folder: Path) -> str:
    """At a site: make ``folder`` with ``node.key`` and ``node.pub``; returns the public line."""
    key = make_node_key()
    with _new_folder(folder) as draft:
        _write(draft / "node.key", key.private, PRIVATE)
        _write(draft / "node.pub", f"{key.public}\n".encode(), PUBLIC)
    return key.public


def add_party(folder: Path, party: str) -> str:
    """Make a key and a folder for one more ``party`` and take it into the roster; returns the public line."""
    name = folder_name(party)
    with _lock(folder):
        _not_among(name, read_parties(folder / ROSTER) if (folder / ROSTER).exists() else ())
        begun = folder / name / "node.pub"
        if begun.is_file():  # as after a crash between its making and the roster
            remedy = f"take it in with: quietsum keys admit {shlex.join((str(folder), str(begun), '--party', name))}"
            raise InvalidParameter("party", name, "has a folder with a key here, and is not in the roster", remedy)
        _not_among(name, [found.name for found in folder.iterdir() if found.is_dir()], where="a folder here")
        authority = _signing(folder)
        key = make_node_key()
        with _new_folder(folder / name) as draft:
            _fill(draft, (folder / "ca.crt").read_bytes(), key)
            _certify(draft, name, key.public, authority)
        _enter(folder, name, key.public)
    return key.public


def admit_party(folder: Path, party: str, public_key: Path) -> str:
    """Take the public key that a ``party`` made itself into the roster; returns the public line.

    Its folder gets ``ca.crt`` and ``node.pub``, and ``node.crt`` where sites are asked for certificates.
    A folder that is already there stays as it is, where it holds this key
    (as after a crash between its making and the roster).
    """
    name = folder_name(party)
    if public_key.is_dir():
        raise InvalidParameter("FILE", str(public_key), "is a folder", "name the file with the public key, node.pub")
    if not public_key.is_file():
        raise InvalidParameter("FILE", str(public_key), "does not exist", "name the file that the party sent")
    key = read_public_key(public_key.read_bytes(), where=str(public_key))
    line = public_line(key)
    with _lock(folder):
        known = read_parties(folder / ROSTER) if (folder / ROSTER).exists() else {}
        _not_among(name, known)
        for other, held in known.items():
            if public_line(held) == line:
                raise InvalidParameter(
                    "key", str(public_key), f"is already that of {other}", "each party needs its own"
                )
        there = folder / name / "node.pub"
        if there.exists():
            if public_line(read_public_key(there.read_bytes(), where=str(there))) != line:
                raise InvalidParameter("party", name, f"has another key in {there}", "remove that folder first")
        else:
            _not_among(name, [found.name for found in folder.iterdir() if found.is_dir()], where="a folder here")
            authority = _signing(folder)
            with _new_folder(folder / name) as draft:
                _write(draft / "ca.crt", (folder / "ca.crt").read_bytes(), PUBLIC)
                _write(draft / "node.pub", f"{line}\n".encode(), PUBLIC)
                _certify(draft, name, line, authority)
        _enter(folder, name, line)
    return line


def _fill(folder: Path, authority: bytes, key: NodeKey) -> None:
    _write(folder / "node.key", key.private, PRIVATE)
    _write(folder / "node.pub", f"{key.public}\n".encode(), PUBLIC)
    _write(folder / "ca.crt", authority, PUBLIC)


def _signing(folder: Path) -> Credentials | None:
    """The authority that signs sites' certificates; None where a SuperLink asks for none."""
    if not (folder / CLIENTS).is_file():
        return None
    if not (folder / "ca.key").is_file():
        remedy = (
            f"bring it back for this command, or remove {CLIENTS} here and in the SuperLink's folder: then sites are "
            "asked for no certificate"
        )
        raise InvalidParameter("ca.key", str(folder / "ca.key"), "is not here to sign this site's certificate", remedy)
    return Credentials(certificate=(folder / CLIENTS).read_bytes(), key=(folder / "ca.key").read_bytes())


def _certify(
    folder: Path, party: str, line: str, authority: Credentials | None, now: datetime.datetime | None = None
) -> None:
    if authority is not None:
        key = read_public_key(line, where=f"the key of {party}")
        _write(folder / "node.crt", make_client(authority, party, key, now=now), PUBLIC)


def _not_among(name: str, others: Iterable[str], *, where: str = "in the roster") -> None:
    for other in others:
        if fold(other) == fold(name):
            problem = f"is {where} already" if other == name else f"differs from {other} only by its writing"
            raise InvalidParameter("party", name, problem, "choose another name; nothing was changed")


def _table(name: str, line: str) -> str:
    """A table of the roster. JSON and TOML quote printable text in the same way."""
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
    return f'\n[parties.{key}]\nnode_key = "{line}"\n'


def _enter(folder: Path, name: str, line: str) -> None:
    """Add one party at the end of the roster; what people wrote into it stays."""
    path = folder / ROSTER
    before = path.read_text(encoding="utf-8") if path.exists() else HEADER
    draft = folder / f".{ROSTER}.{os.getpid()}.part"
    draft.unlink(missing_ok=True)
    _write(draft, (before.rstrip("\n") + "\n" + _table(name, line)).encode(), PUBLIC)
    try:
        read_parties(draft)  # it must read back before it takes the old one's place
        files.rename(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    reach("keys:entered")


def _write(path: Path, content: bytes, mode: int) -> None:
    """A new file, synced."""
    files.write_new(path, content, mode=mode, failpoint="keys:written")


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder that is filled in the block and takes its name at the end. Raises if something is there."""
    try:
        with files.draft_folder(folder, mode=0o700, failpoint="keys") as draft:
            yield draft
    except FileExistsError:
        remedy = f"name a new one, {folder / 'keys'} for instance; nothing is ever overwritten"
        raise InvalidParameter("DIR", str(folder), "exists already", remedy) from None


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One change at a time, among processes too."""
    if not (folder / "ca.crt").is_file():
        raise InvalidParameter("DIR", str(folder), "has no ca.crt", "make one with: quietsum keys make DIR")
    try:
        import fcntl
    except ImportError:  # pragma: no cover - a system without such locks
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for left in folder.glob(".*.part"):  # of a process that died: one that is alive would hold the lock
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        yield
    finally:
        os.close(handle)


# -------------------------------------------------------------------------------------------- inspecting

SOON = datetime.timedelta(days=30)
"""A certificate that ends within this time is warned of."""


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
    """What a folder of keys holds, with warnings about what should be mended."""

    authority: Validity
    server: Validity | None
    parties: tuple[Holder, ...]
    warnings: tuple[str, ...]
    expired: bool = False


def inspect_keyring(folder: Path, *, now: datetime.datetime | None = None) -> Keyring:
    """Read every file of ``folder`` and check that they fit together. Raises if one is broken or foreign."""
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
        server = Validity(
            fingerprint=fingerprint(found), until=found.not_valid_after_utc, names=tuple(host_names(found))
        )
        _require_belongs(folder, chain)
        warnings += _ending("the server's certificate", server.until, moment)
        if min(server.until, authority.until) > moment:
            check_server(roots, chain, now=moment)
    else:
        warnings.append("there is no server.crt: no SuperLink can be started from this folder")
    roster = read_parties(folder / ROSTER) if (folder / ROSTER).exists() else {}
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
    """Raise if no site could be served with the files in ``folder``; returns warnings about what may keep sites away.

    ``host`` is where a SuperLink is to listen. Guarantees: the certificate holds now and leads to ``ca.crt``, the key
    belongs to it, and only its owner can read the key.
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
    names = host_names(chain[0])
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

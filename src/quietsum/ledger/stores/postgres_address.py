"""Where a shared ledger lies: a connection string that holds no secret.

It stands in a file beside the key on every coordinator's machine, is shown in messages and may be copied about. So a
password in it is refused; libpq finds it in a password file, or needs none with a certificate. Only settings that this
module knows are let through.

Off this machine nothing works without TLS, and TLS alone is not enough: the server that answers must prove who it is,
before a password is sent and before its word counts that an entry was recorded. A certificate proves it
(``verify-full``, ``verify-ca``), or a password that is bound to the channel (``channel_binding=require``). What libpq
would add to an address, from a service file or the environment, is judged with it.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import itertools
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, final

from quietsum.errors import QuietsumError

__all__ = ["SCHEMA", "Address", "take_schema", "unreadable"]

SCHEMA = "quietsum"
"""The schema where none is stated."""
LONGEST = 2000

_SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_KNOWN = frozenset({
    "host", "hostaddr", "port", "dbname", "user", "service", "passfile", "require_auth", "channel_binding",
    "sslmode", "sslnegotiation", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslcrldir", "sslsni",
    "ssl_min_protocol_version", "ssl_max_protocol_version", "gssencmode", "krbsrvname", "target_session_attrs",
    "load_balance_hosts", "application_name", "connect_timeout", "keepalives", "keepalives_idle",
    "keepalives_interval", "keepalives_count", "tcp_user_timeout",
})  # fmt: skip
_SHAPES = {  # a password with a / or an @ in it, not escaped in a URL, would end up in one of these
    "host": r"[^@?#\s]*",
    "port": r"[0-9,]*",
    "dbname": r"[^@:/?#=\s]*",
    "user": r"[^:/?#=\s]*",
}
_PROVEN = ("verify-ca", "verify-full")
_IN_URL = re.compile(r"(?P<before>[?&])schema=(?P<name>[^&]*)(?P<after>&|$)")
_IN_WORDS = re.compile(r"(?P<before>^| )schema *= *(?P<name>[^ ]*)(?P<after> |$)")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Address:
    """A parsed connection string.

    Guarantees: neither :attr:`name` nor any message of this module shows what could be a secret, also where a password
    with unescaped signs ended up in another part of a URL.
    """

    schema: str
    values: Mapping[str, str]

    @classmethod
    def of(cls, schema: str, found: Mapping[str, str]) -> Address:
        """The address that libpq's own parser found; refused where anything in it might be a secret."""
        for secret in _SECRETS:
            if found.get(secret):
                raise QuietsumError(
                    f"a ledger's address must not hold a {secret}: it lies in a file and is shown in messages. Leave "
                    "it out; libpq reads it from ~/.pgpass or $PGPASSFILE, from a service file (service=…), or needs "
                    "none with a client certificate (sslcert=…)"
                )
        unknown = sorted(found.keys() - _KNOWN - set(_SECRETS))
        if unknown:
            raise QuietsumError(
                f"a ledger's address does not take {', '.join(unknown)}; leave it out. "
                f"Known: {', '.join(sorted(_KNOWN))}"
            )
        for part, allowed in _SHAPES.items():
            if not re.fullmatch(allowed, found.get(part, "")):
                raise unreadable()
        return cls(schema=schema, values=MappingProxyType({name: value for name, value in found.items() if value}))

    @property
    def name(self) -> str:
        """What messages call it: the place, without anything that is no part of the place."""
        if "service" in self.values:
            return f"postgresql:service={self.values['service']} schema={self.schema}"
        host, user = self.values.get("host", self.values.get("hostaddr", "")), self.values.get("user", "")
        port = f":{self.values['port']}" if "port" in self.values else ""
        socket = f"host={host}&" if host.startswith("/") else ""
        who = f"{user}@" if user else ""
        where = "" if socket else f"[{host}]" if ":" in host else host
        return f"postgresql://{who}{where}{port}/{self.values.get('dbname', '')}?{socket}schema={self.schema}"

    def settings(self, *, read_only: bool, completed: Mapping[str, str]) -> dict[str, Any]:
        """What libpq is given: a dead peer is noticed within a minute, and off this machine the server proves itself.

        ``completed`` is this address with what libpq adds from its service file and the environment. Refused are ways
        to another machine that are not encrypted, or where anybody could answer.
        """
        given: dict[str, Any] = {
            "connect_timeout": "10", "keepalives_idle": "20", "keepalives_interval": "10", "keepalives_count": "3",
            "tcp_user_timeout": "50000", "application_name": "quietsum ledger",
        }  # fmt: skip
        if not read_only:
            given["target_session_attrs"] = "read-write"
        if not _stays_here(completed):
            given["sslmode"] = self._mode(completed)
            given["gssencmode"] = "disable"  # with a ticket at hand libpq would prefer it to TLS, which we ask for
        return {**given, **self.values, "client_encoding": "UTF8"}

    def _mode(self, completed: Mapping[str, str]) -> str:
        mode = self.values.get("sslmode") or completed.get("sslmode", "")
        if "sslmode" not in self.values and mode in ("", "prefer"):  # what libpq does where nobody says anything
            mode = "verify-full"
        if mode == "require" and completed.get("channel_binding") != "require":
            raise QuietsumError(
                f"with sslmode=require anybody could answer for {self.name}; set sslmode=verify-full and "
                "sslrootcert=… in the ledger's address, or channel_binding=require beside it, where the role has a "
                "SCRAM password"
            )
        if mode not in (*_PROVEN, "require"):
            raise self._in_the_clear()
        return mode

    def check_encryption(self, address: str, *, encrypted: bool) -> None:
        """Refuse a connection in the clear to another machine; ``address`` is empty for a local socket."""
        if encrypted or not address or address.startswith("/") or _is_loopback(address):
            return
        raise self._in_the_clear()

    def _in_the_clear(self) -> QuietsumError:
        return QuietsumError(
            f"the connection to {self.name} is not encrypted; set sslmode=verify-full and sslrootcert=… in the "
            "ledger's address, and ssl = on at the server"
        )


def take_schema(text: str) -> tuple[str, str]:
    """``schema=…``, which is ours, and the rest, which is libpq's.

    >>> take_schema("postgresql://ward@db.example/books?schema=heart&sslmode=verify-full")
    ('heart', 'postgresql://ward@db.example/books?sslmode=verify-full')
    >>> take_schema("service=books")
    ('quietsum', 'service=books')
    """
    text = text.strip()
    if not 0 < len(text) <= LONGEST or not text.isprintable():
        raise unreadable()
    is_url = text.startswith(("postgresql://", "postgres://"))
    if is_url and " " in text:
        raise unreadable()
    found = (_IN_URL if is_url else _IN_WORDS).search(text)
    if found is None:
        return SCHEMA, text
    name = found["name"]
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name) or name.startswith("pg_"):
        raise QuietsumError(
            "the schema of a ledger is named with small letters, digits and underscores, such as schema=quietsum"
        )
    joint = found["before"] if found["after"] else ""
    return name, text[: found.start()] + joint + text[found.end() :]


def _stays_here(completed: Mapping[str, str]) -> bool:
    """Whether all of several hosts are this machine; as in libpq, a number counts before the name in its place."""
    names, numbers = (completed.get(part, "").split(",") for part in ("host", "hostaddr"))
    places = [number or name for name, number in itertools.zip_longest(names, numbers, fillvalue="")]
    return all(not place or place.startswith("/") or place == "localhost" or _is_loopback(place) for place in places)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def unreadable() -> QuietsumError:
    """The error does not quote the address: any part of it may be a secret."""
    return QuietsumError(
        "this is no address of a PostgreSQL ledger; write one line such as "
        "postgresql://user@host:5432/database?sslmode=verify-full, without a password"
    )

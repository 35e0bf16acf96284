"""Who may ask the dashboard, and how much: one guard in front of every page and file.

A request is refused with one word, before anything of the workspace is read, unless all of this holds:

* it only reads: GET or HEAD, without a body. The dashboard has no route that writes.
* its ``Host`` is a name under which the dashboard was opened. A page on the web can make a browser resolve its own name
  to 127.0.0.1 (DNS rebinding); the browser then still sends that name.
* it does not come from another site: no foreign ``Origin``, no ``Sec-Fetch-Site`` but same-origin or none.
* where there is a token, it brings it: once in the address, afterwards in a cookie that scripts cannot read and that no
  other site can cause to be sent. Comparisons take the same time however much of a token is right.
* it is short, and not one too many at a time.

Answers carry a content-security policy under which nothing is loaded from elsewhere and no script stands in a page.
"""

from __future__ import annotations

import dataclasses
import hmac
import ipaddress
import logging
import secrets
from collections.abc import Iterable
from typing import final
from urllib.parse import parse_qsl, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["POLICY", "SANDBOX", "DashboardAccess", "Guard"]

log = logging.getLogger(__name__)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""What a browser may do with a page."""
SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"
"""What a browser may do with a report, a file that lies in the workspace: show it, as a page of no site."""
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"cache-control", b"no-store"),
)
LONGEST_PATH, LONGEST_QUERY, LONGEST_HEADERS = 512, 2048, 8192
MOST_REQUESTS = 48
"""Requests that are answered at a time, live streams included."""
COOKIE = "quietsum"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class DashboardAccess:
    """Under which ``hosts`` (as in the Host header) the dashboard answers, and the ``token`` it asks for; empty: none.

    ``operator`` opens the pages about single parties. :meth:`for_address` makes one that fits an address.
    """

    hosts: frozenset[str]
    token: str = ""
    operator: bool = False
    cookie: str = dataclasses.field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    port: int = 0

    @classmethod
    def for_address(cls, host: str, port: int, *, operator: bool = False, names: Iterable[str] = ()) -> DashboardAccess:
        """With a random token wherever others can reach the address, and for the operator's pages."""
        local = is_loopback_host(host)
        known = {"localhost", "127.0.0.1", "[::1]"} if local else set()
        known |= {_bracket(host), *names}
        hosts = {f"{name.lower()}:{port}" for name in known}
        if port == 80:
            hosts |= {name.lower() for name in known}
        token = "" if local and not operator else secrets.token_urlsafe(32)
        return cls(hosts=frozenset(hosts), token=token, operator=operator, port=port)

    def accepts(self, given: str) -> bool:
        """Whether ``given`` is the token."""
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

    def knows(self, cookie: str) -> bool:
        """Whether ``cookie`` is the one that was set after the token was given."""
        return hmac.compare_digest(cookie.encode(errors="replace"), self.cookie.encode())


def is_loopback_host(host: str) -> bool:
    """Whether no other machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


@final
class Guard:
    """The application behind the checks above."""

    def __init__(self, app: ASGIApp, access: DashboardAccess) -> None:
        self._app, self._access = app, access
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        if self._open >= MOST_REQUESTS:
            await _refuse(send, 503, "busy", retry=True)
            return
        self._open += 1
        try:
            await self._answer(scope, receive, send)
        finally:
            self._open -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        status = self._look(scope, headers)
        if status:
            await _refuse(send, status, "refused")
            return
        if self._access.token and not self._has_cookie(headers):
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            given = [value for name, value in query if name == "token"]
            if len(given) != 1 or not self._access.accepts(given[0]):
                await _refuse(send, 401, "refused: open the address that quietsum serve has printed")
                return
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            await self._let_in(scope, send, rest)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in HEADERS if one[0] not in own)]
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _look(self, scope: Scope, headers: list[tuple[bytes, bytes]]) -> int:
        """The status with which a request is refused; 0 if it is not."""
        if scope["method"] not in ("GET", "HEAD"):
            return 405
        if len(scope.get("raw_path") or scope["path"]) > LONGEST_PATH or len(scope["query_string"]) > LONGEST_QUERY:
            return 414
        if sum(len(name) + len(value) for name, value in headers) > LONGEST_HEADERS:
            return 431
        found: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            found.setdefault(name, []).append(value)
        if any(value != b"0" for value in found.get(b"content-length", ())) or b"transfer-encoding" in found:
            return 413
        hosts = [host.decode("latin-1").lower() for host in found.get(b"host", ())]
        if len(hosts) != 1 or hosts[0] not in self._access.hosts:
            return 421
        own = {f"http://{hosts[0]}", f"https://{hosts[0]}"}
        if any(origin.decode("latin-1").lower() not in own for origin in found.get(b"origin", ())):
            return 403
        if any(site not in (b"same-origin", b"none") for site in found.get(b"sec-fetch-site", ())):
            return 403
        return 0

    def _has_cookie(self, headers: list[tuple[bytes, bytes]]) -> bool:
        wanted = f"{COOKIE}-{self._access.port}"
        for name, value in headers:
            if name == b"cookie":
                for part in value.decode("latin-1").split(";"):
                    key, _, text = part.strip().partition("=")
                    if key == wanted and self._access.knows(text):
                        return True
        return False

    async def _let_in(self, scope: Scope, send: Send, rest: str) -> None:
        """Keep a cookie instead of the token, which then leaves the address, and with it the browser's history."""
        path = "/" + scope["path"].lstrip("/")  # a second slash would name another host
        place = path.encode("ascii", "ignore").decode() + (f"?{rest}" if rest else "")
        cookie = f"{COOKIE}-{self._access.port}={self._access.cookie}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"location", place.encode("latin-1")), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": [*headers, *HEADERS]})
        await send({"type": "http.response.body", "body": b""})


async def _refuse(send: Send, status: int, word: str, *, retry: bool = False) -> None:
    body = f"{word}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), *HEADERS]
    if retry:
        headers.append((b"retry-after", b"2"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

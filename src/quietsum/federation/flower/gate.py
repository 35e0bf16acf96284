"""What stands between the world and a SuperLink.

All interfaces of a SuperLink share one port, and the operator's asks for no caller's identity: where sites can reach
the port, so can anybody, to register a key of his own, to stop a run, to claim a coordinator's work. So ours listens on
two sockets. The public one knows the eight calls that our nodes make and nothing else, and takes them from the keys of
the roster; Flower then checks the signature. The other interfaces live on a loopback socket and ask for a secret.

The roster is kept here because Flower never takes a key back that was taken off its register once: one run with a
short roster would shut the others' sites out for good.

The gate also keeps the disk from being filled: nothing is taken from sites while less than a floor is free, so that
the coordinator, whose ledger stands on the same disk more often than not, can always write it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, final

from quietsum.federation.flower.door import ADMIT
from quietsum.federation.flower.parcel import CHUNK, INLINE

__all__ = [
    "CALL_LIMIT",
    "DISK_FLOOR",
    "DISK_FULL",
    "KEY_HEADER",
    "OBJECT_LIMIT",
    "REQUEST_LIMIT",
    "ROSTER_PATH",
    "SECRET_HEADER",
    "SIGNATURE_HEADER",
    "TIME_HEADER",
    "FrontGate",
]

SECRET_HEADER = "quietsum-secret"
KEY_HEADER = "flwr-public-key"
"""Where Flower's nodes put their public key: base64 of its PEM text."""
TIME_HEADER, SIGNATURE_HEADER = "flwr-timestamp", "flwr-signature"
"""What they sign with it: a time, and nothing else of the request."""
ROSTER_PATH = "/quietsum/roster"
REQUEST_LIMIT = 2 * CHUNK
"""Bytes of an answer, or of a request by the private socket: one object and its wrapping."""
OBJECT_LIMIT = CHUNK + INLINE
"""Bytes of a request by which a site hands over one object: a chunk or a root, with its wrapping."""
CALL_LIMIT = INLINE
"""Bytes of any other request of a site's; the longest announces a reply and names its chunks."""
DISK_FLOOR = 512 * 1024 * 1024
"""Bytes that stay free on a SuperLink's disk, unless said otherwise."""
DISK_FULL = 507
_PUSH_OBJECT = "/v1/fleet/push-object"
_PUSHES = frozenset(f"/v1/{side}/push-{what}" for side in ("fleet", "runtime") for what in ("object", "messages"))
_SAY_AGAIN = 60.0
_OPERATORS = 512
_log = logging.getLogger("quietsum")
_FLEET = frozenset(
    f"/v1/fleet/{call}"
    for call in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "pull-object",
        "push-object",
        "confirm-message-received",
    )
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@final
class FrontGate:
    """Stands before a SuperLink's three interfaces (ASGI).

    Guarantees: a request that came in by the public socket reaches one of the eight Fleet calls, and does so in the
    name of a key of the roster whose holder has signed its time (``signed``), or reaches nothing, and nothing of its
    body is read; one that came in by the private socket carries the secret; no body is longer than its limit
    (``OBJECT_LIMIT``, ``CALL_LIMIT``, by the private socket ``REQUEST_LIMIT``) or takes longer than ``patience``
    seconds. While ``free()``, the bytes that are left on the disk, is below ``floor``, sites
    hand nothing over (507); what is on its way at that moment, an object for each connection, still comes in.
    """

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        *,
        private: tuple[str, int],
        secret: str,
        patience: float = 120.0,
        free: Callable[[], int] | None = None,
        floor: int = DISK_FLOOR,
        signed: Callable[[bytes, bytes, bytes], bool] | None = None,
    ) -> None:
        self._app, self._private, self._secret, self._patience = app, private, secret.encode(), patience
        self._free, self._floor, self._reported = free, floor, float("-inf")
        self._roster: frozenset[bytes] | None = None
        self._signed = signed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request: turned away (401, 404, 408, 412, 413, 503, 507), or handed on with its whole body."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        private = tuple(scope.get("server") or ()) == self._private
        given = _headers(scope, SECRET_HEADER)
        if private and not (len(given) == 1 and hmac.compare_digest(given[0], self._secret)):
            await _answer_here(send, 404)
            return
        if not private and (scope["method"] != "POST" or scope["path"] not in _FLEET):
            await _answer_here(send, 404)
            return
        if not private and self._roster is None:
            await _answer_here(send, 503)  # the roster has not come yet; come again
            return
        keys = _headers(scope, KEY_HEADER)
        if not private and not (len(keys) == 1 and keys[0] in (self._roster or ())):
            await _answer_here(send, 412, b'{"code": 2004, "message": "This key is not on the roster."}')
            return
        if not private and not self._is_signed(scope, keys[0]):
            await _answer_here(send, 401, b'{"detail": "Invalid SuperNode authentication"}')
            return
        if (admit := scope.get(ADMIT)) is not None:  # a stranger no more
            admit("" if private else keys[0].decode("latin-1"), _OPERATORS if private else None)
        if scope["path"] in _PUSHES and self._disk_is_full():  # also where sites would be asked for what cannot come in
            await _answer_here(send, DISK_FULL)  # before its body is read; come again
            return
        limit = REQUEST_LIMIT if private else OBJECT_LIMIT if scope["path"] == _PUSH_OBJECT else CALL_LIMIT
        if _read_length(scope) > limit:
            await _answer_here(send, 413)
            return
        try:
            body = await asyncio.wait_for(_body(receive, limit), self._patience)
        except (_TooLong, TimeoutError) as problem:
            await _answer_here(send, 413 if isinstance(problem, _TooLong) else 408)
            return
        if body is None:
            return
        if private and scope["path"] == ROSTER_PATH:
            await _answer_here(send, 200 if self._renew(body) else 400)
            return
        kept = [body]

        async def once() -> MutableMapping[str, Any]:
            if kept:
                return {"type": "http.request", "body": kept.pop(), "more_body": False}
            return await receive()  # what is left to hear of is that the other side went away

        await self._app(scope, once, send)

    def _is_signed(self, scope: Scope, key: bytes) -> bool:
        """Whether the key's holder speaks: asked before a body is read, since anybody may know a public key."""
        if self._signed is None:
            return True
        moment, signature = _headers(scope, TIME_HEADER), _headers(scope, SIGNATURE_HEADER)
        return len(moment) == len(signature) == 1 and self._signed(key, moment[0], signature[0])

    def _disk_is_full(self) -> bool:
        if self._free is None or (left := self._free()) >= self._floor:
            return False
        if time.monotonic() - self._reported > _SAY_AGAIN:
            self._reported = time.monotonic()
            _log.warning(
                "%d MiB are free on the SuperLink's disk; below %d MiB nothing is taken from sites: make room",
                left // 2**20,
                self._floor // 2**20,
            )
        return True

    def _renew(self, body: bytes) -> bool:
        try:
            found = json.loads(body)
        except ValueError:
            return False
        if not isinstance(found, list) or not all(isinstance(key, str) and key for key in found):
            return False
        self._roster = frozenset(key.encode() for key in found)
        return True


class _TooLong(Exception):
    pass


async def _body(receive: Receive, limit: int) -> bytes | None:
    """The whole body of a request; None where the other side went away."""
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return None
        body += event.get("body", b"")
        if len(body) > limit:
            raise _TooLong
        if not event.get("more_body", False):
            return bytes(body)


def _read_length(scope: Scope) -> int:
    """The length that a request states for its body; 0 where it states none."""
    found = _headers(scope, "content-length")
    return int(found[0]) if found and found[0].isdigit() else 0


def _headers(scope: Scope, name: str) -> list[bytes]:
    return [value for found, value in scope["headers"] if found == name.encode()]


async def _answer_here(send: Send, status: int, body: bytes = b"") -> None:
    headers = [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

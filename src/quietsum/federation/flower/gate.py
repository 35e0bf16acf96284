"""What stands between the world and a SuperLink.

All interfaces of a SuperLink share one port, and the operator's asks nobody who they are: where sites can reach the
port, so can anybody, to register a key of his own, to stop a run, to claim a coordinator's work. So ours listens on two
sockets. The public one knows the eight calls that our nodes make and nothing else, and takes them from the keys of the
roster; Flower then checks the signature. The other interfaces live on a loopback socket and ask for a secret.

The roster is kept here because Flower never takes a key back that was taken off its register once: one run with a
short roster would shut the others' sites out for good.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, final

from quietsum.federation.flower.parcel import CHUNK

__all__ = ["KEY_HEADER", "REQUEST_LIMIT", "ROSTER_PATH", "SECRET_HEADER", "Gate"]

SECRET_HEADER = "quietsum-secret"
KEY_HEADER = "flwr-public-key"
"""Where Flower's nodes put their public key: base64 of its PEM text."""
ROSTER_PATH = "/quietsum/roster"
REQUEST_LIMIT = 2 * CHUNK
"""Bytes of a request or an answer: one object and its wrapping."""
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
class Gate:
    """Stands before a SuperLink's three interfaces (ASGI).

    Guarantees: a request that came in by the public socket reaches one of the eight Fleet calls, and does so in the
    name of a key of the roster, or reaches nothing; one that came in by the private socket carries the secret; no
    body is longer than ``REQUEST_LIMIT`` or takes longer than ``patience`` seconds.
    """

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        *,
        private: tuple[str, int],
        secret: str,
        patience: float = 120.0,
    ) -> None:
        self._app, self._private, self._secret, self._patience = app, private, secret.encode(), patience
        self._roster: frozenset[bytes] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request: turned away (404, 408, 412, 413, 503), or handed on with its whole body."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        private = tuple(scope.get("server") or ()) == self._private
        given = _headers(scope, SECRET_HEADER)
        if private and not (len(given) == 1 and hmac.compare_digest(given[0], self._secret)):
            await _answered_here(send, 404)
            return
        if not private and (scope["method"] != "POST" or scope["path"] not in _FLEET):
            await _answered_here(send, 404)
            return
        if not private and self._roster is None:
            await _answered_here(send, 503)  # nobody has said yet who gets in; come again
            return
        keys = _headers(scope, KEY_HEADER)
        if not private and not (len(keys) == 1 and keys[0] in (self._roster or ())):
            await _answered_here(send, 412, b'{"code": 2004, "message": "This key is not on the roster."}')
            return
        try:
            body = await asyncio.wait_for(_body(receive), self._patience)
        except (_TooLong, TimeoutError) as problem:
            await _answered_here(send, 413 if isinstance(problem, _TooLong) else 408)
            return
        if body is None:
            return
        if private and scope["path"] == ROSTER_PATH:
            await _answered_here(send, 200 if self._renewed(body) else 400)
            return
        kept = [body]

        async def once() -> MutableMapping[str, Any]:
            if kept:
                return {"type": "http.request", "body": kept.pop(), "more_body": False}
            return await receive()  # what is left to hear of is that the other side went away

        await self._app(scope, once, send)

    def _renewed(self, body: bytes) -> bool:
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


async def _body(receive: Receive) -> bytes | None:
    """The whole body of a request; None where the other side went away."""
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return None
        body += event.get("body", b"")
        if len(body) > REQUEST_LIMIT:
            raise _TooLong
        if not event.get("more_body", False):
            return bytes(body)


def _headers(scope: Scope, name: str) -> list[bytes]:
    return [value for found, value in scope["headers"] if found == name.encode()]


async def _answered_here(send: Send, status: int, body: bytes = b"") -> None:
    headers = [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

"""A site's end. The process of a site *is* the node: it polls, answers in this process, and fetches no code ever.

A plain SuperNode downloads the server's app and runs it beside the site's data. Ours knows one thing: bytes come in, a
function of the site's own makes bytes of them, those go out. It calls out only, so a site opens no port. It comes back
by itself whenever the SuperLink was away, and when asked to end, it ends after the answer that is being worked on.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, final

from quietsum import failpoints
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.federation.flower.parcel import LIMIT, Malformed, Opening, Parcel, cut
from quietsum.federation.flower.replies import TOO_LARGE
from quietsum.federation.flower.superlink import is_loopback
from quietsum.identity import read_node_key

if TYPE_CHECKING:
    import ssl

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from quietsum.federation.flower.flwr_node import Incoming, NodeEnd
    from quietsum.federation.remote.transport import Answer

__all__ = ["LIMIT", "NodeRefused", "serve_node"]

_BUSY, _IDLE, _AWAKE = 0.2, 2.0, 5.0  # a poll costs a SuperLink some 10 ms: quick while messages come, then slower
_BACK_OFF, _LINGER = 15.0, 5.0
_SAY_AGAIN = 300.0
_log = logging.getLogger("quietsum")


class NodeRefused(QuietsumError):
    """A SuperLink that does not let this node in, and will not until somebody changes something."""

    exit_code = 1


def serve_node(
    answer: Answer,
    *,
    address: str,
    root_certificate: Path | None,
    node_key: Path,
    insecure: bool = False,
    stop: threading.Event,
    limit: int = LIMIT,
) -> None:
    """Answer what a coordinator sends by way of the SuperLink at ``address`` (host:port), until ``stop`` is set.

    ``root_certificate`` is the authority that signed the SuperLink's certificate, ``node_key`` this site's private key
    (OpenSSH, EC). Where a certificate for that key lies beside it (``node.crt`` beside ``node.key``) it is shown to the
    SuperLink. ``insecure=True`` does without TLS, on loopback only.

    Guarantees: nothing that arrives is executed; content longer than ``limit`` is not fetched; ``answer`` is called for
    one message at a time, and once for each that arrives; a reply whose sending fails is sent again for as long as
    somebody may be waiting for it. :class:`NodeRefused` where the SuperLink does not know the key.
    """
    from quietsum.federation.flower.flwr_node import NodeEnd

    host = address.rpartition(":")[0].strip("[]")
    if insecure and not is_loopback(host):
        raise InvalidParameter("insecure", True, f"would send this site's updates to {host} in the clear", "use TLS")
    if not insecure and root_certificate is None:
        raise InvalidParameter(
            "root_certificate", None, "is needed", "take ca.crt from the operator of the coordinator"
        )
    tls = None if insecure or root_certificate is None else _trust(root_certificate)
    key = read_node_key(node_key)
    if tls is not None:
        _show(tls, node_key.with_suffix(".crt"), key)
    end, beats = NodeEnd(address, key, tls), NodeEnd(address, key, tls, seconds=5.0)
    try:
        _Node(end, beats, answer, address, stop, limit).serve()
    finally:
        end.close()
        beats.close()


@final
class _Node:
    def __init__(
        self, end: NodeEnd, beats: NodeEnd, answer: Answer, address: str, stop: threading.Event, limit: int
    ) -> None:
        self._end, self._beats, self._answer = end, beats, answer
        self._address, self._stop, self._limit = address, stop, limit
        self._sent: tuple[Incoming, str] | None = None
        self._complained: tuple[object, float] | None = None

    def serve(self) -> None:
        from quietsum.federation.flower.flwr_calls import CallRefused, Unreachable, Untrusted

        failures = 0
        while not self._stop.is_set():
            try:
                self._end.activate()
                self._beats.take_over(self._end)
                _log.info("connected with the SuperLink at %s", self._address)
                failures, self._complained = 0, None
                self._serve_connection()
            except Untrusted as problem:
                said = f"what answers at {self._address} is not taken for the SuperLink: {problem.words}"
                self._complain(problem.words, said)
            except Unreachable as problem:
                self._complain(Unreachable, f"the SuperLink at {self._address} does not answer ({problem})")
            except CallRefused as refused:
                if refused.unknown_key:
                    raise NodeRefused(
                        f"the SuperLink at {self._address} does not know this node's key (Flower's error 2004); "
                        "have the coordinator take this site's node.pub into its roster"
                    ) from None
                said = f"the SuperLink at {self._address} refuses: {refused}{_clocks(refused)}"
                self._complain(refused.status, said)
            failures += 1
            self._stop.wait(min(_BACK_OFF, 0.25 * 1.7 ** min(failures, 12)) * random.uniform(0.7, 1.0))

    def _complain(self, what: object, words: str) -> None:
        """Say it at once where it is something new, and again every few minutes for as long as it lasts."""
        now = time.monotonic()
        if self._complained is None or self._complained[0] != what or now - self._complained[1] > _SAY_AGAIN:
            _log.warning("%s; trying on", words)
            self._complained = (what, now)

    def _serve_connection(self) -> None:
        """Until the connection is lost (an exception) or the end is wanted."""
        over = threading.Event()
        beating = threading.Thread(target=self._beat, args=(over,), name="quietsum-heartbeat", daemon=True)
        beating.start()
        pace, last = _BUSY, time.monotonic()
        try:
            while not self._stop.is_set():
                letter = self._end.receive()
                if letter is not None:
                    self._handle(letter)
                    pace, last = _BUSY, time.monotonic()
                    continue
                if time.monotonic() - last > _AWAKE:
                    pace = min(_IDLE, pace * 1.25)
                self._stop.wait(pace * random.uniform(0.8, 1.0))
        finally:
            over.set()
            if self._stop.is_set():
                self._leave()

    def _leave(self) -> None:
        """Go offline, once the last reply was fetched: a SuperLink drops the replies of nodes that have left."""
        from quietsum.federation.flower.flwr_calls import CallRefused, Unreachable

        deadline = time.monotonic() + _LINGER
        try:
            while self._sent is not None and self._beats.pull(*self._sent) is not None:
                if time.monotonic() > deadline:
                    return  # missed heartbeats will tell
                time.sleep(0.1)
        except CallRefused:
            pass  # it is not there any more
        except Unreachable:
            return
        try:
            self._beats.deactivate()
        except (CallRefused, Unreachable):
            _log.debug("the SuperLink could not be reached to say that this node leaves")

    def _beat(self, over: threading.Event) -> None:
        from quietsum.federation.flower.flwr_calls import CallRefused, Unreachable
        from quietsum.federation.flower.flwr_node import HEARTBEAT

        while not over.wait(HEARTBEAT * random.uniform(0.6, 0.8)):
            try:
                self._beats.heartbeat()
            except (CallRefused, Unreachable) as problem:  # the polling sees the same and deals with it
                _log.debug("a heartbeat failed: %s", problem)

    def _handle(self, letter: Incoming) -> None:
        from quietsum.federation.flower.flwr_calls import MESSAGE_TYPE, CallRefused

        deadline = time.monotonic() + letter.lasting
        if letter.kind != MESSAGE_TYPE or letter.declared < 0:
            _log.warning("a message of another kind (%.40r) came and gets no answer", letter.kind)
            return
        if letter.declared > self._limit:
            _log.warning("a message of %d bytes came; this site takes %d", letter.declared, self._limit)
            self._reply(letter, cut(b""), deadline, problem=f"the site takes at most {self._limit} bytes")
            return
        try:
            content = self._fetch(letter, deadline)
        except (Malformed, CallRefused) as problem:
            _log.warning("a message could not be read: %s", problem)
            return
        if content is None:
            _log.warning("a message did not arrive as a whole in time")
            return
        failpoints.reach("flower:answer")
        try:
            reply = self._answer(content)
        except Exception:
            _log.exception("a message could not be answered")
            self._reply(letter, cut(b""), deadline, problem="the site could not answer")
            return
        if len(reply) > self._limit:
            _log.warning("a reply of %d bytes is longer than the limit of %d", len(reply), self._limit)
            self._reply(letter, cut(b""), deadline, problem=f"the reply is too large: {len(reply)} bytes")
            return
        self._reply(letter, cut(reply), deadline)

    def _fetch(self, letter: Incoming, deadline: float) -> bytes | None:
        """The content of a message; None where it is not there in time."""
        from quietsum.federation.flower.flwr_calls import Unreachable

        opening = Opening(letter.name, declared=letter.declared)
        wait = 0.05
        while (name := opening.wanted) is not None:
            try:
                found = self._end.pull(letter, name)
            except Unreachable:
                found = None
            if found is not None:
                opening.take(found)
                wait = 0.05
                continue
            if time.monotonic() > deadline or self._stop.wait(wait):
                return None
            wait = min(2.0, wait * 1.5)
        content = opening.content()
        try:
            self._end.confirm(letter)
        except Unreachable:
            _log.debug("a message could not be confirmed")
        return content

    def _reply(self, letter: Incoming, parcel: Parcel, deadline: float, *, problem: str = "") -> None:
        """Send a reply, again and again until it is there or no longer waited for."""
        from quietsum.federation.flower.flwr_calls import CallRefused, NotStored, Unreachable

        wait, session, forgotten = 0.2, "", ""
        missing: set[str] = set()
        while True:
            try:
                if not session:
                    found, session = self._end.announce(letter, parcel, problem=problem)
                    missing = set(found) if session != forgotten else set()  # all was there, and has been fetched
                for name in (*parcel.chunks, parcel.root):
                    if name in missing:
                        failpoints.reach("flower:push-object")
                        self._end.push(letter, session, name, parcel.object(name))
                        missing.discard(name)
                self._sent = (letter, parcel.root)
                return
            except NotStored as gone:  # it is not known there any more: announce it anew
                session, forgotten, reason = "", session, str(gone)
            except CallRefused as refused:
                if refused.status == TOO_LARGE and not problem:
                    _log.warning("a reply of %d bytes is not taken (%s)", parcel.length, refused)
                    parcel, problem, session = cut(b""), f"the reply is too large: {parcel.length} bytes", ""
                    continue
                _log.warning("a reply is not wanted any more (%s)", refused)
                return
            except Unreachable as gone:  # what was announced stays so, and goes on where it stopped
                reason = str(gone)
            if time.monotonic() + wait > deadline:
                _log.warning("a reply could not be sent in time (%s)", reason)
                return
            time.sleep(wait * random.uniform(0.7, 1.0))  # an answer is finished, also where the end is wanted
            wait = min(5.0, wait * 1.7)


def _clocks(refused: object) -> str:
    skew = getattr(refused, "skew", 0.0)
    if abs(skew) < 4:
        return ""
    way = "ahead of" if skew > 0 else "behind"
    return f"; this machine's clock is {abs(skew):.0f} s {way} the coordinator's: set both by a time server"


def _show(tls: ssl.SSLContext, certificate: Path, key: EllipticCurvePrivateKey) -> None:
    from quietsum.federation.flower.flwr_calls import show_certificate

    try:
        show_certificate(tls, certificate.read_bytes(), key)
    except FileNotFoundError:
        return  # most SuperLinks ask for none; one that does says so
    except (OSError, ValueError) as problem:
        raise InvalidParameter(
            "node_key", str(certificate), f"is no certificate for the node key beside it ({problem})",
            "take node.crt anew from the operator of the coordinator, or remove it if no certificate is asked for",
        ) from None  # fmt: skip


def _trust(root_certificate: Path) -> ssl.SSLContext:
    from quietsum.federation.flower.flwr_calls import trust_keys

    try:
        return trust_keys(root_certificate.read_text(encoding="ascii"))
    except (OSError, ValueError) as problem:
        raise InvalidParameter(
            "root_certificate", str(root_certificate), f"cannot be used ({problem})", "it is ca.crt, a PEM file"
        ) from None

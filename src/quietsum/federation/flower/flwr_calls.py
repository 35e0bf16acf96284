"""One call to a SuperLink: bounded in bytes and seconds, over TLS that pins or trusts, with two ways to fail.

Flower has three HTTP interfaces, protobuf over POST, all on one port of its SuperLink:

- *Fleet*, for nodes: activate, heartbeat, pull a message, push a reply. Each request carries a time, signed with the
  node's registered key (:mod:`.flwr_node`);
- *Runtime*, for the process that runs an app: claim a task, send messages to nodes, pull replies;
- *Control*, for the operator: register a node's key, start a run (:mod:`.flwr_coordinator`, with Runtime). **It does
  not ask for a caller's identity**, which is why there is a :class:`~quietsum.federation.flower.gate.FrontGate`
  (:mod:`.flwr_server`).

The four ``flwr_`` modules are the only ones that know Flower's insides: one pinned version, and one contract test that
says what of it we rely on. No call fetches or runs an app: a run is a name under which messages are kept. Flower's own
loops are not used either: they wait for minutes, end the process, or read answers of any size. What is used: its
message definitions, its three HTTP clients, its way to sign, its SuperLink.
"""

from __future__ import annotations

import contextlib
import dataclasses
import email.utils
import json
import os
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, final

import httpx
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PullObjectResponse
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

from quietsum.federation.flower.gate import DISK_FULL, REQUEST_LIMIT
from quietsum.federation.flower.parcel import Parcel

__all__ = [
    "MESSAGE_TYPE",
    "SUPERLINK_NODE",
    "Access",
    "BoundedSender",
    "CallRefused",
    "NotStored",
    "RunLost",
    "Unreachable",
    "Untrusted",
    "call_superlink",
    "empty_message",
    "now",
    "object_in",
    "object_tree",
    "pin",
    "read_length",
    "show_certificate",
    "trust_keys",
    "url_of",
]

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
MESSAGE_TYPE = "query.quietsum"
SUPERLINK_NODE = 1
_ACTIVATION_FAILED = 2004
_NOT_YET, _EXPIRED, _WRONG_NAME, _WRONG_ADDRESS = 9, 10, 62, 64  # OpenSSL's numbers (x509_vfy.h)
_UNSIGNED = (2, 7, 18, 19, 20, 21)


class Unreachable(Exception):
    """No answer came, or not in time, or not in Flower's language. Worth another try."""


class NotStored(Unreachable):
    """An object was not taken: it was not announced, or all of it is there and was fetched."""


class Untrusted(Unreachable):
    """Somebody answers, and is not to be spoken to: TLS failed. ``words`` tell a site why, and what to do."""

    def __init__(self, text: str, words: str) -> None:
        self.words = words
        super().__init__(text)


class CallRefused(Exception):
    """The SuperLink answered no. ``code`` is Flower's own number for it (0: none), ``skew`` how many seconds this
    machine's clock is ahead of the SuperLink's."""

    def __init__(self, status: int, code: int, text: str, skew: float) -> None:
        self.status, self.code, self.text, self.skew = status, code, text, skew
        super().__init__(f"HTTP {status}" + (f", Flower's error {code}" if code else "") + f": {text}")

    @property
    def unknown_key(self) -> bool:
        """Whether it said so because it does not know the key that signed."""
        return self.status == 412 and self.code == _ACTIVATION_FAILED


class RunLost(Exception):
    """The SuperLink has given up the run that this process had claimed."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Access:
    """Where the operator's side of a SuperLink is, and what opens it.

    ``certificate`` is the server's own certificate (PEM): a coordinator on its machine pins that very one, and
    the names in it do not matter. Empty: no TLS, on loopback only. ``secret`` is empty for a SuperLink that is not
    ours.
    """

    address: str
    secret: str = dataclasses.field(default="", repr=False)
    certificate: str = dataclasses.field(default="", repr=False)


def trust_keys(root_certificate: str) -> ssl.SSLContext:
    """TLS towards a server whose certificate one of these PEM authorities signed; the system's are not asked."""
    return ssl.create_default_context(cadata=root_certificate)


def show_certificate(context: ssl.SSLContext, certificate: bytes, key: ec.EllipticCurvePrivateKey) -> None:
    """Have TLS show a certificate (PEM) for ``key`` where the server asks for one.

    Python's TLS reads keys from files only: this one is in memory, or where there are none such, the owner's alone and
    gone when it was read.
    """
    text = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    handle, path = -1, ""
    try:
        if hasattr(os, "memfd_create"):
            handle = os.memfd_create("node")
            where = f"/proc/self/fd/{handle}"
        else:  # pragma: no cover - not Linux
            handle, where = tempfile.mkstemp()
            path = where
        os.write(handle, certificate.rstrip() + b"\n" + text)
        context.load_cert_chain(where)
    finally:
        if handle >= 0:
            os.close(handle)
        if path:  # pragma: no cover - not Linux
            os.unlink(path)


def pin(certificate: str) -> ssl.SSLContext:
    """TLS towards the one server that holds the key of this PEM certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is the name
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    end = certificate.find("-----END CERTIFICATE-----")
    context.load_verify_locations(cadata=certificate[: end + len("-----END CERTIFICATE-----")] + "\n")
    return context


@final
class BoundedSender:
    """The last interceptor of a client: sends a request itself, bounded in bytes and in seconds.

    Flower's own sending reads an answer of any size, and its time-outs are per read: a server that drips is never
    timed out. Guarantees: no connection is closed under a thread that is using it. Its number would go to the next file
    that the process opens, a ledger say, and the other thread's last TLS record into that file.
    """

    def __init__(
        self, tls: ssl.SSLContext | None, *, seconds: float, proxies: bool, headers: Mapping[str, str]
    ) -> None:
        self._seconds, self._headers = seconds, dict(headers)
        verify = False if tls is None else tls
        self._http = httpx.Client(verify=verify, trust_env=proxies, headers={"accept-encoding": "identity"})
        self._lock, self._busy, self._closed = threading.Lock(), 0, False

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Send the request, as the last of the interceptors."""
        del call_next
        with self._using():
            return self._send(context.request)

    def _send(self, request: httpx.Request) -> httpx.Response:
        request.headers.update(self._headers)
        request.extensions["timeout"] = httpx.Timeout(self._seconds, connect=min(5.0, self._seconds)).as_dict()
        answer = self._http.send(request, stream=True)
        deadline = time.monotonic() + self._seconds  # a slow line may take its time to send; the answer may not drip
        body = bytearray()
        try:
            for piece in answer.iter_raw():
                body += piece
                if len(body) > REQUEST_LIMIT or time.monotonic() > deadline:
                    raise httpx.ReadError("the answer is too long or too slow")
        finally:
            answer.close()
        return httpx.Response(answer.status_code, headers=answer.headers, content=bytes(body), request=request)

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise httpx.ConnectError("this end was closed")
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1
                last = self._closed and not self._busy
            if last:
                self._http.close()

    def close(self) -> None:
        """Let go of the connections: now, or when the last request that is under way has ended."""
        with self._lock:
            idle = not self._closed and not self._busy
            self._closed = True
        if idle:
            self._http.close()


def now() -> float:
    """This machine's clock."""
    return time.time()


def call_superlink(method: Callable[[_Request], _Response], request: _Request) -> _Response:
    """The answer to one request; every way to fail is :class:`Unreachable` or :class:`CallRefused`."""
    try:
        return method(request)
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        if status in (408, 429) or status >= 500:
            full = ": the coordinator's disk is full" if status == DISK_FULL else ""
            raise Unreachable(f"HTTP {status}{full}") from None
        code, text = _flower_error(error.response)
        raise CallRefused(status, code, text, _skew(error.response)) from None
    except (httpx.HTTPError, httpx.StreamError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, httpx.ConnectError) and (failure := _tls_failure(error)) is not None:
            raise Untrusted(text, _tls_words(failure)) from None
        raise Unreachable(text) from None
    except RuntimeError as error:  # a client that was closed by another thread
        raise Unreachable(str(error)) from None


def _tls_failure(error: BaseException | None) -> ssl.SSLError | None:
    """Why TLS failed, where that is why no connection came about (httpx wraps it twice); not that a line was cut."""
    for _ in range(5):
        if error is None or isinstance(error, ssl.SSLError):
            return None if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) else error
        error = error.__cause__ or error.__context__
    return None


def _tls_words(error: ssl.SSLError) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS failed ({error.reason or error}): is that port a SuperLink's, and does it speak TLS?"
    what = error.verify_message.rstrip(".")
    if error.verify_code in (_WRONG_NAME, _WRONG_ADDRESS):
        return f"its certificate does not fit: {what}. Dial a name that it was made out for, or have it made out anew"
    if error.verify_code in (_EXPIRED, _NOT_YET):
        return f"its certificate, or ca.crt, does not fit this day: {what}. Have it renewed; is this clock right?"
    if error.verify_code in _UNSIGNED:
        return f"its certificate was not signed by this ca.crt ({what}). Compare ca.crt with the coordinator's"
    return f"its certificate does not fit: {what}"


def _flower_error(response: httpx.Response) -> tuple[int, str]:
    try:
        found = json.loads(response.content)
        found = json.loads(found) if isinstance(found, str) else found
        text = str(found.get("message") or found.get("public_message") or found.get("detail") or "refused")
        return int(found.get("code") or 0), text[:200]
    except (ValueError, AttributeError, TypeError):
        return 0, "refused"


def _skew(response: httpx.Response) -> float:
    try:
        theirs = email.utils.parsedate_to_datetime(response.headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return 0.0
    return now() - theirs


def url_of(address: str, tls: ssl.SSLContext | None) -> str:
    """The address with its scheme."""
    return f"{'http' if tls is None else 'https'}://{address}"


def empty_message(metadata: Metadata) -> Message:
    """A message without content of its own: its objects are pushed one by one."""
    return Message(metadata=metadata, content=RecordDict())


def object_tree(parcel: Parcel) -> ObjectTree:
    """The root of ``parcel`` with its chunks, as Flower announces them."""
    return ObjectTree(object_id=parcel.root, children=[ObjectTree(object_id=chunk) for chunk in parcel.chunks])


def read_length(metadata: Metadata) -> int:
    """The length that a message announces (we write it where Flower has a free word), -1 where there is none."""
    word = metadata.group_id
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 15 else -1


def object_in(response: PullObjectResponse) -> bytes | None:
    """The object that was pulled; None if it has not arrived at the SuperLink yet."""
    if not response.object_found:
        raise CallRefused(404, 0, "an object of the message is gone", 0.0)
    return response.object_content if response.object_available else None

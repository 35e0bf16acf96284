"""Everything that knows Flower's insides: one pinned version, and one contract test that says what of it we rely on.

Flower has three HTTP interfaces, protobuf over POST, all on one port of its SuperLink:

- *Fleet*, for nodes: activate, heartbeat, pull a message, push a reply. Each request carries a time, signed with the
  node's registered key;
- *Runtime*, for whoever runs an app: claim a task, send messages to nodes, pull replies;
- *Control*, for the operator: register a node's key, start a run. **It asks nobody who they are**, which is why there
  is a :class:`~quietsum.federation.flower.gate.Gate`.

No call here fetches or runs an app: a run is a name under which messages are kept. Flower's own loops are not used
either: they wait for minutes, end the process, or read answers of any size. What is used: its message definitions, its
three HTTP clients, its way to sign, its SuperLink.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import email.utils
import io
import json
import logging
import os
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, final

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # both are read when Flower is imported
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
)
from flwr.proto.error_pb2 import Error
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.logger import FLOWER_LOGGER
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    sign_message,
    verify_signature,
)
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufClientInterceptor, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient

from quietsum.federation.flower.childlog import speak_plainly, watch_length
from quietsum.federation.flower.door import serve, server_side
from quietsum.federation.flower.gate import (
    DISK_FLOOR,
    DISK_FULL,
    KEY_HEADER,
    REQUEST_LIMIT,
    ROSTER_PATH,
    SECRET_HEADER,
    SIGNATURE_HEADER,
    TIME_HEADER,
    Gate,
)
from quietsum.federation.flower.parcel import Parcel
from quietsum.federation.flower.replies import objection

__all__ = [
    "MESSAGE_TYPE",
    "Access",
    "CoordinatorEnd",
    "Letter",
    "NodeEnd",
    "Refused",
    "Register",
    "Reply",
    "RunLost",
    "Unreachable",
    "Untrusted",
    "gate_word",
    "guard_fleet",
    "pinned",
    "public_key_to_bytes",
    "serve_superlink",
    "show",
    "signed",
    "trusting",
]

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
MESSAGE_TYPE = "query.quietsum"
HEARTBEAT = 15.0
"""Seconds. A node that has been silent for twice as long counts as gone: who waits for its reply is told so."""
TASK_HEARTBEAT = 15.0
"""Seconds; Flower gives up a run whose coordinator has been silent for a minute."""
KEEP_ALIVE = 20
ANSWERED = 4096
"""Announcements whose answers a SuperLink can give again."""
"""Seconds that a SuperLink keeps an idle connection; longer than its clients do, so that no request meets its end."""
SUPERLINK_NODE = 1
_SERVERAPP = "flwr-serverapp"
_ACTIVATION_FAILED = 2004
_NOT_YET, _EXPIRED, _WRONG_NAME, _WRONG_ADDRESS = 9, 10, 62, 64  # OpenSSL's numbers (x509_vfy.h)
_UNSIGNED = (2, 7, 18, 19, 20, 21)


class Unreachable(Exception):
    """Nobody answered, or not in time, or not in Flower's language. Worth another try."""


class NotStored(Unreachable):
    """An object was not taken: nobody has announced it, or all of it is there and was fetched."""


class Untrusted(Unreachable):
    """Somebody answers, and is not to be spoken to: TLS failed. ``words`` tell a site why, and what to do."""

    def __init__(self, text: str, words: str) -> None:
        self.words = words
        super().__init__(text)


class Refused(Exception):
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

    ``certificate`` is the server's own certificate (PEM): whoever runs on its machine pins that very one, whatever
    names it was made out for. Empty: no TLS, on loopback only. ``secret`` is empty for a SuperLink that is not ours.
    """

    address: str
    secret: str = dataclasses.field(default="", repr=False)
    certificate: str = dataclasses.field(default="", repr=False)


def trusting(root_certificate: str) -> ssl.SSLContext:
    """TLS towards a server whose certificate one of these PEM authorities signed; the system's are not asked."""
    return ssl.create_default_context(cadata=root_certificate)


def show(context: ssl.SSLContext, certificate: bytes, key: ec.EllipticCurvePrivateKey) -> None:
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


def pinned(certificate: str) -> ssl.SSLContext:
    """TLS towards the one server that holds the key of this PEM certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is the name
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    end = certificate.find("-----END CERTIFICATE-----")
    context.load_verify_locations(cadata=certificate[: end + len("-----END CERTIFICATE-----")] + "\n")
    return context


@final
class _Bounded:
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
        del call_next
        with self._using():
            return self._sent(context.request)

    def _sent(self, request: httpx.Request) -> httpx.Response:
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


@final
class _Signed:
    """Signs each request's time with a node's key, as a SuperLink expects it."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self.public = public_key_to_bytes(key.public_key())

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        now = datetime.datetime.fromtimestamp(_now(), tz=datetime.UTC).isoformat()
        context.request.headers.update(
            {
                KEY_HEADER: base64.b64encode(self.public).decode("ascii"),
                TIME_HEADER: now,
                SIGNATURE_HEADER: base64.b64encode(sign_message(self._key, now.encode("ascii"))).decode("ascii"),
            }
        )
        return call_next(context)


def _now() -> float:
    """This machine's clock."""
    return time.time()


def _asked(call: Callable[[_Request], _Response], request: _Request) -> _Response:
    """The answer to one request; every way to fail is :class:`Unreachable` or :class:`Refused`."""
    try:
        return call(request)
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        if status in (408, 429) or status >= 500:
            full = ": the coordinator's disk is full" if status == DISK_FULL else ""
            raise Unreachable(f"HTTP {status}{full}") from None
        code, text = _flower_error(error.response)
        raise Refused(status, code, text, _skew(error.response)) from None
    except (httpx.HTTPError, httpx.StreamError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, httpx.ConnectError) and (failure := _tls_failure(error)) is not None:
            raise Untrusted(text, _tls_words(failure)) from None
        raise Unreachable(text) from None
    except RuntimeError as error:  # a client that was closed by another thread
        raise Unreachable(str(error)) from None


def _tls_failure(error: BaseException | None) -> ssl.SSLError | None:
    """Why TLS failed, where that is why nobody was reached (httpx wraps it twice); not that a line was cut."""
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
    return _now() - theirs


def _tree(parcel: Parcel) -> ObjectTree:
    return ObjectTree(object_id=parcel.root, children=[ObjectTree(object_id=chunk) for chunk in parcel.chunks])


def _declared(metadata: Metadata) -> int:
    """The length that a message announces (we write it where Flower has a free word), -1 where there is none."""
    word = metadata.group_id
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 15 else -1


def _pulled(response: PullObjectResponse) -> bytes | None:
    if not response.object_found:
        raise Refused(404, 0, "an object of the message is gone", 0.0)
    return response.object_content if response.object_available else None


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Letter:
    """A message as a node receives it, before any of its content was asked for."""

    run: int
    name: str
    kind: str
    declared: int
    lasting: float
    metadata: Metadata = dataclasses.field(repr=False)


@final
class NodeEnd:
    """A node's connection with a SuperLink: eight calls, none of which fetches code."""

    def __init__(
        self, address: str, key: ec.EllipticCurvePrivateKey, tls: ssl.SSLContext | None, *, seconds: float = 30.0
    ) -> None:
        self._signed = _Signed(key)
        self._bounded = _Bounded(tls, seconds=seconds, proxies=True, headers={})
        self._client = FleetHttpClient(
            _url(address, tls), interceptors=[self._signed, self._bounded], verify=tls or False
        )
        self._node = Node()

    def activate(self) -> None:
        """Come online; :class:`Refused` where the key is unknown."""
        asked = ActivateNodeRequest(public_key=self._signed.public, heartbeat_interval=HEARTBEAT)
        number = _asked(self._client.ActivateNode, asked).node_id
        if number == 0:
            raise Unreachable("what answers there is no SuperLink")
        self._node = Node(node_id=number)

    def take_over(self, other: NodeEnd) -> None:
        """Be the same node as ``other``, over a connection of one's own."""
        self._node = other._node

    def heartbeat(self) -> None:
        """Stay online."""
        _asked(self._client.SendNodeHeartbeat, SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT))

    def deactivate(self) -> None:
        """Go offline now, not when heartbeats are missed."""
        _asked(self._client.DeactivateNode, DeactivateNodeRequest(node_id=self._node.node_id))

    def receive(self) -> Letter | None:
        """The next message for this node, if there is one. A SuperLink hands each over once."""
        found = _asked(self._client.PullMessages, PullMessagesRequest(node=self._node)).messages_list
        if not found:
            return None
        data = found[0].metadata
        return Letter(
            run=data.run_id,
            name=data.message_id,
            kind=data.message_type if found[0].HasField("content") and data.src_node_id == SUPERLINK_NODE else "",
            declared=_declared(data),
            lasting=data.ttl,
            metadata=data,
        )

    def pull(self, letter: Letter, name: str) -> bytes | None:
        """One object of a message; None where it has not arrived at the SuperLink yet."""
        return _pulled(
            _asked(self._client.PullObject, PullObjectRequest(node=self._node, run_id=letter.run, object_id=name))
        )

    def confirm(self, letter: Letter) -> None:
        """All of it is here; the SuperLink may forget it."""
        asked = ConfirmMessageReceivedRequest(node=self._node, run_id=letter.run, message_object_id=letter.name)
        _asked(self._client.ConfirmMessageReceived, asked)

    def announce(self, letter: Letter, parcel: Parcel, *, problem: str = "") -> tuple[frozenset[str], str]:
        """Announce the reply to ``letter``; which objects are still missing there, and the word to push them with."""
        theirs = letter.metadata
        data = Metadata(
            run_id=theirs.run_id,
            message_id=parcel.root,
            src_node_id=theirs.dst_node_id,
            dst_node_id=theirs.src_node_id,
            reply_to_message_id=theirs.message_id,
            group_id=str(parcel.length),
            created_at=theirs.created_at,  # the message's own time, not this machine's: clocks need not agree
            ttl=theirs.ttl,
            message_type=MESSAGE_TYPE,
        )
        reply = Message(metadata=data, error=Error(reason=problem)) if problem else _empty(data)
        answer = _asked(
            self._client.PushMessages,
            PushMessagesRequest(node=self._node, messages_list=[reply], message_object_trees=[_tree(parcel)]),
        )
        return frozenset(answer.objects_to_push), answer.session_id

    def push(self, letter: Letter, session: str, name: str, deflated: bytes) -> None:
        """Hand one object over."""
        asked = PushObjectRequest(
            node=self._node, run_id=letter.run, session_id=session, object_id=name, object_content=deflated
        )
        if not _asked(self._client.PushObject, asked).stored:
            raise NotStored("the SuperLink did not store an object")

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()
        self._bounded.close()


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """What a SuperLink knows of a reply before its content is pulled; ``problem`` where there will be none."""

    to: str
    root: str = ""
    declared: int = -1
    problem: str = ""


@final
class CoordinatorEnd:
    """The operator's side of a SuperLink, for one run of Flower's.

    Flower would start a run from an app's archive and have some other process claim and execute it. We start one from
    an archive in which there is no code, and claim it ourselves: what is left is a token under which messages travel.
    """

    def __init__(self, access: Access, *, seconds: float = 30.0) -> None:
        tls = pinned(access.certificate) if access.certificate else None
        headers = {SECRET_HEADER: access.secret} if access.secret else {}
        self._bounded = _Bounded(tls, seconds=seconds, proxies=False, headers=headers)
        chain: list[ProtobufClientInterceptor] = [self._bounded]
        url, verify = _url(access.address, tls), tls or False
        self._control = ControlHttpClient(url, interceptors=chain, verify=verify)
        self._runtime = RuntimeHttpClient(url, interceptors=[_Token(self), *chain], verify=verify)
        self._claim = ("", 0)

    @property
    def token(self) -> str:
        """The word under which Flower knows this run's owner; empty before there is one."""
        return self._claim[0]

    @property
    def _run(self) -> int:
        return self._claim[1]

    def share(self, other: CoordinatorEnd) -> None:
        """Be the owner of the same run as ``other``, over a connection of one's own."""
        self._claim = other._claim

    def open_run(self) -> None:
        """Claim a run that nobody has claimed, or start one and claim it. Any will do: they are all empty."""
        _asked(self._control.ListRuns, ListRunsRequest())  # clears away what a killed coordinator has left
        for _ in range(20):  # another coordinator may be quicker; it leaves its own run in exchange
            found = _asked(self._runtime.AcquireTask, AcquireTaskRequest(supported_task_types=[_SERVERAPP]))
            if found.token:
                self._claim = (found.token, found.task.run_id)
                _asked(self._runtime.PullTaskInput, PullTaskInputRequest())  # from here on the run counts as running
                return
            _asked(self._control.StartRun, StartRunRequest(fab=Fab(content=_empty_app())))
        raise Unreachable("the SuperLink starts runs, but none can be claimed")

    def finish(self) -> None:
        """The run is over; the SuperLink drops what is left of its messages."""
        if self.token:
            self._ours(self._runtime.PushTaskOutput, PushTaskOutputRequest(sub_status="completed"))
            _asked(self._control.ListRuns, ListRunsRequest())  # Flower clears a finished run away when it lists it

    def heartbeat(self) -> None:
        """Keep the run; :class:`RunLost` where that comes too late."""
        if not self._ours(self._runtime.SendTaskHeartbeat, SendTaskHeartbeatRequest()).success:
            raise RunLost

    def nodes(self) -> Mapping[str, bytes]:
        """The nodes that are connected, each with its registered public key (PEM)."""
        found = self._ours(self._runtime.GetNodes, GetNodesRequest())
        return {str(node.node_id): node.public_key for node in found.nodes}

    def announce(
        self, node: str, parcel: Parcel, *, lasting: float, kind: str = MESSAGE_TYPE
    ) -> tuple[frozenset[str], str]:
        """Announce a message to ``node``; which objects are missing, and the word to push them with."""
        data = Metadata(
            run_id=self._run,
            message_id=parcel.root,
            src_node_id=SUPERLINK_NODE,
            dst_node_id=int(node),
            group_id=str(parcel.length),
            created_at=time.time(),
            ttl=lasting,
            message_type=kind,
        )
        asked = PushAppMessagesRequest(messages_list=[_empty(data)], message_object_trees=[_tree(parcel)])
        answer = self._ours(self._runtime.PushMessages, asked)
        if list(answer.message_ids) != [parcel.root]:
            raise Refused(404, 0, "the SuperLink knows no such node", 0.0)
        return frozenset(answer.objects_to_push), answer.session_id

    def push(self, session: str, name: str, deflated: bytes) -> None:
        """Hand one object over."""
        asked = PushObjectRequest(
            node=Node(node_id=SUPERLINK_NODE),
            run_id=self._run,
            session_id=session,
            object_id=name,
            object_content=deflated,
        )
        if not self._ours(self._runtime.PushObject, asked).stored:
            raise Unreachable("the SuperLink did not store an object")

    def replies(self, messages: Iterable[str]) -> Sequence[Reply]:
        """Replies to these messages that have been announced since; their objects may still be on their way."""
        found = self._ours(self._runtime.PullMessages, PullAppMessagesRequest(message_ids=list(messages)))
        return [_reply(message) for message in found.messages_list]

    def pull(self, name: str) -> bytes | None:
        """One object; None where it has not arrived at the SuperLink yet."""
        asked = PullObjectRequest(node=Node(node_id=SUPERLINK_NODE), run_id=self._run, object_id=name)
        return _pulled(self._ours(self._runtime.PullObject, asked))

    def confirm(self, root: str) -> None:
        """All of this reply is here; the SuperLink may forget it."""
        asked = ConfirmMessageReceivedRequest(
            node=Node(node_id=SUPERLINK_NODE), run_id=self._run, message_object_id=root
        )
        self._ours(self._runtime.ConfirmMessageReceived, asked)

    def close(self) -> None:
        """Let go of the connections."""
        self._control.close()
        self._runtime.close()
        self._bounded.close()

    def _ours(self, call: Callable[[_Request], _Response], request: _Request) -> _Response:
        try:
            return _asked(call, request)
        except Refused as refused:
            if refused.status in (401, 403):
                raise RunLost(str(refused)) from None
            raise


@final
class _Token:
    def __init__(self, end: CoordinatorEnd) -> None:
        self._end = end

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        if self._end.token:
            context.request.headers["flwr-task-token"] = self._end.token
        return call_next(context)


@final
class Register:
    """The keys that a SuperLink lets in."""

    def __init__(self, access: Access, *, seconds: float = 5.0) -> None:
        tls = pinned(access.certificate) if access.certificate else None
        headers = {SECRET_HEADER: access.secret} if access.secret else {}
        self._bounded = _Bounded(tls, seconds=seconds, proxies=False, headers=headers)
        self._url = _url(access.address, tls)
        self._control = ControlHttpClient(self._url, interceptors=[self._bounded], verify=tls or False)

    def keys(self) -> frozenset[bytes]:
        """The public keys (PEM) that Flower knows."""
        return frozenset(node.public_key for node in _asked(self._control.ListNodes, ListNodesRequest()).nodes_info)

    def add(self, name: str, key: ec.EllipticCurvePublicKey) -> None:
        """Make a key known to Flower."""
        _asked(self._control.RegisterNode, RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name))

    def admit(self, roster: Sequence[str]) -> None:
        """Have the gate let in these keys (see :func:`gate_word`) and nobody else."""
        _asked(self._post, json.dumps(list(roster)))

    def _post(self, body: str) -> None:
        request = httpx.Request("POST", self._url + ROSTER_PATH, content=body.encode())
        unused = ProtobufRequestContext(rpc_method="", message=Message(), request=request)
        self._bounded.intercept(unused, lambda _: httpx.Response(500)).raise_for_status()

    def close(self) -> None:
        """Let go of the connections."""
        self._control.close()
        self._bounded.close()


def gate_word(key: ec.EllipticCurvePublicKey) -> str:
    """A public key as the gate sees it in a request."""
    return base64.b64encode(public_key_to_bytes(key)).decode("ascii")


def _url(address: str, tls: ssl.SSLContext | None) -> str:
    return f"{'http' if tls is None else 'https'}://{address}"


def _empty(metadata: Metadata) -> Message:
    return Message(metadata=metadata, content=RecordDict())


def _reply(message: Message) -> Reply:
    data = message.metadata
    if message.HasField("error"):
        return Reply(to=data.reply_to_message_id, problem=message.error.reason[:200] or f"error {message.error.code}")
    if data.message_type != MESSAGE_TYPE:
        return Reply(to=data.reply_to_message_id, problem="a reply of another kind")
    return Reply(to=data.reply_to_message_id, root=data.message_id, declared=_declared(data))


def _empty_app() -> bytes:
    """An app as Flower wants one before it opens a run: a project file, no code."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(
            zipfile.ZipInfo("pyproject.toml"),
            '[project]\nname = "quietsum"\nversion = "1.0.0"\n'
            '[tool.flwr.app]\npublisher = "quietsum"\n'
            '[tool.flwr.app.components]\nserverapp = "nothing:app"\nclientapp = "nothing:app"\n',
        )
    return archive.getvalue()


def guard_fleet(limit: int) -> None:
    """Have Flower's Fleet calls in this process go through ours; see :mod:`.replies`.

    A node that comes back after a kill is let in at once: Flower would keep it out for as long as it believes the
    killed process to be alive. The key says who it is, and the newest process with that key is the one that counts.

    A node that lost the answer to its announcement asks again. Flower forgets whom a message went to as soon as the
    coordinator has seen the announcement, so the first answer is kept and given again for the very same reply.
    """
    from fastapi import HTTPException
    from flwr.supercore.utils import int64_to_uint64
    from flwr.superlink.servicer.fleet import fleet_handlers

    activate, push = fleet_handlers.activate_node, fleet_handlers.push_messages
    answered: OrderedDict[tuple[int, str, str], Any] = OrderedDict()
    lock = threading.Lock()

    def activate_again(request: Any, state: Any) -> Any:
        known = state.get_node_id_by_public_key(request.public_key)
        if known is not None:
            state.deactivate_node(known)
        return activate(request, state)

    def push_reply(request: Any, state: Any) -> Any:
        def addressee(name: str) -> int | None:
            found = state.get_valid_message_ins(name)
            return None if found is None else int64_to_uint64(found["dst_node_id"])

        known = [
            (request.node.node_id, each.metadata.reply_to_message_id, each.metadata.message_id)
            for each in request.messages_list
        ]
        found = objection(request, addressee=addressee, superlink=SUPERLINK_NODE, limit=limit)
        if found is not None:
            with lock:
                before = answered.get(known[0]) if len(known) == 1 else None
            if before is not None:
                return before
            raise HTTPException(*found)
        answer = push(request, state)
        with lock:
            answered[known[0]] = answer
            if len(answered) > ANSWERED:
                answered.popitem(last=False)
        return answer

    fleet_handlers.activate_node, fleet_handlers.push_messages = activate_again, push_reply


def serve_superlink(
    arguments: Sequence[str],
    *,
    public: socket.socket,
    private: socket.socket,
    secret: str,
    folder: str,
    limit: int,
    disk_floor: int = DISK_FLOOR,
    clients: str | None = None,
) -> None:
    """Be a SuperLink, on two sockets that are bound already, until SIGTERM. ``folder`` is where its database is.

    With ``clients``, a file of authorities, the public socket takes only callers with a certificate of one of them.
    """
    import importlib
    import shutil

    import uvicorn
    from flwr.superlink.main import create_app

    program = importlib.import_module("flwr.superlink.cli.flower_superlink")  # a function hides it by its name
    guard_fleet(limit)
    speak_plainly([FLOWER_LOGGER, logging.getLogger("quietsum")])
    watch_length(Path(folder) / "superlink.log")
    sys.argv = ["flower-superlink", *arguments]
    config = program._parse_superlink_lifespan_config()
    app = create_app(config, program.SuperLinkLifespan)
    host, port = private.getsockname()[:2]
    gate = Gate(
        app,
        private=(host, port),
        secret=secret,
        free=lambda: shutil.disk_usage(folder).free,
        floor=disk_floor,
        signed=signed,
    )
    theirs = ours = None
    if config.ssl_certfile and config.ssl_keyfile:
        theirs = server_side(config.ssl_certfile, config.ssl_keyfile, clients=clients)
        ours = server_side(config.ssl_certfile, config.ssl_keyfile)
    serve(
        uvicorn.Config(
            gate,
            loop="asyncio",
            ws="none",
            access_log=False,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=2,
        ),
        [(public, theirs, None), (private, ours, "the operator's side")],
    )


def signed(key: bytes, moment: bytes, signature: bytes) -> bool:
    """Whether ``signature`` (base64) is that of ``key`` (see :func:`gate_word`) under a time; Flower asks for more."""
    try:
        holder = bytes_to_public_key(base64.b64decode(key, validate=True))
        return verify_signature(holder, moment, base64.b64decode(signature, validate=True))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def _main() -> None:
    """The child process of :class:`quietsum.federation.flower.superlink.SuperLink`.

    What it needs comes as one line on standard input (a command line can be read by everybody on the machine); the
    end of standard input means that the parent is gone.
    """
    os.umask(0o077)
    with contextlib.suppress(ImportError, OSError, ValueError):  # every site is a connection, and so is every stranger
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    given = json.loads(sys.stdin.buffer.readline())
    source = sys.stdin.fileno()

    def watch() -> None:
        with contextlib.suppress(OSError):  # not sys.stdin: its lock, held while it reads, would abort a failed start
            while os.read(source, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    serve_superlink(
        given["arguments"],
        public=socket.socket(fileno=given["public"]),
        private=socket.socket(fileno=given["private"]),
        secret=given["secret"],
        folder=given["folder"],
        limit=given["limit"],
        disk_floor=given["disk_floor"],
        clients=given["clients"],
    )


if __name__ == "__main__":
    _main()

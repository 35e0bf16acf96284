"""The operator's side of a SuperLink: the calls of one run (Runtime), and the register of keys (Control)."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar, final

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
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
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufClientInterceptor, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient

from quietsum.federation.flower.flwr_calls import (
    MESSAGE_TYPE,
    SUPERLINK_NODE,
    Access,
    BoundedSender,
    CallRefused,
    RunLost,
    Unreachable,
    call_superlink,
    empty_message,
    object_in,
    object_tree,
    pin,
    read_length,
    url_of,
)
from quietsum.federation.flower.gate import ROSTER_PATH, SECRET_HEADER
from quietsum.federation.flower.parcel import Parcel

__all__ = ["TASK_HEARTBEAT", "CoordinatorEnd", "Register", "Reply", "gate_word", "public_key_to_bytes"]

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
TASK_HEARTBEAT = 15.0
"""Seconds; Flower gives up a run whose coordinator has been silent for a minute."""
_SERVERAPP = "flwr-serverapp"


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
        tls = pin(access.certificate) if access.certificate else None
        headers = {SECRET_HEADER: access.secret} if access.secret else {}
        self._bounded = BoundedSender(tls, seconds=seconds, proxies=False, headers=headers)
        chain: list[ProtobufClientInterceptor] = [self._bounded]
        url, verify = url_of(access.address, tls), tls or False
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
        """Claim a run without an owner, or start one and claim it. Any will do: they are all empty."""
        call_superlink(self._control.ListRuns, ListRunsRequest())  # clears away what a killed coordinator has left
        for _ in range(20):  # another coordinator may be quicker; it leaves its own run in exchange
            found = call_superlink(self._runtime.AcquireTask, AcquireTaskRequest(supported_task_types=[_SERVERAPP]))
            if found.token:
                self._claim = (found.token, found.task.run_id)
                call_superlink(
                    self._runtime.PullTaskInput, PullTaskInputRequest()
                )  # from here on the run counts as running
                return
            call_superlink(self._control.StartRun, StartRunRequest(fab=Fab(content=_empty_app())))
        raise Unreachable("the SuperLink starts runs, but none can be claimed")

    def finish(self) -> None:
        """The run is over; the SuperLink drops what is left of its messages."""
        if self.token:
            self._ours(self._runtime.PushTaskOutput, PushTaskOutputRequest(sub_status="completed"))
            call_superlink(
                self._control.ListRuns, ListRunsRequest()
            )  # Flower clears a finished run away when it lists it

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
        asked = PushAppMessagesRequest(messages_list=[empty_message(data)], message_object_trees=[object_tree(parcel)])
        answer = self._ours(self._runtime.PushMessages, asked)
        if list(answer.message_ids) != [parcel.root]:
            raise CallRefused(404, 0, "the SuperLink knows no such node", 0.0)
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
        return object_in(self._ours(self._runtime.PullObject, asked))

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

    def _ours(self, method: Callable[[_Request], _Response], request: _Request) -> _Response:
        try:
            return call_superlink(method, request)
        except CallRefused as refused:
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
        tls = pin(access.certificate) if access.certificate else None
        headers = {SECRET_HEADER: access.secret} if access.secret else {}
        self._bounded = BoundedSender(tls, seconds=seconds, proxies=False, headers=headers)
        self._url = url_of(access.address, tls)
        self._control = ControlHttpClient(self._url, interceptors=[self._bounded], verify=tls or False)

    def keys(self) -> frozenset[bytes]:
        """The public keys (PEM) that Flower knows."""
        return frozenset(
            node.public_key for node in call_superlink(self._control.ListNodes, ListNodesRequest()).nodes_info
        )

    def add(self, name: str, key: ec.EllipticCurvePublicKey) -> None:
        """Make a key known to Flower."""
        call_superlink(self._control.RegisterNode, RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name))

    def admit(self, roster: Sequence[str]) -> None:
        """Have the gate let in these keys (see :func:`gate_word`) and no others."""
        call_superlink(self._post, json.dumps(list(roster)))

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


def _reply(message: Message) -> Reply:
    data = message.metadata
    if message.HasField("error"):
        return Reply(to=data.reply_to_message_id, problem=message.error.reason[:200] or f"error {message.error.code}")
    if data.message_type != MESSAGE_TYPE:
        return Reply(to=data.reply_to_message_id, problem="a reply of another kind")
    return Reply(to=data.reply_to_message_id, root=data.message_id, declared=read_length(data))


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

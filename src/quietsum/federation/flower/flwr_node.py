"""A node's connection with a SuperLink: Flower's Fleet calls, signed with the node's key."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import ssl
from typing import final

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.error_pb2 import Error
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
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supernode.fleet_http_client import FleetHttpClient

from quietsum.federation.flower.flwr_calls import (
    MESSAGE_TYPE,
    SUPERLINK_NODE,
    BoundedSender,
    NotStored,
    Unreachable,
    call_superlink,
    empty_message,
    now,
    object_in,
    object_tree,
    read_length,
    url_of,
)
from quietsum.federation.flower.gate import KEY_HEADER, SIGNATURE_HEADER, TIME_HEADER
from quietsum.federation.flower.parcel import Parcel

__all__ = ["HEARTBEAT", "Incoming", "NodeEnd", "sign_message"]

HEARTBEAT = 15.0
"""Seconds. A node that has been silent for twice as long counts as gone, and its replies as lost."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Incoming:
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
        self._bounded = BoundedSender(tls, seconds=seconds, proxies=True, headers={})
        self._client = FleetHttpClient(
            url_of(address, tls), interceptors=[self._signed, self._bounded], verify=tls or False
        )
        self._node = Node()

    def activate(self) -> None:
        """Come online; :class:`CallRefused` where the key is unknown."""
        asked = ActivateNodeRequest(public_key=self._signed.public, heartbeat_interval=HEARTBEAT)
        number = call_superlink(self._client.ActivateNode, asked).node_id
        if number == 0:
            raise Unreachable("what answers there is no SuperLink")
        self._node = Node(node_id=number)

    def take_over(self, other: NodeEnd) -> None:
        """Be the same node as ``other``, over a connection of one's own."""
        self._node = other._node

    def heartbeat(self) -> None:
        """Stay online."""
        call_superlink(
            self._client.SendNodeHeartbeat, SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
        )

    def deactivate(self) -> None:
        """Go offline now, not when heartbeats are missed."""
        call_superlink(self._client.DeactivateNode, DeactivateNodeRequest(node_id=self._node.node_id))

    def receive(self) -> Incoming | None:
        """The next message for this node, if there is one. A SuperLink hands each over once."""
        found = call_superlink(self._client.PullMessages, PullMessagesRequest(node=self._node)).messages_list
        if not found:
            return None
        data = found[0].metadata
        return Incoming(
            run=data.run_id,
            name=data.message_id,
            kind=data.message_type if found[0].HasField("content") and data.src_node_id == SUPERLINK_NODE else "",
            declared=read_length(data),
            lasting=data.ttl,
            metadata=data,
        )

    def pull(self, letter: Incoming, name: str) -> bytes | None:
        """One object of a message; None where it has not arrived at the SuperLink yet."""
        return object_in(
            call_superlink(
                self._client.PullObject, PullObjectRequest(node=self._node, run_id=letter.run, object_id=name)
            )
        )

    def confirm(self, letter: Incoming) -> None:
        """All of it is here; the SuperLink may forget it."""
        asked = ConfirmMessageReceivedRequest(node=self._node, run_id=letter.run, message_object_id=letter.name)
        call_superlink(self._client.ConfirmMessageReceived, asked)

    def announce(self, letter: Incoming, parcel: Parcel, *, problem: str = "") -> tuple[frozenset[str], str]:
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
        reply = Message(metadata=data, error=Error(reason=problem)) if problem else empty_message(data)
        answer = call_superlink(
            self._client.PushMessages,
            PushMessagesRequest(node=self._node, messages_list=[reply], message_object_trees=[object_tree(parcel)]),
        )
        return frozenset(answer.objects_to_push), answer.session_id

    def push(self, letter: Incoming, session: str, name: str, deflated: bytes) -> None:
        """Hand one object over."""
        asked = PushObjectRequest(
            node=self._node, run_id=letter.run, session_id=session, object_id=name, object_content=deflated
        )
        if not call_superlink(self._client.PushObject, asked).stored:
            raise NotStored("the SuperLink did not store an object")

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()
        self._bounded.close()


@final
class _Signed:
    """Signs each request's time with a node's key, as a SuperLink expects it."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self.public = public_key_to_bytes(key.public_key())

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        moment = datetime.datetime.fromtimestamp(now(), tz=datetime.UTC).isoformat()
        context.request.headers.update(
            {
                KEY_HEADER: base64.b64encode(self.public).decode("ascii"),
                TIME_HEADER: moment,
                SIGNATURE_HEADER: base64.b64encode(sign_message(self._key, moment.encode("ascii"))).decode("ascii"),
            }
        )
        return call_next(context)

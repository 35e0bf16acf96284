"""What a SuperLink of ours takes from a node, as a plain function of the call; each guard with one thing changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node

from quietsum.federation.flower.parcel import CHUNK, INLINE, LIMIT, cut
from quietsum.federation.flower.replies import FORBIDDEN, TOO_LARGE, Objection, objection, objects_of

SUPERLINK, ALICE, MALLORY = 1, 2**64 - 5, 77
LAST = INLINE + 3 * CHUNK
SENT = {"to alice": ALICE, "to mallory": MALLORY}


def reply(*, chunks: int = 3) -> PushMessagesRequest:
    data = Metadata(
        message_id="root",
        src_node_id=ALICE,
        dst_node_id=SUPERLINK,
        reply_to_message_id="to alice",
        group_id=str(LAST),
    )
    tree = ObjectTree(object_id="root", children=[ObjectTree(object_id=f"chunk {one}") for one in range(chunks)])
    return PushMessagesRequest(
        node=Node(node_id=ALICE), messages_list=[Message(metadata=data)], message_object_trees=[tree]
    )


def judged(request: PushMessagesRequest) -> Objection | None:
    return objection(request, addressee=SENT.get, superlink=SUPERLINK, limit=LAST)


def test_an_honest_reply_is_taken() -> None:
    assert judged(reply()) is None
    assert judged(reply(chunks=0)) is None


def data(request: PushMessagesRequest) -> Metadata:
    return request.messages_list[0].metadata


FORGERIES: dict[str, Callable[[PushMessagesRequest], object]] = {
    "no reply": lambda request: data(request).ClearField("reply_to_message_id"),
    "in the coordinator's name": lambda request: setattr(data(request), "src_node_id", SUPERLINK),
    "in another's name": lambda request: setattr(data(request), "src_node_id", MALLORY),
    "to another site": lambda request: setattr(data(request), "dst_node_id", MALLORY),
    "to nobody": lambda request: data(request).ClearField("dst_node_id"),
    "to what another got": lambda request: setattr(data(request), "reply_to_message_id", "to mallory"),
    "to what was never sent": lambda request: setattr(data(request), "reply_to_message_id", "never"),
    "nothing": lambda request: request.ClearField("messages_list"),
    "two": lambda request: request.messages_list.append(request.messages_list[0]),
    "no tree": lambda request: request.ClearField("message_object_trees"),
    "two trees": lambda request: request.message_object_trees.append(request.message_object_trees[0]),
    "another's tree": lambda request: setattr(request.message_object_trees[0], "object_id", "other"),
    "a deep tree": lambda request: request.message_object_trees[0].children[0].children.add(object_id="below"),
    "a time that it took": lambda request: request.clientapp_runtime_list.append(1.0),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
def test_one_thing_changed_and_it_is_not_taken(forge: Callable[[PushMessagesRequest], object]) -> None:
    request = reply()
    forge(request)
    found = judged(request)
    assert found is not None
    assert found[0] == FORBIDDEN


def test_what_is_larger_than_the_limit_is_not_taken_by_declared_bytes_or_by_objects() -> None:
    found = judged(reply(chunks=4))
    assert found is not None
    assert found[0] == TOO_LARGE
    request = reply()
    data(request).group_id = str(LAST + 1)
    found = judged(request)
    assert found is not None
    assert found[0] == TOO_LARGE
    for word in ("", "many", "-1"):  # declares nothing: the objects are counted all the same
        data(request).group_id = word
        assert judged(request) is None


@pytest.mark.parametrize("size", [0, INLINE, INLINE + 1, INLINE + CHUNK, INLINE + CHUNK + 1])
def test_content_up_to_a_limit_has_no_more_chunks_than_that_limit_allows(size: int) -> None:
    content = b"".join(bytes([one]) * CHUNK for one in range(3))[:size]
    assert len(cut(content).chunks) == objects_of(size)
    assert objects_of(size) <= objects_of(LIMIT)

"""What a registered site can do to others over a real SuperLink: nothing in another's name, and no full disk."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Metadata
from flwr.supercore.runtime import RuntimeHttpClient

from federation.flower.trial import PATIENCE, collect, make_keys, start_superlink, transport, until
from quietsum.federation.flower import flwr_calls, flwr_node, superlink
from quietsum.federation.flower.coordinator import FlowerTransport
from quietsum.federation.flower.flwr_calls import MESSAGE_TYPE, SUPERLINK_NODE, CallRefused, Unreachable
from quietsum.federation.flower.flwr_node import Incoming, NodeEnd
from quietsum.federation.flower.gate import OBJECT_LIMIT
from quietsum.federation.flower.node import serve_node
from quietsum.federation.flower.parcel import CHUNK, INLINE, Parcel, cut
from quietsum.federation.flower.superlink import SuperLink, SuperLinkFailed
from quietsum.identity.nodekeys import read_node_key

pytestmark = pytest.mark.slow
LIMIT = INLINE + CHUNK


class Scene:
    """A SuperLink with two registered sites, both online, whose every call a test makes by hand."""

    def __init__(self, folder: Path, link: SuperLink, carrier: FlowerTransport) -> None:
        tls = flwr_calls.trust_keys((folder / "ca.crt").read_text())
        self.link, self.carrier, self.folder = link, carrier, folder
        self.alice, self.mallory = (
            NodeEnd(link.address, read_node_key(folder / f"{name}.key"), tls) for name in ("alice", "mallory")
        )
        usual, flwr_node.HEARTBEAT = flwr_node.HEARTBEAT, 900.0  # nothing here beats, and nobody is to be missed for it
        try:
            for end in (self.alice, self.mallory):
                end.activate()
        finally:
            flwr_node.HEARTBEAT = usual
        until(lambda: len(carrier.nodes()) == 2)

    def sent_to(self, end: NodeEnd, content: bytes) -> tuple[str, Incoming]:
        """A message to a site, as the coordinator and as the site know it."""
        name = self.carrier.send(str(end._node.node_id), content, lasting=PATIENCE)
        found: list[Incoming] = []

        def heard() -> bool:
            found.extend(letter for letter in [end.receive()] if letter is not None)
            return bool(found)

        until(heard)
        return name, found[0]

    def stored(self) -> int:
        return sum(path.stat().st_size for path in (self.folder / "link").glob("superlink.db*"))

    def close(self) -> None:
        for end in (self.alice, self.mallory):
            end.close()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("hostile")
    roster = make_keys(folder, ["alice", "mallory"])
    with start_superlink(folder, limit=LIMIT) as link:
        link.admit(roster)
        with transport(link, limit=LIMIT) as carrier:
            made = Scene(folder, link, carrier)
            yield made
            made.close()


def pushed(end: NodeEnd, letter: Incoming, content: Parcel, **changes: object) -> PushMessagesResponse:
    """Push a message by ``end``; without changes it is the honest reply to ``letter``."""
    words: dict[str, object] = {
        "run_id": letter.run,
        "message_id": content.root,
        "src_node_id": end._node.node_id,
        "dst_node_id": SUPERLINK_NODE,
        "reply_to_message_id": letter.name,
        "group_id": str(content.length),
        "created_at": letter.metadata.created_at,
        "ttl": letter.metadata.ttl,
        "message_type": MESSAGE_TYPE,
    }
    data = Metadata(**(words | changes))  # type: ignore[arg-type]
    asked = PushMessagesRequest(
        node=end._node,
        messages_list=[flwr_calls.empty_message(data)],
        message_object_trees=[flwr_calls.object_tree(content)],
    )
    answer = flwr_calls.call_superlink(end._client.PushMessages, asked)
    for name in answer.objects_to_push:
        end.push(letter, answer.session_id, name, content.object(name))
    return answer


def instruct_alice(scene: Scene, letter: Incoming, content: bytes) -> None:
    """As ``mallory``, send alice a message in the coordinator's name."""
    alice = scene.alice._node.node_id
    pushed(
        scene.mallory,
        letter,
        cut(content),
        src_node_id=SUPERLINK_NODE,
        dst_node_id=alice,
        reply_to_message_id="",
    )


def test_a_site_cannot_speak_to_another_as_if_it_were_the_coordinator(scene: Scene) -> None:
    name, letter = scene.sent_to(scene.mallory, b"hello mallory")
    with pytest.raises(CallRefused, match="replies only") as caught:
        instruct_alice(scene, letter, b"train for me")
    assert caught.value.status == 403
    assert scene.alice.receive() is None
    alice = scene.alice._node.node_id
    for changes in ({"dst_node_id": alice}, {"reply_to_message_id": ""}, {"src_node_id": SUPERLINK_NODE}):
        with pytest.raises(CallRefused):
            pushed(scene.mallory, letter, cut(b"?"), **changes)
    assert scene.alice.receive() is None
    pushed(scene.mallory, letter, cut(b"honest"))  # the same call with nothing forged
    assert collect(scene.carrier, 1)[name].content == b"honest"


def test_a_site_that_lost_the_answer_to_its_announcement_announces_again_and_its_reply_arrives(scene: Scene) -> None:
    name, letter = scene.sent_to(scene.alice, b"hello alice")
    content = os.urandom(INLINE + 10)
    reply = cut(content)
    lost = scene.alice.announce(letter, reply)
    assert scene.carrier.receive(0.5) == ()  # the coordinator has seen that a reply is on its way
    again = scene.alice.announce(letter, reply)
    assert again == lost and reply.root in again[0]
    with pytest.raises(CallRefused, match="No message of that name"):
        scene.alice.announce(letter, cut(b"another reply"))  # the control: only the very same one
    for found in sorted(again[0]):
        scene.alice.push(letter, again[1], found, reply.object(found))
    assert collect(scene.carrier, 1)[name].content == content


def test_a_site_cannot_reply_for_another(scene: Scene) -> None:
    name, letter = scene.sent_to(scene.alice, b"hello alice")
    alice = scene.alice._node.node_id
    with pytest.raises(CallRefused, match="its own name"):
        pushed(scene.mallory, letter, cut(b"forged"), src_node_id=alice)
    with pytest.raises(CallRefused, match="No message of that name"):
        pushed(scene.mallory, letter, cut(b"forged"))
    assert scene.carrier.receive(0.5) == ()
    pushed(scene.alice, letter, cut(b"true"))
    assert collect(scene.carrier, 1)[name].content == b"true"
    with pytest.raises(CallRefused):
        scene.mallory.announce(letter, cut(b"forged"))


def test_without_the_guard_a_site_can_speak_as_the_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control. Where this fails, Flower has begun to check for itself: read it again."""
    program = (
        "from quietsum.federation.flower import flwr_server as server\n"
        "server.guard_fleet = lambda limit: None\n"
        "server._main()"
    )

    def unguarded(_: object, **more: object) -> object:
        return subprocess.Popen([sys.executable, "-P", "-c", program], **more)  # type: ignore[call-overload]

    monkeypatch.setattr(superlink, "subprocess", types.SimpleNamespace(Popen=unguarded, PIPE=subprocess.PIPE))
    roster = make_keys(tmp_path, ["alice", "mallory"])
    with start_superlink(tmp_path) as link:
        link.admit(roster)
        with transport(link) as carrier:
            bare = Scene(tmp_path, link, carrier)
            _, letter = bare.sent_to(bare.mallory, b"hello mallory")
            instruct_alice(bare, letter, b"train for me")
            got = bare.alice.receive()
            assert got is not None
            assert got.kind == MESSAGE_TYPE  # she cannot tell
            assert bare.alice.pull(got, got.name) is not None
            bare.close()


def test_a_reply_above_the_limit_is_refused_before_any_of_it_is_kept(scene: Scene) -> None:
    name, letter = scene.sent_to(scene.mallory, b"hello again")
    before = scene.stored()
    large = cut(os.urandom(40 * 2**20))
    for declared in (str(large.length), "10", ""):
        with pytest.raises(CallRefused, match="too large") as caught:
            pushed(scene.mallory, letter, large, group_id=declared)
        assert caught.value.status == 413
    assert scene.stored() - before < 2**20
    missing, session = scene.mallory.announce(letter, cut(b"small"))  # and an object larger than any of ours
    with pytest.raises((CallRefused, Unreachable)):
        scene.mallory.push(letter, session, next(iter(missing)), bytes(OBJECT_LIMIT))
    assert scene.stored() - before < 2**20
    fine, letter = scene.sent_to(scene.alice, b"as long as it may be")
    longest = os.urandom(LIMIT)
    pushed(scene.alice, letter, cut(longest))
    assert collect(scene.carrier, 1)[fine].content == longest
    scene.carrier.forget(name)


def test_an_honest_site_whose_reply_the_superlink_does_not_take_says_so(tmp_path: Path, scene: Scene) -> None:
    stop = threading.Event()
    site = threading.Thread(
        target=serve_node,
        args=(lambda content: content * 2,),
        kwargs={
            "address": scene.link.address,
            "root_certificate": scene.folder / "ca.crt",
            "node_key": scene.folder / "alice.key",
            "stop": stop,
        },
    )
    site.start()
    try:
        name = scene.carrier.send(str(scene.alice._node.node_id), bytes(LIMIT - 5), lasting=PATIENCE)
        found = collect(scene.carrier, 1)[name]
        assert "too large" in found.problem
        fine = scene.carrier.send(str(scene.alice._node.node_id), b"short", lasting=PATIENCE)
        assert collect(scene.carrier, 1)[fine].content == b"shortshort"
    finally:
        stop.set()
        site.join(PATIENCE)
    assert not site.is_alive()


@pytest.mark.long
def test_while_the_disk_is_nearly_full_nothing_is_taken_from_sites_and_none_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor = 2**60  # no disk has that much free
    roster = make_keys(tmp_path, ["alice", "mallory"])
    with pytest.raises(SuperLinkFailed, match="are to stay free"):
        start_superlink(tmp_path, disk_floor=floor)
    monkeypatch.setattr(
        superlink, "shutil", types.SimpleNamespace(disk_usage=lambda _: types.SimpleNamespace(free=floor))
    )
    with start_superlink(tmp_path, disk_floor=floor) as link:  # room enough when it started
        link.admit(roster)
        with transport(link) as carrier:
            full = Scene(tmp_path, link, carrier)
            before = full.stored()
            name = carrier.send(str(full.alice._node.node_id), b"train", lasting=10.0)
            assert "disk is full" in collect(carrier, 1)[name].problem
            assert full.alice.receive() is None
            letter = Incoming(run=1, name="", kind="", declared=0, lasting=9.0, metadata=Metadata())
            with pytest.raises(Unreachable, match="disk is full"):  # which a site tries again
                pushed(full.alice, letter, cut(bytes(200_000)))
            with pytest.raises(Unreachable, match="disk is full"):
                full.alice.push(letter, "", "0" * 64, b"x")
            assert full.stored() - before < 100_000
            assert "make room" in (tmp_path / "link" / "superlink.log").read_text()
            full.close()


def test_no_name_of_a_call_was_forgotten() -> None:
    """The calls that hand something over, a site's and a coordinator's, are those that the disk's floor holds for."""
    from quietsum.federation.flower import gate

    assert {path for path in gate._FLEET if "push" in path} <= gate._PUSHES
    others = {path for path in gate._PUSHES if path not in gate._FLEET}
    assert others == {"/v1/runtime/push-object", "/v1/runtime/push-messages"}
    text = inspect.getsource(RuntimeHttpClient)
    assert all(f'"{path}"' in text for path in others), "as Flower spells them"

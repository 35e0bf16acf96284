"""The transport over a real SuperLink on loopback, with TLS and node keys; sites are processes of their own."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.primitives.asymmetric import sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from federation.flower.trial import PATIENCE, Sites, answered, collect, make_keys, start_superlink, transport, until
from quietsum.errors import InvalidParameter
from quietsum.federation.flower.coordinator import CarrierGone, FlowerTransport
from quietsum.federation.flower.flwr_calls import Access
from quietsum.federation.flower.flwr_coordinator import CoordinatorEnd, gate_word, public_key_to_bytes
from quietsum.federation.flower.gate import (
    CALL_LIMIT,
    KEY_HEADER,
    OBJECT_LIMIT,
    REQUEST_LIMIT,
    SECRET_HEADER,
    SIGNATURE_HEADER,
    TIME_HEADER,
)
from quietsum.federation.flower.node import serve_node
from quietsum.federation.flower.parcel import CHUNK, INLINE, LIMIT, Parcel, cut
from quietsum.federation.flower.replies import objects_of
from quietsum.federation.flower.superlink import SuperLink, SuperLinkFailed, read_access
from quietsum.federation.remote.transport import Arrival
from quietsum.identity.nodekeys import read_node_key

pytestmark = pytest.mark.slow
NAMES = ("Basel", "Cleveland", "Hungary")
SPARE = ("Dublin", "Porto", "Zurich")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    folder: Path
    link: SuperLink
    sites: Sites
    roster: dict[str, ec.EllipticCurvePublicKey]

    def node(self, carrier: FlowerTransport, name: str) -> str:
        """The node of a site, once it is connected."""
        wanted = public_key_to_bytes(self.roster[name])
        until(lambda: wanted in carrier.keys().values())
        return next(node for node, key in carrier.keys().items() if key == wanted)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    folder = tmp_path_factory.mktemp("trial")
    roster = make_keys(folder, NAMES + SPARE)
    make_stranger(folder)
    with start_superlink(folder) as link:
        sites = Sites(folder, link.address)
        try:
            for name in NAMES:
                sites.start(name)
            until(lambda: "does not answer (HTTP 503)" in sites.log(NAMES[0]).read_text())  # nobody is let in yet
            link.admit(roster)
            yield Trial(folder=folder, link=link, sites=sites, roster=roster)
        finally:
            sites.end()


def make_stranger(folder: Path) -> None:
    other = folder / "elsewhere"
    other.mkdir()
    make_keys(other, ["Stranger"])
    (other / "Stranger.key").rename(folder / "Stranger.key")


@pytest.fixture(scope="module")
def carrier(trial: Trial) -> Iterator[FlowerTransport]:
    with transport(trial.link) as made:
        until(lambda: len(made.nodes()) == len(NAMES))
        yield made


@pytest.mark.parametrize("size", [0, 1000, 5_000_000])
@pytest.mark.some(2)
def test_content_of_any_size_travels_both_ways(trial: Trial, carrier: FlowerTransport, size: int) -> None:
    content = os.urandom(size)
    sent = {carrier.send(trial.node(carrier, name), content, lasting=PATIENCE): name for name in NAMES}
    arrived = collect(carrier, len(NAMES))
    assert {sent[message]: (one.content, one.problem) for message, one in arrived.items()} == {
        name: (name.encode() + b":" + content, "") for name in NAMES
    }


def test_an_unregistered_key_is_refused_in_words(trial: Trial) -> None:
    stranger = trial.sites.start("Stranger")
    assert stranger.wait(PATIENCE) == 1
    assert "does not know this node's key" in trial.sites.log("Stranger").read_text()


@pytest.mark.long
def test_a_site_killed_in_the_middle_of_its_upload_delays_nobody_and_comes_back(
    trial: Trial, carrier: FlowerTransport
) -> None:
    sign = trial.folder / "dublin.sign"
    dublin = trial.sites.start("Dublin", str(sign))
    node = trial.node(carrier, "Dublin")
    early: dict[str, Arrival] = {}

    def asked() -> str:
        """The message that the site is about to answer; on a slow day one may be too old before the site has it."""
        message = carrier.send(node, b"grow 8000000", lasting=8)
        until(
            lambda: (
                sign.exists() or early.update({one.message: one for one in carrier.receive(0.1)}) or message in early
            )
        )
        return message if sign.exists() else asked()

    lost = asked()
    dublin.kill()
    dublin.wait()
    echo = carrier.send(trial.node(carrier, "Basel"), b"still here", lasting=PATIENCE)
    arrived = early | collect(carrier, 2 - (lost in early))  # Flower's own client would wait for the dead one, 180 s
    assert arrived[echo].content == b"Basel:still here"
    assert arrived[lost].problem and not arrived[lost].content
    again = trial.sites.start("Dublin")
    until(lambda: trial.sites.log("Dublin").read_text().count("connected") >= 2)  # the first was the killed one's
    assert answered(carrier, node, b"back") == b"Dublin:back"
    again.terminate()
    assert again.wait(PATIENCE) == 0


def test_told_to_end_a_site_finishes_its_answer_first_and_is_gone_at_once(
    trial: Trial, carrier: FlowerTransport
) -> None:
    porto = trial.sites.start("Porto")
    node = trial.node(carrier, "Porto")
    message = carrier.send(node, b"slow", lasting=PATIENCE)
    until((trial.folder / "slow.sign").exists)
    porto.terminate()
    assert collect(carrier, 1)[message].content == b"Porto:slow"
    assert porto.wait(PATIENCE) == 0
    told = trial.folder / "link" / "superlink.log"
    assert f"Deactivated node_id={node}" in told.read_text()  # it has said so; missed heartbeats are not needed
    until(lambda: node not in carrier.nodes())


def test_a_reply_that_is_too_large_is_a_problem_and_is_not_fetched(trial: Trial) -> None:
    with transport(trial.link, limit=1_000_000) as small:
        message = small.send(trial.node(small, "Basel"), b"grow 5000000", lasting=PATIENCE)
        found = collect(small, 1)[message]
        assert "too large" in found.problem
        assert found.content == b""
        message = small.send(
            trial.node(small, "Basel"), b"grow 13000000", lasting=PATIENCE
        )  # more than the site itself sends
        assert "too large" in collect(small, 1)[message].problem
        with pytest.raises(InvalidParameter, match="longer than this transport takes"):
            small.send(trial.node(small, "Basel"), bytes(1_000_001), lasting=PATIENCE)


def test_a_failing_answer_is_a_problem_and_the_site_goes_on(trial: Trial, carrier: FlowerTransport) -> None:
    node = trial.node(carrier, "Basel")
    failed = carrier.send(node, b"fail", lasting=PATIENCE)
    assert collect(carrier, 1)[failed].problem == "the site could not answer"  # and no word of what went wrong
    fine = carrier.send(node, b"ok", lasting=PATIENCE)
    assert collect(carrier, 1)[fine].content == b"Basel:ok"


def test_messages_that_are_not_ours_get_no_answer_and_harm_nobody(trial: Trial, carrier: FlowerTransport) -> None:
    node = trial.node(carrier, "Cleveland")
    end = CoordinatorEnd(trial.link.access)
    end.open_run()

    def push(parcel: Parcel, kind: str) -> None:
        missing, session = end.announce(node, parcel, lasting=PATIENCE, kind=kind)
        for name in missing:
            end.push(session, name, parcel.object(name))

    honest = cut(b"hello")
    push(cut(b"train, please"), "train")
    push(dataclasses.replace(cut(b"short"), length=7), "query.quietsum")  # declares more than there is
    push(dataclasses.replace(cut(b"long"), length=2), "query.quietsum")  # declares less
    push(dataclasses.replace(cut(b"?"), length=-1), "query.quietsum")  # declares nothing
    push(dataclasses.replace(cut(b"huge"), length=10**12), "query.quietsum")  # answered with a problem, not fetched
    push(honest, "query.quietsum")
    found: list[Any] = []

    def heard() -> bool:
        found.extend(end.replies([honest.root]))
        return bool(found)

    until(heard)
    assert [reply.declared for reply in found] == [len(b"Cleveland:hello")]
    end.finish()
    end.close()
    assert "of another kind" in trial.sites.log("Cleveland").read_text()


def test_what_is_forgotten_never_arrives(trial: Trial, carrier: FlowerTransport) -> None:
    node = trial.node(carrier, "Hungary")
    forgotten = carrier.send(node, b"grow 6000000", lasting=PATIENCE)
    carrier.forget(forgotten)
    carrier.forget("nobody's")
    kept = carrier.send(node, b"kept", lasting=PATIENCE)
    assert set(collect(carrier, 1)) == {kept}
    assert carrier.receive(1.0) == ()


def test_an_unknown_node_is_a_problem(carrier: FlowerTransport) -> None:
    message = carrier.send("12345", b"who?", lasting=PATIENCE)
    assert "not taken" in collect(carrier, 1)[message].problem


def test_a_run_that_flower_gave_up_is_replaced_by_a_new_one(trial: Trial) -> None:
    with transport(trial.link) as made:
        node = trial.node(made, "Basel")
        made._end.finish()  # behind its back, as SuperLink does when heartbeats stay out
        message = made.send(node, b"lost or not", lasting=PATIENCE)
        first = collect(made, 1)[message]
        assert first.content == b"Basel:lost or not" or "given up" in first.problem
        message = made.send(node, b"again", lasting=PATIENCE)
        while (found := collect(made, 1)[message]).problem:
            assert "given up" in found.problem
            message = made.send(node, b"again", lasting=PATIENCE)
        assert found.content == b"Basel:again"


def test_two_coordinators_share_a_superlink(trial: Trial, carrier: FlowerTransport) -> None:
    with transport(trial.link) as second:
        node = trial.node(second, "Basel")
        one, two = carrier.send(node, b"one", lasting=PATIENCE), second.send(node, b"two", lasting=PATIENCE)
        assert collect(carrier, 1)[one].content == b"Basel:one"
        assert collect(second, 1)[two].content == b"Basel:two"


def test_a_closed_transport_says_so(trial: Trial) -> None:
    made = FlowerTransport(trial.link.access)
    made.close()
    made.close()
    assert made.receive(30) == ()  # returns at once
    with pytest.raises(CarrierGone, match="closed"):
        made.send("1", b"", lasting=1)


def test_what_nobody_fetched_is_gone_when_the_run_is_over(trial: Trial) -> None:
    marker = os.urandom(64)
    with transport(trial.link) as made:
        node = trial.node(made, "Basel")
        made.forget(made.send(node, marker * (INLINE // 64 + 100), lasting=PATIENCE))
        message = made.send(node, b"x", lasting=PATIENCE)
        collect(made, 1)[message]
    until(lambda: marker not in database(trial))


def database(trial: Trial) -> bytes:
    import sqlite3

    with contextlib.closing(sqlite3.connect(f"file:{trial.link._folder}/superlink.db?mode=ro", uri=True)) as connection:
        return b"".join(row[0] for row in connection.execute("select content from objects"))


def test_only_the_calls_of_nodes_are_open_to_the_world(trial: Trial) -> None:
    tls = ssl.create_default_context(cafile=str(trial.folder / "ca.crt"))
    secret = {SECRET_HEADER: trial.link.access.secret, "content-type": PROTOBUF_MEDIA_TYPE}
    with httpx.Client(verify=tls, trust_env=False) as client:

        def status(base: str, path: str, headers: dict[str, str], content: bytes = b"") -> int:
            return client.post(f"https://{base}{path}", headers=headers, content=content).status_code

        public, private = trial.link.address, trial.link.access.address
        for path in ("/v1/control/list-nodes", "/v1/control/start-run", "/v1/runtime/acquire-task", "/docs"):
            assert status(public, path, secret) == 404
            assert status(private, path, {"content-type": PROTOBUF_MEDIA_TYPE}) == 404
            assert status(private, path, secret | {SECRET_HEADER: "wrong"}) == 404
        assert status(public, "/v1/fleet/get-fab", secret) == 404  # no code is fetched, so none is to be had
        assert status(public, "/v1/fleet/register-node", secret) == 404
        assert status(private, "/v1/control/list-nodes", secret) == 200  # the door is there, for who has the key
        known = secret | {KEY_HEADER: gate_word(trial.roster["Basel"])}
        assert status(public, "/v1/fleet/pull-messages", secret) == 412  # nobody's call
        assert status(public, "/v1/fleet/pull-messages", known) == 401  # a known key, and no signature
        assert status(public, "/v1/fleet/push-object", known, b"x" * 1000) == 401  # and its body is not read
        assert status(public, "/v1/fleet/push-object", known | _signed(trial, "Basel"), bytes(OBJECT_LIMIT + 1)) == 413


def _signed(trial: Trial, name: str) -> dict[str, str]:
    key, now = read_node_key(trial.folder / f"{name}.key"), datetime.datetime.now(datetime.UTC).isoformat()
    signature = base64.b64encode(sign_message(key, now.encode())).decode()
    return {TIME_HEADER: now, SIGNATURE_HEADER: signature}


def test_the_files_of_a_superlink_are_its_owners_alone(trial: Trial) -> None:
    for path in (trial.folder / "link").iterdir():
        if path.is_file():
            assert path.stat().st_mode & 0o077 == 0, path
    assert read_access(trial.folder / "link") == trial.link.access


def test_a_key_taken_off_the_roster_is_out(trial: Trial, carrier: FlowerTransport) -> None:
    zurich = trial.sites.start("Zurich")
    node = trial.node(carrier, "Zurich")
    trial.link.admit({name: key for name, key in trial.roster.items() if name != "Zurich"})
    assert zurich.wait(PATIENCE) == 1
    assert "does not know this node's key" in trial.sites.log("Zurich").read_text()
    trial.link.admit(trial.roster)
    trial.sites.start("Zurich")  # and in again
    until(lambda: trial.sites.log("Zurich").read_text().count("connected") >= 2)
    assert answered(carrier, node, b"back") == b"Zurich:back"


@pytest.mark.long
def test_a_superlink_that_died_and_came_back_is_found_again(tmp_path: Path) -> None:
    roster = make_keys(tmp_path, ["Basel"])
    link = start_superlink(tmp_path)
    sites = Sites(tmp_path, link.address)
    try:
        link.admit(roster)
        sites.start("Basel")
        with transport(link, grace=8.0) as made:
            until(made.nodes)
            (node,) = made.nodes()
            os.kill(link.pid, signal.SIGKILL)
            link.close()
            waiting = made.send(node, b"sent while it was away", lasting=PATIENCE)
            until(lambda: not made.nodes())
            with pytest.raises(CarrierGone, match="has not answered"):
                made.send(node, b"", lasting=1)
            link = start_superlink(tmp_path, port=link.port)
            link.admit(roster)
            first = collect(made, 1)[waiting]  # it waited, unless the SuperLink heard of it before the site was back
            assert first.content == b"Basel:sent while it was away" or first.problem, first
            until(lambda: sites.log("Basel").read_text().count("connected") >= 2)
            assert answered(made, node, b"again") == b"Basel:again"
    finally:
        sites.end()
        link.close()


def test_a_superlink_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    make_keys(tmp_path, [])
    program = (
        "import sys, time, pathlib; sys.path.insert(0, sys.argv[1])\n"
        "from federation.flower.trial import start_superlink\n"
        "print(start_superlink(pathlib.Path(sys.argv[2])).pid, flush=True); time.sleep(600)"
    )
    tests = str(Path(__file__).parents[2])
    parent = subprocess.Popen([sys.executable, "-c", program, tests, str(tmp_path)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.kill()
    parent.wait()
    until(lambda: not alive(child))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_without_tls_on_loopback_only_and_only_when_asked(tmp_path: Path) -> None:
    roster = make_keys(tmp_path, ["Basel"])
    with pytest.raises(InvalidParameter, match="in the clear"):
        SuperLink(tmp_path / "open", host="0.0.0.0", insecure=True)
    with pytest.raises(InvalidParameter, match="is needed"):
        SuperLink(tmp_path / "open")
    key, stop = tmp_path / "Basel.key", threading.Event()
    with pytest.raises(InvalidParameter, match="in the clear"):
        serve_node(bytes, address="10.0.0.1:9", root_certificate=None, node_key=key, insecure=True, stop=stop)
    with SuperLink(tmp_path / "open", insecure=True) as link:
        link.admit(roster)
        with pytest.raises(SuperLinkFailed, match="cannot be listened on"):
            SuperLink(tmp_path / "second", port=link.port, insecure=True)
        node = threading.Thread(
            target=serve_node,
            args=(bytes.upper,),
            kwargs={
                "address": link.address,
                "root_certificate": None,
                "node_key": key,
                "insecure": True,
                "stop": stop,
            },
        )
        node.start()
        try:
            with transport(link) as made:
                until(made.nodes)
                message = made.send(made.nodes()[0], b"plain", lasting=PATIENCE)
                assert collect(made, 1)[message].content == b"PLAIN"
        finally:
            stop.set()
            node.join(PATIENCE)
        assert not node.is_alive()


def test_another_certificate_than_the_pinned_one_is_no_superlink_of_ours(trial: Trial, tmp_path: Path) -> None:
    make_keys(tmp_path, [])
    foreign = Access(
        address=trial.link.access.address,
        secret=trial.link.access.secret,
        certificate=(tmp_path / "server.crt").read_text(),
    )
    with pytest.raises(CarrierGone, match="CERTIFICATE_VERIFY_FAILED"):
        FlowerTransport(foreign, patience=0.5)
    with pytest.raises(CarrierGone, match="no run could be opened"):
        FlowerTransport(dataclasses.replace(trial.link.access, secret="guess"), patience=5)


def test_chunks_are_smaller_than_what_the_gate_takes() -> None:
    wrapping = 1000
    names = 65 * objects_of(LIMIT)
    assert CHUNK + wrapping < OBJECT_LIMIT < REQUEST_LIMIT
    assert INLINE + names + wrapping < OBJECT_LIMIT
    assert 70 * objects_of(LIMIT) + wrapping < CALL_LIMIT

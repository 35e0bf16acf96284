"""Every transport of ours keeps the contract of transports, and the contract catches those that do not."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from federation.flower import trial
from quietsum.contracts import TransportContract
from quietsum.federation.flower.coordinator import FlowerTransport
from quietsum.federation.flower.node import serve_node
from quietsum.federation.flower.superlink import SuperLink
from quietsum.federation.remote.transport import Arrival, ListTransport, Transport

Answers = Mapping[str, Callable[[bytes], bytes]]


class TestLists(TransportContract):
    answers_elsewhere = False

    def make(self, answers: Answers, limit: int) -> tuple[Transport, Mapping[str, str]]:
        return ListTransport(answers, limit=limit), {name: name for name in answers}


@pytest.mark.slow
class TestFlower(TransportContract):
    """Over a real SuperLink, with sites as threads of this process."""

    patience = trial.PATIENCE
    unknown = "4711"
    keeps_order = False

    @pytest.fixture(autouse=True)
    def somewhere(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self, answers: Answers, limit: int) -> tuple[Transport, Mapping[str, str]]:
        self.stop, self.nodes = threading.Event(), list[threading.Thread]()
        roster = trial.make_keys(self.folder, list(answers))
        self.link: SuperLink = trial.start_superlink(self.folder)
        self.link.admit(roster)
        carrier, found = FlowerTransport(self.link.access, limit=limit), dict[str, str]()
        for name, answer in answers.items():
            words = {
                "address": self.link.address, "root_certificate": self.folder / "ca.crt",
                "node_key": self.folder / f"{name}.key", "stop": self.stop,
            }  # fmt: skip
            node = threading.Thread(target=serve_node, args=(answer,), kwargs=words, daemon=True)
            node.start()
            self.nodes.append(node)
            trial.until(lambda: set(carrier.nodes()) - set(found.values()))
            (found[name],) = set(carrier.nodes()) - set(found.values())
        return carrier, found

    def end(self) -> None:
        self.stop.set()
        for node in self.nodes:
            node.join(30.0)
        self.link.close()


# -------------------------------------------------------------------------------------- broken transports


class Repeats(ListTransport):
    """Every reply is handed over twice, the second time at the next look."""

    def __init__(self, sites: Answers, *, limit: int | None = None) -> None:
        super().__init__(sites, limit=limit)
        self.last: Sequence[Arrival] = ()

    def receive(self, wait: float) -> Sequence[Arrival]:
        found, self.last = [*self.last], super().receive(wait)
        return (*found, *self.last)


class NamesByContent(ListTransport):
    """A message is named by what it holds."""

    def receive(self, wait: float) -> Sequence[Arrival]:
        return [dataclasses.replace(one, message=str(hash(self.sent[int(one.message)]))) for one in super().receive(0)]

    def send(self, node: str, content: bytes, *, lasting: float) -> str:
        super().send(node, content, lasting=lasting)
        return str(hash((node, content)))


class Mixes(ListTransport):
    """Replies arrive under each other's names."""

    def receive(self, wait: float) -> Sequence[Arrival]:
        found = super().receive(wait)
        names = [one.message for one in found]
        moved = zip(found, names[1:] + names[:1], strict=True)
        return [dataclasses.replace(one, message=name) for one, name in moved]


class Strips(ListTransport):
    """Zeros at the end of a reply are taken for padding."""

    def receive(self, wait: float) -> Sequence[Arrival]:
        return [dataclasses.replace(one, content=one.content.rstrip(b"\0")) for one in super().receive(wait)]


class Text(ListTransport):
    """Content is carried as text."""

    def send(self, node: str, content: bytes, *, lasting: float) -> str:
        return super().send(node, content.decode("ascii", "replace").encode(), lasting=lasting)


class TakesAll(ListTransport):
    """The limit is not looked at."""

    def __init__(self, sites: Answers, *, limit: int | None = None) -> None:
        super().__init__(sites)


class Truncates(ListTransport):
    """What is too long is cut and handed over."""

    def __init__(self, sites: Answers, *, limit: int | None = None) -> None:
        super().__init__(sites)
        self.spoil = lambda node, content: content[:limit]


class Keeps(ListTransport):
    """What is forgotten arrives all the same."""

    def forget(self, message: str) -> None:
        return


class KnowsAll(ListTransport):
    """Forgetting a message that was never sent is an error."""

    def forget(self, message: str) -> None:
        assert message in self._waiting, "no such message"
        super().forget(message)


class Silent(ListTransport):
    """A message to a node that is not there is dropped without a word."""

    def receive(self, wait: float) -> Sequence[Arrival]:
        return [one for one in super().receive(wait) if one.problem != "the node is gone"]


class Stands(ListTransport):
    """A look for replies takes three seconds."""

    def receive(self, wait: float) -> Sequence[Arrival]:
        found = super().receive(wait)
        if not found:
            time.sleep(3.0)
        return found


class AnswersAtOnce(ListTransport):
    """A message is answered while it is sent."""

    def send(self, node: str, content: bytes, *, lasting: float) -> str:
        name = super().send(node, content, lasting=lasting)
        if node in self.sites:
            self.sites[node](content)
        return name


class Reorders(ListTransport):
    """The newest reply first, and nothing is said of that."""

    def receive(self, wait: float) -> Sequence[Arrival]:
        return super().receive(wait)[::-1]


class SeesDouble(ListTransport):
    """A node that has come back is listed twice."""

    def nodes(self) -> Sequence[str]:
        return (*super().nodes(), *super().nodes())


class NeverCloses(ListTransport):
    """A closed transport goes on."""

    def close(self) -> None:
        return


class ClosesOnce(ListTransport):
    """A second end is an error."""

    times = 0

    def close(self) -> None:
        self.times += 1
        assert self.times != 2, "it was closed before"
        super().close()


ONCE = "test_a_reply_arrives_once_under_the_name_of_its_message"
BYTES = "test_content_arrives_byte_for_byte_both_ways"
LIMIT = "test_a_reply_of_the_limit_arrives_and_a_longer_one_is_a_problem"
FORGOTTEN = "test_a_forgotten_message_brings_nothing"
CLOSED = "test_a_closed_transport_takes_no_message"
CONTROLS: list[tuple[type[ListTransport], str]] = [
    (Repeats, ONCE),
    (Mixes, ONCE),
    (NamesByContent, "test_the_same_content_sent_twice_is_two_messages"),
    (Text, BYTES),
    (Strips, LIMIT),
    (TakesAll, LIMIT),
    (Truncates, LIMIT),
    (Keeps, FORGOTTEN),
    (KnowsAll, FORGOTTEN),
    (Silent, "test_a_message_to_an_unknown_node_is_a_problem"),
    (Stands, "test_waiting_for_nothing_ends_in_time"),
    (AnswersAtOnce, "test_sending_does_not_wait_for_the_answer"),
    (Reorders, "test_replies_of_a_node_keep_their_order_where_the_transport_says_so"),
    (SeesDouble, "test_connected_nodes_are_named_once"),
    (NeverCloses, CLOSED),
    (ClosesOnce, CLOSED),
]


def contract_of(kind: type[ListTransport]) -> TransportContract:
    class Broken(TransportContract):
        patience, answers_elsewhere = 2.0, False

        def make(self, answers: Answers, limit: int) -> tuple[Transport, Mapping[str, str]]:
            return kind(answers, limit=limit), {name: name for name in answers}

    return Broken()


@pytest.mark.parametrize(("broken", "promise"), CONTROLS, ids=[kind.__name__ for kind, _ in CONTROLS])
def test_a_broken_transport_is_caught_by_the_test_of_its_promise(broken: type[ListTransport], promise: str) -> None:
    with pytest.raises(AssertionError):
        getattr(contract_of(broken), promise)()


@pytest.mark.parametrize("promise", sorted({promise for _, promise in CONTROLS}))
def test_the_control_an_honest_transport_passes(promise: str) -> None:
    getattr(contract_of(ListTransport), promise)()


def test_each_promise_has_a_broken_transport() -> None:
    promises = {name for name in dir(TransportContract) if name.startswith("test_")}
    assert promises == {promise for _, promise in CONTROLS}


def test_a_transport_that_waits_for_a_silent_site_is_caught() -> None:
    class Elsewhere(TransportContract):
        patience = 3.0

        def make(self, answers: Answers, limit: int) -> tuple[Transport, Mapping[str, str]]:
            return ListTransport(answers, limit=limit), {name: name for name in answers}

    with pytest.raises(AssertionError):
        Elsewhere().test_sending_does_not_wait_for_the_answer()

"""What every transport promises to a coordinator, as tests that anyone's can run.

A transport may lose, delay and reorder; :class:`~quietsum.federation.RemoteFederation` lives with that. What it may not
do is to make things up or to stand still: a reply comes once, under the name of its message and byte for byte, what is
too long is a problem instead of content, and no call takes longer than it says.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from quietsum.errors import QuietsumError
from quietsum.federation import Arrival, Transport

__all__ = ["TransportContract"]

_SLACK = 1.0  # seconds that a busy machine may add to a call


class TransportContract:
    """The suite. A subclass says how a transport over two sites is made.

    ``patience`` is how long a reply may take, in seconds; ``unknown`` a name that no node has; ``keeps_order`` whether
    replies of one node come in the order of its messages; ``answers_elsewhere`` False for a transport whose sites work
    in the thread of :meth:`~quietsum.federation.Transport.receive`, so that a site that takes its time takes the
    caller's.
    """

    patience = 10.0
    unknown = "no such node"
    keeps_order = True
    answers_elsewhere = True
    limit = 100_000
    sites = ("ann", "bea")

    def make(self, answers: Mapping[str, Callable[[bytes], bytes]], limit: int) -> tuple[Transport, Mapping[str, str]]:
        """A transport that takes replies of ``limit`` bytes, and the node of each site; they are connected."""
        raise NotImplementedError("say in a subclass how your transport is made")

    def end(self) -> None:
        """Let go of what :meth:`make` has started besides the transport."""

    # ------------------------------------------------------------------------------- words for the tests

    def _answer(self, name: str, content: bytes) -> bytes:
        """What a site says: its name and what came; or what was asked for, zeros without end."""
        if content.startswith(b"zeros "):
            return bytes(int(content.removeprefix(b"zeros ")))
        if content == b"wait":
            self._gate.wait(self.patience)
        return name.encode() + b":" + content

    def _open(self) -> Iterator[tuple[Transport, Mapping[str, str]]]:
        self._gate = threading.Event()

        def answer_as(name: str) -> Callable[[bytes], bytes]:
            return lambda content: self._answer(name, content)

        transport, nodes = self.make({name: answer_as(name) for name in self.sites}, self.limit)
        try:
            yield transport, nodes
        finally:
            self._gate.set()
            transport.close()
            self.end()

    def _receive(self, transport: Transport, count: int) -> list[Arrival]:
        """The next ``count`` arrivals, and any more that come with them."""
        found: list[Arrival] = []
        end = time.monotonic() + self.patience
        while len(found) < count and time.monotonic() < end:
            found.extend(transport.receive(0.2))
        return found

    def _contents(self, transport: Transport, messages: Sequence[str]) -> list[bytes]:
        """The replies to ``messages``, each of which must have come once and without a problem."""
        found = self._receive(transport, len(messages))
        assert sorted(one.message for one in found) == sorted(messages), "one arrival for each message, under its name"
        assert not any(one.problem for one in found)
        return [next(one.content for one in found if one.message == name) for name in messages]

    # --------------------------------------------------------------------------------------------- the suite

    def test_connected_nodes_are_named_once(self) -> None:
        """By names of the transport's own."""
        for transport, nodes in self._open():
            found = list(transport.nodes())
            assert set(nodes.values()) <= set(found) and len(found) == len(set(found))

    def test_a_reply_arrives_once_under_the_name_of_its_message(self) -> None:
        """From each site its own, and nothing more afterwards."""
        for transport, nodes in self._open():
            messages = [transport.send(nodes[name], b"hello", lasting=self.patience) for name in self.sites]
            assert self._contents(transport, messages) == [b"ann:hello", b"bea:hello"]
            assert list(transport.receive(0.3)) == []

    def test_the_same_content_sent_twice_is_two_messages(self) -> None:
        """Names are never used again."""
        for transport, nodes in self._open():
            messages = [transport.send(nodes["ann"], b"same", lasting=self.patience) for _ in range(3)]
            assert len(set(messages)) == 3
            assert self._contents(transport, messages) == [b"ann:same"] * 3

    def test_content_arrives_byte_for_byte_both_ways(self) -> None:
        """Nothing, every byte there is, and tens of kilobytes that cannot be compressed."""
        for transport, nodes in self._open():
            for content in (b"", bytes(range(256)), secrets.token_bytes(self.limit // 2)):
                message = transport.send(nodes["bea"], content, lasting=self.patience)
                assert self._contents(transport, [message]) == [b"bea:" + content]

    def test_a_reply_of_the_limit_arrives_and_a_longer_one_is_a_problem(self) -> None:
        """No part of it is handed over as content, and the next reply is as before."""
        for transport, nodes in self._open():
            message = transport.send(nodes["ann"], b"zeros %d" % self.limit, lasting=self.patience)
            assert self._contents(transport, [message]) == [bytes(self.limit)]
            message = transport.send(nodes["ann"], b"zeros %d" % (self.limit + 1), lasting=self.patience)
            found = self._receive(transport, 1)
            assert [one.message for one in found] == [message]
            assert found[0].problem.strip() and found[0].content == b"", "a problem, and nothing of the content"
            message = transport.send(nodes["ann"], b"after", lasting=self.patience)
            assert self._contents(transport, [message]) == [b"ann:after"]

    def test_a_message_to_an_unknown_node_is_a_problem(self) -> None:
        """An error of the call, or an arrival that says so; others are served."""
        for transport, nodes in self._open():
            try:
                unknown = transport.send(self.unknown, b"hello", lasting=self.patience)
            except QuietsumError:
                pass
            else:
                found = self._receive(transport, 1)
                assert [one.message for one in found] == [unknown], "a message ends in one arrival"
                assert found[0].problem.strip() and not found[0].content
            message = transport.send(nodes["ann"], b"hello", lasting=self.patience)
            assert self._contents(transport, [message]) == [b"ann:hello"]

    def test_replies_of_a_node_keep_their_order_where_the_transport_says_so(self) -> None:
        """The transport may say that it does not; the messages are then all there."""
        for transport, nodes in self._open():
            messages = [transport.send(nodes["ann"], b"%d" % place, lasting=self.patience) for place in range(5)]
            found = [one.message for one in self._receive(transport, 5)]
            assert sorted(found) == sorted(messages)
            assert not self.keeps_order or found == messages, "the order is another, and the transport does not say so"

    def test_a_forgotten_message_brings_nothing(self) -> None:
        """Also one whose reply is on its way; a name that was never given is no error."""
        for transport, nodes in self._open():
            forgotten = transport.send(nodes["ann"], b"never mind", lasting=self.patience)
            transport.forget(forgotten)
            transport.forget("a message that was never sent")
            wanted = transport.send(nodes["bea"], b"still here", lasting=self.patience)
            assert self._contents(transport, [wanted]) == [b"bea:still here"]
            assert list(transport.receive(0.3)) == []

    def test_waiting_for_nothing_ends_in_time(self) -> None:
        """Nothing is under way: the call takes what it was given, and no longer."""
        for transport, _ in self._open():
            began = time.monotonic()
            assert list(transport.receive(0.2)) == []
            assert time.monotonic() - began < 0.2 + _SLACK

    def test_sending_does_not_wait_for_the_answer(self) -> None:
        """A site takes its time; where it works elsewhere, looking for replies does not wait for it either."""
        for transport, nodes in self._open():
            began = time.monotonic()
            message = transport.send(nodes["ann"], b"wait", lasting=self.patience)
            assert time.monotonic() - began < _SLACK, "the call waited for the site"
            if self.answers_elsewhere:
                began = time.monotonic()
                assert list(transport.receive(0.2)) == []
                assert time.monotonic() - began < 0.2 + _SLACK, "the call waited for the site"
            self._gate.set()
            assert self._contents(transport, [message]) == [b"ann:wait"]

    def test_a_closed_transport_takes_no_message(self) -> None:
        """Closing twice is closing once; what was under way is dropped."""
        for transport, nodes in self._open():
            transport.send(nodes["ann"], b"under way", lasting=self.patience)
            transport.close()
            transport.close()
            assert list(transport.receive(0.2)) == []
            try:
                transport.send(nodes["ann"], b"hello", lasting=self.patience)
            except QuietsumError:
                continue
            raise AssertionError("a closed transport took a message")

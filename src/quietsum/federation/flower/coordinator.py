"""The coordinator's end: a :class:`~quietsum.federation.remote.transport.Transport` over a SuperLink.

Flower's own client waits inside its calls: three minutes where a node dies in the middle of an upload. Here every call
that a round makes returns at once, because three threads of our own do the talking:

- the *post* cuts content into objects and hands them over;
- the *watch* asks for replies, brings their objects in one by one, and never waits for one that is still on its way;
- the *pulse* keeps Flower from giving up the run.

They are daemons, and what they are in the middle of when a message is forgotten is dropped.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, final

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.federation.flower.node import LIMIT
from quietsum.federation.flower.parcel import Malformed, Opening, Parcel, cut
from quietsum.federation.remote.transport import Arrival
from quietsum.validate import positive, whole_number

if TYPE_CHECKING:
    from quietsum.federation.flower.flwr_calls import Access
    from quietsum.federation.flower.flwr_coordinator import Reply

__all__ = ["CarrierGone", "FlowerTransport"]

_log = logging.getLogger("quietsum")
_PACE = 0.15
_NODES_EVERY = 1.0


class CarrierGone(QuietsumError):
    """The SuperLink does not answer, or the transport was closed."""

    exit_code = 1


@final
@dataclasses.dataclass(kw_only=True, eq=False)
class _Message:
    """One message and what has become of it. ``root`` is its name at the SuperLink once it was handed over."""

    name: str
    node: str
    until: float
    root: str = ""
    reply: str = ""
    opening: Opening | None = None


@final
class FlowerTransport:
    """Messages to nodes and back over the SuperLink at ``access``, under a Flower run of its own.

    Guarantees: no call waits for a node or for the SuperLink (the constructor does, ``patience`` seconds at most);
    every message sent ends in one :class:`Arrival` or was forgotten; a reply longer than ``limit`` is a problem, and
    none of it is fetched. Where the SuperLink goes away and comes back, or has given up the run, this goes on by
    itself; what was on its way then may be lost, which is an arrival with a problem.
    """

    def __init__(self, access: Access, *, limit: int = LIMIT, patience: float = 30.0, grace: float = 15.0) -> None:
        from quietsum.federation.flower import flwr_calls
        from quietsum.federation.flower.flwr_coordinator import TASK_HEARTBEAT, CoordinatorEnd

        self._limit = whole_number("limit", limit, 1)
        self._grace = positive("grace", grace)
        self._calls, self._beat = flwr_calls, TASK_HEARTBEAT
        self._lock = threading.Condition()
        self._messages: dict[str, _Message] = {}
        self._arrived: collections.deque[Arrival] = collections.deque()
        self._posts: queue.SimpleQueue[tuple[_Message, bytes]] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._work = threading.Event()
        self._count = 0
        self._nodes: Mapping[str, bytes] = {}
        self._seen_nodes = self._heard = time.monotonic()
        self._last_cut: tuple[bytes, Parcel] | None = None
        self._end = CoordinatorEnd(access)
        self._pulses = CoordinatorEnd(access, seconds=5.0)
        self._open(positive("patience", patience))
        for work in (self._post, self._watch, self._pulse):
            threading.Thread(target=self._forever, args=(work,), name=f"quietsum{work.__name__}", daemon=True).start()

    def nodes(self) -> Sequence[str]:
        """The nodes that were connected a second ago, by Flower's numbers; none while the SuperLink is away."""
        return tuple(self.keys())

    def keys(self) -> Mapping[str, bytes]:
        """The connected nodes, each with the public key (PEM) it is registered with and signs by."""
        with self._lock:
            return dict(self._nodes) if time.monotonic() - self._heard < self._grace else {}

    def send(self, node: str, content: bytes, *, lasting: float) -> str:
        """See :meth:`quietsum.federation.remote.transport.Transport.send`. Returns at once; another thread does it."""
        lasting = positive("lasting", lasting)
        if len(content) > self._limit:
            raise InvalidParameter(
                "content",
                f"{len(content)} bytes",
                f"is longer than this transport takes ({self._limit})",
                "raise limit",
            )
        with self._lock:
            if self._closed.is_set():
                raise CarrierGone("this transport was closed")
            if (silent := time.monotonic() - self._heard) > self._grace:
                raise CarrierGone(f"the SuperLink has not answered for {silent:.0f} seconds; is it running?")
            self._count += 1
            message = _Message(name=f"{node}#{self._count}", node=node, until=time.monotonic() + lasting)
            self._messages[message.name] = message
        self._posts.put((message, content))
        return message.name

    def receive(self, wait: float) -> Sequence[Arrival]:
        """See :meth:`quietsum.federation.remote.transport.Transport.receive`."""
        with self._lock:
            self._lock.wait_for(lambda: bool(self._arrived) or self._closed.is_set(), timeout=max(0.0, wait))
            found = tuple(self._arrived)
            self._arrived.clear()
            return found

    def forget(self, message: str) -> None:
        """See :meth:`quietsum.federation.remote.transport.Transport.forget`."""
        with self._lock:
            self._messages.pop(message, None)
            self._arrived = collections.deque(one for one in self._arrived if one.message != message)

    def close(self) -> None:
        """End the run and let go. What the SuperLink does not take within two seconds, it finds out by itself."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            self._messages.clear()
            self._arrived.clear()
            self._lock.notify_all()
        ending = threading.Thread(target=self._finish, name="quietsum_finish", daemon=True)
        ending.start()
        ending.join(2.0)

    # -- the three threads ----------------------------------------------------------------------------------------

    def _forever(self, work: Callable[[], None]) -> None:
        """Do ``work`` again and again; nothing that it meets ends the thread before the transport is closed."""
        while not self._closed.is_set():
            try:
                work()
            except self._calls.Unreachable as problem:
                _log.debug("the SuperLink does not answer: %s", problem)
                self._closed.wait(0.5)
            except self._calls.RunLost:
                if work == self._watch:
                    self._go_on()
                else:  # one thread opens the new run, the others find it
                    self._closed.wait(0.5)
            except Exception:
                if not self._closed.is_set():
                    _log.exception("the connection with the SuperLink met something unforeseen; going on")
                    self._closed.wait(1.0)

    def _post(self) -> None:
        try:
            message, content = self._posts.get(timeout=0.5)
        except queue.Empty:
            return
        if self._last_cut is None or self._last_cut[0] is not content:
            self._last_cut = (content, cut(content))
        parcel = self._last_cut[1].again()  # the same in every try: handed over twice, it is one message to Flower
        if self._posts.empty():
            self._last_cut = None
        wait = 0.1
        while self._is_wanted(message):
            try:
                self._hand_over(message, parcel)
                return
            except self._calls.CallRefused as refused:
                self._arrive(message, problem=f"the message was not taken: {refused.text}")
                return
            except self._calls.Unreachable as problem:
                if time.monotonic() + wait > message.until:
                    self._arrive(message, problem=f"the message could not be handed over in time: {problem}")
                    return
                self._closed.wait(wait)
                wait = min(2.0, wait * 1.5)
            except self._calls.RunLost:
                self._arrive(message, problem="the SuperLink has given up the run")
                raise

    def _hand_over(self, message: _Message, parcel: Parcel) -> None:
        left = message.until - time.monotonic()
        missing, session = self._end.announce(message.node, parcel, lasting=max(0.1, left))
        for name in (*parcel.chunks, parcel.root):
            if name in missing:
                self._end.push(session, name, parcel.object(name))
        self._hear()
        with self._lock:
            message.root = parcel.root
        self._work.set()

    def _watch(self) -> None:
        with self._lock:
            waiting = {one.root: one for one in self._messages.values() if one.root and not one.reply}
            late = [one for one in self._messages.values() if time.monotonic() > one.until]
        for message in late:
            self._arrive(message, problem="no reply in time")
        if waiting:
            for reply in self._end.replies(waiting):  # the SuperLink tells of each once: take note of all, then fetch
                if (answered := waiting.get(reply.to)) is not None:
                    self._note(answered, reply)
            self._hear()
        with self._lock:
            coming = [one for one in self._messages.values() if one.opening is not None]
        for message in coming:
            self._bring(message)
        if time.monotonic() - self._seen_nodes > _NODES_EVERY:
            self._see_nodes()
        self._work.wait(_PACE)
        self._work.clear()

    def _note(self, message: _Message, reply: Reply) -> None:
        if reply.problem or reply.declared < 0:
            self._arrive(message, problem=reply.problem or "a reply of another form")
        elif reply.declared > self._limit:
            self._arrive(message, problem=f"the reply is too large: {reply.declared} bytes, the limit is {self._limit}")
        else:
            with self._lock:
                message.reply, message.opening = reply.root, Opening(reply.root, declared=reply.declared)

    def _bring(self, message: _Message) -> None:
        """Fetch what is there of a reply, and come back for the rest another time."""
        assert message.opening is not None
        try:
            while (name := message.opening.wanted) is not None:
                found = self._end.pull(name) if self._is_wanted(message) else None
                if found is None:
                    return
                message.opening.take(found)
            content = message.opening.content()
        except (Malformed, self._calls.CallRefused) as problem:
            self._arrive(message, problem=f"the reply is broken: {problem}")
            return
        self._arrive(message, content=content)
        self._end.confirm(message.reply)

    def _pulse(self) -> None:
        self._pulses.heartbeat()
        self._hear()
        self._closed.wait(self._beat)

    # -- what they share ------------------------------------------------------------------------------------------

    def _open(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        while True:
            try:
                self._end.open_run()
                self._pulses.share(self._end)
                self._see_nodes()
                return
            except (self._calls.Unreachable, self._calls.CallRefused, self._calls.RunLost) as problem:
                if time.monotonic() > deadline or isinstance(problem, self._calls.CallRefused):
                    self._end.close()
                    self._pulses.close()
                    raise CarrierGone(f"no run could be opened at the SuperLink: {problem}") from None
                time.sleep(0.2)

    def _go_on(self) -> None:
        """Flower gave the run up: what was on its way is lost, and a new run goes on."""
        with self._lock:
            lost = [one for one in self._messages.values() if one.root]
        for message in lost:
            self._arrive(message, problem="the SuperLink has given up the run")
        try:
            self._end.open_run()
            self._pulses.share(self._end)
            _log.warning("the SuperLink had given up the run; a new one goes on")
        except (self._calls.Unreachable, self._calls.CallRefused, self._calls.RunLost) as problem:
            _log.debug("no new run yet: %s", problem)
            self._closed.wait(1.0)

    def _see_nodes(self) -> None:
        found = self._end.nodes()
        with self._lock:
            self._nodes = found
        self._seen_nodes = time.monotonic()
        self._hear()

    def _hear(self) -> None:
        with self._lock:
            self._heard = time.monotonic()

    def _is_wanted(self, message: _Message) -> bool:
        with self._lock:
            return message.name in self._messages and not self._closed.is_set()

    def _arrive(self, message: _Message, *, content: bytes = b"", problem: str = "") -> None:
        with self._lock:
            if self._messages.pop(message.name, None) is not None and not self._closed.is_set():
                self._arrived.append(Arrival(message=message.name, content=content, problem=problem))
                self._lock.notify_all()

    def _finish(self) -> None:
        try:
            self._pulses.finish()
        except (self._calls.Unreachable, self._calls.CallRefused, self._calls.RunLost) as problem:
            _log.debug("the SuperLink could not be reached to end the run: %s", problem)
        self._end.close()
        self._pulses.close()

"""A whole session in one process, with a hand on every message: what the tests of the protocol play on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietsum.secagg import keys
from quietsum.secagg.messages import REVEALING, SessionTerms, Step
from quietsum.secagg.outcomes import Reason, Refused, SessionOutcome
from quietsum.secagg.parameters import Adversary, Parameters, choose_groups
from quietsum.secagg.party import Demands, Party
from quietsum.secagg.server import Server

ANSWERS = (Step.ADVERTISE, Step.SHARE, Step.MASKED, Step.AGREE, Step.UNMASK)
MODEL, PLAN = "a1" * 32, "b2" * 32

Question = Callable[[Step, str, bytes], bytes | None]
Answer = Callable[[Step, str, bytes], bytes | None]


def complete(count: int, *, threshold: int, adversary: Adversary = Adversary.CURIOUS) -> Parameters:
    """The complete graph, one colluder, as many drop-outs as the threshold leaves."""
    return Parameters(
        parties=count,
        neighbours=count - 1,
        threshold=threshold,
        adversary=adversary,
        corrupt=1,
        may_drop=count - threshold,
    )


def sparse(count: int, *, neighbours: int, threshold: int, may_drop: int = 0) -> Parameters:
    """A ring with ``neighbours`` for each, one colluder."""
    return Parameters(
        parties=count,
        neighbours=neighbours,
        threshold=threshold,
        adversary=Adversary.CURIOUS,
        corrupt=1,
        may_drop=may_drop,
    )


def grouped(count: int, groups: int, *, adversary: Adversary = Adversary.SEMI_MALICIOUS, **more: Any) -> Parameters:
    """Random groups with the complete graph in each, one colluder, as many drop-outs as the threshold leaves."""
    return choose_groups(count, groups, **{"corrupt": 1, "adversary": adversary, **more})


def names_of(count: int) -> list[str]:
    return [f"site-{number:02d}" for number in range(count)]


_PEOPLE: dict[str, keys.Identity] = {}


def identity_of(name: str) -> keys.Identity:
    """One identity a name for the whole process; only session keys are fresh."""
    if name not in _PEOPLE:
        _PEOPLE[name] = keys.Identity.fresh()
    return _PEOPLE[name]


def terms_of(parameters: Parameters, **changed: Any) -> SessionTerms:
    plain: dict[str, Any] = {
        "run": "r-1",
        "round": 3,
        "attempt": 0,
        "model": MODEL,
        "plan": PLAN,
        "dimension": 5,
        "parameters": parameters,
        "floor": parameters.threshold,
    }
    return SessionTerms(**(plain | changed))


@dataclasses.dataclass
class Played:
    """What came of a session."""

    server: Server
    parties: Mapping[str, Party]
    inputs: Mapping[str, NDArray[np.uint32]]
    refused: dict[tuple[Step, str], Reason] = dataclasses.field(default_factory=dict)  # by parties, per question
    turned_away: dict[tuple[Step, str], Reason] = dataclasses.field(default_factory=dict)  # by the server, per answer
    messages: list[tuple[Step, str, str, bytes]] = dataclasses.field(default_factory=list)  # step, from, to, bytes

    @property
    def outcome(self) -> SessionOutcome | None:
        return self.server.outcome

    @property
    def expected(self) -> NDArray[np.uint32]:
        """The plain sum of what the survivors put in."""
        total = np.zeros(self.server.terms.dimension, dtype=np.uint32)
        for name in self.server.survivors:
            total = total + self.inputs[name]
        return total & np.uint32((1 << self.server.terms.bits) - 1)

    def exact(self) -> bool:
        return self.outcome is SessionOutcome.DONE and bool(np.array_equal(self.server.total(), self.expected))


def session(
    parameters: Parameters,
    *,
    inputs: Mapping[str, NDArray[np.uint32]] | None = None,
    policy: Demands | None = None,
    server_terms: SessionTerms | None = None,
    make: Callable[..., Party] = Party,
    server: Callable[..., Server] = Server,
    **changed: Any,
) -> Played:
    """Server and parties of a fresh session, nothing sent yet."""
    terms = terms_of(parameters, **changed)
    names = names_of(parameters.parties)
    public = {name: identity_of(name).public for name in names}
    parties = {
        name: make(
            name=name,
            identity=identity_of(name),
            server=identity_of("the server").public,
            peers=public,
            terms=terms,
            policy=policy,
        )
        for name in names
    }
    if inputs is None:
        random = np.random.default_rng(7)
        inputs = {name: random.integers(0, 2**32, terms.dimension, dtype=np.uint32) for name in names}
    made = server(terms=server_terms or terms, identity=identity_of("the server"), identities=public)
    return Played(made, parties, inputs)


def answer(played: Played, name: str, step: Step, question: bytes) -> bytes:
    """What the party answers to the question before ``step``."""
    party = played.parties[name]
    if step is Step.ADVERTISE:
        return party.advertise(question)
    if step in REVEALING:
        return party.reveal(Step(step - 1), question)
    if step is Step.SHARE:
        return party.share(question)
    if step is Step.MASKED:
        return party.mask(question, played.inputs[name])
    if step is Step.AGREE:
        return party.agree(question)
    return party.unmask(question)


def play(
    played: Played,
    *,
    question: Question = lambda step, party, data: data,
    reply: Answer = lambda step, party, data: data,
    until: Step | None = None,
    before_advance: Callable[[Step], None] = lambda step: None,
) -> Played:
    """Drive a session to its end (or until the questions before ``until`` are made).

    ``question`` and ``reply`` stand on the line: they return what arrives, None for nothing. Both are given the step of
    the answer.
    """
    pending = played.server.open()
    while pending:
        step = played.server.step
        assert step is not None
        if step is until:
            return played
        for name, data in pending.items():
            played.messages.append((Step(step - 1), "", name, data))
            arriving = question(step, name, data)
            if arriving is None:
                continue
            try:
                said = answer(played, name, step, arriving)
            except Refused as refusal:
                played.refused[step, name] = refusal.reason
                continue
            played.messages.append((step, name, "", said))
            sent = reply(step, name, said)
            if sent is not None:
                reason = played.server.take(name, sent)
                if reason is not None:
                    played.turned_away[step, name] = reason
        before_advance(step)
        pending = played.server.advance()
    return played


def drop(missing: Mapping[str, Step], *, after_send: bool = False) -> Answer:
    """A line on which each party of ``missing`` falls silent from its step on."""

    def line(step: Step, party: str, data: bytes) -> bytes | None:
        turn = step.turn
        gone = party in missing and (turn > missing[party].turn if after_send else turn >= missing[party].turn)
        return None if gone else data

    return line

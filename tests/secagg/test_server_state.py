"""What the server keeps, what it says about who was lost, and the pause before anything is unmasked."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.secagg import messages
from quietsum.secagg.messages import Step
from quietsum.secagg.outcomes import Reason, Refused, SessionOutcome
from quietsum.secagg.parameters import choose_parameters
from quietsum.secagg.party import PeerState
from quietsum.secagg.server import LostParty, Server
from secagg.sessions import ANSWERS, answer, complete, drop, identity_of, names_of, play, session

NAMES = names_of(5)


def test_survivors_are_fixed_one_call_before_anyone_is_asked_to_unmask() -> None:
    played = session(complete(5, threshold=3))
    server, late = played.server, NAMES[4]
    pending, kept = server.open(), b""
    while server.step is not Step.AGREE:
        step = server.step
        assert step is not None
        assert server.survivors == ()
        for name, data in pending.items():
            said = answer(played, name, step, data)
            if step is Step.MASKED and name == late:
                kept = said
                continue
            assert server.take(name, said) is None
        pending = server.advance()
    # here the round commits its ledger: who is in the sum is known, and no share of any secret has left a party
    fixed, sum_before = server.survivors, server._sum.copy()  # type: ignore[union-attr]
    assert fixed == tuple(NAMES[:4])
    steps = {messages.read_frame(data, largest=1 << 20).step for data in pending.values()}
    assert steps == {Step.SURVIVORS}
    assert all(peer.both is not None for party in played.parties.values() for peer in party._peers.values())
    assert server.take(late, kept) is Reason.LATE
    assert np.array_equal(server._sum, sum_before)  # type: ignore[arg-type]
    while pending:
        at = server.step
        assert at is not None
        for name, data in pending.items():
            server.take(name, answer(played, name, at, data))
        assert server.survivors == fixed
        with pytest.raises(QuietsumError, match="no sum"):
            server.total()
        pending = server.advance()
    assert played.exact()


def test_a_session_that_is_stopped_in_the_pause_releases_nothing() -> None:
    played = play(session(complete(5, threshold=3)), until=Step.UNMASK)
    played.server.stop()
    played.server.stop()
    assert played.outcome is SessionOutcome.STOPPED
    assert played.server.advance() == {}
    assert played.server._sum is None
    assert played.server.waiting == frozenset()
    for name in NAMES:
        played.parties[name].stop()
        assert not played.parties[name]._peers
        with pytest.raises(Refused) as refusal:
            played.parties[name].unmask(b"")
        assert refusal.value.reason is Reason.TRUNCATED


@pytest.mark.parametrize("step", ANSWERS)
def test_who_was_lost_is_told_with_step_and_reason(step: Step) -> None:
    def line(at: Step, party: str, data: bytes) -> bytes | None:
        if at is not step:
            return data
        return {NAMES[1]: None, NAMES[2]: data[:-3]}.get(party, data)

    played = session(complete(5, threshold=3))
    waited: list[frozenset[str]] = []
    play(played, reply=line, before_advance=lambda at: waited.append(played.server.waiting))
    assert played.server.lost == {
        NAMES[1]: LostParty(step=step, reason=Reason.NO_ANSWER),
        NAMES[2]: LostParty(step=step, reason=Reason.TRUNCATED),
    }
    assert waited[ANSWERS.index(step)] == {NAMES[1], NAMES[2]}
    assert played.exact()


def test_the_server_needs_one_accumulator_however_many_parties_send() -> None:
    size = 500_000
    inputs = {name: np.full(size, index, dtype=np.uint32) for index, name in enumerate(names_of(8))}
    played = session(complete(8, threshold=5), inputs=inputs, dimension=size)
    server = played.server
    pending, peak = server.open(), 0
    while pending:
        step = server.step
        assert step is not None
        for name, data in pending.items():
            said = answer(played, name, step, data)
            tracemalloc.start()
            server.take(name, said)
            peak = max(peak, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        tracemalloc.start()
        pending = server.advance()
        peak = max(peak, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert played.exact()
    assert peak < 4 * size * 1.2


def test_a_party_that_need_not_remember_keeps_no_copy_of_its_vector() -> None:
    size = 100_000
    played = session(complete(4, threshold=3), inputs=None, dimension=size)
    for party in played.parties.values():
        party._remember = False
    play(played)
    assert played.exact()
    for party in played.parties.values():
        kept = [len(reply) for _, reply in party._answered.values() if reply is not None]
        assert max(kept) < 2000
    question = next(data for step, _, name, data in played.messages if step is Step.SHARES and name == NAMES[0])
    with pytest.raises(Refused) as refusal:
        played.parties[NAMES[0]].mask(question, played.inputs[NAMES[0]])
    assert refusal.value.reason is Reason.ALREADY_ANSWERED


def test_a_masked_vector_is_kept_for_a_second_delivery_until_the_next_question_is_answered() -> None:
    played = play(session(complete(4, threshold=3)), until=Step.AGREE)
    party, vector = played.parties[NAMES[0]], played.inputs[NAMES[0]]
    question = next(data for step, _, name, data in played.messages if step is Step.SHARES and name == NAMES[0])
    said = next(data for step, name, _, data in played.messages if step is Step.MASKED and name == NAMES[0])
    assert party.mask(question, vector) == said
    listed = messages.bitmap(names_of(4), names_of(4))
    party.agree(
        messages.write_frame(
            Step.SURVIVORS,
            played.server._session,
            sender="",
            receiver=NAMES[0],
            payload=listed,
            identity=identity_of("the server"),
        )
    )
    with pytest.raises(Refused) as refusal:
        party.mask(question, vector)
    assert refusal.value.reason is Reason.ALREADY_ANSWERED


def test_a_party_that_refused_a_lie_gives_the_same_reason_to_all_that_follows() -> None:
    played, honest = (play(session(complete(5, threshold=3)), until=Step.AGREE) for _ in range(2))
    party, session_name = played.parties[NAMES[0]], played.server._session

    def listing(members: list[str]) -> bytes:
        return messages.write_frame(
            Step.SURVIVORS,
            session_name,
            sender="",
            receiver=NAMES[0],
            payload=messages.bitmap(members, NAMES),
            identity=identity_of("the server"),
        )

    for question in (listing(NAMES[:2]), listing(NAMES), listing(NAMES[:2])):
        with pytest.raises(Refused) as refusal:
            party.agree(question)
        assert refusal.value.reason is party.ended is Reason.BELOW_FLOOR
    assert honest.parties[NAMES[0]].ended is None


def test_a_server_is_opened_once_and_with_the_right_cohort() -> None:
    played = session(complete(5, threshold=3))
    with pytest.raises(QuietsumError, match="not opened"):
        played.server.advance()
    assert played.server.take(NAMES[0], b"") is Reason.TRUNCATED
    played.server.open()
    with pytest.raises(QuietsumError, match="opened before"):
        played.server.open()
    public = {name: identity_of(name).public for name in NAMES[:4]}
    with pytest.raises(InvalidParameter, match="identities"):
        Server(terms=played.server.terms, identity=identity_of("the server"), identities=public)
    twice = public | {"site-04": public["site-00"]}
    with pytest.raises(InvalidParameter, match="repeat one another"):
        Server(terms=played.server.terms, identity=identity_of("the server"), identities=twice)
    with pytest.raises(InvalidParameter, match="UTF-8"):
        Server(terms=played.server.terms, identity=identity_of("the server"), identities=public | {"\ud800": bytes(32)})
    with pytest.raises(InvalidParameter, match="shorter name"):
        Server(
            terms=played.server.terms, identity=identity_of("the server"), identities=public | {"x" * 300: bytes(32)}
        )


def test_a_party_sees_where_its_neighbours_stand() -> None:
    missing = {NAMES[1]: Step.ADVERTISE, NAMES[2]: Step.SHARE, NAMES[3]: Step.MASKED}
    parameters = complete(7, threshold=3)
    played = play(session(parameters), reply=drop(missing), until=Step.UNMASK)
    states = played.parties[NAMES[0]].states
    assert states == {
        NAMES[2]: PeerState.SILENT,
        NAMES[3]: PeerState.DROPPED,
        NAMES[4]: PeerState.ALIVE,
        "site-05": PeerState.ALIVE,
        "site-06": PeerState.ALIVE,
    }


def test_a_large_sparse_session_with_drop_outs_at_every_step_is_exact() -> None:
    parameters = choose_parameters(120, corrupt=6, drop_outs=0.1)
    assert not parameters.complete
    names = names_of(120)
    missing = {names[place]: ANSWERS[place % 5] for place in range(0, 120, 10)}
    played = play(session(parameters, floor=100), reply=drop(missing))
    assert played.exact()
    assert set(played.server.lost) == set(missing)

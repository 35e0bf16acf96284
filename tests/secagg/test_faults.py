"""The fault matrix: every party × every step × every fault of the line, each with its stated end.

``LINE`` is the table. A fault hits one party at one step, on the way to the server (answer) or to the party (question);
the other parties are enough, so every session ends with the exact sum of its survivors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from quietsum.secagg import messages
from quietsum.secagg.messages import SERVER, Step
from quietsum.secagg.outcomes import Reason, Refused, SessionOutcome
from secagg.sessions import ANSWERS, Played, answer, complete, drop, identity_of, names_of, play, session, sparse

PARAMETERS = complete(4, threshold=3)
NAMES = names_of(4)


@dataclasses.dataclass(frozen=True)
class Fault:
    """What the line does to the message, what the receiver says, and whether the party is lost at that step."""

    line: Callable[[Step, bytes], bytes | None]
    says: frozenset[Reason] = frozenset()
    lost: bool = True


def says(*reasons: Reason) -> frozenset[Reason]:
    return frozenset(reasons)


def flipped(at: int) -> Callable[[Step, bytes], bytes]:
    def flip(step: Step, data: bytes) -> bytes:
        place = at % len(data)
        return data[:place] + bytes((data[place] ^ 16,)) + data[place + 1 :]

    return flip


def recorded(**changed: Any) -> dict[tuple[Step, str, str], bytes]:
    """Every message of a session under other terms, by step, sender and receiver."""
    other = play(session(PARAMETERS, **changed))
    assert other.outcome is SessionOutcome.DONE
    return {(step, sender, receiver): data for step, sender, receiver, data in other.messages}


OTHER_ATTEMPT = recorded(attempt=1)
SAME_TERMS = recorded()


def rebound(step: Step, data: bytes) -> bytes:
    """The same message, signed by its sender for a session that is not this one."""
    frame = messages.read_frame(data, largest=1 << 20)
    signer = identity_of(frame.sender or "the server")
    return messages.write_frame(
        frame.step, bytes(32), sender=frame.sender, receiver=frame.receiver, payload=frame.payload, identity=signer
    )


def from_another_session(step: Step, data: bytes) -> bytes:
    frame = messages.read_frame(data, largest=1 << 20)
    return OTHER_ATTEMPT[frame.step, frame.sender, frame.receiver]


LINE = {
    # fault                  what the line does                   what the receiver says                    lost?
    "before send": Fault(lambda step, data: None),
    "after send": Fault(lambda step, data: data, lost=False),
    "duplicate": Fault(lambda step, data: data, lost=False),
    "replay": Fault(from_another_session, says(Reason.WRONG_SESSION, Reason.OTHER_ROUND)),
    "wrong session": Fault(rebound, says(Reason.WRONG_SESSION, Reason.OTHER_COHORT)),
    "nothing": Fault(lambda step, data: b"", says(Reason.TRUNCATED)),
    "half": Fault(lambda step, data: data[: len(data) // 2], says(Reason.TRUNCATED)),
    "one byte short": Fault(lambda step, data: data[:-1], says(Reason.TRUNCATED)),
    "one byte more": Fault(lambda step, data: data + b"\0", says(Reason.MALFORMED)),
    "long": Fault(lambda step, data: data + bytes(1 << 16), says(Reason.OVERSIZE)),
    "flip in magic": Fault(flipped(0), says(Reason.MALFORMED)),
    "flip in session": Fault(flipped(20), says(Reason.BAD_SIGNATURE)),
    "flip in payload": Fault(flipped(-65), says(Reason.BAD_SIGNATURE)),
    "flip in signature": Fault(flipped(-1), says(Reason.BAD_SIGNATURE)),
}


def check_end(played: Played, hit: str, step: Step, fault: Fault) -> None:
    """Exactly the stated end: the sum of the right survivors, and the party lost where the table says so."""
    assert played.outcome is SessionOutcome.DONE
    assert played.exact()
    counted = not fault.lost or step > Step.MASKED
    assert played.server.survivors == tuple(name for name in NAMES if name != hit or counted)
    if fault.lost:
        assert played.server.lost[hit].step is step
        assert set(played.server.lost) == {hit}
    else:
        assert not played.server.lost


@pytest.mark.parametrize("kind", LINE)
@pytest.mark.parametrize("step", ANSWERS)
@pytest.mark.some(25)
def test_every_fault_of_an_answer_ends_as_stated(kind: str, step: Step) -> None:
    fault = LINE[kind]
    for hit in NAMES:
        played = session(PARAMETERS)

        def line(at: Step, party: str, data: bytes, hit: str = hit, played: Played = played) -> bytes | None:
            if party != hit or (kind == "before send" and at >= step):
                return data if party != hit else None
            if at is not step:
                return data
            if kind == "duplicate":
                assert played.server.take(party, data) is None
            return fault.line(step, data)

        play(played, reply=line)
        assert set(played.turned_away.values()) <= fault.says
        assert (step, hit) in played.turned_away or not fault.says
        check_end(played, hit, step, fault)
        if fault.says:
            assert played.server.lost[hit].reason is played.turned_away[step, hit]


@pytest.mark.parametrize("kind", [kind for kind in LINE if kind not in ("before send", "after send")])
@pytest.mark.parametrize("step", ANSWERS)
@pytest.mark.some(25)
def test_every_fault_of_a_question_ends_as_stated(kind: str, step: Step) -> None:
    fault = LINE[kind]
    for hit in NAMES:
        played = session(PARAMETERS)

        def line(at: Step, party: str, data: bytes, hit: str = hit, played: Played = played) -> bytes | None:
            if party != hit or at is not step:
                return data
            if kind == "duplicate":
                first = answer(played, party, step, data)
                assert answer(played, party, step, data) == first
            return fault.line(Step(step - 1), data)

        play(played, question=line)
        assert set(played.refused.values()) <= fault.says
        assert (step, hit) in played.refused or not fault.says
        check_end(played, hit, step, fault)


@pytest.mark.parametrize("kind", [kind for kind, fault in LINE.items() if fault.says])
@pytest.mark.parametrize("step", ANSWERS)
def test_a_garbled_message_costs_nothing_where_the_right_one_follows(kind: str, step: Step) -> None:
    fault, hit = LINE[kind], NAMES[1]
    played = session(PARAMETERS)

    def ask(at: Step, party: str, data: bytes) -> bytes:
        if party == hit and at is step:
            bad = fault.line(Step(step - 1), data)
            assert bad is not None
            with pytest.raises(Refused) as refusal:
                answer(played, party, step, bad)
            assert refusal.value.reason in fault.says
        return data

    def tell(at: Step, party: str, data: bytes) -> bytes:
        if party == hit and at is step:
            bad = fault.line(step, data)
            assert bad is not None
            assert played.server.take(party, bad) in fault.says
        return data

    play(played, question=ask, reply=tell)
    check_end(played, hit, step, Fault(fault.line, lost=False))


@pytest.mark.parametrize("step", ANSWERS)
def test_an_answer_that_comes_after_its_step_was_closed_is_never_used(step: Step) -> None:
    for hit in NAMES:
        played = session(PARAMETERS)
        kept: dict[str, bytes] = {}

        def line(at: Step, party: str, data: bytes, hit: str = hit, kept: dict[str, bytes] = kept) -> bytes | None:
            if party == hit and at is step:
                kept["late"] = data
                return None
            return data

        def deliver(at: Step, hit: str = hit, played: Played = played, kept: dict[str, bytes] = kept) -> None:
            if at > step and "late" in kept:
                assert played.server.take(hit, kept["late"]) is Reason.LATE

        play(played, reply=line, before_advance=deliver)
        assert played.server.take(hit, kept["late"]) is Reason.ENDED
        check_end(played, hit, step, Fault(lambda step, data: None))
        assert played.server.lost[hit].reason is Reason.NO_ANSWER


@pytest.mark.parametrize("step", ANSWERS)
def test_swapped_senders_and_receivers_are_refused_by_name(step: Step) -> None:
    for hit, other in zip(NAMES, NAMES[1:] + NAMES[:1], strict=True):
        played = session(PARAMETERS)
        questions: dict[str, bytes] = {}

        def ask(at: Step, party: str, data: bytes, hit: str = hit, other: str = other) -> bytes | None:
            if at is step:
                questions[party] = data  # noqa: B023 - one round of the loop only
            return data

        def tell(at: Step, party: str, data: bytes, hit: str = hit, other: str = other) -> bytes | None:
            if at is step and party == hit:
                assert played.server.take(other, data) is Reason.WRONG_SENDER  # noqa: B023
                assert played.server.take("stranger", data) is Reason.UNKNOWN_PARTY  # noqa: B023
            return data

        play(played, question=ask, reply=tell)
        assert played.exact()
        assert len(played.server.survivors) == 4
        fresh = session(PARAMETERS)
        play(fresh, until=step)
        with pytest.raises(Refused) as refusal:
            answer(fresh, hit, step, questions[other])
        assert refusal.value.reason is Reason.WRONG_RECEIVER


def test_keys_of_an_earlier_start_of_the_same_attempt_are_not_mistaken_for_fresh_ones() -> None:
    hit = NAMES[2]

    def line(step: Step, party: str, data: bytes) -> bytes:
        return SAME_TERMS[step, party, SERVER] if party == hit and step is Step.ADVERTISE else data

    played = play(session(PARAMETERS), reply=line)
    assert played.refused == {(Step.SHARE, hit): Reason.KEY_SUBSTITUTED}
    check_end(played, hit, Step.SHARE, Fault(lambda step, data: None))


@pytest.mark.parametrize("step", ANSWERS)
def test_a_second_different_answer_is_refused_and_the_first_one_counts(step: Step) -> None:
    played, hit = session(PARAMETERS), NAMES[0]

    def line(at: Step, party: str, data: bytes) -> bytes:
        if at is step and party == hit:
            assert played.server.take(party, data) is None
            frame = messages.read_frame(data, largest=1 << 20)
            changed = bytes(frame.payload)[:-1] + bytes((bytes(frame.payload)[-1] ^ 1,))
            return messages.write_frame(
                step, frame.session, sender=party, receiver=SERVER, payload=changed, identity=identity_of(party)
            )
        return data

    play(played, reply=line)
    assert played.turned_away == {(step, hit): Reason.ALREADY_ANSWERED}
    assert played.server.blamed == {hit: Reason.ALREADY_ANSWERED}
    assert played.exact()
    assert len(played.server.survivors) == 4


@pytest.mark.parametrize(
    ("order", "step"),
    [(first, second) for first in ANSWERS for second in ANSWERS if second > first],
    ids=lambda step: step.name,
)
def test_a_step_whose_turn_has_not_come_is_refused(order: Step, step: Step) -> None:
    reference = play(session(PARAMETERS))
    later = {(at, to): data for at, sender, to, data in reference.messages if sender == SERVER}
    played = play(session(PARAMETERS), until=order)
    with pytest.raises(Refused) as refusal:
        answer(played, NAMES[0], step, later[Step(step - 1), NAMES[0]])
    assert refusal.value.reason in (Reason.WRONG_STEP, Reason.WRONG_SESSION)


def own_frame(played: Played, step: Step, party: str, payload: bytes) -> bytes:
    """A message of this session that ``party`` signs, whatever its turn."""
    binding = played.server._opening if step is Step.ADVERTISE else played.server._session
    return messages.write_frame(
        step, binding, sender=party, receiver=SERVER, payload=payload, identity=identity_of(party)
    )


PAYLOADS = {
    Step.ADVERTISE: bytes(64),
    Step.SHARE: bytes(33),
    Step.MASKED: bytes(range(20)),
    Step.AGREE: messages.bitmap(NAMES[:2], NAMES),
    Step.UNMASK: bytes(1),
}


@pytest.mark.parametrize("step", ANSWERS)
def test_well_signed_messages_out_of_turn_are_never_used(step: Step) -> None:
    """By parties that answer as they should, and by one that was lost at the step before and speaks up again."""
    played = session(PARAMETERS)
    lost = {NAMES[3]: step}

    def deliver(at: Step) -> None:
        for other in ANSWERS:
            if other is not at and played.server._session:
                said = played.server.take(NAMES[0], own_frame(played, other, NAMES[0], PAYLOADS[other]))
                assert said is (Reason.LATE if other < at else Reason.WRONG_STEP)
        if at > step:
            assert played.server.take(NAMES[3], own_frame(played, at, NAMES[3], PAYLOADS[at])) is Reason.LATE

    play(played, reply=drop(lost), before_advance=deliver)
    check_end(played, NAMES[3], step, Fault(lambda step, data: None))


def test_a_sparse_session_prunes_a_party_whose_neighbours_did_not_share() -> None:
    parameters = sparse(12, neighbours=4, threshold=3)
    first = play(session(parameters), until=Step.SHARE)
    lonely = first.server
    near = lonely._graph["site-00"]
    played = session(parameters)
    gone: dict[str, Step] = {}

    def ask(step: Step, party: str, data: bytes) -> bytes | None:
        if step is Step.SHARE and not gone:
            gone.update({name: Step.SHARE for name in played.server._graph["site-00"][:2]})
        return data

    play(played, question=ask, reply=lambda step, party, data: drop(gone)(step, party, data))
    assert len(near) == 4
    assert played.server.lost["site-00"].reason is Reason.TOO_FEW_HOLDERS
    if played.outcome is SessionOutcome.DONE:
        assert played.exact()


@pytest.mark.parametrize("kind", [kind for kind in LINE if kind != "replay"])  # recorded in a smaller session
@pytest.mark.parametrize("step", ANSWERS)
@pytest.mark.some(15)
def test_the_same_table_holds_on_a_sparse_graph(kind: str, step: Step) -> None:
    fault, names = LINE[kind], names_of(8)
    hit = names[ANSWERS.index(step)]

    def line(at: Step, party: str, data: bytes) -> bytes | None:
        if party != hit or at < step:
            return data
        return fault.line(at, data) if at is step or kind == "before send" else data

    played = play(session(sparse(8, neighbours=6, threshold=4)), reply=line)
    assert played.exact()
    assert set(played.turned_away.values()) <= fault.says
    assert (hit in played.server.survivors) == (not fault.lost or step > Step.MASKED)
    assert set(played.server.lost) == ({hit} if fault.lost else set())


@settings(max_examples=120)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(NAMES), st.sampled_from(ANSWERS), st.booleans()),
        st.sampled_from(sorted(LINE)),
        max_size=8,
    )
)
def test_any_faults_together_end_in_the_exact_sum_or_in_none(faults: dict[tuple[str, Step, bool], str]) -> None:
    def line(asked: bool) -> Callable[[Step, str, bytes], bytes | None]:
        def hit(step: Step, party: str, data: bytes) -> bytes | None:
            kind = faults.get((party, step, asked))
            return LINE[kind].line(step, data) if kind else data

        return hit

    played = play(session(PARAMETERS), question=line(True), reply=line(False))
    lost = {name for (name, _, _), kind in faults.items() if LINE[kind].lost}
    if len(lost) <= 1:
        assert played.exact()
    assert isinstance(played.outcome, SessionOutcome)
    assert played.exact() or played.server._sum is None
    assert set(played.server.lost) <= lost

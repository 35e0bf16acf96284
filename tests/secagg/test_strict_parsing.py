"""Whatever bytes arrive, a party raises Refused with a reason and the server returns one: never a stray exception."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from quietsum.secagg import messages
from quietsum.secagg.messages import SERVER, Step
from quietsum.secagg.outcomes import Reason, Refused, SessionOutcome
from quietsum.secagg.parameters import Parameters
from secagg.sessions import ANSWERS, Played, answer, complete, identity_of, names_of, play, session, sparse

NAMES = names_of(4)
COMPLETE = complete(4, threshold=3)
HIT = NAMES[1]


@st.composite
def garbled(draw: st.DrawFn, data: bytes) -> bytes:
    """Random bytes, or ``data`` cut, stretched, overwritten, spliced."""
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return draw(st.binary(max_size=400))
    if kind == 1:
        return data[: draw(st.integers(0, len(data)))]
    place = draw(st.integers(0, max(len(data) - 1, 0)))
    patch = draw(st.binary(min_size=1, max_size=40))
    if kind == 2:
        return data[:place] + patch + data[place:]
    if kind == 3:
        return data[:place] + patch + data[place + len(patch) :]
    return data[:place] + data[place + draw(st.integers(1, 200)) :]


def signed(data: bytes, payload: bytes) -> bytes:
    """``data`` with another payload and a good signature of the same sender."""
    frame = messages.read_frame(data, largest=1 << 22)
    return messages.write_frame(
        frame.step,
        frame.session,
        sender=frame.sender,
        receiver=frame.receiver,
        payload=payload,
        identity=identity_of(frame.sender or "the server"),
    )


def until(step: Step, parameters: Parameters = COMPLETE) -> tuple[Played, dict[str, bytes]]:
    """A session in which the questions before ``step`` have just been made, and these questions."""
    played = session(parameters)
    asked: dict[str, bytes] = {}
    pending = played.server.open()
    while played.server.step is not step:
        for name, data in pending.items():
            assert played.server.take(name, answer(played, name, played.server.step, data)) is None  # type: ignore[arg-type]
        pending = played.server.advance()
    asked.update(pending)
    return played, asked


@pytest.mark.parametrize("step", ANSWERS)
@pytest.mark.parametrize("resign", [False, True])
@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.some(5)
def test_a_party_refuses_what_is_not_written_as_it_should_be(step: Step, resign: bool, data: st.DataObject) -> None:
    played, asked = until(step)
    true = asked[HIT]
    if resign:
        payload = bytes(messages.read_frame(true, largest=1 << 22).payload)
        changed = data.draw(garbled(payload))
        sent = signed(true, changed)
        same = changed == payload
    else:
        sent = data.draw(garbled(true))
        same = sent == true
    if len(sent) > 2**20:
        return
    try:
        answer(played, HIT, step, sent)
    except Refused as refusal:
        assert isinstance(refusal.reason, Reason)
        assert not same
    else:
        # another list that keeps every rule is answered: the server may leave a party out
        assert same or (resign and step in (Step.SHARE, Step.MASKED, Step.AGREE, Step.UNMASK))


@pytest.mark.parametrize("step", ANSWERS)
@pytest.mark.parametrize("resign", [False, True])
@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.some(4)
def test_the_server_returns_a_reason_for_what_it_cannot_use(step: Step, resign: bool, data: st.DataObject) -> None:
    played, asked = until(step)
    true = answer(played, HIT, step, asked[HIT])
    if resign:
        payload = bytes(messages.read_frame(true, largest=1 << 22).payload)
        sent = signed(true, data.draw(garbled(payload)))
    else:
        sent = data.draw(garbled(true))
    reason = played.server.take(HIT, sent)
    assert reason is None or isinstance(reason, Reason)
    if not resign and sent != true:
        assert reason is not None
    for name in NAMES:
        if name != HIT:
            assert played.server.take(name, answer(played, name, step, asked[name])) is None
    pending = played.server.advance()
    while pending:
        at = played.server.step
        assert at is not None
        for name, question in pending.items():
            try:
                played.server.take(name, answer(played, name, at, question))
            except Refused:
                continue
        pending = played.server.advance()
    assert isinstance(played.outcome, SessionOutcome)
    if reason is not None:
        assert played.exact()  # the three others are enough


def test_sizes_that_lie_are_refused_before_anything_is_made_of_them() -> None:
    played, asked = until(Step.ADVERTISE)
    true = asked[HIT]
    at = true.index(messages.write_open(played.server.terms, NAMES)) - 4
    huge = true[:at] + b"\xff\xff\xff\xff" + true[at + 4 :]
    with pytest.raises(Refused) as refusal:
        played.parties[HIT].advertise(huge)
    assert refusal.value.reason is Reason.OVERSIZE
    assert played.server.take(HIT, bytes(10_000_000)) is Reason.OVERSIZE
    true = answer(played, HIT, Step.ADVERTISE, true)
    assert played.server.take(HIT, signed(true, bytes(65))) is Reason.OVERSIZE  # although a vector may be longer
    square = memoryview(bytes(64)).cast("B", (8, 8))
    for odd in ("text", None, 7, [1, 2], np.zeros((3, 3)), square, np.zeros(8)[::2]):
        reason = played.server.take(HIT, odd)  # type: ignore[arg-type]
        assert reason is Reason.MALFORMED or reason is Reason.TRUNCATED
        with pytest.raises(Refused):
            played.parties[HIT].advertise(odd)  # type: ignore[arg-type]


@pytest.mark.parametrize("padding", [0x10, 0x80])
def test_padding_bits_of_a_list_must_be_zero(padding: int) -> None:
    raw = messages.bitmap(NAMES, NAMES)
    assert messages.read_members(raw, NAMES) == tuple(NAMES)
    with pytest.raises(Refused) as refusal:
        messages.read_members(bytes((raw[0] | padding,)), NAMES)
    assert refusal.value.reason is Reason.MALFORMED


def test_a_share_that_is_no_element_of_the_field_is_refused() -> None:
    raw = messages.bitmap([HIT], NAMES) + b"\1" + (2**31 - 1).to_bytes(4, "little") * 9
    with pytest.raises(Refused) as refusal:
        messages.read_unmask(raw, NAMES)
    assert refusal.value.reason is Reason.MALFORMED
    with pytest.raises(Refused):
        messages.read_unmask(raw[:1] + b"\3" + bytes(36), NAMES)
    assert np.array_equal(messages.read_unmask(raw[:1] + b"\2" + bytes(36), NAMES)[HIT].limbs, np.zeros(9))


def test_every_reason_and_outcome_has_its_own_sentence() -> None:
    for kind in (Reason, SessionOutcome):
        sentences = [each.sentence for each in kind]
        assert len(set(sentences)) == len(sentences)
        assert all(sentence and sentence[0].islower() and not sentence.endswith(".") for sentence in sentences)
    assert "neighbours" in str(Refused(Reason.WRONG_RECIPIENTS, "Bern")) and "(Bern)" in str(
        Refused(Reason.WRONG_RECIPIENTS, "Bern")
    )


def test_sizes_stated_for_each_step_are_those_of_the_messages() -> None:
    for parameters in (COMPLETE, sparse(12, neighbours=6, threshold=4)):
        played = play(session(parameters))
        for step, sender, _, data in played.messages:
            size = len(messages.read_frame(data, largest=1 << 22).payload)
            most = messages.largest_payload(step, played.server.terms)
            assert size <= most
            if step in (Step.ADVERTISE, Step.MASKED, Step.AGREE, Step.SURVIVORS, Step.ROSTER):
                assert size == most
            assert (sender == SERVER) == bool(step % 2)

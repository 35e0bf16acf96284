"""Parties that send wrong shares are found out by spare ones and named; the sum is exact, or there is none."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from quietsum.secagg import decoding, messages, shamir
from quietsum.secagg.messages import SERVER, KeyShare, SeedShare, Step
from quietsum.secagg.outcomes import Reason, SessionOutcome
from secagg.sessions import Answer, complete, drop, identity_of, names_of, play, session, sparse

NAMES = names_of(8)


def resigned(data: bytes, payload: bytes) -> bytes:
    """The answer ``data`` with another payload, signed by its sender."""
    frame = messages.read_frame(data, largest=1 << 22)
    return messages.write_frame(
        frame.step,
        frame.session,
        sender=frame.sender,
        receiver=SERVER,
        payload=payload,
        identity=identity_of(frame.sender),
    )


def lying(liars: set[str], *, about: set[str] | None = None, limb: int | None = None) -> Answer:
    def line(step: Step, party: str, data: bytes) -> bytes:
        if step is not Step.UNMASK or party not in liars:
            return data
        shares = messages.read_unmask(messages.read_frame(data, largest=1 << 22).payload, NAMES)
        for peer, share in shares.items():
            if about is None or peer in about:
                limbs = share.limbs.copy()
                limbs[slice(None) if limb is None else limb] ^= 1
                shares[peer] = type(share)(limbs)
        return resigned(data, messages.write_unmask(shares, NAMES))

    return line


@pytest.mark.parametrize("count", range(5))
def test_as_many_liars_as_there_are_spare_shares_do_no_harm_and_half_of_that_are_named(count: int) -> None:
    for chosen in itertools.islice(itertools.combinations(NAMES, count), 12):
        line = lying(set(chosen))
        played = play(session(complete(8, threshold=4)), reply=line)
        assert played.exact()
        assert len(played.server.survivors) == 8
        assert played.server.blamed == (dict.fromkeys(chosen, Reason.WRONG_SHARE) if count <= 2 else {})


@pytest.mark.parametrize(
    ("liar", "peers", "blamed"),
    [
        (NAMES[0], {NAMES[5]}, {NAMES[0]: Reason.DISPUTED_SHARE, NAMES[5]: Reason.DISPUTED_SHARE}),
        (NAMES[2], {NAMES[2]}, {NAMES[2]: Reason.WRONG_SHARE}),
        (NAMES[1], {NAMES[7], NAMES[0]}, {NAMES[1]: Reason.WRONG_SHARE}),
        (NAMES[6], {NAMES[1], NAMES[2]}, {NAMES[6]: Reason.WRONG_SHARE}),
    ],
)
def test_one_wrong_limb_about_one_peer_is_noticed(liar: str, peers: set[str], blamed: dict[str, Reason]) -> None:
    lie, gone = lying({liar}, about=peers, limb=8), drop({NAMES[7]: Step.MASKED})

    def line(step: Step, party: str, data: bytes) -> bytes | None:
        return gone(step, party, lie(step, party, data) or b"")

    played = play(session(complete(8, threshold=5)), reply=line)
    assert played.exact()
    assert played.server.blamed == blamed


@pytest.mark.parametrize(
    ("cheated", "blamed"),
    [
        (NAMES[2:3], {NAMES[0]: Reason.DISPUTED_SHARE, NAMES[2]: Reason.DISPUTED_SHARE}),
        (NAMES[2:4], {NAMES[0]: Reason.WRONG_DEALING}),
    ],
)
def test_a_dealer_cannot_frame_a_holder(
    cheated: list[str], blamed: dict[str, Reason], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Well-sealed shares that are wrong: one leaves both in doubt, more than there may be colluders name the dealer."""
    true = messages.write_pair
    dealt: list[int] = []

    def deal(seed: object, key: object) -> bytes:
        raw = bytearray(true(seed, key))  # type: ignore[arg-type]
        dealt.append(1)
        if len(dealt) <= 7 and NAMES[len(dealt)] in cheated:  # the first party seals for the other seven, in order
            raw[0] ^= 1
        return bytes(raw)

    monkeypatch.setattr(messages, "write_pair", deal)
    played = play(session(complete(8, threshold=4)))
    assert played.exact()
    assert played.server.blamed == blamed


def test_more_liars_than_spare_shares_end_the_session_without_a_sum() -> None:
    line = lying(set(NAMES[:3]))
    played = play(session(complete(8, threshold=6)), reply=line)
    assert played.outcome is SessionOutcome.WRONG_SHARES
    assert played.server._sum is None


def test_liars_of_a_sparse_session_are_named_too() -> None:
    names = names_of(12)

    def line(step: Step, party: str, data: bytes) -> bytes:
        if step is not Step.UNMASK or party != names[4]:
            return data
        shares = messages.read_unmask(messages.read_frame(data, largest=1 << 22).payload, names)
        false = {peer: type(share)((share.limbs + 1) % 2**31 % (2**31 - 1)) for peer, share in shares.items()}
        return resigned(data, messages.write_unmask(false, names))

    played = play(session(sparse(12, neighbours=6, threshold=4)), reply=line)
    assert played.exact()
    assert set(played.server.blamed) <= {names[4]}


def test_a_share_of_the_kind_that_was_not_asked_for_is_refused() -> None:
    def line(step: Step, party: str, data: bytes) -> bytes:
        if step is not Step.UNMASK or party != NAMES[0]:
            return data
        shares = messages.read_unmask(messages.read_frame(data, largest=1 << 22).payload, NAMES)
        turned = {
            peer: (KeyShare if isinstance(one, SeedShare) else SeedShare)(one.limbs) for peer, one in shares.items()
        }
        return resigned(data, messages.write_unmask(turned, NAMES))

    played = play(session(complete(8, threshold=4)), reply=line)
    assert played.turned_away == {(Step.UNMASK, NAMES[0]): Reason.WRONG_KIND}
    assert played.exact()


def test_shares_of_parties_that_are_no_neighbours_or_never_shared_are_refused() -> None:
    names = names_of(12)
    silent, liar = names[11], names[4]
    played = session(sparse(12, neighbours=6, threshold=3))

    def line(step: Step, party: str, data: bytes) -> bytes | None:
        if party == silent and step >= Step.SHARE:
            return None
        if step is not Step.UNMASK or party != liar:
            return data
        shares = messages.read_unmask(messages.read_frame(data, largest=1 << 22).payload, names)
        stranger = next(name for name in names if name not in (liar, *played.server._graph[liar]))
        for peer in (stranger, silent):
            made_up = shares | {peer: KeyShare(np.zeros(9, dtype=np.uint32))}
            bad = resigned(data, messages.write_unmask(made_up, names))
            assert played.server.take(party, bad) is Reason.WRONG_KIND
        return data

    play(played, reply=line)
    assert played.exact()


def test_an_agreement_to_another_list_and_shares_for_others_than_the_neighbours_are_refused() -> None:
    def line(step: Step, party: str, data: bytes) -> bytes:
        if step is Step.AGREE and party == NAMES[0]:
            return resigned(data, messages.bitmap(NAMES[:5], NAMES))
        if step is Step.SHARE and party == NAMES[1]:
            commit, sealed = messages.read_share(messages.read_frame(data, largest=1 << 22).payload, NAMES)
            sealed.pop(NAMES[3])
            return resigned(data, messages.write_share(commit, sealed, NAMES))
        return data

    played = play(session(complete(8, threshold=4)), reply=line)
    assert played.turned_away == {
        (Step.SHARE, NAMES[1]): Reason.WRONG_RECIPIENTS,
        (Step.AGREE, NAMES[0]): Reason.OTHER_SURVIVORS,
    }
    assert played.exact()


def test_keys_that_two_parties_share_or_that_agree_on_nothing_are_not_taken() -> None:
    first: dict[str, bytes] = {}

    def line(step: Step, party: str, data: bytes) -> bytes:
        if step is Step.ADVERTISE:
            first.setdefault("keys", bytes(messages.read_frame(data, largest=1 << 22).payload))
            if party == NAMES[2]:
                return resigned(data, first["keys"])
            if party == NAMES[3]:
                return resigned(data, bytes(32) + first["keys"][:31] + b"\1")
        return data

    played = play(session(complete(8, threshold=4)), reply=line)
    assert played.turned_away == {
        (Step.ADVERTISE, NAMES[2]): Reason.KEY_REPEATED,
        (Step.ADVERTISE, NAMES[3]): Reason.BAD_KEY,
    }
    assert played.exact()


@settings(max_examples=60)
@given(st.data())
def test_wrong_shares_up_to_half_of_the_spare_ones_are_always_found(data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, 12))
    most = data.draw(st.integers(1, 5))
    count = threshold + 2 * most + data.draw(st.integers(0, 3))
    points = data.draw(st.lists(st.integers(1, 2**31 - 2), min_size=count, max_size=count, unique=True))
    shares = shamir.split(bytes(range(32)), threshold=threshold, points=points)
    bad = data.draw(st.sets(st.integers(0, count - 1), max_size=most))
    for place in bad:
        limb = data.draw(st.integers(0, shamir.LIMBS - 1))
        shares[place, limb] = (int(shares[place, limb]) + data.draw(st.integers(1, 2**31 - 2))) % (2**31 - 1)
    assert set(decoding.wrong(points, shares, threshold=threshold)) == bad


def test_liars_who_agree_among_themselves_frame_nobody() -> None:
    """Four of eight choose another polynomial through the same secret: too many to name, so that no one is named."""
    points = tuple(range(1, 9))
    honest, false = (shamir.split(bytes(range(32)), threshold=4, points=points) for _ in range(2))
    honest[:4] = false[:4]  # the first four shares agree, on the right secret
    assert shamir.disagreeing(points, honest, threshold=4) == (5, 6, 7, 8)
    assert decoding.wrong(points, honest, threshold=4) == ()


def test_a_hundred_holders_with_sixteen_liars_are_decoded() -> None:
    points = range(1, 101)
    shares = shamir.split(bytes(32), threshold=67, points=points)
    bad = set(range(0, 96, 6))
    shares[sorted(bad)] = np.random.default_rng(1).integers(0, 2**31 - 1, (16, 9), dtype=np.uint32)
    assert set(decoding.wrong(points, shares, threshold=67)) == bad

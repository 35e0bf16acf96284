"""Sessions in random groups: exact sums of each group, draws that nobody chooses, and what every lie ends in."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter, PlanRefused, QuietsumError
from quietsum.secagg import graph, keys, messages
from quietsum.secagg.messages import DRAWING, DRAWS, REVEALING, SERVER, Keys, Step
from quietsum.secagg.outcomes import Reason, SessionOutcome
from quietsum.secagg.parameters import Adversary, Parameters, choose_groups, choose_parameters
from quietsum.secagg.party import Demands, Party
from quietsum.secagg.server import Server
from secagg.sessions import Played, drop, grouped, identity_of, names_of, play, session, terms_of

STEPS = (Step.ADVERTISE, Step.REVEAL, Step.SHARE, Step.MASKED, Step.AGREE, Step.UNMASK)
TWELVE = grouped(12, 3)  # groups of four: threshold and floor 3
NAMES = names_of(12)


def group_of(played: Played, name: str) -> tuple[str, ...]:
    return next(members for members in played.server.groups if name in members)


def plain(played: Played, members: tuple[str, ...]) -> NDArray[np.uint32]:
    return sum((played.inputs[name] for name in members), np.zeros(played.server.terms.dimension, np.uint32))


def exact(played: Played) -> bool:
    """Whether each opened sum is that of its survivors, bit by bit."""
    return all(np.array_equal(one.total, plain(played, one.survivors)) for one in played.server.sums())


# ------------------------------------------------------------------------------------------- what comes out


def test_every_group_has_the_exact_sum_of_its_own_members() -> None:
    played = play(session(TWELVE))
    assert played.outcome is SessionOutcome.DONE and not played.refused
    sums = played.server.sums()
    assert [len(one.members) for one in sums] == [4, 4, 4]
    assert sorted(name for one in sums for name in one.members) == NAMES
    assert all(one.members == one.survivors for one in sums) and exact(played)


def test_parties_and_server_work_out_the_same_groups() -> None:
    played = play(session(grouped(13, 3)))
    assert [len(members) for members in played.server.groups] == [5, 4, 4]
    assert all(played.parties[name].group == group_of(played, name) for name in names_of(13))


def test_groups_are_drawn_anew_in_each_session() -> None:
    assert len({play(session(TWELVE)).server.groups for _ in range(5)}) > 1


@settings(max_examples=40, deadline=None)
@given(
    st.data(),
    st.sampled_from([(12, 3), (13, 3), (10, 2), (17, 4)]),
    st.sampled_from(list(Adversary)),
)
def test_under_any_drop_outs_each_group_is_exact_or_lost_as_a_whole(
    data: st.DataObject, shape: tuple[int, int], adversary: Adversary
) -> None:
    count, groups = shape
    parameters = grouped(count, groups, adversary=adversary)
    missing = data.draw(st.dictionaries(st.sampled_from(names_of(count)), st.sampled_from(STEPS), max_size=count // 2))
    after = data.draw(st.booleans())
    played = play(session(parameters), reply=drop(missing, after_send=after))
    server = played.server
    assert server.outcome is not None and not played.refused
    if server.outcome is not SessionOutcome.DONE:
        with pytest.raises(QuietsumError, match="no sum"):
            server.sums()
        return
    assert exact(played)
    need, opened = server.terms.need, {one.number for one in server.sums()}
    for number, members in enumerate(server.groups):
        if number in opened:
            assert len(server.sums()[sorted(opened).index(number)].survivors) >= need
            continue
        assert all(server.lost[name].reason in (Reason.GROUP_LOST, Reason.NO_ANSWER) for name in members)
        assert not set(members) & set(server.survivors)
        lost_in_time = sum(name in missing for name in members)
        assert lost_in_time > len(members) - need  # never lost while enough were there


def test_a_group_below_its_floor_is_lost_and_the_others_go_on() -> None:
    """Two of four fall silent where masked vectors are asked for; nothing of their group is asked of anyone after."""
    played = session(TWELVE)
    asked: dict[Step, set[str]] = {step: set() for step in Step}

    def line(step: Step, party: str, data: bytes) -> bytes | None:
        asked[step].add(party)
        first = played.server.groups[0] if played.server.groups else ()
        return None if step.turn >= Step.MASKED.turn and party in first[:2] else data

    play(played, reply=line)
    first, *others = played.server.groups
    assert played.outcome is SessionOutcome.DONE and [one.number for one in played.server.sums()] == [1, 2]
    assert played.server.survivors == tuple(sorted(itertools.chain(*others)))
    assert {played.server.lost[name].reason for name in first[2:]} == {Reason.GROUP_LOST}
    assert {played.server.lost[name].reason for name in first[:2]} == {Reason.NO_ANSWER}
    assert asked[Step.AGREE] == asked[Step.UNMASK] == set(itertools.chain(*others))


def test_with_every_group_lost_there_is_no_sum() -> None:
    played = session(TWELVE)
    play(played, reply=lambda step, party, data: None if step is Step.MASKED and party in halves(played) else data)
    assert played.outcome is SessionOutcome.TOO_FEW_INPUTS and played.server.survivors == ()
    with pytest.raises(QuietsumError, match="no sum"):
        played.server.sums()


def halves(played: Played) -> set[str]:
    return {name for members in played.server.groups for name in members[:2]}


def test_large_groups_have_a_sparse_graph_each() -> None:
    parameters = choose_groups(120, 2, corrupt=1, drop_outs=0.05, adversary=Adversary.CURIOUS)
    assert not parameters.complete and parameters.within(60).neighbours < 59
    played = play(session(parameters), reply=drop({"site-03": Step.MASKED, "site-77": Step.UNMASK}))
    assert played.outcome is SessionOutcome.DONE and exact(played)
    assert "site-03" not in played.server.survivors and "site-77" in played.server.survivors


def test_one_group_is_the_session_that_there_was_before() -> None:
    played = play(session(choose_parameters(6, corrupt=1, drop_outs=0.2)))
    (only,) = played.server.sums()
    assert np.array_equal(only.total, played.server.total()) and played.server.groups == ()
    assert not any(step in (*DRAWING, *REVEALING) for step, *_ in played.messages)


# ----------------------------------------------------------------------------------------------- the draw


def test_a_party_that_does_not_open_its_pledge_is_lost_and_the_groups_are_drawn_again() -> None:
    played = play(session(TWELVE), reply=drop({NAMES[4]: Step.REVEAL}))
    assert played.outcome is SessionOutcome.DONE and exact(played) and NAMES[4] not in played.server.survivors
    assert played.server.lost[NAMES[4]].reason is Reason.NO_ANSWER
    again = {name for step, sender, name, _ in played.messages if step is Step.DRAW_AGAIN and not sender}
    assert again == set(NAMES) - {NAMES[4]}


def test_nobody_can_ask_for_more_than_three_draws() -> None:
    gone = {step: NAMES[place] for place, step in enumerate(REVEALING)}
    played = play(session(TWELVE), reply=lambda step, party, data: None if gone.get(step) == party else data)
    assert played.outcome is SessionOutcome.NO_DRAW and played.server.step is None
    assert not any(step.turn >= Step.ROSTER.turn for step, *_ in played.messages)
    with pytest.raises(ValueError, match="not in tuple"):
        played.parties[NAMES[0]].reveal(Step.REVEAL_LAST, b"")


def test_who_is_missing_before_the_draw_changes_no_one_s_place() -> None:
    """The order is over the cohort of the plan: the server cannot move a party by leaving others out."""
    seed = bytes(range(32))
    whole = graph.groups(NAMES, 3, seed)
    played = play(session(TWELVE), reply=drop({NAMES[0]: Step.ADVERTISE}))
    assert sorted(itertools.chain(*played.server.groups)) == NAMES  # the one that never came has its place
    assert graph.groups(list(reversed(NAMES)), 3, seed) == whole


def test_groups_depend_on_every_nonce_and_every_key() -> None:
    pledges = {name: bytes([place]) * 32 for place, name in enumerate(NAMES)}
    roster = {
        name: Keys(mask=bytes([place]) * 32, channel=bytes([99 - place]) * 32) for place, name in enumerate(NAMES)
    }
    terms = terms_of(TWELVE)
    first = messages.drawing(terms, bytes(32), roster, pledges)
    seeds = {messages.hash_nonces(first, pledges)}
    for name in NAMES:
        seeds.add(messages.hash_nonces(first, pledges | {name: b"z" * 32}))
        seeds.add(
            messages.hash_nonces(messages.drawing(terms, bytes(32), roster, pledges | {name: b"x" * 32}), pledges)
        )
        other = roster | {name: Keys(mask=b"y" * 32, channel=bytes(32))}
        seeds.add(messages.hash_nonces(messages.drawing(terms, bytes(32), other, pledges), pledges))
    assert len(seeds) == 1 + 3 * len(NAMES)


def test_each_two_parties_meet_as_often_as_chance_says() -> None:
    """χ² over all pairs of 12 in groups of 4: each pair shares a group with probability 3/11."""
    rounds, met = 3000, Counter[tuple[str, str]]()
    for number in range(rounds):
        for members in graph.groups(NAMES, 3, keys.hash_parts("test", number.to_bytes(4, "big"))):
            met.update(itertools.combinations(members, 2))
    expected = rounds * 3 / 11
    statistic = sum((met[pair] - expected) ** 2 / expected for pair in itertools.combinations(NAMES, 2))
    assert statistic < 66 + 6 * math.sqrt(2 * 66)


def test_a_server_that_tries_many_lists_cannot_choose_before_the_nonce_is_out() -> None:
    """What it can compute from a list without one party's nonce says nothing of that party's group.

    For each of 400 lists it guesses the group by a nonce of its own making; the guess is right as often as chance says.
    """
    victim, hits, tries = NAMES[0], 0, 400
    for number in range(tries):
        nonces = {name: keys.hash_parts("n", name.encode(), number.to_bytes(4, "big")) for name in NAMES}
        drawing = keys.hash_parts("list", number.to_bytes(4, "big"))
        real = graph.groups(NAMES, 3, messages.hash_nonces(drawing, nonces | {victim: keys.draw_seed()}))
        guess = graph.groups(NAMES, 3, messages.hash_nonces(drawing, nonces))
        hits += any({victim, NAMES[1]} <= set(members) for members in real) == any(
            {victim, NAMES[1]} <= set(members) for members in guess
        )
    p = 3 / 11
    chance = p * p + (1 - p) ** 2
    assert abs(hits - tries * chance) < 5 * math.sqrt(tries * chance * (1 - chance))


# ----------------------------------------------------------------------------------------------- lies

Lie = Callable[[Played, str, bytes], bytes]
VICTIM = NAMES[5]


def forged(data: bytes, payload: bytes) -> bytes:
    frame = messages.read_frame(data, largest=1 << 22)
    return messages.write_frame(
        frame.step, frame.session, sender=SERVER, receiver=frame.receiver, payload=payload,
        identity=identity_of("the server"),
    )  # fmt: skip


def payload_of(data: bytes) -> bytes:
    return bytes(messages.read_frame(data, largest=1 << 22).payload)


def other_roster(change: Callable[[dict[str, Keys]], object]) -> Lie:
    def lie(played: Played, party: str, data: bytes) -> bytes:
        roster = messages.read_roster(payload_of(data), NAMES, pledged=True)
        change(roster)
        return forged(data, messages.write_roster(roster, NAMES))

    return lie


def other_nonces(change: Callable[[dict[str, bytes]], object]) -> Lie:
    def lie(played: Played, party: str, data: bytes) -> bytes:
        nonces = messages.read_hashes(payload_of(data), NAMES)
        change(nonces)
        return forged(data, messages.write_hashes(nonces, NAMES))

    return lie


def other_sharing(played: Played, party: str, data: bytes) -> bytes:
    """SHARES with this party and one other of its group alone."""
    mine = group_of(played, party)
    _, sealed = messages.read_shares(payload_of(data), mine)
    other = next(name for name in mine if name != party)
    return forged(data, messages.write_shares((party, other), {other: sealed[other]}, mine))


def merged(played: Played, party: str, data: bytes) -> bytes:
    """SURVIVORS written over two groups at once."""
    mine = group_of(played, party)
    elsewhere = next(members for members in played.server.groups if members != mine)
    both = sorted((*mine, *elsewhere))
    return forged(data, messages.bitmap(both, both) + bytes(1))


def cut_group(played: Played, party: str, data: bytes) -> bytes:
    """SURVIVORS with two of the four alone: a sum below the floor."""
    mine = group_of(played, party)
    return forged(data, messages.bitmap((party, next(name for name in mine if name != party)), mine))


def without_me(played: Played, party: str, data: bytes) -> bytes:
    mine = group_of(played, party)
    return forged(data, messages.bitmap([name for name in mine if name != party], mine))


def letter_of_another_group(played: Played, party: str, data: bytes) -> bytes:
    """The question that a member of another group got, addressed to this party."""
    frame = messages.read_frame(data, largest=1 << 22)
    mine = group_of(played, party)
    other = next(group for members, group in zip(played.server.groups, played.server._inner, strict=True)
                 if members != mine)  # fmt: skip
    return messages.write_frame(
        frame.step, other._session, sender=SERVER, receiver=party, payload=bytes(frame.payload),
        identity=identity_of("the server"),
    )  # fmt: skip


def _swap(roster: dict[str, Keys]) -> None:
    roster[VICTIM] = dataclasses.replace(roster[VICTIM], pledge=bytes(32))


def _repeat(roster: dict[str, Keys]) -> None:
    roster[NAMES[0]] = dataclasses.replace(roster[NAMES[0]], mask=roster[NAMES[1]].mask)


LIES: dict[str, tuple[Step, Lie, Reason]] = {
    "a draw without this party": (Step.REVEAL, other_roster(lambda roster: roster.pop(VICTIM)), Reason.SELF_MISSING),
    "another pledge for this party": (Step.REVEAL, other_roster(_swap), Reason.KEY_SUBSTITUTED),
    "two parties with one key": (Step.REVEAL, other_roster(_repeat), Reason.KEY_REPEATED),
    "a draw of two": (
        Step.REVEAL,
        other_roster(lambda roster: [roster.pop(name) for name in NAMES if name not in (VICTIM, NAMES[0])]),
        Reason.BELOW_FLOOR,
    ),
    "the roster cut after the pledges": (
        Step.SHARE, other_nonces(lambda nonces: nonces.pop(NAMES[0])), Reason.PLEDGE_NOT_OPENED,
    ),
    "another nonce for a party": (
        Step.SHARE, other_nonces(lambda nonces: nonces.update({NAMES[0]: bytes(32)})), Reason.BROKEN_PLEDGE,
    ),
    "another nonce for this party": (
        Step.SHARE, other_nonces(lambda nonces: nonces.update({VICTIM: bytes(32)})), Reason.BROKEN_PLEDGE,
    ),
    "a group of two": (Step.MASKED, other_sharing, Reason.BELOW_FLOOR),
    "the letter of another group": (Step.MASKED, letter_of_another_group, Reason.WRONG_SESSION),
    "two groups in one list": (Step.AGREE, merged, Reason.MALFORMED),
    "survivors below the group's floor": (Step.AGREE, cut_group, Reason.BELOW_FLOOR),
    "survivors without this party": (Step.AGREE, without_me, Reason.SELF_MISSING),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_every_lie_ends_in_its_reason_and_reveals_nothing_more(name: str) -> None:
    step, lie, reason = LIES[name]
    played = session(TWELVE)
    play(played, question=lambda at, party, data: lie(played, party, data) if (at, party) == (step, VICTIM) else data)
    assert played.refused.get((step, VICTIM)) is reason
    sent = [at for at, sender, _, _ in played.messages if sender == VICTIM]
    assert all(at.turn < step.turn for at in sent)  # it said nothing from there on


def test_without_a_lie_nobody_refuses() -> None:
    """The negative control of the table above: the same play with honest questions."""
    played = play(session(TWELVE), question=lambda at, party, data: data)
    assert not played.refused and played.outcome is SessionOutcome.DONE


def test_a_server_that_shows_two_lists_gets_no_sum_of_those_it_split_off() -> None:
    """Two different lists are two draws: masks and signatures of one do not fit the other, and nothing is unmasked."""
    played = session(TWELVE)

    def line(step: Step, party: str, data: bytes) -> bytes:
        if step is Step.REVEAL and party == VICTIM:
            return other_roster(lambda roster: roster.pop(NAMES[0]))(played, party, data)
        return data

    play(played, question=line)
    assert played.turned_away[Step.REVEAL, VICTIM] is Reason.WRONG_SESSION
    assert VICTIM not in played.server.survivors


def test_a_key_that_its_owner_did_not_sign_is_refused_in_the_group() -> None:
    fresh = keys.KeyPair.fresh().public

    def swap(roster: dict[str, Keys]) -> None:
        for name in NAMES:
            if name != VICTIM:
                roster[name] = dataclasses.replace(roster[name], mask=keys.KeyPair.fresh().public)

    played = session(TWELVE)
    lie = other_roster(swap)
    seen: dict[str, Reason] = {}

    def line(step: Step, party: str, data: bytes) -> bytes:
        if (step, party) == (Step.REVEAL, VICTIM):
            data = lie(played, party, data)
            played.parties[party].reveal(Step.DRAW, data)
            roster = messages.read_roster(payload_of(data), NAMES, pledged=True)
            nonces = {name: played.parties[name]._secrets.nonces[0] for name in roster}  # type: ignore[union-attr]
            seen["reason"] = _refusal(
                played.parties[party],
                messages.write_frame(
                    Step.ROSTER, messages.read_frame(data, largest=1 << 22).session, sender=SERVER, receiver=party,
                    payload=messages.write_hashes(nonces, NAMES), identity=identity_of("the server"),
                ),
            )  # fmt: skip
        return data

    play(played, question=line)
    assert fresh and seen["reason"] is Reason.FORGED_STATEMENT


def _refusal(party: Party, message: bytes) -> Reason:
    from quietsum.secagg.outcomes import Refused

    with pytest.raises(Refused) as found:
        party.share(message)
    return found.value.reason


def test_a_second_draw_with_another_pledge_or_a_new_party_is_refused() -> None:
    for change, reason in (
        (lambda pledges: pledges.update({VICTIM: bytes(32)}), Reason.PLEDGE_SUBSTITUTED),
        (lambda pledges: pledges.update({NAMES[4]: bytes(32)}), Reason.LIST_GREW),
        (lambda pledges: pledges.pop(VICTIM), Reason.SELF_MISSING),
    ):
        played = session(TWELVE)
        lie = other_nonces(change)

        def line(step: Step, party: str, data: bytes, played: Played = played, lie: Lie = lie) -> bytes:
            return lie(played, party, data) if (step, party) == (Step.REVEAL_AGAIN, VICTIM) else data

        gone = {NAMES[4]: Step.ADVERTISE, NAMES[7]: Step.REVEAL}
        play(played, question=line, reply=drop(gone))
        assert played.refused[Step.REVEAL_AGAIN, VICTIM] is reason


def test_a_party_that_opens_something_else_than_it_pledged_is_lost() -> None:
    played = session(TWELVE)

    def line(step: Step, party: str, data: bytes) -> bytes:
        if (step, party) != (Step.REVEAL, VICTIM):
            return data
        frame = messages.read_frame(data, largest=1 << 22)
        payload = bytes(32) + bytes(frame.payload)[32:]
        return messages.write_frame(step, frame.session, sender=party, receiver=SERVER, payload=payload,
                              identity=identity_of(party))  # fmt: skip

    play(played, reply=line)
    assert played.server.lost[VICTIM].reason is Reason.BROKEN_PLEDGE
    assert played.outcome is SessionOutcome.DONE and exact(played)


def test_a_policy_s_floor_is_the_group_s() -> None:
    played = play(session(TWELVE, policy=Demands(floor=4)))
    assert set(played.refused.values()) == {Reason.FLOOR_BELOW_POLICY} and played.outcome is SessionOutcome.TOO_FEW_KEYS


def test_other_groups_than_the_plan_s_are_refused() -> None:
    other = terms_of(grouped(12, 2, threshold=4), floor=3)
    played = play(session(grouped(12, 3, threshold=3), server_terms=other))
    assert set(played.refused.values()) == {Reason.OTHER_PARAMETERS}


# -------------------------------------------------------------------------------------------------- leaks


def test_the_server_holds_and_sends_no_vector_but_the_group_sums() -> None:
    """No input, no sum of another set of parties: only each group's sum is found among all that the server has."""
    played = session(TWELVE, dimension=64)
    seen: list[bytes] = []
    play(played, before_advance=lambda step: seen.append(_everything(played.server)))
    held = b"".join(seen) + b"".join(data for _, _, _, data in played.messages)
    for name in NAMES:
        assert played.inputs[name].astype("<u4").tobytes() not in held
    for pair in itertools.combinations(NAMES, 2):
        assert plain(played, pair).astype("<u4").tobytes() not in held
    whole = plain(played, tuple(NAMES)).astype("<u4").tobytes()
    assert whole not in held
    assert all(one.total.tobytes() == plain(played, one.survivors).tobytes() for one in played.server.sums())


def _everything(server: Server) -> bytes:
    """Every array and byte string that the server and its groups hold."""
    found = []
    for one in (server, *server._inner):
        for value in vars(one).values():
            for item in value.values() if isinstance(value, dict) else (value,):
                if isinstance(item, np.ndarray):
                    found.append(item.tobytes())
                elif isinstance(item, bytes):
                    found.append(item)
    return b"|".join(found)


def test_masked_vectors_of_a_group_are_uniform_until_it_is_unmasked() -> None:
    """χ² of the bytes of one accumulator before unmasking, all inputs zero."""
    zeros = {name: np.zeros(20_000, np.uint32) for name in NAMES}
    played = session(TWELVE, inputs=zeros, dimension=20_000)
    play(played, until=Step.AGREE)
    for group in played.server._inner:
        assert group._sum is not None
        counts = np.bincount(group._sum.view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert float(((counts - expected) ** 2 / expected).sum()) < 255 + 6 * math.sqrt(2 * 255)


# --------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("count", "groups", "corrupt", "adversary"),
    [(12, 4, 1, "semi-malicious"), (20, 4, 4, "semi-malicious"), (9, 3, 2, "curious"), (3, 2, 1, "curious")],
)
def test_groups_without_room_are_refused(count: int, groups: int, corrupt: int, adversary: str) -> None:
    with pytest.raises(PlanRefused):
        choose_groups(count, groups, corrupt=corrupt, drop_outs=0.0 if count > 12 else 0.34, adversary=adversary)


@settings(max_examples=60, deadline=None)
@given(st.integers(8, 120), st.integers(2, 8), st.integers(1, 4), st.sampled_from(list(Adversary)))
def test_parameters_of_groups_hold_for_both_sizes(count: int, groups: int, corrupt: int, kind: Adversary) -> None:
    try:
        found = choose_groups(count, groups, corrupt=corrupt, drop_outs=0.1, adversary=kind)
    except PlanRefused:
        return
    sizes = [len(members) for members in graph.groups([f"p{number:03d}" for number in range(count)], groups, b"s")]
    assert {found.smallest, found.largest} == set(sizes) and sum(sizes) == count
    for size in sizes:
        inside = found.within(size)
        assert inside.survivors == found.survivors and inside.threshold == found.threshold
        if kind is Adversary.SEMI_MALICIOUS and found.complete:
            assert 2 * inside.threshold > size + corrupt
    assert Parameters.from_dict(found.to_dict()) == found


def test_a_floor_above_the_smallest_group_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="more than the 4 members of a group"):
        terms_of(TWELVE, floor=5)


def test_a_session_has_three_draws() -> None:
    assert DRAWS == 3


# ------------------------------------------------------------------------------------------------ bad lines

Bend = Callable[[bytes, bytes], bytes | None]
BENT: dict[str, Bend] = {
    "lost": lambda data, other: None,
    "empty": lambda data, other: b"",
    "truncated": lambda data, other: data[: len(data) // 2],
    "longer": lambda data, other: data + b"\0",
    "a bit of the payload": lambda data, other: data[:-80] + bytes((data[-80] ^ 1,)) + data[-79:],
    "a bit of the signature": lambda data, other: data[:-1] + bytes((data[-1] ^ 1,)),
    "a bit of the session": lambda data, other: data[:9] + bytes((data[9] ^ 1,)) + data[10:],
    "another party's": lambda data, other: other,
}


@pytest.mark.parametrize("kind", BENT)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.some(16)
def test_whatever_becomes_of_one_answer_the_others_sums_are_exact(step: Step, kind: str) -> None:
    eight, victim = grouped(8, 2), "site-03"
    played = session(eight)
    last: dict[Step, bytes] = {}

    def line(at: Step, party: str, data: bytes) -> bytes | None:
        before = last.get(at, bytes(len(data)))
        last[at] = data
        return BENT[kind](data, before) if (at, party) == (step, victim) else data

    play(played, reply=line)
    assert played.outcome is SessionOutcome.DONE and exact(played)
    reason = played.server.lost[victim].reason
    assert reason is (Reason.NO_ANSWER if kind == "lost" else played.turned_away[step, victim])
    assert (victim in played.server.survivors) is (step.turn > Step.MASKED.turn)


@pytest.mark.parametrize("kind", BENT)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.some(16)
def test_whatever_becomes_of_one_question_the_party_refuses_it_with_a_reason(step: Step, kind: str) -> None:
    eight, victim = grouped(8, 2), "site-03"
    played = session(eight)
    last: dict[Step, bytes] = {}

    def line(at: Step, party: str, data: bytes) -> bytes | None:
        before = last.get(at, bytes(len(data)))
        last[at] = data
        return BENT[kind](data, before) if (at, party) == (step, victim) else data

    play(played, question=line)
    assert played.outcome is SessionOutcome.DONE and exact(played)
    assert kind == "lost" or played.refused[step, victim] in set(Reason)


def test_an_answer_that_comes_twice_counts_once_and_a_replayed_one_not_at_all() -> None:
    played = session(grouped(8, 2))
    earlier: dict[str, bytes] = {}

    def line(at: Step, party: str, data: bytes) -> bytes:
        if party in earlier:
            assert played.server.take(party, earlier[party]) in (None, Reason.LATE, Reason.WRONG_SESSION)
        assert played.server.take(party, data) is None
        earlier[party] = data
        return data

    play(played, reply=line)
    assert played.outcome is SessionOutcome.DONE and exact(played) and not played.turned_away

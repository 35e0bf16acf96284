"""A server that lies, and what each lie ends in. ``LIES`` is the table: lie, at which step, what the parties say.

The liar has the server's own identity, so every frame below is signed as it should be; only its content is false.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.secagg import graph, keys, messages
from quietsum.secagg.messages import SERVER, Keys, KeyShare, SeedShare, SessionTerms, Step
from quietsum.secagg.outcomes import Reason, Refused, SessionOutcome
from quietsum.secagg.parameters import Adversary
from quietsum.secagg.party import Demands, Party
from secagg.sessions import (
    ANSWERS,
    MODEL,
    Played,
    answer,
    complete,
    drop,
    identity_of,
    names_of,
    play,
    session,
    sparse,
    terms_of,
)

NAMES = names_of(5)
PARAMETERS = complete(5, threshold=4, adversary=Adversary.SEMI_MALICIOUS)
VICTIM, OTHER = NAMES[1], NAMES[3]

Lie = Callable[[Played, str, bytes], bytes]


def forged(data: bytes, payload: bytes, *, step: Step | None = None, session: bytes | None = None) -> bytes:
    """The question ``data`` with another payload, signed by the server."""
    frame = messages.read_frame(data, largest=1 << 22)
    return messages.write_frame(
        step or frame.step,
        session or frame.session,
        sender=SERVER,
        receiver=frame.receiver,
        payload=payload,
        identity=identity_of("the server"),
    )


def payload_of(data: bytes) -> bytes:
    return bytes(messages.read_frame(data, largest=1 << 22).payload)


def with_terms(**changed: object) -> Lie:
    """OPEN under other terms, consistently bound to them."""

    def lie(played: Played, party: str, data: bytes) -> bytes:
        terms = terms_of(PARAMETERS, **changed)
        public = {name: identity_of(name).public for name in NAMES}
        opened = messages.opening(terms, public)
        return forged(data, messages.write_open(terms, NAMES), session=opened)

    return lie


def with_numbers(place: int, value: int) -> Lie:
    """OPEN with one number of the terms overwritten, past every check that a SessionTerms makes."""

    def lie(played: Played, party: str, data: bytes) -> bytes:
        payload, layout = payload_of(data), messages._TERMS
        head = len(played.server.terms.encode()) - layout.size
        numbers = list(layout.unpack_from(payload, head))
        numbers[place] = value
        return forged(data, payload[:head] + layout.pack(*numbers) + payload[head + layout.size :])

    return lie


def with_cohort(names: list[str]) -> Lie:
    def lie(played: Played, party: str, data: bytes) -> bytes:
        public = {name: identity_of(name).public for name in names}
        terms = played.server.terms
        return forged(data, messages.write_open(terms, names), session=messages.opening(terms, public))

    return lie


def with_identity(of: str) -> Lie:
    """OPEN bound to another identity of one party than the enrolled one."""

    def lie(played: Played, party: str, data: bytes) -> bytes:
        public = {name: identity_of(name).public for name in NAMES} | {of: keys.Identity.fresh().public}
        return forged(data, payload_of(data), session=messages.opening(played.server.terms, public))

    return lie


def with_roster(change: Callable[[dict[str, Keys], str], None]) -> Lie:
    def lie(played: Played, party: str, data: bytes) -> bytes:
        roster = messages.read_roster(payload_of(data), NAMES)
        change(roster, party)
        return forged(data, messages.write_roster(roster, NAMES))

    return lie


def fresh_keys(roster: dict[str, Keys], of: str) -> None:
    """Keys that the server made up, with the signature of the true ones."""
    mask, channel = keys.KeyPair.fresh(), keys.KeyPair.fresh()
    roster[of] = Keys(mask=mask.public, channel=channel.public, signature=roster[of].signature)


def signed_keys(played: Played, roster: dict[str, Keys], of: str, mask: bytes, channel: bytes) -> None:
    """Keys that the colluder ``of`` did sign."""
    offered = Keys(mask=mask, channel=channel)
    said = messages.statement(Step.ADVERTISE, played.server._opening, of, SERVER, offered.payload)
    roster[of] = dataclasses.replace(offered, signature=identity_of(of).sign(said))


def repeated_key(played: Played, party: str, data: bytes) -> bytes:
    roster = messages.read_roster(payload_of(data), NAMES)
    signed_keys(played, roster, OTHER, roster[NAMES[0]].mask, keys.KeyPair.fresh().public)
    return forged(data, messages.write_roster(roster, NAMES))


def key_of_low_order(played: Played, party: str, data: bytes) -> bytes:
    roster = messages.read_roster(payload_of(data), NAMES)
    signed_keys(played, roster, OTHER, keys.KeyPair.fresh().public, bytes(32))
    return forged(data, messages.write_roster(roster, NAMES))


def without(*gone: str) -> Callable[[dict[str, Keys], str], None]:
    def leave_out(roster: dict[str, Keys], party: str) -> None:
        for name in gone:
            del roster[name]

    return leave_out


def listing(*members: str) -> Lie:
    """SURVIVORS with these members."""
    return lambda played, party, data: forged(data, messages.bitmap(members, NAMES))


def sharing(change: Callable[[list[str], dict[str, bytes]], None]) -> Lie:
    def lie(played: Played, party: str, data: bytes) -> bytes:
        members, sealed = messages.read_shares(payload_of(data), NAMES)
        listed = list(members)
        change(listed, sealed)
        return forged(data, messages.write_shares(listed, sealed, NAMES))

    return lie


def leave_out_victim(members: list[str], sealed: dict[str, bytes]) -> None:
    members.remove(VICTIM)
    sealed.pop(VICTIM, None)


def leave_out_other(members: list[str], sealed: dict[str, bytes]) -> None:
    members.remove(OTHER)
    sealed.pop(OTHER)


def leave_out_two(members: list[str], sealed: dict[str, bytes]) -> None:
    for name in (NAMES[0], OTHER):
        members.remove(name)
        sealed.pop(name, None)


def hold_back_share(members: list[str], sealed: dict[str, bytes]) -> None:
    sealed.pop(OTHER, None)


def agreed(*names: str, from_other: bool = False) -> Lie:
    """AGREED with the signatures of ``names`` only; ``from_other`` shows one name's signature as another's."""

    def lie(played: Played, party: str, data: bytes) -> bytes:
        signatures = messages.read_agreed(payload_of(data), NAMES)
        kept = {name: signatures[name] for name in names}
        if from_other:
            kept[names[0]] = signatures[names[1]]
        return forged(data, messages.write_agreed(kept, NAMES))

    return lie


LIES: dict[str, tuple[Step, Lie, Reason]] = {
    # lie                                    step             how                               what the victim says
    "another model": (Step.ADVERTISE, with_terms(model="c3" * 32), Reason.OTHER_MODEL),
    "another plan": (Step.ADVERTISE, with_terms(plan="c3" * 32), Reason.OTHER_PLAN),
    "another round": (Step.ADVERTISE, with_terms(round=4), Reason.OTHER_ROUND),
    "another attempt": (Step.ADVERTISE, with_terms(attempt=9), Reason.OTHER_ROUND),
    "another run": (Step.ADVERTISE, with_terms(run="r-2"), Reason.OTHER_ROUND),
    "another dimension": (Step.ADVERTISE, with_terms(dimension=6), Reason.OTHER_DIMENSION),
    "fewer bits": (Step.ADVERTISE, with_terms(bits=16), Reason.OTHER_DIMENSION),
    "threshold lowered to 1": (Step.ADVERTISE, with_numbers(5, 1), Reason.THRESHOLD_LOWERED),
    "threshold raised": (Step.ADVERTISE, with_numbers(5, 5), Reason.OTHER_PARAMETERS),
    "floor lowered": (Step.ADVERTISE, with_terms(floor=2), Reason.FLOOR_LOWERED),
    "floor raised": (Step.ADVERTISE, with_terms(floor=5), Reason.OTHER_PARAMETERS),
    "another ring": (Step.ADVERTISE, with_terms(bits=16), Reason.OTHER_DIMENSION),
    "no ring at all": (Step.ADVERTISE, with_numbers(9, 8), Reason.OTHER_DIMENSION),
    "other graph": (Step.ADVERTISE, with_numbers(4, 2), Reason.OTHER_PARAMETERS),
    "fewer colluders": (Step.ADVERTISE, with_numbers(6, 0), Reason.OTHER_PARAMETERS),
    "cohort of strangers": (Step.ADVERTISE, with_cohort([*NAMES[:4], "stranger"]), Reason.OTHER_COHORT),
    "cohort without self": (
        Step.ADVERTISE,
        with_cohort([name for name in NAMES if name != VICTIM] + ["zoe"]),
        Reason.OTHER_COHORT,
    ),
    "smaller cohort": (Step.ADVERTISE, with_cohort(NAMES[:4]), Reason.OTHER_COHORT),
    "name twice": (Step.ADVERTISE, with_cohort([*NAMES[:4], NAMES[3]]), Reason.OTHER_COHORT),
    "another identity": (Step.ADVERTISE, with_identity(OTHER), Reason.OTHER_COHORT),
    "substituted key": (
        Step.SHARE,
        with_roster(lambda roster, party: fresh_keys(roster, OTHER)),
        Reason.FORGED_STATEMENT,
    ),
    "own key substituted": (Step.SHARE, with_roster(fresh_keys), Reason.KEY_SUBSTITUTED),
    "repeated key": (Step.SHARE, repeated_key, Reason.KEY_REPEATED),
    "key of low order": (Step.SHARE, key_of_low_order, Reason.BAD_KEY),
    "self missing from keys": (Step.SHARE, with_roster(without(VICTIM)), Reason.SELF_MISSING),
    "too few keys": (Step.SHARE, with_roster(without(NAMES[0], OTHER)), Reason.BELOW_FLOOR),
    "self missing from sharers": (Step.MASKED, sharing(leave_out_victim), Reason.SELF_MISSING),
    "too few sharers": (Step.MASKED, sharing(leave_out_two), Reason.BELOW_FLOOR),
    "share held back": (Step.MASKED, sharing(hold_back_share), Reason.MALFORMED),
    "self missing from survivors": (Step.AGREE, listing(*(set(NAMES) - {VICTIM})), Reason.SELF_MISSING),
    "survivors below the floor": (Step.AGREE, listing(*NAMES[:3]), Reason.BELOW_FLOOR),
    "victim alone": (Step.AGREE, listing(VICTIM), Reason.BELOW_FLOOR),
    "too few signatures": (Step.UNMASK, agreed(*NAMES[:3]), Reason.TOO_FEW_SIGNATURES),
    "no signatures": (Step.UNMASK, agreed(), Reason.TOO_FEW_SIGNATURES),
    "forged signature": (Step.UNMASK, agreed(*NAMES[:4], from_other=True), Reason.FORGED_STATEMENT),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_to_one_party_is_named_and_that_party_tells_nothing_more(lie: str) -> None:
    step, change, reason = LIES[lie]
    played = session(PARAMETERS)

    def line(at: Step, party: str, data: bytes) -> bytes:
        return change(played, party, data) if at is step and party == VICTIM else data

    play(played, question=line)
    assert played.refused == {(step, VICTIM): reason}
    assert played.exact()  # the others are enough, and the sum is theirs
    victim = played.parties[VICTIM]
    if step is not Step.ADVERTISE:
        assert victim.ended is reason
        assert victim._secrets is None
        assert not victim._peers


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_to_all_parties_ends_without_a_sum(lie: str) -> None:
    step, change, reason = LIES[lie]
    played = session(PARAMETERS)

    def line(at: Step, party: str, data: bytes) -> bytes:
        return change(played, party, data) if at is step else data

    play(played, question=line)
    assert played.outcome is not SessionOutcome.DONE
    assert reason in played.refused.values()
    assert all(at is step for at, _ in played.refused)


def test_a_list_that_grows_is_refused_at_each_step() -> None:
    late = NAMES[4]
    missing = {late: Step.SHARE}
    played = session(complete(5, threshold=3))

    def line(step: Step, party: str, data: bytes) -> bytes:
        if step is Step.AGREE and party == VICTIM:
            return forged(data, messages.bitmap(NAMES, NAMES))
        if step is Step.UNMASK and party == NAMES[0]:
            signatures = messages.read_agreed(payload_of(data), NAMES) | {late: bytes(64)}
            return forged(data, messages.write_agreed(signatures, NAMES))
        return data

    play(played, question=line, reply=drop(missing))
    assert played.refused == {(Step.AGREE, VICTIM): Reason.LIST_GREW, (Step.UNMASK, NAMES[0]): Reason.LIST_GREW}
    grown = session(complete(5, threshold=3))

    def add_silent(step: Step, party: str, data: bytes) -> bytes:
        if step is Step.MASKED and party == VICTIM:
            members, sealed = messages.read_shares(payload_of(data), NAMES)
            return forged(data, messages.write_shares([*members, late], sealed | {late: bytes(100)}, NAMES))
        return data

    play(grown, question=add_silent, reply=drop({late: Step.ADVERTISE}))
    assert grown.refused == {(Step.MASKED, VICTIM): Reason.LIST_GREW}


def test_terms_below_a_party_s_policy_are_refused_before_any_key_is_made() -> None:
    for policy, reason in (
        (Demands(threshold=5), Reason.THRESHOLD_BELOW_POLICY),
        (Demands(floor=5), Reason.FLOOR_BELOW_POLICY),
        (Demands(adversaries=frozenset({Adversary.CURIOUS})), Reason.ADVERSARY_NOT_ALLOWED),
    ):
        played = play(session(PARAMETERS, policy=policy))
        assert set(played.refused.values()) == {reason}
        assert played.outcome is SessionOutcome.TOO_FEW_KEYS
        assert all(party._secrets is None for party in played.parties.values())


def test_the_threshold_of_the_server_counts_nowhere() -> None:
    """A server that runs with a lower threshold of its own is refused before any key is made."""
    low = terms_of(complete(5, threshold=3), floor=3)
    played = play(session(complete(5, threshold=4), floor=4, server_terms=low))
    assert set(played.refused.values()) == {Reason.THRESHOLD_LOWERED}
    assert all(party._secrets is None for party in played.parties.values())


def test_parties_with_different_models_never_meet_in_one_session() -> None:
    """Even if the server shows each party the model that it holds: their keys are signed for different openings."""
    played = session(PARAMETERS)
    public = {name: identity_of(name).public for name in NAMES}
    other = terms_of(PARAMETERS, model="d4" * 32)
    played.parties[VICTIM].__dict__["terms"] = other  # what the victim holds is another model

    def line(step: Step, party: str, data: bytes) -> bytes:
        if party == VICTIM and step is Step.ADVERTISE:
            return forged(data, messages.write_open(other, NAMES), session=messages.opening(other, public))
        if party == VICTIM and step is Step.SHARE:
            return forged(data, payload_of(data), session=messages.opening(other, public))
        return data

    def rebind(step: Step, party: str, data: bytes) -> bytes:
        if party == VICTIM and step is Step.ADVERTISE:  # the server takes the keys as if they had been signed for it
            frame = messages.read_frame(data, largest=1 << 20)
            played.server._roster[party] = dataclasses.replace(
                messages.read_keys(frame.payload), signature=frame.signature
            )
            played.server._answers[party] = frame.signature
        return data

    play(played, question=line, reply=rebind)
    assert other.model != MODEL
    assert set(played.refused.values()) == {Reason.FORGED_STATEMENT}
    assert len(played.refused) == 5
    assert played.outcome is SessionOutcome.TOO_FEW_SHARES


@pytest.mark.parametrize("lie", [lie for lie, (step, _, _) in LIES.items() if step is Step.MASKED])
def test_no_data_is_touched_for_a_question_that_is_refused(lie: str) -> None:
    touched: list[str] = []
    played = session(PARAMETERS)

    def line(step: Step, party: str, data: bytes) -> bytes:
        if step is Step.MASKED and party == VICTIM:

            def train() -> NDArray[np.uint32]:
                touched.append(party)
                return played.inputs[party]

            here = played.parties[party]
            with pytest.raises(Refused):
                here.mask(data[:-1], train)
            assert not touched
            with pytest.raises(Refused):
                here.mask(LIES[lie][1](played, party, data), train)
            assert not touched
        return data

    play(played, question=line)
    assert played.exact()


def test_a_vector_may_be_made_when_the_question_has_passed_and_is_made_once() -> None:
    touched: list[str] = []
    played = session(PARAMETERS)

    def line(step: Step, party: str, data: bytes) -> bytes:
        if step is Step.MASKED:

            def train() -> NDArray[np.uint32]:
                touched.append(party)
                return played.inputs[party]

            here = played.parties[party]
            with pytest.raises(InvalidParameter):
                here.mask(data, lambda: np.zeros(3, dtype=np.uint32))
            with pytest.raises(ZeroDivisionError):
                here.mask(data, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
            first = here.mask(data, train)
            assert here.mask(data, train) == first
        return data

    assert play(played, question=line).exact()
    assert touched == NAMES


def test_a_frame_under_another_sender_or_for_another_step_is_refused_though_the_server_signed_it() -> None:
    played = play(session(PARAMETERS), until=Step.AGREE)
    party, named = played.parties[VICTIM], played.server._session

    def question(step: Step, sender: str) -> bytes:
        whole, server = messages.bitmap(NAMES, NAMES), identity_of("the server")
        return messages.write_frame(step, named, sender=sender, receiver=VICTIM, payload=whole, identity=server)

    for wrong, reason in (
        (question(Step.SURVIVORS, OTHER), Reason.WRONG_SENDER),
        (question(Step.AGREE, SERVER), Reason.WRONG_STEP),
        (question(Step.SHARES, SERVER), Reason.WRONG_STEP),
    ):
        with pytest.raises(Refused) as refusal:
            party.agree(wrong)
        assert refusal.value.reason is reason
    assert party.agree(question(Step.SURVIVORS, SERVER))


def test_a_party_answers_no_session_of_others() -> None:
    """The cohort is all of parties that it knows, and it is not among them."""
    strangers = [name for name in names_of(6) if name != VICTIM]
    public = {name: identity_of(name).public for name in names_of(6)}
    terms = terms_of(PARAMETERS)
    server = identity_of("the server")
    party = Party(name=VICTIM, identity=identity_of(VICTIM), server=server.public, peers=public, terms=terms)
    opened = messages.opening(terms, {name: public[name] for name in strangers})
    payload = messages.write_open(terms, strangers)
    with pytest.raises(Refused) as refusal:
        party.advertise(
            messages.write_frame(Step.OPEN, opened, sender=SERVER, receiver=VICTIM, payload=payload, identity=server)
        )
    assert refusal.value.reason is Reason.SELF_MISSING


def test_one_identity_under_two_names_is_refused() -> None:
    """Otherwise one colluder would count as several honest parties of the floor."""
    public = {name: identity_of(name).public for name in NAMES} | {OTHER: identity_of(NAMES[0]).public}
    terms = terms_of(PARAMETERS)
    party = Party(
        name=VICTIM,
        identity=identity_of(VICTIM),
        server=identity_of("the server").public,
        peers=public,
        terms=terms,
    )
    question = messages.write_frame(
        Step.OPEN,
        messages.opening(terms, public),
        sender=SERVER,
        receiver=VICTIM,
        payload=messages.write_open(terms, NAMES),
        identity=identity_of("the server"),
    )
    with pytest.raises(Refused) as refusal:
        party.advertise(question)
    assert refusal.value.reason is Reason.OTHER_COHORT


def revealed_of(played: Played, peer: str, told: dict[str, bytes]) -> dict[type, int]:
    """How many shares of each kind of ``peer`` the server has."""
    counts: dict[type, int] = {SeedShare: 0, KeyShare: 0}
    for data in told.values():
        share = messages.read_unmask(payload_of(data), NAMES).get(peer)
        if share is not None:
            counts[type(share)] += 1
    return counts


def two_lists(played: Played, first: dict[str, tuple[str, ...]], *, honest_signatures: bool) -> dict[str, bytes]:
    """Show each party the list that ``first`` names for it, relay signatures, and return what they reveal."""
    questions = {}
    pending = played.server.open()
    while played.server.step is not Step.AGREE:
        for name, data in pending.items():
            assert played.server.take(name, answer(played, name, played.server.step, data)) is None  # type: ignore[arg-type]
        pending = played.server.advance()
    signatures: dict[str, bytes] = {}
    for name, data in pending.items():
        said = played.parties[name].agree(forged(data, messages.bitmap(first[name], NAMES)))
        signatures[name] = messages.read_frame(said, largest=1 << 20).signature
    told: dict[str, bytes] = {}
    for name, data in pending.items():
        shown = {
            other: signature
            for other, signature in signatures.items()
            if not honest_signatures or first[other] == first[name]
        }
        questions[name] = forged(data, messages.write_agreed(shown, NAMES), step=Step.AGREED)
        try:
            told[name] = played.parties[name].unmask(questions[name])
        except Refused as refusal:
            played.refused[Step.UNMASK, name] = refusal.reason
    return told


@pytest.mark.parametrize("split", range(1, 5))
@pytest.mark.parametrize("honest_signatures", [True, False])
def test_different_survivor_lists_give_no_party_away(split: int, honest_signatures: bool) -> None:
    """Some parties hear that the victim dropped out, others that it is in the sum: not one secret can be rebuilt."""
    played = session(PARAMETERS)
    others = [name for name in NAMES if name != VICTIM]
    lists = {name: tuple(NAMES) for name in (VICTIM, *others[:split])}
    lists |= {name: tuple(others) for name in others[split:]}
    told = two_lists(played, lists, honest_signatures=honest_signatures)
    counts = revealed_of(played, VICTIM, told)
    assert min(counts.values()) == 0  # never both kinds
    assert counts[KeyShare] < PARAMETERS.threshold
    expected = {Reason.TOO_FEW_SIGNATURES} if honest_signatures else {Reason.FORGED_STATEMENT, Reason.LIST_GREW}
    assert set(played.refused.values()) <= expected
    assert played.refused or split == 4


def test_no_reply_can_hold_both_shares_of_one_peer() -> None:
    """The list settles each peer once: the party itself has one share of it from then on, and the layout one place."""
    missing = NAMES[4]
    played = play(session(PARAMETERS), reply=drop({missing: Step.MASKED}), until=Step.UNMASK)
    for party in played.parties.values():
        if party.name != missing:
            assert all(peer.both is None for peer in party._peers.values())
            kinds = {name: type(peer.one) for name, peer in party._peers.items()}
            assert kinds == {name: KeyShare if name == missing else SeedShare for name in NAMES}
    share = played.parties[VICTIM]._peers[OTHER].one
    assert share is not None
    once = messages.write_unmask({OTHER: share}, NAMES)
    with pytest.raises(Refused):
        messages.read_unmask(once + once[1:], NAMES)


@pytest.mark.parametrize("step", ANSWERS[1:])
def test_asking_twice_with_something_else_is_refused_and_changes_nothing(step: Step) -> None:
    played = session(PARAMETERS)
    change = {
        Step.SHARE: with_roster(without(OTHER)),
        Step.MASKED: sharing(leave_out_other),
        Step.AGREE: listing(*(name for name in NAMES if name != OTHER)),
        Step.UNMASK: agreed(*NAMES[:3]),
    }[step]

    def line(at: Step, party: str, data: bytes) -> bytes:
        if at is step:
            first = answer(played, party, step, data)
            if party != OTHER:
                with pytest.raises(Refused) as refusal:
                    answer(played, party, step, change(played, party, data))
                assert refusal.value.reason is Reason.ALREADY_ANSWERED
            assert answer(played, party, step, data) == first
        return data

    assert play(played, question=line).exact()


def test_unmasking_is_not_reached_without_the_consistency_round() -> None:
    played = session(PARAMETERS)

    def line(step: Step, party: str, data: bytes) -> bytes:
        if step is Step.AGREE:
            with pytest.raises(Refused) as refusal:
                played.parties[party].unmask(forged(data, messages.write_agreed({}, NAMES), step=Step.AGREED))
            assert refusal.value.reason is Reason.WRONG_STEP
        return data

    assert play(played, question=line).exact()


def test_naming_a_party_that_sent_nothing_lifts_no_sum_over_the_floor() -> None:
    """The server claims five survivors although two sent nothing: what it can subtract leaves noise."""
    zeros = {name: np.zeros(64, dtype=np.uint32) for name in NAMES}
    played = session(complete(5, threshold=3), floor=5, inputs=zeros, dimension=64)
    silent = set(NAMES[3:])
    kept: dict[str, bytes] = {}

    def line(step: Step, party: str, data: bytes) -> bytes | None:
        if step is Step.MASKED and party in silent:
            kept[party] = data
            return None
        return data

    pending = played.server.open()
    while played.server.step is not Step.MASKED:
        for name, data in pending.items():
            played.server.take(name, answer(played, name, played.server.step, data))  # type: ignore[arg-type]
        pending = played.server.advance()
    for name, data in pending.items():
        if line(Step.MASKED, name, said := played.parties[name].mask(data, zeros[name])) is not None:
            assert played.server.take(name, said) is None
    server = played.server
    for name in silent:  # the lie: they count as if they had sent a vector
        server._answers[name] = bytes(64)
    pending = server.advance()
    while pending:
        step = server.step
        assert step is not None
        for name, data in pending.items():
            assert server.take(name, answer(played, name, step, data)) is None
        pending = server.advance()
    assert server.outcome is SessionOutcome.DONE
    assert len(set(server.total().tolist())) > 60  # all three true inputs are zero, and so would their sum be


def test_a_sparse_list_of_survivors_that_cuts_the_graph_is_refused_below_the_floor() -> None:
    """Two runs of the ring are declared dropped, so that a few parties stand alone: they do not unmask their sum."""
    parameters = sparse(12, neighbours=4, threshold=2)
    played = session(parameters, floor=6)
    names = names_of(12)
    refused: set[str] = set()

    def line(step: Step, party: str, data: bytes) -> bytes:
        if step is not Step.AGREE:
            return data
        near = played.server._graph
        order = [names[0]]  # the ring: walk along common neighbours
        while len(order) < 12:
            here = order[-1]
            ahead = [name for name in near[here] if name not in order]
            order.append(max(ahead, key=lambda name: len(set(near[name]) & set(near[here]))))
        cut = [name for place, name in enumerate(order) if place not in (3, 4, 10, 11)]
        return forged(data, messages.bitmap(cut, names))

    play(played, question=line)
    refused = {name for (step, name), reason in played.refused.items() if reason is Reason.BELOW_FLOOR}
    assert len(refused) == 8
    assert played.outcome is SessionOutcome.TOO_FEW_SIGNATURES


def test_a_server_cannot_give_a_party_other_neighbours() -> None:
    """Every party works the graph out by itself: shares of anyone else, or of fewer, are no answer to its question."""
    names = names_of(12)
    played = session(sparse(12, neighbours=4, threshold=3))
    victim = names[5]

    def line(step: Step, party: str, data: bytes) -> bytes:
        if step is Step.MASKED and party == victim:
            members, sealed = messages.read_shares(payload_of(data), names)
            stranger = next(name for name in names if name not in (victim, *played.server._graph[victim]))
            gone = next(iter(sealed))
            swapped = {name: raw for name, raw in sealed.items() if name != gone} | {stranger: sealed[gone]}
            return forged(data, messages.write_shares(members, swapped, names))
        return data

    play(played, question=line)
    assert played.refused == {(Step.MASKED, victim): Reason.MALFORMED}
    assert played.exact()
    drawn = {
        seed: dict(graph.neighbours(names, played.server.terms.parameters, bytes([seed]) * 32)) for seed in range(3)
    }
    assert drawn[0] != drawn[1] != drawn[2]  # and keys that no one can foresee draw the graph


def test_a_sealed_share_that_cannot_be_opened_is_made_up_for_by_spare_holders() -> None:
    played = session(complete(5, threshold=3))

    def line(step: Step, party: str, data: bytes) -> bytes:
        if step is Step.MASKED and party in (VICTIM, NAMES[0]):
            members, sealed = messages.read_shares(payload_of(data), NAMES)
            return forged(data, messages.write_shares(members, sealed | {OTHER: bytes(100)}, NAMES))
        return data

    play(played, question=line)
    assert not played.refused
    assert played.exact()
    worse = session(complete(5, threshold=3))

    def all_of_one(step: Step, party: str, data: bytes) -> bytes:
        if step is Step.MASKED and party != OTHER:
            members, sealed = messages.read_shares(payload_of(data), NAMES)
            return forged(data, messages.write_shares(members, sealed | {OTHER: bytes(100)}, NAMES))
        return data

    assert play(worse, question=all_of_one).outcome is SessionOutcome.TOO_FEW_UNMASKED


def test_terms_are_checked_where_they_are_made() -> None:
    for wrong in ({"floor": 9}, {"dimension": 0}, {"run": ""}, {"round": -1}, {"model": "x" * 300}):
        with pytest.raises(InvalidParameter):
            terms_of(PARAMETERS, **wrong)
    assert isinstance(terms_of(PARAMETERS), SessionTerms)
    with pytest.raises(InvalidParameter):
        session(PARAMETERS).parties[VICTIM].mask(b"", np.zeros(5))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        session(PARAMETERS).parties[VICTIM].__reduce__()
    assert Party.__name__ == "Party"

"""The strongest lie within the adversary class, tried in every way: which parties hear that the victim dropped out.

The server has colluders. They sign every list, and give away both shares that they hold. For a semi-malicious server
2t > n + c, so that no split of the honest parties yields t shares of each kind; for a curious one such a split exists,
which is what the class leaves out.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from quietsum.errors import PlanRefused
from quietsum.secagg import messages
from quietsum.secagg.messages import SERVER, KeyShare, SeedShare, Step
from quietsum.secagg.outcomes import Refused
from quietsum.secagg.parameters import Adversary, Parameters
from secagg.sessions import answer, complete, identity_of, names_of, play, session


def shares_of_the_victim(
    parameters: Parameters, alive_for: frozenset[str], colluders: frozenset[str]
) -> tuple[int, int]:
    """How many shares of the victim's seed and of its key the server ends up with."""
    names = names_of(parameters.parties)
    victim = names[0]
    played = session(parameters)
    server = played.server
    pending = server.open()
    while server.step is not Step.AGREE:
        step = server.step
        assert step is not None
        for name, data in pending.items():
            assert server.take(name, answer(played, name, step, data)) is None
        pending = server.advance()
    lists = {True: tuple(names), False: tuple(names[1:])}
    given = {name for name in colluders if played.parties[name]._peers[victim].both is not None}
    seeds, private = len(given), len(given)

    def question(name: str, step: Step, payload: bytes) -> bytes:
        return messages.write_frame(
            step, server._session, sender=SERVER, receiver=name, payload=payload, identity=identity_of("the server")
        )

    signed: dict[bool, dict[str, bytes]] = {True: {}, False: {}}
    honest = [name for name in names if name not in colluders]
    for name in honest:
        said = played.parties[name].agree(
            question(name, Step.SURVIVORS, messages.bitmap(lists[name in alive_for], names))
        )
        signed[name in alive_for][name] = messages.read_frame(said, largest=1 << 20).signature
    for name, kind in itertools.product(colluders, (True, False)):
        said_by = messages.statement(Step.AGREE, server._session, name, SERVER, messages.bitmap(lists[kind], names))
        signed[kind][name] = identity_of(name).sign(said_by)
    for name in honest:
        shown = messages.write_agreed(signed[name in alive_for], names)
        try:
            told = played.parties[name].unmask(question(name, Step.AGREED, shown))
        except Refused:
            continue
        share = messages.read_unmask(messages.read_frame(told, largest=1 << 20).payload, names)[victim]
        seeds += isinstance(share, SeedShare)
        private += isinstance(share, KeyShare)
    return seeds, private


def every_split(parameters: Parameters) -> list[tuple[int, int]]:
    names = names_of(parameters.parties)
    colluders = frozenset(names[len(names) - parameters.corrupt :])
    others = [name for name in names[1:] if name not in colluders]
    splits = itertools.chain.from_iterable(itertools.combinations(others, size) for size in range(len(others) + 1))
    return [shares_of_the_victim(parameters, frozenset({names[0], *some}), colluders) for some in splits]


@pytest.mark.parametrize(("count", "corrupt"), [(4, 1), (5, 1), (6, 1), (7, 2)])
def test_no_split_of_the_parties_gives_a_lying_server_both_secrets_of_one(count: int, corrupt: int) -> None:
    threshold = max((count + corrupt) // 2 + 1, corrupt + 2)
    parameters = Parameters(
        parties=count,
        neighbours=count - 1,
        threshold=threshold,
        adversary=Adversary.SEMI_MALICIOUS,
        corrupt=corrupt,
        may_drop=count - threshold,
    )
    found = every_split(parameters)
    assert all(min(pair) < threshold for pair in found)
    assert any(max(pair) >= threshold for pair in found)  # one of the two is what the protocol gives anyway


def test_against_a_curious_threshold_a_lying_server_finds_a_split_and_the_class_says_so() -> None:
    """The negative control, and why the lower threshold is refused for a server that may lie."""
    curious = complete(5, threshold=3)
    assert any(min(pair) >= 3 for pair in every_split(curious))
    with pytest.raises(PlanRefused, match="at least 4"):
        complete(5, threshold=3, adversary=Adversary.SEMI_MALICIOUS)


NAMES = names_of(5)
STRICT = complete(5, threshold=4, adversary=Adversary.SEMI_MALICIOUS)
COLLUDER = NAMES[4]


@settings(max_examples=80)
@given(data=st.data())
def test_no_sequence_of_questions_makes_parties_reveal_both_secrets_or_a_sum_below_the_floor(
    data: st.DataObject,
) -> None:
    """Any lists to any parties in any order, any honest signatures relayed, the colluder signing whatever is useful."""
    played = play(session(STRICT), until=Step.AGREE)
    name_of_session = played.server._session
    whole, rare = tuple(NAMES), st.lists(st.sampled_from(NAMES), min_size=2, max_size=5, unique=True)
    other = data.draw(st.one_of(st.sampled_from(list(itertools.combinations(NAMES, 4))), rare.map(sorted).map(tuple)))
    bias = data.draw(st.sampled_from([[whole], [whole, whole, whole, other], [whole, other]]))
    signed: dict[str, tuple[tuple[str, ...], bytes]] = {}
    revealed: dict[str, dict[str, type]] = {}
    honest = NAMES[:4]

    def question(name: str, step: Step, payload: bytes) -> bytes:
        return messages.write_frame(
            step, name_of_session, sender=SERVER, receiver=name, payload=payload, identity=identity_of("the server")
        )

    turns = [*data.draw(st.permutations(honest)), *data.draw(st.lists(st.sampled_from(honest), max_size=12))]
    for turn, name in enumerate(turns):
        party = played.parties[name]
        listed = data.draw(st.sampled_from(bias))
        try:
            if turn < 3 or data.draw(st.integers(0, 3)) == 0:
                said = party.agree(question(name, Step.SURVIVORS, messages.bitmap(listed, NAMES)))
                assert (
                    signed.setdefault(name, (listed, messages.read_frame(said, largest=1 << 20).signature))[0] == listed
                )
                assert len(listed) >= 4 and name in listed
            else:
                own = signed[name][0] if name in signed else listed
                shown = {
                    other: one
                    for other, (which, one) in signed.items()
                    if which == own or data.draw(st.integers(0, 9)) == 0
                }
                said_by = messages.statement(Step.AGREE, name_of_session, COLLUDER, SERVER, messages.bitmap(own, NAMES))
                shown[COLLUDER] = identity_of(COLLUDER).sign(said_by)
                said = party.unmask(question(name, Step.AGREED, messages.write_agreed(shown, NAMES)))
                shares = messages.read_unmask(messages.read_frame(said, largest=1 << 20).payload, NAMES)
                kinds = {peer: type(share) for peer, share in shares.items()}
                assert revealed.setdefault(name, kinds) == kinds  # the same again, or nothing
                agreeing = [other for other in honest if signed.get(other, ((), b""))[0] == signed[name][0]]
                assert len(agreeing) + 1 >= STRICT.threshold  # with the colluder
        except Refused:
            continue
    for victim in honest:
        for kind in (SeedShare, KeyShare):
            told = sum(kinds.get(victim) is kind for kinds in revealed.values())
            opposite = sum(kinds.get(victim) not in (None, kind) for kinds in revealed.values())
            assert min(told + 1, opposite + 1) < STRICT.threshold  # the colluder gives both
    lists = {signed[name][0] for name in revealed}
    assert len(lists) <= 1  # whoever reveals, reveals for one and the same sum

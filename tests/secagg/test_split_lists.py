"""The strongest lie within the adversary class, tried in every way: which parties hear that the victim dropped out.

The server has colluders. They sign every list, and give away both shares that they hold. For a semi-malicious server
2t > n + c, so that no split of the honest parties yields t shares of each kind; for a curious one such a split exists,
which is what the class leaves out.
"""

from __future__ import annotations

import itertools

import pytest

from quietsum.errors import PlanRefused
from quietsum.secagg import messages
from quietsum.secagg.messages import SERVER, KeyShare, SeedShare, Step
from quietsum.secagg.outcomes import Refused
from quietsum.secagg.parameters import Adversary, Parameters
from secagg.sessions import answer, complete, identity_of, names_of, session


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
        return messages.write(
            step, server._session, sender=SERVER, receiver=name, payload=payload, identity=identity_of("the server")
        )

    signed: dict[bool, dict[str, bytes]] = {True: {}, False: {}}
    honest = [name for name in names if name not in colluders]
    for name in honest:
        said = played.parties[name].agree(
            question(name, Step.SURVIVORS, messages.bitmap(lists[name in alive_for], names))
        )
        signed[name in alive_for][name] = messages.read(said, largest=1 << 20).signature
    for name, kind in itertools.product(colluders, (True, False)):
        said_by = messages.statement(Step.AGREE, server._session, name, SERVER, messages.bitmap(lists[kind], names))
        signed[kind][name] = identity_of(name).sign(said_by)
    for name in honest:
        shown = messages.write_agreed(signed[name in alive_for], names)
        try:
            told = played.parties[name].unmask(question(name, Step.AGREED, shown))
        except Refused:
            continue
        share = messages.read_unmask(messages.read(told, largest=1 << 20).payload, names)[victim]
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

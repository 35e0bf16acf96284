"""A party's half of a secure round: its data is looked at once, for the right question, and for no other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from quietsum.party import model_hash
from quietsum.party.secure import AttemptKey, SecureSite
from quietsum.secagg import Identity, Reason, Refused, Server, SessionTerms, Step
from quietsum.secagg.parameters import Adversary, Parameters

NAMES = ("a", "b", "c", "d")
MODEL = np.arange(3.0)


class Scene:
    """Four parties up to the question for masked inputs."""

    def __init__(self) -> None:
        self.looked: list[str] = []
        parameters = Parameters(
            parties=4, neighbours=3, threshold=3, adversary=Adversary.CURIOUS, corrupt=1, may_drop=1
        )
        self.terms = SessionTerms(
            run="r", round=1, attempt=1, model=model_hash(MODEL), plan="b2" * 32, dimension=3, parameters=parameters,
            floor=3,
        )  # fmt: skip
        self.sites = {name: SecureSite(name, identity=Identity.fresh(), contribute=self.made(name)) for name in NAMES}
        peers = {name: site.public for name, site in self.sites.items()}
        identity = Identity.fresh()
        self.server = Server(terms=self.terms, identity=identity, identities=peers)
        for name, letter in self.server.open().items():
            answer = self.sites[name].open(self.terms, letter, server=identity.public, peers=peers)
            assert self.server.take(name, answer) is None
        for name, letter in self.server.advance().items():
            assert self.server.take(name, self.sites[name].answer(self.key, Step.ROSTER, letter)) is None
        self.letters = self.server.advance()

    @property
    def key(self) -> AttemptKey:
        return self.terms.run, self.terms.round, self.terms.attempt

    def made(self, name: str) -> Callable[[AttemptKey, NDArray[np.float64]], NDArray[np.uint32]]:
        def contribute(key: AttemptKey, params: NDArray[np.float64]) -> NDArray[np.uint32]:
            self.looked.append(name)
            return np.ones(3, dtype=np.uint32)

        return contribute

    def asked(self, name: str, letter: bytes, params: NDArray[np.float64] | None = MODEL) -> bytes:
        return self.sites[name].answer(self.key, Step.SHARES, letter, params)


def test_no_data_is_looked_at_for_a_question_that_is_refused() -> None:
    scene = Scene()
    letter = scene.letters["a"]
    for spoiled in (letter[:-1], bytes([letter[0] ^ 1]) + letter[1:], scene.letters["b"], b""):
        with pytest.raises(Refused):
            scene.asked("a", spoiled)
    assert scene.looked == [] and scene.sites["a"].touches(scene.key, Step.SHARES)
    scene.asked("a", letter)
    assert scene.looked == ["a"] and not scene.sites["a"].touches(scene.key, Step.SHARES)


@pytest.mark.parametrize("params", [None, MODEL + 1])
def test_another_model_or_none_brings_no_vector_and_ends_the_session(params: NDArray[np.float64] | None) -> None:
    scene = Scene()
    with pytest.raises(Refused) as refused:
        scene.asked("b", scene.letters["b"], params)
    assert refused.value.reason is Reason.OTHER_MODEL and scene.looked == []
    with pytest.raises(Refused):
        scene.asked("b", scene.letters["b"])
    assert scene.looked == []


def test_the_same_question_twice_gets_the_same_bytes_and_one_look() -> None:
    scene = Scene()
    assert scene.asked("c", scene.letters["c"]) == scene.asked("c", scene.letters["c"])
    assert scene.looked == ["c"]


def test_work_that_broke_off_is_not_done_again() -> None:
    scene = Scene()
    looked: list[int] = []

    def broken(key: AttemptKey, params: NDArray[np.float64]) -> NDArray[np.uint32]:
        looked.append(1)
        raise MemoryError

    scene.sites["d"]._contribute = broken
    with pytest.raises(MemoryError):
        scene.asked("d", scene.letters["d"])
    with pytest.raises(Refused) as refused:
        scene.asked("d", scene.letters["d"])
    assert refused.value.reason is Reason.ALREADY_ANSWERED and len(looked) == 1

"""What every federation that carries secure rounds promises, as tests that anyone's can run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietsum.federation import QUESTIONS, Federation, Lost, PartyRefusal, StepAnswer, StepQuestion, TrainRequest
from quietsum.party import contribution_of, terms_of
from quietsum.plan import PartyFacts, Plan, ResolvedPlan, resolve
from quietsum.secagg import Identity, Server, SessionOutcome, Step
from quietsum.tasks import Metrics

__all__ = ["FAILS", "NAMES", "SLEEPS", "ExchangesContract", "KnownUpdates"]

Floats = NDArray[np.float64]
NAMES = ("ada", "ben", "cleo", "dan", "eve")
_DIMENSION = 9
FAILS, SLEEPS = 13.0, 17.0
"""As the first parameter of a model: cleo's work on it raises, or takes two seconds."""


class KnownUpdates:
    """A task on public data whose updates are known beforehand.

    A runtime whose processes make the task by its name needs a subclass of it in a module of its own.
    """

    name, title, dimension = "known", "known updates", _DIMENSION

    def parties(self) -> tuple[PartyFacts, ...]:
        """Five of one size."""
        return tuple(PartyFacts(name=name, dataset=f"known-{name}", size=10, public="made up") for name in NAMES)

    def initial(self) -> Floats:
        """Zeros."""
        return np.zeros(_DIMENSION)

    def evaluate(self, params: Floats) -> Metrics:
        """Nothing worth knowing."""
        return Metrics(values={"first": float(params[0])}, on="nothing")

    def train(self, party: str, params: Floats, orders: Any, rng: Any) -> Floats:
        """The party's own update, the same for every model but two; see :data:`FAILS`."""
        if party == "cleo" and params[0] == FAILS:
            raise RuntimeError("this model makes cleo fail")
        if party == "cleo" and params[0] == SLEEPS:
            time.sleep(2.0)
        return self.update(party)

    @staticmethod
    def update(party: str) -> Floats:
        """What ``party`` adds to the sum."""
        return np.asarray(np.cos(np.arange(_DIMENSION) + 10.0 * NAMES.index(party)))


class ExchangesContract:
    """The suite. A subclass says how a federation of :class:`KnownUpdates` is made for a resolved plan.

    ``task`` names the task as plans do, "my_tests:Updates" for instance.
    """

    task = "known"

    def make(self, resolved: ResolvedPlan, task: KnownUpdates) -> Federation:
        """A federation of the plan's parties."""
        raise NotImplementedError("say in a subclass how your federation is made")

    # ------------------------------------------------------------------------------- words for the tests

    def _resolve(self) -> ResolvedPlan:
        plan = Plan.from_dict(
            {
                "task": {"name": self.task},
                "federation": {"rounds": 5},
                "training": {"sample_rate": 1.0, "local_steps": 1},
                "privacy": {"style": "none"},
                "aggregation": {"weights": "equal", "secure": True, "drop_outs": 0.4},
            }
        )
        return resolve(plan, KnownUpdates().parties(), _DIMENSION)

    def _round(
        self, federation: Federation, resolved: ResolvedPlan, *, number: int = 1, lost: Mapping[str, Step] | None = None
    ) -> tuple[Server, dict[Step, list[StepAnswer | PartyRefusal | Lost]]]:
        """One session; those in ``lost`` are asked nothing from their step on. What each step brought, as it came."""
        request = TrainRequest(run="run", round=number, attempt=1, params=np.full(_DIMENSION, 0.5))
        driver, identities = Identity.fresh(), federation.identities(NAMES)
        terms = terms_of(resolved, request.key[:3], request.key[3])
        server = Server(terms=terms, identity=driver, identities=identities)
        letters, heard = server.open(), {}
        for step in QUESTIONS:
            asked = {name: letter for name, letter in letters.items() if (lost or {}).get(name, step + 1) > step}
            question = StepQuestion(
                request=request, step=step, letters=asked, server=driver.public, identities=identities, seconds=300.0
            )
            heard[step] = list(federation.exchange(question))
            for word in heard[step]:
                if isinstance(word, StepAnswer):
                    assert server.take(word.party, word.content) is None
            letters = server.advance()
        return server, heard

    def _sum(self, resolved: ResolvedPlan, server: Server) -> Floats:
        return contribution_of(resolved, 1).step(server.total(), server.survivors)

    def _make(self) -> Iterator[tuple[Federation, ResolvedPlan]]:
        resolved = self._resolve()
        federation = self.make(resolved, KnownUpdates())
        try:
            yield federation, resolved
        finally:
            federation.close()

    # --------------------------------------------------------------------------------------------- the suite

    def test_it_carries_exchanges_and_every_party_has_a_key_of_its_own(self) -> None:
        """32 bytes each, all different, and the same when asked twice."""
        for federation, _ in self._make():
            assert federation.carries_secure
            found = federation.identities(NAMES)
            assert set(found) == set(NAMES) and {len(key) for key in found.values()} == {32}
            assert len(set(found.values())) == len(NAMES) and dict(federation.identities(NAMES)) == dict(found)

    def test_every_party_has_one_word_at_every_step_and_the_sum_is_opened(self) -> None:
        """Two rounds: each opens the mean of its own known updates, with nothing of the one before."""
        for federation, resolved in self._make():
            for number in (1, 2):
                server, heard = self._round(federation, resolved, number=number)
                assert server.outcome is SessionOutcome.DONE and set(server.survivors) == set(NAMES)
                for step in QUESTIONS:
                    assert sorted(word.party for word in heard[step]) == sorted(NAMES)
                self._check_mean(resolved, server, NAMES)

    def test_who_is_asked_nothing_says_nothing_and_the_others_go_on(self) -> None:
        """One is lost at each step that a party can be lost at."""
        for federation, resolved in self._make():
            for number, step in enumerate(QUESTIONS, start=1):
                server, heard = self._round(federation, resolved, number=number, lost={"cleo": step})
                assert all("cleo" not in {word.party for word in heard[at]} for at in QUESTIONS if at >= step)
                there = [name for name in NAMES if name != "cleo" or step > Step.SHARES]
                assert set(server.survivors) == set(there)
                self._check_mean(resolved, server, there)

    def test_an_attempt_is_opened_once(self) -> None:
        """A second session of the same attempt, under another server's key, brings no answer."""
        for federation, resolved in self._make():
            self._round(federation, resolved)
            request = TrainRequest(run="run", round=1, attempt=1, params=np.full(_DIMENSION, 0.5))
            driver, identities = Identity.fresh(), federation.identities(NAMES)
            terms = terms_of(resolved, request.key[:3], request.key[3])
            letters = Server(terms=terms, identity=driver, identities=identities).open()
            question = StepQuestion(
                request=request, step=Step.OPEN, letters=letters, server=driver.public, identities=identities
            )
            assert not [word for word in federation.exchange(question) if isinstance(word, StepAnswer)]

    def test_another_model_than_that_of_the_session_brings_no_vector(self) -> None:
        """The hash of the model stands in the terms, and every party compares it with what came."""
        for federation, resolved in self._make():
            request = TrainRequest(run="run", round=1, attempt=1, params=np.full(_DIMENSION, 0.5))
            driver, identities = Identity.fresh(), federation.identities(NAMES)
            terms = terms_of(resolved, request.key[:3], request.key[3])
            server = Server(terms=terms, identity=driver, identities=identities)
            letters = server.open()
            for step in (Step.OPEN, Step.ROSTER, Step.SHARES):
                question = StepQuestion(
                    request=request, step=step, letters=letters, server=driver.public, identities=identities
                )
                if step is Step.SHARES:
                    other = dataclasses.replace(request, params=request.params + 1.0)
                    words = list(federation.exchange(dataclasses.replace(question, request=other)))
                    assert not [word for word in words if isinstance(word, StepAnswer)]
                    continue
                for word in federation.exchange(question):
                    assert isinstance(word, StepAnswer) and server.take(word.party, word.content) is None
                letters = server.advance()

    def _check_mean(self, resolved: ResolvedPlan, server: Server, names: Sequence[str]) -> None:
        wanted = np.mean([KnownUpdates.update(name) for name in names], axis=0)
        np.testing.assert_allclose(self._sum(resolved, server), wanted, atol=1e-5)

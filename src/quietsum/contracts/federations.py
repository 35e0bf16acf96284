"""What every federation promises to a run, as tests that anyone's can run.

A round reserves its charge, asks, and commits what was reserved. So a federation may lose any reply, and must not
change one: each party of the cohort has one reply, a refusal only where no data was touched, and no update twice. The
parties are those of :class:`~quietsum.contracts.exchanges.KnownUpdates`, whose updates are known beforehand. Secure
rounds have a suite of their own, :class:`~quietsum.contracts.exchanges.ExchangesContract`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import SkipTest

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation import WeightedMean
from quietsum.contracts.exchanges import FAILS, NAMES, SLEEPS, KnownUpdates
from quietsum.errors import QuietsumError
from quietsum.federation import Federation, Lost, PartyRefusal, Sums, TrainRequest, Update
from quietsum.mechanisms import system_randomness
from quietsum.plan import Plan, ResolvedPlan, resolve

__all__ = ["FederationContract", "WrappedFederationContract"]

Floats = NDArray[np.float64]
Replies = list[Update | Sums | PartyRefusal | Lost]


def _parties_of(replies: Replies) -> list[str]:
    return [name for one in replies for name in (one.parties if isinstance(one, Sums) else (one.party,))]


class FederationContract:
    """The suite. A subclass says how a federation of :class:`KnownUpdates` is made for a resolved plan.

    ``task`` names the task as plans do, "my_tests:Updates" for instance. ``sleeps`` is False for a federation whose
    parties work in the caller's own thread although their deadline counts for all at once: a party that takes its time
    holds up the test there, and its promise of time needs a test with a clock.
    """

    task = "known"
    sleeps = True

    def make(self, resolved: ResolvedPlan, task: KnownUpdates) -> Federation:
        """A federation of the plan's parties, which have joined the run ``"run"`` if they are sites elsewhere."""
        raise NotImplementedError("say in a subclass how your federation is made")

    # ------------------------------------------------------------------------------- words for the tests

    def _resolve(self, **federation: Any) -> ResolvedPlan:
        plan = Plan.from_dict(
            {
                "task": {"name": self.task},
                "federation": {"rounds": 9, **federation},
                "training": {"sample_rate": 1.0, "local_steps": 1},
                "privacy": {"style": "none"},
                "aggregation": {"weights": "equal"},
            }
        )
        task = KnownUpdates()
        return resolve(plan, task.parties(), task.dimension)

    def _open(self, **federation: Any) -> Iterator[Federation]:
        """One federation, closed in the end."""
        made = self.make(self._resolve(**federation), KnownUpdates())
        try:
            yield made
        finally:
            made.close()

    def _request(self, number: int, first: float = 0.5) -> TrainRequest:
        params = np.full(KnownUpdates.dimension, 0.5)
        params[0] = first
        return TrainRequest(run="run", round=number, attempt=1, params=params)

    def _fold(self) -> WeightedMean:
        return WeightedMean(weights=dict.fromkeys(NAMES, 1.0), dimension=KnownUpdates.dimension)

    def _ask(self, federation: Federation, request: TrainRequest, cohort: Sequence[str]) -> Replies:
        return list(federation.ask(request, cohort, self._fold()))

    def _check_updates(self, replies: Replies, names: Sequence[str]) -> None:
        """Exactly the updates of ``names`` are in the replies; a sum is compared as a whole."""
        fold = self._fold()
        state = fold.start()
        for reply in replies:
            if isinstance(reply, Update):
                wanted = KnownUpdates.update(reply.party)
                np.testing.assert_allclose(reply.delta, wanted, atol=1e-9, err_msg=f"the update of {reply.party}")
                state = fold.add(state, reply.party, np.array(reply.delta))
            elif isinstance(reply, Sums):
                assert sorted(reply.folded.kept) == sorted(reply.parties), "a sum names exactly those who are in it"
                state = fold.merge(state, reply.folded)
        assert sorted(state.kept) == sorted(names)
        wanted = np.mean([KnownUpdates.update(name) for name in names], axis=0)
        np.testing.assert_allclose(fold.finish(state, system_randomness()).step, wanted, atol=1e-9)

    # --------------------------------------------------------------------------------------------- the suite

    def test_all_parties_are_registered_in_a_fixed_order(self) -> None:
        """The order of the plan, the same before and after a round."""
        for federation in self._open():
            assert tuple(federation.registered()) == NAMES
            self._ask(federation, self._request(1), NAMES[1:3])
            assert tuple(federation.registered()) == NAMES

    def test_every_party_of_a_cohort_has_one_reply_and_no_other_party_has_any(self) -> None:
        """Of everybody, of two, of one, in an order of the caller's."""
        for federation in self._open():
            for number, cohort in enumerate((NAMES, ("dan", "ben"), ("eve",)), start=1):
                replies = self._ask(federation, self._request(number), cohort)
                assert sorted(_parties_of(replies)) == sorted(cohort)

    def test_updates_arrive_as_the_parties_made_them(self) -> None:
        """Each under its own name, whole, and in a sum once."""
        for federation in self._open():
            for number, cohort in enumerate((NAMES, ("ada", "cleo", "eve")), start=1):
                self._check_updates(self._ask(federation, self._request(number), cohort), cohort)

    def test_an_empty_cohort_is_asked_nothing(self) -> None:
        """A draw of no party is a round like any other; the next one goes on."""
        for federation in self._open():
            assert self._ask(federation, self._request(1), ()) == []
            self._check_updates(self._ask(federation, self._request(2), NAMES), NAMES)

    def test_a_request_that_comes_twice_releases_nothing_new(self) -> None:
        """The second time the same bytes, or a loss with its reason; no refund, as the data was touched."""
        for federation in self._open():
            first = self._ask(federation, self._request(1), NAMES)
            again = self._ask(federation, self._request(1), NAMES)
            assert sorted(_parties_of(again)) == sorted(NAMES)
            before = {one.party: one.delta.tobytes() for one in first if isinstance(one, Update)}
            for reply in again:
                assert isinstance(reply, Update | Lost), "what was answered is neither refused nor summed again"
                assert isinstance(reply, Lost) or before.get(reply.party) == reply.delta.tobytes()
                assert isinstance(reply, Update) or reply.reason.strip()

    def test_a_party_that_fails_is_lost_with_a_reason_and_takes_no_other_with_it(self) -> None:
        """It had its data in hand, so nothing is refunded."""
        for federation in self._open():
            replies = self._ask(federation, self._request(1, FAILS), NAMES)
            assert sorted(_parties_of(replies)) == sorted(NAMES)
            missing = [one for one in replies if isinstance(one, Lost | PartyRefusal)]
            assert [one.party for one in missing] == ["cleo"], "the others are not lost with it"
            assert isinstance(missing[0], Lost), "a failed party is lost, and not refunded"
            assert missing[0].reason.strip(), "the reason is words"
            self._check_updates(replies, [name for name in NAMES if name != "cleo"])
            self._check_updates(self._ask(federation, self._request(2), NAMES), NAMES)

    def test_an_unknown_party_has_no_update(self) -> None:
        """It is lost, or the whole request is an error of the caller's; a later round is as before."""
        for federation in self._open():
            try:
                replies = self._ask(federation, self._request(1), ("ada", "a stranger"))
            except (QuietsumError, LookupError):
                replies = []
            unknown = [one for one in replies if "a stranger" in _parties_of([one])]
            assert all(isinstance(one, Lost) and one.reason.strip() for one in unknown)
            assert not replies or len(unknown) == 1
            self._check_updates(self._ask(federation, self._request(2), NAMES), NAMES)

    def test_a_round_that_is_broken_off_leaves_the_next_one_whole(self) -> None:
        """A round ends at its deadline, with replies still to come."""
        for federation in self._open():
            replies = iter(federation.ask(self._request(1), NAMES, self._fold()))
            next(replies)
            del replies
            self._check_updates(self._ask(federation, self._request(2), NAMES), NAMES)

    def test_the_request_is_left_as_it_was(self) -> None:
        """The model that parties trained on is the caller's own array."""
        for federation in self._open():
            request = self._request(1)
            before, key = request.params.copy(), request.key
            self._ask(federation, request, NAMES)
            assert np.array_equal(request.params, before) and request.key == key

    def test_a_deadline_is_kept_for_the_slow_party_alone_where_the_federation_counts_it(self) -> None:
        """The slow one is lost, and the others are in the round."""
        if not self.sleeps:
            raise SkipTest("parties work in the caller's thread here")
        for federation in self._open(deadline=0.5):
            if not federation.counts_deadline:
                raise SkipTest("the round counts the deadline for this federation")
            replies = self._ask(federation, self._request(1, SLEEPS), NAMES)
            assert sorted(_parties_of(replies)) == sorted(NAMES)
            assert [one.party for one in replies if isinstance(one, Lost)] == ["cleo"]
            self._check_updates(replies, [name for name in NAMES if name != "cleo"])

    def test_a_run_begins_goes_on_and_ends(self) -> None:
        """Readiness raises nothing while all are there; heads of ledgers come once; ending twice is ending once."""
        for federation in self._open():
            federation.ready()
            self._ask(federation, self._request(1), NAMES)
            heads = federation.testimonies()
            assert heads is None or set(heads) <= set(NAMES)
            assert not federation.testimonies(), "a head that was handed over is not handed over again"
            federation.leave("finished")
            federation.close()
            federation.close()


class _Recorder(Federation):
    """A federation that notes which of its methods were called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @property
    def counts_deadline(self) -> bool:
        self.calls.append("counts_deadline")
        return True

    def registered(self) -> Sequence[str]:
        self.calls.append("registered")
        return NAMES

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        self.calls.append("ask")
        yield from (Lost(party=name, reason="recorded") for name in cohort)

    def check_plan(self, resolved: ResolvedPlan) -> None:
        self.calls.append("check_plan")

    def join(self, run: str, resolved: ResolvedPlan, ledger: Any) -> None:
        self.calls.append("join")

    def ready(self) -> None:
        self.calls.append("ready")

    def leave(self, outcome: str) -> None:
        self.calls.append("leave")

    def testimonies(self) -> None:
        self.calls.append("testimonies")

    def close(self) -> None:
        self.calls.append("close")


class WrappedFederationContract:
    """The suite for a federation that stands before another. A subclass says how it is put there.

    A method with a default is easily forgotten in a wrapper: what the federation inside would have done is then not
    done, without an error.
    """

    def wrap(self, inside: Federation) -> Federation:
        """The wrapper around ``inside``, whose parties are ada, ben, cleo, dan and eve."""
        raise NotImplementedError("say in a subclass how your wrapper is made")

    def test_every_method_reaches_the_federation_inside(self) -> None:
        """All public methods but those of secure rounds, which a wrapper may refuse."""
        inside = _Recorder()
        wrapper = self.wrap(inside)
        request = TrainRequest(run="run", round=1, attempt=1, params=np.zeros(KnownUpdates.dimension))
        fold = WeightedMean(weights=dict.fromkeys(NAMES, 1.0), dimension=KnownUpdates.dimension)
        assert tuple(wrapper.registered()) == NAMES and wrapper.counts_deadline
        ledger: Any = None
        resolved: Any = None
        wrapper.check_plan(resolved)
        wrapper.join("run", resolved, ledger)
        wrapper.ready()
        assert sorted(_parties_of(list(wrapper.ask(request, NAMES, fold)))) == sorted(NAMES)
        wrapper.testimonies()
        wrapper.leave("finished")
        wrapper.close()
        found = inspect.getmembers(Federation, lambda one: inspect.isfunction(one) or isinstance(one, property))
        public = {name for name, _ in found if not name.startswith("_")} - {"identities", "exchange"}
        missing = sorted(public - set(inside.calls))
        assert not missing, f"these never reached the federation inside: {', '.join(missing)}"

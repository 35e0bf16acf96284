"""Every federation of ours keeps the contract of federations, and the contract catches those that do not."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.sites_by_letters import make_sites
from quietsum.contracts import FederationContract, WrappedFederationContract
from quietsum.contracts.exchanges import NAMES, KnownUpdates
from quietsum.federation.drills import Drill
from quietsum.federation.local import LocalFederation
from quietsum.federation.messages import Federation, Lost, PartyRefusal, TrainRequest, Update
from quietsum.federation.workers.crew import Crew
from quietsum.ledger import Testimony
from quietsum.plan import Plan, ResolvedPlan, resolve


class TestOneProcess(FederationContract):
    def make(self, resolved: ResolvedPlan, task: KnownUpdates) -> Federation:
        return LocalFederation.of(task, resolved)


@pytest.mark.slow
class TestWorkerProcesses(FederationContract):
    task = "contracts.known:Updates"

    def make(self, resolved: ResolvedPlan, task: KnownUpdates) -> Federation:
        return Crew(resolved, workers=2)


class TestSitesByLetters(FederationContract):
    task = "contracts.known:Updates"
    sleeps = False  # the sites answer in the caller's thread; tests/federation/test_remote.py has a clock

    @pytest.fixture(autouse=True)
    def somewhere(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self, resolved: ResolvedPlan, task: KnownUpdates) -> Federation:
        return make_sites(resolved, self.folder)


def plan_with_attack(attack: Mapping[str, Any]) -> ResolvedPlan:
    plan = Plan.from_dict(
        {
            "task": {"name": "known"},
            "federation": {"rounds": 9},
            "training": {"sample_rate": 1.0, "local_steps": 1},
            "privacy": {"style": "none"},
            "aggregation": {"weights": "equal"},
            "attack": dict(attack),
        }
    )
    return resolve(plan, KnownUpdates().parties(), KnownUpdates.dimension)


class TestADrill(WrappedFederationContract):
    def wrap(self, inside: Federation) -> Federation:
        return Drill(inside, plan_with_attack({"kind": "sign-flip", "parties": ["eve"]}))


# ------------------------------------------------------------------------------------- broken federations


class Plain(Federation):
    """A federation that hands everything on, of which each broken one overrides one method."""

    def __init__(self, inside: Any) -> None:  # LocalFederation here, whose replies are no sums
        self.inside = inside

    @property
    def counts_deadline(self) -> bool:
        return self.inside.counts_deadline

    def registered(self) -> Sequence[str]:
        return self.inside.registered()

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        yield from self.inside.ask(request, cohort, fold)

    def close(self) -> None:
        self.inside.close()


class Forgets(Plain):
    """The last party of a cohort has no reply."""

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        yield from self.inside.ask(request, cohort[:-1], fold)


class HearsTwice(Plain):
    """One party has two replies."""

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        for reply in self.inside.ask(request, cohort, fold):
            yield reply
            if reply.party == "ben":
                yield reply


class AsksEverybody(Plain):
    """All registered parties are asked, drawn or not."""

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        yield from self.inside.ask(request, self.registered(), fold)


class Fills(Plain):
    """An empty cohort is taken for all parties."""

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        yield from self.inside.ask(request, cohort or self.registered(), fold)


class Shuffles(Plain):
    """The order of the parties changes between two calls."""

    turn = 1

    def registered(self) -> Sequence[str]:
        self.turn = -self.turn
        return self.inside.registered()[:: self.turn]


class Swaps(Plain):
    """Updates arrive under the names of others; their mean is right."""

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        replies = [one for one in self.inside.ask(request, cohort, fold) if isinstance(one, Update)]
        for one, other in zip(replies, [*replies[1:], *replies[:1]], strict=True):
            yield Update(party=one.party, delta=other.delta)


class Rounds(Plain):
    """Updates are rounded to half precision on their way."""

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        for reply in self.inside.ask(request, cohort, fold):
            delta = getattr(reply, "delta", None)
            yield (
                reply if delta is None else Update(party=reply.party, delta=delta.astype(np.float16).astype(np.float64))
            )


class Refunds(Plain):
    """A failure counts as a refusal, so that its charge is taken back."""

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        for reply in self.inside.ask(request, cohort, fold):
            yield PartyRefusal(party=reply.party, reason=reply.reason) if isinstance(reply, Lost) else reply


class Mumbles(Plain):
    """A loss has no reason."""

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        for reply in self.inside.ask(request, cohort, fold):
            yield Lost(party=reply.party, reason="") if isinstance(reply, Lost) else reply


class FailsTogether(Plain):
    """Where one party fails, the replies of all are lost."""

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        replies = list(self.inside.ask(request, cohort, fold))
        failed = any(isinstance(one, Lost) for one in replies)
        yield from (Lost(party=one.party, reason="another failed") if failed else one for one in replies)


class AnswersAnew(Plain):
    """The same request is worked on again, with a key of its own."""

    times = 0

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        self.times += 1
        for reply in self.inside.ask(dataclasses.replace(request, attempt=self.times), cohort, fold):
            delta = getattr(reply, "delta", None)
            yield reply if delta is None else Update(party=reply.party, delta=delta + 1e-12 * self.times)


class MakesUp(Plain):
    """A party that is not there has an update of zeros."""

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        for reply in self.inside.ask(request, cohort, fold):
            known = reply.party in self.registered()
            yield reply if known else Update(party=reply.party, delta=np.zeros(KnownUpdates.dimension))


class Clings(Plain):
    """A round that was broken off blocks those after it."""

    under_way = False

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        if self.under_way:
            yield from (Lost(party=name, reason="a round is under way") for name in cohort)
            return
        self.under_way = True
        yield from self.inside.ask(request, cohort, fold)
        self.under_way = False


class Steps(Plain):
    """The caller's model is moved in place."""

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        yield from self.inside.ask(request, cohort, fold)
        model = request.params
        model += 1.0


class Waits(Plain):
    """A deadline is said to be counted, and nothing is late."""

    counts_deadline = True

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        for reply in self.inside.ask(request, cohort, fold):
            late = isinstance(reply, Lost) and "deadline" in reply.reason
            yield Update(party=reply.party, delta=KnownUpdates.update(reply.party)) if late else reply


class LosesAll(Plain):
    """One deadline is counted for all parties of a process, so those behind the slow one are lost."""

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Any) -> Iterator[Any]:
        began = time.monotonic()
        for reply in self.inside.ask(request, cohort, fold):
            late = time.monotonic() - began > 0.5
            yield Lost(party=reply.party, reason="it was late") if late else reply


class ClosesOnce(Plain):
    """A second end is an error."""

    times = 0

    def close(self) -> None:
        self.times += 1
        assert self.times != 2, "it was closed before"
        super().close()


class Repeats(Plain):
    """The same heads of ledgers are handed over again and again."""

    def testimonies(self) -> Mapping[str, Testimony]:
        head: Any = object()
        return {"ada": head}


ONE_REPLY = "test_every_party_of_a_cohort_has_one_reply_and_no_other_party_has_any"
UPDATES = "test_updates_arrive_as_the_parties_made_them"
FAILURE = "test_a_party_that_fails_is_lost_with_a_reason_and_takes_no_other_with_it"
DEADLINE = "test_a_deadline_is_kept_for_the_slow_party_alone_where_the_federation_counts_it"
CONTROLS: list[tuple[type[Plain], str]] = [
    (Forgets, ONE_REPLY),
    (HearsTwice, ONE_REPLY),
    (AsksEverybody, ONE_REPLY),
    (Fills, "test_an_empty_cohort_is_asked_nothing"),
    (Shuffles, "test_all_parties_are_registered_in_a_fixed_order"),
    (Swaps, UPDATES),
    (Rounds, UPDATES),
    (Refunds, FAILURE),
    (Mumbles, FAILURE),
    (FailsTogether, FAILURE),
    (AnswersAnew, "test_a_request_that_comes_twice_releases_nothing_new"),
    (MakesUp, "test_an_unknown_party_has_no_update"),
    (Clings, "test_a_round_that_is_broken_off_leaves_the_next_one_whole"),
    (Steps, "test_the_request_is_left_as_it_was"),
    (Waits, DEADLINE),
    (LosesAll, DEADLINE),
    (ClosesOnce, "test_a_run_begins_goes_on_and_ends"),
    (Repeats, "test_a_run_begins_goes_on_and_ends"),
]


def contract_around(kind: type[Plain]) -> FederationContract:
    class Wrapped(FederationContract):
        def make(self, resolved: ResolvedPlan, task: KnownUpdates) -> Federation:
            return kind(LocalFederation.of(task, resolved))

    return Wrapped()


@pytest.mark.parametrize(("broken", "promise"), CONTROLS, ids=[kind.__name__ for kind, _ in CONTROLS])
def test_a_broken_federation_is_caught_by_the_test_of_its_promise(broken: type[Plain], promise: str) -> None:
    with pytest.raises(AssertionError):
        getattr(contract_around(broken), promise)()


@pytest.mark.parametrize("promise", sorted({promise for _, promise in CONTROLS}))
def test_the_control_a_federation_that_hands_everything_on_passes(promise: str) -> None:
    getattr(contract_around(Plain), promise)()


def test_each_promise_has_a_broken_federation() -> None:
    promises = {name for name in dir(FederationContract) if name.startswith("test_")}
    assert promises == {promise for _, promise in CONTROLS}


def test_a_wrapper_that_forgets_a_method_is_caught() -> None:
    class Forgetful(WrappedFederationContract):
        def wrap(self, inside: Federation) -> Federation:
            return Plain(inside)  # check_plan, join, ready, leave and testimonies keep their defaults

    with pytest.raises(AssertionError, match="ready"):
        Forgetful().test_every_method_reaches_the_federation_inside()


def test_the_parties_of_the_suite_are_those_of_its_task() -> None:
    assert tuple(facts.name for facts in KnownUpdates().parties()) == NAMES

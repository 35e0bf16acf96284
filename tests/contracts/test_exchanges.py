"""Every runtime of ours keeps the contract of secure rounds, and the contract catches one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.sites_by_letters import make_sites
from quietsum.contracts import ExchangesContract
from quietsum.contracts.exchanges import KnownUpdates
from quietsum.federation.local import LocalFederation
from quietsum.federation.messages import Federation, StepAnswer, StepQuestion
from quietsum.federation.workers.keepers import Keepers
from quietsum.plan import ResolvedPlan
from quietsum.secagg import Step


class TestOneProcess(ExchangesContract):
    def make(self, resolved: ResolvedPlan, task: KnownUpdates) -> Any:
        return LocalFederation.of(task, resolved)


@pytest.mark.slow
class TestWorkerProcesses(ExchangesContract):
    task = "contracts.known:Updates"

    def make(self, resolved: ResolvedPlan, task: KnownUpdates) -> Any:
        return Keepers(resolved, workers=2)


class TestSitesByLetters(ExchangesContract):
    task = "contracts.known:Updates"

    @pytest.fixture(autouse=True)
    def somewhere(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self, resolved: ResolvedPlan, task: KnownUpdates) -> Any:
        return make_sites(resolved, self.folder)


class Trusting(Federation):
    """The control: a federation that hands every party the session's own model, whatever the server sent."""

    carries_secure = True

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def registered(self) -> Any:
        return self.inner.registered()

    def ask(self, *args: Any) -> Any:
        return self.inner.ask(*args)

    def identities(self, cohort: Any) -> Any:
        return self.inner.identities(cohort)

    def exchange(self, question: StepQuestion) -> Iterator[Any]:
        import dataclasses

        if question.step is Step.OPEN:
            self.request = question.request
        yield from self.inner.exchange(dataclasses.replace(question, request=self.request))


class Talking(Trusting):
    """The control: one that lets a party speak twice."""

    def exchange(self, question: StepQuestion) -> Iterator[Any]:
        for word in self.inner.exchange(question):
            yield word
            if isinstance(word, StepAnswer) and word.party == "ben":
                yield word


def test_a_runtime_that_breaks_the_contract_is_caught() -> None:
    class Broken(TestOneProcess):
        kind: Any = Trusting

        def make(self, resolved: ResolvedPlan, task: KnownUpdates) -> Any:
            return self.kind(super().make(resolved, task))

    with pytest.raises(AssertionError):
        Broken().test_another_model_than_that_of_the_session_brings_no_vector()
    Broken.kind = Talking
    with pytest.raises(AssertionError):
        Broken().test_every_party_has_one_word_at_every_step_and_the_sum_is_opened()

"""Parties in one process: everybody has one reply, alone or side by side, whatever goes wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from federation.crowd import CrowdTogether, crowd_plan, expected_sum, resolved_crowd
from quietsum.aggregation import WeightedMean
from quietsum.errors import InvalidParameter
from quietsum.federation.local import LocalFederation
from quietsum.federation.messages import Federation, Lost, PartyRefusal, Reply, Sums, TrainRequest, Update
from quietsum.mechanisms.rng import randomness_for_tests

KINDS = ("CrowdTask", "CrowdTogether")
CLIENT = {"noise_multiplier": 1.0, "delta": 1e-4, "max_norm": 1.0}
PARTY_NOISE = {"style": "user", "neighbours": "zero-out", "client": {**CLIENT, "noise_at": "party"}}


def crowd(kind: str = "CrowdTogether", privacy: Mapping[str, object] | None = None, **changes: object) -> Federation:
    task, resolved = resolved_crowd(crowd_plan(kind, privacy, **changes))
    return LocalFederation.of(task, resolved)


def request(number: int = 1, attempt: int = 1) -> TrainRequest:
    return TrainRequest(run="run", round=number, attempt=attempt, params=np.zeros(3))


def plain(names: Sequence[str]) -> WeightedMean:
    return WeightedMean(weights=dict.fromkeys(names, 1.0), dimension=3)


class Heard:
    """Replies, sorted out: the sum of what arrived, and who is not in it and why. Nobody may be heard twice."""

    def __init__(self, federation: Federation, fold: Any = None, number: int = 1, attempt: int = 1) -> None:
        names = federation.registered()
        fold = fold or plain(names)
        self.replies: list[Reply] = list(federation.ask(request(number, attempt), names, fold))
        self.total, self.kept = np.zeros(3), list[str]()
        self.reasons: dict[str, str] = {}
        self.refused: set[str] = set()
        for reply in self.replies:
            match reply:
                case Sums():
                    self.total += reply.folded.total
                    self.kept += reply.parties
                case Update():
                    self.total += reply.delta
                    self.kept.append(reply.party)
                case Lost():
                    self.reasons[reply.party] = reply.reason
                case PartyRefusal():
                    self.reasons[reply.party] = reply.reason
                    self.refused.add(reply.party)
        assert sorted([*self.kept, *self.reasons]) == sorted(names)  # one reply each


@pytest.mark.parametrize("kind", KINDS)
def test_everybody_replies_once_alone_or_side_by_side(kind: str) -> None:
    heard = Heard(crowd(kind))
    np.testing.assert_array_equal(heard.total, expected_sum(heard.kept))
    assert len(heard.kept) == 20
    sums = [reply for reply in heard.replies if isinstance(reply, Sums)]
    assert len(sums) == (3 if kind == "CrowdTogether" else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_client_raises_costs_itself_alone_and_its_words_stay_there(kind: str) -> None:
    heard = Heard(crowd(kind, fault="raise"))
    assert heard.reasons == {"c003": "its work failed (RuntimeError)"}
    np.testing.assert_array_equal(heard.total, expected_sum(heard.kept))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["nan", "short"])
def test_an_update_that_cannot_be_used_is_left_to_the_server_or_left_out(kind: str, fault: str) -> None:
    federation = crowd(kind, fault=fault)
    fold = plain(federation.registered())
    replies = list(federation.ask(request(), federation.registered(), fold))
    found = {reply.party: reply for reply in replies if isinstance(reply, Lost)}
    single = {reply.party: fold.problem_with(reply.delta) for reply in replies if isinstance(reply, Update)}
    told = found["c003"].reason if "c003" in found else single["c003"]
    assert ("not finite" if fault == "nan" else "shape") in told
    assert sum(1 for problem in single.values() if problem) + len(found) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_party_without_data_refuses_and_so_is_not_charged(kind: str) -> None:
    heard = Heard(crowd(kind, fault="missing"))
    assert heard.refused == {"c003"} and "no data" in heard.reasons["c003"]


@pytest.mark.parametrize("together", ["raise", "others", "twice"])
def test_where_training_together_fails_parties_are_trained_alone(together: str) -> None:
    heard = Heard(crowd(together=together))
    assert not heard.reasons
    np.testing.assert_array_equal(heard.total, expected_sum(heard.kept))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_request_is_not_answered_twice(kind: str) -> None:
    federation = crowd(kind)
    assert len(Heard(federation, number=2).kept) == 20
    for number, attempt in ((2, 1), (1, 1)):
        again = Heard(federation, number=number, attempt=attempt)
        assert not again.kept and not again.refused
        assert all("answered before" in reason for reason in again.reasons.values())
    assert len(Heard(federation, number=2, attempt=2).kept) == 20


@pytest.mark.parametrize("kind", KINDS)
def test_refusals_drop_outs_and_stragglers_are_simulated(kind: str) -> None:
    heard = Heard(crowd(kind, federation={"simulate": {"refusing": ["c001", "c002"]}}))
    assert heard.refused == {"c001", "c002"} and len(heard.kept) == 18
    heard = Heard(crowd(kind, federation={"simulate": {"drop_outs": 1.0}}))
    assert set(heard.reasons.values()) == {"the plan simulates that its reply was lost"}
    heard = Heard(crowd(kind, federation={"simulate": {"stragglers": 1.0}}))
    assert set(heard.reasons.values()) == {"the plan simulates that its reply came after the deadline"}


@pytest.mark.parametrize("kind", KINDS)
def test_half_of_the_replies_are_lost_when_the_plan_says_so(kind: str) -> None:
    heard = Heard(crowd(kind, clients=400, federation={"simulate": {"drop_outs": 0.5}}))
    assert 140 < len(heard.kept) < 260  # 200 ± 6 standard deviations
    np.testing.assert_array_equal(heard.total, expected_sum(heard.kept))


class Individuals:
    """A fold that must see single updates."""

    needs_individuals = True

    def add_many(self, *_: object) -> None:
        raise AssertionError("nothing may be folded before it was seen")

    start = add_many


def test_a_fold_that_must_see_single_updates_gets_them() -> None:
    heard = Heard(crowd(), Individuals())
    assert len(heard.replies) == 20 and all(isinstance(reply, Update) for reply in heard.replies)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_at_the_party_is_in_every_update_before_it_leaves(kind: str) -> None:
    heard = Heard(crowd(kind, PARTY_NOISE), Individuals())
    rows = np.stack([reply.delta for reply in heard.replies if isinstance(reply, Update)])
    clean = np.stack([expected_sum([f"c{i:03}"]) for i in range(20)])
    clean /= np.maximum(1.0, np.linalg.norm(clean, axis=1, keepdims=True))
    noise = rows - clean
    assert (np.abs(noise) > 0).all()  # the negative control is the test below
    assert 0.5 < noise.std() < 1.6  # σ·C = 1; 60 normals: beyond 1e-6 either way
    assert len(np.unique(noise)) == noise.size


def test_without_noise_at_the_party_updates_are_as_they_were_made() -> None:
    heard = Heard(crowd(), Individuals())
    rows = {reply.party: reply.delta for reply in heard.replies if isinstance(reply, Update)}
    np.testing.assert_array_equal(rows["c004"], [1.0, 4.0, 16.0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["raise", "nan"])
def test_with_noise_at_the_party_nobody_sees_that_its_work_failed(kind: str, fault: str) -> None:
    heard = Heard(crowd(kind, PARTY_NOISE, fault=fault))
    assert not heard.reasons and np.isfinite(heard.total).all()


def test_records_that_are_clipped_one_by_one_are_never_trained_together(monkeypatch: pytest.MonkeyPatch) -> None:
    privacy = {"style": "sample", "record": {"noise_multiplier": 1.0, "delta": 1e-5, "max_grad_norm": 1.0}}
    monkeypatch.setattr(CrowdTogether, "train_many", lambda *_: pytest.fail("trained without a clip"))
    assert len(Heard(crowd("CrowdTogether", privacy)).kept) == 20


def test_workers_refuse_a_seed_that_they_could_not_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    task, resolved = resolved_crowd(crowd_plan())
    with pytest.raises(InvalidParameter, match="draw their own"):
        LocalFederation.of(task, resolved, workers=2, rng=randomness_for_tests(1))

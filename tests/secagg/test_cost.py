"""The cost model: bytes to the byte, and the very masks, agreements and signatures that a session makes."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest

from quietsum.errors import InvalidParameter
from quietsum.secagg import cost, keys, masks
from quietsum.secagg.messages import Step
from quietsum.secagg.parameters import Adversary, Parameters, choose_parameters
from secagg.sessions import Played, complete, drop, names_of, play, session

FREE = cost.Machine(
    mask=0, number=0, pair=0, agreement=0, seal=0, sign=0, verify=0, share=0, entry=0, noise=0
)  # what counts is turned on one at a time

CASES = [
    (complete(5, threshold=4, adversary=Adversary.SEMI_MALICIOUS), 1),
    (complete(9, threshold=6), 0),
    (complete(9, threshold=6), 3),
    (choose_parameters(60, corrupt=1, drop_outs=0.05, adversary=Adversary.CURIOUS), 3),
]


def played(parameters: Parameters, gone: int) -> Played:
    lost = dict.fromkeys(names_of(parameters.parties)[:gone], Step.MASKED)
    done = play(session(parameters, dimension=11, run="the run"), question=drop(lost))
    assert done.exact()
    return done


@pytest.mark.parametrize(("parameters", "gone"), CASES)
def test_a_party_sends_and_receives_as_many_bytes_as_the_model_says(parameters: Parameters, gone: int) -> None:
    done = played(parameters, gone)
    stayed = names_of(parameters.parties)[-1]
    sent = sum(len(data) for _, sender, _, data in done.messages if sender == stayed)
    received = sum(len(data) for _, _, receiver, data in done.messages if receiver == stayed)
    price = cost.estimate(parameters, dimension=11, drop_outs=gone, machine=FREE, name_bytes=7)
    assert (sent, received) == (price.party.sent, price.party.received)
    assert price.party.messages == sum(stayed in (sender, receiver) for _, sender, receiver, _ in done.messages)


COUNTED = {
    # field of a machine: whose calls it counts, and how many numbers a call handles
    "mask": (masks, "_keystream", 11),
    "agreement": (keys.KeyPair, "exchange", 1),
    "verify": (keys, "is_signed_by", 1),
    "sign": (keys.Identity, "sign", 1),
}


@pytest.mark.parametrize("field", COUNTED)
@pytest.mark.parametrize(("parameters", "gone"), [CASES[0], CASES[1], CASES[2]])
def test_a_session_makes_as_many_masks_agreements_and_signatures_as_the_model_counts(
    parameters: Parameters, gone: int, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, name, numbers = COUNTED[field]
    calls: collections.Counter[str] = collections.Counter()
    real = getattr(place, name)

    def counted(*arguments: Any, **named: Any) -> Any:
        calls[name] += 1
        return real(*arguments, **named)

    monkeypatch.setattr(place, name, counted)
    played(parameters, gone)
    price = cost.estimate(parameters, dimension=11, drop_outs=gone, machine=dataclasses.replace(FREE, **{field: 1.0}))
    here = parameters.parties - gone
    low = (here * price.party.seconds + price.server.seconds) / numbers
    # a drop-out works until it is lost, and a check or two a party are not in the model
    high = (parameters.parties * price.party.seconds + price.server.seconds) / numbers
    slack = 2 * parameters.parties
    assert low - slack <= calls[name] <= high + slack
    if field == "mask":
        assert calls[name] == low


def test_time_grows_as_the_masks_do() -> None:
    """Per number: a party k + 1 masks, the server n − g and one for each drop-out and surviving neighbour."""
    machine = dataclasses.replace(FREE, mask=1.0)
    parameters = choose_parameters(1000, corrupt=100, drop_outs=0.1, adversary=Adversary.SEMI_MALICIOUS)
    none, some = (cost.estimate(parameters, dimension=10, machine=machine, drop_outs=gone) for gone in (0, 100))
    assert none.party.seconds == 10 * 97
    assert none.server.seconds == 10 * 1000
    assert some.server.seconds == pytest.approx(10 * (900 + 100 * 96 * 900 / 999))
    twice = cost.estimate(parameters, dimension=20, machine=machine, drop_outs=100)
    assert twice.server.seconds == pytest.approx(2 * some.server.seconds)


def test_noise_costs_the_party_and_not_the_server() -> None:
    parameters = choose_parameters(10)
    plain, noisy = (
        cost.estimate(parameters, dimension=10**6, machine=cost.REFERENCE, noise=each) for each in (False, True)
    )
    assert noisy.party.seconds > plain.party.seconds
    assert noisy.server == plain.server


def test_this_machine_is_measured_and_every_operation_takes_some_time() -> None:
    machine = cost.measure(size=1 << 12)
    assert all(value > 0 for value in dataclasses.astuple(machine))
    assert machine.mask < machine.agreement < 1


@pytest.mark.parametrize(("dimension", "drop_outs"), [(0, 0), (10, 4), (10, -1), (2.5, 0)])
def test_what_cannot_be_run_has_no_price(dimension: Any, drop_outs: int) -> None:
    with pytest.raises(InvalidParameter):
        cost.estimate(complete(9, threshold=6), dimension=dimension, drop_outs=drop_outs, machine=FREE)


def test_the_summary_says_bytes_and_seconds_in_words() -> None:
    price = cost.SideCost(messages=10, sent=4_023_000, received=28_700, seconds=0.0734)
    assert price.summary == "10 messages, 4.0 MB sent, 28.7 kB received, 73 ms of one core"
    assert cost.SideCost(messages=10, sent=12, received=120_000, seconds=1.26).summary.endswith(
        "12 bytes sent, 120 kB received, 1.3 s of one core"
    )

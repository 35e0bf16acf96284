"""Sums are exact to the bit whatever drops out, or there is no sum at all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from quietsum.errors import QuietsumError
from quietsum.secagg.messages import Step
from quietsum.secagg.outcomes import SessionOutcome
from quietsum.secagg.parameters import Adversary, Parameters
from quietsum.secagg.party import find_reachable
from secagg.sessions import ANSWERS, complete, drop, names_of, play, session, sparse


@st.composite
def graphs(draw: st.DrawFn) -> Parameters:
    if draw(st.booleans()):
        count = draw(st.integers(3, 9))
        kind = draw(st.sampled_from(Adversary))
        least = 3 if kind is Adversary.CURIOUS else max(3, (count + 1) // 2 + 1)
        return complete(count, threshold=draw(st.integers(least, count)), adversary=kind)
    count = draw(st.integers(8, 14))
    neighbours = draw(st.sampled_from([number for number in (4, 6, 8) if number < count - 1]))
    return sparse(count, neighbours=neighbours, threshold=draw(st.integers(2, neighbours - 1)))


@st.composite
def trials(draw: st.DrawFn) -> tuple[Parameters, int, dict[str, Step], dict[str, list[int]]]:
    parameters = draw(graphs())
    names = names_of(parameters.parties)
    missing = draw(st.dictionaries(st.sampled_from(names), st.sampled_from(ANSWERS), max_size=parameters.parties))
    size = draw(st.integers(1, 9))
    words = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 2**31, 2**32 - 1]))
    inputs = {name: draw(st.lists(words, min_size=size, max_size=size)) for name in names}
    return parameters, size, missing, inputs


def ends_well(parameters: Parameters, near: Mapping[str, tuple[str, ...]], missing: dict[str, Step], need: int) -> bool:
    """Whether a sum is due, worked out from who is missing where and from the graph alone."""
    threshold, names = parameters.threshold, names_of(parameters.parties)
    if not near:  # too few keys: the graph was not even drawn
        return False
    holders = {name: {*near[name], *([name] if parameters.complete else [])} for name in names}

    def kept(some: set[str], step: Step) -> set[str]:
        return {name for name in some if missing.get(name) is not step}

    def enough(party: str, some: set[str]) -> bool:
        return len(holders[party] & some) >= threshold

    keyed = kept(set(names), Step.ADVERTISE)
    shared = {name for name in kept(keyed, Step.SHARE) if enough(name, keyed)}
    while short := {name for name in shared if not enough(name, shared)}:
        shared -= short
    summed = kept(shared, Step.MASKED)
    wanted = {name for name in shared if name in summed or summed & set(near[name])}
    signed = {name for name in kept(summed, Step.AGREE) if len(find_reachable(name, summed, near)) >= need}
    helped = kept(signed, Step.UNMASK)
    return (
        min(len(keyed), len(shared), len(summed)) >= need
        and all(enough(name, some) for name in wanted for some in (summed, signed, helped))
        and len(helped) >= threshold
    )


@settings(max_examples=150)
@given(trials(), st.data())
def test_any_inputs_any_graph_any_drop_outs_end_in_the_exact_sum_or_in_none(
    trial: tuple[Parameters, int, dict[str, Step], dict[str, list[int]]], data: st.DataObject
) -> None:
    parameters, size, missing, inputs = trial
    floor = data.draw(st.integers(2, parameters.parties))
    vectors = {name: np.array(values, dtype=np.uint32) for name, values in inputs.items()}
    bits = data.draw(st.sampled_from([32, 32, 24, 20, 16]))
    played = play(session(parameters, inputs=vectors, dimension=size, floor=floor, bits=bits), reply=drop(missing))
    need = max(parameters.threshold, floor)
    assert (played.outcome is SessionOutcome.DONE) == ends_well(parameters, played.server._graph, missing, need)
    if played.outcome is SessionOutcome.DONE:
        assert played.exact()
        assert len(played.server.survivors) >= need
        assert not set(played.server.survivors) & {name for name, step in missing.items() if step <= Step.MASKED}
    else:
        with pytest.raises(QuietsumError, match="no sum"):
            played.server.total()


@pytest.mark.parametrize("step", ANSWERS)
@pytest.mark.parametrize("after_send", [False, True])
@pytest.mark.some(3)
def test_a_party_lost_at_any_step_never_ends_a_session_that_has_enough_others(step: Step, after_send: bool) -> None:
    for parameters in (complete(5, threshold=4), sparse(12, neighbours=6, threshold=4)):
        for name in names_of(parameters.parties):
            line = drop({name: step}, after_send=after_send)
            played = play(session(parameters), reply=line)
            assert played.exact(), (parameters, name)
            assert (name in played.server.survivors) == (step > Step.MASKED or (step is Step.MASKED and after_send))


@pytest.mark.parametrize(
    ("step", "outcome"),
    [
        (Step.ADVERTISE, SessionOutcome.TOO_FEW_KEYS),
        (Step.SHARE, SessionOutcome.TOO_FEW_SHARES),
        (Step.MASKED, SessionOutcome.TOO_FEW_INPUTS),
        (Step.AGREE, SessionOutcome.TOO_FEW_SIGNATURES),
        (Step.UNMASK, SessionOutcome.TOO_FEW_UNMASKED),
    ],
)
def test_one_survivor_fewer_than_the_threshold_ends_the_session_without_a_sum(
    step: Step, outcome: SessionOutcome
) -> None:
    names = names_of(6)
    played = play(session(complete(6, threshold=4)), reply=drop({name: step for name in names[:3]}))
    assert played.outcome is outcome
    with pytest.raises(QuietsumError, match="no sum"):
        played.server.total()
    assert play(session(complete(6, threshold=4)), reply=drop({name: step for name in names[:2]})).exact()


@pytest.mark.parametrize(
    ("step", "outcome"),
    [
        (Step.ADVERTISE, SessionOutcome.TOO_FEW_SHARES),
        (Step.SHARE, SessionOutcome.TOO_FEW_SHARES),
        (Step.MASKED, SessionOutcome.TOO_FEW_INPUTS),
        (Step.AGREE, SessionOutcome.TOO_FEW_SIGNATURES),
        (Step.UNMASK, SessionOutcome.TOO_FEW_UNMASKED),
    ],
)
def test_on_the_sparse_graph_a_neighbourhood_below_the_threshold_ends_the_session_at_that_step(
    step: Step, outcome: SessionOutcome
) -> None:
    """All four neighbours are needed, so that one is too many to lose; no party is asked for more after that."""
    parameters = sparse(8, neighbours=4, threshold=4)
    played = play(session(parameters), reply=drop({"site-03": step}))
    assert played.outcome is outcome
    asked = {at for at, sender, _, _ in played.messages if sender == ""}
    last = Step.ROSTER if step is Step.ADVERTISE else Step(step - 1)
    assert max(asked) is last

"""Sums are exact to the bit whatever drops out, or there is no sum at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quietsum.errors import QuietsumError
from quietsum.secagg.messages import Step
from quietsum.secagg.outcomes import Outcome
from quietsum.secagg.parameters import Adversary, Parameters
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


@settings(max_examples=150)
@given(trials(), st.data())
def test_any_inputs_any_graph_any_drop_outs_end_in_the_exact_sum_or_in_none(
    trial: tuple[Parameters, int, dict[str, Step], dict[str, list[int]]], data: st.DataObject
) -> None:
    parameters, size, missing, inputs = trial
    floor = data.draw(st.integers(2, parameters.parties))
    vectors = {name: np.array(values, dtype=np.uint32) for name, values in inputs.items()}
    played = play(session(parameters, inputs=vectors, dimension=size, floor=floor), reply=drop(missing))
    left = {step: parameters.parties - sum(gone <= step for gone in missing.values()) for step in ANSWERS}
    need = max(parameters.threshold, floor)
    if parameters.complete:
        enough = left[Step.MASKED] >= need and left[Step.UNMASK] >= parameters.threshold
        assert (played.outcome is Outcome.DONE) == enough
    if played.outcome is Outcome.DONE:
        assert played.exact()
        assert len(played.server.survivors) >= need
        assert not set(played.server.survivors) & {name for name, step in missing.items() if step <= Step.MASKED}
    else:
        with pytest.raises(QuietsumError, match="no sum"):
            played.server.total()


@pytest.mark.parametrize("step", ANSWERS)
@pytest.mark.parametrize("after_send", [False, True])
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
        (Step.ADVERTISE, Outcome.TOO_FEW_KEYS),
        (Step.SHARE, Outcome.TOO_FEW_SHARES),
        (Step.MASKED, Outcome.TOO_FEW_INPUTS),
        (Step.AGREE, Outcome.TOO_FEW_SIGNATURES),
        (Step.UNMASK, Outcome.TOO_FEW_UNMASKED),
    ],
)
def test_one_survivor_fewer_than_the_threshold_ends_the_session_without_a_sum(step: Step, outcome: Outcome) -> None:
    names = names_of(6)
    played = play(session(complete(6, threshold=4)), reply=drop({name: step for name in names[:3]}))
    assert played.outcome is outcome
    with pytest.raises(QuietsumError, match="no sum"):
        played.server.total()
    assert play(session(complete(6, threshold=4)), reply=drop({name: step for name in names[:2]})).exact()

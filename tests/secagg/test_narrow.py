"""Sums of 16, 20 and 24 bits: fewer bytes, the exact sum modulo 2 to the bits, and one ring for all."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from quietsum.errors import InvalidParameter
from quietsum.secagg.layout import centre_lift, wire_size
from quietsum.secagg.messages import Step, read_vector
from quietsum.secagg.outcomes import Reason, SessionOutcome
from secagg.sessions import complete, drop, names_of, play, session, terms_of

PARAMETERS = complete(5, threshold=3)


@pytest.mark.parametrize("bits", [16, 20, 24, 32])
@pytest.mark.parametrize("lost", [0, 2])
def test_the_sum_is_exact_modulo_two_to_the_bits_and_only_they_travel(bits: int, lost: int) -> None:
    missing = dict.fromkeys(names_of(5)[:lost], Step.MASKED)
    done = play(session(PARAMETERS, dimension=1001, bits=bits), question=drop(missing))
    assert done.outcome is SessionOutcome.DONE
    assert (done.server.total() == done.expected & np.uint32(2**bits - 1)).all()
    sizes = {len(data) for step, _, _, data in done.messages if step is Step.MASKED}
    wide = play(session(PARAMETERS, dimension=1001))
    full = {len(data) for step, _, _, data in wide.messages if step is Step.MASKED}
    assert full.pop() - sizes.pop() == 4004 - wire_size(1001, bits=bits)


@pytest.mark.parametrize("bits", [16, 20, 24])
def test_signed_sums_come_back_by_the_centre_lift(bits: int) -> None:
    largest = (2 ** (bits - 1) - 1) // 5
    values = np.array([largest, -largest, 0, 1, -1], dtype=np.int64)
    inputs = dict.fromkeys(names_of(5), values.astype(np.uint32))
    done = play(session(PARAMETERS, inputs=inputs, bits=bits))
    assert (centre_lift(done.server.total(), bits=bits) == 5 * values).all()


def test_what_travels_of_a_masked_zero_is_uniform_in_sixteen_bits() -> None:
    zeros = dict.fromkeys(names_of(5), np.zeros(20_000, dtype=np.uint32))
    done = play(session(PARAMETERS, inputs=zeros, dimension=20_000, bits=16))
    raw = next(data for step, _, _, data in done.messages if step is Step.MASKED)
    words = np.frombuffer(raw[-64 - 40_000 : -64], dtype="<u2")
    for shift in (0, 8):
        assert chisquare(np.bincount((words >> shift) & 255, minlength=256)).pvalue > 1e-7


def test_a_server_with_another_ring_is_refused_by_every_party() -> None:
    done = play(session(PARAMETERS, bits=16, server_terms=terms_of(PARAMETERS, bits=24)))
    assert done.outcome is SessionOutcome.TOO_FEW_KEYS
    assert set(done.refused.values()) == {Reason.OTHER_DIMENSION}


def test_a_vector_of_another_length_is_refused_and_other_rings_do_not_exist() -> None:
    from quietsum.secagg.outcomes import Refused

    terms = terms_of(PARAMETERS, dimension=3, bits=20)
    assert read_vector(bytes(10), terms).tolist() == [0, 0, 0]
    for size, reason in ((9, Reason.TRUNCATED), (11, Reason.OVERSIZE)):
        with pytest.raises(Refused) as refusal:
            read_vector(bytes(size), terms)
        assert refusal.value.reason is reason
    for bits in (8, 31, 33, 0):
        with pytest.raises(InvalidParameter, match="bits"):
            terms_of(PARAMETERS, bits=bits)

"""(k, t): the research note's table, exact tails, refusals with their reasons."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.secagg.parameters import Adversary, Parameters, _tails, choose_parameters, dropping

CURIOUS, SEMI = Adversary.CURIOUS, Adversary.SEMI_MALICIOUS

# n, share that colludes: for 5, 10 and 30 % drop-outs (k, t) against a curious and a semi-malicious server
TABLE = {
    (50, 0.10): (((8, 6), (10, 8)), ((12, 6), (16, 11)), ((22, 6), (36, 21))),
    (100, 0.10): (((16, 11), (22, 17)), ((22, 11), (32, 22)), ((34, 11), (72, 42))),
    (100, 0.20): (((26, 20), (32, 27)), ((32, 21), (42, 32)), ((48, 21), (82, 52))),
    (1000, 0.10): (((38, 24), (66, 49)), ((48, 27), (96, 67)), ((88, 36), (414, 247))),
    (1000, 0.20): (((52, 37), (90, 71)), ((68, 44), (140, 104)), ((140, 67), (642, 409))),
    (1000, 0.33): (((78, 60), (132, 109)), ((102, 72), (218, 171)), ((250, 136), (926, 629))),
}


@pytest.mark.parametrize(("parties", "share"), TABLE)
def test_the_table_of_degrees_and_thresholds_is_reproduced(parties: int, share: float) -> None:
    for drop_outs, cells in zip((0.05, 0.1, 0.3), TABLE[parties, share], strict=True):
        for adversary, cell in zip((CURIOUS, SEMI), cells, strict=True):
            chosen = choose_parameters(
                parties, corrupt=round(parties * share), drop_outs=drop_outs, adversary=adversary
            )
            assert (chosen.neighbours, chosen.threshold) == cell, (parties, share, drop_outs, adversary)
            assert not chosen.complete


def exact_tail(population: int, special: int, drawn: int, least: int) -> Fraction:
    hits = sum(
        math.comb(special, x) * math.comb(population - special, drawn - x)
        for x in range(least, min(special, drawn) + 1)
        if drawn - x <= population - special
    )
    return Fraction(hits, math.comb(population, drawn))


@pytest.mark.parametrize(
    ("population", "special", "drawn"), [(49, 5, 8), (99, 20, 32), (999, 100, 38), (999, 330, 250)]
)
def test_hypergeometric_tails_agree_with_whole_numbers_and_with_scipy(
    population: int, special: int, drawn: int
) -> None:
    from scipy.stats import hypergeom

    tails = _tails(population, special, drawn)
    for least in range(drawn + 2):
        exact = float(exact_tail(population, special, drawn, least))
        assert tails[least] == pytest.approx(exact, rel=1e-9, abs=1e-300)
        if 1e-250 < exact < 0.999:
            assert hypergeom.sf(least - 1, population, special, drawn) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(("parties", "share"), [(100, 0.1), (1000, 0.1)])
def test_the_chosen_sparse_graph_keeps_both_failure_bounds_exactly_and_a_fifth_fewer_neighbours_do_not(
    parties: int, share: float
) -> None:
    """The bounds in fractions, from the definition: the oracle shares no line with the code."""

    def sound(neighbours: int, threshold: int, corrupt: int, gone: int, adversary: Adversary) -> bool:
        least = threshold if adversary is CURIOUS else 2 * threshold - neighbours
        # an honest party: its neighbours are among the others; a party that is gone has one missing neighbour fewer
        both = (parties - corrupt) * exact_tail(parties - 1, corrupt, neighbours, max(least, 0))
        missing = neighbours - threshold + 1
        lost = (parties - gone) * exact_tail(parties - 1, gone, neighbours, missing)
        lost += gone * exact_tail(parties - 1, gone - 1, neighbours, missing)
        removed = corrupt + gone
        kept = math.comb(parties - neighbours, removed - neighbours) if removed >= neighbours else 0
        apart = Fraction(kept, math.comb(parties, removed))
        pairs = parties * (parties - 1) // 2
        return both < Fraction(1, 2**41) and pairs * apart < Fraction(1, 2**41) and lost < Fraction(1, 2**20)

    for adversary in Adversary:
        corrupt = round(parties * share)
        chosen = choose_parameters(parties, corrupt=corrupt, drop_outs=0.1, adversary=adversary)
        gone = parties // 10
        assert sound(chosen.neighbours, chosen.threshold, corrupt, gone, adversary)
        fewer = 2 * int(0.4 * chosen.neighbours)
        assert not any(sound(fewer, threshold, corrupt, gone, adversary) for threshold in range(1, fewer + 1))


@given(
    parties=st.integers(2, 49),
    corrupt=st.integers(1, 10),
    share=st.floats(0, 0.6),
    adversary=st.sampled_from(Adversary),
)
def test_small_cohorts_get_the_complete_graph_with_a_threshold_that_is_safe_and_survives_or_a_refusal(
    parties: int, corrupt: int, share: float, adversary: Adversary
) -> None:
    gone = dropping(parties, share)
    safe = [
        t
        for t in range(1, parties - gone + 1)
        if t > corrupt and t - corrupt >= 2 and (adversary is CURIOUS or 2 * t > parties + corrupt)
    ]
    if not safe:
        with pytest.raises(PlanRefused, match="refused"):
            choose_parameters(parties, corrupt=corrupt, drop_outs=share, adversary=adversary)
        return
    chosen = choose_parameters(parties, corrupt=corrupt, drop_outs=share, adversary=adversary)
    assert chosen.complete and chosen.holders == parties
    assert chosen.threshold in safe
    assert chosen.survivors >= chosen.threshold


@pytest.mark.parametrize(("parties", "threshold"), [(3, 3), (4, 3), (5, 4), (10, 7), (49, 33)])
def test_the_default_threshold_of_a_small_cohort_is_two_thirds_and_one(parties: int, threshold: int) -> None:
    assert choose_parameters(parties, corrupt=1, drop_outs=0.0, adversary=SEMI).threshold == threshold


def test_four_hospitals_survive_one_drop_out_against_a_lying_server() -> None:
    assert choose_parameters(4, corrupt=1, drop_outs=0.25, adversary=SEMI).threshold == 3


def test_two_parties_are_refused_since_each_would_read_the_other() -> None:
    with pytest.raises(PlanRefused, match="enrol more parties"):
        choose_parameters(2, corrupt=1, adversary=CURIOUS)


def test_no_colluder_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidParameter, match="each party receives the model"):
        choose_parameters(10, corrupt=0)


@pytest.mark.parametrize("drop_outs", [-0.1, 1.0, math.nan, math.inf])
def test_a_share_of_drop_outs_outside_zero_to_one_is_refused(drop_outs: float) -> None:
    with pytest.raises(InvalidParameter, match="drop_outs"):
        choose_parameters(10, drop_outs=drop_outs)


def test_a_threshold_of_the_users_is_kept_or_refused_with_the_range() -> None:
    assert choose_parameters(10, corrupt=1, drop_outs=0.2, adversary=SEMI, threshold=8).threshold == 8
    with pytest.raises(PlanRefused, match=r"fewer than 10 parties allow.* choose 6 to 8"):
        choose_parameters(10, corrupt=1, drop_outs=0.2, adversary=SEMI, threshold=5)
    with pytest.raises(PlanRefused, match=r"more than 10 parties allow.* choose 6 to 8"):
        choose_parameters(10, corrupt=1, drop_outs=0.2, adversary=SEMI, threshold=9)
    assert choose_parameters(100, corrupt=10, drop_outs=0.1, adversary=SEMI, threshold=40).threshold == 40


def test_a_large_cohort_without_room_for_a_sparse_graph_gets_the_complete_one_or_a_refusal() -> None:
    assert choose_parameters(60, corrupt=20, drop_outs=0.33, adversary=SEMI).complete
    with pytest.raises(PlanRefused, match="allow for fewer drop-outs, assume fewer colluders or assume a server"):
        choose_parameters(60, corrupt=20, drop_outs=0.4, adversary=SEMI)


@pytest.mark.parametrize("adversary", Adversary)
@pytest.mark.parametrize("parties", [50, 100, 1000])
def test_a_crowd_with_one_stated_colluder_gets_the_graph_for_one_in_twenty(parties: int, adversary: Adversary) -> None:
    """Otherwise two of a thousand parties could rebuild a secret, where 33 of 49 must."""
    stated = choose_parameters(parties, corrupt=1, drop_outs=0.1, adversary=adversary)
    cautious = choose_parameters(parties, corrupt=parties // 20, drop_outs=0.1, adversary=adversary)
    assert (stated.neighbours, stated.threshold) == (cautious.neighbours, cautious.threshold)
    assert stated.corrupt == 1 and stated.threshold > 2


def test_ten_thousand_parties_need_fewer_than_a_hundredth_as_neighbours() -> None:
    assert choose_parameters(10_000, corrupt=500, drop_outs=0.05, adversary=SEMI).neighbours == 62


@pytest.mark.parametrize("parties", [5, 1000])
def test_parameters_with_a_lowered_threshold_cannot_be_made(parties: int) -> None:
    """What a server proposes is put together by each party, and unsound parameters raise there."""
    chosen = choose_parameters(parties, corrupt=max(1, parties // 10), drop_outs=0.1, adversary=SEMI)
    assert Parameters.from_dict(chosen.to_dict()) == chosen
    least = chosen.threshold if parties > 50 else 4
    with pytest.raises(PlanRefused, match="not secure"):
        dataclasses.replace(chosen, threshold=least - 1)
    with pytest.raises(PlanRefused):
        Parameters.from_dict(chosen.to_dict() | {"threshold": 1})
    with pytest.raises(PlanRefused, match="finish"):
        dataclasses.replace(chosen, threshold=chosen.holders, may_drop=max(1, chosen.may_drop))


def test_parameters_with_too_few_neighbours_fall_apart_and_are_refused() -> None:
    chosen = choose_parameters(1000, corrupt=100, drop_outs=0.1, adversary=CURIOUS)
    with pytest.raises(PlanRefused):
        dataclasses.replace(chosen, neighbours=16, threshold=15)
    with pytest.raises(PlanRefused, match="both sides"):
        dataclasses.replace(chosen, neighbours=chosen.neighbours + 1)


def test_the_bound_on_connection_alone_refuses_a_ring_that_may_fall_apart() -> None:
    """With almost no colluders the shares would be safe with few neighbours; the ring would not hold together."""
    from quietsum.secagg.parameters import _is_connected

    assert not _is_connected(1000, 10, corrupt=1, may_drop=300)
    assert _is_connected(1000, 60, corrupt=1, may_drop=300)


@pytest.mark.parametrize("field", ["parties", "neighbours", "threshold", "corrupt", "may_drop"])
@pytest.mark.parametrize("value", [True, 2.5, "3", None, -1])
def test_parameters_of_another_kind_are_refused_by_name(field: str, value: object) -> None:
    chosen = choose_parameters(10)
    with pytest.raises(InvalidParameter, match=field):
        Parameters.from_dict(chosen.to_dict() | {field: value})


def test_unknown_adversaries_and_fields_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="'curious' or 'semi-malicious'"):
        choose_parameters(10, adversary="friendly")
    with pytest.raises(InvalidParameter, match="exactly"):
        Parameters.from_dict({**choose_parameters(10).to_dict(), "floor": 3})


def test_a_tenth_of_five_parties_is_nobody_and_a_tenth_of_ten_is_one() -> None:
    assert (dropping(5, 0.1), dropping(10, 0.1), dropping(50, 0.3), dropping(10, 0.3)) == (0, 1, 15, 3)


def test_the_encoding_tells_any_two_parameters_apart() -> None:
    chosen = choose_parameters(10, corrupt=2)
    others = [
        choose_parameters(10, corrupt=1),
        choose_parameters(11, corrupt=2),
        choose_parameters(10, corrupt=2, threshold=8),
    ]
    assert len({one.to_bytes() for one in (chosen, *others)}) == 4

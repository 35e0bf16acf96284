"""Many parties: what compares all pairs is exact, takes bounded work and memory, and says where it cannot fit."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from aggregation.robust.naive import verdict_of
from quietsum.aggregation.robust import RULES, Rule, find_rule, most_attackers
from quietsum.aggregation.robust.rows import distances
from quietsum.aggregation.robust.rows.blocks import LARGEST, mixture, mixtures
from quietsum.aggregation.robust.rows.distances import TABLES, cosines, gram, pair_bytes, pairwise_distances
from quietsum.aggregation.robust.rules import dnc
from quietsum.aggregation.robust.rules.dnc import outlier_scores
from quietsum.aggregation.robust.rules.flame import densest_majority
from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.mechanisms import RandomSource

N, D = 96, 30
PAIRS = [name for name, rule in RULES.items() if rule.facts.pairs]


def exact(rows: np.ndarray) -> np.ndarray:
    """One pair at a time, in extended precision."""
    wide = rows.astype(np.longdouble)
    apart = np.stack([np.sqrt(((wide - one) ** 2).sum(axis=1)) for one in wide])
    return np.minimum(apart, np.longdouble(LARGEST)).astype(np.float64)


def hostile() -> dict[str, np.ndarray]:
    """Matrices whose distances lose digits, or leave float64, in the plain formula."""
    rng = np.random.default_rng(11)
    base = rng.normal(size=(N, D))
    found = {"plain": base, "copies": np.tile(base[0], (N, 1)), "near": base[0] + 1e-9 * base}
    found["twins"] = np.repeat(base[: N // 2], 2, axis=0) + 1e-9 * base
    found["equal twins"] = np.repeat(base[: N // 2], 2, axis=0)
    found["clusters"] = np.repeat(base[:6], 16, axis=0) + 1e-7 * base
    found["clusters in clusters"] = (
        1e6 * np.repeat(base[:3], 32, axis=0) + np.repeat(base[:6], 16, axis=0) + 1e-6 * base
    )
    for name, rows in (
        ("some at the end of float64", 1.7e308 * np.sign(base[:20])), ("copies at the end", np.full((20, D), 1.7e308)),
        ("long and near", 1e200 * (1 + 1e-9 * base[:20])),
        ("long, and alike but for small numbers", np.eye(1, D) * 1e101 + base[:20]),
        ("short", 1e-200 * base[:20]), ("subnormal", 1e-315 * base[:20]),
    ):  # fmt: skip
        found[name] = np.concatenate([rows, base[20:]])
    found["all long"], found["all short"] = 1e300 * base, 1e-300 * base
    found["five scales"] = np.concatenate([base[:19] * 10.0**power for power in (-200, -100, 0, 100, 200)])
    found["a ladder"] = np.eye(N, D)[np.arange(N) % D] * 10.0 ** -(2.0 * np.arange(N))[:, None]
    return found


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("name", hostile())
def test_distances_are_those_of_pairs_taken_one_by_one(name: str, tiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if tiled:  # as for a thousand rows and more
        monkeypatch.setattr(distances, "_MANY", 1)
        monkeypatch.setattr(distances, "_TILE", 7)
    rows = hostile()[name]
    found = pairwise_distances(rows)
    np.testing.assert_allclose(found, exact(rows), rtol=1e-10, atol=1e-318)
    np.testing.assert_array_equal(found, found.T)


def test_a_row_that_is_not_finite_has_no_distances_and_spoils_no_others() -> None:
    rows = hostile()["plain"].copy()
    rows[3, 2], rows[5, 1] = np.inf, np.nan
    found, rest = pairwise_distances(rows), np.delete(np.arange(N), [3, 5])
    assert np.isnan(found[[3, 5]]).all() and np.isnan(found[:, [3, 5]]).all()
    np.testing.assert_allclose(found[np.ix_(rest, rest)], exact(rows[rest]), rtol=1e-10)


@pytest.mark.parametrize(("name", "most"), [("copies", 1), ("near", 1), ("twins", 1), ("plain", 1), ("clusters", 8)])
def test_products_are_taken_a_few_times_however_many_updates_are_alike(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def counted(updates: np.ndarray, *args: Any, **keys: Any) -> np.ndarray:
        taken.append(len(updates))
        return gram(updates, *args, **keys)

    monkeypatch.setattr(distances, "gram", counted)
    pairwise_distances(hostile()[name])
    assert taken[0] == N and len(taken) <= most and sum(taken) <= 2 * N


def test_cosines_are_the_naive_ones_and_symmetric_also_tile_by_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = hostile()["plain"].copy()
    rows[4] = 0
    sizes = np.linalg.norm(rows, axis=1)
    units = rows / np.where(sizes > 0, sizes, 1)[:, None]
    for scale in (1.0, 1e-180, 1e180):
        found = cosines(scale * rows)
        np.testing.assert_allclose(found, units @ units.T, atol=1e-12)
        np.testing.assert_array_equal(found, found.T)
    monkeypatch.setattr(distances, "_MANY", 1)
    np.testing.assert_allclose(cosines(rows), units @ units.T, atol=1e-12)


@pytest.mark.parametrize(("count", "dimension"), [(60, 25), (25, 60), (40, 40), (50, 1), (2, 9)])
@pytest.mark.parametrize("dense", [0, 1024])
def test_dncs_scores_are_those_of_numpys_singular_vectors(
    count: int, dimension: int, dense: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the side of rows and on that of coordinates, all at once and by Lanczos."""
    if dense == 0 and min(count, dimension) < 3:
        pytest.skip("Lanczos needs three")
    monkeypatch.setattr(dnc, "DENSE", dense)
    rows = np.random.default_rng([count, dimension]).normal(size=(count, dimension))
    centred = rows - rows.mean(axis=0)
    first = np.linalg.svd(centred, full_matrices=False)[2][0]
    np.testing.assert_allclose(outlier_scores(rows), np.abs(centred @ first), rtol=1e-6, atol=1e-8)


def test_dnc_decomposes_no_matrix_larger_than_the_smaller_side(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, ...]] = []
    first = dnc._first

    def watch(products: np.ndarray, rng: RandomSource | None) -> tuple[float, np.ndarray]:
        sizes.append(products.shape)
        return first(products, rng)

    monkeypatch.setattr(dnc, "_first", watch)
    rows = np.random.default_rng(0).normal(size=(300, 8))
    verdict_of(find_rule("dnc"), rows, 60)
    verdict_of(find_rule("dnc"), rows.T, 1)
    assert set(sizes) == {(8, 8)}


def test_lanczos_that_has_nothing_to_find_leaves_it_to_lapack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dnc, "DENSE", 0)
    np.testing.assert_array_equal(outlier_scores(np.ones((12, 9))), np.zeros(12))


@pytest.mark.parametrize("huge", [1.0, 1e308])
def test_mixtures_are_single_ones_side_by_side(huge: float) -> None:
    rng = np.random.default_rng(2)
    rows, weights = huge * rng.uniform(-1.7, 1.7, size=(12, 40)), rng.dirichlet(np.ones(12), size=7)
    rows[:2] = 1.797e308 if huge > 1 else 1.0
    np.testing.assert_allclose(mixtures(rows, weights), np.stack([mixture(rows, one) for one in weights]), rtol=1e-12)


def test_a_chain_of_directions_is_one_cluster() -> None:
    places = np.arange(40.0)
    places[30:] += 100
    kept = densest_majority(np.abs(places[:, None] - places))
    assert kept[:30].all() and not kept[30:].any()


# ----------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("kind", ["", "nnm"])
@pytest.mark.parametrize("name", PAIRS)
def test_rules_that_compare_pairs_hold_no_more_tables_than_is_said(name: str, kind: str) -> None:
    count, rule = 1100, find_rule(name, kind)
    rng = np.random.default_rng(5)
    rows = np.repeat(rng.normal(size=(11, 4)), 100, axis=0) + 1e-7 * rng.normal(size=(count, 4))
    rows[: count // 5] *= 1e250
    tracemalloc.start()
    try:
        verdict_of(rule, rows, min(count // 5, most_attackers(rule, count)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= pair_bytes(count) == 8 * TABLES * count**2


def _on_a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "_ASKED", 1)
    monkeypatch.setattr(distances, "this_memory", lambda: pair_bytes(20))


@pytest.mark.parametrize("rule", [*RULES.values(), find_rule("median", "nnm")], ids=lambda rule: rule.facts.title)
def test_pairs_that_cannot_fit_are_refused_with_what_they_take_and_no_other_rule_is(
    rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rule.facts.needs_trial:
        return
    _on_a_small_machine(monkeypatch)
    rows = np.random.default_rng(1).normal(size=(21, 5))
    verdict_of(rule, rows[:20], 1)
    if rule.facts.pairs:
        with pytest.raises(InvalidParameter, match=r"21 rows' are compared two by two.*draw fewer parties"):
            verdict_of(rule, rows, 1)
    else:
        verdict_of(rule, rows, 1)


def test_a_plan_that_cannot_fit_is_refused_with_one_that_can_and_a_round_of_it_when_its_fold_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That is before anything is charged; a cohort that is drawn counts, not all who are registered."""
    from quietsum.federation.round import first_state, fold_of
    from quietsum.plan import AggregationPlan, FederationPlan, PartyFacts, Plan, PrivacyPlan, RecordPlan, resolve
    from quietsum.plan.values import SamplingPlan

    _on_a_small_machine(monkeypatch)
    parties = tuple(PartyFacts(name=f"site-{at}", dataset=f"rows-{at}", size=400) for at in range(21))

    def made(rule: str, before: str = "", **drawn: Any) -> object:
        plan = Plan(
            privacy=PrivacyPlan(record=RecordPlan(noise_multiplier=1.0, delta=1e-4)),
            federation=FederationPlan(sampling=SamplingPlan(**drawn)),
            aggregation=AggregationPlan(rule=rule, attackers=1, before=before),
        )  # fmt: skip
        resolved = resolve(plan, parties, 6)
        return fold_of(resolved, 1, first_state(resolved, np.zeros(6)), [party.name for party in parties])

    assert made("krum", kind="fixed-size", size=20) and made("median")
    with pytest.raises(
        PlanRefused, match=r"compares 21 updates of a round two by two.*\n.*aggregation.rule = \"median\""
    ) as refused:
        made("krum")
    assert {"aggregation.rule": "median"} in refused.value.nearest
    assert all(not RULES[str(keys["aggregation.rule"])].facts.pairs for keys in refused.value.nearest)
    with pytest.raises(PlanRefused, match="with before = 'nnm' compares 21") as refused:
        made("median", "nnm")
    assert {"aggregation.before": ""} in refused.value.nearest
    # as for a run that goes on elsewhere
    monkeypatch.setattr("quietsum.plan.resolution.resolving.beyond_memory", lambda rows: "")
    with pytest.raises(InvalidParameter, match="two by two"):
        made("krum")


def test_the_memory_of_this_machine_is_known() -> None:
    assert 2**28 < distances.this_memory() < 2**50
    distances.refuse_beyond_memory(100)

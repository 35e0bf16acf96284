"""Membership: scores by their definitions, intervals that cover, and models that leak, or do not, judged as such."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from quietsum.audit import (
    Conclusion,
    MembershipAudit,
    draw_members,
    draw_references,
    judge_membership,
    measure_losses,
    score_by_loss,
    score_by_references,
)
from quietsum.audit.membership.judge import _least_correct, _read_claim
from quietsum.audit.membership.rates import bound_auc, find_auc, find_point
from quietsum.audit.one_run import count_correct
from quietsum.errors import InvalidParameter
from quietsum.mechanisms import ClippedSum
from quietsum.privacy import ExactAccountant, Gaussian, Guarantee, Neighbours, PrivacyUnit, true_positive_rate

DELTA = 1e-5


def claim_of(epsilon: float) -> ExactAccountant:
    """The curve of a Gaussian mechanism with this ε at δ."""
    noise = ClippedSum.calibrated(epsilon=epsilon, delta=DELTA, max_norm=1.0).noise_multiplier
    return ExactAccountant().compose(Gaussian(noise_multiplier=noise))


def judge(scores: NDArray[Any], included: NDArray[np.bool_], epsilon: float, **options: object) -> MembershipAudit:
    values = {"by_coins": True, "claim": claim_of(epsilon), "delta": DELTA, **options}
    return judge_membership({"attack": scores}, included, **values)  # type: ignore[arg-type]


def coins(count: int, seed: int) -> NDArray[np.bool_]:
    return np.random.default_rng(seed).random(count) < 0.5


# ------------------------------------------------------------------------------------------------------- scores


def test_rmia_is_the_share_of_population_records_that_the_paper_counts() -> None:
    random = np.random.default_rng(0)
    own, references = random.exponential(size=6), random.exponential(size=(4, 6))
    inside = draw_references(6, pairs=2)
    others, theirs = random.exponential(size=9), random.exponential(size=(4, 9))
    gamma, offline = 1.5, 0.4
    found = score_by_references(
        own, references, inside=inside, population=(others, theirs), gamma=gamma, offline=offline
    )
    for x in range(6):
        chances = [math.exp(-loss) for loss in references[:, x]]
        member = np.mean([p for p, there in zip(chances, inside[:, x], strict=True) if there])
        out = np.mean([p for p, there in zip(chances, inside[:, x], strict=True) if not there])
        ratio = math.exp(-own[x]) / ((member + out) / 2)
        count = 0.0
        for z in range(9):
            without = np.mean([math.exp(-loss) for loss in theirs[:, z]])
            usual = math.exp(-others[z]) / (((1 + offline) * without + 1 - offline) / 2)
            count += ratio / usual >= gamma
        assert found[x] == pytest.approx(count / 9)


def test_the_order_of_rmia_scores_does_not_depend_on_the_population() -> None:
    random = np.random.default_rng(1)
    own, references = random.exponential(size=200), random.exponential(size=(3, 200))
    plain = score_by_references(own, references)
    counted = score_by_references(
        own, references, population=(random.exponential(size=500), random.exponential(size=(3, 500)))
    )
    assert (np.diff(counted[np.argsort(plain)]) >= 0).all()
    assert (score_by_loss(own) == -own).all()


def test_references_take_out_how_easy_a_record_is() -> None:
    """A member's loss is a little smaller, and records differ far more: a threshold is lost, the ratio is not."""
    random, member, inside = np.random.default_rng(2), coins(600, 1), draw_references(600, pairs=2)
    ease = random.exponential(3, 600)
    own = np.exp(0.1 * random.normal(size=600)) * ease + np.where(member, 0.0, 1.0)
    references = np.exp(0.1 * random.normal(size=(4, 600))) * ease + np.where(inside, 0.0, 1.0)
    plain = find_auc(score_by_loss(own), member)
    compared = find_auc(score_by_references(own, references, inside=inside), member)
    assert plain < 0.7 < 0.9 < compared
    strangers = find_auc(score_by_references(own, references, inside=inside), coins(600, 99))
    assert abs(strangers - 0.5) < 0.1


def test_losses_are_measured_one_by_one_in_eval_mode() -> None:
    torch = pytest.importorskip("torch")
    from quietsum.learning import cross_entropy

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2))
    inputs, labels = torch.randn(7, 3), torch.tensor([0, 1, 0, 1, 1, 0, 1])
    found = measure_losses(model, cross_entropy, (inputs, labels), piece=3)
    assert model.training
    model.eval()
    expected = [-model(inputs[i]).log_softmax(-1)[labels[i]].item() for i in range(7)]
    assert found == pytest.approx(expected, rel=1e-5)
    with pytest.raises(InvalidParameter, match="one value per example"):
        measure_losses(model, lambda model, batch: cross_entropy(model, batch).mean(), (inputs, labels))


@pytest.mark.parametrize(
    ("losses", "references", "inside"),
    [
        ([0.1, math.nan], [[1.0, 1.0]], None), ([], [[]], None), ([0.1, 0.2], [1.0, 1.0], None),
        ([0.1, 0.2], [[1.0, 1.0, 1.0]], None), (["a"], [[1.0]], None),
        ([0.1, 0.2], [[1.0, 1.0], [1.0, 1.0]], [[True, True], [True, False]]),
        ([0.1, 0.2], [[1.0, 1.0], [1.0, 1.0]], [True, False]),
    ],
)  # fmt: skip
def test_losses_that_make_no_scores_are_refused(losses: object, references: object, inside: object) -> None:
    with pytest.raises(InvalidParameter):
        score_by_references(losses, references, inside=inside)  # type: ignore[arg-type]


def test_members_are_coins_and_references_come_in_halves() -> None:
    members = draw_members(4000)
    assert abs(int(members.sum()) - 2000) < 5.5 * math.sqrt(1000)
    inside = draw_references(50, pairs=3)
    assert (inside[::2] ^ inside[1::2]).all() and (inside.sum(axis=0) == 3).all()
    with pytest.raises(InvalidParameter, match="targets"):
        draw_members(0)


# ---------------------------------------------------------------------------------------------------- intervals


def test_the_auc_is_the_share_of_pairs() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(2)
    scores, included = random.integers(0, 20, 300).astype(float), coins(300, 3)
    pairs = [
        1.0 if member > other else 0.5 if member == other else 0.0
        for member in scores[included]
        for other in scores[~included]
    ]
    assert find_auc(scores, included) == pytest.approx(np.mean(pairs))
    assert find_auc(scores, included) == pytest.approx(metrics.roc_auc_score(included, scores))


def test_the_interval_of_the_auc_covers_it_and_a_tenth_of_it_would_not() -> None:
    random = np.random.default_rng(4)
    covered = narrow = 0
    truth = float(stats.norm.cdf(1 / math.sqrt(2)))  # of two normals a deviation apart
    for _ in range(200):
        scores = np.concatenate([random.normal(1, 1, 40), random.normal(0, 1, 60)])
        auc = find_auc(scores, np.arange(100) < 40)
        low, high = bound_auc(auc, 40, 60)
        covered += low <= truth <= high
        narrow += abs(auc - truth) <= (high - low) / 20
    assert covered >= 190 > narrow
    assert bound_auc(1.0, 30, 30)[1] == 1.0 and bound_auc(0.0, 30, 30)[0] == 0.0 and bound_auc(0.5, 0, 9) == (0.0, 1.0)
    assert bound_auc(1.0, 30, 30)[0] == pytest.approx(math.exp(-math.log(40) / 30), rel=1e-6)  # KL(1‖t) = −ln t


def test_a_threshold_that_was_chosen_by_looking_keeps_its_rate() -> None:
    """The true rate of the chosen threshold lies above the stated end in one game of 40 at most."""
    random, mean = np.random.default_rng(5), 0.0
    above = naive = 0
    for _ in range(2000):
        scores = np.concatenate([random.random(150), [0.0]])
        point = find_point(scores, np.arange(151) == 150, 0.02)
        rate = 1 - np.sort(scores[:150])[-1 - point.accused]
        above += rate > point.most_accused
        naive += rate > point.accused / point.others
        mean += rate / 2000
    assert above <= 2000 * 0.025 + 4 * math.sqrt(2000 * 0.025)
    assert naive > 800  # what was counted is no bound
    assert mean == pytest.approx(3 / 151, rel=0.05)  # three of 151, and no more than the 0.02 that was asked for


def test_the_smallest_leak_is_seen_nine_times_in_ten() -> None:
    random = np.random.default_rng(6)
    point = find_point(random.random(2000), np.arange(2000) < 1000, 0.01)
    assert point.smallest is not None
    seen = sum(
        stats.binom.sf(count - 1, 1000, point.most_accused) <= 0.025
        for count in random.binomial(1000, point.smallest, 999)
    )
    assert 0.86 < seen / 999 < 0.94


def test_too_few_others_are_inconclusive_and_never_a_pass() -> None:
    point = find_point(np.arange(400.0), np.arange(400) < 200, 0.001)
    assert not point.measured and not point.leaks and point.smallest is None
    assert "inconclusive, as this takes 999 others and there are 200" in point.sentence


def test_ties_with_the_threshold_accuse_nobody_else() -> None:
    """Scores that are all alike tell nothing, whoever comes first."""
    point = find_point(np.zeros(400), np.arange(400) < 200, 0.05)
    assert point.spotted == 0 and not point.leaks
    first = np.arange(1000) < 500
    for member in (first, ~first):
        guesses, correct = count_correct(np.zeros(1000), member, 1.0)
        assert guesses == 1000 and abs(correct - 500) < 80


# ------------------------------------------------------------------------------------------------- the judgement


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_scores_that_know_every_member_contradict_a_claim(epsilon: float) -> None:
    member = coins(1000, 7)
    found = judge(member + np.random.default_rng(8).random(1000) / 2, member, epsilon)
    assert found.conclusion is Conclusion.CONTRADICTED and found.leaks
    assert found.lower_bound is not None and found.lower_bound > epsilon
    assert "contradicts the claim" in found.sentence


def test_scores_of_chance_contradict_nothing_and_show_no_leak() -> None:
    member = coins(1000, 9)
    found = judge(np.random.default_rng(10).normal(size=1000), member, 1.0)
    assert found.conclusion is Conclusion.CONSISTENT and not found.leaks and found.lower_bound == 0.0
    assert found.smallest is not None and 0.7 < found.smallest < 0.9
    assert "would have been" in found.sentence and "A better attack may see more" in found.sentence


def test_the_best_attack_on_the_claimed_mechanism_itself_is_consistent_with_it() -> None:
    """Each target's release is b + N(0, σ²): nothing tells more under the claim, and half the noise is too little."""
    member, random = coins(2000, 11), np.random.default_rng(12)
    noise = ClippedSum.calibrated(epsilon=1.0, delta=DELTA, max_norm=1.0).noise_multiplier
    normal = random.normal(size=2000)
    right = judge(member + noise * normal, member, 1.0)
    assert right.conclusion is Conclusion.CONSISTENT and right.lower_bound is not None and right.lower_bound < 1.0
    wrong = judge(member + noise / 8 * normal, member, 1.0)
    assert wrong.conclusion is Conclusion.CONTRADICTED


@pytest.mark.long
def test_the_best_attack_on_a_true_claim_never_contradicts_it_and_rarely_bounds_too_high() -> None:
    """More seeds could show a chance of a false alarm above 1e-6, or bounds that fail more often than 1 in 20."""
    noise = ClippedSum.calibrated(epsilon=1.0, delta=DELTA, max_norm=1.0).noise_multiplier
    high = 0
    for seed in range(200):
        member, random = coins(1000, seed), np.random.default_rng(1000 + seed)
        found = judge(member + noise * random.normal(size=1000), member, 1.0)
        assert found.conclusion is not Conclusion.CONTRADICTED
        high += (found.lower_bound or 0) > 1.0
    assert high <= 20


def test_too_few_targets_are_inconclusive_with_the_reason() -> None:
    member = coins(60, 13)
    found = judge(member * 1.0, member, 8.0)
    assert found.conclusion is Conclusion.INCONCLUSIVE
    assert "could not refute this claim even if every guess were right" in found.sentence
    few = judge(np.random.default_rng(0).random(60), member, 0.5)
    assert few.conclusion is Conclusion.INCONCLUSIVE


def test_members_that_no_coin_chose_prove_nothing() -> None:
    member = coins(1000, 14)
    found = judge(member * 1.0, member, 1.0, by_coins=False)
    assert found.conclusion is Conclusion.INCONCLUSIVE and found.leaks and found.lower_bound is None
    assert "not chosen by coins" in found.sentence and found.to_dict()["lower_bound"] is None


def test_one_epsilon_and_delta_is_refuted_only_where_delta_is_small_enough() -> None:
    member = coins(1000, 15)
    for delta, expected in ((1e-5, Conclusion.INCONCLUSIVE), (1e-10, Conclusion.CONTRADICTED)):
        claim = Guarantee(epsilon=0.1, delta=delta, method="stated")
        found = judge_membership({"x": member * 1.0}, member, by_coins=True, claim=claim)
        assert found.conclusion is expected and (found.lower_bound or 0) > 0.1
    assert (
        "pass the accountant"
        in judge_membership(
            {"x": member * 1.0}, member, by_coins=True, claim=Guarantee(epsilon=0.1, delta=1e-5, method="stated")
        ).sentence
    )


def test_the_fewest_right_guesses_are_the_fewest() -> None:
    _, _, least = _read_claim(claim_of(1.0), DELTA)
    assert least is not None
    from quietsum.audit.one_run import refutes

    fewest = _least_correct(least, 300, 1e-7)
    told = [refutes(least, guesses=300, correct=count, canaries=300, level=1e-7) for count in range(150, 301)]
    assert told == [count >= fewest for count in range(150, 301)]


def test_beside_a_rate_stands_what_the_claim_leaves() -> None:
    member, claim = coins(500, 16), claim_of(2.0)
    found = judge(np.random.default_rng(17).random(500), member, 2.0)
    assert found.scores[0].points[0].claimed == pytest.approx(true_positive_rate(claim, 0.01))
    unclaimed = judge_membership({"x": np.zeros(500)}, member, by_coins=True)
    assert unclaimed.conclusion is Conclusion.INCONCLUSIVE and "no claim" in unclaimed.sentence
    endless = Guarantee(epsilon=math.inf, delta=0.0, method="none")
    assert "no claim" in judge_membership({"x": np.zeros(500)}, member, by_coins=True, claim=endless).sentence


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"included": np.ones(10, dtype=bool)}, "all or none"), ({"included": np.zeros(10)}, "included"),
        ({"scores": {"x": np.full(10, math.nan)}}, "finite"), ({"scores": {}}, "no attack"),
        ({"scores": {"x": np.zeros(9)}}, "10 finite"), ({"scores": {"x": ["a"] * 10}}, "not numbers"),
        ({"by_coins": 1}, "neither true nor false"), ({"rates": (0.0,)}, "rates"), ({"rates": ()}, "empty"),
        ({"claim": 3.0}, "neither a guarantee nor"), ({"claim": claim_of(1.0)}, "missing beside an accountant"),
        ({"claim": Guarantee(epsilon=1, delta=1e-9, method="x", unit=PrivacyUnit.CLIENT)}, "single records"),
        ({"claim": Guarantee(epsilon=1, delta=1e-9, method="x", neighbours=Neighbours.REPLACE_ONE)}, "replaced"),
        ({"claim": Guarantee(epsilon=1, delta=1e-9, method="x"), "delta": 1e-3}, "guarantee"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_refused(change: dict[str, object], message: str) -> None:
    given = {"scores": {"x": np.arange(10.0)}, "included": np.arange(10) < 5, "by_coins": True, **change}
    with pytest.raises(InvalidParameter, match=message):
        judge_membership(**given)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- trained models


def train_game(epochs: int, *, use: bool) -> MembershipAudit:
    """300 targets with labels that mean nothing: a wide model learns them by heart, if it sees them."""
    torch = pytest.importorskip("torch")
    from quietsum.learning import cross_entropy

    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(600, 20, generator=generator)
    labels = torch.randint(0, 2, (600,), generator=generator)
    member = coins(300, 18)
    rows = np.flatnonzero(member) if use else 300 + np.flatnonzero(member)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 128), torch.nn.Tanh(), torch.nn.Linear(128, 2))
    search = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        search.zero_grad()
        cross_entropy(model, (inputs[rows], labels[rows])).mean().backward()
        search.step()
    losses = measure_losses(model, cross_entropy, (inputs[:300], labels[:300]))
    return judge(score_by_loss(losses), member, 0.1)


def test_an_overfitted_model_leaks_and_contradicts_a_small_epsilon() -> None:
    found = train_game(200, use=True)
    assert found.conclusion is Conclusion.CONTRADICTED and found.leaks and found.scores[0].auc > 0.95
    assert found.lower_bound is not None and found.lower_bound > 1


def test_a_model_of_other_records_knows_none_of_the_targets() -> None:
    found = train_game(200, use=False)
    assert found.conclusion is not Conclusion.CONTRADICTED and not found.leaks and found.lower_bound == 0.0
    low, high = found.scores[0].auc_interval
    assert low < 0.5 < high

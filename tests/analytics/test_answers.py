"""Answers: without noise those of numpy, and with it intervals that cover."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analytics.asking import EVERY, chance_of, design, holds, interval_of, people
from quietsum.analytics import Answer, Design, Question, answers_of

REPEATS = 1000
LEAST = 0.95 - 3.3 * math.sqrt(0.95 * 0.05 / REPEATS)
MOST = 0.95 + 3.3 * math.sqrt(0.95 * 0.05 / REPEATS)


def truth(texts: dict[str, list[str]]) -> dict[str, list[float]]:
    age, bmi = (np.array(texts[name], dtype=float) for name in ("age", "bmi"))
    age, bmi = np.clip(age, 20, 100), np.clip(bmi, 10, 50)
    sex, arm = np.array(texts["sex"]), np.array(texts["arm"])
    edges = np.linspace(20, 100, 17)
    cells = np.clip(np.searchsorted(edges[1:-1], age, side="left"), 0, 15)
    middle = (sex == "f") & (age > 40) & (age <= 60)
    return {
        "all": [len(age)],
        "women": [middle.sum()],
        "years": [age.sum()],
        "age": [age.mean()],
        "spread": [age.mean(), age.var()],
        "ages": list(np.bincount(cells, minlength=16)),
        "sexes": [(sex == "f").sum(), (sex == "m").sum()],
        "both": [((sex == s) & (arm == a)).sum() for s in "fm" for a in ("old", "new")],
        "quartiles": [float(np.quantile(age, share, method="inverted_cdf")) for share in (0.25, 0.5, 0.75)],
        "together": [np.corrcoef(age, bmi)[0, 1]],
    }


def total_of(made: Design, texts: dict[str, list[str]]) -> np.ndarray:
    return made.vectors(made.encode(texts)).sum(axis=0)


def test_without_noise_every_answer_is_the_one_of_numpy() -> None:
    made, texts = design(*EVERY[:-1]), people(700, np.random.default_rng(5))
    expected = truth(texts)
    for answer in answers_of(made, total_of(made, texts), deviation=1e-9):
        found = [one.value for one in answer.estimates]
        if answer.name == "quartiles":
            assert found == pytest.approx(expected[answer.name], abs=5.0)  # one cell
        else:
            assert found == pytest.approx(expected[answer.name], rel=1e-6), answer.name


@pytest.fixture(scope="module")
def covered() -> dict[str, np.ndarray]:
    """By question, how often the noise interval held the data's own value; each estimate is a column."""
    made, texts = design(*EVERY[:-1]), people(3000, np.random.default_rng(6))
    expected, total, rng = truth(texts), total_of(made, texts), np.random.default_rng(7)
    hits: dict[str, list[list[bool]]] = {name: [] for name in expected}
    for _ in range(REPEATS):
        noisy = total + rng.normal(0, 9.0, made.dimension)
        for answer in answers_of(made, noisy, deviation=9.0):
            pairs = zip(answer.estimates, expected[answer.name], strict=True)
            hits[answer.name].append([one.noise[0] <= value <= one.noise[1] for one, value in pairs])
    return {name: np.array(found).mean(axis=0) for name, found in hits.items()}


@pytest.mark.parametrize("name", ["all", "women", "years", "age", "spread", "ages", "sexes", "both", "together"])
def test_noise_intervals_cover_the_datas_own_answer(covered: dict[str, np.ndarray], name: str) -> None:
    most = 0.99 if name == "together" else MOST  # by the delta method, which errs on the wide side
    assert (covered[name] >= LEAST).all() and (covered[name] <= most).all(), covered[name]


def test_intervals_of_quantiles_cover_at_least_and_are_not_the_whole_range(covered: dict[str, np.ndarray]) -> None:
    made, texts = design(EVERY[8]), people(3000, np.random.default_rng(6))
    assert (covered["quartiles"] >= LEAST).all()
    for one in answers_of(made, total_of(made, texts), deviation=9.0)[0].estimates:
        assert one.noise[1] - one.noise[0] <= 10.0  # two cells of sixteen


def test_a_noise_understated_by_a_third_is_seen_as_too_little_cover() -> None:
    """The check has teeth."""
    made, texts = design(EVERY[0]), people(200, np.random.default_rng(8))
    total, rng = total_of(made, texts), np.random.default_rng(9)
    hits = [
        one.noise[0] <= 200 <= one.noise[1]
        for _ in range(REPEATS)
        for one in answers_of(made, total + rng.normal(0, 9.0, 1), deviation=6.0)[0].estimates
    ]
    assert np.mean(hits) < LEAST


def test_population_intervals_cover_the_source_that_records_come_from() -> None:
    """Every repetition draws new patients; the mean of the source is that of the clamped normal, about 62."""
    asked = (EVERY[3], EVERY[4], EVERY[9])
    made, rng = design(*asked), np.random.default_rng(10)
    source = truth(people(400_000, np.random.default_rng(11)))
    values = [source["age"][0], *source["spread"], source["together"][0]]
    hits = []
    for _ in range(REPEATS // 2):
        noisy = total_of(made, people(900, rng)) + rng.normal(0, 9.0, made.dimension)
        found = [one for answer in answers_of(made, noisy, deviation=9.0) for one in answer.estimates]
        hits.append([holds(interval_of(one), value) for one, value in zip(found, values, strict=True)])
    least = 0.95 - 3.3 * math.sqrt(0.95 * 0.05 / (REPEATS // 2))
    assert (np.array(hits).mean(axis=0) >= least).all(), np.array(hits).mean(axis=0)


def test_a_mean_of_hardly_any_records_says_no_more_than_its_bounds() -> None:
    made = design(EVERY[3])
    noisy = total_of(made, people(3, np.random.default_rng(1))) + np.array([5.0, -3.0, 2.0])
    (one,) = answers_of(made, noisy, deviation=9.0)[0].estimates
    assert one.noise == (20.0, 100.0)


def test_columns_that_have_nothing_to_do_with_each_other_are_rarely_called_dependent() -> None:
    made, rng = design(EVERY[7]), np.random.default_rng(12)
    found = [
        chance_of(answers_of(made, total_of(made, people(800, rng)) + rng.normal(0, 9.0, 4), deviation=9.0)[0]) < 0.05
        for _ in range(400)
    ]
    assert np.mean(found) <= 0.05 + 3.3 * math.sqrt(0.05 * 0.95 / 400)


def test_a_table_with_hardly_a_record_to_a_cell_is_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 records in 16 × 8 cells are called dependent far too often where that is no condition."""
    made, rng = design(Question(name="both", kind="contingency", columns=("age", "bmi"))), np.random.default_rng(15)

    def answers(repeats: int) -> list[Answer]:
        found: list[Answer] = []
        for _ in range(repeats):
            texts = {
                "age": rng.uniform(20, 100, 30).astype(str).tolist(),
                "bmi": rng.uniform(10, 50, 30).astype(str).tolist(),
            }
            noisy = total_of(made, texts) + rng.normal(0, 0.4, made.dimension)
            found += answers_of(made, noisy, deviation=0.4)
        return found

    assert all(chance_of(one) == 1.0 and "no test" in one.remarks[0] for one in answers(10))
    monkeypatch.setattr("quietsum.analytics.answers.FEWEST", 0.0)
    assert np.mean([chance_of(one) < 0.05 for one in answers(80)]) > 0.1


@pytest.mark.parametrize("deviation", [1e-6, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_whatever_the_noise_shows_is_answered(count: int, deviation: float) -> None:
    """Hardly anybody, and any noise: no warning, no error, and every estimate lies in its own intervals."""
    made, rng = design(), np.random.default_rng(count)
    texts = people(count, rng)
    for _ in range(25):
        noisy = total_of(made, texts) + rng.normal(0, deviation, made.dimension)
        for answer in answers_of(made, noisy, deviation=deviation):
            for one in answer.estimates:
                for low, high in (one.noise, one.population or one.noise):
                    assert low <= high and math.isfinite(high - low)
                    value = one.value if low < 0 else max(one.value, 0.0)  # a count may be negative, its source not
                    assert math.isnan(value) or low - 1e-6 <= value <= high + 1e-6, (answer.name, one)
            assert answer.test is None or 0 <= answer.test["p"] <= 1

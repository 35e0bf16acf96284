"""The runs of a trade-off, in this process and in others."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.tradeoff.outcomes import Outcome
from quietsum.tradeoff.picture import chart_of
from quietsum.tradeoff.sweep import Job, epsilons_in, jobs_for, outcome_of, schedule_run, several_splits
from quietsum.tradeoff.workers import run_in_processes, serve
from tradeoff import made_up

CLOUDS, SPLIT = "tradeoff.made_up:Clouds", "tradeoff.made_up:Split"


def test_plain_runs_come_first_and_every_epsilon_has_every_seed() -> None:
    jobs = jobs_for(CLOUDS, [8.0, 1.0], 2)
    assert [(job.epsilon, job.seed) for job in jobs] == [(None, 0), (None, 1), (1.0, 0), (1.0, 1), (8.0, 0), (8.0, 1)]
    assert all(job.split is None for job in jobs)


def test_a_seed_is_the_paired_split_where_a_task_has_several() -> None:
    assert several_splits(SPLIT) and not several_splits(CLOUDS) and not several_splits("digits")
    jobs = jobs_for(SPLIT, [1.0], 3)
    assert [job.split for job in jobs] == [0, 1, 2, 0, 1, 2]
    assert outcome_of(jobs[2])[0].on == "points of split 2"


def test_fraud_and_nuclei_have_several_splits_and_chest_xrays_one() -> None:
    assert several_splits("fraud") and several_splits("nuclei") and not several_splits("chest-xray")


@pytest.mark.parametrize(
    ("epsilons", "seeds", "said"),
    [
        ([], 3, "is empty"), ([1.0, 1.0], 3, "twice"), ([-1.0], 3, "greater than 0"), ([float("nan")], 3, "not finite"),
        ([1.0], 0, "at least 1"), ([1.0], 10**6, "waits for"), ([1e-9], 1, "out of reach"),
    ],
)  # fmt: skip
def test_a_sweep_that_cannot_be_made_is_refused_before_anything_is_trained(
    epsilons: list[float], seeds: int, said: str
) -> None:
    with pytest.raises(QuietsumError, match=said):
        jobs_for(CLOUDS, epsilons, seeds)


def test_more_seeds_than_splits_are_refused_at_once() -> None:
    with pytest.raises(InvalidParameter, match="does not exist"):
        jobs_for(SPLIT, [1.0], 4)


def test_protected_records_are_refused() -> None:
    with pytest.raises(QuietsumError, match="would publish them"):
        jobs_for("tradeoff.made_up:Protected", [1.0], 1)


def test_a_private_outcome_carries_the_trainers_guarantee_and_a_plain_one_none() -> None:
    plain, private = (outcome_of(Job(task=CLOUDS, epsilon=epsilon, seed=0)) for epsilon in (None, 2.0))
    assert [each.metric for each in plain] == ["accuracy", "loss"]
    assert plain[0].guarantee is None and plain[0].value > 0.8
    spent = private[0].guarantee
    assert spent is not None and 1.9 < spent.epsilon <= 2.0 and private[0].on == "100 made-up points"
    assert spent.epsilon == schedule_run(made_up.Clouds(), epsilon=2.0).forecast.epsilon


def test_a_task_without_a_score_is_refused() -> None:
    with pytest.raises(QuietsumError, match="no finite score"):
        outcome_of(Job(task="tradeoff.made_up:Scoreless", epsilon=None, seed=0))


@pytest.mark.parametrize(
    ("text", "values"), [(".5,1,8", [0.5, 1.0, 8.0]), ("3", [3.0]), (" 1 , ,2,", [1.0, 2.0]), ("", [])]
)
def test_epsilons_are_read_from_a_list(text: str, values: list[float]) -> None:
    assert epsilons_in(text) == values


@pytest.mark.parametrize("text", ["a", "1,nan", "1,inf", "1;2", "1,-"])
def test_what_is_no_number_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidParameter, match=r"write \.5,1,2,4,8"):
        epsilons_in(text)


# ---------------------------------------------------------------------------------------------- processes


def test_a_worker_answers_each_line_and_tells_a_refusal_in_words() -> None:
    jobs = [Job(task=CLOUDS, epsilon=None, seed=0).to_dict(), {"task": "nothing", "epsilon": None, "seed": 0}]
    out = io.StringIO()

    def work(values: dict[str, Any]) -> Any:
        print("this is no answer")
        return [outcome.to_dict() for outcome in outcome_of(Job(**values))]

    serve(work, source=io.StringIO("".join(json.dumps(job) + "\n" for job in jobs)), sink=out)
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert Outcome.from_dict(first["answer"][0]).value > 0.8 and "is not known" in second["error"]


def script(path: Path, body: str) -> list[str]:
    path.write_text(f"import json, os, sys\nfor line in sys.stdin:\n    job = json.loads(line)\n    {body}\n")
    return [sys.executable, str(path)]


def test_jobs_are_shared_by_processes_with_one_thread_each(tmp_path: Path) -> None:
    body = "print(json.dumps({'answer': [job['n'] ** 2, os.environ['OMP_NUM_THREADS']]}), flush=True)"
    seen: dict[int, Any] = {}
    jobs = [{"n": number} for number in range(20)]
    run_in_processes(jobs, lambda job, answer: seen.update({job["n"]: answer}), workers=3,
                     command=script(tmp_path / "w.py", body))  # fmt: skip
    assert seen == {number: [number**2, "1"] for number in range(20)}


def test_the_first_failure_stops_a_sweep_and_a_tolerant_one_goes_on(tmp_path: Path) -> None:
    body = "print(json.dumps({'error': 'bad luck'} if job['n'] == 2 else {'answer': 1}), flush=True)"
    command, jobs = script(tmp_path / "w.py", body), [{"n": number} for number in range(6)]
    with pytest.raises(QuietsumError, match="bad luck"):
        run_in_processes(jobs, lambda job, answer: None, workers=1, command=command)
    seen: list[Any] = []
    run_in_processes(jobs, lambda job, answer: seen.append(answer), workers=1, command=command, tolerant=True)
    assert seen == [1, 1, {"error": "bad luck"}, 1, 1, 1]


def test_a_worker_that_dies_is_heard_of(tmp_path: Path) -> None:
    with pytest.raises(QuietsumError, match="ended without an answer"):
        run_in_processes([{"n": 1}], lambda *_: None, workers=1, command=script(tmp_path / "w.py", "sys.exit(3)"))


def test_the_real_worker_makes_a_run_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    seen: list[Outcome] = []
    jobs = [dataclasses.replace(job, selfcheck=False).to_dict() for job in jobs_for(CLOUDS, [2.0], 1)]
    run_in_processes(jobs, lambda _, answer: seen.append(Outcome.from_dict(answer[0])), workers=2)
    assert sorted(each.epsilon or 0 for each in seen) == [0, 2.0]


# ------------------------------------------------------------------------------------------------ picture


def test_the_picture_shows_error_bars_and_the_score_without_privacy() -> None:
    from quietsum.charts import svg
    from quietsum.tradeoff.analysis import analyze_privacy_utility_tradeoff

    outcomes = [outcome_of(dataclasses.replace(job, selfcheck=False))[0] for job in jobs_for(CLOUDS, [1.0, 8.0], 2)]
    found = analyze_privacy_utility_tradeoff(outcomes)
    chart = chart_of(found)
    spans = [row.interval for row in found.rows if row.interval is not None]
    wanted = tuple((max(low, 0.0), min(high, 1.0)) for low, high in spans)  # no accuracy lies beyond 1
    assert chart.series[0].bars == wanted and len(spans) == 2 and chart.limit is not None
    picture = svg(chart)
    assert picture.count("V") >= 2 and "ε per record" in picture and "without privacy" in picture
    one = chart_of(analyze_privacy_utility_tradeoff([each for each in outcomes if each.seed == 0]))
    assert one.series[0].bars == () and "one seed" in svg(one)


def test_bars_that_do_not_pair_with_points_or_are_no_numbers_are_refused() -> None:
    from quietsum.charts import Chart, Series

    for bars in (((0.1, 0.2),), ((0.1, 0.2), (0.1, float("nan")))):
        line = Series(label="a", points=((1.0, 0.5), (2.0, 0.6)), bars=bars)
        with pytest.raises(InvalidParameter, match=r"do not pair|cannot be drawn"):
            Chart(title="t", x_label="x", y_label="y", series=(line,))

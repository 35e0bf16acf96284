"""A correct claim passes, and with any one mistake it is caught: by name, and with an answer that is not "holds"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from audit.claims.claiming import line, lines, names
from quietsum.audit import RemarkKind, Ruling

SGD: dict[str, Any] = {"noise_multiplier": 1.0, "sample_rate": 0.01, "steps": 1000, "delta": 1e-5}
OPACUS: dict[str, Any] = {
    "noise_multiplier": 1.0,
    "batch_size": 100,
    "dataset_size": 10_000,
    "epochs": 10,
    "delta": 1e-5,
}
TF: dict[str, Any] = {
    "number_of_examples": 10_000, "batch_size": 100, "num_epochs": 10, "noise_multiplier": 1.0, "delta": 1e-5,
    "sampling": "poisson",
}  # fmt: skip
LOCAL: dict[str, Any] = {"clipping_norm": 1.0, "sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5}
CENTRAL: dict[str, Any] = {
    "strategy": "DifferentialPrivacyServerSideFixedClipping", "noise_multiplier": 4.0, "num_sampled_clients": 100,
    "num_clients": 1000, "rounds": 10, "weighting": "uniform", "delta": 1e-4,
}  # fmt: skip
FEDMED: dict[str, Any] = {
    "target_delta": 1e-5, "sample_history": [[1.0, 0.01, 100]], "cumulative_sample_epsilon": 1.0,
}  # fmt: skip
FRAUD: dict[str, Any] = {
    "target_delta": 1e-5, "achieved_epsilon": 3.2, "noise_multiplier": 1.0, "sampling_probability": 0.0032,
    "training_steps": 31_200,
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "epsilon": 1.0, "delta": 1e-5, "noise_multiplier": 2.3, "n_samples": 10_000, "batch_size": 32, "rounds": 100,
}  # fmt: skip
PRISM: dict[str, Any] = {"epsilon": 4.0, "records": 10_000, "noise_multiplier": 1.0, "epochs": 10, "batch_size": 32}

CORRECT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dp-sgd": (SGD, {"epsilon": 1.9, "unit": "record", "units": 10_000}),
    "opacus": (OPACUS, {"epsilon": 1.9, "unit": "record", "units": 10_000}),
    "tensorflow-privacy": (TF, {"epsilon": 1.9, "unit": "record", "units": 10_000}),
    "flower-local-dp": (LOCAL, {"unit": "client", "units": 1000}),
    "flower-central-dp": (CENTRAL, {"epsilon": 0.4, "unit": "client", "units": 1000}),
    "dp-fedmed": (FEDMED, {}),
    "fraud-report": (FRAUD, {}),
    "fraud-config": (CONFIG, {}),
    "prism": (PRISM, {}),
    "table": ({"rows": [{key: value for key, value in SGD.items()} | {"epsilon": 1.9}]}, {}),
}


@pytest.mark.parametrize("system", CORRECT)
def test_a_correct_claim_holds_and_nothing_is_said_against_it(system: str) -> None:
    settings, claim = CORRECT[system]
    found = line(system, settings, **claim)
    assert found.ruling is Ruling.HOLDS and names(found) == []


MISTAKES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    # the mistake, the system, what differs in its settings, what differs in its claim
    ("sensitivity", "flower-local-dp", {"sensitivity": 1e-4}, {}),
    ("sensitivity", "dp-sgd", {"noise_stddev": 0.5, "clip_norm": 1.0}, {}),
    ("gaussian-formula", "flower-local-dp", {"epsilon": 10.0}, {}),
    ("no-noise", "flower-local-dp", {"sensitivity": 0.0}, {}),
    ("shuffled-as-poisson", "dp-sgd", {"draw": "shuffled"}, {}),
    ("shuffled-as-poisson", "opacus", {"poisson_sampling": False}, {}),
    ("shuffled-as-poisson", "tensorflow-privacy", {"sampling": "shuffled"}, {}),
    ("fixed-as-poisson", "dp-sgd", {"draw": "fixed"}, {}),
    ("no-sampling", "dp-sgd", {"draw": "in-order"}, {}),
    ("no-sampling", "opacus", {"poisson_sampling": False, "shuffle": False}, {}),
    ("no-sampling", "dp-sgd", {"draw": "everyone"}, {}),
    ("batch-clip", "dp-sgd", {"clipping": "per-batch"}, {}),
    ("batch-clip", "opacus", {"clipping": "per-batch", "batch_size": 4}, {}),
    ("batch-clip", "tensorflow-privacy", {"num_microbatches": 1}, {}),
    ("batch-clip", "fraud-config", {"clipping": "per-batch"}, {}),
    ("batch-clip", "prism", {"use_opacus": False}, {}),
    ("microbatch", "tensorflow-privacy", {"num_microbatches": 25}, {}),
    ("microbatch", "dp-sgd", {"clipping": "per-microbatch", "microbatch_size": 4}, {}),
    ("no-clip", "dp-sgd", {"clipping": "none"}, {}),
    ("count-noise", "dp-sgd", {"clipping": "adaptive", "count_stddev": 0.5}, {}),
    ("count-noise", "dp-sgd", {"clipping": "adaptive"}, {}),
    ("count-noise", "opacus", {"clipping": "adaptive"}, {}),
    ("divisor", "dp-sgd", {"divided_by": "drawn"}, {}),
    ("cohort", "dp-sgd", {"cohort_rate": 0.1}, {"epsilon": 0.2}),
    ("cohort", "opacus", {"cohort_rate": 0.1}, {"epsilon": 0.2}),
    ("weights", "flower-central-dp", {"weighting": "examples"}, {}),
    ("unit", "dp-sgd", {}, {"unit": "person", "records_per_unit": 5}),
    ("unit", "dp-sgd", {}, {"unit": "client"}),
    ("unit", "tensorflow-privacy", {"max_examples_per_user": 5}, {"unit": "person"}),
    ("unit", "flower-central-dp", {}, {"unit": "record"}),
    ("tuning", "dp-sgd", {}, {"trials": 20}),
    ("delta", "dp-sgd", {}, {"units": 100_000}),
    ("seeded", "dp-sgd", {}, {"seeded": True}),
    ("summed-units", "dp-sgd", {}, {"sum_of": "units"}),
    ("gdp", "opacus", {"accountant": "gdp"}, {"epsilon": 1.7}),
    ("accounting", "dp-sgd", {}, {"epsilon": 1.7}),
    ("accounting", "fraud-report", {"achieved_epsilon": 0.95}, {}),
    ("formula", "dp-fedmed", {"cumulative_sample_epsilon": 0.1}, {}),
    ("length", "fraud-config", {"rounds": None}, {}),
    ("noise-multiplier", "prism", {"noise_multiplier": None}, {}),
    ("noise-multiplier", "opacus", {"noise_multiplier": None, "target_epsilon": 1.9, "target_delta": 1e-5}, {}),
]


@pytest.mark.parametrize(("name", "system", "settings", "claim"), MISTAKES, ids=lambda value: str(value)[:40])
def test_the_same_claim_with_one_mistake_is_caught(
    name: str, system: str, settings: dict[str, Any], claim: dict[str, Any]
) -> None:
    right, stated = CORRECT[system]
    changed = {key: value for key, value in (right | settings).items() if value is not None}
    if "noise_stddev" in settings:
        changed["noise_multiplier"] = right["noise_multiplier"]
    found = line(system, changed, **(stated | claim))
    assert name in names(found)
    assert found.ruling is not Ruling.HOLDS
    said = next(one for one in found.remarks if one.name == name)
    assert said.text and (said.instead or said.kind is RemarkKind.ASSUMPTION)


def test_every_mistake_that_the_page_names_is_caught_here() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "check-a-claim.md").read_text(encoding="utf-8")
    table = page.partition("## Mistakes that it names")[2].partition("## ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = {name.strip(" `") for row in rows for name in row.split(",")}
    elsewhere = {  # tests of their own, below
        "laplace-l2", "per-parameter", "summed-rounds", "summed-parties", "parameters", "grouping", "relation",
    }  # fmt: skip
    caught = {name for name, *_ in MISTAKES}
    assert named - caught == elsewhere and caught <= named


def test_laplace_noise_behind_an_l2_clip_is_caught() -> None:
    found = line("prism", PRISM | {"noise_type": "laplace", "dimension": 100})
    assert "laplace-l2" in names(found) and found.ruling is not Ruling.HOLDS


def test_the_noise_of_one_parameter_is_not_that_of_the_release() -> None:
    found = line("nvflare", {"filter": "SVTPrivacy", "parameters": 10_000})
    assert names(found) == ["per-parameter"] and found.ruling is Ruling.FALSE
    unknown = line("nvflare", {"filter": "SVTPrivacy"})
    assert names(unknown) == ["parameters"] and unknown.ruling is Ruling.OPEN


def test_microbatches_of_a_drawn_batch_hang_on_how_they_are_grouped() -> None:
    found = line("tensorflow-privacy", TF | {"num_microbatches": 25}, epsilon=100.0)
    assert names(found) == ["grouping"] and found.ruling is Ruling.OPEN
    kept = line("tensorflow-privacy", TF | {"num_microbatches": 25, "sampling": "in-order"}, epsilon=100.0)
    assert names(kept) == [] and kept.ruling is Ruling.HOLDS


@pytest.mark.parametrize("filter_", ["PercentilePrivacy", "ExcludeVars"])
def test_a_filter_without_noise_promises_nothing(filter_: str) -> None:
    for claim in ({}, {"epsilon": 100.0}):
        found = line("nvflare", {"filter": filter_}, **claim)
        assert found.ruling is Ruling.NOTHING and names(found) == ["no-noise"]


@pytest.mark.parametrize("what", ["rounds", "parties"])
def test_a_sum_of_rounds_or_parties_is_loose_and_no_lie(what: str) -> None:
    found = line("dp-sgd", SGD, epsilon=10.0, sum_of=what)
    assert found.ruling is Ruling.HOLDS and names(found, "note") == [f"summed-{what}", "loose"]


def test_an_epsilon_of_one_round_is_shown_beside_that_of_all() -> None:
    one, every = lines("dp-sgd", SGD | {"rounds": 9}, epsilon=1.9, covers="round")
    assert one.ruling is Ruling.HOLDS and every.ruling is Ruling.UNSTATED
    assert every.epsilon > 2 * one.epsilon
    (whole,) = lines("dp-sgd", SGD | {"rounds": 9}, epsilon=1.9)
    assert whole.ruling is Ruling.FALSE and whole.epsilon == every.epsilon
    local = lines("flower-local-dp", LOCAL | {"rounds": 3})
    assert [each.line.label for each in local] == ["one round", "all 3 rounds"]
    assert local[0].ruling is Ruling.HOLDS and local[1].ruling is Ruling.UNSTATED


def test_what_the_figures_forgive_is_a_note() -> None:
    """A stated ε above the unamplified one needs no sampling at all."""
    found = line("dp-sgd", SGD | {"draw": "shuffled"}, epsilon=100.0)
    assert found.ruling is Ruling.HOLDS and "shuffled-as-poisson" in names(found, "note")


def test_a_claim_between_the_bounds_needs_an_assumption() -> None:
    found = line("dp-sgd", SGD | {"draw": "shuffled"}, epsilon=12.0)
    assert found.epsilon_lower < 12.0 < found.epsilon and found.ruling is Ruling.OPEN


def test_a_relation_that_is_stated_is_the_one_that_is_priced() -> None:
    free = line("dp-sgd", SGD, epsilon=1.9)
    stated = line("dp-sgd", SGD, epsilon=1.9, neighbours="replace-one")
    assert free.ruling is Ruling.HOLDS and stated.ruling is Ruling.FALSE
    assert stated.epsilon > 1.5 * free.epsilon and stated.line.neighbours.value == "replace-one"


def test_a_relation_under_which_nothing_is_proven_is_named() -> None:
    """One record more moves every batch behind it, where batches have a fixed size."""
    fixed = SGD | {"draw": "fixed", "accounted_as": "fixed"}
    found = line("dp-sgd", fixed, epsilon=50.0, neighbours="add-or-remove-one")
    assert found.ruling is Ruling.OPEN and names(found) == ["relation"]
    free = line("dp-sgd", fixed, epsilon=50.0)
    assert free.ruling is Ruling.HOLDS and names(free) == [] and free.epsilon == found.epsilon


@pytest.mark.parametrize("noise", [1e-9, 1e9])
def test_tiny_and_huge_noise_have_bounds_as_well(noise: float) -> None:
    adaptive = {"clipping": "adaptive", "count_stddev": 1e9, "draw": "everyone", "steps": 1, "delta": 1e-5}
    found = line("dp-sgd", adaptive | {"noise_multiplier": noise})
    assert 0 <= found.epsilon_lower <= found.epsilon and (found.epsilon > 1e17 or found.epsilon < 1e-4)


def test_a_hybrid_sum_gets_a_line_that_is_never_accepted() -> None:
    found = lines("dp-fedmed", FEDMED | {"user_history": [[4.0, 0.1, 1]], "cumulative_epsilon": 99.0})
    assert [each.line.label for each in found] == ["records", "clients", "records + clients"]
    assert found[2].ruling is Ruling.OPEN and "summed-units" in names(found[2])


def test_adaptive_clipping_of_flower_counts_the_noisy_count() -> None:
    adaptive = CENTRAL | {"strategy": "DifferentialPrivacyServerSideAdaptiveClipping", "clipped_count_stddev": 2.1}
    found = line("flower-central-dp", adaptive, epsilon=1.8)
    fixed = line("flower-central-dp", CENTRAL, epsilon=1.8)
    assert "count-noise" in names(found, "note") and found.epsilon > fixed.epsilon
    stated = {"neighbours": "replace-one"}  # where the split of Andrew et al. is right
    pair = [line("flower-central-dp", one, **stated).epsilon for one in (adaptive, CENTRAL)]
    assert pair[0] == pytest.approx(pair[1], rel=1e-6)

"""``run.toml`` is read strictly: every problem names its path and its remedy, all of them at once, in our words."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from quietsum.errors import InvalidParameter, PlanRefused, QuietsumError
from quietsum.keys import declarations
from quietsum.plan import (
    AggregationPlan,
    FederationPlan,
    Plan,
    PrivacyPlan,
    RecordPlan,
    json_schema,
    keys,
    load_plan,
    page,
    read_plan,
)

DOCS = Path(__file__).parent.parent.parent / "docs" / "reference"
GOOD = "[privacy]\nrecord = { epsilon = 1.0, delta = 1e-5 }\n"


def refusal(text: str) -> str:
    with pytest.raises(PlanRefused) as caught:
        load_plan(text)
    return str(caught.value)


# -------------------------------------------------------------------------------------------- unknown keys


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "\n[privacy.record]\nepsilonn = 1",
            "privacy.record.epsilonn: unknown key; did you mean privacy.record.epsilon?",
        ),
        ("\n[privacy]\ndp_enabled = true", "privacy.dp_enabled: unknown key; did you mean privacy.style?"),
        ("\n[privacy]\nsecure_agg_enabled = true", "unknown key; did you mean aggregation.secure?"),
        ("\n[privacy]\ntarget_epsilon = 1", "unknown key; did you mean privacy.record.epsilon?"),
        ("\n[privacy]\nsampling_probability = 0.1", "unknown key; did you mean training.sample_rate?"),
        ("\n[privacy]\nlearning_rate = 0.1", "unknown key; did you mean training.optimizer.learning_rate?"),
        ("\n[training]\nuse_opacus = true", "unknown key; did you mean training.engine?"),
        ("\n[privacy]\nsteps_user = 1", "unknown key; did you mean federation.rounds?"),
        ("\n[privacy]\nmax_epsilon = 1", "unknown key; did you mean privacy.record.epsilon?"),
        ("\n[federation]\nround = 3", "federation.round: unknown key; did you mean federation.rounds?"),
        ("\n[privcy]\nstyle = 'none'", "privcy: unknown key; did you mean privacy?"),
        ("\n[privacy]\nepsilon = 1", "privacy.epsilon: unknown key; did you mean privacy.record.epsilon?"),
        (
            "\n[training]\nlearning_rate = 1",
            "training.learning_rate: unknown key; did you mean training.optimizer.learning_rate?",
        ),
        ("\nrounds = 3", "rounds: unknown key; did you mean federation.rounds?"),
        ("\n[training]\nbatch-size = 3", "training.batch-size: unknown key; did you mean training.batch_size?"),
        (
            "\n[federation.sampling]\nkindd = 'everyone'",
            "federation.sampling.kindd: unknown key; did you mean federation.sampling.kind?",
        ),
    ],
)
def test_an_unknown_key_names_its_path_and_the_nearest_right_key(text: str, told: str) -> None:
    assert refusal(text).endswith(told)


def test_a_key_near_to_nothing_is_answered_with_what_the_table_knows() -> None:
    assert "aggregation knows rule, weights, secure" in refusal("\n[aggregation]\nqqqq = 1")


@pytest.mark.parametrize("key", sorted(keys()))
def test_every_key_is_known_and_its_misspelling_is_not(key: str) -> None:
    """The misspelt key is refused by name, and the right one is offered."""
    table, _, last = key.rpartition(".")
    text = f"\n[{table}]\n{last}x = 1\n" if table else f"\n{last}x = 1\n"
    told = key
    if table == "schedule":  # a list of tables
        text, told = f"\n[[schedule]]\n{last}x = 1\n", f"schedule[0].{last}"
    assert f"{told}x: unknown key; did you mean {key}?" in refusal(text)


def test_options_of_the_task_are_free() -> None:
    plan = load_plan("\n[task.options]\nanything = { goes = [1, 2.5, 'three', true] }\n")
    assert plan.task.options["anything"]["goes"] == (1, 2.5, "three", True)


# ------------------------------------------------------------------------------------------- wrong values


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("federation.rounds = 0", "federation.rounds = 0 must be at least 1"),
        ("federation.rounds = -3", "federation.rounds = -3 must be at least 1"),
        ("federation.rounds = 2.0", "federation.rounds = 2.0 is not a whole number"),
        ("federation.rounds = true", "federation.rounds = true is not a whole number"),
        ("federation.rounds = 'twenty'", "federation.rounds = 'twenty' is not a whole number"),
        ("federation.rounds = 99999999999999999999", "must be at most 1e+06"),
        ("federation.rounds = 2026-01-01", "federation.rounds = 2026-01-01 is not a whole number"),
        ("federation.parties = 'va'", "federation.parties = 'va' is not a list"),
        ("federation.parties = [1]", "federation.parties[0] = 1 is not a text in quotes"),
        ("federation.parties = ['']", "federation.parties[0] = '' is not a name"),
        ("federation.deadline = 0", "federation.deadline = 0 must be greater than 0"),
        ("federation.sampling = 'everyone'", "federation.sampling = 'everyone' is not a table"),
        ("federation.sampling.kind = 'poison'", "'poisson' or 'fixed-size'; did you mean 'poisson'?"),
        ("federation.simulate.drop_outs = 1.5", "federation.simulate.drop_outs = 1.5 must be at most 1"),
        ("training.sample_rate = nan", "training.sample_rate = nan is not a finite number"),
        ("training.sample_rate = inf", "training.sample_rate = inf is not a finite number"),
        ("training.sample_rate = 0", "training.sample_rate = 0 must be greater than 0"),
        ("training.sample_rate = 1.1", "training.sample_rate = 1.1 must be at most 1"),
        ("training.sample_rate = '0.1'", "training.sample_rate = '0.1' is not a number"),
        ("training.optimizer.momentum = 1", "training.optimizer.momentum = 1 must be below 1"),
        ("privacy.record.epsilon = -1", "privacy.record.epsilon = -1 must be greater than 0"),
        ("privacy.record.epsilon = nan", "privacy.record.epsilon = nan is not a finite number"),
        ("privacy.record.epsilon = -inf", "privacy.record.epsilon = -inf is not a finite number"),
        ("privacy.record.delta = 1", "privacy.record.delta = 1 must be below 1"),
        ("privacy.record.lifetime = { epsilon = 3 }", "privacy.record.lifetime.delta is missing"),
        ("privacy.style = 'sampel'", "'sampel' is unknown; choose 'none', 'sample', 'user' or 'hybrid'"),
        ("aggregation.secure = 'yes'", "aggregation.secure = 'yes' is not true or false"),
        ("task.name = ''", "task.name is empty"),
        ("task.name = \"a\\nb\"", "task.name = 'a\\nb' is not a name"),
        ("task.options = 3", "task.options = 3 is not a table"),
        ("task.options.x = nan", "task.options.x = nan is not finite"),
        ("task.options.day = 2026-01-01", "task.options.day = '2026-01-01' is a date"),
        ("task = 3", "task = 3 is not a table"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_with_its_path(text: str, told: str) -> None:
    assert told in refusal(f"{text}\n")


def test_all_problems_of_a_file_are_told_together_one_a_line() -> None:
    text = refusal(
        """
        [federation]
        rounds = 0
        partys = ["va"]
        [training]
        sample_rate = nan
        [privacy]
        style = "sampel"
        record = { epsilonn = 1.0, delta = -1, max_grad_norm = "one" }
        """
    )
    head, *problems = text.splitlines()
    assert head == "the plan: 7 problems"
    assert [problem.split(" =")[0].split(":")[0].strip() for problem in problems] == [
        "federation.rounds", "federation.partys", "training.sample_rate", "privacy.style", "privacy.record.delta",
        "privacy.record.max_grad_norm", "privacy.record.epsilonn",
    ]  # fmt: skip


def test_no_message_speaks_of_pydantic_or_points_to_its_pages() -> None:
    for text in ("\n[privacy]\nrecord = 3\nstyle = 1\nx = nan", "\n[training]\nbatch_size = 'x'", "\na.b.c = 1"):
        assert not re.search("pydantic|https?:|Traceback|validation", refusal(text))


@given(
    st.recursive(
        st.none().map(lambda _: "x") | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([key.rpartition(".")[2] for key in keys()]) | st.text(max_size=4), inner)
        ),
        max_leaves=20,
    )
)
def test_whatever_stands_in_a_plan_it_is_read_or_refused_with_a_lesson(values: Any) -> None:
    try:
        plan = Plan.from_dict(values)
    except QuietsumError as refused:
        assert isinstance(refused, PlanRefused)
        assert "pydantic" not in str(refused)
    else:
        assert Plan.from_dict(plan.to_dict()) == plan


# -------------------------------------------------------------------------------------------------- files


def test_invalid_toml_says_line_and_column() -> None:
    assert "not valid TOML" in refusal("[privacy]\nstyle = = 1\n")
    assert "line 2, column 9" in refusal("[privacy]\nstyle = = 1\n")


def test_an_empty_file_is_refused_with_a_way_to_a_full_one(tmp_path: Path) -> None:
    for content in (b"", b"\n  \n", b"# only a comment\n", b"\xef\xbb\xbf"):
        (tmp_path / "run.toml").write_bytes(content)
        with pytest.raises(PlanRefused, match=r"run\.toml is empty; .*quietsum new"):
            read_plan(tmp_path / "run.toml")
    assert "is empty" in refusal("")


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert read_plan(tmp_path / "run.toml") == load_plan(GOOD)


def test_files_that_are_no_plans_are_refused_by_name(tmp_path: Path) -> None:
    for name, content, told in (
        ("latin.toml", b"[task]\nname = '\xe4'\n", "not UTF-8 text (byte 16)"),
        ("huge.toml", b"#" * 1_000_001, "larger than 1,000,000 bytes"),
        ("binary.toml", bytes(range(128, 256)), "not UTF-8 text (byte 1)"),
        ("nul.toml", b"\0" * 10, "not valid TOML"),
        ("deep.toml", b"x = " + b"[" * 90_000, "cannot be read|not valid TOML"),
        ("digits.toml", b"x = " + b"9" * 9_000, "cannot be read|can be read|unknown key"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(PlanRefused, match=f"(?s){re.escape(name)}.*({told if '|' in told else re.escape(told)})"):
            load_plan(tmp_path / name)


def test_places_without_a_plan_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match=r"No such file.*quietsum new"):
        load_plan(str(tmp_path / "none.toml"))
    with pytest.raises(PlanRefused, match="is a directory; name the file in it"):
        load_plan(tmp_path)
    with pytest.raises(PlanRefused, match="null"):
        load_plan("run\0.toml")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with a name")
def test_a_pipe_that_nobody_writes_to_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(PlanRefused, match="not a regular file"):
        load_plan(tmp_path / "pipe.toml")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_one_may_not_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(GOOD)
    (tmp_path / "run.toml").chmod(0)
    with pytest.raises(PlanRefused, match="Permission denied"):
        load_plan(tmp_path / "run.toml")


def test_only_paths_and_texts_are_plans() -> None:
    with pytest.raises(QuietsumError, match="neither a path nor a text"):
        load_plan(3)  # type: ignore[arg-type]


def test_a_written_plan_spells_out_every_default() -> None:
    """All keys stand in the file, except those that are not stated and have no default."""
    written = tomllib.loads(Plan(privacy=PrivacyPlan(preset="performance")).to_toml())
    found = {f"{path}" for path in _paths(written, "")}
    silent = {
        "federation.sampling.rate", "federation.sampling.size", "federation.deadline", "training.sample_rate",
        "training.local_steps", "aggregation.weights", "aggregation.threshold", "aggregation.drop_outs",
        "aggregation.max_update", "aggregation.attackers",
        *LATER,
        *(key for key in keys() if key.startswith(("privacy.record", "privacy.client", "privacy.person"))),
        *(key for key in keys() if key.startswith(("schedule.", "attack"))),
    }  # fmt: skip
    assert set(keys()) - found == silent


LATER = {
    "aggregation.adversary", "aggregation.colluders", "aggregation.bits", "aggregation.before",
    "aggregation.groups",
    "privacy.distributed_noise", "training.canaries", "task.base",
}  # fmt: skip
"""Keys that came after plans were first written: at their default they are left out, so digests stay."""


def test_keys_that_came_later_change_no_digest_until_they_are_used() -> None:
    """This digest was taken before they existed."""
    plan = Plan(privacy=PrivacyPlan(record=RecordPlan(epsilon=1.0, delta=1e-5)))
    assert plan.digest == "54fa42536070fcbe5099d86c17264b1e898fd439dad31af90128477e6b74411a"
    for more in ({"adversary": "semi-malicious"}, {"colluders": 2}, {"bits": 24}, {"threshold": 4}, {"drop_outs": 0.0}):
        asked = dataclasses.replace(plan, aggregation=AggregationPlan(secure=True, **more))
        assert asked.digest != dataclasses.replace(plan, aggregation=AggregationPlan(secure=True)).digest
        assert Plan.from_dict(asked.to_dict()) == asked
    noisy = RecordPlan(epsilon=1.0, delta=1e-5, noise_at="distributed")
    other = dataclasses.replace(plan, privacy=PrivacyPlan(record=noisy, distributed_noise="discrete-gaussian"))
    assert (
        other.to_dict()["privacy"]["record"]["noise_at"] == "distributed" and Plan.from_dict(other.to_dict()) == other
    )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("\n[privacy]\nsecure_agg_enabled = true", "aggregation.secure"),
        ("\n[aggregation]\nsecure_aggregation = true", "aggregation.secure"),
        ("\n[privacy]\nsecagg = true", "aggregation.secure"),
        ("\n[aggregation]\nreconstruction_threshold = 3", "aggregation.threshold"),
        ("\n[aggregation]\ndropout_rate = 0.1", "aggregation.drop_outs"),
        ("\n[privacy]\ndp_enabled = true", "privacy.style"),
        ("\n[privacy]\ntarget_epsilon = 1.0", "privacy.record.epsilon"),
        ("\n[privacy]\nmax_grad_norm_user = 1.0", "privacy.client.max_norm"),
        ("\n[training]\nuse_opacus = true", "training.engine"),
        ("\n[federation]\nnum_rounds = 3", "federation.rounds"),
    ],
)
def test_words_of_other_systems_are_answered_with_the_key_to_use(text: str, key: str) -> None:
    assert refusal(text).endswith(f"unknown key; did you mean {key}?")


def _paths(value: dict[str, Any], prefix: str) -> set[str]:
    found = set()
    for key, item in value.items():
        found.add(f"{prefix}{key}")
        if isinstance(item, dict):
            found |= _paths(item, f"{prefix}{key}.")
    return found


# ------------------------------------------------------------------------------------ tables, schema, docs


def test_every_key_has_a_meaning() -> None:
    assert all(len(meaning) > 10 for meaning in keys().values())


def test_the_published_schema_is_the_one_of_this_version() -> None:
    """Written by: python -m quietsum.plan schema > docs/reference/run.schema.json"""
    written = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    assert (DOCS / "run.schema.json").read_text(encoding="utf-8") == written


def test_the_schema_knows_every_key_bounds_and_no_null() -> None:
    schema = json_schema()
    text = json.dumps(schema)
    assert '"null"' not in text and ": null" not in text
    assert schema["$defs"]["FederationTable"]["properties"]["rounds"]["minimum"] == 1
    assert schema["$defs"]["RecordTable"]["properties"]["delta"]["exclusiveMaximum"] == 1
    properties = [name for part in (schema, *schema["$defs"].values()) for name in part["properties"]]
    assert {key.rpartition(".")[2] for key in keys()} == set(properties)
    assert all(part["additionalProperties"] is False for part in (schema, *schema["$defs"].values()))


def test_the_reference_names_every_key_with_its_meaning() -> None:
    page = (DOCS / "run-toml.md").read_text(encoding="utf-8")
    for key, meaning in keys().items():
        assert f"`{key}`" in page, f"document {key} in docs/reference/run-toml.md"
        assert meaning.replace("|", "\\|") in page, f"the meaning of {key} differs from the page's"
    documented = re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE)
    assert sorted(documented) == sorted(keys())


def test_the_reference_states_the_defaults_of_this_version() -> None:
    assert (DOCS / "run-toml.md").read_text(encoding="utf-8").endswith(page())


def test_importing_the_plan_loads_no_pydantic() -> None:
    heavy = {"pydantic", "tomli_w", "scipy.stats", "scipy.optimize", "cryptography"}
    code = f"import sys, quietsum.plan; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_values_and_files_meet_at_the_same_bound() -> None:
    most = declarations(FederationPlan)["rounds"].key.bound.most
    assert most is not None and FederationPlan(rounds=int(most)).rounds == most
    assert load_plan(f"federation.rounds = {most:.0f}\n").federation.rounds == most
    with pytest.raises(InvalidParameter, match="rounds = 1000001 must be at most"):
        FederationPlan(rounds=int(most) + 1)
    assert "federation.rounds = 1000001 must be at most" in refusal(f"federation.rounds = {most + 1:.0f}\n")

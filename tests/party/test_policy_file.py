"""``policy.toml``: a mistake is told by its key and what to write instead, and nothing half-read becomes a policy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from quietsum.errors import PlanRefused, QuietsumError
from quietsum.party.policy import Policy
from quietsum.party.policy_file import first_policy, load_policy, parse_policy, policy_keys
from quietsum.privacy.units import Neighbours, PrivacyUnit

TEXT = first_policy(
    path="policy.toml", name="north", address="server.example.org:9092", dataset="visits", size=1000, task="heart"
)


def load(folder: Path, text: str | bytes) -> Policy:
    path = folder / "policy.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_policy(path)


def refused(folder: Path, text: str | bytes) -> str:
    with pytest.raises(PlanRefused) as error:
        load(folder, text)
    return str(error.value)


def changed(line: str, by: str) -> str:
    assert TEXT.count(line) == 1, line
    return TEXT.replace(line, by)


def test_the_example_loads(tmp_path: Path) -> None:
    found = load(tmp_path, TEXT)
    assert found.name == "north" and found.dataset.size == 1000 and found.folder == tmp_path
    assert list(found.budgets) == [PrivacyUnit.RECORD] and found.budgets[PrivacyUnit.RECORD].of_a_run == 3.0
    assert found.rules.aggregation == ("mean",) and not found.rules.trust_server_sampling
    assert found.path(found.site.ledger) == tmp_path / "ledger.db"
    assert found.tasks[0].name == "heart" and dict(found.tasks[0].options) == {}


def test_every_key_is_explained() -> None:
    keys = policy_keys()
    assert all(meaning.strip() for meaning in keys.values())
    assert {"site.name", "coordinator.ledger", "rules.trust_server_sampling", "client.run", "tasks.here"} <= set(keys)


MISTAKES = [
    # the line, what stands there instead, what is said
    ("epsilon = 8.0", "epsilom = 8.0", ["record.epsilom: unknown key; did you mean record.epsilon?", "is missing"]),
    ("smallest_noise = 0.5", "smallest-noise = 0.5", ["did you mean record.smallest_noise?"]),
    ('name = "heart"', 'nam = "heart"', ["tasks[0].nam: unknown key; did you mean tasks.name?", "is missing"]),
    ("[record]", "[records]", ["records: unknown key; did you mean record?"]),
    ("trust_server_sampling = false", "trust_server = false", ["rules.trust_server: unknown key"]),
    ("trust_server_sampling = false", 'trust_server_sampling = "no"', ["= 'no' is not true or false"]),
    ("trust_server_sampling = false", "trust_server_sampling = 0", ["= 0 is not true or false"]),
    ("size = 1000", 'size = "1000"', ["dataset.size = '1000' is not a whole number"]),
    ("size = 1000", "size = 1000.5", ["dataset.size = 1000.5 is not a whole number"]),
    ("size = 1000", "size = true", ["dataset.size = true is not a whole number"]),
    ("size = 1000", "size = 0", ["dataset.size = 0 must be at least 1"]),
    ("epsilon = 8.0", 'epsilon = "8"', ["record.epsilon = '8' is not a number"]),
    ("epsilon = 8.0", "epsilon = nan", ["record.epsilon"]),
    ("epsilon = 8.0", "epsilon = inf", ["record.epsilon = inf is not a finite number"]),
    ("epsilon = 8.0", "epsilon = -8.0", ["record.epsilon = -8.0 must be greater than 0"]),
    ("epsilon = 8.0", "epsilon = true", ["record.epsilon = true is not a number"]),
    ("delta = 1e-5", "delta = 1.0", ["record.delta = 1.0 must be below 1"]),
    ("delta = 1e-5", "delta = 0.0", ["record.delta = 0.0 must be greater than 0"]),
    ("run = 3.0 ", "run = 0.0 ", ["record.run = 0.0 must be greater than 0"]),
    ("run = 3.0 ", "run = 300.0 ", ["record.run = 300.0 is more than epsilon = 8"]),
    ("delta = 1e-5", "delta = 0.5", ["record.delta = 0.5 is not below 1/n for n = 1,000 records", "1/(10 n)"]),
    ("delta = 1e-5", "delta = 1e-5\nneighbours = 'replace'", ["record.neighbours[0]", "did you mean 'replace-one'?"]),
    ("delta = 1e-5", "delta = 1e-5\nneighbours = []", ["record.neighbours = '[]' allows no plan"]),
    ("delta = 1e-5", "delta = 1e-5\nneighbours = 7", ["record.neighbours = 7 is not a list"]),
    ("delta = 1e-5", "delta = 1e-5\nneighbors = 'zero-out'", ["did you mean record.neighbours?"]),
    ("smallest_noise = 0.5", "smallest_noise = nan", ["record.smallest_noise"]),
    ("smallest_noise = 0.5", "smallest_noise = inf", ["record.smallest_noise"]),
    ("largest_clip = 1.0", "largest_clip = inf", ["record.largest_clip"]),
    ('name = "north"', 'name = ""', ["site.name is empty"]),
    ('name = "north"', 'name = "no\\nrth"', ["site.", "not a usable name"]),
    ('name = "north"', "name = 7", ["site.name = 7 is not a text in quotes"]),
    ('name = "visits"', 'name = "  "', ["dataset."]),
    ('address = "server.example.org:9092"', 'address = "server.example.org"', ["address", "host with a port"]),
    ('node_key = "node.key"', 'node_key = "node.key"\nledger = "first"', ["coordinator.ledger", "no ledger's name"]),
    ('aggregation = ["mean"]', 'aggregation = "mean"', ["rules.aggregation = 'mean' is not a list"]),
    ('aggregation = ["mean"]', 'aggregation = ["means"]', ["rules.aggregation[0]", "did you mean 'mean'?"]),
    ('[[tasks]]\nname = "heart"', "tasks = []", ["tasks"]),
    ('[[tasks]]\nname = "heart"', '[tasks]\nname = "heart"', ["tasks"]),
    ("[rules]", "[rules]\nlargest_message = 10", ["rules.largest_message = 10 must be at least 1024"]),
]  # fmt: skip


@pytest.mark.parametrize(("line", "by", "told"), MISTAKES, ids=[by.replace("\n", " ") for _, by, _ in MISTAKES])
def test_a_mistake_is_told_by_its_key(tmp_path: Path, line: str, by: str, told: list[str]) -> None:
    text = changed(line, by)
    if by == "tasks = []":  # keys of the top come before all tables
        text = by + "\n" + TEXT.replace(line, "")
    found = refused(tmp_path, text)
    assert found.startswith(str(tmp_path / "policy.toml"))
    assert all(words in found for words in told), found


def test_a_policy_that_allows_neither_tasks_nor_questions_is_refused(tmp_path: Path) -> None:
    start = TEXT.index("[[tasks]]")
    told = refused(tmp_path, TEXT[:start] + TEXT[TEXT.index("\n[", start) :])
    assert "allows nothing" in told and "[questions]" in told


QUESTIONS = """
[questions]
table = "visits.csv"
epsilon = 0.5
day = 1.0
kinds = ["count", "survival"]
[[questions.columns]]
name = "age"
kind = "number"
bounds = [0, 110]
[[questions.columns]]
name = "patient_id"
kind = "identifier"
"""


def test_what_may_be_asked_is_read_with_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(TEXT + QUESTIONS)
    asked = load_policy(path).questions
    assert asked is not None and (asked.epsilon, asked.day, asked.kinds) == (0.5, 1.0, ("count", "survival"))
    assert [column.name for column in asked.columns] == ["age", "patient_id"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("day = 1.0", "day = 0.2", "is more than day"),
        ("day = 1.0", "day = 9.0", "record.epsilon"),
        ("day = 1.0", "days = 1.0", "did you mean questions.day"),
        ("epsilon = 0.5", "epsilon = -1.0", "greater than 0"),
        ('"survival"', '"survivals"', "is unknown"),
        ("bounds = [0, 110]", "", "bounds = None are missing"),
        ('kind = "identifier"', 'kind = "category"\ncategories = ["a", "b"]', "tells people apart"),
    ],
)
def test_questions_that_make_no_sense_are_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert told in refused(tmp_path, TEXT + QUESTIONS.replace(old, new))


@pytest.mark.parametrize("table", ["[site]", "[coordinator]", "[dataset]"])
def test_a_missing_table_is_named(tmp_path: Path, table: str) -> None:
    start = TEXT.index(table)
    end = TEXT.index("\n[", start)
    assert f"{table.strip('[]')} is missing" in refused(tmp_path, TEXT[:start] + TEXT[end:])


def test_a_policy_without_a_budget_is_refused(tmp_path: Path) -> None:
    assert "is protected and has no budget" in refused(tmp_path, TEXT[: TEXT.index("[record]")])
    public = TEXT[: TEXT.index("[record]")].replace("[dataset]", '[dataset]\npublic = "made up"')
    assert load(tmp_path, public).dataset.public == "made up"


def test_rules_may_be_left_out(tmp_path: Path) -> None:
    start, end = TEXT.index("[rules]"), TEXT.index("[record]")
    assert load(tmp_path, TEXT[:start] + TEXT[end:]).rules.aggregation == ("mean",)


def test_neighbours_are_a_word_or_a_list(tmp_path: Path) -> None:
    def found(line: str) -> tuple[Neighbours, ...]:
        return load(tmp_path, TEXT + line).budgets[PrivacyUnit.RECORD].neighbours

    assert found("") == tuple(Neighbours)
    assert found('neighbours = "replace-one"') == (Neighbours.REPLACE_ONE,)
    assert found('neighbours = ["zero-out", "replace-one"]') == (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE)


@pytest.mark.parametrize("size", [1, 9_999, 10_000, 10_001, 123_456, 10**9])
def test_a_first_policy_has_a_delta_that_its_size_allows(size: int) -> None:
    text = first_policy(path="p", name="north", address="server:1", dataset="visits", size=size, task="heart")
    delta = parse_policy(text, "p").budgets[PrivacyUnit.RECORD].delta
    assert delta <= 1e-5 and delta * 10 * size <= 1 + 1e-9


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    text = changed("size = 1000", "size = 0").replace("epsilon = 8.0", "epsilon = 0.0")
    assert "2 problems" in refused(tmp_path, text)


# --------------------------------------------------------------------------------------------------- broken files


def test_an_empty_file_says_how_to_get_one(tmp_path: Path) -> None:
    for text in ("", "\n\n", "# only words\n", "\ufeff"):
        assert "is empty; write a fresh one with: quietsum party new policy.toml" in refused(tmp_path, text)


@given(end=st.integers(0, len(TEXT) - 1))
def test_a_truncated_file_is_refused_or_is_a_policy_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, end: int
) -> None:
    """TOML has no end mark. What is cut may be a policy, but with the budget that was written."""
    folder = tmp_path_factory.mktemp("cut")
    try:
        found = load(folder, TEXT[:end])
    except QuietsumError as error:
        assert isinstance(error, PlanRefused)
        return
    record = found.budgets[PrivacyUnit.RECORD]
    assert end > TEXT.index("delta = 1") and record.epsilon == 8.0 and found.dataset.size == 1000


@given(content=st.binary(min_size=1, max_size=200))
def test_a_binary_file_is_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    refused(tmp_path_factory.mktemp("binary"), content)


@given(place=st.integers(0, len(TEXT) - 1), bits=st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_is_a_policy(
    tmp_path_factory: pytest.TempPathFactory, place: int, bits: int
) -> None:
    """Whoever writes the file decides; but nothing ends in any other error."""
    content = TEXT.encode()
    try:
        load(tmp_path_factory.mktemp("flip"), content[:place] + bytes([content[place] ^ bits]) + content[place + 1 :])
    except PlanRefused as error:
        assert str(error)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match=r"is a directory; name the file in it, .*policy\.toml"):
        load_policy(tmp_path)
    with pytest.raises(PlanRefused, match="write a fresh one with: quietsum party new"):
        load_policy(tmp_path / "missing.toml")
    assert "not UTF-8" in refused(tmp_path, TEXT.encode("utf-16"))
    assert "not valid TOML" in refused(tmp_path, TEXT + "\nrun = 3 3\n")
    assert "larger than" in refused(tmp_path, TEXT + "#" * 1_000_001)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlanRefused, match="not a regular file"):
        load_policy(tmp_path / "pipe")


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    for text in ("x = " + "[" * 5000 + "]" * 5000, "a = " + "{a=" * 500 + "1" + "}" * 500):
        refused(tmp_path, text)

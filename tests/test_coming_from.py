"""The page for people of older systems: every row of their documents has an answer, and what it points to is there."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from quietsum import compat
from quietsum.cli.app import app
from quietsum.plan import Plan, keys_of, template
from quietsum.runs import Workspace
from scenes import quietsum

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
ROWS_OF = {"0": 60, "1": 29, "2": 89, "3": 68, "4": 47}
"""How many rows each document has, in the order of the page."""
STATES = ("same", "other", "refused", "not built")
NAMES_THERE = """
record_round noise_multiplier max_grad_norm sample_rate steps noise_multiplier_user max_grad_norm_user sample_rate_user
steps_user target_delta get_cumulative_sample_epsilon get_cumulative_user_epsilon get_epsilon make_private FitRes
compute_noise_multiplier RenyiAccountant orders rdp_curve rdp_at compose_gaussian compose_rdp epsilon total_rdp_mass
gaussian_rdp DPGuarantee to_dict PrivacyAccountant privacy_high privacy_medium performance secure_agg_enabled dp_enabled
delta target_epsilon sampling_probability get_budget_spent step is_budget_exhausted achieved_epsilon mechanism
accounting SignGuard Krum MLflow PrivacyPreservingTrainer OpacusDPTrainer ManualDPTrainer PrivacyEngine privacy_module
models STGCN_PRISM num_joints create_privacy_config epochs batch_size learning_rate use_opacus train_loader val_loader
num_epochs noise_type privacy_accounting analyze_privacy_utility_tradeoff final_accuracy final_epsilon
privacy_efficiency get_privacy_spent GaussianMechanism LaplaceMechanism is_budget_exceeded RAPPOR zCDP
"""
"""What one can type or import in the five systems."""


def rows_of(page: str) -> dict[str, list[str]]:
    """The cells behind each row's number; of a number that comes twice, all of them."""
    found: dict[str, list[str]] = {}
    for line in page.splitlines():
        if match := re.match(r"\| (\d\.\d+) \|(.*)\|$", line):
            found.setdefault(match[1], []).extend(cell.strip() for cell in match[2].split("|"))
    return found


def problems_of(page: str) -> list[str]:
    """The rows without an answer."""
    rows = rows_of(page)
    wanted = {f"{document}.{number}" for document, count in ROWS_OF.items() for number in range(1, count + 1)}
    found = [f"{number} is missing" for number in wanted - set(rows)] + [
        f"{one} is no row" for one in set(rows) - wanted
    ]
    for number, cells in rows.items():
        if len(cells) != 4:
            found.append(f"{number} has {len(cells)} cells")
            continue
        there, state, now, differs = cells
        if state not in STATES or not there or not re.search(r"`[^`]+`", now):
            found.append(f"{number} points to nothing")
        if state != "same" and not differs:
            found.append(f"{number} gives no reason")
    return found + [
        f"{name} has no answer" for name in NAMES_THERE.split() if not re.search(rf"(?<!\w){name}(?!\w)", page)
    ]


def pointers_of(page: str) -> list[str]:
    """What stands in code on ``page``, links to pages and modules apart."""
    return re.findall(r"`([^`]+)`", re.sub(r"\{\w+\}`[^`]+`", "", page))


CODE = pointers_of(PAGE)
NAMES = sorted({word for word in CODE if re.fullmatch(r"quietsum(\.\w+)+", word)})
COMMANDS = sorted({word for word in CODE if re.match(r"quietsum [a-z]", word) and "WORD" not in word})
KEYS = sorted(
    {word for word in CODE if re.fullmatch(r"(privacy|aggregation|federation|training|schedule)\.[a-z_.]+", word)}
)


def test_every_row_and_every_name_of_the_documents_has_an_answer() -> None:
    assert problems_of(PAGE) == []
    assert sum(ROWS_OF.values()) == len(rows_of(PAGE)) == 293


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| 0.17 | RDP", "| 0.170 | RDP"), ("| 3.9 | automatic", "| automatic"), ("| refused |", "| perhaps |"),
        ("`quietsum.errors.MixedUnits`", ""), ("is_budget_exceeded", "exceeded"), ("| as row 2.82 |", "| |"),
    ],
)  # fmt: skip
def test_the_control_a_page_with_a_gap_is_noticed(old: str, new: str) -> None:
    assert old in PAGE and problems_of(PAGE.replace(old, new))


def test_the_counts_are_those_of_the_rows() -> None:
    counted = [[0] * len(STATES) for _ in ROWS_OF]
    for number, cells in rows_of(PAGE).items():
        counted[int(number[0])][STATES.index(cells[1])] += 1
    counted.append([sum(column) for column in zip(*counted, strict=True)])
    table = PAGE.split("|---|---|---|---|---|---|\n", 1)[1].split("\n\n", 1)[0].splitlines()
    assert [[int(cell) for cell in line.split("|")[2:-1]] for line in table] == [[sum(one), *one] for one in counted]


def has_name(name: str) -> bool:
    module, _, last = name.rpartition(".")
    return hasattr(importlib.import_module(module), last)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_on_the_page_is_there(name: str) -> None:
    assert has_name(name), name


def ask_for_help(words: str) -> Result:
    """What the command answers to ``--help``; an explanation is asked for."""
    command = [word for word in words.split()[1:] if word.islower() or words.startswith("quietsum explain")]
    options = [word for word in command if word.startswith("-")]
    if command[0] == "explain":
        return CliRunner().invoke(app, command)
    asked = CliRunner().invoke(app, [*(word for word in command if word not in options and word != "pose"), "--help"])
    assert all(option in asked.stdout for option in options), options
    return asked


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_on_the_page_is_there(words: str) -> None:
    assert ask_for_help(words).exit_code == 0


@pytest.mark.parametrize("key", KEYS)
def test_a_key_on_the_page_is_one_of_a_plan(key: str) -> None:
    assert any(known == key or known.startswith(f"{key}.") for known in keys_of(Plan))


def pages_of(page: str) -> list[Path]:
    """The pages that ``page`` links to."""
    linked = re.findall(r"\{doc\}`([^`]+)`", page) + re.findall(r"\]\(([\w/-]+)\.md\)", page)
    return [ROOT / "docs" / f"{target}.md" for target in linked]


def test_a_page_that_is_linked_is_there() -> None:
    pages = pages_of(PAGE)
    assert len(pages) > 50 and all(page.is_file() for page in pages), [page for page in pages if not page.is_file()]


def test_the_control_what_is_not_there_is_noticed() -> None:
    assert not has_name("quietsum.compat.SplitTrainer")
    assert ask_for_help("quietsum sell").exit_code != 0 and ask_for_help("quietsum explain zzz").exit_code != 0
    assert not all(page.is_file() for page in pages_of("{doc}`how-to/nothing`"))


def test_every_name_of_the_older_systems_stands_on_the_page() -> None:
    elsewhere = {"ImportedHistory"}  # what one of them returns
    assert [name for name in compat.__all__ if name not in PAGE and name not in elsewhere] == []


def test_the_fields_of_the_report_are_where_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(template(task="heart", style="sample").replace("rounds = 20", "rounds = 1"))
    quietsum("run", "run.toml", "--name", "one", "--workspace", "w")
    report = json.loads((Workspace(path=Path("w")).find("one").path / "report.json").read_text())
    fields = re.findall(r"`(\w+)`", rows_of(PAGE)["2.81"][0])
    assert len(fields) == 9
    assert [name for name in fields if report.get(name) is None] == []


def test_the_control_something_was_seen() -> None:
    assert len(NAMES) > 45 and len(COMMANDS) > 25 and len(KEYS) > 25

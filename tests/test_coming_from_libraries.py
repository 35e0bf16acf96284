"""The page for people of other libraries: what it points to is here, and their names are theirs."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from quietsum.plan import Plan, keys_of
from scenes import quietsum

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from-libraries.md").read_text(encoding="utf-8")
SECTIONS = ("Opacus", "TensorFlow Privacy", "Flower", "FL4Health", "NVIDIA FLARE")


def rows_of(section: str) -> list[list[str]]:
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith(("| there", "|---"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_row_has_three_cells_and_names_something(section: str) -> None:
    rows = rows_of(section)
    assert len(rows) >= 4
    for row in rows:
        assert len(row) == 3 and row[0] and row[1], row


def test_what_is_here_is_here() -> None:
    here = [word for section in SECTIONS for row in rows_of(section) for word in quoted(row[1])]
    names = [word for word in here if re.fullmatch(r"quietsum(\.\w+)+", word)]
    assert len(names) > 12
    for name in names:
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last), name
    keys = [word for word in here if re.fullmatch(r"(privacy|aggregation|federation)\.[a-z_.]+", word)]
    assert len(keys) > 8
    for key in keys:
        assert any(known == key or known.startswith(f"{key}.") for known in keys_of(Plan)), key
    commands = {" ".join(word.split()[1:3]) for word in here if word.startswith("quietsum ")}
    for words in commands:
        group = words.split()[0]
        wanted = words.split() if group in ("keys", "party", "ledger") else [group]
        assert quietsum(*wanted, "--help").stdout


def test_the_names_of_opacus_are_in_opacus() -> None:
    pytest.importorskip("opacus")
    from opacus import GradSampleModule, PrivacyEngine
    from opacus.accountants.utils import get_noise_multiplier
    from opacus.grad_sample import register_grad_sampler
    from opacus.utils.batch_memory_manager import BatchMemoryManager
    from opacus.validators import ModuleValidator

    there = " ".join(row[0] for row in rows_of("Opacus"))
    for thing in (GradSampleModule, PrivacyEngine, get_noise_multiplier, register_grad_sampler, BatchMemoryManager):
        assert thing.__name__ in there
    assert "ModuleValidator.fix" in there and hasattr(ModuleValidator, "fix")
    for method in ("make_private", "make_private_with_epsilon", "get_epsilon"):
        assert f"{method}(" in there
        stated = re.findall(rf"{method}\(([^)]*)\)", there)[0]
        known = inspect.signature(getattr(PrivacyEngine, method)).parameters
        assert {word.strip(" =…") for word in stated.split(",")} - {""} <= set(known), method


def test_the_names_of_flower_are_in_flower() -> None:
    pytest.importorskip("flwr")
    mods, strategies = importlib.import_module("flwr.clientapp.mod"), importlib.import_module("flwr.serverapp.strategy")
    there = [word for row in rows_of("Flower") for word in quoted(row[0])]
    elsewhere = {"ServerApp", "Strategy", "ClientApp", "flower-superlink", "flower-supernode"}
    assert len(there) > 12
    for word in set(there) - elsewhere:
        assert hasattr(strategies, word) or hasattr(mods, word), word


def test_the_control_a_name_that_is_none_is_noticed() -> None:
    strategies = importlib.import_module("quietsum")
    assert not hasattr(strategies, "make_publik")
    assert not any(known.startswith("privacy.klient") for known in keys_of(Plan))

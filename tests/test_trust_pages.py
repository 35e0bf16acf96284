"""The pages on central, local and shuffled privacy carry the numbers that the library computes."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from types import ModuleType

import pytest

from quietsum import LaplaceMechanism
from quietsum.mechanisms.local import make_protocol

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "explanation"
NEW = ("central-local-shuffled", "from-local-to-central", "kinds-of-privacy", "shuffle-model")


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("trust", ROOT / "benchmarks" / "trust.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_both_pages_are_what_the_script_prints() -> None:
    trust = script()
    for page, rows in (("central-local-shuffled", trust.survey_rows()), ("from-local-to-central", trust.sum_rows())):
        assert "\n".join(rows) in (PAGES / f"{page}.md").read_text(encoding="utf-8")


def test_the_errors_of_the_table_are_those_of_the_mechanisms_themselves() -> None:
    n, epsilon = 10_000, 0.1
    row = next(line for line in script().survey_rows() if line.startswith("| 10,000 | 0.1 "))
    curator, local = (float(cell) for cell in (row.split("|")[3], row.split("|")[6]))
    noise = [LaplaceMechanism(epsilon=epsilon, sensitivity=1).release(5_000) - 5_000 for _ in range(4_000)]
    seen = math.sqrt(sum(value * value for value in noise) / len(noise)) / n
    assert seen == pytest.approx(curator, rel=0.1)
    made = make_protocol("k-rr", ["yes", "no"], epsilon)
    answers = ["yes"] * 3_000 + ["no"] * 7_000
    errors = [made.estimate(made.privatize(answers)).values[0] - 0.3 for _ in range(300)]
    assert math.sqrt(sum(error * error for error in errors) / 300) == pytest.approx(local, rel=0.2)


@pytest.mark.parametrize("page", NEW)
def test_the_index_leads_to_the_page_and_its_links_exist(page: str) -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert f"explanation/{page}.md" in index and f"\nexplanation/{page}\n" in index
    for target in re.findall(r"\]\(([\w./-]+\.md)\)", (PAGES / f"{page}.md").read_text(encoding="utf-8")):
        assert (PAGES / target).exists(), target


def test_the_names_that_the_pages_offer_exist() -> None:
    from quietsum import mechanisms, privacy

    text = "".join((PAGES / f"{page}.md").read_text(encoding="utf-8") for page in NEW)
    for name in set(re.findall(r"`([A-Z]\w+|[a-z]+_[a-z_]+)`", text)) - {"noise_at"}:
        assert hasattr(privacy, name) or hasattr(mechanisms, name), name

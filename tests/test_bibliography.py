"""Whom docstrings and pages cite stands in the bibliography, or among what is cited only where it is used."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "bibliography.md").read_text(encoding="utf-8")
NAME = r"[A-ZÀ-Ž][\wÀ-ž’'-]+"
CITED = re.compile(rf"({NAME}(?:(?:, | and |, and ){NAME})*(?: et al\.)?),? \(?((?:19|20)\d\d)\b(?!-)")
ELSEWHERE = """
Anthony 1993, Arcas 2017, Armijo 1966, Bowl 2018, Bretagnolle 1979, Broder 1997, Brown 1975, Bruna 2013, Caicedo 2019,
Canonne 2020, Cleanse 2019, Comaniciu 2002, Davidson 2001, Davis 2006, Dhaene 2002, Dice 1945, Dietzfelbinger 1996,
Duchi 2008, FedProx 2020, Gaussian 2017, Gaussian 2019, Gaussian 2020, Greenwood 1926, Hampel 1974, Hand 2001,
Hastie 2009, Higham 2002, Iglewicz 1993, Kaas 2000, Kairouz 2016, Kermany 2018, LeCun 1998, Li 2010, Li 2023,
Majmudar 2022, Mann 1947, Mantel 1966, Mhamdi 2017, Mhamdi 2018, Milletari 2016, Müller 2001, Oliphant 2006,
Pozzolo 2015, Ronneberger 2015, Rosenblatt 1952, Rousseeuw 1993, Siegmund 1985, Skellam 2021, Smith 1985, Steele 2014,
Tran 2026, W3C 2003, Xiao 2017, Yang 2023, Zhu 2022
"""
"""Textbook statistics, arithmetic and data sets; and words of a sentence that stand before an author's name."""
MONTHS = ("January", "March", "September", "December", "Xiv")


def cited_in(paths: Iterable[Path]) -> dict[tuple[str, str], str]:
    """First author and year of each citation, with a file where it stands."""
    found = {}
    for path in paths:
        for names, year in CITED.findall(" ".join(path.read_text(encoding="utf-8").split())):
            found[re.split(r", | and | et ", names)[0], year] = path.name
    return {key: where for key, where in found.items() if key[0] not in MONTHS}


def listed() -> set[tuple[str, str]]:
    entries = re.findall(rf"^\* ((?:El )?{NAME})[^\n]*? (\d{{4}})\. \*[^\n]+$", PAGE, re.MULTILINE)
    return {(name.removeprefix("El "), year) for name, year in entries}


def sources() -> list[Path]:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name not in ("commands", "rooms")]
    return [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "src").rglob("*.toml"),
        *(path for path in pages if path.name != "benchmarks.md"),
    ]


def test_every_citation_is_listed_or_is_known_to_be_cited_in_place_only() -> None:
    elsewhere = {tuple(one.strip().rsplit(" ", 1)) for one in ELSEWHERE.split(",")}
    found = cited_in(sources())
    assert len(found) > 120
    missing = {key: where for key, where in found.items() if key not in listed() and key not in elsewhere}
    assert missing == {}, "add the paper to docs/bibliography.md"


def test_every_entry_has_authors_a_year_a_title_and_a_venue_and_is_cited() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("* ")]
    assert len(lines) > 90 and len(listed()) > 80
    assert [line for line in lines if not re.fullmatch(r"\* [^.*]+(?: al\.)? \d{4}\. \*[^*]+\* [^.]+\.", line)] == []
    cited = set(cited_in(path for path in sources() if path.name != "bibliography.md"))
    first = {name for name, _ in cited}
    assert [key for key in sorted(listed()) if key not in cited and key[0] not in first] == []


def test_the_control_a_paper_that_is_not_listed_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""Made up (Nomen, Nescio and Other 2025), and Nomen et al. (2024)."""')
    assert set(cited_in([tmp_path / "a.py"])) == {("Nomen", "2025"), ("Nomen", "2024")}
    assert ("Nomen", "2025") not in listed()

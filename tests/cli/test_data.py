"""``quietsum data``: the site's operator hears where his table is wrong; values are shown on his terminal alone."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from scenes import quietsum

SECRET = "Ms Smith"
ROWS = [f"{20 + i},{100 + i}.5,{'yes' if i % 3 == 0 else 'no'}" for i in range(30)]
SCHEMA = """
columns = [
  { name = "age", type = "integer", min = 0, max = 120 }, { name = "pressure" }, { name = "back", type = "text" },
]
[label]
column = "back"
classes = ["no", "yes"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.csv").write_text("\n".join(["age,pressure,back", *ROWS, ""]), encoding="utf-8")
    bad = ["age,pressure,back", *ROWS, f"{SECRET},120,no", "700,1,no", ""]
    (tmp_path / "bad.csv").write_text("\n".join(bad), encoding="utf-8")
    (tmp_path / "data.toml").write_text(SCHEMA, encoding="utf-8")
    return tmp_path


def said(result: Result) -> str:
    return " ".join((result.stdout + result.stderr).split())


def test_a_table_that_fits_ends_with_0_and_one_that_does_not_with_2(folder: Path) -> None:
    assert "good.csv fits data.toml" in said(quietsum("data", "check", "good.csv"))
    told = said(quietsum("data", "check", "bad.csv", "--schema", "data.toml", code=2))
    assert "bad.csv does not fit data.toml: 2 problems" in told
    assert "age: is no whole number (1 row: line 32)" in told and "age: lies outside 0 … 120 (1 row: line 33)" in told
    assert SECRET not in told and "700" not in told and "The values themselves are shown on a terminal only." in told


def test_json_has_lines_and_counts_and_no_value(folder: Path) -> None:
    result = quietsum("data", "check", "bad.csv", "--json", code=2)
    values = json.loads(result.stdout)
    errors = [one for one in values["problems"] if one["severity"] == "error"]
    told = [(one["check"], one["column"], one["lines"]) for one in errors]
    assert told == [("type", "age", [32]), ("range", "age", [33])]
    assert values["ok"] is False and values["counts"]["rows"] == 32 and values["counts"]["classes"]["yes"] == 10
    assert SECRET not in result.stdout and "700" not in result.stdout
    assert json.loads(quietsum("data", "check", "good.csv", "--json").stdout)["ok"] is True


def test_values_are_shown_on_a_terminal(folder: Path) -> None:
    """The control of the two above: the same command, with a terminal at its other end."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "quietsum", "data", "check", "bad.csv"]
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, check=False, timeout=120)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.returncode == 2 and not done.stderr
    assert f'for instance "{SECRET}"' in shown and "for instance 700" in shown


def test_a_wrong_schema_ends_with_2_and_the_nearest_key(folder: Path) -> None:
    (folder / "data.toml").write_text(SCHEMA.replace("max =", "maximum ="), encoding="utf-8")
    assert "did you mean columns.max?" in said(quietsum("data", "check", "good.csv", code=2))
    assert "quietsum data new" in said(quietsum("data", "check", "good.csv", "--schema", "none.toml", code=2))


def test_a_first_schema_is_a_private_draft_that_its_table_fits_and_nothing_is_overwritten(folder: Path) -> None:
    (folder / "data.toml").unlink()
    told = said(quietsum("data", "new", "good.csv", "--label", "back"))
    assert "a draft" in told and "next: quietsum data check good.csv" in told.replace(
        str(Path(sys.executable).parent) + "/", ""
    )
    text = (folder / "data.toml").read_text(encoding="utf-8")
    assert stat.S_IMODE((folder / "data.toml").stat().st_mode) == 0o600
    assert "READ OFF ROWS" in text and "reviewed = false" in text and 'classes = ["no", "yes"]' in text
    assert "is still a draft (reviewed = false)" in said(quietsum("data", "check", "good.csv"))
    assert "exists" in said(quietsum("data", "new", "good.csv", code=2))


def test_a_draft_for_a_table_as_spreadsheets_write_it_fits(folder: Path) -> None:
    rows = [f"P{i};{20 + i};{1 + i % 28:02d}.02.2026;{100 + i},5;{'ja' if i % 3 else 'nein'}" for i in range(40)]
    (folder / "de.csv").write_bytes("\r\n".join(["id;Größe;am;druck;wieder", *rows, ""]).encode("utf-8-sig"))
    with_note = b"sep=;\r\n" + (folder / "de.csv").read_bytes().removeprefix(b"\xef\xbb\xbf")
    (folder / "note.csv").write_bytes(b"\xef\xbb\xbf" + with_note)
    quietsum("data", "new", "note.csv", "note.toml")
    quietsum("data", "new", "de.csv", "de.toml")
    assert "note.csv fits de.toml" in said(quietsum("data", "check", "note.csv", "--schema", "de.toml"))
    assert "note.csv fits note.toml" in said(quietsum("data", "check", "note.csv", "--schema", "note.toml"))
    text = (folder / "de.toml").read_text(encoding="utf-8")
    for part in ('delimiter = ";"', 'decimal = ","', 'format = "%d.%m.%Y"', 'keys = ["id"]', "Größe"):
        assert part in text
    assert "de.csv fits de.toml" in said(quietsum("data", "check", "de.csv", "--schema", "de.toml"))


def test_arrays_in_an_npz_are_described_and_checked(folder: Path) -> None:
    np.savez(folder / "t.npz", x=np.random.default_rng(0).normal(size=(50, 3)), label=np.arange(50) % 2)
    quietsum("data", "new", "t.npz", "t.toml")
    assert "50 rows, 4 columns" in said(quietsum("data", "check", "t.npz", "--schema", "t.toml"))


def test_the_rows_of_a_task_are_checked_by_party() -> None:
    told = said(quietsum("data", "check", "--task", "heart", "--party", "va"))
    assert "heart at va fits" in told and "85 rows" in told and "classes: 0 19" in told
    assert "cleveland" in said(quietsum("data", "check", "--task", "heart", code=2))
    assert 'did you mean "cleveland"?' in said(
        quietsum("data", "check", "--task", "heart", "--party", "clevland", code=2)
    )
    assert 'did you mean "heart"?' in said(quietsum("data", "check", "--task", "hart", code=2))


def test_the_rows_of_a_plans_task_are_checked(folder: Path) -> None:
    (folder / "run.toml").write_text('[task]\nname = "heart"\n', encoding="utf-8")
    assert "heart at va fits" in said(quietsum("data", "check", "--plan", "run.toml", "--party", "va"))
    told = said(quietsum("data", "check", "--plan", "run.toml", "--party", "va", "--parties", "3", code=2))
    assert "contradicts --plan" in told


def test_a_torch_task_is_checked_as_a_whole_or_dealt_out() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    assert "digits fits" in said(quietsum("data", "check", "--task", "digits"))
    told = said(quietsum("data", "check", "--task", "digits", "--parties", "10", "--party", "client-0003"))
    assert "digits at client-0003 fits" in told
    assert "say --parties 10" in said(quietsum("data", "check", "--task", "digits", "--party", "bank-3", code=2))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "name a table, a task, a plan or a policy"),
        (("good.csv", "--task", "heart"), "do not go together"),
        (("good.csv", "--party", "va"), "means nothing to a table"),
        (("missing.csv",), "cannot be read"),
        ((".",), "is a folder"),
        (("/dev/zero",), "is no regular file"),
        (("t.parquet",), "Parquet"),
    ],
)
def test_a_wrong_word_is_told_with_what_to_do(folder: Path, words: tuple[str, ...], told: str) -> None:
    (folder / "t.parquet").write_bytes(b"PAR1")
    assert told in said(quietsum("data", "check", *words, code=2))


def test_labels_are_looked_at_when_it_is_asked_for(folder: Path) -> None:
    chance = np.random.default_rng(0)
    sick = np.arange(200) % 2
    np.savez(folder / "t.npz", x=chance.normal(size=(200, 2)) + 3 * sick[:, None], label=sick)
    mixed = np.where(chance.random(200) < 0.3, 1 - sick, sick)
    np.savez(folder / "mixed.npz", x=chance.normal(size=(200, 2)) + 3 * sick[:, None], label=mixed)
    (folder / "t.toml").write_text(
        'columns = [{ name = "x.0" }, { name = "x.1" }, { name = "label", type = "integer" }]\n'
        '[label]\ncolumn = "label"\nclasses = [0, 1]\ndisagreement = 0.05\n'
    )
    fine = said(quietsum("data", "check", "t.npz", "--schema", "t.toml", "--labels"))
    assert "a simple model labels otherwise" in fine and "than the declared" not in fine
    told = said(quietsum("data", "check", "mixed.npz", "--schema", "t.toml", "--labels"))
    assert (
        "labels more of its rows otherwise than the declared 5 %" in told
        and "by chance once in 1,000 checks a class" in told
    )
    values = json.loads(quietsum("data", "check", "mixed.npz", "--schema", "t.toml", "--labels", "--json").stdout)
    assert values["counts"]["labels"]["0"]["otherwise"] >= values["counts"]["labels"]["0"]["threshold"]
    assert (
        "labels" not in json.loads(quietsum("data", "check", "t.npz", "--schema", "t.toml", "--json").stdout)["counts"]
    )

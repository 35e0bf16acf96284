"""The same rows under another name: found by their holder, and told to nobody else."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from quietsum.cli.app import app
from quietsum.errors import PlanRefused
from quietsum.ledger import Ledger
from quietsum.ledger.fingerprints import KEPT, Fingerprints, check_rows, overlap

SAY = "say why"


def table(rows: int, seed: int = 1, columns: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns))


def check(folder: Path, name: str, rows: np.ndarray, reason: str = "") -> list[str]:
    return check_rows(folder / "ledger.db", {name: lambda: (rows,)}, reason=reason, remedy=SAY)


@pytest.mark.parametrize("rows", [60, 300, 20_000])
def test_copies_subsets_appended_and_reordered_rows_are_the_same_rows(tmp_path: Path, rows: int) -> None:
    whole = table(rows)
    check(tmp_path, "visits", whole)
    order = np.random.default_rng(2).permutation(rows)
    for name, found in {
        "a copy": whole, "another order": whole[order], "every second": whole[::2], "half": whole[: rows // 2],
        "more": np.concatenate([whole, table(rows // 2, seed=3)]), "twice": np.concatenate([whole, whole]),
        "in one and a half": np.concatenate([whole[rows // 3 :], table(rows // 4, seed=4)]),
    }.items():  # fmt: skip
        with pytest.raises(PlanRefused, match=f"dataset {name!r} holds .* rows of 'visits'.*{SAY}.*Only you see this"):
            check(tmp_path, name, found)


def test_the_control_other_rows_are_other_rows(tmp_path: Path) -> None:
    whole = table(2000)
    check(tmp_path, "visits", whole)
    tenth = np.concatenate([whole[:200], table(1800, seed=5)])
    for name, found in {
        "others": table(2000, seed=6),
        "a tenth": tenth,
        "scaled": whole * 2,
        "none": whole[:0],
    }.items():
        assert check(tmp_path, name, found) == []


def test_coarse_rows_are_alike_anywhere_and_only_the_same_set_is_the_same(tmp_path: Path) -> None:
    coarse = np.array([[a, b] for a in range(2) for b in range(4)], dtype=float)
    check(tmp_path, "visits", coarse)
    assert check(tmp_path, "others", coarse[:6]) == []
    with pytest.raises(PlanRefused, match="holds the same rows"):
        check(tmp_path, "a copy", coarse[::-1])


def test_the_precision_and_the_library_of_a_row_do_not_matter(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    whole = table(100).astype(np.float32)
    check(tmp_path, "visits", whole.astype(np.float64))
    with pytest.raises(PlanRefused, match="the same rows"):
        check_rows(tmp_path / "ledger.db", {"b": lambda: (torch.from_numpy(whole),)}, remedy=SAY)
    labels = torch.arange(100)
    check_rows(tmp_path / "ledger.db", {"c": lambda: (torch.from_numpy(whole), labels)}, remedy=SAY)  # with labels: not


def test_a_reason_is_asked_for_once_and_kept_at_the_holder(tmp_path: Path) -> None:
    whole = table(100)
    check(tmp_path, "visits", whole)
    with pytest.raises(PlanRefused):
        check(tmp_path, "copy", whole, reason="  ")
    (told,) = check(tmp_path, "copy", whole, reason="the first budget was for a trial, and is given up")
    assert "your reason is kept in ledger.db.rows" in told
    assert check(tmp_path, "copy", whole) == [] and check(tmp_path, "visits", whole) == []
    kept = json.loads((tmp_path / "ledger.db.rows").read_text(encoding="utf-8"))
    assert [(one["dataset"], one["same_as"]) for one in kept["reasons"]] == [("copy", "visits")]


def test_an_old_state_of_a_dataset_is_remembered(tmp_path: Path) -> None:
    check(tmp_path, "visits", table(100, seed=1))
    check(tmp_path, "visits", table(100, seed=2))  # all rows were replaced since
    with pytest.raises(PlanRefused):
        check(tmp_path, "archive", table(100, seed=1))


def test_datasets_of_one_run_may_hold_alike_rows(tmp_path: Path) -> None:
    whole = table(100)
    both = {"north": lambda: (whole,), "south": lambda: (whole,)}
    assert check_rows(tmp_path / "ledger.db", both, remedy=SAY) == []
    assert check_rows(tmp_path / "ledger.db", both, remedy=SAY) == []


def test_the_file_is_the_owners_and_tells_nothing_without_its_key(tmp_path: Path) -> None:
    whole = table(100)
    check(tmp_path / "one", "visits", whole)
    check(tmp_path / "two", "visits", whole)
    files = [tmp_path / name / "ledger.db.rows" for name in ("one", "two")]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    one, two = (json.loads(file.read_text(encoding="utf-8"))["datasets"]["visits"][0] for file in files)
    assert len(one) == len(two) == 100 and not set(one) & set(two)


def test_a_file_that_cannot_be_read_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / "ledger.db.rows").write_text("{}", encoding="utf-8")
    with pytest.raises(PlanRefused, match="restore it, or remove it"):
        check(tmp_path, "visits", table(10))


def test_the_share_of_large_sets_is_estimated_from_their_sketches(tmp_path: Path) -> None:
    books = Fingerprints(tmp_path / "ledger.db")
    whole, others = table(50_000), table(50_000, seed=2)
    for common in (0.2, 0.5, 0.8):
        cut = int(common * len(whole))
        mixed = np.concatenate([whole[:cut], others[cut:]])
        one, two = books.sketch((whole,)), books.sketch((mixed,))
        assert len(one) == len(two) == KEPT and abs(overlap(one, two) - common) < 0.1


def test_rows_that_cannot_be_read_are_nobodys_business_here(tmp_path: Path) -> None:
    assert check_rows(tmp_path / "ledger.db", {"a": lambda: None, "b": lambda: (np.array(["x"]),)}, remedy=SAY) == []


def test_a_disk_that_fails_while_they_are_read_is_trouble_that_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_rows(tmp_path / "ledger.db", {"a": lambda: (np.arange(6.0),)}, remedy=SAY)

    def failing(self: Path, **options: Any) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))

    monkeypatch.setattr(Path, "read_text", failing)
    with pytest.raises(OSError, match="Input/output"):  # the command line ends with 1, where a damaged file is a 2
        Fingerprints(tmp_path / "ledger.db")


# --------------------------------------------------------------------------------------------------- commands

TASK = """
import numpy as np
from quietsum.plan import PartyFacts
from quietsum.tasks import Metrics, Rows


class Points:
    name, title, dimension = "points", "points", 2

    def __init__(self, called="points"):
        self.called = called

    def parties(self):
        return (PartyFacts(name="north", dataset=self.called, size=50),)

    def initial(self):
        return np.zeros(2)

    def rows(self, party):
        features = np.random.default_rng(1).normal(size=(50, 2))
        return Rows(features=features, labels=np.zeros(50))

    def gradients(self, params, features, labels):
        return params - features

    def evaluate(self, params):
        return Metrics(values={"distance": float(np.abs(params).sum())}, on="nothing")


class OwnSteps(Points):
    model = "a line"  # a word of its own, and no torch model

    def train(self, party, params, orders, rng):
        return np.zeros(2)
"""

PLAN = """
[task]
name = "points_again:Points"
options = {{ called = "{called}" }}
[federation]
rounds = 1
[training]
sample_rate = 0.5
local_steps = 1
[privacy]
style = "sample"
record = {{ epsilon = 1.0, delta = 1e-4, max_grad_norm = 1.0 }}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "points_again.py").write_text(TASK, encoding="utf-8")
    for called in ("first", "second"):
        (tmp_path / f"{called}.toml").write_text(PLAN.format(called=called), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def command(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_second_name_for_the_same_rows_gets_no_fresh_budget_without_a_reason(home: Path) -> None:
    assert command("run", "first.toml", "--workspace", "w", "--name", "one").exit_code == 0
    refused = command("run", "second.toml", "--workspace", "w")
    said = " ".join(refused.output.split())
    assert refused.exit_code == 2 and "holds the same rows of 'first'" in said and "--same-rows" in said
    with Ledger.open(home / "w" / "ledger.db", read_only=True) as ledger:
        assert [run.run for run in ledger.runs()] == ["one"]
    given = command("run", "second.toml", "--workspace", "w", "--name", "two", "--same-rows", "a trial of the tool")
    assert given.exit_code == 0, given.output
    sketch = json.loads((home / "w" / "ledger.db.rows").read_text(encoding="utf-8"))
    hashes = [one for known in sketch["datasets"].values() for one in known[0]]
    assert len(hashes) == 100
    assert command("ledger", "export", "x.jsonl", "--workspace", "w").exit_code == 0
    for path in home.rglob("*"):  # no file but its own holds a hash, or the reason
        if path.is_file() and path.name != "ledger.db.rows":
            content = path.read_bytes()
            assert hashes[0].encode() not in content and b"a trial of the tool" not in content


@pytest.mark.parametrize("task", ["Points", "OwnSteps"])
def test_a_site_is_told_by_check_before_it_serves(home: Path, task: str) -> None:
    (home / "node.key").write_text("", encoding="utf-8")

    def policy(called: str, more: str = "") -> Path:
        path = home / f"{called}.policy.toml"
        path.write_text(
            f'''
[site]
name = "north"
[coordinator]
address = "127.0.0.1:9092"
node_key = "node.key"
[dataset]
name = "{called}"
size = 50
{more}
[[tasks]]
name = "points_again:{task}"
options = {{ called = "{called}" }}
[record]
epsilon = 8.0
delta = 1e-4
run = 2.0
''',
            encoding="utf-8",
        )
        return path

    from quietsum.cli.sites.check import in_rows
    from quietsum.party.policy_file import load_policy

    assert list(in_rows(load_policy(policy("first")), write=True)) == []
    said = " ".join(command("party", "check", policy("second")).output.split())
    assert "dataset 'second' holds the same rows of 'first'" in said and "same_rows" in said
    (problem,) = in_rows(load_policy(policy("second")), write=True)  # as party serve asks
    assert "holds the same rows" in str(problem)
    explained = load_policy(policy("second", 'same_rows = "the old name was misspelt"'))
    assert list(in_rows(explained, write=True)) == [] and list(in_rows(load_policy(policy("second")), write=True)) == []


# ------------------------------------------------------------------------------------------- a training in Python


def line_trained(folder: Path, dataset: str, rows: Any, **more: Any) -> None:
    torch = pytest.importorskip("torch")
    from quietsum.learning.config import PrivacyConfig
    from quietsum.learning.trainer import PrivateTrainer

    config = PrivacyConfig(epsilon=6.0, epochs=1, batch_size=20, public_size=60, delta=1e-3)
    trainer = PrivateTrainer(
        torch.nn.Linear(1, 1), config, loss=lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean(1),
        workspace=folder, run=dataset, dataset=dataset, selfcheck=False, **more,
    )  # fmt: skip
    try:
        trainer.train(rows, learning_rate=0.1)
    finally:
        trainer.close()


def test_a_training_in_python_on_rows_of_another_name_needs_a_reason_and_charges_nothing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    rows = torch.linspace(-1, 1, 60).reshape(-1, 1)
    line_trained(tmp_path, "visits", (rows, 2 * rows))
    with pytest.raises(PlanRefused, match=r"rows of 'visits'.*same_rows"):
        line_trained(tmp_path, "visits-again", (rows.flip(0), 2 * rows.flip(0)))
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert [found.run for found in ledger.runs()] == ["visits"]
    line_trained(tmp_path, "visits-again", (rows, 2 * rows), same_rows="the board agreed to a second study")
    line_trained(tmp_path, "others", (rows + 5, 2 * rows))  # the control: other rows are nobody's business
    assert "second study" not in "".join(
        path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".rows"
    )

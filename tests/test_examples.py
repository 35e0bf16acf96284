"""Every numbered example is short and runs to its end; the last one is a folder, whose README is a deployment."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenes import needs_data, quietsum

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("[0-9]*.py"))
LAST = {
    "01_account": "an attacker finds a record in at most",
    "02_train": "per record at δ = 1e-05",
    "03_federation": "the model has 15 weights",
    "04_own_task": "finished: slope",
    "05_robust_under_masks": "'groups': 8, 'attackers': 3} slope",
}
ACROSS = FOLDER / "06_across_machines"


def test_all_of_them_are_known_here() -> None:
    assert [path.stem for path in EXAMPLES] == list(LAST)
    assert [path.name for path in sorted(FOLDER.glob("[0-9]*")) if path.is_dir()] == [ACROSS.name]


def test_the_page_of_the_folder_names_every_file_and_the_page_of_the_deployment_every_one_of_its_own() -> None:
    for folder in (FOLDER, ACROSS):
        page = (folder / "README.md").read_text(encoding="utf-8")
        for path in folder.iterdir():
            if path.name not in ("README.md", "__pycache__"):
                assert f"`{path.name}{'/' if path.is_dir() else ''}`" in page, path.name


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_has_fewer_than_sixty_lines(path: Path, tmp_path: Path) -> None:
    if "torch" in path.read_text(encoding="utf-8"):
        pytest.importorskip("torch")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert LAST[path.stem] in done.stdout.strip().splitlines()[-1]
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    assert list(tmp_path.iterdir()) == []
    if path.stem.startswith("05"):  # its lesson: 2 is right, the mean is far from it, the median of groups is near
        mean, median = (abs(2 - float(slope)) for slope in re.findall(r"slope (\d\.\d\d)", done.stdout))
        assert median < 0.1 < mean


@pytest.mark.parametrize("name", ["heart.toml", pytest.param("defended.toml", marks=needs_data)])
@pytest.mark.some(1)
def test_the_report_of_an_example_is_verified_without_its_workspace(name: str, tmp_path: Path) -> None:
    if name == "defended.toml":
        pytest.importorskip("torch")
    work = tmp_path / "work"
    quietsum("run", FOLDER / name, "--name", "run", "--workspace", work)
    quietsum("report", "run", "--workspace", work, "--output", tmp_path / "report.html")
    quietsum("ledger", "export", tmp_path / "books.jsonl", "--workspace", work)
    told = json.loads(quietsum("report", "run", "--workspace", work, "--json").stdout)
    for path in (work / "runs" / "run").glob("*.safetensors"):
        path.rename(tmp_path / path.name)
    shutil.rmtree(work)
    found = json.loads(quietsum(
        "report", "--verify", tmp_path / "report.json", "--export", tmp_path / "books.jsonl",
        "--key", told["fingerprint"], "--json",
    ).stdout)  # fmt: skip
    assert found["not_checked"] == []


# ----------------------------------------------------------------------------------------------- across machines


class Terminals:
    """A copy of the folder on a free port, in which the commands of its page are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "trial"
        shutil.copytree(ACROSS, self.folder)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self._port = str(taken.getsockname()[1])
        for policy in self.folder.glob("*.toml"):
            policy.write_text(policy.read_text(encoding="utf-8").replace("9092", self._port), encoding="utf-8")
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def _words(self, line: str) -> list[str]:
        words = shlex.split(line.replace("9092", self._port))
        return [sys.executable, *(["-m", "quietsum"] if words[0] == "quietsum" else []), *words[1:]]

    def type(self, line: str) -> str:
        """The output of a command that ends by itself, and well."""
        done = subprocess.run(self._words(line), capture_output=True, text=True, cwd=self.folder, timeout=300)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def leave_running(self, line: str) -> None:
        with (self.folder / f"{len(self.running)}.log").open("wb") as log:
            self.running[line] = subprocess.Popen(self._words(line), stdout=log, stderr=log, cwd=self.folder)

    def logs(self) -> str:
        return "\n".join(path.read_text(encoding="utf-8") for path in sorted(self.folder.glob("*.log")))

    def end(self) -> dict[str, int]:
        """Each process is asked to end, by its id; the exit codes."""
        for process in self.running.values():
            process.terminate()
        codes = {}
        for line, process in self.running.items():
            try:
                codes[line] = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[line] = process.wait()
        self.running.clear()
        return codes


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    made = Terminals(tmp_path)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.slow
@pytest.mark.long
def test_the_commands_of_the_deployment_run_two_sites_over_tls_and_leave_books_that_verify(
    terminals: Terminals,
) -> None:
    pytest.importorskip("flwr")
    page = (ACROSS / "README.md").read_text(encoding="utf-8")
    first, processes, run, books = (
        block.strip().splitlines() for block in re.findall(r"^```bash\n(.*?)^```$", page, flags=re.M | re.S)
    )
    for line in first:
        terminals.type(line)
    assert [" ".join(line.split()[1:3]) for line in processes] == ["superlink --keys", "party serve", "party serve"]
    for line in processes:
        terminals.leave_running(line)
        if "superlink" in line:  # the coordinator reads its address here; sites wait for it by themselves
            end = time.monotonic() + 120
            while not (terminals.folder / "superlink" / "access.json").exists():
                assert time.monotonic() < end, terminals.logs()
                time.sleep(0.1)
    said = [terminals.type(line) for line in run]
    assert "finished after 4 rounds" in said[-1]
    assert terminals.logs().count("charged, and the update leaves") == 2 * 4
    for line in books:
        assert terminals.type(line)
    terminals.type("quietsum ledger export books.jsonl --workspace workspace")
    terminals.type("quietsum report latest --workspace workspace -o report.html")
    assert "ledger" in terminals.type("quietsum report --verify report.json --export books.jsonl")
    assert set(terminals.end().values()) == {0}, terminals.logs()
    assert len((ACROSS / "coordinator.py").read_text(encoding="utf-8").splitlines()) < 60


def lines_of_the_first_block(page: Path) -> list[str]:
    """The lines of Python that a reader types: those behind a prompt."""
    block = page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    return [line for line in block.splitlines() if line.startswith((">>> ", "... "))]


def test_a_newcomer_comes_to_a_federation_its_report_and_its_model_in_fifteen_lines() -> None:
    """The page itself runs as a doctest."""
    page = Path(__file__).parents[1] / "docs" / "tutorial" / "first-federation.md"
    lines = lines_of_the_first_block(page)
    assert len(lines) <= 15
    text = "\n".join(lines)
    assert all(word in text for word in ("qs.load_plan", "qs.run", "run.report", "report.html", "model.predict"))
    assert "pip install quietsum" in page.read_text(encoding="utf-8")

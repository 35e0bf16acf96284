"""``quietsum datasets``: what is here, where to get the rest, and whether it is intact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from quietsum.cli.app import app
from quietsum.tasks.datafiles import DATASETS


def datasets(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, ["datasets", *arguments])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("QUIETSUM_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("empty")
def test_every_set_is_listed_and_what_is_missing_says_where_to_get_it() -> None:
    shown = datasets().stdout
    assert all(name in shown for name in DATASETS) and "medmnist.com" in shown and "next: " in shown
    values = {entry["name"]: entry for entry in json.loads(datasets("--json").stdout)["datasets"]}
    assert values["heart"]["state"] == values["digits"]["state"] == "present"
    assert values["chest-xray"]["state"] == "missing" and values["chest-xray"]["source"]


@pytest.mark.usefixtures("empty")
def test_a_set_inside_a_package_that_is_not_installed_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "sklearn" else real(name, *rest)
    )
    values = {entry["name"]: entry for entry in json.loads(datasets("--json").stdout)["datasets"]}
    assert values["digits"]["state"] == "missing" and "scikit-learn" in values["digits"]["source"]
    assert values["heart"]["state"] == "present"


def test_lines_are_at_most_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_DATA", "nowhere")
    for arguments in ((), ("--verify",), *((name,) for name in DATASETS)):
        assert max(map(len, datasets(*arguments).stdout.splitlines())) <= 80


def test_an_altered_file_is_refused_and_named(empty: Path) -> None:
    (empty / "pneumoniamnist").mkdir()
    path = empty / "pneumoniamnist" / "pneumoniamnist.npz"
    np.savez(path, train_images=np.zeros((3, 28, 28), np.uint8))
    assert json.loads(datasets("chest-xray", "--json").stdout)["datasets"][0]["state"] == "present"
    shown = datasets("chest-xray", "--verify", code=2).stdout
    assert "refused" in shown and "train_labels" in shown
    listed = datasets("--verify", code=2).stdout
    assert "chest-xray is refused" in listed and "train_labels" in listed
    path.unlink()
    assert "missing" in datasets("chest-xray", "--verify", code=2).stdout  # asked for by name, and not there
    datasets("--verify")  # the control: what is merely absent is no fault


def test_what_comes_inside_packages_is_verified() -> None:
    shown = datasets("heart", "--verify").stdout
    assert "verified" in shown and "920 rows" in shown and "inside a package" in shown


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    refused = datasets("chest-xry", code=2)
    assert 'did you mean "chest-xray"' in refused.stderr and "Traceback" not in refused.output


def test_the_command_works_without_torch_and_is_light() -> None:
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['quietsum', 'datasets', '--json']\n"
    code += "import runpy; runpy.run_module('quietsum', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and len(json.loads(done.stdout)["datasets"]) == len(DATASETS), done.stderr
    code = (
        "import sys; import quietsum.cli.train.datasets; print(sorted({'torch', 'numpy', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("QUIETSUM_DATA"), reason="QUIETSUM_DATA names no folder with the downloaded data"
)
def test_all_files_of_the_data_folder_are_intact() -> None:
    states = {entry["name"]: entry["state"] for entry in json.loads(datasets("--verify", "--json").stdout)["datasets"]}
    states.pop("fashion-mnist")  # in no prepared data folder: it comes from Debian
    assert set(states.values()) == {"verified"}, states

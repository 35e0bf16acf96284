"""``quietsum new --from`` a folder of pictures, on the base install: what is missing is said in one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scenes import invoke, one_line


def test_pictures_without_torch_are_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = invoke("new", tmp_path / "run.toml", "--from", tmp_path)
    assert result.exit_code == 2 and "pip install 'quietsum[train]'" in one_line(result.stderr)
    assert not (tmp_path / "run.toml").exists()

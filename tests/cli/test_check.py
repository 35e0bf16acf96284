"""``quietsum check``: answers, exit codes, JSON, and a trainer of one's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenes import invoke

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "check-a-claim.md"
CLAIM = """
system = "opacus"
[settings]
noise_multiplier = 1.1
max_grad_norm = 1.0
batch_size = 50
dataset_size = 1000
epochs = {epochs}
[claim]
epsilon = 4.0
delta = 1e-5
"""
TRAINER = '''
"""A step of one's own."""
import numpy as np

def good(features, labels, *, noise_multiplier, max_grad_norm):
    each = features * (2 * labels[:, None] - 1)
    lengths = np.linalg.norm(np.where(np.isfinite(each), each, 0.0), axis=1)
    known = np.isfinite(features).all(axis=1)
    with np.errstate(all="ignore"):
        scales = np.where(known & (lengths > 0), np.minimum(1.0, max_grad_norm / lengths), 0.0)
    total = (np.where(known[:, None], each, 0.0) * scales[:, None]).sum(axis=0)
    return total + noise_multiplier * max_grad_norm * np.random.standard_normal(features.shape[1])

def quiet(features, labels, *, noise_multiplier, max_grad_norm):
    return good(features, labels, noise_multiplier=noise_multiplier / 2, max_grad_norm=max_grad_norm)

def other(rows): ...

number = 3

def factory():
    return object()
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.toml").write_text(CLAIM.format(epochs=10))
    (tmp_path / "bad.toml").write_text(CLAIM.format(epochs=100))
    (tmp_path / "trainer_to_check.py").write_text(TRAINER)
    yield tmp_path
    sys.modules.pop("trainer_to_check", None)


def run(*words: object, code: int = 0) -> str:
    done = invoke(*words)
    assert done.exit_code == code, done.output
    return done.stdout + (done.stderr if code == 2 else "")


@pytest.mark.usefixtures("place")
def test_a_claim_that_holds_ends_with_0_and_one_that_does_not_with_5() -> None:
    assert "HOLDS: these settings promise at least that much" in run("check", "good.toml")
    text = run("check", "bad.toml", code=5)
    assert "DOES NOT HOLD" in text and "mistake, accounting" in text and "next: quietsum" in text


@pytest.mark.usefixtures("place")
def test_json_holds_what_the_screen_says() -> None:
    values = json.loads(run("check", "bad.toml", "--json", code=5))
    assert values["exit_code"] == 5 and values["contradicted"] and values["system"] == "opacus"
    (line,) = values["lines"]
    assert line["ruling"] == "does not hold" and line["true"]["epsilon_lower"] > line["stated"]["epsilon"]
    assert line["true"]["unit"] == "record" and line["event"]["kind"] == "repeated"
    assert {one["kind"] for one in line["remarks"]} == {"mistake", "note"}


def test_infinity_is_a_word_in_json(tmp_path: Path) -> None:
    (tmp_path / "svt.toml").write_text('system = "nvflare"\nsettings = { filter = "SVTPrivacy", parameters = 1000 }')
    values = json.loads(run("check", tmp_path / "svt.toml", "--json", code=5))
    assert values["lines"][0]["true"]["epsilon"] == "Infinity"


def test_the_page_prints_what_the_command_prints(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    claim, printed = (
        re.search(r"```toml\n(.*?)```", page, re.DOTALL),
        re.search(r"it does not hold\n(.*?)```", page, re.DOTALL),
    )
    assert claim is not None and printed is not None
    (tmp_path / "claim.toml").write_text(claim[1])
    assert run("check", tmp_path / "claim.toml", code=5) == printed[1]


def test_systems_are_listed_with_their_keys() -> None:
    text = run("check", "--systems")
    assert "flower-local-dp: Flower's LocalDpMod" in text and "clipping_norm: " in text
    assert "clipping_norm" in json.loads(run("check", "--systems", "--json"))["systems"]["flower-local-dp"]["settings"]


@pytest.mark.parametrize("words", [("check",), ("check", "none.toml"), ("check", "--trainer", "x:y")])
def test_a_mistake_of_the_user_ends_with_2_and_one_line(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = run(*words, code=2)
    assert text.startswith("error: ") and len(text.splitlines()) == 1


def test_a_title_that_a_terminal_would_obey_is_printed_without_it(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('title = "x\\u001b]0;owned\\u0007y"\n' + CLAIM.format(epochs=10))
    assert "\x1b" not in run("check", tmp_path / "a.toml")


@pytest.mark.usefixtures("place")
def test_a_trainer_is_held_against_the_claim() -> None:
    assert "Nothing speaks against the claim" in run("check", "good.toml", "--trainer", "trainer_to_check:good")
    text = run("check", "good.toml", "--trainer", "trainer_to_check:quiet", code=5)
    assert "HOLDS" in text and "The claim is false: noise" in " ".join(text.split())
    values = json.loads(run("check", "good.toml", "--trainer", "trainer_to_check:quiet", "--json", code=5))
    assert values["trainer"]["passed"] is False and not values["contradicted"]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("trainer_to_check", "names no function"), ("trainer_to_check:none", "has no none"),
        ("no_such_module:step", "cannot be imported"), ("trainer_to_check:other", "does not take noise_multiplier"),
        ("trainer_to_check:number", "cannot be called"), ("trainer_to_check:factory", "returned a object without"),
        ("os;system:x", "names no function"),
    ],
)  # fmt: skip
def test_a_trainer_that_is_none_is_refused(name: str, said: str) -> None:
    assert said in run("check", "good.toml", "--trainer", name, code=2)


@pytest.mark.usefixtures("place")
def test_no_claim_names_code() -> None:
    """The option is the only way to a trainer: a file's word for one is an unknown key, and nothing is imported."""
    Path("code.toml").write_text('trainer = "trainer_to_check:good"\n' + CLAIM.format(epochs=10))
    assert "trainer: unknown key" in run("check", "code.toml", code=2)
    assert "trainer_to_check" not in sys.modules


def test_a_check_of_settings_needs_the_base_install_alone(place: Path) -> None:
    """In a fresh interpreter: no torch, no Flower, no YAML library is loaded."""
    code = (
        "import sys; from quietsum.audit import check_claim, read_claim; "
        "check_claim(read_claim('good.toml')); print(*sorted({'torch', 'flwr', 'opacus', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=place, timeout=120, check=True
    )
    assert done.stdout.strip() == ""

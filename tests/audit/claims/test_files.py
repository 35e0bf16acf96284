"""Files of claims: whatever is not one is refused in a sentence, and nothing in a file is run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from quietsum.audit import check_claim, list_systems, read_claim
from quietsum.audit.claims.plain_yaml import parse_plain_yaml
from quietsum.errors import QuietsumError

GOOD = """
system = "opacus"
[settings]
noise_multiplier = 1.0
batch_size = 100
dataset_size = 10000
epochs = 10
[claim]
epsilon = 2.0
delta = 1e-5
"""


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_toml_json_and_values_say_the_same(tmp_path: Path) -> None:
    import tomllib

    values = tomllib.loads(GOOD)
    files = [write(tmp_path, "a.toml", GOOD), write(tmp_path, "a.json", json.dumps(values))]
    found = [check_claim(read_claim(one)).to_dict() for one in files] + [check_claim(read_claim(values)).to_dict()]
    assert found[0] == found[1] == found[2] and not found[0]["contradicted"]


BAD: dict[str, tuple[str | bytes, str]] = {
    "empty.toml": ("", "is empty"),
    "blank.json": ("  \n", "is empty"),
    "zeros.toml": (b"\0\0\0\0", "is empty"),
    "latin.toml": ("system = 'opäcus'".encode("latin-1"), "is not UTF-8"),
    "broken.toml": ("system = ", "is not TOML"),
    "broken.json": ("{", "is not JSON"),
    "list.json": ("[1, 2]", "holds no names and values"),
    "twice.json": ('{"system": "opacus", "system": "table"}', "stands twice"),
    "nan.json": ('{"system": "dp-sgd", "settings": {"noise_multiplier": NaN}}', "is no number"),
    "infinite.json": ('{"system": "dp-sgd", "settings": {"noise_multiplier": Infinity}}', "is no number"),
    "deep.json": ("[" * 100_000, "is not JSON"),
    "deep.toml": ("a = " + "[" * 5000 + "]" * 5000, "is not TOML"),
    "system.toml": ("title = 'x'", "system = None is missing"),
    "opaqus.toml": ("system = 'opaqus'", "did you mean 'opacus'"),
    "key.toml": (GOOD + "epsilom = 3\n", "did you mean claim.epsilon"),
    "setting.toml": (GOOD.replace("noise_multiplier", "noise_multiplyer"), "did you mean noise_multiplier"),
    "top.toml": ("sytem = 'x'\nsystem = 'opacus'", "unknown key"),
    "text.toml": (GOOD.replace("noise_multiplier = 1.0", "noise_multiplier = '1.0'"), "is not a number"),
    "negative.toml": (GOOD.replace("noise_multiplier = 1.0", "noise_multiplier = -1"), "at least 0"),
    "nan.toml": (GOOD.replace("noise_multiplier = 1.0", "noise_multiplier = nan"), "is not a finite number"),
    "huge.toml": (GOOD.replace("epochs = 10", "epochs = 1e300"), ""),
    "batch.toml": (GOOD.replace("batch_size = 100", "batch_size = 20000"), "is more than all 10000 records"),
    "delta.toml": (GOOD.replace("delta = 1e-5", "delta = 0.0"), "greater than 0"),
    "nodelta.toml": (GOOD.replace("delta = 1e-5", ""), "claim.delta = None is missing"),
    "unit.toml": (GOOD + "unit = 'hospital'", "unit"),
    "table.toml": ("system = 'table'\nsettings = { rows = [] }", "holds no row"),
    "history.json": ('{"privacy": {"target_delta": 1e-5, "sample_history": [[1, 2]]}}', "is not (σ, q, steps)"),
    "nohistory.json": ('{"privacy": {"target_delta": 1e-5, "sample_history": "no"}}', "is no list"),
    "nothing.json": ('{"privacy": {"target_delta": 1e-5, "sample_history": []}}', "nothing was recorded"),
    "rate.csv": ("noise_multiplier,steps,delta,sample_rate\n1.0,10,1e-5,2\n", "at most 1"),
    "column.csv": ("noise,steps,delta\n1.0,10,1e-5\n", "has no column noise_multiplier, has unknown columns (noise)"),
    "ragged.csv": ("noise_multiplier,steps,delta\n1.0,10\n", "one cell for each column"),
    "anchor.yaml": ("privacy: &a\n  dp_enabled: true\n", "is not plain YAML"),
    "tag.yaml": ("privacy: !!python/object/apply:os.system ['true']\n", "is not plain YAML"),
    "tab.yaml": ("privacy:\n\tdp_enabled: true\n", "is not plain YAML"),
    "again.yaml": ("privacy:\n  dp_enabled: true\n  dp_enabled: true\n", "stands twice"),
    "zip.toml": (b"PK\x03\x04 no archive", "holds more than numbers and tensors, or is broken"),
    "report.json": (json.dumps({name: 1 for name in (
        "target_epsilon", "target_delta", "achieved_epsilon", "noise_multiplier", "accounting", "ledger")}),
        "report --verify"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_claim_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    text, said = BAD[name]
    if name.startswith("zip"):
        pytest.importorskip("torch")
    with pytest.raises(QuietsumError) as caught:
        check_claim(read_claim(write(tmp_path, name, text)))
    assert said in str(caught.value) and len(str(caught.value)) < 2000


def test_a_large_file_a_folder_a_pipe_and_nothing_are_refused(tmp_path: Path) -> None:
    large = write(tmp_path, "large.toml", "#" * 1_000_001)
    os.mkfifo(tmp_path / "pipe.toml")
    for path, said in (
        (large, "larger than"), (tmp_path, "is a folder"), (tmp_path / "pipe.toml", "not a regular file"),
        (tmp_path / "none.toml", "cannot be read"),
    ):  # fmt: skip
        with pytest.raises(QuietsumError, match=said):
            read_claim(path)


def test_files_of_other_systems_are_known_by_what_they_hold(tmp_path: Path) -> None:
    checkpoint = {
        "privacy": {"target_delta": 1e-5, "sample_history": [[1.0, 0.1, 100]], "cumulative_sample_epsilon": 0.85}
    }
    report = {
        "target_epsilon": 1.0, "target_delta": 1e-5, "achieved_epsilon": 0.95, "noise_multiplier": 1.0,
        "max_grad_norm": 1.0, "sampling_probability": 0.0032, "training_steps": 31_200,
        "mechanism": "DP-SGD (Gaussian)", "accounting": "RDP",
    }  # fmt: skip
    config = (
        "privacy:\n  dp_enabled: true\n  epsilon: 1.0\n  delta: 1e-5\n  noise_multiplier: 1.0\n  max_grad_norm: 1.0\n"
    )
    columns = "label,noise_multiplier,sample_rate,steps,delta,epsilon"
    rows = f"{columns}\nours,1.0,0.01,1000,1e-5,1.9\ntheirs,1.0,0.01,1000,1e-5,1.7\n"
    found = {
        name: read_claim(write(tmp_path, name, text))
        for name, text in (
            ("c.json", json.dumps(checkpoint)), ("r.json", json.dumps(report)), ("p.yaml", config), ("t.csv", rows)
        )
    }  # fmt: skip
    assert [one.system for one in found.values()] == ["dp-fedmed", "fraud-report", "fraud-config", "table"]
    answers = {name: [str(line.ruling) for line in check_claim(one).lines] for name, one in found.items()}
    assert answers == {
        "c.json": ["does not hold"], "r.json": ["does not hold"], "p.yaml": ["needs an assumption"],
        "t.csv": ["holds", "does not hold"],
    }  # fmt: skip


def test_a_checkpoint_of_torch_is_read_and_an_object_in_it_is_not_made(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    block = {"target_delta": 1e-5, "sample_history": [(1.0, 0.1, 100)], "cumulative_sample_epsilon": 0.85}
    torch.save({"privacy": block, "model": {"w": torch.zeros(3)}}, tmp_path / "c.pt")
    (line,) = check_claim(read_claim(tmp_path / "c.pt")).lines
    assert line.epsilon == pytest.approx(7.0466, abs=1e-3)
    torch.save({"privacy": block, "model": Trap(tmp_path / "sprung")}, tmp_path / "trap.pt")
    with pytest.raises(QuietsumError, match="holds more than numbers"):
        read_claim(tmp_path / "trap.pt")
    assert not (tmp_path / "sprung").exists()


class Trap:
    """An object that makes a file when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.place),)


def test_the_control_the_trap_springs_where_it_is_unpickled(tmp_path: Path) -> None:
    import pickle

    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung")))
    assert (tmp_path / "sprung").exists()


PLAIN = [
    "a: 1\nb: 1.5\nc: true\nd: null\ne: word\n",
    "a:\n  b:\n    c: 3\n  d: 4\ne: 5\n",
    "# first\na: 'quoted # text' # comment\nb: \"x\"\n---\n".replace("---\n", ""),
    "a:\n  - one\n  - 2\n  - 3.5\nb: 1\n",
    "a:\n- one\n- two\n",
    "name-with-dashes: x\nunder_score: 7\n",
    "a: -3\nb: +4\nc: .5\nd: no\n",
]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_yaml_is_read_as_pyyaml_reads_it(text: str) -> None:
    yaml = pytest.importorskip("yaml")
    assert parse_plain_yaml(text, where="x") == yaml.safe_load(text)


def test_an_exponent_without_a_point_is_a_number() -> None:
    """YAML 1.1 takes 1e-5 for a word; the fraud system's own file writes it, and means a number."""
    assert parse_plain_yaml("delta: 1e-5\n", where="x") == {"delta": 1e-5}


def test_every_system_has_a_title_and_settings_with_sentences() -> None:
    from quietsum.plan import keys_of

    systems = list_systems()
    assert [one.name for one in systems] == sorted(one.name for one in systems) and len(systems) > 9
    for one in systems:
        assert one.title and all(sentence.endswith(".") for sentence in keys_of(one.settings).values())

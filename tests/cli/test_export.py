"""A finished model as ONNX: what another program answers with it is what quietsum predict answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quietsum import load_model, run
from quietsum.runs import open_model
from scenes import invoke, one_line

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("empty_folder")
PRIVACY = '[federation]\nrounds = 2\n[training]\nsample_rate = 0.5\nlocal_steps = 1\n[privacy]\nstyle = "none"\n'
TABLE = """
[task]
name = "table"
[task.options]
name = "visits"
table = "visits.csv"
public = "made up for this test"
model = "MODEL"
label = LABEL
columns = [
  { name = "age", kind = "number", bounds = [0, 120] }, { name = "ward", kind = "category", categories = ["a", "b"] },
]
sites = [{ name = "here", size = 40 }]
"""
LABELS = {
    "two classes": '{ name = "y", kind = "category", categories = ["no", "yes"] }',
    "three classes": '{ name = "y", kind = "category", categories = ["no", "yes", "perhaps"] }',
    "a number": '{ name = "n", kind = "number", bounds = [10, 30] }',
}


def trained(model: str, label: str) -> None:
    rows = [f"{20 + 2 * i},{'ab'[i % 2]},{('no', 'yes')[i > 20]},{10 + i / 2}" for i in range(40)]
    Path("visits.csv").write_text("age,ward,y,n\n" + "\n".join(rows) + "\n", encoding="utf-8")
    run(TABLE.replace("MODEL", model).replace("LABEL", LABELS[label]) + PRIVACY, name="one")


def test_without_what_writes_it_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    trained("linear", "two classes")
    monkeypatch.setattr("quietsum.tasks.predictions.importlib.util.find_spec", lambda name: None)
    told = invoke("export", "one")
    assert told.exit_code == 2 and "pip install 'quietsum[onnx]'" in one_line(told.stderr)
    assert not Path("model.onnx").exists()


def test_a_name_that_is_none_and_a_run_that_is_not_there_are_refused_before_anything_is_written() -> None:
    trained("linear", "two classes")
    assert "name it model.onnx" in invoke("export", "one", "-o", "model.txt").stderr
    assert invoke("export", "two").exit_code == 2
    assert not list(Path().glob("model.*"))


def answered(path: Path, rows: Any) -> tuple[Any, dict[str, str]]:
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path))
    return session.run(None, {"rows": rows.astype(np.float32)})[0], session.get_modelmeta().custom_metadata_map


@pytest.mark.parametrize(("model", "label"), [("linear", "two classes"), ("mlp", "three classes"), ("mlp", "a number")])
def test_a_model_of_a_table_answers_the_same_in_another_program(model: str, label: str) -> None:
    for name in ("onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    trained(model, label)
    told = json.loads(invoke("export", "one", "-o", "m.onnx", "--json").stdout)
    Path("new.csv").write_text("age,ward\n20,a\n95,b\n50,moon\n", encoding="utf-8")
    own = open_model("one")
    found, about = answered(Path("m.onnx"), own._read(Path("new.csv")))
    assert np.abs(found - own.predict_file(Path("new.csv")).values).max() < 1e-4
    assert about["run"] == told["run"] == "one" and json.loads(about["guarantees"]) == told["guarantees"]
    other, _ = answered(Path("m.onnx"), np.zeros((7, own._read(Path("new.csv")).shape[1])))
    assert len(other) == 7 and np.abs(other[:3] - found).max() > 1e-3, "the control: other rows, other answers"


def test_a_torch_model_answers_the_same_in_another_program() -> None:
    for name in ("onnxscript", "onnxruntime", "sklearn"):
        pytest.importorskip(name)
    run(
        '[task]\nname = "digits"\n' + PRIVACY.replace("[federation]\n", '[federation]\nsplit = "iid"\nparties = 2\n'),
        name="one",
    )
    assert invoke("export", "one").exit_code == 0
    own = open_model("one")
    rows = np.random.default_rng(0).random((5, *own_shape()), dtype=np.float32)
    found, about = answered(Path("model.onnx"), rows)
    assert np.abs(found - own.predict(rows).values).max() < 1e-5
    assert about["task"] == "digits" and not load_model("one").training


def own_shape() -> tuple[int, ...]:
    from quietsum.tasks import trainable_task

    return tuple(trainable_task("digits").records()[0].shape[1:])

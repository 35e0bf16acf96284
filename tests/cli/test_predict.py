"""``quietsum predict``: a table of rows becomes a table of predictions, in order, or is refused in one line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import quietsum as qs
from quietsum.runs import open_model
from scenes import invoke, tiny_toml

PLAN = """
[federation]
rounds = 1
[training]
sample_rate = 0.2
local_steps = 1
[privacy]
record = { epsilon = 1.0, delta = 1e-5, max_grad_norm = 0.5 }
"""
ROWS = """age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak
66,1,4,150,290,0,2,110,1,2.5
?,1,4,150,290,0,2,110,1,2.5

35,0,2,110,190,0,0,180,0,0
"""

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_rows_become_predictions_in_their_order_and_the_file_says_what_the_model_says() -> None:
    qs.run(PLAN, name="first")
    Path("rows.csv").write_text(ROWS, encoding="utf-8")
    result = invoke("predict", "first", "rows.csv", "-o", "out.csv")
    assert result.exit_code == 0, result.output
    assert "warning: 1 of 3 rows could not be read" in result.stderr
    said = " ".join(result.stdout.split())
    assert "wrote out.csv: 3 rows by the model of first, which cost" in said and "per record at δ = 1e-05" in said
    with Path("out.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = open_model("first").predict_file(Path("rows.csv"))
    assert [row["row"] for row in rows] == ["1", "2", "3"]
    assert [row["prediction"] for row in rows] == found.labels() and rows[1]["prediction"] == rows[1]["p_ill"] == ""
    assert float(rows[0]["p_ill"]) == pytest.approx(found.values[0, 1], rel=1e-8)
    shown = invoke("predict", "latest", "rows.csv")
    assert shown.exit_code == 0 and shown.stdout == Path("out.csv").read_text(encoding="utf-8")
    values = json.loads(invoke("predict", "latest", "rows.csv", "--json").stdout)
    assert (values["rows"], values["missing"], values["predictions"]) == (3, 1, found.labels())


def refused(*line: str) -> str:
    result = invoke("predict", *line, "-o", "out.csv")
    assert result.exit_code != 0 and "Traceback" not in result.output and not Path("out.csv").exists()
    return " ".join(result.stderr.split())


def test_what_cannot_be_predicted_is_refused_in_one_line_and_nothing_is_written() -> None:
    qs.run(PLAN, name="first")
    Path("rows.csv").write_text("age,sex\n66,1\n", encoding="utf-8")
    assert "columns = 'cp, trestbps" in refused("first", "rows.csv")
    assert "the table none.csv cannot be read" in refused("first", "none.csv")
    assert "counts from the folder where the command runs" in refused("first", "none.csv")
    assert "does not exist" in refused("second", "rows.csv")
    Path("rows.csv").write_text("", encoding="utf-8")
    assert "are not all in the table" in refused("first", "rows.csv")
    Path("rows.npy").write_bytes(b"\x93NUMPY")
    assert "cannot be read" in refused("first", "rows.npy")
    same = invoke("predict", "first", "rows.csv", "-o", "./rows.csv")
    assert same.exit_code == 2 and "is the file of the rows" in " ".join(same.stderr.split())
    Path("quietsum-workspace/runs/first/model.safetensors").unlink()
    assert "is not finished" in refused("first", "rows.csv")


def test_a_task_that_does_not_say_what_its_model_answers_says_what_to_write() -> None:
    Path("run.toml").write_text(tiny_toml(), encoding="utf-8")
    assert invoke("run", "run.toml", "--name", "tiny").exit_code == 0
    Path("rows.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    assert "give the task encode_file(path)" in refused("tiny", "rows.csv")
    import numpy as np

    np.save("rows.npy", np.zeros((1, 2)))
    assert "give it answers(params, features)" in refused("tiny", "rows.npy")

"""``quietsum curve`` and the charts under it: in a terminal, as SVG and as numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import Result
from typer.testing import CliRunner

from quietsum.charts import Chart, Series, number, svg, terminal
from quietsum.cli.app import app
from quietsum.errors import InvalidParameter

RUN = ("-s", 1, "-q", 0.1, "-T", 1000, "-d", 1e-5)


def curve(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["curve", *(str(argument) for argument in arguments)])


def values_of(*arguments: object) -> dict[str, Any]:
    result = curve(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def test_over_steps_the_curve_rises_to_the_cost_of_the_run() -> None:
    values = values_of(*RUN)
    assert values["x"][-1] == 1000
    assert values["epsilon"][-1] == pytest.approx(25.2046, abs=2e-4)
    assert values["epsilon"] == sorted(values["epsilon"])
    assert all(
        low <= high <= renyi
        for low, high, renyi in zip(values["epsilon_lower"], values["epsilon"], values["renyi_epsilon"], strict=True)
    )


@pytest.mark.parametrize(("over", "falls"), [("noise", True), ("delta", True), ("rate", False)])
def test_over_noise_and_delta_the_curve_falls_and_over_the_rate_it_rises(over: str, falls: bool) -> None:
    values = values_of("-s", 1, "-q", 0.01, "-T", 500, "-d", 1e-5, "--over", over)
    assert values["epsilon"] == sorted(values["epsilon"], reverse=falls)
    assert values["epsilon"][0] != values["epsilon"][-1]


def test_the_ends_of_the_axis_can_be_chosen() -> None:
    values = values_of(*RUN, "--over", "noise", "--from", 0.8, "--to", 3)
    assert (values["x"][0], values["x"][-1]) == (0.8, 3)


def test_people_see_a_plot_of_80_columns_with_both_lines_named() -> None:
    result = curve(*RUN)
    assert result.exit_code == 0
    assert "exact 25.2" in result.stdout
    assert "Rényi 27.2" in result.stdout
    assert any("\u2800" < letter <= "\u28ff" for letter in result.stdout)
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "next: quietsum calibrate" in result.stdout


def test_the_svg_is_well_formed_named_and_described(tmp_path: Path) -> None:
    path = tmp_path / "curve.svg"
    assert curve(*RUN, "-o", path).exit_code == 0
    root = ElementTree.parse(path).getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    assert root.get("role") == "img"
    assert "δ = 1e-05" in (root.findtext(f"{space}title") or "")
    assert "25.2" in (root.findtext(f"{space}desc") or "")
    assert len(root.findall(f"{space}polyline")) == 2
    words = [text.text for text in root.findall(f"{space}text")]
    assert {"steps", "ε per record", "exact 25.2", "Rényi 27.2"} <= set(words)
    assert "prefers-color-scheme: dark" in path.read_text(encoding="utf-8")


def test_a_dash_writes_the_svg_and_nothing_else_to_stdout() -> None:
    result = curve(*RUN, "-o", "-")
    assert ElementTree.fromstring(result.stdout).tag.endswith("svg")


@pytest.mark.parametrize(
    ("arguments", "lesson"),
    [
        (("-q", 0.1, "-T", 10, "-d", 1e-5), "noise_multiplier = None is missing"),
        (("-s", 1, "-T", 10, "-d", 1e-5), "sample_rate = None is missing"),
        (("-s", 1, "-q", 0.1, "-d", 1e-5), "steps = None is missing"),
        ((*RUN, "-o", "picture.gif"), "neither .svg nor .png"),
        ((*RUN, "-o", "no-such-folder/picture.svg"), "cannot be written"),
        ((*RUN, "--over", "noise", "--from", 3, "--to", 1), "swap"),
        ((*RUN, "--over", "delta", "--to", 2), "to = 2.0"),
        ((*RUN, "--over", "everything"), "everything"),
        (("-s", 1, "-T", 10, "-d", 1e-5, "--sampling", "none", "--over", "rate"), "contradicts"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments: tuple[object, ...], lesson: str) -> None:
    result = curve(*arguments)
    assert (result.exit_code, lesson in result.stderr) == (2, True), result.stderr


def line(*ys: float) -> tuple[tuple[float, float], ...]:
    return tuple((float(x), y) for x, y in enumerate(ys, start=1))


def chart(**changes: Any) -> Chart:
    values = {
        "title": "a < b & c",
        "x_label": "x",
        "y_label": "y",
        "series": (Series(label="l", points=line(1, 4, 2)),),
    }
    return Chart(**(values | changes))


def test_the_highest_dot_stands_above_the_lowest() -> None:
    rows = terminal(
        chart(series=(Series(label="l", points=line(0, 8)),)), width=40, height=8, unicode=False
    ).splitlines()
    stars = [(row, text.index("*")) for row, text in enumerate(rows) if "*" in text]
    assert stars[0][1] > stars[-1][1]


def test_without_unicode_the_plot_is_plain_ascii() -> None:
    two = (Series(label="exact", points=line(1, 2)), Series(label="Rényi", points=line(2, 3), dash="dashed"))
    drawn = terminal(chart(series=two), unicode=False)
    assert drawn.isascii()
    assert "*" in drawn
    assert "o" in drawn


def test_labels_of_lines_that_end_together_do_not_cover_each_other() -> None:
    lines = tuple(Series(label=name, points=line(1, 2)) for name in ("first", "second", "third"))
    drawn = terminal(chart(series=lines, limit=("limit", 2.0)))
    assert all(name in drawn for name in ("first", "second", "third", "limit"))


@pytest.mark.parametrize("points", [line(5.0), line(0.0, 0.0), line(3.0, 3.0), ((1.0, 1e-300), (2.0, 1e300))])
def test_single_points_flat_lines_and_extremes_can_be_drawn(points: tuple[tuple[float, float], ...]) -> None:
    drawn = chart(series=(Series(label="l", points=points),))
    assert ElementTree.fromstring(svg(drawn)) is not None
    assert "nan" not in svg(drawn)
    assert terminal(drawn)


def test_titles_are_escaped() -> None:
    assert ElementTree.fromstring(svg(chart())).findtext("{http://www.w3.org/2000/svg}title") == "a < b & c"


@pytest.mark.parametrize(
    "changes",
    [
        {"series": ()},
        {"series": (Series(label="l", points=line(float("nan"))),)},
        {"series": (Series(label="l", points=line(float("inf"))),)},
        {"series": (Series(label="l", points=line(0.0)),), "y_log": True},
    ],
)
def test_points_that_have_no_place_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        chart(**changes)


def test_ticks_are_short() -> None:
    assert [number(value) for value in (0, 0.5, 20, 31_200, 5e6, 1e-10)] == ["0", "0.5", "20", "31.2k", "5M", "1e-10"]

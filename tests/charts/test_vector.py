"""Pictures: unique names, a style of their own or of the page, legends that fit, and shares that stay shares."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from quietsum.charts import STYLE, Chart, Gauge, Series, gauge_svg, interval_svg, svg
from quietsum.errors import InvalidParameter

LINE = Series(label="ε", points=((1.0, 0.2), (2.0, 0.9)))


def chart(*series: Series, **more: object) -> Chart:
    return Chart(title="t", x_label="x", y_label="y", series=series or (LINE,), **more)  # type: ignore[arg-type]


def test_a_picture_on_a_page_has_ids_of_its_own_and_no_style() -> None:
    for picture in (
        svg(chart(), name="one", styled=False),
        interval_svg("t", "x", [("a", 0.5, 0.4, 0.6)], styled=False, id_prefix="one"),
        gauge_svg(Gauge(title="ε", spent=0.5, planned=1.0, limit=2.0), name="one", styled=False),
    ):
        ElementTree.fromstring(picture)
        assert "<style" not in picture and " style=" not in picture
        assert all(found.startswith("one-") for found in re.findall(r'id="([^"]*)"', picture))
    assert "<style" in svg(chart()) and "prefers-color-scheme: dark" in STYLE and "@media print" in STYLE


def test_error_bars_of_a_share_never_leave_it() -> None:
    line = Series(label="a", points=((1.0, 0.02), (2.0, 0.97)), bars=((-0.3, 0.2), (0.9, 1.4)))
    assert chart(line, share=True).series[0].bars == ((0.0, 0.2), (0.9, 1.0))
    assert chart(line, share=True).y_scale.high == 1.0
    assert chart(line).y_scale.high > 1.0  # the negative control
    with pytest.raises(InvalidParameter, match="is no share"):
        chart(Series(label="a", points=((1.0, 1.01),)), share=True)


def test_a_legend_that_does_not_fit_goes_on_below() -> None:
    lines = [Series(label=f"a line with a long name {number}", points=((1.0, 1.0), (2.0, 2.0))) for number in range(3)]
    narrow, wide = svg(chart(*lines), width=390), svg(chart(*lines), width=1200)
    rows = [{float(y) for y in re.findall(r'y1="([\d.]+)" y2="\1"', picture)} for picture in (narrow, wide)]
    assert len(rows[0] & {58.0, 80.0, 102.0}) == 3 and 80.0 not in rows[1]


def test_dots_are_drawn_where_points_are_not_joined() -> None:
    dots = svg(chart(Series(label="runs", points=((1.0, 1.0), (2.0, 2.0)), joined=False)))
    assert "polyline" not in dots and 'class="line dot s0"' in dots


@pytest.mark.parametrize(
    ("spent", "planned", "limit"),
    [(-1.0, 1.0, 1.0), (float("nan"), 1.0, 1.0), (0.0, 1.0, 0.0), (0.0, 1.0, float("inf"))],
)
def test_a_gauge_of_nonsense_is_refused(spent: float, planned: float, limit: float) -> None:
    with pytest.raises(InvalidParameter):
        Gauge(title="ε", spent=spent, planned=planned, limit=limit)


def test_a_gauge_says_in_words_what_it_shows_and_never_less_than_is_spent() -> None:
    gauge = Gauge(title="ε per record", spent=0.333333, planned=0.9, limit=1.0)
    assert gauge.sentence == ("ε per record: 0.3334 spent, 0.9 if the schedule runs as planned, of a limit of 1.")
    assert "∞ spent" in Gauge(title="ε", spent=float("inf"), planned=float("inf"), limit=1.0).sentence


def test_what_is_spent_is_as_wide_as_its_share() -> None:
    def widths(spent: float) -> list[float]:
        picture = gauge_svg(Gauge(title="ε", spent=spent, planned=1.0, limit=1.0), width=364)
        return [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', picture)]

    track, planned, half = widths(0.5)
    assert (
        track == 360.0 and planned == pytest.approx(360 / 1.08, abs=0.1) and half == pytest.approx(planned / 2, abs=0.1)
    )
    assert widths(0.0)[2] == 0.0

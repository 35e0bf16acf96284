"""Values that lie close together: their ticks are told apart, and long labels keep off the axis' name."""

from __future__ import annotations

import re

import pytest

from quietsum.charts import Chart, Series, interval_svg, svg
from quietsum.charts.lines import Scale, number


def dots(points: tuple[tuple[float, float], ...], **more: bool) -> Chart:
    series = (Series(label="runs", points=points, joined=False),)
    return Chart(title="runs", x_label="ε", y_label="accuracy", y_from_zero=False, series=series, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("low", [0.02, 0.9997, 1.0, 0.8071, 31_234.0, -5.0])
@pytest.mark.parametrize("share", [0.0, 1e-12, 1e-6, 1e-3, 0.3])
def test_no_two_ticks_have_the_same_label(low: float, share: float) -> None:
    high = low + share * abs(low)
    for rounded in (False, True):
        scale = Scale.around([low, high], log=False, rounded=rounded)
        labels = [number(tick) for tick in scale.ticks(6)]
        assert len(set(labels)) == len(labels) and len(labels) >= 2
        assert scale.low <= low and high <= scale.high + 1e-9 * abs(high)


def test_the_control_the_narrow_axis_of_before_had_labels_that_were_alike() -> None:
    labels = [number(tick) for tick in Scale(low=0.99999, high=1.00001, log=False).ticks(6)]
    assert len(set(labels)) < len(labels)


def test_an_axis_from_zero_ends_at_a_tick_beyond_every_point() -> None:
    scale = dots(((3.7, 0.5), (3.9, 0.6)), x_from_zero=True).x_scale
    assert scale.low == 0.0 and scale.high == pytest.approx(4.0) and scale.ticks(6)[-1] == pytest.approx(4.0)
    assert dots(((3.7, 0.5), (3.9, 0.6))).x_scale.low == 3.7


def test_long_labels_begin_to_the_right_of_the_axis_name() -> None:
    for points in (((1.0, 0.8071), (2.0, 0.8109)), ((1.0, 0.0), (2.0, 0.9))):
        picture = svg(dots(points))
        ends = {
            (float(x), text) for x, text in re.findall(r'x="([\d.]+)" y="[\d.]+" text-anchor="end">([^<]+)<', picture)
        }
        assert ends and all(x - 7 * len(text) >= 22 for x, text in ends)  # the name's letters end at 22


def test_intervals_without_a_head_leave_the_title_to_the_page_and_fit_a_narrow_screen() -> None:
    rows = [("a name that is far too long for a telephone", 0.5, 0.4, 0.6)]
    narrow = interval_svg("share", "share of people", rows, width=390, headed=False)
    assert 'class="title"' not in narrow and "<title" in narrow and "…" in narrow
    assert 'class="title"' in interval_svg("share", "share of people", rows)
    label = re.search(r'x="([\d.]+)" y="[\d.]+" text-anchor="end">([^<]+)<', narrow)
    assert label is not None and float(label[1]) - 7 * len(label[2]) >= 0

"""Pictures in files: an SVG, or a PNG where matplotlib is installed, and what is checked before hours of work."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path

from quietsum.charts.lines import Chart
from quietsum.charts.vector import svg
from quietsum.errors import InvalidParameter
from quietsum.files import DiskFull, NoRoom, check_output, write_output

__all__ = ["check_picture", "check_picture_name", "png", "save", "save_picture"]

_PRINTED = ("#0969da", "#bc4c00", "#8250df", "#1a7f37")


def save(chart: Chart, path: str) -> None:
    """Write ``chart`` to a file, as PNG if it is named so, else as SVG; ``-`` is an SVG on stdout."""
    save_picture(png(chart) if path.lower().endswith(".png") else svg(chart), path)


def check_picture_name(option: str, path: str | None) -> None:
    """Raise InvalidParameter if ``path`` is named neither .svg nor .png, or a PNG cannot be drawn here."""
    if path in (None, "-") or str(path).lower().endswith(".svg"):
        return
    if not str(path).lower().endswith(".png"):
        raise InvalidParameter(option, path, "is named neither .svg nor .png", "a picture is one of these")
    if importlib.util.find_spec("matplotlib") is None:
        problem = "needs matplotlib, which is not installed"
        raise InvalidParameter(option, path, problem, "name it .svg, or: pip install 'quietsum[pictures]'")


def save_picture(picture: str | bytes, path: str) -> None:
    """Write a picture to a file, or an SVG to stdout for ``-``."""
    if path == "-":
        sys.stdout.write(str(picture))
        return
    try:
        write_output(Path(path), picture)
    except DiskFull:
        raise
    except (NoRoom, OSError, ValueError) as error:
        reason = str(error).split(": ", 1)[-1].split(";")[0]
        raise InvalidParameter("output", path, f"cannot be written ({reason})", "choose another place") from None


def check_picture(path: str) -> None:
    """InvalidParameter where :func:`save_picture` could not write to ``path``: ask before hours of work.

    Nothing is left behind, and what is there stays.
    """
    if path == "-":
        return
    try:
        check_output(Path(path))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is no name of a file"
        problem = f"cannot be written ({reason}), and nothing was trained"
        raise InvalidParameter("output", path, problem, "choose another place") from None


def png(chart: Chart) -> bytes:
    """``chart`` as a PNG, light, drawn by matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 4.4), dpi=150, layout="constrained")
    axes = figure.subplots()
    styles = {"solid": "-", "dashed": "--", "dotted": ":"}
    for index, line in enumerate(chart.series):
        across, up = zip(*line.points, strict=True)
        axes.plot(across, up, styles[line.dash], color=_PRINTED[index % 4], label=line.label, linewidth=2)
        if line.bars:
            reach = [[y - low for y, (low, _) in zip(up, line.bars, strict=True)],
                     [high - y for y, (_, high) in zip(up, line.bars, strict=True)]]  # fmt: skip
            axes.errorbar(across, up, yerr=reach, fmt="o", color=_PRINTED[index % 4], capsize=4)
    if chart.limit is not None:
        axes.axhline(chart.limit[1], color="#cf222e", linestyle="--", linewidth=1, label=chart.limit[0])
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    if chart.x_scale.log:
        axes.set_xscale("log")
    if chart.y_scale.log:
        axes.set_yscale("log")
    axes.grid(visible=True, color="#d8dee4")
    axes.legend()
    if chart.note:
        figure.supxlabel(chart.note, fontsize=8)
    found = io.BytesIO()
    figure.savefig(found, format="png")
    return found.getvalue()

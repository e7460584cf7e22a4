"""Plots of the notebooks, as SVG with axes and units.

They need no plotting library, and GitHub shows them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from IPython.display import SVG

# Sizes in pixels: of the picture, and of the margins around the plot.
_WIDTH: Final = 640
_HEIGHT: Final = 260
_LEFT: Final = 70
_RIGHT: Final = 110
_TOP: Final = 14
_BOTTOM: Final = 48

_PLOT_WIDTH: Final = _WIDTH - _LEFT - _RIGHT
_PLOT_HEIGHT: Final = _HEIGHT - _TOP - _BOTTOM
_PLOT_RIGHT: Final = _WIDTH - _RIGHT
_PLOT_BOTTOM: Final = _HEIGHT - _BOTTOM

_COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
_GRID_COLOUR: Final = "#d0d7de"
_AXIS_COLOUR: Final = "#57606a"

_STEPS: Final = (1, 2, 2.5, 5, 10)
"""Steps between two ticks, as multiples of a power of ten."""


def ticks(largest: float, count: int = 5) -> list[float]:
    """Return round numbers from 0 to a number at or above the largest value.

    The step between two ticks is 1, 2, 2.5 or 5 times a power of ten: for a largest
    value of 930 it is 200, and the ticks are 0, 200, ..., 1,000.

    Args:
        largest: Largest value; at least 0.
        count: Approximate number of steps.
    """
    if largest <= 0:
        return [0.0, 1.0]
    # The smallest step that is not below largest / count. The factor 0.999 lets a
    # number pass that is too large by rounding.
    least_step = largest / count
    power = 10 ** math.floor(math.log10(least_step))
    step = power
    for factor in _STEPS:
        step = factor * power
        if step >= least_step * 0.999:
            break
    step_count = math.ceil(largest / step * 0.999)
    return [number * step for number in range(step_count + 1)]


def line_plot(
    lines: Mapping[str, Sequence[float]],
    *,
    x_label: str,
    y_label: str,
    x_step: float = 1.0,
) -> SVG:
    """Return a plot of lines over a common x-axis.

    Args:
        lines: Name of each line -> its values at x = 0, `x_step`, 2 * `x_step`, ...; at
            most four lines.
        x_label: Label of the x-axis, with its unit.
        y_label: Label of the y-axis, with its unit.
        x_step: Distance of two values on the x-axis.
    """
    # 1. The axes.
    most_values = max(len(values) for values in lines.values())
    largest_value = max(max(values) for values in lines.values())
    x_ticks = ticks(x_step * (most_values - 1))
    y_ticks = ticks(largest_value)
    elements = _axes(x_label, y_label, y_ticks)
    for tick in x_ticks:
        elements.append(_x_tick(_x_pixel(tick, x_ticks[-1]), f"{tick:,g}"))

    # 2. The lines, and their names in the right margin.
    for number, (name, values) in enumerate(lines.items()):
        colour = _COLOURS[number]
        points: list[str] = []
        for index, value in enumerate(values):
            x = _x_pixel(x_step * index, x_ticks[-1])
            y = _y_pixel(value, y_ticks[-1])
            points.append(f"{x:.1f},{y:.1f}")
        elements.append(
            f'<polyline points="{" ".join(points)}" fill="none" '
            f'stroke="{colour}" stroke-width="2"/>'
        )
        legend_bottom = _TOP + 14 + 20 * number
        elements.append(
            f'<rect x="{_PLOT_RIGHT + 12}" y="{legend_bottom - 9}" '
            f'width="12" height="4" fill="{colour}"/>'
        )
        elements.append(
            f'<text x="{_PLOT_RIGHT + 30}" y="{legend_bottom - 3}">'
            f"{escape(name)}</text>"
        )
    return _picture(elements)


def bar_plot(bars: Mapping[str, float], *, x_label: str, y_label: str) -> SVG:
    """Return a plot of bars.

    Args:
        bars: Label of each bar -> its height, from left to right.
        x_label: Label of the x-axis, with its unit.
        y_label: Label of the y-axis, with its unit.
    """
    y_ticks = ticks(max(bars.values()))
    elements = _axes(x_label, y_label, y_ticks)
    # A bar fills the middle 80% of its part of the x-axis.
    part_width = _PLOT_WIDTH / len(bars)
    for number, (label, height) in enumerate(bars.items()):
        left = _LEFT + number * part_width
        top = _y_pixel(height, y_ticks[-1])
        elements.append(
            f'<rect x="{left + 0.1 * part_width:.1f}" y="{top:.1f}" '
            f'width="{0.8 * part_width:.1f}" height="{_PLOT_BOTTOM - top:.1f}" '
            f'fill="{_COLOURS[0]}">'
            f"<title>{escape(label)}: {height:,g}</title></rect>"
        )
        elements.append(_x_tick(left + part_width / 2, label))
    return _picture(elements)


def _x_pixel(value: float, largest: float) -> float:
    """Return the horizontal position of a value, in pixels from the left."""
    return _LEFT + value / largest * _PLOT_WIDTH


def _y_pixel(value: float, largest: float) -> float:
    """Return the vertical position of a value, in pixels from the top."""
    return _PLOT_BOTTOM - value / largest * _PLOT_HEIGHT


def _x_tick(x: float, text: str) -> str:
    """Return the text of a tick of the x-axis."""
    return (
        f'<text x="{x:.1f}" y="{_PLOT_BOTTOM + 18}" text-anchor="middle">'
        f"{escape(text)}</text>"
    )


def _axes(x_label: str, y_label: str, y_ticks: Sequence[float]) -> list[str]:
    """Return the x-axis, the ticks of the y-axis with their lines, and the labels."""
    elements: list[str] = []
    for tick in y_ticks:
        y = _y_pixel(tick, y_ticks[-1])
        elements.append(
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_PLOT_RIGHT}" y2="{y:.1f}" '
            f'stroke="{_GRID_COLOUR}"/>'
        )
        elements.append(
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>'
        )
    elements.append(
        f'<line x1="{_LEFT}" y1="{_PLOT_BOTTOM}" '
        f'x2="{_PLOT_RIGHT}" y2="{_PLOT_BOTTOM}" stroke="{_AXIS_COLOUR}"/>'
    )
    x_middle = (_LEFT + _PLOT_RIGHT) / 2
    elements.append(
        f'<text x="{x_middle}" y="{_HEIGHT - 8}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    y_middle = (_TOP + _PLOT_BOTTOM) / 2
    elements.append(
        f'<text x="14" y="{y_middle}" text-anchor="middle" '
        f'transform="rotate(-90 14 {y_middle})">{escape(y_label)}</text>'
    )
    return elements


def _picture(elements: Sequence[str]) -> SVG:
    """Return elements of SVG as a picture.

    The background is white, so that a dark notebook shows it as well.
    """
    return SVG(
        '<svg xmlns="http://www.w3.org/2000/svg" '
        f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#24292f">'
        '<rect width="100%" height="100%" fill="#ffffff"/>'
        f"{''.join(elements)}</svg>"
    )

"""Plots of the notebooks, as SVG with axes and units: no plotting library is needed, and GitHub shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from IPython.display import SVG

_WIDTH: Final = 640
_HEIGHT: Final = 260
_LEFT: Final = 70
_RIGHT: Final = 110
_TOP: Final = 14
_BOTTOM: Final = 48
_COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


def ticks(largest: float, count: int = 5) -> list[float]:
    """Return round numbers from 0 to a number at or above the largest value, about `count` of them.

    The distance of two ticks is 1, 2, 2.5 or 5 times a power of ten: for 930 values it is 200, from 0 to 1,000.

    Args:
        largest: Largest value; at least 0.
        count: Number of steps that is aimed at.
    """
    if largest <= 0:
        return [0.0, 1.0]
    rough = largest / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(
        factor * power
        for factor in (1, 2, 2.5, 5, 10)
        if factor * power >= rough * 0.999
    )
    return [number * step for number in range(math.ceil(largest / step * 0.999) + 1)]


def line_plot(
    lines: Mapping[str, Sequence[float]],
    *,
    x_label: str,
    y_label: str,
    x_step: float = 1.0,
) -> SVG:
    """Return a plot of lines over a common x-axis.

    Args:
        lines: Name of each line -> its values, at x = 0, `x_step`, 2 * `x_step`, ...; up to four lines.
        x_label: Label of the x-axis, with its unit.
        y_label: Label of the y-axis, with its unit.
        x_step: Distance of two values on the x-axis.
    """
    x_ticks = ticks(x_step * (max(len(values) for values in lines.values()) - 1))
    y_ticks = ticks(max(max(values) for values in lines.values()))
    parts = _axes(x_label, y_label, y_ticks)
    parts += [_x_tick(_x_place(tick, x_ticks[-1]), f"{tick:,g}") for tick in x_ticks]
    for number, (name, values) in enumerate(lines.items()):
        colour = _COLOURS[number]
        points: list[str] = []
        for index, value in enumerate(values):
            points.append(
                f"{_x_place(x_step * index, x_ticks[-1]):.1f},{_y_place(value, y_ticks[-1]):.1f}"
            )
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        place = _TOP + 14 + 20 * number
        parts.append(
            f'<rect x="{_WIDTH - _RIGHT + 12}" y="{place - 9}" width="12" height="4" fill="{colour}"/>'
        )
        parts.append(
            f'<text x="{_WIDTH - _RIGHT + 30}" y="{place - 3}">{escape(name)}</text>'
        )
    return _svg(parts)


def bar_plot(bars: Mapping[str, float], *, x_label: str, y_label: str) -> SVG:
    """Return a plot of bars.

    Args:
        bars: Label of each bar -> its height, in the order in which they are drawn.
        x_label: Label of the x-axis, with its unit.
        y_label: Label of the y-axis, with its unit.
    """
    y_ticks = ticks(max(bars.values()))
    parts = _axes(x_label, y_label, y_ticks)
    room = (_WIDTH - _LEFT - _RIGHT) / len(bars)
    for number, (label, height) in enumerate(bars.items()):
        left = _LEFT + number * room
        top = _y_place(height, y_ticks[-1])
        bottom = _HEIGHT - _BOTTOM
        parts.append(
            f'<rect x="{left + 0.1 * room:.1f}" y="{top:.1f}" width="{0.8 * room:.1f}" '
            f'height="{bottom - top:.1f}" fill="{_COLOURS[0]}"><title>{escape(label)}: {height:,g}</title></rect>'
        )
        parts.append(_x_tick(left + room / 2, label))
    return _svg(parts)


def _x_place(value: float, largest: float) -> float:
    return _LEFT + value / largest * (_WIDTH - _LEFT - _RIGHT)


def _y_place(value: float, largest: float) -> float:
    return _HEIGHT - _BOTTOM - value / largest * (_HEIGHT - _TOP - _BOTTOM)


def _x_tick(place: float, text: str) -> str:
    return f'<text x="{place:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{escape(text)}</text>'


def _axes(x_label: str, y_label: str, y_ticks: Sequence[float]) -> list[str]:
    """Return the axes, the lines at the ticks of the y-axis, and the labels."""
    right = _WIDTH - _RIGHT
    bottom = _HEIGHT - _BOTTOM
    parts: list[str] = []
    for tick in y_ticks:
        place = _y_place(tick, y_ticks[-1])
        parts.append(
            f'<line x1="{_LEFT}" y1="{place:.1f}" x2="{right}" y2="{place:.1f}" stroke="#d0d7de"/>'
        )
        parts.append(
            f'<text x="{_LEFT - 8}" y="{place + 4:.1f}" text-anchor="end">{tick:,g}</text>'
        )
    parts.append(
        f'<line x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="#57606a"/>'
    )
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>'
    )
    height = (_TOP + bottom) / 2
    parts.append(
        f'<text x="14" y="{height}" text-anchor="middle" transform="rotate(-90 14 {height})">{escape(y_label)}</text>'
    )
    return parts


def _svg(parts: Sequence[str]) -> SVG:
    """Return the picture on white, which is readable in a dark notebook, too."""
    return SVG(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="#24292f"><rect width="100%" height="100%" fill="#ffffff"/>'
        f"{''.join(parts)}</svg>"
    )

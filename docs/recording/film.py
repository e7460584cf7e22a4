"""Screens of a terminal as an animated SVG: a film of frames that moves behind a
window, by CSS alone.

1. Equal rows are drawn once, in ``<defs>``; a frame refers to them. Most rows of two
   neighbouring frames are equal.
2. Frame i is drawn at height i * H, where H is the height of the window.
3. The film is moved by -i * H at the time at which frame i begins, without a
   transition.

With a system that asks for reduced motion, the last frame stands still.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Final

from docs.recording.screen import Row, Run

_CHARACTER: Final = 8.0
"""Width of a character, in pixels."""

_LINE: Final = 18
"""Height of a row, in pixels."""

_MARGIN: Final = 12
_HEAD: Final = 30
"""Height of the bar above the terminal."""

_LAST_SECONDS: Final = 5.0
"""Time for which the last frame is shown."""


@dataclass(frozen=True)
class Frame:
    """Contents of the screen from a time on."""

    time: float
    """Seconds since the beginning."""

    rows: tuple[Row, ...]
    """Rows of the screen."""


def thinned(frames: list[Frame], *, least: float, most: float) -> list[Frame]:
    """Return frames at a watchable pace: each differs from the one before it.

    Args:
        frames: Frames in ascending time.
        least: Minimum seconds of a frame; a frame that is replaced sooner is left out.
        most: Maximum seconds of a frame; later frames move forward.
    """
    kept: list[Frame] = []
    for frame in frames:
        if kept and frame.rows == kept[-1].rows:
            continue
        if kept and frame.time - kept[-1].time < least:
            kept[-1] = Frame(kept[-1].time, frame.rows)
        else:
            kept.append(frame)
    paced: list[Frame] = []
    before = 0.0
    time = 0.0
    for frame in kept:
        if paced and frame.rows == paced[-1].rows:
            continue
        time += min(frame.time - before, most)
        before = frame.time
        paced.append(Frame(time, frame.rows))
    return paced


def svg_of(frames: list[Frame], columns: int, rows: int, title: str) -> str:
    """Return the film as SVG.

    Args:
        frames: Frames in ascending time; at least one.
        columns: Columns of the terminal.
        rows: Rows of the terminal.
        title: Text for readers who do not see the picture.
    """
    width = round(columns * _CHARACTER + 2 * _MARGIN)
    height = rows * _LINE + 2 * _MARGIN
    seconds = frames[-1].time + _LAST_SECONDS
    numbers: dict[Row, int] = {(): 0}
    film: list[str] = []
    for index, frame in enumerate(frames):
        lines = [f'<g transform="translate(0 {index * height})">']
        for place, row in enumerate(frame.rows):
            if row:
                number = numbers.setdefault(row, len(numbers))
                lines.append(f'<use href="#r{number}" y="{_MARGIN + place * _LINE}"/>')
        film.append("".join([*lines, "</g>"]))
    steps = [
        f"{100 * frame.time / seconds:.2f}%{{transform:translateY({-index * height}px)}}"
        for index, frame in enumerate(frames)
    ]
    last = -(len(frames) - 1) * height
    drawn = [
        f'<g id="r{number}">{_drawn(row)}</g>' for row, number in numbers.items() if row
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + _HEAD}" width="{width}" '
            f'height="{height + _HEAD}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            "<style>",
            "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d0d7de;white-space:pre}",
            ".b{font-weight:700}.d{opacity:.6}",
            f"@keyframes play{{{''.join(steps)}}}",
            f".film{{animation:play {seconds:.2f}s step-end infinite}}",
            f"@media (prefers-reduced-motion:reduce){{.film{{animation:none;transform:translateY({last}px)}}}}",
            "</style>",
            f'<rect width="{width}" height="{height + _HEAD}" rx="8" fill="#161b22"/>',
            *(
                f'<circle cx="{18 + 18 * dot}" cy="15" r="5" fill="#484f58"/>'
                for dot in range(3)
            ),
            "<defs>",
            *drawn,
            "</defs>",
            f'<svg y="{_HEAD}" width="{width}" height="{height}" overflow="hidden"><g class="film">',
            *film,
            "</g></svg>",
            "</svg>",
            "",
        ]
    )


def _drawn(row: Row) -> str:
    """Return a row as text."""
    return "".join(_drawn_run(run) for run in row)


def _drawn_run(run: Run) -> str:
    """Return a run as text of exactly its width, so that columns meet with any font."""
    classes = " ".join(
        name for name, has in (("b", run.style.is_bold), ("d", run.style.is_dim)) if has
    )
    attributes = [f'x="{_MARGIN + run.column * _CHARACTER:g}" y="13"']
    if len(run.text) > 1:
        attributes.append(
            f'textLength="{len(run.text) * _CHARACTER:g}" lengthAdjust="spacingAndGlyphs"'
        )
    if classes:
        attributes.append(f'class="{classes}"')
    if run.style.colour:
        attributes.append(f'style="fill:{run.style.colour}"')
    return f"<text {' '.join(attributes)}>{escape(run.text, quote=False)}</text>"

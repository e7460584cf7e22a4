"""Animated SVG of the screens of a terminal.

The picture is a film of frames that CSS moves behind a window:

1. Equal rows are drawn once, in ``<defs>``; a frame refers to them. Most rows of two
   neighbouring frames are equal.
2. Frame i is drawn at height i * H, where H is the height of the window.
3. The film is moved by -i * H at the time at which frame i begins, without a
   transition.

On a system that requests reduced motion, the last frame stands still.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Final

from docs.recording.screen import Row, Run

_CHARACTER_WIDTH: Final = 8.0
_ROW_HEIGHT: Final = 18
_MARGIN: Final = 12
_HEAD_HEIGHT: Final = 30
"""Sizes in pixels; the head is the bar above the terminal."""

_LAST_SECONDS: Final = 5.0
"""Time for which the last frame is shown."""


@dataclass(frozen=True)
class Frame:
    """Contents of the screen, and the time from which they are shown."""

    time: float
    """Seconds since the beginning."""

    rows: tuple[Row, ...]
    """Rows of the screen."""


def paced(frames: list[Frame], *, least: float, most: float) -> list[Frame]:
    """Return frames at a watchable pace. Each differs from the frame before it.

    Args:
        frames: Frames in ascending time.
        least: Minimum time of a frame, in seconds; a frame that is replaced sooner is
            left out.
        most: Maximum time of a frame, in seconds; later frames move forward.
    """
    # 1. A frame that is replaced too soon shows the rows that replace it.
    lasting_frames: list[Frame] = []
    for frame in frames:
        if lasting_frames:
            last_frame = lasting_frames[-1]
            if frame.rows == last_frame.rows:
                continue
            if frame.time - last_frame.time < least:
                lasting_frames[-1] = Frame(last_frame.time, frame.rows)
                continue
        lasting_frames.append(frame)

    # 2. Long frames are shortened. Replacing rows may have made two frames equal.
    paced_frames: list[Frame] = []
    recorded_time = 0.0
    time = 0.0
    for frame in lasting_frames:
        if paced_frames and frame.rows == paced_frames[-1].rows:
            continue
        time += min(frame.time - recorded_time, most)
        recorded_time = frame.time
        paced_frames.append(Frame(time, frame.rows))
    return paced_frames


def svg_of(frames: list[Frame], columns: int, rows: int, title: str) -> str:
    """Return the film as SVG.

    Args:
        frames: Frames in ascending time; at least one.
        columns: Columns of the terminal.
        rows: Rows of the terminal.
        title: Text for readers who do not see the picture.
    """
    width = round(columns * _CHARACTER_WIDTH + 2 * _MARGIN)
    height = rows * _ROW_HEIGHT + 2 * _MARGIN
    total_height = height + _HEAD_HEIGHT

    # 1. The frames, one below the other. Each distinct row has a number; 0 is the empty
    #    row, which is not drawn.
    row_numbers: dict[Row, int] = {(): 0}
    film: list[str] = []
    for index, frame in enumerate(frames):
        film.append(_frame_group(frame, index * height, row_numbers))
    definitions: list[str] = []
    for row, number in row_numbers.items():
        if row:
            definitions.append(f'<g id="r{number}">{_row_text(row)}</g>')

    # 2. The movement of the film: frame i begins at a part of the whole time.
    seconds = frames[-1].time + _LAST_SECONDS
    key_frames: list[str] = []
    for index, frame in enumerate(frames):
        percent = 100 * frame.time / seconds
        key_frames.append(
            f"{percent:.2f}%{{transform:translateY({-index * height}px)}}"
        )
    last_offset = -(len(frames) - 1) * height

    # 3. The window, with three dots in its head.
    dots: list[str] = []
    for index in range(3):
        dots.append(f'<circle cx="{18 + 18 * index}" cy="15" r="5" fill="#484f58"/>')
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total_height}" width="{width}" '
        f'height="{total_height}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        "<style>",
        "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d0d7de;white-space:pre}",
        ".b{font-weight:700}.d{opacity:.6}",
        f"@keyframes play{{{''.join(key_frames)}}}",
        f".film{{animation:play {seconds:.2f}s step-end infinite}}",
        "@media (prefers-reduced-motion:reduce)"
        f"{{.film{{animation:none;transform:translateY({last_offset}px)}}}}",
        "</style>",
        f'<rect width="{width}" height="{total_height}" rx="8" fill="#161b22"/>',
        *dots,
        "<defs>",
        *definitions,
        "</defs>",
        f'<svg y="{_HEAD_HEIGHT}" width="{width}" height="{height}" overflow="hidden"><g class="film">',
        *film,
        "</g></svg>",
        "</svg>",
        "",
    ]
    return "\n".join(lines)


def _frame_group(frame: Frame, top: int, row_numbers: dict[Row, int]) -> str:
    """Return a frame as references to its rows.

    Args:
        frame: Frame.
        top: Height at which the frame begins, in pixels.
        row_numbers: Number of each row that was drawn; those of new rows are added.
    """
    parts = [f'<g transform="translate(0 {top})">']
    for index, row in enumerate(frame.rows):
        if row:
            number = row_numbers.setdefault(row, len(row_numbers))
            row_top = _MARGIN + index * _ROW_HEIGHT
            parts.append(f'<use href="#r{number}" y="{row_top}"/>')
    parts.append("</g>")
    return "".join(parts)


def _row_text(row: Row) -> str:
    """Return a row as text elements."""
    return "".join(_run_text(run) for run in row)


def _run_text(run: Run) -> str:
    """Return a run as a text element of exactly its width.

    Columns are then aligned with any font.
    """
    left = _MARGIN + run.column * _CHARACTER_WIDTH
    attributes = [f'x="{left:g}" y="13"']
    if len(run.text) > 1:
        width = len(run.text) * _CHARACTER_WIDTH
        attributes.append(f'textLength="{width:g}" lengthAdjust="spacingAndGlyphs"')
    classes: list[str] = []
    if run.style.is_bold:
        classes.append("b")
    if run.style.is_dim:
        classes.append("d")
    if classes:
        attributes.append(f'class="{" ".join(classes)}"')
    if run.style.colour:
        attributes.append(f'style="fill:{run.style.colour}"')
    return f"<text {' '.join(attributes)}>{escape(run.text, quote=False)}</text>"

"""The recording of a build: output becomes screens, screens become a film, and the
stored film is one of them.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.recording.film import Frame, paced, svg_of
from docs.recording.screen import Row, Run, Screen, Style, colour_of_256
from tests.docs.snippets import ROOT

RECORDING = ROOT / "docs" / "recording.svg"
PIECES = st.sampled_from(
    (
        "a",
        "é",
        "━",
        " ",
        "\r",
        "\n",
        "\b",
        "\x1b[1A",
        "\x1b[2K",
        "\x1b[K",
        "\x1b[38;5;197m",
        "\x1b[0m",
        "\x1b[99C",
    )
)


def texts(screen: Screen) -> list[str]:
    """Return the rows of a screen as plain text."""
    rows: list[str] = []
    for row in screen.rows_shown():
        text = ""
        for run in row:
            text = text.ljust(run.column) + run.text
        rows.append(text)
    return rows


@pytest.mark.parametrize(
    ("output", "rows"),
    [
        ("one\r\ntwo", ["one", "two", ""]),
        ("planning\r\x1b[2Kstarting", ["starting", "", ""]),
        ("10%\r\n1 of 9\r\x1b[2K\x1b[1A\x1b[2K20%\r\n2 of 9", ["20%", "2 of 9", ""]),
        ("1\r\n2\r\n3\r\n4", ["2", "3", "4"]),
        ("abcdefghijkl", ["abcdefghij", "kl", ""]),
        ("abc\x1b[2Dx\x1b[K", ["ax", "", ""]),
        ("a\x1b[?25l\x1b]0;title\x07\x1b[>4;1mb", ["ab", "", ""]),
    ],
    ids=[
        "lines",
        "replaced",
        "two rows replaced",
        "scrolled",
        "wrapped",
        "erased to the end",
        "skipped",
    ],
)
def test_output_becomes_rows(output: str, rows: list[str]) -> None:
    screen = Screen(columns=10, rows=3)
    screen.write(output)
    assert texts(screen) == rows


def test_colours_become_styles() -> None:
    screen = Screen(columns=30, rows=1)
    screen.write(
        "\x1b[1;31merror:\x1b[0m no \x1b[38;5;237m━━\x1b[39m\x1b[2m done\x1b[22m"
    )
    red = Style("#e5534b", is_bold=True)
    grey = Style("#3a3a3a")
    assert screen.rows_shown()[0] == (
        Run(0, "error:", red),
        Run(7, "no", Style()),
        Run(10, "━━", grey),
        Run(13, "done", Style(is_dim=True)),
    )


@given(st.integers(0, 255))
def test_each_of_256_colours_is_one(number: int) -> None:
    assert re.fullmatch("#[0-9a-f]{6}", colour_of_256(number))


@given(st.lists(PIECES, max_size=60), st.integers(1, 12), st.integers(1, 4))
def test_rows_stay_on_the_screen(pieces: list[str], columns: int, rows: int) -> None:
    screen = Screen(columns, rows)
    screen.write("".join(pieces))
    shown = screen.rows_shown()
    assert len(shown) == rows
    for row in shown:
        ends = [run.column + len(run.text) for run in row]
        assert all(end <= columns for end in ends) and ends == sorted(ends)


@given(st.lists(PIECES, max_size=60))
def test_output_may_arrive_in_any_pieces(pieces: list[str]) -> None:
    whole, parts = Screen(10, 3), Screen(10, 3)
    whole.write("".join(pieces))
    for piece in pieces:
        parts.write(piece)
    assert whole.rows_shown() == parts.rows_shown()


def row_of(text: str) -> tuple[Row, ...]:
    return ((Run(0, text, Style()),),)


def test_frames_are_thinned_and_waits_shortened() -> None:
    frames = [
        Frame(0.0, row_of("a")),
        Frame(0.5, row_of("a")),
        Frame(1.0, row_of("b")),
        Frame(1.05, row_of("c")),
        Frame(60.0, row_of("d")),
    ]
    paced_frames = paced(frames, least=0.1, most=2.0)
    assert [(frame.time, frame.rows) for frame in paced_frames] == [
        (0.0, row_of("a")),
        (1.0, row_of("c")),
        (3.0, row_of("d")),
    ]


def test_a_film_draws_equal_rows_once_and_escapes_text() -> None:
    same = (Run(0, "<b>&amp;", Style()),)
    frames = [
        Frame(0.0, (same, ())),
        Frame(1.0, (same, (Run(2, "$", Style(is_bold=True)),))),
    ]
    svg = svg_of(frames, 20, 2, 'a "film"')
    tree = ElementTree.fromstring(svg)
    drawn = [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert drawn == ["<b>&amp;", "$"]
    assert svg.count('href="#r1"') == 2 and "prefers-reduced-motion" in svg
    assert (
        re.search(r"animation:play 6\.00s", svg)
        and "16.67%{transform:translateY(-60px)}" in svg
    )


def test_the_stored_film_shows_a_build_that_is_cancelled_and_resumed() -> None:
    data = RECORDING.read_bytes()
    assert len(data) < 150_000
    tree = ElementTree.fromstring(data)
    text = "\n".join(
        text.text or "" for text in tree.iter("{http://www.w3.org/2000/svg}text")
    )
    assert (
        "cancelled:" in text
        and re.search(r"\d+ units resumed", text)
        and "intact" in text
    )
    assert "/tmp/" not in text and "<script" not in data.decode()

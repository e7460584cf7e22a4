"""The screen of a terminal: the output of a program, with its escape sequences, becomes
rows of styled text.

It knows the output of Tokenlake's command line: text, line breaks, movements of the
cursor, erasing, and colours. Other sequences are skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

_SEQUENCE: Final = re.compile(
    # A control sequence: cursor, erasing, colours.
    r"\x1b\[(?P<numbers>[0-9;:?<=>]*)[ -/]*(?P<letter>[@-~])"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # a command to the window, such as its title
    r"|\x1b[^\[\]]"
)
_COLOURS: Final = (
    *(
        "#1b1f24",
        "#e5534b",
        "#57ab5a",
        "#c69026",
        "#539bf5",
        "#b083f0",
        "#39c5cf",
        "#adbac7",
    ),
    *(
        "#768390",
        "#ff938a",
        "#8ddb8c",
        "#daaa3f",
        "#6cb6ff",
        "#dcbdfb",
        "#56d4dd",
        "#ffffff",
    ),
)
"""The 16 colours of a terminal with a dark background."""


@dataclass(frozen=True)
class Style:
    """Style of a character."""

    colour: str = ""
    """Colour as ``#rrggbb``; empty for that of the terminal."""

    is_bold: bool = False
    """True for bold characters."""

    is_dim: bool = False
    """True for characters of half intensity."""


@dataclass(frozen=True)
class Run:
    """Neighbouring characters of one style in a row."""

    column: int
    """Column of the first character."""

    text: str
    """Characters; not only spaces."""

    style: Style
    """Style of all of them."""


Row = tuple[Run, ...]


class Screen:
    """A terminal of fixed size."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self._style = Style()
        self._row = 0
        self._column = 0
        self._cells = [self._empty_row() for _ in range(rows)]

    def _empty_row(self) -> list[tuple[str, Style]]:
        return [(" ", Style())] * self.columns

    def write(self, text: str) -> None:
        """Show the output of a program; a sequence must not be cut between two
        calls.
        """
        place = 0
        while place < len(text):
            sequence = _SEQUENCE.match(text, place)
            if sequence is None:
                self._write_character(text[place])
                place += 1
                continue
            if sequence["letter"]:
                self._control(sequence["letter"], sequence["numbers"])
            place = sequence.end()

    def _write_character(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._next_row()
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character.isprintable():
            if self._column == self.columns:
                self._column = 0
                self._next_row()
            self._cells[self._row][self._column] = (character, self._style)
            self._column += 1

    def _next_row(self) -> None:
        """Move the cursor down; at the last row, all rows move up."""
        if self._row < self.rows - 1:
            self._row += 1
        else:
            self._cells = [*self._cells[1:], self._empty_row()]

    def _control(self, letter: str, numbers: str) -> None:
        """Follow a control sequence."""
        if numbers and not re.fullmatch(r"\d{1,4}(;\d{0,4})*", numbers):
            return
        values = [int(number or 0) for number in numbers.split(";")]
        count = values[0] or 1
        if letter == "m":
            self._style = styled(self._style, values)
        elif letter == "A":
            self._row = max(0, self._row - count)
        elif letter == "B":
            self._row = min(self.rows - 1, self._row + count)
        elif letter == "C":
            self._column = min(self.columns - 1, self._column + count)
        elif letter == "D":
            self._column = max(0, self._column - count)
        elif letter == "G":
            self._column = min(self.columns, count) - 1
        elif letter == "K":
            self._erase_in_row(values[0])
        elif letter == "J" and values[0] == 0:
            self._erase_in_row(0)
            for row in range(self._row + 1, self.rows):
                self._cells[row] = self._empty_row()

    def _erase_in_row(self, mode: int) -> None:
        """Erase from the cursor to the end of the row (mode 0), up to the cursor
        (1), or all of the row (2).
        """
        first = self._column if mode == 0 else 0
        last = min(self._column + 1, self.columns) if mode == 1 else self.columns
        for column in range(first, last):
            self._cells[self._row][column] = (" ", Style())

    def shown(self) -> tuple[Row, ...]:
        """Return the rows as runs of one style, without spaces at their ends."""
        return tuple(_runs(cells) for cells in self._cells)


def _runs(cells: list[tuple[str, Style]]) -> Row:
    """Return a row as runs."""
    runs: list[Run] = []
    column = 0
    while column < len(cells):
        style = cells[column][1]
        end = column
        while end < len(cells) and cells[end][1] == style:
            end += 1
        text = "".join(character for character, _ in cells[column:end])
        stripped = text.rstrip()
        lead = len(stripped) - len(stripped.lstrip())
        if stripped:
            runs.append(Run(column + lead, stripped[lead:], style))
        column = end
    return tuple(runs)


def styled(style: Style, values: list[int]) -> Style:
    """Return a style after a sequence that changes it.

    Args:
        style: Style before.
        values: Numbers of the sequence: 0 resets, 1 is bold, 2 dim, 22 neither, 30 to
            37 and 90 to 97 are colours, and ``38;5;n`` is colour n of 256.
    """
    place = 0
    while place < len(values):
        value = values[place]
        if value == 0:
            style = Style()
        elif value == 1:
            style = replace(style, is_bold=True)
        elif value == 2:
            style = replace(style, is_dim=True)
        elif value == 22:
            style = replace(style, is_bold=False, is_dim=False)
        elif 30 <= value <= 37:
            style = replace(style, colour=_COLOURS[value - 30])
        elif 90 <= value <= 97:
            style = replace(style, colour=_COLOURS[value - 82])
        elif (
            value == 38
            and values[place + 1 : place + 2] == [5]
            and place + 2 < len(values)
        ):
            style = replace(style, colour=colour_of_256(values[place + 2]))
            place += 2
        elif value == 39:
            style = replace(style, colour="")
        place += 1
    return style


def colour_of_256(number: int) -> str:
    """Return a colour of the palette of 256: 16 named ones, a cube of 6 x 6 x 6, and
    24 shades of grey.
    """
    number = min(number, 255)
    if number < 16:
        return _COLOURS[number]
    if number >= 232:
        grey = 8 + 10 * (number - 232)
        return f"#{grey:02x}{grey:02x}{grey:02x}"
    levels = (0, 95, 135, 175, 215, 255)
    red, rest = divmod(number - 16, 36)
    green, blue = divmod(rest, 6)
    return f"#{levels[red]:02x}{levels[green]:02x}{levels[blue]:02x}"

"""Screen of a terminal: rows of styled text from the output of a program.

The escape sequences of Tokenlake's command line are supported: line breaks, movements
of the cursor, erasing, and colours. Others are skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

_SEQUENCE: Final = re.compile(
    # A control sequence: cursor, erasing, colours.
    r"\x1b\[(?P<numbers>[0-9;:?<=>]*)[ -/]*(?P<letter>[@-~])"
    # A command to the window, such as its title.
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    # Any other sequence of two characters.
    r"|\x1b[^\[\]]"
)

_DARK_COLOURS: Final = (
    "#1b1f24",
    "#e5534b",
    "#57ab5a",
    "#c69026",
    "#539bf5",
    "#b083f0",
    "#39c5cf",
    "#adbac7",
)
_BRIGHT_COLOURS: Final = (
    "#768390",
    "#ff938a",
    "#8ddb8c",
    "#daaa3f",
    "#6cb6ff",
    "#dcbdfb",
    "#56d4dd",
    "#ffffff",
)
"""Colours of a terminal with a dark background: black, red, green, yellow, blue,
magenta, cyan and white, and the bright ones in the same order.
"""

_CUBE_LEVELS: Final = (0, 95, 135, 175, 215, 255)
"""Levels of red, green and blue in the palette of 256 colours."""


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
    """Neighbouring characters of a row that have one style."""

    column: int
    """Column of the first character."""

    text: str
    """Characters, without spaces at both ends."""

    style: Style
    """Style of the characters."""


Row = tuple[Run, ...]
"""Row of a screen, from left to right."""

Cell = tuple[str, Style]
"""Character of a screen, and its style."""


class Screen:
    """Screen of a terminal of fixed size, with a cursor.

    Args:
        columns: Number of columns.
        rows: Number of rows.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self._style = Style()
        self._row = 0
        self._column = 0
        self._cells = [self._empty_row() for _ in range(rows)]

    def _empty_row(self) -> list[Cell]:
        """Return a row of spaces."""
        return [(" ", Style())] * self.columns

    def write(self, text: str) -> None:
        """Show the output of a program.

        Args:
            text: Output. An escape sequence must not be divided between two calls.
        """
        index = 0
        while index < len(text):
            sequence = _SEQUENCE.match(text, index)
            if sequence is None:
                self._write_character(text[index])
                index += 1
                continue
            if sequence["letter"]:
                self._control(sequence["letter"], sequence["numbers"])
            index = sequence.end()

    def _write_character(self, character: str) -> None:
        """Write a character at the cursor, and move the cursor."""
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._next_row()
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character.isprintable():
            # A full row continues in the next row.
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
        """Apply a control sequence.

        Args:
            letter: Last character, which selects the function.
            numbers: Arguments, separated by semicolons.
        """
        if numbers and not re.fullmatch(r"\d{1,4}(;\d{0,4})*", numbers):
            return
        values = [int(number or 0) for number in numbers.split(";")]
        count = values[0] or 1
        if letter == "m":
            self._style = change_style(self._style, values)
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
        """Erase a part of the cursor's row.

        Args:
            mode: 0 from the cursor to the end of the row, 1 up to the cursor, 2 all of
                the row.
        """
        first_column = 0
        if mode == 0:
            first_column = self._column
        end_column = self.columns
        if mode == 1:
            end_column = min(self._column + 1, self.columns)
        for column in range(first_column, end_column):
            self._cells[self._row][column] = (" ", Style())

    def rows_shown(self) -> tuple[Row, ...]:
        """Return the rows as runs of one style, without spaces at their ends."""
        return tuple(_runs(cells) for cells in self._cells)


def _runs(cells: list[Cell]) -> Row:
    """Return the cells of a row as runs of one style."""
    runs: list[Run] = []
    first_column = 0
    while first_column < len(cells):
        style = cells[first_column][1]
        end_column = first_column
        while end_column < len(cells) and cells[end_column][1] == style:
            end_column += 1
        text = "".join(character for character, _ in cells[first_column:end_column])
        # Spaces at both ends are not drawn.
        leading_spaces = len(text) - len(text.lstrip())
        if text.strip():
            runs.append(Run(first_column + leading_spaces, text.strip(), style))
        first_column = end_column
    return tuple(runs)


def change_style(style: Style, values: list[int]) -> Style:
    """Return a style after a sequence that changes it.

    Args:
        style: Style before the sequence.
        values: Numbers of the sequence: 0 resets, 1 is bold, 2 is dim, 22 is neither,
            30 to 37 and 90 to 97 are colours, 39 is the colour of the terminal, and
            ``38;5;n`` is colour n of 256.
    """
    index = 0
    while index < len(values):
        value = values[index]
        if value == 0:
            style = Style()
        elif value == 1:
            style = replace(style, is_bold=True)
        elif value == 2:
            style = replace(style, is_dim=True)
        elif value == 22:
            style = replace(style, is_bold=False, is_dim=False)
        elif 30 <= value <= 37:
            style = replace(style, colour=_DARK_COLOURS[value - 30])
        elif 90 <= value <= 97:
            style = replace(style, colour=_BRIGHT_COLOURS[value - 90])
        elif value == 39:
            style = replace(style, colour="")
        elif value == 38:
            # The next two numbers belong to this one.
            arguments = values[index + 1 : index + 3]
            if len(arguments) == 2 and arguments[0] == 5:
                style = replace(style, colour=colour_of_256(arguments[1]))
                index += 2
        index += 1
    return style


def colour_of_256(number: int) -> str:
    """Return a colour of the palette of 256 colours, as ``#rrggbb``.

    Args:
        number: Number of the colour: 0 to 15 are the named colours, 16 to 231 a cube of
            6 x 6 x 6 levels of red, green and blue, and 232 to 255 shades of grey.
            Larger numbers are the last shade.
    """
    number = min(number, 255)
    if number < 16:
        return (*_DARK_COLOURS, *_BRIGHT_COLOURS)[number]
    if number >= 232:
        grey = 8 + 10 * (number - 232)
        return f"#{grey:02x}{grey:02x}{grey:02x}"
    cube_index = number - 16
    red = _CUBE_LEVELS[cube_index // 36]
    green = _CUBE_LEVELS[cube_index // 6 % 6]
    blue = _CUBE_LEVELS[cube_index % 6]
    return f"#{red:02x}{green:02x}{blue:02x}"

"""The page of all commands, written from the help of each: its usage, its text, its
arguments and options.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from typing import Any, Final
from unittest.mock import patch

from markup import block, definition, one_line

from tokenlake.cli import ABOUT, CODES, COMMANDS
from tokenlake.cli.app import main
from tokenlake.cli.console import app

_WIDE: Final = "10000"
"""Columns of a terminal in which no sentence is wrapped."""


class RecordedHelp:
    """A help formatter of cyclopts that keeps the usage and the groups of options
    that it is given.
    """

    def __init__(self) -> None:
        self.usage = ""
        self.groups: dict[str, list[tuple[str, str]]] = {}
        """Title of a group -> label and text of each argument or option."""

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        """Keep one group of arguments or options."""
        for entry in panel.entries:
            label = entry.positional_label or ", ".join(
                entry.display_labels_with_metavar
            )
            self.groups.setdefault(panel.title, []).append(
                (label, _plain(console, entry.description))
            )

    def render_usage(self, console: Any, options: Any, usage: object) -> None:
        """Keep the line that says how the command is called."""
        self.usage = re.sub("^Usage: ", "", _plain(console, usage))


def _plain(console: Any, text: object) -> str:
    """Return a text of rich or cyclopts without its formatting."""
    with console.capture() as captured:
        console.print(text)
    return one_line(captured.get())


def command_page() -> str:
    """Return the page of all commands, by group."""
    parts = [
        f"# Commands\n\n`tokenlake COMMAND`. {ABOUT} `tokenlake COMMAND --help` prints the same as this page. {CODES}\n"
    ]
    groups: dict[str, list[str]] = {}
    for name, (_, group, _) in COMMANDS.items():
        groups.setdefault(group, []).append(name)
    for group, names in groups.items():
        parts.append(f"## {group}\n")
        parts += [_entry(name) for name in names]
    return "\n".join(parts)


def _entry(name: str) -> str:
    """Return the entry of a command."""
    recorded = RecordedHelp()
    printed = io.StringIO()
    with (
        patch.dict(os.environ, {"COLUMNS": _WIDE, "NO_COLOR": "1"}),
        patch.object(app, "help_formatter", recorded),
        contextlib.redirect_stdout(printed),
    ):
        main([name, "--help"])
    # Only the usage and the groups go to the formatter: the text of the command is
    # printed, with the exit codes last.
    text = printed.getvalue().replace(CODES, "").strip()
    paragraphs = [one_line(paragraph) for paragraph in text.split("\n\n")]
    lines = [
        f"### {name}\n",
        block(recorded.usage),
        "\n\n".join(map(_escaped, paragraphs)),
        "",
    ]
    for title, entries in recorded.groups.items():
        lines.append(f"**{title}**\n")
        lines += [definition(f"`{label}`", _escaped(about)) for label, about in entries]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Return a text of the terminal as Markdown: characters with a meaning there,
    and placeholders, stay.
    """
    # What the help puts in backticks is code already.
    parts = text.split("`")
    for place in range(0, len(parts), 2):
        parts[place] = re.sub(r"([*_<>\[\]{}#])", r"\\\1", parts[place])
    return "`".join(parts)

"""Page of all commands, generated from their help.

Each command has its usage, its text, its arguments and its options.
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

_COLUMNS: Final = "10000"
"""Columns of a terminal in which no sentence is wrapped."""


class RecordedHelp:
    """Help formatter of cyclopts that records the usage and the options.

    Attributes:
        usage: Line that says how the command is called.
        groups: Title of a group -> label and text of each argument or option.
    """

    def __init__(self) -> None:
        self.usage = ""
        self.groups: dict[str, list[tuple[str, str]]] = {}

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        """Record a group of arguments or options."""
        # A panel without entries has no group.
        for entry in panel.entries:
            group = self.groups.setdefault(panel.title, [])
            label = entry.positional_label
            if not label:
                label = ", ".join(entry.display_labels_with_metavar)
            group.append((label, _plain_text(console, entry.description)))

    def render_usage(self, console: Any, options: Any, usage: object) -> None:
        """Record the usage."""
        self.usage = re.sub("^Usage: ", "", _plain_text(console, usage))


def _plain_text(console: Any, text: object) -> str:
    """Return a text of rich or cyclopts without its formatting."""
    with console.capture() as captured:
        console.print(text)
    return one_line(captured.get())


def command_page() -> str:
    """Return the page of all commands, by group."""
    names_by_group: dict[str, list[str]] = {}
    for name, (_, group, _) in COMMANDS.items():
        names_by_group.setdefault(group, []).append(name)
    parts = [
        f"# Commands\n\n`tokenlake COMMAND`. {ABOUT} `tokenlake COMMAND --help` prints the same as this page. {CODES}\n"
    ]
    for group, names in names_by_group.items():
        parts.append(f"## {group}\n")
        for name in names:
            parts.append(_entry(name))
    return "\n".join(parts)


def _entry(name: str) -> str:
    """Return the entry of a command."""
    # 1. Run the help. The formatter receives the usage and the groups of options; the
    #    text of the command is printed, with the exit codes last.
    recorded = RecordedHelp()
    printed = io.StringIO()
    with (
        patch.dict(os.environ, {"COLUMNS": _COLUMNS, "NO_COLOR": "1"}),
        patch.object(app, "help_formatter", recorded),
        contextlib.redirect_stdout(printed),
    ):
        main([name, "--help"])
    # 2. The usage and the text. The exit codes are at the top of the page.
    text = printed.getvalue().replace(CODES, "").strip()
    paragraphs = [_escape(one_line(paragraph)) for paragraph in text.split("\n\n")]
    lines = [
        f"### {name}\n",
        block(recorded.usage),
        "\n\n".join(paragraphs),
        "",
    ]
    # 3. The arguments and options.
    for title, entries in recorded.groups.items():
        lines.append(f"**{title}**\n")
        for label, about in entries:
            lines.append(definition(f"`{label}`", _escape(about)))
    return "\n".join(lines)


def _escape(text: str) -> str:
    """Return a text of the terminal as Markdown.

    Characters that have a meaning in Markdown are escaped, except in code.
    """
    # Text in backticks is code: every second part.
    parts = text.split("`")
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(r"([*_<>\[\]{}#])", r"\\\1", parts[index])
    return "`".join(parts)

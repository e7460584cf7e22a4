"""How ``--help`` looks: a bold heading, then two aligned columns; no boxes."""

from __future__ import annotations

from typing import final

from cyclopts.help import DescriptionRenderer, HelpEntry, HelpPanel
from rich.console import Console, ConsoleOptions
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


@final
class PlainColumns:
    """A cyclopts help formatter; cyclopts calls it once for each group of commands or parameters."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print one group, e.g. all options of a command."""
        if not panel.entries:
            return
        console.print(Text(f"{panel.title}:", style="bold"))
        columns = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
        columns.add_column(no_wrap=True, style="cyan")
        columns.add_column()
        describe = DescriptionRenderer()
        for entry in panel.entries:
            columns.add_row(_labels(entry), describe(entry))
        console.print(Padding(columns, (0, 0, 1, 2), expand=False))

    def render_usage(self, console: Console, options: ConsoleOptions, usage: object) -> None:
        """Print the line that says how the command is called."""
        if usage:
            console.print(Text("Usage: ", style="bold") + Text(str(usage)))


def _labels(entry: HelpEntry) -> str:
    """``--set, -s KEY=VALUE``; a positional parameter by its name alone, not as an option too."""
    if entry.positional_label:
        return entry.positional_label
    return ", ".join(entry.display_labels_with_metavar)

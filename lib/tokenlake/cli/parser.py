"""From the arguments of a command line to the call of a command; pages of ``--help``, and completion in a shell."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Literal, final

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, UnusedCliTokensError
from cyclopts.help import DescriptionRenderer, HelpEntry, HelpPanel
from rich.console import Console, ConsoleOptions
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from tokenlake._version import __version__
from tokenlake.cli import ABOUT, CODES, COMMANDS
from tokenlake.reports.terminal import stdout

__all__ = ["CycloptsError", "app", "call", "usage"]


@final
class PlainColumns:
    """A cyclopts help formatter; cyclopts calls it once for each group of commands or parameters."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print one group, e.g. all options of a command."""
        if not panel.entries:
            return
        console.print(Text(f"{panel.title}:", style="bold"))
        columns = Grid(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
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


_OPTIONS = Group("Options")

app = App(
    name="tokenlake",
    help=ABOUT,
    help_epilogue=CODES,
    help_format="plaintext",
    help_formatter=PlainColumns(),
    default_parameter=Parameter(negative=(), show_default=False),
    group_parameters=_OPTIONS,
    version=f"tokenlake {__version__}",
    version_flags=["--version", "-V"],
)
for _name, (_where, _, _help) in COMMANDS.items():
    app.command(f"tokenlake.cli.{_where}", name=_name, help=_help)
app["--help"].group = app["--version"].group = _OPTIONS


def call(tokens: Sequence[str]) -> int:
    """Call the command that the arguments name and return its exit code.

    Raises:
        CycloptsError: the arguments are wrong.
        ImportError: the command needs a package that is not installed.
    """
    if tokens and tokens[0] in COMMANDS:
        _explain(app[tokens[0]])
    result = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    return result if isinstance(result, int) else 0


def usage(error: CycloptsError) -> tuple[str, str]:
    """Return the command whose arguments are wrong, and what is wrong with them."""
    command = " ".join(("tokenlake", *(error.command_chain or ())))
    if isinstance(error, UnusedCliTokensError):
        return command, f"{command} has no use for {', '.join(map(repr, error.unused_tokens or ()))}"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.keyword or error.argument.name
        return command, f"{name} needs a value" if name.startswith("-") else f"{command} needs {name}"
    return command, str(error).strip()


def completion(shell: Literal["bash", "zsh", "fish"], /, *, install: bool = False) -> int:
    """Print what completes commands, options and names of datasets in a shell, or install it.

    For this shell alone: `source <(tokenlake completion bash)`, or `tokenlake completion fish | source`. For good:
    `tokenlake completion bash --install`, which writes a file and, for bash and zsh, a line that reads it at the end of
    .bashrc or .zshrc.

    Args:
        shell: Which shell.
        install: Write the file instead of printing it.
    """
    for name in COMMANDS:
        try:
            _ = app[name].default_command
        except ImportError:  # a command whose packages are not installed is not completed
            del app[name]
    if not install:
        sys.stdout.write(app.generate_completion(shell=shell))
        return 0
    path = app.install_completion(shell=shell)
    stdout().print(Text(f"{path} is written; a new {shell} completes tokenlake"))
    return 0


def _explain(command: App) -> None:
    """In a command's own help, the list's one line gives way to the function's docstring, a paragraph a line."""
    text = inspect.cleandoc(getattr(command.default_command, "__doc__", None) or "")
    paragraphs = text.partition("\n\nArgs:")[0].split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

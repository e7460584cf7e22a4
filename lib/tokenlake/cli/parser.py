"""From the arguments of a command line to the call of a command, and the pages that ``COMMAND --help`` prints."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group, Parameter

from tokenlake._version import __version__
from tokenlake.cli.commands import ABOUT, CODES, COMMANDS
from tokenlake.cli.console import PlainColumns

__all__ = ["CycloptsError", "app", "call"]

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


def _explain(command: App) -> None:
    """In a command's own help, the list's one line gives way to the function's docstring, a paragraph a line."""
    text = inspect.cleandoc(getattr(command.default_command, "__doc__", None) or "")
    paragraphs = text.partition("\n\nArgs:")[0].split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

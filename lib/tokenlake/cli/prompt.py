"""The prompt of ``tokenlake sql``: lines of a terminal become statements."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tokenlake.cache.disk import default_folder
from tokenlake.cli.console import note
from tokenlake.errors import TokenlakeError
from tokenlake.query.script import cut

_FIRST: Final = "sql> "
_MORE: Final = "...> "
_WELCOME: Final = (
    r"Statements end with a semicolon. \d lists what there is, \d NAME its columns. Ctrl-D ends."
)
_DESCRIBE: Final = re.compile(r"\\d(?:\s+(?P<name>.+?))?\s*;?\s*")


def converse(run: Callable[[str | None], None], read: Callable[[str], str] = input) -> None:
    """Read statements and run them, one after another, until the input ends.

    Args:
        run: one statement; None lists what there is. An error of Tokenlake is shown, and the next line is read.
        read: a line, after a prompt; EOFError ends, KeyboardInterrupt drops what was typed of a statement.
    """
    note(_WELCOME)
    typed = ""
    while True:
        try:
            line = read(_MORE if typed.strip() else _FIRST)
            found, typed = ([line], "") if described(line) and not typed.strip() else cut(f"{typed}{line}\n")
            for statement in found:
                run_command(statement, run)
        except EOFError:
            note("")
            return
        except KeyboardInterrupt:
            typed = ""
            note("cancelled")
        except TokenlakeError as error:
            note(f"error: {error}")


def run_command(statement: str, run: Callable[[str | None], None]) -> None:
    """Run a statement, or what a backslash stands for."""
    if (found := described(statement)) is None:
        run(statement)
    elif found["name"] is None:
        run(None)
    else:
        name = found["name"]
        run(f"describe {name if name.startswith(chr(34)) else quoted(name)}")


def quoted(name: str) -> str:
    """Return a name as SQL takes it, whatever characters it has."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def described(line: str) -> re.Match[str] | None:
    return _DESCRIBE.fullmatch(line.strip())


def with_history(action: Callable[[], None]) -> None:
    """Do something with the lines of earlier prompts at hand, and keep those of this one."""
    try:
        import readline  # not every Python has it
    except ImportError:
        return action()
    path = Path(default_folder()) / "sql_history"
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(1000)
    try:
        action()
    finally:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
    return None

"""The ``tokenlake`` command: its commands, how errors are printed, and the standard streams of the process."""

from __future__ import annotations

import difflib
import errno
import gc
import inspect
import io
import os
import sys
import textwrap
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TextIO, final

from tokenlake._version import __version__
from tokenlake.errors import MissingExtraError, TokenlakeError

try:
    from cyclopts import App, CycloptsError, Group, Parameter
    from rich.text import Text

    from tokenlake.cli.console import PlainColumns
    from tokenlake.report.printable import printable
    from tokenlake.report.terminal import stderr
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"error: the command line needs {missing.name}, which is not installed\n\n"
        "  pip install 'tokenlake[etl]'"
    ) from None

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_BUILD = Group("Build", sort_key=1)
_STORE = Group("Store", sort_key=2)
_LOOK = Group("Look inside", sort_key=3)
_OPTIONS = Group("Options", sort_key=4)

# name -> (where the function is, group, help); strings keep `--help` from importing any of them
_COMMANDS = {
    "inspect": ("inspect:inspect", _BUILD, "Look into raw data, and propose a configuration for it."),
    "plan": ("plan:plan", _BUILD, "Show what a run would do: inputs, units, tokens, output files."),
    "run": ("run:run", _BUILD, "Build a dataset version, or resume an interrupted build."),
    "work": ("work:work", _BUILD, "Build units of a planned build, on any machine that reaches its store."),
    "schema": ("inspect:schema", _BUILD, "Print the JSON Schema of a configuration, for editors."),
    "ls": ("catalog:ls", _STORE, "List the datasets of a store and their versions."),
    "show": ("catalog:show", _STORE, "Show a version: totals, splits, account, tokenizer, lineage, files."),
    "tag": ("catalog:tag", _STORE, "Give a version a name that can move, such as prod."),
    "diff": ("diff:diff", _STORE, "Show what differs between two versions."),
    "verify": ("verify:verify", _STORE, "Check every byte and count of a version against its manifest."),
    "repair": ("repair:repair", _STORE, "Repair the damaged files of a version, byte for byte."),
    "gc": ("catalog:gc", _STORE, "Remove temporary files and abandoned builds that nothing needs."),
    "rm": ("catalog:rm", _STORE, "Remove a version that no tag and no other version needs."),
    "export": ("export:export", _STORE, "Write a version as a folder of Parquet, Arrow or JSON Lines."),
    "push": ("push:push", _STORE, "Upload a version to the Hugging Face Hub, private by default."),
    "peek": ("query:peek", _LOOK, "Decode a few rows, with document boundaries and provenance."),
    "explain": ("explain:explain", _LOOK, "List the documents of a batch, or the batches of a document."),
    "report": (
        "report:report",
        _LOOK,
        "Write one HTML file about a version: figures, lengths, rows, lineage.",
    ),
    "sql": ("query:sql", _LOOK, "Query the datasets of a store with DuckDB, on verified bytes."),
}

app = App(
    name="tokenlake",
    help="Raw text to versioned, verified, packed token datasets.",
    help_epilogue="Exit codes: 0 done, 1 failed, 2 usage or config, 3 damage found, 130 cancelled.",
    help_format="plaintext",
    help_formatter=PlainColumns(),
    default_parameter=Parameter(negative=(), show_default=False),
    group_parameters=_OPTIONS,
    version=f"tokenlake {__version__}",
    version_flags=["--version", "-V"],
)
for _name, (_where, _group, _help) in _COMMANDS.items():
    app.command(f"tokenlake.cli.{_where}", name=_name, help=_help, group=_group)
app["--help"].group = app["--version"].group = _OPTIONS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; deliberate errors end as a few lines on stderr.

    Without arguments it is the process: those of the process are taken, and its standard streams.
    """
    if arguments is not None:
        return _run(arguments)
    # Plans and manifests are a million objects and no garbage; looking for it takes a sixth of the time.
    gc.set_threshold(100_000, 50, 50)
    output = take_over()
    code, problem = _run(sys.argv[1:]), output_problem(output)
    return _fail(problem, code or 1) if problem else code


def _run(tokens: Sequence[str]) -> int:
    if tokens and not tokens[0].startswith("-") and tokens[0] not in _COMMANDS:
        return _unknown_command(tokens[0])
    try:
        if tokens and tokens[0] in _COMMANDS:
            _explain(app[tokens[0]])
        result = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _usage_error(error)
    except TokenlakeError as error:
        return _fail(str(error), error.exit_code)
    except ImportError as error:
        return _missing_module(error)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except MemoryError as error:  # Arrow's is one, too
        why = f" ({error})" if str(error) else ""
        return _fail(f"there is not enough memory{why}; finished units are kept", 1)
    except Exception:
        return _bug()
    return result if isinstance(result, int) else 0


def _explain(command: App) -> None:
    """In a command's own help, the list's one line gives way to the function's docstring, a paragraph a line."""
    text = inspect.cleandoc(getattr(command.default_command, "__doc__", None) or "")
    paragraphs = text.partition("\n\nArgs:")[0].split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _fail(message: str, code: int, hint: str = "") -> int:
    """Print ``error: message`` with an indented hint to stderr and return ``code``."""
    console = stderr()
    console.print(Text.assemble(("error:", "bold red"), f" {message}"))
    if hint:
        console.print(Text(textwrap.indent(f"\n{hint}", "  ")))
    return code


def _usage_error(error: CycloptsError) -> int:
    chain = getattr(error, "command_chain", None) or ()
    command = " ".join(("tokenlake", *chain))
    return _fail(str(error).strip(), 2, f"{command} --help  lists arguments and options")


def _unknown_command(name: str) -> int:
    """Ours and not cyclopts': its message imports every command to find near matches."""
    near = difflib.get_close_matches(name, _COMMANDS, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    return _fail(f"there is no command {name!r}{guess}", 2, "tokenlake --help  lists the commands")


def _missing_module(error: ImportError) -> int:
    """A module of ours that cannot be imported is a bug, somebody else's is an extra to install."""
    # cyclopts wraps what a command's module raises while it is imported
    cause = error.__cause__ if isinstance(error.__cause__, ModuleNotFoundError) else error
    package = (
        (cause.name or "tokenlake").partition(".")[0] if isinstance(cause, ModuleNotFoundError) else None
    )
    if package in {None, "tokenlake"}:
        return _bug()
    message = f"this command needs {package}, which is not installed"
    return _fail(message, MissingExtraError.exit_code, "pip install 'tokenlake[etl]'")


def _bug() -> int:
    from tokenlake.config.references import scrub  # not above: `--help` needs no configurations

    sys.stderr.write(printable(scrub(traceback.format_exc())))
    return _fail(
        f"this is a bug in tokenlake {__version__}, not something you did",
        1,
        "please report it with the traceback above and the command you ran; finished units are kept,\n"
        "and running the same command again resumes it",
    )


# The standard streams: closed, full, or left by their reader, they stop no command half-way. What a command returns
# does not depend on who reads its output: a build goes on, and `verify ... | head` still ends with 3 where something is
# damaged. A reader that left, or an output that was closed from the beginning, is no error; a full disk is reported at
# the end.

_NOBODY: Final = frozenset({errno.EPIPE, errno.ECONNRESET})


@final
class Outlet(io.RawIOBase):
    """A descriptor that takes everything; after an error it keeps the error and drops the rest."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: ReadableBuffer, /) -> int:
        if self.error is None:
            try:
                return os.write(self._descriptor, data)
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes


def take_over() -> Outlet:
    """Put outlets in the place of standard output and error; return that of the output.

    Closed descriptors are opened on the null device: the next file to be opened would get their number, and with it
    what a library prints.
    """
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - it is where descriptor 0 is closed
        os.open(os.devnull, os.O_RDONLY)
    outlet, sys.stdout = _opened(sys.stdout)
    _, sys.stderr = _opened(sys.stderr)
    return outlet


def output_problem(outlet: Outlet) -> str | None:
    """Return what kept the output from being written, once it is flushed; None where that is no mistake."""
    sys.stdout.flush()
    if outlet.error is None or outlet.error.errno in _NOBODY:
        return None
    return f"cannot write to standard output: {outlet.error.strerror}"


def _opened(old: TextIO | None) -> tuple[Outlet, io.TextIOWrapper]:
    outlet = Outlet(os.open(os.devnull, os.O_WRONLY) if old is None else old.fileno())
    encoding, errors = (old.encoding, old.errors) if old is not None else ("utf-8", "replace")
    lines = outlet.isatty() or old is sys.stderr
    return outlet, io.TextIOWrapper(io.BufferedWriter(outlet), encoding, errors, line_buffering=lines)

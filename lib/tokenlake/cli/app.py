"""The ``tokenlake`` command: its arguments, its errors, and its standard streams.

A deliberate error ends as a few lines on stderr, or with ``--json`` as one object. Only
a bug ends with a traceback.
"""

from __future__ import annotations

import difflib
import errno
import gc
import json
import os
import signal
import sys
import textwrap
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast, final

from tokenlake._version import __version__
from tokenlake.base import termination
from tokenlake.base.markup import printable, printable_json
from tokenlake.cli import COMMANDS, OTHER_WAYS, SYNONYMS, overview
from tokenlake.cli.streams import (
    encodable_json,
    output_problem,
    restart_with_utf8,
    take_over,
)
from tokenlake.errors import CancelledError, MissingExtraError, TokenlakeError, to_json

_HELP: Final = ("--help", "-h")
_INTERRUPT: Final = KeyboardInterrupt.__name__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Without arguments it is the process: those of the process are taken, and its
    standard streams.
    """
    # Called by a program: its streams and signals are its own.
    if arguments is not None:
        return _report(_run(arguments), arguments)

    # 1. Prepare the process.
    restart_with_utf8()
    # Plans and manifests are a million objects and no garbage; looking for it takes a
    # sixth of the time.
    gc.set_threshold(100_000, 50, 50)
    output = take_over()
    termination.handle_termination()

    # 2. Run the command. The exit code tells SIGTERM from Ctrl-C.
    result = _with_termination(_run(sys.argv[1:]))
    is_interrupted = isinstance(result, Failure) and result.code in (
        termination.INTERRUPTED,
        termination.TERMINATED,
    )
    if is_interrupted:
        # What was begun has ended; another Ctrl-C must not cut the message off.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    # 3. Report, and flush the output. A full disk is a failure, even of a command that
    #    has succeeded.
    code = _report(result, sys.argv[1:])
    problem = output_problem(output)
    if problem is not None:
        code = _report(Failure("OSError", problem, code or 1), sys.argv[1:])
    if is_interrupted:
        # If Ctrl-C fell into code that Python was given as text (a dataclass), the
        # interpreter ends by the signal itself, although the exception was handled. And
        # it would wait for threads.
        sys.stderr.flush()
        os._exit(code)
    return code


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """How a command failed.

    Attributes:
        type: Name of the error's class.
        message: Message of the error.
        code: Exit code.
        hint: Instructions, one on each line.
        details: Details of the error, for programs.
        trace: Traceback of a bug.
    """

    type: str
    message: str
    code: int
    hint: str = ""
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    trace: str = ""

    @property
    def place(self) -> str | None:
        """``file:line``, or the wrong option or field; None if the error names none."""
        file = self.details.get("file")
        if file is not None:
            line = self.details.get("line", self.details.get("row"))
            if line is None:
                return str(file)
            return f"{file}:{line}"
        # The first of them that the error has is the most exact one.
        for detail in ("field_path", "option", "key", "url"):
            if self.details.get(detail):
                return str(self.details[detail])
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints in one line on stderr."""
        record: dict[str, Any] = {
            "type": self.type,
            "message": self.message,
            "place": self.place,
            "hint": self.hint or None,
            "exit_code": self.code,
            "details": self.details,
        }
        if self.trace:
            record["traceback"] = self.trace
        return record


def _with_termination(result: int | Failure) -> int | Failure:
    """Return a result whose exit code says if SIGTERM ended the process."""
    if isinstance(result, int):
        return termination.exit_code(result)
    return replace(result, code=termination.exit_code(result.code))


def _run(tokens: Sequence[str]) -> int | Failure:
    """Run the command of the arguments, until Ctrl-C or SIGTERM."""
    try:
        return _called(tokens)
    except KeyboardInterrupt:
        return Failure(_INTERRUPT, "interrupted", CancelledError.exit_code)


def _called(tokens: Sequence[str]) -> int | Failure:
    """Answer the arguments: those without a command need no packages."""
    name = "--help"
    if tokens:
        name = tokens[0]
    if name in _HELP and len(tokens) < 2:
        sys.stdout.write(overview())
        return 0
    # `tokenlake --help run` is `tokenlake run --help`.
    if name in _HELP:
        help_option = name
        name = tokens[1]
        tokens = [*tokens[1:], help_option]
    if name in ("--version", "-V"):
        sys.stdout.write(f"tokenlake {__version__}\n")
        return 0
    failure = _misused_name(name, tokens)
    if failure is not None:
        return failure
    return _call_command(tokens)


def _call_command(tokens: Sequence[str]) -> int | Failure:
    """Call the command that the arguments name, and return its code or its failure."""
    try:
        # Every command needs it, the list of commands does not, and it takes longer
        # than to print that.
        from cyclopts import CycloptsError

        from tokenlake.cli.console import call, usage
    except ModuleNotFoundError as error:
        return _missing_module(error, "the command line", "cli")
    try:
        # Errors of arguments, deliberate errors, missing packages, and limits of the
        # machine. Anything else is a bug.
        return call(tokens)
    except CycloptsError as error:
        command, message = usage(error)
        return Failure(
            "UsageError", message, 2, f"{command} --help  lists arguments and options"
        )
    except TokenlakeError as error:
        record = to_json(error)
        # A message may end with instructions, after an empty line.
        message, _, hint = record["message"].partition("\n\n")
        return Failure(
            record["type"],
            message,
            error.exit_code,
            textwrap.dedent(hint),
            record["details"],
        )
    except ImportError as error:
        return _missing_module(error)
    except MemoryError as error:  # Arrow's is one, too
        reason = ""
        if str(error):
            reason = f" ({error})"
        return Failure(
            "MemoryError",
            f"there is not enough memory{reason}; finished units are kept",
            1,
        )
    except Exception as error:
        return _refusal_of_the_system(error) or _bug(error)


def _misused_name(name: str, tokens: Sequence[str]) -> Failure | None:
    """Return the failure of arguments that name no command; None if they name one.

    cyclopts would say it, too, but imports every command to find near matches.

    Args:
        name: First argument.
        tokens: All arguments.
    """
    if name.startswith("__"):
        return None
    hint = "tokenlake --help  lists the commands"
    if name.startswith("-") and name not in _HELP:
        message = f"tokenlake has no option {name!r} before a command"
        return Failure("UsageError", message, 2, hint)
    if name not in COMMANDS:
        message = f"there is no command {name!r}{_advice_on_command(name)}"
        return Failure("UsageError", message, 2, hint)
    if "--version" in tokens:
        message = (
            f"tokenlake {name} has no option --version; a version is written NAME@v3"
        )
        hint = f"tokenlake {name} --help  lists arguments and options"
        return Failure("UsageError", message, 2, hint)
    return None


def _advice_on_command(name: str) -> str:
    """Return the end of a message about a command that does not exist; "" if there is
    no answer.
    """
    if name in OTHER_WAYS:
        return f"; {OTHER_WAYS[name]}"
    similar = difflib.get_close_matches(name, COMMANDS, n=1)
    command = SYNONYMS.get(name)
    if command is None and similar:
        command = similar[0]
    if command is None:
        return ""
    return f"; did you mean {command!r}?"


def _report(result: int | Failure, tokens: Sequence[str]) -> int:
    """Report a failure on stderr, and return the exit code.

    It is reported as lines for people or, with --json, as one object.
    """
    if isinstance(result, int):
        return result
    if "--json" in tokens:
        text = json.dumps(result.to_json(), ensure_ascii=False, default=str)
        sys.stderr.write(encodable_json(printable_json(text), sys.stderr) + "\n")
        return result.code
    # Whoever pressed Ctrl-C needs no heading.
    if result.type == _INTERRUPT:
        sys.stderr.write(f"{result.message}\n")
        return result.code
    sys.stderr.write(printable(result.trace))
    heading = "error:"
    if result.type == "CancelledError":
        heading = "cancelled:"
    # NO_COLOR is the variable by which programs are asked for no colours.
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        heading = f"{_BOLD_RED}{heading}{_PLAIN}"
    sys.stderr.write(f"{heading} {printable(result.message)}\n")
    if result.hint:
        sys.stderr.write(printable(textwrap.indent(f"\n{result.hint}", "  ")) + "\n")
    return result.code


# Escape codes of terminals.
_BOLD_RED: Final = "\x1b[1;31m"
_PLAIN: Final = "\x1b[0m"


_NO_THREAD: Final = "can't start new thread"  # Python's words; the error has no number
_SHORT_OF: Final = frozenset({errno.EAGAIN, errno.ENOMEM})  # processes, memory


def _refusal_of_the_system(error: Exception) -> Failure | None:
    """Return the failure for an error with which the system refuses resources.

    These are memory, threads and processes. It is None for any other error.
    """
    is_short = isinstance(error, OSError) and error.errno in _SHORT_OF
    has_no_thread = isinstance(error, RuntimeError) and str(error) == _NO_THREAD
    if not is_short and not has_no_thread:
        return None
    return Failure(
        type(error).__name__,
        f"the system refuses another thread, process or memory ({error}); finished units are kept",
        1,
        "see `ulimit -u` and `ulimit -v`, and the limits of the container; fewer --workers need less",
    )


def _unloadable(error: ImportError) -> Failure:
    """Return the failure for a package whose compiled part cannot be loaded."""
    return Failure(
        type(error).__name__,
        f"a package cannot be loaded: {error}",
        1,
        "if memory is too small, see `ulimit -v`; otherwise install the package again",
    )


def _missing_module(
    error: ImportError, user: str = "this command", extra: str = "etl"
) -> Failure:
    """Return the failure for a missing module.

    It is a bug for one of ours, otherwise a package to install.

    Args:
        error: Error of the import.
        user: Part of Tokenlake that needs the module, for the message.
        extra: Extra of Tokenlake that installs it.
    """
    # cyclopts wraps errors of importing a command's module, and NumPy those of its
    # compiled part.
    cause: BaseException = error
    while isinstance(cause.__cause__ or cause.__context__, ImportError):
        cause = cast("ImportError", cause.__cause__ or cause.__context__)
    # Python modules have this error for a name that they lack, compiled ones for a
    # library that cannot be loaded.
    is_compiled = cause.path is not None and not cause.path.endswith(".py")
    if type(cause) is ImportError and is_compiled:
        return _unloadable(cause)
    missing_module = ""
    if isinstance(cause, ModuleNotFoundError):
        missing_module = cause.name or ""
    package = (missing_module or "tokenlake").partition(".")[0]
    if package == "tokenlake":
        return _bug(error)
    message = f"{user} needs {package}, which is not installed"
    code = MissingExtraError.exit_code
    return Failure(
        "MissingExtraError", message, code, f"pip install 'tokenlake[{extra}]'"
    )


def _bug(error: Exception) -> Failure:
    """Return the failure for an error that is a bug, with its traceback."""
    # Not above: `--help` needs no configurations.
    from tokenlake.base.secrets import scrub

    return Failure(
        type(error).__name__,
        f"this is a bug in tokenlake {__version__}, not something you did",
        1,
        "please report it with the traceback above and the command you ran; finished units are kept,\n"
        "and running the same command again resumes it",
        trace=scrub(traceback.format_exc()),
    )

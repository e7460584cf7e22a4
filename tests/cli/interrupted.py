"""A child process of a test: each command meets Ctrl-C, or an error of the system, as
soon as it is called.

Prints JSON: for each event and each command its exit code and what it wrote to standard
error.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import signal
import sys
from collections.abc import Callable
from importlib import import_module

from tokenlake.cli import COMMANDS
from tokenlake.cli.app import main
from tokenlake.cli.console import app


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def refuse_a_thread() -> None:
    raise RuntimeError("can't start new thread")


def refuse_a_process() -> None:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def refuse_memory() -> None:
    raise MemoryError


def refuse_a_library() -> None:
    message = "package.so: failed to map segment from shared object"
    raise ImportError("NumPy says what to do") from ImportError(
        message, name="package", path="package.so"
    )


EVENTS = {
    "Ctrl-C": press_ctrl_c,
    "no thread": refuse_a_thread,
    "no process": refuse_a_process,
    "no memory": refuse_memory,
    "no library": refuse_a_library,
}


def standing_for(event: Callable[[], None]) -> Callable[..., None]:
    """Return a command that takes any arguments."""

    def command(*arguments: str, json: bool = False) -> None:
        event()

    return command


def outcome(arguments: list[str]) -> tuple[int, str]:
    with contextlib.redirect_stderr(io.StringIO()) as written:
        code = main(arguments)
    return code, written.getvalue()


def print_outcomes() -> None:
    found: dict[str, dict[str, tuple[int, str]]] = {}
    for event, action in EVENTS.items():
        found[event] = {}
        for name, (where, _, _) in COMMANDS.items():
            module, _, function = where.partition(":")
            setattr(
                import_module(f"tokenlake.cli.{module}"), function, standing_for(action)
            )
            del app[name]
            app.command(f"tokenlake.cli.{where}", name=name)
            found[event][name] = outcome([name])
    found["Ctrl-C"]["ls --json"] = (0, "")
    import_module("tokenlake.cli.catalog").ls = standing_for(press_ctrl_c)
    del app["ls"]
    app.command("tokenlake.cli.catalog:ls", name="ls")
    found["Ctrl-C"]["ls --json"] = outcome(["ls", "--json"])
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    print_outcomes()

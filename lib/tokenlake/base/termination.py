"""SIGTERM as a request to end: it acts like the first Ctrl-C, with another exit code.

A scheduler that wants its machine back, ``systemctl stop`` and ``kill`` send SIGTERM.
By default it ends a Python process at once, and nothing is written about the build that
it ran. The command line installs :func:`terminate`, which calls the handler of SIGINT:
the command ends as if by Ctrl-C, with exit code 143 (128 + SIGTERM) in place of 130.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

INTERRUPTED: Final = 128 + signal.SIGINT
"""Exit code after Ctrl-C."""

TERMINATED: Final = 128 + signal.SIGTERM
"""Exit code after SIGTERM."""

# Whether the handler is installed, and whether it was called: a handler may only set
# flags that other threads read.
_HANDLED: Final = threading.Event()
_REQUESTED: Final = threading.Event()


def terminate(number: int, frame: FrameType | None) -> None:
    """Record that the process must end, and call the handler of Ctrl-C.

    It is a handler of SIGTERM.
    """
    _REQUESTED.set()
    interrupt = signal.getsignal(signal.SIGINT)
    # A shell starts its background jobs with SIGINT ignored. SIGTERM must still end
    # them.
    if not callable(interrupt):
        raise KeyboardInterrupt
    interrupt(number, frame)


def handle_termination() -> None:
    """Install :func:`terminate` as the handler of SIGTERM, until the process ends.

    Only the main thread can do that.
    """
    signal.signal(signal.SIGTERM, terminate)
    _HANDLED.set()


def is_requested() -> bool:
    """Return whether SIGTERM has asked this process to end."""
    return _REQUESTED.is_set()


def exit_code(code: int) -> int:
    """Return the exit code of a command.

    It is :data:`TERMINATED` in place of :data:`INTERRUPTED` after SIGTERM.
    """
    if code == INTERRUPTED and is_requested():
        return TERMINATED
    return code


@contextmanager
def handled_again() -> Generator[None]:
    """Put :func:`terminate` back where :func:`handle_termination` had installed it.

    It is back inside the context.

    Prefect replaces the handler while a flow runs, and its own makes a crash of the
    flow run. The runs of a deployment keep Prefect's handler: Prefect ends them by
    SIGTERM, and knows whether they were cancelled.
    """
    # Python lets only the main thread set handlers.
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not _HANDLED.is_set() or not is_main_thread:
        yield
        return
    previous_handler = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)

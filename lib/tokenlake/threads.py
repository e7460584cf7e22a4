"""Threads that work ahead, and that end before the interpreter does.

A daemon thread that is inside a library's own code when the interpreter goes down can take the process with it (an
abort instead of an exit code). So each is started here, with what ends it, and at exit all are ended and waited for.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

_PATIENCE: Final = 10.0  # seconds at exit: a read that hangs must not keep the process from ending

_RUNNING: weakref.WeakKeyDictionary[threading.Thread, Callable[[], None]] = weakref.WeakKeyDictionary()


def start_thread(work: Callable[[], None], *, end: Callable[[], None], name: str) -> threading.Thread:
    """Start a daemon thread.

    Args:
        work: what it does; it returns soon after `end` was called.
        end: asks it to; called at exit, perhaps more than once.
        name: of the thread.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    _RUNNING[thread] = end
    thread.start()
    return thread


def end_threads() -> None:
    """End all that still run, and wait for them, but not for ever."""
    running = [(thread, end) for thread, end in list(_RUNNING.items()) if thread.is_alive()]
    for _, end in running:
        end()
    until = time.monotonic() + _PATIENCE
    for thread, _ in running:
        thread.join(max(0.0, until - time.monotonic()))


atexit.register(end_threads)

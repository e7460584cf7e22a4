"""The response to Ctrl-C during a run of a flow."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn, final

from tokenlake.base import termination
from tokenlake.errors import CancelledError
from tokenlake_flows.server import EmbeddedServer

if TYPE_CHECKING:
    from tokenlake.runs.engine import LocalEngine

_CANCELLING: Final = "\ncancelling; press Ctrl-C again to end at once\n"
_ENDED: Final = (
    "\nended; finished units are kept, and the same command resumes the run\n"
)
# Seconds that the end of the process waits for the cancellation to be recorded.
_WORD_SECONDS: Final = 1.0
_SHOW_CURSOR: Final = "\x1b[?25h"  # which progress bars hide


@final
class Interrupts:
    """The response to Ctrl-C during a run.

    The first Ctrl-C cancels, which a server can delay; the second ends this process.

    The exception that Python raises for Ctrl-C can be lost: an import that runs a
    callback, or C code of a library that calls Python, may swallow it or raise another
    one. So the message comes from the handler itself, the engine is told to cancel, and
    :attr:`has_begun` remembers it.

    Attributes:
        server: Server that ends with this process; None as long as there is none.
        has_begun: Whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.server: EmbeddedServer | None = None
        self.has_begun = False
        self._engine: LocalEngine | None = None
        self._cancelling: threading.Thread | None = None
        self._is_deferred = False

    def set_engine(self, engine: LocalEngine) -> None:
        """Have the first Ctrl-C cancel an engine."""
        self._engine = engine
        if self.has_begun:
            raise KeyboardInterrupt

    @contextmanager
    def deferred(self) -> Generator[None]:
        """Have Ctrl-C raise its exception at the end of the context, not inside of it."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        if self.has_begun:
            raise KeyboardInterrupt

    @contextmanager
    def handled(self) -> Generator[None]:
        """Answer Ctrl-C for as long as the context lasts.

        A caller that handles Ctrl-C itself keeps its handler.
        """
        # Signals reach the main thread alone, and only Python's default handler is
        # replaced.
        is_main = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGINT)
        if not is_main or handler is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._cancel)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _cancel(self, number: int, frame: object) -> None:
        if self.has_begun:
            # A signal that arrives while this handler still answers the first one
            # belongs to it.
            return
        self.has_begun = True
        if self._engine is not None:
            # Not here: this thread may hold the locks that it takes.
            cancelling = threading.Thread(
                target=self._engine.cancel, name="cancel", daemon=True
            )
            cancelling.start()
            # Set once it has started: the second Ctrl-C joins it, and a thread that has
            # not started cannot be joined.
            self._cancelling = cancelling
        # The message promises that Ctrl-C ends at once from now on, so it comes last.
        signal.signal(signal.SIGINT, self._end)
        os.write(2, _CANCELLING.encode())
        if not self._is_deferred:
            raise KeyboardInterrupt

    def _end(self, number: int, frame: object) -> NoReturn:
        try:
            # A killed server needs no time to stop: whoever presses Ctrl-C twice wants
            # no delay.
            if self.server is not None:
                self.server.kill()
            if self._cancelling is not None:
                # It records that the build was cancelled. It may wait for a lock that
                # this thread holds.
                self._cancelling.join(_WORD_SECONDS)
            shown_cursor = _SHOW_CURSOR if os.isatty(2) else ""
            os.write(2, f"{shown_cursor}{_ENDED}".encode())
        finally:
            # The workers end with their parent. Nothing else may be waited for: threads
            # of Prefect's least of all.
            os._exit(termination.exit_code(CancelledError.exit_code))

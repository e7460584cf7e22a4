"""Handling of Ctrl-C during a run of a flow."""

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
    from tokenlake.runs.build_run import BuildRun

_CANCELLING: Final = "\ncancelling; press Ctrl-C again to end at once\n"
_ENDED: Final = (
    "\nended; finished units are kept, and the same command resumes the run\n"
)
# Seconds that the end of the process waits for the cancellation to be recorded.
_WORD_SECONDS: Final = 1.0
_SHOW_CURSOR: Final = "\x1b[?25h"  # which progress bars hide


@final
class Interrupts:
    """Handler of Ctrl-C during a run.

    The first Ctrl-C cancels the build, which may take time. The second one ends this
    process at once.

    The exception that Python raises for Ctrl-C can be lost: an import that runs a
    callback, or C code of a library that calls Python, may suppress it or raise another
    exception. Therefore the handler itself prints the message, cancels the build and
    sets :attr:`has_begun`.

    Attributes:
        server: Server that ends with this process; None as long as there is none.
        has_begun: Whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.server: EmbeddedServer | None = None
        self.has_begun = False
        self._run: BuildRun | None = None
        self._cancelling: threading.Thread | None = None
        self._is_deferred = False

    def set_run(self, build_run: BuildRun) -> None:
        """Set the build that the first Ctrl-C cancels."""
        self._run = build_run
        if self.has_begun:
            raise KeyboardInterrupt

    @contextmanager
    def deferred(self) -> Generator[None]:
        """Delay the exception of Ctrl-C until the end of the context."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        if self.has_begun:
            raise KeyboardInterrupt

    @contextmanager
    def handled(self) -> Generator[None]:
        """Handle Ctrl-C within the context.

        If the caller has a handler for Ctrl-C, it stays in place.
        """
        # Only the main thread receives signals, and only Python's default handler is
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
        """Cancel the build: the handler of the first Ctrl-C."""
        if self.has_begun:
            # A signal that arrives while this handler runs counts as the same one.
            return
        self.has_begun = True
        if self._run is not None:
            # In another thread, because this one may hold the locks that it takes.
            cancelling = threading.Thread(
                target=self._run.cancel, name="cancel", daemon=True
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
        """End this process: the handler of the second Ctrl-C."""
        try:
            # A server is killed, because stopping it takes time.
            if self.server is not None:
                self.server.kill()
            if self._cancelling is not None:
                # It records that the build was cancelled. It may wait for a lock that
                # this thread holds.
                self._cancelling.join(_WORD_SECONDS)
            shown_cursor = _SHOW_CURSOR if os.isatty(2) else ""
            os.write(2, f"{shown_cursor}{_ENDED}".encode())
        finally:
            # The workers end with their parent. Nothing else is waited for, in
            # particular no thread of Prefect.
            os._exit(termination.exit_code(CancelledError.exit_code))

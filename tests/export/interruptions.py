"""Interruptions of an export at one of its calls that change files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CALLS = ("write", "link", "rename", "replace", "unlink", "mkdir", "fsync")
"""Functions of `os` at which a process is interrupted."""


class Killed(BaseException):
    """The end of a process, which no code handles."""


def calls_of(work: Callable[[], object]) -> int:
    """Run a function to its end, and return the number of its calls."""
    counter = _Counter(None, lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        counter.install(patch)
        work()
    return counter.calls


def interrupt(work: Callable[[], object], call: int, error: BaseException) -> None:
    """Run a function until a call raises an error, as Ctrl-C or a full disk do."""

    def fail() -> None:
        raise error

    _run_until(work, call, fail, type(error))


def kill(work: Callable[[], object], call: int, folder: Path) -> None:
    """Run a function until a call, and leave a folder as it is then: nothing that runs
    after the call changes it, as if the process had been killed.
    """
    copy = folder.with_name(folder.name + ".copy")

    def copy_and_stop() -> None:
        shutil.copytree(folder, copy, symlinks=True)
        raise Killed

    _run_until(work, call, copy_and_stop, Killed)
    if copy.exists():
        shutil.rmtree(folder)
        copy.rename(folder)


def _run_until(
    work: Callable[[], object],
    call: int,
    stop: Callable[[], None],
    error: type[BaseException],
) -> None:
    counter = _Counter(call, stop)
    with pytest.MonkeyPatch.context() as patch:
        counter.install(patch)
        try:
            work()
        except BaseException as raised:
            cause: BaseException | None = raised
            while cause is not None and not isinstance(cause, error):
                cause = cause.__cause__ or cause.__context__
            if cause is None:
                raise


class _Counter:
    """Calls of functions of `os`, one of which is replaced by an interruption."""

    def __init__(self, stop_at: int | None, stop: Callable[[], None]) -> None:
        self.calls = 0
        self._stop_at = stop_at
        self._stop = stop

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in CALLS:
            patch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            number = self.calls
            self.calls += 1
            if number == self._stop_at:
                # What runs from here on is not interrupted again.
                self._stop_at = None
                self._stop()
            return function(*args, **options)

        return counted

"""Values that must not be shared between processes, such as open files and threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, final

T = TypeVar("T")


@final
class PerProcess(Generic[T]):
    """A value that each process makes for itself at its first use, also after a fork.

    It is pickled without the value. Open files and threads must not be shared with a
    forked process: two processes with one open file move each other's position, and a
    lock that a thread holds during the fork is never released.

    Args:
        make: Function that returns a new value.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._value: T | None = None
        self._process_id: int | None = None  # of the process that made the value

    def get(self) -> T:
        """Return the value of this process."""
        process_id = os.getpid()
        if self._process_id != process_id:
            self._value = self._make()
            self._process_id = process_id
        return cast("T", self._value)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the value."""
        return {"_make": self._make, "_value": None, "_process_id": None}

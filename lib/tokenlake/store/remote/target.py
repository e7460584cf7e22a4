"""Where a whole object goes, piece by piece and in order."""

from __future__ import annotations

from typing import Protocol

Bytes = bytes | bytearray


class Target(Protocol):
    """Takes the bytes of one object."""

    def restart(self) -> None:
        """Forget what came: the object comes again, from its beginning."""
        ...

    def write(self, data: Bytes, /) -> object:
        """Take the next bytes."""
        ...

"""The checksum that Google Cloud Storage states of a whole object, checked while its bytes come."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, final

from tokenlake.store.remote.objects import Write

_PREFIX = "crc32c="


class DamagedAnswerError(ConnectionError):
    """Other bytes came than the storage says that it has."""


@final
class Checked:
    """Hands on what comes, and says at its end whether it was damaged on its way.

    Without a stated checksum, or without a fast CRC32C on this machine, nothing is checked; every reader
    checks hashes of its own.
    """

    def __init__(self, write: Write, stated: Sequence[str]) -> None:
        """`stated`: values of the header ``x-goog-hash``."""
        pairs = [pair.strip() for text in stated for pair in text.split(",")]
        self._write = write
        self._stated = next((pair.removeprefix(_PREFIX) for pair in pairs if pair.startswith(_PREFIX)), None)
        self._crc: Any = None if self._stated is None else _crc32c()

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._crc is not None:
            self._crc.update(data)
        self._write(data)

    def finish(self) -> None:
        """Raise DamagedAnswerError, which is worth another try, where the bytes are not those of the storage."""
        if self._crc is None:
            return
        got = base64.b64encode(self._crc.digest()).decode()
        if got != self._stated:
            raise DamagedAnswerError(f"its CRC32C is {got}, the storage says {self._stated}")


def _crc32c() -> Any:
    try:
        import google_crc32c  # comes with gcsfs
    except ImportError:
        return None
    return google_crc32c.Checksum() if google_crc32c.implementation == "c" else None

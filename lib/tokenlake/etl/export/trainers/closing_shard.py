"""The end of a shard, which a thread writes while the next shard is filled."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import final

from tokenlake.etl.export.shard_record import Part
from tokenlake.etl.export.trainers.token_layout import OpenTokenFile


@final
class ClosingShard:
    """A shard that has all its rows, and whose files a thread closes.

    Some formats write their files then, from records that wait in memory.

    Args:
        file: The shard.
        rows: Number of its rows.

    Attributes:
        rows: Number of its rows.
    """

    def __init__(self, file: OpenTokenFile, rows: int) -> None:
        self.rows = rows
        self._file = file
        self._thread = ThreadPoolExecutor(1, "tokenlake-close")
        self._parts = self._thread.submit(file.close)

    def finish(self) -> Sequence[Part]:
        """Wait for the end, and return the parts of the shard.

        Raises:
            StoreError: A file cannot be written.
        """
        try:
            return self._parts.result()
        finally:
            self._thread.shutdown()

    def discard(self) -> None:
        """Wait for the thread, and close the files that are still open."""
        self._thread.shutdown()
        self._file.discard()

"""Verification of files: each is read once and compared with its size and sha256.

Shards are then looked into.
"""

from __future__ import annotations

from typing import BinaryIO, final

from tokenlake.errors import IntegrityError, NotFoundError, StoreError
from tokenlake.etl.integrity.findings import Entry
from tokenlake.etl.integrity.row_check import RowRules
from tokenlake.etl.integrity.verify_shard import ShardResult, check_shard
from tokenlake.runtime.reading.levels import SeenLevels
from tokenlake.runtime.store.base import ReadStore
from tokenlake.runtime.store.file_check import ByteProgress, Problem, read_file
from tokenlake.runtime.store.layout import Layout
from tokenlake.runtime.store.ledger import ShardEntry
from tokenlake.runtime.store.manifest import Manifest


@final
class FileCheck:
    """Checks files of a version; any number of threads may use it.

    Args:
        store: Store of the version.
        layout: Keys of the version.
        manifest: Manifest of the version.
        progress: Progress of the verification.
        deep: True if shards are decoded.
    """

    def __init__(
        self,
        store: ReadStore,
        layout: Layout,
        manifest: Manifest,
        progress: ByteProgress,
        *,
        deep: bool,
    ) -> None:
        self._store = store
        self._layout = layout
        self._progress = progress
        self._deep = deep
        # Rules and levels are the same for all shards of a version.
        self._rules = RowRules.of(manifest)
        self._seen_levels = SeenLevels(manifest.width or 1)

    def result(self, path: str, entry: Entry) -> ShardResult:
        """Read a file, compare it with its entry, and look into it if it is a shard."""
        shard: ShardEntry | None = None
        if isinstance(entry, ShardEntry):
            shard = entry

        def on_read(size: int) -> None:
            self._progress.count(path, size, read=size)

        try:
            with read_file(
                self._store,
                self._layout.key(path),
                entry.bytes,
                keep=shard is not None,
                on_read=on_read,
            ) as file:
                # The size is compared first: it costs no reading.
                if file.sha256 is None:
                    expected = f"{entry.bytes} bytes"
                    return _damaged(path, "size", expected, f"{file.bytes} bytes")
                if file.sha256 != entry.sha256:
                    return _damaged(path, "sha256", entry.sha256, file.sha256)
                if shard is None or file.stream is None:
                    return ShardResult(0, 0, ())
                return self._shard_result(file.stream, shard)
        except NotFoundError:
            expected = f"a file of {entry.bytes} bytes"
            return _damaged(path, "missing", expected, "no file")
        # A symlink, a folder, no permission, a failing disk.
        except (StoreError, IntegrityError) as error:
            expected = "a regular file that can be read"
            return _damaged(path, "unreadable", expected, str(error))

    def _shard_result(self, stream: BinaryIO, shard: ShardEntry) -> ShardResult:
        """Look into a shard whose bytes are right."""

        # Decoding has the same amount of work as reading, in proportion to the rows.
        def on_decoded(rows: int) -> None:
            self._progress.count(shard.path, shard.bytes * rows // max(1, shard.rows))

        return check_shard(
            stream,
            shard,
            self._rules,
            self._seen_levels,
            deep=self._deep,
            on_decoded=on_decoded,
        )


def _damaged(path: str, problem: str, expected: str, got: str) -> ShardResult:
    """Return the result for a file that is not looked into."""
    return ShardResult(0, 0, (Problem(path, problem, expected, got),))

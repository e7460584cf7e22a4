"""The folder in which the shards of an export are written until all are finished.

The names of files contain their number, which is known at the end. Until then a shard
has a number alone, ``train~0``, and a recorded export can find it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, final

from tokenlake.etl.export.shard_record import Part, Shard, ShardRecord, shard_name

SHARDS: Final = "shards"
"""Name of the folder beside a target."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExportProgress:
    """Progress of an export.

    Attributes:
        shards: Number of finished files of rows; parts of one shard count once.
        shards_total: Number of all files of rows; None if it is not known yet.
        rows: Number of rows in files, those of a file that grows included.
        rows_total: Number of rows of the export.
        is_resumed: True if an interrupted run has written them, and this one has
            written nothing yet.
    """

    shards: int
    shards_total: int | None
    rows: int
    rows_total: int
    is_resumed: bool


@final
class ShardFolder:
    """A folder with the shards of one export.

    Args:
        path: Folder.
        record: Record of the shards; None: the export cannot be resumed.

    Attributes:
        on_shard: Function that is called after each shard, and for a shard that grows
            after each of its recorded states; None: none is.
    """

    def __init__(self, path: Path, record: ShardRecord | None = None) -> None:
        self.path = path
        self.on_shard: Callable[[], object] | None = None
        self._record = record

    @classmethod
    def resumed(
        cls,
        path: Path,
        export: Mapping[str, Any],
        written_by: Mapping[str, str],
    ) -> Self:
        """Open a folder with the intact shards of an interrupted export, if any.

        Shards by other releases of the packages are removed, because theirs may be
        other bytes.

        Args:
            path: Folder; it is created if it is missing.
            export: Version, format and options of the export. A record of another
                export must have been removed.
            written_by: Name -> version of the packages that decide the bytes.
        """
        # Hashes are verified before anything is appended: a damaged shard is written anew.
        path.mkdir(exist_ok=True)
        record = ShardRecord.read(path)
        if record is None or record.written_by != written_by:
            record = ShardRecord.create(path, export, written_by)
        record.drop_damaged()
        record.remove_leftovers()
        return cls(path, record)

    @property
    def is_recorded(self) -> bool:
        """True if shards are recorded, so that the export can be resumed."""
        return self._record is not None

    def path_of(self, series: str, index: int) -> Path:
        """Return the path of a shard, without the suffixes of its parts."""
        return self.path / shard_name(series, index)

    def complete(self, series: str) -> list[Shard]:
        """Return the finished shards of a series, in order."""
        # Without gaps: a series is continued after its last finished shard.
        shards: list[Shard] = []
        while self._record is not None:
            shard = self._record.shards.get((series, len(shards)))
            if shard is None or not shard.is_complete:
                break
            shards.append(shard)
        return shards

    def growing(self, series: str) -> Shard | None:
        """Return the shard that an interrupted run has begun; None if there is none.

        Its state is the one from which it may be continued.
        """
        if self._record is None:
            return None
        return self._record.shards.get((series, len(self.complete(series))))

    def add(self, shard: Shard) -> None:
        """Record a shard whose files are written."""
        if self._record is not None:
            self._record.add(shard)
        if self.on_shard is not None:
            self.on_shard()

    @property
    def counts(self) -> tuple[int, int]:
        """Number of complete shards, and of rows in all shards."""
        # A folder without a record belongs to no export that could report progress.
        if self._record is None:
            return 0, 0
        complete_shards = 0
        rows = 0
        for shard in self._record.shards.values():
            rows += shard.rows
            if shard.is_complete:
                complete_shards += 1
        return complete_shards, rows

    def place(self, shard: Shard, part: Part, target: Path) -> None:
        """Give a part of a finished shard its final name.

        In a recorded export the shard itself stays, until the whole export is in its
        place: both names are links to one file.

        Args:
            shard: Shard.
            part: One of its parts.
            target: Path with the final name.
        """
        part_path = self.path / (shard_name(shard.series, shard.index) + part.suffix)
        if self._record is not None:
            # Where the file system has no links the file moves. An interruption from
            # here on costs this shard.
            with suppress(OSError):
                target.hardlink_to(part_path)
                return
        part_path.rename(target)


def keep_finished(work_folder: Path) -> bool:
    """Remove the files of an interrupted export that are of no finished shard.

    Args:
        work_folder: Folder beside the target.

    Returns:
        True if the export can be resumed from finished shards.
    """
    # Without a record nothing says which files are finished.
    folder = work_folder / SHARDS
    record = ShardRecord.read(folder)
    if record is None:
        return False
    record.remove_leftovers()
    return len(record.shards) > 0

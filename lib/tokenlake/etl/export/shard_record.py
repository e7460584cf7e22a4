"""The record of the shards that an export has finished, from which it resumes.

``finished.jsonl`` lies in the folder of the shards. Its first line states the export,
and each further line one shard, in the order in which they ended::

    {"export":{"dataset":"books","version":3,"format":"mds"},"written_by":{"pyarrow":"25.0.0"}}
    {"series":"train","index":0,"rows":8192,"is_complete":true,"parts":[{"suffix":"","bytes":67108112,"sha256":"9f.."}]}
    {"series":"train","index":1,"rows":8190,"is_complete":true,"parts":[...]}

A *series* is the shards of one split, or of one value of a split. A shard that is one
file of the whole split gets lines while it grows, too: ``"is_complete":false``, with
the bytes so far. A later line of a shard replaces its earlier ones.

A line is appended by one write. A process that dies leaves whole lines and at most one
incomplete line, at the end. Nothing is believed that the files do not confirm: the
record is read up to its first line that is not whole, and a shard counts if its parts
have the recorded sizes and hashes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self, final

import msgspec

from tokenlake.runtime.store.writes import write_all

RECORD: Final = "finished.jsonl"
"""Name of the record in the folder of the shards."""

_HASHED_BYTES: Final = 1 << 20
"""Bytes of a file that are hashed at a time."""


@final
class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the files that a shard consists of.

    Attributes:
        suffix: End of its name, for example ``.idx``.
        bytes: Size of the file.
        sha256: Hash of its bytes (hex).
        content_bytes: Size of its content before compression; None: it is not
            compressed.
    """

    suffix: str
    bytes: int
    sha256: str
    content_bytes: int | None = None


@final
class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shard as the record states it.

    Attributes:
        series: Split of its rows, or split and value, for example ``train-lang=en``.
        index: Number of the shard in its series, from 0.
        rows: Number of its rows.
        parts: Its files.
        is_complete: False for a shard that grows: rows and parts are those so far.
    """

    series: str
    index: int
    rows: int
    parts: tuple[Part, ...]
    is_complete: bool = True


@final
class _Heading(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of the record.

    Attributes:
        export: Version, format and options of the export.
        written_by: Name -> version of the packages that decide the bytes of its files.
    """

    export: dict[str, Any]
    written_by: dict[str, str]


def shard_name(series: str, index: int) -> str:
    """Return the name of a shard until all are finished, without a suffix."""
    return f"{series}~{index}"


@final
class ShardRecord:
    """The record of one export.

    Args:
        folder: Folder of the shards.
        heading: First line.
        shards: Shards of the record, by series and index.

    Attributes:
        shards: Shards so far, by series and index.
    """

    def __init__(
        self, folder: Path, heading: _Heading, shards: dict[tuple[str, int], Shard]
    ) -> None:
        self._folder = folder
        self._heading = heading
        self.shards = shards

    @property
    def export(self) -> Mapping[str, Any]:
        """Version, format and options of the export."""
        return self._heading.export

    @property
    def written_by(self) -> Mapping[str, str]:
        """Name -> version of the packages that decide the bytes of the files."""
        return self._heading.written_by

    @classmethod
    def create(
        cls, folder: Path, export: Mapping[str, Any], written_by: Mapping[str, str]
    ) -> Self:
        """Begin the record of an export in an empty folder."""
        record = cls(folder, _Heading(dict(export), dict(written_by)), {})
        record._write()
        return record

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read the record of a folder, up to the first line that is not whole.

        Returns:
            Record; None if the folder has none, or one without a first line.
        """
        record_path = folder / RECORD
        if not record_path.is_file():
            return None
        # Without its first line a record does not say which export the shards are of.
        heading_line, *shard_lines = record_path.read_bytes().splitlines(keepends=True)
        try:
            heading = msgspec.json.decode(_whole(heading_line), type=_Heading)
        except msgspec.MsgspecError:
            return None
        # A later line of a growing shard replaces its earlier ones.
        shards: dict[tuple[str, int], Shard] = {}
        for line in shard_lines:
            try:
                shard = msgspec.json.decode(_whole(line), type=Shard)
            except msgspec.MsgspecError:
                break
            shards[shard.series, shard.index] = shard
        return cls(folder, heading, shards)

    def add(self, shard: Shard) -> None:
        """Append a shard whose files are written."""
        # One write for one line: a process that dies leaves at most the last one short.
        self.shards[shard.series, shard.index] = shard
        record_line = msgspec.json.encode(shard) + b"\n"
        record_path = self._folder / RECORD
        descriptor = os.open(record_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            write_all(descriptor, memoryview(record_line), str(record_path))
        finally:
            os.close(descriptor)

    def drop_damaged(self) -> None:
        """Drop shards that are not on the disk as they are recorded.

        A series continues after its last shard, so that all shards after a dropped one
        are dropped, too.
        """
        # The shards of each series, up to the first that is damaged or incomplete.
        intact: dict[tuple[str, int], Shard] = {}
        for series in {series for series, _index in self.shards}:
            index = 0
            while (series, index) in self.shards:
                shard = self.shards[series, index]
                if not _is_intact(self._folder, shard):
                    break
                intact[series, index] = shard
                if not shard.is_complete:
                    break
                index += 1
        self.shards = intact
        # The record must not state more than there is when lines are appended to it.
        self._write()

    def remove_leftovers(self) -> None:
        """Remove the files of no shard, which a process has left."""
        # They take space, and nothing says whether they are whole.
        file_names = {RECORD}
        for shard in self.shards.values():
            base_name = shard_name(shard.series, shard.index)
            for part in shard.parts:
                file_names.add(base_name + part.suffix)
        for file_path in self._folder.iterdir():
            if file_path.name not in file_names:
                file_path.unlink()

    def _write(self) -> None:
        """Replace the record on the disk as a whole."""
        # A rename, so that a process that dies leaves the old record or the new one.
        record_lines = [msgspec.json.encode(self._heading)]
        for _series_index, shard in sorted(self.shards.items()):
            record_lines.append(msgspec.json.encode(shard))
        new_path = self._folder / f"{RECORD}.new"
        new_path.write_bytes(b"\n".join(record_lines) + b"\n")
        new_path.replace(self._folder / RECORD)


def _whole(line: bytes) -> bytes:
    """Return a line that ends; an incomplete one is no JSON."""
    if line.endswith(b"\n"):
        return line
    return b""


def _is_intact(folder: Path, shard: Shard) -> bool:
    """Return True if the files of a shard hold the recorded bytes.

    A complete shard ends with them; a growing one may hold more.
    """
    for part in shard.parts:
        part_path = folder / (shard_name(shard.series, shard.index) + part.suffix)
        if not part_path.is_file():
            return False
        # Sizes are compared first: they cost no reading.
        file_bytes = part_path.stat().st_size
        is_too_long = shard.is_complete and file_bytes > part.bytes
        if file_bytes < part.bytes or is_too_long:
            return False
        if hash_begin(part_path, part.bytes).hexdigest() != part.sha256:
            return False
    return True


def hash_begin(path: Path, size: int) -> Any:
    """Return the sha256 object of the first bytes of a file, `size` of them."""
    # The file may be larger than memory, and longer than the bytes that were recorded.
    content_hash = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        remaining_bytes = size
        while remaining_bytes > 0:
            block = file.read(min(_HASHED_BYTES, remaining_bytes))
            if not block:
                break
            content_hash.update(block)
            remaining_bytes -= len(block)
    return content_hash

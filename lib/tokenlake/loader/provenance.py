"""Where the rows of a packed dataset come from: the columns that say it, read without the ids.

They are less than a hundredth of a file. Every page is read against its checksum, as everywhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from tokenlake.catalog import read_record
from tokenlake.errors import IntegrityError, NotFoundError
from tokenlake.loader.dataset import Dataset
from tokenlake.manifest import ShardEntry, UnitRecord
from tokenlake.order.random import Int64
from tokenlake.ragged import offsets_of
from tokenlake.reading.shardfile import ShardFile
from tokenlake.storage import Layout

_COLUMNS: Final = ["segment_lengths", "documents"]
_MEND: Final = "Run `tokenlake verify` to see all that is damaged"
_DAMAGE: Final = (pa.ArrowException, OSError, ValueError, OverflowError)


@final
@dataclass(frozen=True, eq=False, slots=True)
class Pieces:
    """The segments of the rows of a row group, one row after the other.

    Attributes:
        offsets: which are each row's, int64[rows + 1].
        length: ids of each, int64[s].
        file, position: the document, int64[s] both.
        start: the first id within the document, int64[s].
    """

    offsets: Int64
    length: Int64
    file: Int64
    position: Int64
    start: Int64

    @classmethod
    def of(cls, table: pa.Table) -> Pieces:
        """Read a row group; ValueError where its columns contradict each other."""
        lengths, documents = (_whole(table, name) for name in _COLUMNS)
        counts = documents.value_lengths()
        if not counts.equals(lengths.value_lengths()):
            raise ValueError(f"{' and '.join(_COLUMNS)} are not of the same segments")
        fields = [_numbers(documents.flatten().field(name)) for name in ("file", "position", "start")]
        return cls(offsets_of(_numbers(counts)), _numbers(lengths.flatten()), *fields)

    def row_of(self, index: Int64) -> Int64:
        """Return the row that each segment is of, int64[n]."""
        return np.searchsorted(self.offsets, index, side="right") - 1


def read_pieces(dataset: Dataset, groups: Iterable[int]) -> Iterator[tuple[int, Pieces]]:
    """Yield row groups with their segments; of neighbours in one shard the file is opened once.

    Raises:
        IntegrityError: a file is missing or damaged; names file and row group.
    """
    places = ((group, *dataset.rows.shard_of(group)) for group in groups)
    for path, some in groupby(places, key=lambda place: place[1].path):
        where = f"{dataset.manifest.dataset}@v{dataset.manifest.version}: {path}"
        with contextlib.ExitStack() as opened:
            file: Any = None
            for group, shard, index in some:
                try:
                    file = file or _open(opened, dataset, shard)
                    found = Pieces.of(file.read_row_group(index, columns=_COLUMNS, use_threads=False))
                except NotFoundError as error:
                    raise IntegrityError(f"{where} is missing. {_MEND}.", file=path) from error
                except (KeyError, *_DAMAGE) as error:
                    raise IntegrityError(
                        f"{where}: row group {index} cannot be read: {error}. {_MEND}.", file=path
                    ) from error
                if len(found.offsets) != dataset.rows.group_rows[group] + 1:
                    raise IntegrityError(
                        f"{where}: row group {index} has other rows than were committed. {_MEND}.", file=path
                    )
                yield group, found


def _open(opened: contextlib.ExitStack, dataset: Dataset, shard: ShardEntry) -> ShardFile:
    key = Layout(dataset.manifest.dataset, dataset.manifest.version).key(shard.path)
    # Without the hash: nobody keeps a whole copy of a shard for the little that is read of it.
    stream = opened.enter_context(dataset.store.open(key, size=shard.bytes))
    return ShardFile(stream)


def groups_with(dataset: Dataset, file: int, position: int) -> Iterator[tuple[bool, list[int]]]:
    """Yield row groups that may hold pieces of a document, unit of work by unit of work, the likeliest first.

    The ledger says which units read the file, and a document's pieces never leave a unit. What mixtures and repacked
    versions read is other versions: any of their units may hold any document, and several may hold the same.

    Yields:
        whether no other unit holds the document if this one does, and its row groups.
    """
    units: dict[int, list[int]] = {}
    for group in range(len(dataset.rows.group_rows)):
        units.setdefault(dataset.rows.shard_of(group)[0].unit, []).append(group)
    likely: list[tuple[bool, list[int]]] = []
    unlikely: list[tuple[bool, list[int]]] = []
    for unit, groups in units.items():
        record = _record(dataset, unit)
        if record is None or not record.inputs:
            unlikely.append((False, groups))
            continue
        ranges = [each for each in record.inputs if each.file_id == file]
        if ranges:
            # Ranges are of bytes in files of lines, and else of row groups: a hint of where to begin.
            hit = any(each.start <= position < each.stop for each in ranges)
            (likely if hit else unlikely).append((True, groups))
    yield from likely
    yield from unlikely


def _record(dataset: Dataset, unit: int) -> UnitRecord | None:
    layout = Layout(dataset.manifest.dataset, dataset.manifest.version)
    try:
        return read_record(dataset.store, layout, unit, dataset.manifest)
    except NotFoundError:  # of a version that was copied without its ledger
        return None


def _whole(table: pa.Table, name: str) -> Any:
    return table.column(name).combine_chunks()


def _numbers(array: Any) -> Int64:
    return array.to_numpy(zero_copy_only=False).astype(np.int64)

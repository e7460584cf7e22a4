"""Reads row groups of packed shards: their pages directly, or through Arrow what is not laid out as we write it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, final

from tokenlake.reading.bombs import check_unfolded
from tokenlake.reading.files import OpenFiles
from tokenlake.reading.footer import Chunk, Footer
from tokenlake.reading.packedgroup import IDS, LEARNED, LENGTHS, PackedGroup
from tokenlake.reading.pages import SeenLevels, Unfamiliar, fixed_bits, fixed_numbers, list_numbers
from tokenlake.reading.ranges import Descriptor, Ranges, Streamed
from tokenlake.reading.runs import one_batch

_BOOLEAN, _INT32 = 0, 1
_KINDS: Final = {IDS: _INT32, LENGTHS: _INT32, LEARNED: _BOOLEAN}
_NEAR: Final = 1 << 16  # bytes between two column chunks that are read rather than skipped


@final
class PackedReader:
    """Row groups of the shards of a packed dataset; may be used by several threads.

    Args:
        files: opens the shards as Parquet.
        ranges: reads their bytes.
        length: ids of a row.
    """

    def __init__(self, files: OpenFiles, ranges: Ranges, length: int) -> None:
        self._files, self._ranges, self._length = files, ranges, length
        self._seen = SeenLevels(length)
        self._through_arrow: set[int] = set()

    def read(self, shard: int, index: int, rows: int, *, loss_mask: bool) -> PackedGroup:
        """Decode one row group.

        Args:
            shard, index: the shard, and the row group in it.
            rows: how many it must have.
            loss_mask: whether its ``loss_mask`` is read.

        Raises:
            ValueError, OSError, pa.ArrowException: it is damaged, or not what was expected.
        """
        columns = [IDS, LENGTHS] + [LEARNED] * loss_mask
        try:
            source, footer = self._ranges.of(shard)
            chunks = _chunks(footer, index, rows, columns, self._length)
            if shard not in self._through_arrow:
                with contextlib.suppress(Unfamiliar):
                    return self._direct(source, chunks, rows)
            group = self._arrow(shard, index, rows, chunks)
            self._through_arrow.add(shard)
            return group
        except BaseException:
            self._ranges.close(shard)
            raise

    @property
    def through_arrow(self) -> frozenset[int]:
        """The shards that were found to be laid out in another way than ours."""
        return frozenset(self._through_arrow)

    def _direct(self, source: Descriptor | Streamed, chunks: dict[str, Chunk], rows: int) -> PackedGroup:
        if any(chunk.kind != _KINDS[name] for name, chunk in chunks.items()):
            raise Unfamiliar("a column is stored in another way")
        data, length = _bytes(source, chunks), self._length
        ids = fixed_numbers(data[IDS], rows, length, self._seen)
        lengths, offsets = list_numbers(data[LENGTHS], chunks[LENGTHS].values)
        learned = fixed_bits(data[LEARNED], rows, length, self._seen) if LEARNED in data else None
        return PackedGroup(ids, lengths, offsets, learned)

    def _arrow(self, shard: int, index: int, rows: int, chunks: dict[str, Chunk]) -> PackedGroup:
        with self._files.borrow(shard) as file:
            table = file.read_row_group(index, columns=list(chunks), use_threads=False)
        if sorted(table.schema.names) != sorted(chunks) or table.num_rows != rows:
            names = ", ".join(table.schema.names)
            raise ValueError(f"{table.num_rows} rows of {names}; expected {rows} rows of {', '.join(chunks)}")
        group = PackedGroup.of(one_batch(table), self._length)
        if len(group.segment_lengths) != chunks[LENGTHS].values:
            found, stated = len(group.segment_lengths), chunks[LENGTHS].values
            raise ValueError(f"{found} segments; expected {stated}, as the footer says")
        return group


def _chunks(footer: Footer, index: int, rows: int, columns: Sequence[str], length: int) -> dict[str, Chunk]:
    """Return where the columns of a row group lie; ValueError unless they hold as many values as they must."""
    chunks = {name: footer.chunk(index, name) for name in columns}
    if (found := int(footer.rows[index])) != rows:
        raise ValueError(f"{found} rows; expected {rows}")
    for name, chunk in chunks.items():
        least = rows if name == LENGTHS else rows * length
        if not least <= chunk.values <= rows * length:
            raise ValueError(f"{chunk.values} values of {name}; expected {rows} rows of {length}")
    # Before any memory is taken for them: a footer and a manifest of one hand agree on any number.
    check_unfolded(4 * rows * length, sum(chunk.size for chunk in chunks.values()))
    return chunks


def _bytes(source: Descriptor | Streamed, chunks: dict[str, Chunk]) -> dict[str, memoryview]:
    """Return the bytes of column chunks; those that lie together are read at once."""
    found: dict[str, memoryview] = {}
    near: list[tuple[str, Chunk]] = []
    for name, chunk in sorted(chunks.items(), key=lambda item: item[1].begin):
        if near and chunk.begin - (near[-1][1].begin + near[-1][1].size) > _NEAR:
            found |= _together(source, near)
            near = []
        near.append((name, chunk))
    return found | _together(source, near)


def _together(source: Descriptor | Streamed, chunks: Sequence[tuple[str, Chunk]]) -> dict[str, memoryview]:
    begin, last = chunks[0][1].begin, chunks[-1][1]
    data = memoryview(source.read(begin, last.begin + last.size - begin))
    return {name: data[chunk.begin - begin : chunk.begin - begin + chunk.size] for name, chunk in chunks}

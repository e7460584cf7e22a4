"""Files of records of bytes with a head of offsets: MDS shards and litdata chunks.

Both begin with the number of records (uint32) and the place of each record in the file
(uint32), and the size of the file after the last one. A record begins with the size
(uint32) of each of its values whose size is not fixed, and has all values after that.

Example: a record of the value "a" of 4 bytes (not fixed) and the value "b" of 2 bytes (fixed) is::

    04 00 00 00   aa aa aa aa   bb bb
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.etl.sources.input_bytes import InputBytes
from tokenlake.etl.sources.input_errors import damaged

_WORD: int = 4
"""Bytes of a number of the head."""


@final
class RecordFile:
    """The records of a file with a head of offsets, as bytes.

    Args:
        data: The open file.
        content: All bytes of the file, if it had to be decompressed; None to read them
            where they are needed.

    Attributes:
        count: Number of records.

    Raises:
        DamagedFileError: The offsets do not ascend from behind the head to the size of
            the file.
    """

    def __init__(self, data: InputBytes, content: bytes | None = None) -> None:
        # 1. The number of records. It is believed only if the file has room for the
        #    offsets: a file of another kind may begin with any number.
        self._data = data
        self._content = content
        self._size = data.file.size
        if content is not None:
            self._size = len(content)
        count_bytes = self.bytes_at(0, _WORD)
        self.count = int.from_bytes(count_bytes, "little")
        self.head_size = _WORD + _WORD * (self.count + 1)
        if len(count_bytes) < _WORD or self.head_size > self._size:
            raise damaged(
                data.file,
                f"it has {self._size} bytes, expected at least {self.head_size} for {self.count} records",
            )
        # 2. The offsets, which must ascend and fill the file.
        offset_bytes = self.bytes_at(_WORD, self.head_size)
        offsets = np.frombuffer(offset_bytes, "<u4").astype(np.int64)
        is_descending = np.diff(offsets) < 0
        if is_descending.any():
            raise damaged(
                data.file, f"record {int(is_descending.argmax())} ends before it begins"
            )
        if offsets[0] < self.head_size or offsets[-1] != self._size:
            raise damaged(
                data.file,
                f"its records lie at bytes {offsets[0]} to {offsets[-1]}, expected {self.head_size} to {self._size}, "
                "the end of the file",
            )
        self._offsets = offsets

    def bytes_at(self, begin: int, end: int) -> bytes:
        """Return bytes of the file."""
        if self._content is not None:
            return self._content[begin:end]
        return self._data.pread(end - begin, begin)

    def bytes_before_records(self) -> bytes:
        """Return the bytes between the offsets and the first record."""
        return self.bytes_at(self.head_size, int(self._offsets[0]))

    def edges(self, first: int, last: int) -> Int64:
        """Return where records ``first:last`` begin and the last one ends, in bytes."""
        return self._offsets[first : last + 1]

    def values(
        self, first: int, last: int, fixed_sizes: Sequence[int | None]
    ) -> tuple[bytes, list[tuple[Int64, Int64]]]:
        """Return the values of records ``first:last``.

        Args:
            first: First record.
            last: Record after the last one.
            fixed_sizes: Size in bytes of each value of a record; None for one whose
                size each record states.

        Returns:
            The bytes of these records; and where each value begins and ends in them,
            for each value int64[n] twice.

        Raises:
            DamagedFileError: The values of a record do not fill it.
        """
        # All records in one read. Places count from the first byte of the block.
        edges = self.edges(first, last)
        block = self.bytes_at(int(edges[0]), int(edges[-1]))
        record_begins = edges[:-1] - edges[0]
        record_ends = edges[1:] - edges[0]
        # 1. The sizes that records state: one word for each value without a fixed size.
        stated_count = sum(fixed_size is None for fixed_size in fixed_sizes)
        head_size = _WORD * stated_count
        is_short = record_ends - record_begins < head_size
        if is_short.any():
            raise self._not_filled(first + int(is_short.argmax()))
        block_bytes = np.frombuffer(block, np.uint8)
        head_places = record_begins[:, None] + np.arange(head_size)
        stated_words = block_bytes[head_places].view("<u4").astype(np.int64)
        stated_sizes = stated_words.reshape(len(record_begins), stated_count)
        # 2. The values follow each other: each begins where the one before it ends.
        places: list[tuple[Int64, Int64]] = []
        value_begins = record_begins + head_size
        stated_index = 0
        for fixed_size in fixed_sizes:
            if fixed_size is None:
                value_ends = value_begins + stated_sizes[:, stated_index]
                stated_index += 1
            else:
                value_ends = value_begins + fixed_size
            places.append((value_begins, value_ends))
            value_begins = value_ends
        # 3. The last value must end with its record, or a size is damaged.
        is_wrong = value_begins != record_ends
        if is_wrong.any():
            raise self._not_filled(first + int(is_wrong.argmax()))
        return block, places

    def _not_filled(self, record: int) -> Exception:
        return damaged(
            self._data.file,
            f"the values of record {record} do not have the sizes that it states",
        )


def joined_bytes(block: bytes, begins: Int64, ends: Int64) -> bytes:
    """Return some stretches of bytes, one after the other.

    Args:
        block: Bytes.
        begins: Beginning of each stretch, int64[n].
        ends: End of each stretch, int64[n].
    """
    # Stretches without gaps, as of records with a single value, are one slice.
    if len(begins) and (begins[1:] == ends[:-1]).all():
        return block[int(begins[0]) : int(ends[-1])]
    # Copying stretches takes a tenth of the time of an index for each byte.
    block_view = memoryview(block)
    stretches = [
        block_view[begin:end]
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    return b"".join(stretches)

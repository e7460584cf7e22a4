"""Columns of rows of one length, hashed as they are decoded, page by page.

Of all that a packed shard holds these are nearly everything, and nothing needs to be known of them but their logical
hash. So their pages are read without a detour, as the loader reads them, and none of them is kept: a page is hashed
while it is in the processor's cache.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np

from tokenlake.reading.bombs import check_unfolded
from tokenlake.reading.footer import Chunk, Footer
from tokenlake.reading.pages import SeenLevels, Unfamiliar
from tokenlake.reading.pages.page import page_headers, read_page
from tokenlake.schema import LogicalHasher
from tokenlake.verify.source import StreamSource

_BITS: Final = {0: 1, 1: 32}  # of a value, by Parquet's number of its type: booleans and 32-bit integers


@final
class FixedColumns:
    """The columns of a shard whose rows all have one length.

    Args:
        source: the shard.
        footer: of it.
        names: of the columns; those that are laid out in a way that is not ours raise Unfamiliar.
        length: values of a row.
        seen: levels of other shards with rows of this length.
    """

    def __init__(
        self, source: StreamSource, footer: Footer, names: list[str], length: int, seen: SeenLevels
    ) -> None:
        if any(
            name not in footer.lists or not np.isin(footer.lists[name][:, -1], list(_BITS)).all()
            for name in names
        ):
            raise Unfamiliar("a column is stored in another way")
        self._source, self._footer, self._names, self._length = source, footer, names, length
        self._seen = seen

    @property
    def row_bytes(self) -> int:
        """Bytes that a row takes in these columns, at least."""
        kinds = (int(self._footer.lists[name][0, -1]) for name in self._names if len(self._footer.rows))
        return sum(_BITS[kind] * self._length // 8 for kind in kinds)

    def hash(self, group: int, hasher: LogicalHasher) -> int:
        """Decode the columns of a row group, each page against its checksum, and hash their values.

        Returns:
            Its rows.

        Raises:
            Unfamiliar: pages are laid out in another way.
            ValueError, OSError: they are damaged, or do not hold as many values as their rows have.
        """
        for name in self._names:
            chunk, expected = self._footer.chunk(group, name), int(self._footer.rows[group]) * self._length
            if chunk.values != expected:
                raise ValueError(f"{chunk.values} values of {name}; expected {expected}")
            # A page is decompressed whole, and may say that it is 2 GB of zeros.
            check_unfolded(_BITS[chunk.kind] * chunk.values // 8, chunk.size)
            self._hash(name, chunk, hasher)
        return int(self._footer.rows[group])

    def _hash(self, name: str, chunk: Chunk, hasher: LogicalHasher) -> None:
        data = memoryview(self._source.read(chunk.begin, chunk.size))
        at, bits = 0, _BITS[chunk.kind]
        for header in page_headers(data, chunk.values, bits=bits):
            page = read_page(data, header, bits=bits)
            self._seen.check(at % self._length, page.values, page.repetition, page.definition)
            if bits == 1:
                packed = np.frombuffer(page.data, np.uint8)
                values = np.unpackbits(packed, count=page.values, bitorder="little")
            else:
                values = np.frombuffer(page.data, "<i4")
            hasher.update_list(name, values)
            at += page.values

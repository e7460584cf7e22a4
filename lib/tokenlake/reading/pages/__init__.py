"""Column chunks as our own writer lays them out, decoded without a detour.

A column chunk is a run of pages; a page is a header, then its compressed body: levels, then values. Of all that
Parquet allows only what :func:`tokenlake.schema.open_writer` writes is understood here: zstd, PLAIN, no dictionary,
data pages of version 1 with a checksum, no nulls, no empty lists. Whatever is another way raises :class:`Unfamiliar`,
and the caller lets Arrow read it; what cannot be right in any file is a ValueError.

::

    ids = fixed_numbers(chunk, rows, length, seen)      # int32[rows, length]; checksums verified
    lengths, offsets = list_numbers(chunk, values)
"""

from tokenlake.reading.pages.columns import fixed_bits, fixed_numbers, list_numbers
from tokenlake.reading.pages.header import PageHeader, Unfamiliar, parse_header
from tokenlake.reading.pages.levels import SeenLevels

__all__ = [
    "PageHeader",
    "SeenLevels",
    "Unfamiliar",
    "fixed_bits",
    "fixed_numbers",
    "list_numbers",
    "parse_header",
]

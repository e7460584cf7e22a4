"""Column chunks as our own writer lays them out, decoded without a detour.

A column chunk is a run of pages; a page is a header, then its compressed body: levels, then values. Of all that
Parquet allows only what :func:`tokenlake.schema.open_writer` writes is understood here: zstd, PLAIN, no dictionary,
data pages of version 1 with a checksum, no nulls, no empty lists. Whatever is another way raises :class:`Unfamiliar`,
and the caller lets Arrow read it; what cannot be right in any file is a ValueError.

::

    pages = read_pages(chunk, rows * length, bits=32)   # checksums verified, bodies decompressed
    views = fixed_rows(pages, length, seen)       # a view per row, no copy but of rows that straddle pages
    lengths, offsets = list_rows(pages)
"""

from tokenlake.reading.pages.columns import fixed_bits, fixed_rows, list_rows
from tokenlake.reading.pages.header import PageHeader, Unfamiliar, parse_header
from tokenlake.reading.pages.levels import SeenLevels
from tokenlake.reading.pages.page import Page, read_pages

__all__ = [
    "Page",
    "PageHeader",
    "SeenLevels",
    "Unfamiliar",
    "fixed_bits",
    "fixed_rows",
    "list_rows",
    "parse_header",
    "read_pages",
]

"""A part of a file that can be read by itself."""

from __future__ import annotations

from dataclasses import dataclass

from tokenlake.sources.inputs import InputFile


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """A part of a file.

    Attributes:
        file: the file.
        start, stop: byte offsets for plain line formats (the range owns the lines that START in
            ``[start, stop)``); row groups for Parquet; record batches for Arrow files (not streams); 0 and
            the file's size for everything else.
        rows: read at most so many records of it, good or bad; None for all.
        weight: how much there is to read: bytes on disk, for Parquet uncompressed bytes of the row groups.
        records: how many there are, where the file says so without being read; None where it does not.
            For planning only: no reader looks at it.
    """

    file: InputFile
    start: int
    stop: int
    weight: int
    rows: int | None = None
    records: int | None = None

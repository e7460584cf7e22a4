"""Line numbers of records that turn out to be bad after their block is gone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final, final

from tokenlake.etl.sources.inputs import InputFile
from tokenlake.etl.sources.lines import count_lines
from tokenlake.etl.sources.opening import opened

COUNTED_BYTES: Final = 1 << 30
"""Largest byte offset before which lines are counted while a build continues: a unit at
the end of a file of a terabyte would read all of it.
"""


@final
class LineCounter:
    """Counts the lines before records.

    A file is opened again, and newlines are counted from the nearest earlier record
    that was asked for.

    Args:
        storage_options: Options of the file system of the files.
    """

    def __init__(self, storage_options: Mapping[str, Any]) -> None:
        self._storage_options = storage_options
        # File id -> byte offsets of records, ascending, and the lines before each.
        self._offsets: dict[int, list[int]] = {}
        self._lines: dict[int, list[int]] = {}

    def line_of(self, file: InputFile, position: int) -> int | None:
        """Return the line number in the file, from 1, of a record.

        It is None for files without lines, compressed ones, those of other machines,
        and behind the first GiB, where counting would take too long.

        Args:
            file: File of the record.
            position: Position of the record.
        """
        is_plain = file.is_lines and file.compression is None
        if not is_plain or not file.is_local or position > COUNTED_BYTES:
            return None
        offsets = self._offsets.setdefault(file.file_id, [0])
        lines = self._lines.setdefault(file.file_id, [0])
        index = bisect_right(offsets, position)
        with opened(file, self._storage_options) as data:
            newlines = count_lines(data, position, start=offsets[index - 1])
        lines_before = lines[index - 1] + newlines
        offsets.insert(index, position)
        lines.insert(index, lines_before)
        return lines_before + 1

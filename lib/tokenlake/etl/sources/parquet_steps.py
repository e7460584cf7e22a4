"""How many rows of a Parquet column may be decoded at once.

The bound is taken from the headers of its pages.

The footer of a damaged or malicious file may declare anything, and a few stored bytes
may stand for gigabytes. The bound of a step is therefore taken from the pages: a page
holds at most its size in values, and an index into a dictionary stands for at most the
dictionary's largest entry.

Example: a page of 1,000 indices into a dictionary whose largest entry has 64 KiB may
unfold to 64 MB. Hardly ever is every row the largest one, so that a sixteenth of this
is expected, 4 MB, and the page is decoded in one step of 8 MiB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, final

from tokenlake.runtime.parquet.page_headers import DELTA_BYTE_ARRAY
from tokenlake.runtime.reading.pages import PageHeader
from tokenlake.runtime.reading.unfolding import Bomb, check_unfolded

STEP_BYTES: Final = 8 << 20
"""Size in bytes that a step is expected to have."""

# Largest number of rows of a step, however small they are.
_STEP_ROWS: Final = 1 << 16
# Of the largest possible size one in 16 is expected; a step can take 16 times as much.
_EXPECTED_SHARE: Final = 16
_ROW_BYTES: Final = 8  # an offset and a bit of validity, or a number


class _PageRows(NamedTuple):
    """Rows of a page that are not decoded yet.

    Attributes:
        rows: Number of rows.
        size: Number of bytes that they are expected to take together.
    """

    rows: int
    size: int


@final
class PageSteps:
    """The rows of one column chunk without repeated values, as pages to be decoded.

    Headers of pages are read ahead of decoding.

    Attributes:
        stored: Number of decompressed bytes of the pages read so far.
    """

    def __init__(
        self,
        pages: Iterator[PageHeader],
        largest_entry: Callable[[int], int],
        max_page: int,
    ) -> None:
        """Take the pages of a chunk; none is read yet.

        Args:
            pages: Headers of the chunk's pages, in order.
            largest_entry: Function of a dictionary's size in bytes that returns the
                size of its largest entry, or a bound of it.
            max_page: Largest size of a page in bytes; a larger one is a bomb.
        """
        self._pages = pages
        self._largest_entry = largest_entry
        self._max_page = max_page
        self._pages_ahead: deque[_PageRows] = deque()
        self._entry_bytes = 0  # size of the dictionary's largest entry
        self._values_read = 0
        self.stored = 0

    def fitting(self) -> int:
        """Return the number of the next rows that may be decoded at once, at least 1.

        Raises:
            Bomb: A page is too large, or counts more values than it can hold.
        """
        row_count = 0
        bytes_left = STEP_BYTES
        page_index = 0
        while row_count < _STEP_ROWS and (
            page_index < len(self._pages_ahead) or self._read_page()
        ):
            page = self._pages_ahead[page_index]
            page_index += 1
            # Only a part of this page fits: rows of a page are taken to be of equal
            # size.
            if page.size > bytes_left:
                row_count += page.rows * bytes_left // page.size
                break
            row_count += page.rows
            bytes_left -= page.size
        return max(1, min(row_count, _STEP_ROWS))

    def advance(self, rows: int) -> None:
        """Note that the next `rows` rows were decoded."""
        while rows and (self._pages_ahead or self._read_page()):
            page = self._pages_ahead[0]
            decoded_rows = min(rows, page.rows)
            rows -= decoded_rows
            if decoded_rows == page.rows:
                self._pages_ahead.popleft()
            else:
                bytes_left = page.size - page.size * decoded_rows // page.rows
                self._pages_ahead[0] = _PageRows(page.rows - decoded_rows, bytes_left)

    def _read_page(self) -> bool:
        """Read the headers up to the next page with values.

        Returns:
            Whether there is such a page.
        """
        for page in self._pages:
            _check_page(page, self._max_page)
            self.stored += page.size
            if page.dictionary:
                self._entry_bytes = self._largest_entry(page.size)
            elif page.values:
                # Values of hardly any bytes are a bomb as well: nulls take none in the
                # file.
                self._values_read += page.values
                check_unfolded(self._values_read * _ROW_BYTES, self.stored)
                expected_bytes = page.values * _ROW_BYTES + self._expected_bytes(page)
                self._pages_ahead.append(_PageRows(page.values, expected_bytes))
                return True
        return False

    def _expected_bytes(self, page: PageHeader) -> int:
        """Return the number of bytes that the values of a page are expected to take."""
        if page.indices:
            return page.values * self._entry_bytes // _EXPECTED_SHARE
        if page.encoding == DELTA_BYTE_ARRAY:  # every row may repeat a long prefix
            return page.values * page.size // _EXPECTED_SHARE
        return page.size


@final
class ListSteps:
    """The same for a chunk of lists.

    The beginnings of rows in its pages are not known, so that averages must do.

    A chunk that could take much more than is stored is refused beforehand, so that a
    single row cannot.

    Attributes:
        stored: Number of decompressed bytes of all pages.
    """

    def __init__(
        self, pages: Iterator[PageHeader], entry_bytes: int, max_page: int, rows: int
    ) -> None:
        """Read the headers of all pages.

        Args:
            pages: Headers of the chunk's pages.
            entry_bytes: Largest number of bytes that a value read from a dictionary
                takes.
            max_page: Largest size of a page in bytes; a larger one is a bomb.
            rows: Number of rows of the chunk.

        Raises:
            Bomb: A page is too large, or the chunk could take much more than is stored.
        """
        self.stored = 0
        unfolded_bytes = 0
        for page in pages:
            _check_page(page, max_page)
            self.stored += page.size
            if not page.dictionary:
                value_bytes = _ROW_BYTES
                if page.indices:
                    value_bytes += entry_bytes
                unfolded_bytes += page.values * value_bytes
                check_unfolded(unfolded_bytes, self.stored)
        rows_of_step = rows * STEP_BYTES // max(unfolded_bytes + self.stored, 1)
        self._rows = max(1, min(_STEP_ROWS, rows_of_step))

    def fitting(self) -> int:
        """Return the number of the next rows that may be decoded at once."""
        return self._rows

    def advance(self, rows: int) -> None:
        """Note that the next `rows` rows were decoded; all stretches are alike."""


def _check_page(page: PageHeader, limit: int) -> None:
    if page.size > limit:
        raise Bomb(
            f"a page decompresses to {page.size} bytes, more than {limit}; write the file with smaller pages"
        )

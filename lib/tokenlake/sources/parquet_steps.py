"""How many rows of a Parquet row group to decode at a time, so that memory stays within bounds.

What a step can cost is bounded by the pages' headers, never by what the footer declares: a page
holds at most its size in values, an index may stand for the largest entry of the dictionary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, final

from tokenlake.reading.pages import DELTA_BYTE_ARRAY, Bomb, PageHeader, check_unfolded

STEP_BYTES: Final = 8 << 20  # aimed at
STEP_ROWS: Final = 1 << 16
_RARELY: Final = 16  # hardly ever is every row the largest it can be; a step then takes so many times more
MAX_PAGE_BYTES: Final = 512 << 20  # beyond the largest record there may be
_ROW_BYTES: Final = 8  # an offset and a bit of validity, or a number


@dataclass(slots=True)
class _PageRows:
    """Consecutive rows of one page, and what they may take together."""

    rows: int
    size: int


@final
class PageSteps:
    """The rows of one column chunk whose values are not repeated, as pages that are looked at ahead of decoding."""

    def __init__(
        self, pages: Iterator[PageHeader], largest_entry: Callable[[int], int], max_page: int
    ) -> None:
        """Take the pages of a chunk.

        Args:
            pages: the chunk's.
            largest_entry: dictionary's size -> size of its largest entry, or a bound of it.
            max_page: a larger page is a bomb.
        """
        self._pages, self._largest_entry, self._max_page = pages, largest_entry, max_page
        self._ahead: deque[_PageRows] = deque()
        self._entry, self._values = 0, 0
        self.stored = 0  # decompressed bytes of the pages seen so far

    def fitting(self) -> int:
        """Return how many of the next rows may be decoded at once, at least 1."""
        rows, room, index = 0, STEP_BYTES, 0
        while rows < STEP_ROWS and (index < len(self._ahead) or self._look()):
            stretch = self._ahead[index]
            index += 1
            if stretch.size > room:
                rows += stretch.rows * room // stretch.size
                break
            rows, room = rows + stretch.rows, room - stretch.size
        return max(1, min(rows, STEP_ROWS))

    def advance(self, rows: int) -> None:
        """Note that the next `rows` rows were decoded."""
        while rows and (self._ahead or self._look()):
            first = self._ahead[0]
            some = min(rows, first.rows)
            first.size -= first.size * some // first.rows
            first.rows, rows = first.rows - some, rows - some
            if not first.rows:
                self._ahead.popleft()

    def _look(self) -> bool:
        for page in self._pages:
            check_page(page, self._max_page)
            self.stored += page.size
            if page.dictionary:
                self._entry = self._largest_entry(page.size)
            elif page.values:
                self._values += page.values
                check_unfolded(self._values * _ROW_BYTES, self.stored)
                self._ahead.append(self._stretch(page))
                return True
        return False

    def _stretch(self, page: PageHeader) -> _PageRows:
        plain = page.values * _ROW_BYTES
        if page.indices:
            return _PageRows(page.values, plain + page.values * self._entry // _RARELY)
        if page.encoding == DELTA_BYTE_ARRAY:  # every row may repeat a long prefix
            return _PageRows(page.values, plain + page.values * page.size // _RARELY)
        return _PageRows(page.values, plain + page.size)


@final
class ListSteps:
    """The same for a chunk of lists: where rows begin in its pages is not known, so that averages must do.

    A chunk that could take much more than is stored is refused beforehand, so that a single row cannot.
    """

    def __init__(self, pages: Iterator[PageHeader], entry: int, max_page: int, rows: int) -> None:
        """Take the pages of a chunk of `rows` rows; `entry` bounds what a value read from a dictionary takes."""
        self.stored, taken = 0, 0
        for page in pages:
            check_page(page, max_page)
            self.stored += page.size
            if not page.dictionary:
                taken += page.values * (_ROW_BYTES + (entry if page.indices else 0))
                check_unfolded(taken, self.stored)
        self._rows = max(1, min(STEP_ROWS, rows * STEP_BYTES // max(taken + self.stored, 1)))

    def fitting(self) -> int:
        """Return how many of the next rows may be decoded at once."""
        return self._rows

    def advance(self, rows: int) -> None:
        """All stretches are alike."""


def check_page(page: PageHeader, limit: int) -> None:
    """Raise Bomb if `page` is larger than `limit`."""
    if page.size > limit:
        raise Bomb(
            f"a page unfolds to {page.size} bytes, more than {limit}; write the file with smaller pages"
        )

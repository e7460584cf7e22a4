"""Counts of the tokens that truncation leaves out of the rows of a source.

A row of tokens is cut to ``max_length`` on purpose. Where more is cut than is kept,
that is seldom intended: the limit is far too low, or a whole book was read as one row.
Then a warning gives the numbers.
"""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from typing import Any, Final, final

_ENOUGH_DOCUMENTS: Final = 1000
"""Number of documents after which a source is judged before its end."""


@final
@dataclass(frozen=True, slots=True)
class CutCount:
    """Counts of documents and tokens before and after a cut.

    Attributes:
        documents: Number of documents.
        cut: Number of these documents that lost tokens.
        tokens: Number of tokens of all documents before the cut.
        dropped: Number of tokens that were left out.
    """

    documents: int = 0
    cut: int = 0
    tokens: int = 0
    dropped: int = 0

    @property
    def loses_most(self) -> bool:
        """Whether more was left out than was kept."""
        return 2 * self.dropped > self.tokens

    def __add__(self, other: CutCount) -> CutCount:
        return CutCount(
            documents=self.documents + other.documents,
            cut=self.cut + other.cut,
            tokens=self.tokens + other.tokens,
            dropped=self.dropped + other.dropped,
        )


@final
class CutCounter:
    """Counts the tokens that are cut from the rows of one source.

    It warns once if they are more than are kept.

    Threads may share a counter. Rows that are read again are counted again. A copy in
    another process counts from 0.

    Args:
        name: Name of the source, for the warning.
        max_length: Number of tokens that rows are cut to; None: each row has a limit of
            its own.
    """

    def __init__(self, name: str, max_length: int | None) -> None:
        self._name = name
        self._max_length = max_length
        self._lock = threading.Lock()
        self._count = CutCount()
        self._has_warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        return CutCounter, (self._name, self._max_length)

    @property
    def count(self) -> CutCount:
        """Counts of all rows so far."""
        return self._count

    def add(self, count: CutCount) -> None:
        """Add the counts of further rows."""
        with self._lock:
            self._count += count

    def judge(self, *, is_end: bool) -> None:
        """Warn if more was left out than kept.

        Before the end of a shard only many documents are judged.
        """
        # The warning itself is outside of the lock: a filter may raise it as an error.
        with self._lock:
            count = self._count
            is_enough = is_end or count.documents >= _ENOUGH_DOCUMENTS
            if self._has_warned or not is_enough or not count.loses_most:
                return
            self._has_warned = True
        warn_of_cut(self._name, count, self._max_length)


def warn_of_cut(name: str, count: CutCount, max_length: int | None) -> None:
    """Warn that more tokens of a source were left out than were kept."""
    limit = "max_length"
    if max_length is not None:
        limit = f"max_length ({max_length:,})"
    warnings.warn(
        f"{name}: {count.dropped:,} of {count.tokens:,} tokens were left out, more than were kept, because "
        f"{count.cut:,} of {count.documents:,} documents are longer than {limit}. Raise max_length, pack the "
        "documents, or use long_documents: split; for text files text_mode: lines makes each line a document",
        RuntimeWarning,
        stacklevel=2,
    )

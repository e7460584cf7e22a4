"""What truncation leaves out of rows of tokens, counted and told.

A row of tokens is cut to ``max_length`` on purpose. Where more is cut than is kept, that is seldom what was meant: a
limit far too low, or a whole book read as one row. Then a warning gives the numbers.
"""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from typing import Any, Final, final

_ENOUGH: Final = 1000
"""Documents after which a source is judged before its end."""


@final
@dataclass(frozen=True, slots=True)
class CutCount:
    """What was cut.

    Attributes:
        documents: documents that were looked at.
        cut: of these, documents that lost tokens.
        tokens: tokens of all documents before the cut.
        dropped: tokens that were left out.
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
    """Counts what is cut from the rows of one source, and warns once where that is more than is kept.

    Threads may share one. Rows that are read again are counted again. A copy in another process counts from 0.

    Args:
        name: of the source, for the warning.
        max_length: that rows are cut to.
    """

    def __init__(self, name: str, max_length: int | None) -> None:
        self._name, self._max_length = name, max_length
        self._lock = threading.Lock()
        self._count, self._has_warned = CutCount(), False

    def __reduce__(self) -> tuple[Any, ...]:
        return CutCounter, (self._name, self._max_length)

    @property
    def count(self) -> CutCount:
        """What was cut so far."""
        return self._count

    def add(self, count: CutCount) -> None:
        with self._lock:
            self._count += count

    def judge(self, *, is_end: bool) -> None:
        """Warn if more was left out than kept; before the end of a shard only after many documents."""
        with self._lock:
            count = self._count
            is_due = not self._has_warned and (is_end or count.documents >= _ENOUGH)
            if not is_due or not count.loses_most:
                return
            self._has_warned = True
        warn_of_cut(self._name, count, self._max_length)


def warn_of_cut(name: str, count: CutCount, max_length: int | None) -> None:
    """Warn that more of a source was left out than was kept."""
    limit = "max_length" if max_length is None else f"max_length ({max_length:,})"
    warnings.warn(
        f"{name}: {count.dropped:,} of {count.tokens:,} tokens were left out, more than were kept, because "
        f"{count.cut:,} of {count.documents:,} documents are longer than {limit}. Raise max_length, pack the "
        "documents, or use long_documents: split; for text files text_mode: lines makes each line a document",
        RuntimeWarning,
        stacklevel=2,
    )

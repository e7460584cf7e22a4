"""A stretch of a stream: the tokens of some documents laid end to end, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_NO_IDS: Final = np.empty(0, np.int32)


@final
@dataclass(frozen=True, slots=True)
class Stretch:
    """Documents laid end to end; the first may have begun before, and the last may go on.

    Attributes:
        ids: int32[total].
        length, start, file, position: int64[n]: tokens of each here, index of the first of them within the document,
            where it comes from.
        ends: bool[n], whether the document ends here.
    """

    ids: Int32
    length: Int64
    start: Int64
    file: Int64
    position: Int64
    ends: Bools

    @classmethod
    def nothing(cls) -> Stretch:
        none = np.empty(0, np.int64)
        return cls(np.empty(0, np.int32), none, none, none, none, np.empty(0, np.bool_))

    @classmethod
    def one(cls, ids: Int32, start: int, file: int, position: int, *, ends: bool) -> Stretch:
        """A single document, or a part of one."""
        length, begin, where, at = (
            np.array([value], np.int64) for value in (len(ids), start, file, position)
        )
        return cls(ids, length, begin, where, at, np.array([ends]))

    def split(self, tokens: int, step: int) -> tuple[Stretch, Stretch]:
        """Cut after at least `tokens` tokens, at a document's end or a multiple of `step` from its beginning here."""
        ends = np.cumsum(self.length)
        at = int(np.searchsorted(ends, tokens))
        if at == len(ends):
            return self, Stretch.nothing()
        begin = int(ends[at] - self.length[at])
        return self.cut(min(begin + -(-(tokens - begin) // step) * step, int(ends[at])))

    def cut(self, tokens: int) -> tuple[Stretch, Stretch]:
        """Return the first `tokens` tokens, and the rest in memory of its own."""
        ends = np.cumsum(self.length)
        whole = int(np.searchsorted(ends, tokens, side="right"))
        inside = tokens - (int(ends[whole - 1]) if whole else 0)
        count = whole + (inside > 0)
        head, tail = (
            self._documents(0, count, self.ids[:tokens]),
            self._documents(whole, None, self.ids[tokens:].copy()),
        )
        if inside:
            head.length[-1], head.ends[-1] = inside, False
            tail.length[0] -= inside
            tail.start[0] += inside
        return head, tail

    def _documents(self, first: int, last: int | None, ids: Int32) -> Stretch:
        own = slice(first, last)
        return Stretch(
            ids,
            self.length[own].copy(),
            self.start[own].copy(),
            self.file[own].copy(),
            self.position[own].copy(),
            self.ends[own].copy(),
        )


@final
class Growing:
    """A stretch that grows, in memory that is used again for the next one.

    Args:
        tokens: it will hold at most.
    """

    def __init__(self, tokens: int) -> None:
        self._most = tokens
        self._ids = np.empty(0, np.int32)
        self._parts: list[Stretch] = []
        self.tokens = 0

    def append(self, part: Stretch) -> None:
        """Append what follows; its ids are copied."""
        end = self.tokens + len(part.ids)
        if end > len(self._ids):
            # Doubled, so that what is small stays small, and all is copied twice at most.
            larger = np.empty(max(end, min(2 * end, self._most)), np.int32)
            larger[: self.tokens] = self._ids[: self.tokens]
            self._ids = larger
        self._ids[self.tokens : end] = part.ids
        self._parts.append(replace(part, ids=_NO_IDS))  # a view of them would keep them all
        self.tokens = end

    def clear(self) -> None:
        """Begin again."""
        self._parts, self.tokens = [], 0

    def joined(self) -> Stretch:
        """Return all of it, good until the next change; a document that goes on in the next part is one document."""
        length, start, file, position, ends = (
            np.concatenate([getattr(part, name) for part in self._parts])
            for name in ("length", "start", "file", "position", "ends")
        )
        # What follows a document that does not end is the rest of it.
        first = np.flatnonzero(np.append(True, ends[:-1]))
        last = np.append(first[1:], len(ends)) - 1
        tokens = np.add.reduceat(length, first)
        return Stretch(
            self._ids[: self.tokens], tokens, start[first], file[first], position[first], ends[last]
        )

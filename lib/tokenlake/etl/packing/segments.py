"""Pieces of documents in rows: what every strategy answers from lengths alone, tokens on their way, finished rows.

The loss mask travels inside the ids, in a bit that no vocabulary reaches (:data:`LOSS`), so that one copy moves both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Bools, Int32, Int64, cells, offsets_of, places
from tokenlake.errors import AccountError

LOSS: Final = 1 << 30
"""Set in an id that bears loss, in a build with a loss mask."""

_ID: Final = np.int32(LOSS - 1)


def marked(ids: Int32, learned: Bools | bool = True) -> Int32:
    """Return ids (int32[n]) with the bit set where `learned` (bool[n]) is true."""
    bits = np.asarray(learned).astype(np.int32)
    bits <<= np.int32(30)
    return ids | bits


def plain(ids: Int32) -> Int32:
    """Return the ids themselves."""
    return ids & _ID


def learned(ids: Int32) -> Bools:
    """Return which ids bear the bit."""
    return ids > _ID


@final
@dataclass(frozen=True, slots=True)
class Segments:
    """Pieces of documents, row by row.

    Attributes:
        document: int64[S], index of the document each piece belongs to.
        start: int64[S], index of the piece's first token within its document.
        length: int64[S], tokens in the piece, at least 1.
        row_offsets: int64[R + 1], pieces ``row_offsets[r]:row_offsets[r + 1]`` make up row ``r``; what they leave
            of it is padding.
    """

    document: Int64
    start: Int64
    length: Int64
    row_offsets: Int64

    @property
    def rows(self) -> int:
        return len(self.row_offsets) - 1

    def taken(self, rows: Int64) -> Segments:
        """Return the rows `rows` (int64[m]), in that order."""
        counts = np.diff(self.row_offsets)[rows]
        pieces = places(self.row_offsets[rows], counts)
        return Segments(self.document[pieces], self.start[pieces], self.length[pieces], offsets_of(counts))


@final
@dataclass(frozen=True, slots=True)
class Rests:
    """What whole rows leave of documents, and which row it shares with others.

    Attributes:
        document, start, length: int64[m], by document and then by start.
        bin: int64[m], number of the shared row, from 0 without gaps.
    """

    document: Int64
    start: Int64
    length: Int64
    bin: Int64

    @classmethod
    def of(cls, lengths: Int64, capacity: int, bins: Callable[[Int64], Int64]) -> Self:
        """Return the rests of documents of `lengths` (int64[n], each at least 1), placed by `bins`.

        A document is ``length // capacity`` whole rows, and a rest of ``length % capacity`` tokens, if any.
        """
        whole, rests = np.divmod(lengths, capacity)
        document = np.flatnonzero(rests)
        return cls(document, whole[document] * capacity, rests[document], bins(rests[document]))

    @property
    def bins(self) -> int:
        """How many rows are shared."""
        return int(self.bin.max()) + 1 if len(self.bin) else 0


def from_rests(lengths: Int64, capacity: int, rests: Rests) -> Segments:
    """Return the whole rows of documents and the rows that their rests share.

    Rows come in the order of their first tokens in the input, and the pieces of a row in the order of the documents.

    Args:
        lengths: int64[n], tokens per document, each at least 1.
        capacity: tokens per row.
        rests: of these documents.
    """
    whole = lengths // capacity
    full = np.repeat(np.arange(len(lengths)), whole)
    full_start = (np.arange(len(full)) - np.repeat(np.cumsum(whole) - whole, whole)) * capacity
    order = np.argsort(small(rests.bin), kind="stable")
    counts = np.concatenate([np.ones(len(full), np.int64), np.bincount(rests.bin)])
    document = np.concatenate([full, rests.document[order]])
    start = np.concatenate([full_start, rests.start[order]])
    length = np.concatenate([np.full(len(full), capacity), rests.length[order]])
    rows = Segments(document, start, length, offsets_of(counts))
    first = rows.row_offsets[:-1]
    begins = np.cumsum(lengths) - lengths
    # Whole rows are in order already, which a stable sort makes use of.
    return rows.taken(np.argsort(begins[document[first]] + start[first], kind="stable"))


def small(values: Int64) -> npt.NDArray[Any]:
    """Return values >= 0 as uint16 where all of them fit: numpy sorts those by counting, ten times as fast."""
    return values.astype(np.uint16) if not len(values) or int(values.max()) < 1 << 16 else values


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
        """Return the first `tokens` tokens and the rest, both as views of the ids."""
        ends = np.cumsum(self.length)
        whole = int(np.searchsorted(ends, tokens, side="right"))
        inside = tokens - (int(ends[whole - 1]) if whole else 0)
        count = whole + (inside > 0)
        head = self._documents(0, count, self.ids[:tokens])
        tail = self._documents(whole, None, self.ids[tokens:])
        if inside:
            head.length[-1], head.ends[-1] = inside, False
            tail.length[0] -= inside
            tail.start[0] += inside
        return head, tail

    def _documents(self, first: int, last: int | None, ids: Int32) -> Stretch:
        columns: tuple[Any, ...] = (self.length, self.start, self.file, self.position, self.ends)
        return Stretch(ids, *(column[first:last].copy() for column in columns))

    @classmethod
    def joined(cls, parts: Sequence[Self], ids: Int32 | None = None) -> Self:
        """Return all parts as one; what follows a document that does not end is the rest of it.

        Args:
            ids: of all parts, where they lie together already.
        """
        length, start, file, position, ends = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("length", "start", "file", "position", "ends")
        )
        first = np.flatnonzero(np.append(True, ends[:-1]))
        last = np.append(first[1:], len(ends)) - 1
        tokens = np.add.reduceat(length, first)
        together = np.concatenate([part.ids for part in parts]) if ids is None else ids
        return cls(together, tokens, start[first], file[first], position[first], ends[last])


@final
@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of one length.

    Attributes:
        input_ids: int32[rows * width], contiguous; the pieces of a row, then its padding.
        segment_lengths: int32[S], tokens of each piece, rows one after another.
        row_offsets: int64[rows + 1] into the pieces.
        file, position: int64[S], where each piece's document comes from.
        start: int32[S], index of the piece's first token within its document.
        ends: bool[S], whether a piece holds its document's last token. Where that is not known yet it is False.
        pad: padding tokens of all rows.
    """

    input_ids: Int32
    segment_lengths: Int32
    row_offsets: Int64
    file: Int64
    position: Int64
    start: Int32
    ends: Bools
    pad: int

    @classmethod
    def of(cls, input_ids: Int32, cut: Segments, documents: Stretch, pad: int) -> Self:
        """Return rows whose pieces are those of `cut`, which numbers the documents of a stretch."""
        own = cut.document
        return cls(
            input_ids=input_ids,
            segment_lengths=cut.length.astype(np.int32),
            row_offsets=cut.row_offsets,
            file=documents.file[own],
            position=documents.position[own],
            start=(cut.start + documents.start[own]).astype(np.int32),
            ends=documents.ends[own] & (cut.start + cut.length == documents.length[own]),
            pad=pad,
        )

    @property
    def rows(self) -> int:
        return len(self.row_offsets) - 1

    @property
    def width(self) -> int:
        """Tokens of a row, padding included."""
        return len(self.input_ids) // max(1, self.rows)

    @property
    def row_lengths(self) -> Int64:
        """int64[rows]: tokens of each row, padding not counted."""
        return np.diff(offsets_of(self.segment_lengths)[self.row_offsets])

    @property
    def begins(self) -> Int64:
        """int64[S]: where in `input_ids` each piece begins."""
        counts = np.diff(self.row_offsets)
        before = offsets_of(self.segment_lengths)[:-1]
        row_begins = np.arange(self.rows) * self.width
        # Within its row a piece lies where it lies among all pieces, less what went before the row.
        return before + np.repeat(row_begins - before[self.row_offsets[:-1]], counts)

    def groups(self, rows: int) -> Iterator[Self]:
        """Yield so many rows at a time, fewer at the end, as views."""
        width, ends = self.width, self.row_offsets
        for first in range(0, self.rows, rows):
            last = min(first + rows, self.rows)
            own = slice(int(ends[first]), int(ends[last]))
            ids, lengths = self.input_ids[first * width : last * width], self.segment_lengths[own]
            yield type(self)(
                input_ids=ids,
                segment_lengths=lengths,
                row_offsets=ends[first : last + 1] - ends[first],
                file=self.file[own],
                position=self.position[own],
                start=self.start[own],
                ends=self.ends[own],
                pad=len(ids) - int(lengths.sum(dtype=np.int64)),
            )

    def check_boundaries(self, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> None:
        """Assert on the packed ids themselves that documents begin with BOS and end with EOS.

        Raises:
            AccountError: a document begins or ends with another id, which would be a bug.
        """
        begins = self.begins
        if prefix:
            self._require(self.input_ids[begins[self.start == 0]], prefix[0], "begins")
        if suffix:
            last = (begins + self.segment_lengths)[self.ends] - 1
            self._require(self.input_ids[last], suffix[-1], "ends")

    def _require(self, found: Int32, expected: int, what: str) -> None:
        wrong = np.flatnonzero(found != expected)
        if len(wrong):
            raise AccountError(
                f"a document {what} with id {int(found[wrong[0]])}, expected {expected}, in rows packed from file id "
                f"{int(self.file[0])}; this is a bug, nothing was committed"
            )

    @property
    def segment_ids(self) -> Int32:
        """int32[rows * width]: 1, 2, 3 ... for the pieces of each row, 0 for padding."""
        per_row = np.diff(self.row_offsets)
        number = np.arange(len(self.segment_lengths)) - np.repeat(self.row_offsets[:-1], per_row) + 1
        ids = np.repeat(number.astype(np.int32), self.segment_lengths)
        if not self.pad:
            return ids
        out = np.zeros((self.rows, self.width), np.int32)
        out[cells(self.row_lengths, self.width, left=False)] = ids
        return out.ravel()

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts, of which there is at least one."""
        if len(parts) == 1:
            return parts[0]
        names = ("input_ids", "segment_lengths", "file", "position", "start", "ends")
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        counts = np.concatenate([np.diff(part.row_offsets) for part in parts])
        return cls(**columns, row_offsets=offsets_of(counts), pad=sum(part.pad for part in parts))

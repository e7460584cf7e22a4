"""Greedy packing: the documents of a stream laid end to end and cut every ``seq_length`` tokens.

Picture a roll of tape. Each document is glued on with its BOS in front and its EOS behind, and the
roll is cut into strips of equal length. A document that crosses a cut continues on the next strip, so
nothing is lost and only the last strip of a stream needs padding. Where the pieces lie is a function
of the documents' lengths alone (:func:`segments_of`); tokens are copied once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.packing.segments import Packed, Segments, Stretch
from tokenlake.ragged import Bools, Int32, Int64


def join_documents(ids: Int32, offsets: Int64, prefix: Int32, suffix: Int32) -> Int32:
    """Documents laid end to end with ``prefix`` and ``suffix`` around each.

    Arrow joins byte strings with a separator in one pass of memcpy (2.2 Gtok/s; a mask in numpy
    reaches 1.3, a loop over documents 0.25 on short ones), so tokens pass as 4-byte strings here.

    Args:
        ids: int32[total].
        offsets: int64[n + 1] into ``ids``, n at least 1.

    Returns:
        int32[offsets[-1] - offsets[0] + n * (len(prefix) + len(suffix))], read-only.
    """
    # An empty string at either end gives the first document its prefix and the last one its suffix;
    # the half separators outside are sliced off.
    edges = np.concatenate([offsets[:1], offsets, offsets[-1:]]) * 4
    count = len(edges) - 1
    buffers = [None, pa.py_buffer(edges.data), pa.py_buffer(np.ascontiguousarray(ids).data)]
    strings: Any = pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers)
    documents: Any = pa.LargeListArray.from_arrays(pa.array([0, count], pa.int64()), strings)
    separator = pa.scalar(suffix.tobytes() + prefix.tobytes(), pa.large_binary())
    joined: Any = pc.binary_join(documents, separator)
    tokens = np.frombuffer(joined.buffers()[2], np.int32)
    return tokens[len(suffix) : len(tokens) - len(prefix)]


#: Tokens assembled at a time: bounds the copy that a very long document needs (16 MiB).
_WINDOW: Final = 1 << 22


def segments_of(lengths: Int64, seq_length: int, max_segments: int | None = None) -> Segments:
    """Cut documents of ``lengths`` tokens, laid end to end from a row's beginning, into rows.

    Args:
        lengths: int64[n], tokens per document, each at least 1.
        seq_length: tokens per row.
        max_segments: at most so many pieces in a row, which ends then, full or not; None: any number.

    Returns:
        The pieces of the rows. Without `max_segments` all rows but the last are full.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    cut = _cut(lengths, ends, np.arange(0, total, seq_length, dtype=np.int64))
    if max_segments is None or not len(ends) or int(np.diff(cut.row_offsets).max()) <= max_segments:
        return cut
    return _cut(lengths, ends, _bounded_rows(ends.tolist(), seq_length, max_segments))


def _cut(lengths: Int64, ends: Int64, row_starts: Int64) -> Segments:
    """Cut documents, laid end to end, where rows begin (int64[R])."""
    doc_starts = ends - lengths
    cuts = np.union1d(doc_starts, row_starts)
    document = np.searchsorted(doc_starts, cuts, side="right") - 1
    length = np.diff(cuts, append=ends[-1:])
    row_offsets = np.append(np.searchsorted(cuts, row_starts), len(cuts))
    return Segments(document, cuts - doc_starts[document], length, row_offsets)


def _bounded_rows(ends: list[int], seq_length: int, most: int) -> Int64:
    """Return where rows begin that end when they are full or have `most` pieces; `ends` of n >= 1 documents."""
    starts: list[int] = []
    at = document = 0
    while at < ends[-1]:
        starts.append(at)
        last = min(document + most, len(ends)) - 1  # the document of the row's last piece, if it has so many
        at = min(at + seq_length, ends[last])
        document = bisect_right(ends, at, document, last + 1)
    return np.array(starts, np.int64)


@final
class GreedyPacker:
    """Packs one stream of documents, chunk by chunk, in bounded memory.

    Args:
        seq_length: tokens per row.
        group_rows: rows come out in multiples of this (a row group), but for :meth:`finish`.
        prefix, suffix: ids put around every document (BOS, EOS).
        pad_id: fills the last row.
    """

    def __init__(
        self,
        seq_length: int,
        *,
        group_rows: int,
        prefix: tuple[int, ...],
        suffix: tuple[int, ...],
        pad_id: int,
    ) -> None:
        self._seq_length = seq_length
        self._group = group_rows * seq_length
        self._prefix = np.asarray(prefix, np.int32)
        self._suffix = np.asarray(suffix, np.int32)
        self._pad_id = pad_id
        self._held = Stretch.nothing()

    def add(
        self, ids: Int32, offsets: Int64, file: Int64, position: Int64, again: Bools | None = None
    ) -> Iterator[Packed]:
        """Append documents and yield the row groups that are full; see :class:`tokenlake.packing.packer.Packer`."""
        whole = np.diff(offsets) + len(self._prefix) + len(self._suffix)
        ends = np.cumsum(whole)
        starts = starts_of(ends - whole, again)
        first = 0
        while first < len(whole):
            limit = int(ends[first] - whole[first]) + _WINDOW
            last = max(first + 1, int(np.searchsorted(ends, limit, side="right")))
            if int(whole[first]) > _WINDOW:
                tokens = ids[offsets[first] : offsets[first + 1]]
                windows = (tokens[at : at + _WINDOW] for at in range(0, len(tokens), _WINDOW))
                yield from self.add_long(windows, int(file[first]), int(position[first]), int(starts[first]))
            else:
                stream = join_documents(ids, offsets[first : last + 1], self._prefix, self._suffix)
                part, ends_here = slice(first, last), np.ones(last - first, np.bool_)
                yield from self._extend(
                    Stretch(stream, whole[part], starts[part], file[part], position[part], ends_here)
                )
            first = last

    def finish(self) -> Iterator[Packed]:
        """Yield what is left, the last row padded; the packer is empty afterwards."""
        held, self._held = self._held, Stretch.nothing()
        if len(held.ids):
            yield self._emit(held, pad=-len(held.ids) % self._seq_length)

    def add_long(
        self, windows: Iterable[Int32], file: int, position: int, start: int = 0
    ) -> Iterator[Packed]:
        """Append one document that comes in ``windows``, so that it need not lie in memory whole.

        Args:
            start: of the document's first token; not 0 for a further piece of a document.
        """
        fed = start
        for tokens in chain([self._prefix], windows, [self._suffix]):
            if len(tokens):
                # A part that ends would be joined with no other: which is the last is not known yet.
                yield from self._extend(Stretch.one(tokens, fed, file, position, ends=False))
                fed += len(tokens)
        self._held.ends[-1:] = True

    def _extend(self, new: Stretch) -> Iterator[Packed]:
        if len(self._held.ids):
            # Only the row group that holds both old and new tokens is copied together.
            head, new = new.cut(min(self._group - len(self._held.ids), len(new.ids)))
            self._held = Stretch.joined([self._held, head])
            if len(self._held.ids) < self._group:
                return
            yield self._emit(self._held)
        full, new = new.cut(len(new.ids) - len(new.ids) % self._group)
        if len(full.ids):
            yield self._emit(full)
        self._held = replace(new, ids=new.ids.copy())

    def _emit(self, taken: Stretch, pad: int = 0) -> Packed:
        """Whole rows of the next tokens of the stream, the last one padded."""
        cut = segments_of(taken.length, self._seq_length)
        ids = np.concatenate([taken.ids, np.full(pad, self._pad_id, np.int32)]) if pad else taken.ids
        ends = taken.ends[cut.document] & (cut.start + cut.length == taken.length[cut.document])
        ends[-1:] = False  # of the last of all it is not always known
        return Packed(
            input_ids=ids,
            segment_lengths=cut.length.astype(np.int32),
            row_offsets=cut.row_offsets,
            file=taken.file[cut.document],
            position=taken.position[cut.document],
            start=(cut.start + taken.start[cut.document]).astype(np.int32),
            ends=ends,
            pad=pad,
        )


def starts_of(places: Int64, again: Bools | None) -> Int64:
    """int64[n]: 0 for documents laid out at `places` of a stream, for further pieces the way from their document's."""
    if again is None:
        return np.zeros(len(places), np.int64)
    first = np.flatnonzero(~again)
    return places - places[first[np.cumsum(~again) - 1]]

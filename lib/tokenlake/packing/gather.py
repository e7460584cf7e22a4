"""From a plan to rows: each piece is copied once to its place."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.packing.packed import Packed
from tokenlake.packing.segments import Segments
from tokenlake.packing.stretch import Stretch
from tokenlake.ragged import offsets_of

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@final
class Gather:
    """The pieces of a window as byte strings, which Arrow gathers with one memcpy each.

    A gather of single tokens by index costs five times as much.
    """

    def __init__(self, window: Stretch, cut: Segments) -> None:
        self._window, self._cut = window, cut
        begins = (np.cumsum(window.length) - window.length)[cut.document] + cut.start
        order = np.argsort(begins)
        self._string = np.empty(len(order), np.int64)
        self._string[order] = np.arange(len(order))
        edges = np.append(begins[order], len(window.ids)) * 4
        buffers = [None, pa.py_buffer(edges.data), pa.py_buffer(np.ascontiguousarray(window.ids).data)]
        self._strings: Any = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(order), buffers)

    def packed(self, first: int, last: int, seq_length: int, pad_id: int) -> Packed:
        """Return the rows from `first` to `last`."""
        window, cut = self._window, self._cut
        offsets = cut.row_offsets[first : last + 1]
        pieces = slice(int(offsets[0]), int(offsets[-1]))
        taken: Any = self._strings.take(pa.array(self._string[pieces]))
        ids = np.frombuffer(taken.buffers()[2], np.int32)
        document, start, length = cut.document[pieces], cut.start[pieces], cut.length[pieces]
        row_offsets = offsets - offsets[0]
        used = np.diff(offsets_of(length)[row_offsets])
        return Packed(
            input_ids=_padded(ids[: int(used.sum())], used, seq_length, pad_id),
            segment_lengths=length.astype(np.int32),
            row_offsets=row_offsets,
            file=window.file[document],
            position=window.position[document],
            start=(start + window.start[document]).astype(np.int32),
            ends=window.ends[document] & (start + length == window.length[document]),
            pad=(last - first) * seq_length - int(used.sum()),
        )


def _padded(ids: Int32, used: Int64, seq_length: int, pad_id: int) -> Int32:
    """Spread rows of `used` ids (int64[R]), laid end to end, to `seq_length` each."""
    if len(ids) == len(used) * seq_length:
        return ids
    out = np.full(len(used) * seq_length, pad_id, np.int32)
    # Full rows before and after are copied together with the row that has padding.
    edges = np.append(np.flatnonzero(used < seq_length) + 1, len(used))
    begin = source = 0
    for end in edges.tolist():
        size = int(used[begin:end].sum())
        out[begin * seq_length : begin * seq_length + size] = ids[source : source + size]
        begin, source = end, source + size
    return out

"""Documents laid end to end, with BOS and EOS around each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


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

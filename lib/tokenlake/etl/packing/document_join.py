"""Documents of ids joined to one run of ids, with BOS and EOS around each."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenlake.base.arrays import Int32, Int64, binary_over

_ID_BYTES: Final = 4


def join_documents(ids: Int32, offsets: Int64, prefix: Int32, suffix: Int32) -> Int32:
    """Return documents laid end to end, with `prefix` and `suffix` around each.

    Arrow joins byte strings with a separator in one pass of memcpy, so that each
    document passes as one byte string. That runs at 2.2 Gtok/s; a mask in numpy reaches
    1.3, a loop over documents 0.25 on short ones.

    Args:
        ids: Tokens of the documents, int32[total].
        offsets: Beginnings of the documents in `ids`, and the end of the last one,
            int64[n + 1], n at least 1.
        prefix: Ids to put before each document.
        suffix: Ids to put after each document.

    Returns:
        Read-only ids, int32[offsets[-1] - offsets[0] + n * (len(prefix) +
        len(suffix))].
    """
    # An empty string at either end gives the first document its prefix and the last one
    # its suffix. The halves of the separators that lie outside are sliced off.
    edges = np.concatenate([offsets[:1], offsets, offsets[-1:]]) * _ID_BYTES
    strings: Any = binary_over(edges, pa.py_buffer(np.ascontiguousarray(ids).data))
    list_offsets = pa.array([0, len(edges) - 1], pa.int64())
    documents: Any = pa.LargeListArray.from_arrays(list_offsets, strings)
    separator = pa.scalar(suffix.tobytes() + prefix.tobytes(), pa.large_binary())
    joined: Any = pc.binary_join(documents, separator)
    tokens = np.frombuffer(joined.buffers()[2], np.int32)
    return tokens[len(suffix) : len(tokens) - len(prefix)]

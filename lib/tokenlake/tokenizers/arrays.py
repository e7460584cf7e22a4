"""Views of Arrow string arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import numpy.typing as npt


def string_buffers(text: pa.LargeStringArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return views of a large_string array's offsets (int64[n + 1], may start past 0) and of its bytes."""
    _, offsets, data = text.buffers()
    if offsets is None or not len(text):
        return np.zeros(len(text) + 1, np.int64), np.empty(0, np.uint8)
    starts = np.frombuffer(memoryview(offsets), np.int64, len(text) + 1, text.offset * 8)
    return starts, np.empty(0, np.uint8) if data is None else np.frombuffer(memoryview(data), np.uint8)

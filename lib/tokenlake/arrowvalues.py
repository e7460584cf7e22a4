"""Numbers and bits of Arrow arrays, as numpy sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def values(array: Any) -> npt.NDArray[Any]:
    """Return the values of an Arrow array of numbers or bits without nulls, a view of them but for bits.

    As its ``to_numpy``, which first imports pandas where that is installed: most of the time to a first batch.
    """
    if array.null_count:
        raise ValueError(f"{array.null_count} nulls; expected none")
    data, first, count = array.buffers()[1], array.offset, len(array)
    if pa.types.is_boolean(array.type):
        bits = np.frombuffer(data, np.uint8) if count else np.zeros(0, np.uint8)
        return np.unpackbits(bits, count=first + count, bitorder="little")[first:].view(np.bool_)
    kind = np.dtype(array.type.to_pandas_dtype())
    if not count:
        return np.zeros(0, kind)
    return np.frombuffer(data, kind, count, first * kind.itemsize)

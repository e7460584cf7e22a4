"""Batches on their way to an accelerator, as one array of bytes.

The device computes the columns from these bytes. The copy to the device decides how
fast batches arrive, and four columns take 13 bytes for each id. A batch therefore
crosses in the width in which its ids are stored, 16 bits where they fit, with one byte
of marks for each id. The device computes the columns of
:mod:`tokenlake.runtime.loader.columns` from them
(:mod:`tokenlake.runtime.loader.jax_columns`). They have the same values and types as
the columns of a batch in memory.

Marks of a row of 8 with two segments, of 3 and 4 ids, and one id of padding, where the dataset's own loss mask excludes
the second id of the second segment::

    input_ids     a   b   c   d   e   f   g   0
    marks         1   0   0   1   4   0   0   2      1: first id of a segment, 2: padding, 4: excluded from the loss

The array has the shape (rows, planes, L), uint8. A plane has one byte for each id of a
row. The first 2 or 4 planes are the memory of the row's ids, uint16[L] or int32[L],
with the lowest byte first. The last plane has the marks. It is missing if the ids are
the only column.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np
import numpy.typing as npt

TRANSFER: Final = "transfer"
"""Name of the array in a batch that is on its way."""

FIRST_OF_SEGMENT: Final = 1
PADDING: Final = 2
EXCLUDED: Final = 4

CAN_TRANSFER: Final = sys.byteorder == "little"
"""Whether ids in this machine's memory have their lowest byte first, as on all
machines that have accelerators.
"""


def planes_of(id_type: np.dtype[Any], *, has_marks: bool) -> int:
    """Return the number of planes of a batch.

    Args:
        id_type: Type of the ids, uint16 or int32.
        has_marks: Whether the batch has marks.
    """
    if has_marks:
        return id_type.itemsize + 1
    return id_type.itemsize


def ids_of(planes: npt.NDArray[np.uint8], id_type: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the ids of a batch as a view of its memory, [rows, L].

    Args:
        planes: Bytes of the batch, uint8[rows, planes, L].
        id_type: Type of the ids, uint16 or int32.
    """
    rows, _, length = planes.shape
    bytes_of_row = planes.reshape(rows, -1)[:, : id_type.itemsize * length]
    return bytes_of_row.view(id_type)


def marks_of(planes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the marks of a batch as a view of its memory, uint8[rows, L].

    The batch must have some.
    """
    return planes[:, -1]

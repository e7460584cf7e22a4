"""The offsets at the head of a file of records.

Shards of MDS and chunks of litdata share them.

A file begins with the number of records N (uint32) and N + 1 offsets (uint32): the place
of each record in the file, and the size of the file. All numbers are little-endian. For
two records of 3 and 4 bytes without other bytes between head and records::

    02 00 00 00    10 00 00 00   13 00 00 00   17 00 00 00    aa aa aa   bb bb bb bb
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tokenlake.base.arrays import Int64
from tokenlake.errors import DamagedFileError

_WORD_BYTES: Final = 4
"""Bytes of a number of the head."""


def head_bytes(records: int) -> int:
    """Return the number of bytes of the number of records and the offsets."""
    return _WORD_BYTES + _WORD_BYTES * (records + 1)


def read_offsets(data: bytes | memoryview, path: str) -> Int64:
    """Return the places of the records of a file and their end, int64[N + 1].

    Args:
        data: Bytes of the file.
        path: Path of the file, for messages.

    Raises:
        DamagedFileError: The offsets do not ascend from behind the head to the size of
            the file.
    """
    # Nothing is read behind the bytes that are there: the number of records may be
    # that of a file of another kind.
    if len(data) >= head_bytes(0):
        records = int(np.frombuffer(data, "<u4", 1)[0])
        if len(data) >= head_bytes(records):
            offsets = np.frombuffer(data, "<u4", records + 1, _WORD_BYTES)
            offsets = offsets.astype(np.int64)
            is_ascending = bool((np.diff(offsets) >= 0).all())
            begins_after_head = offsets[0] >= head_bytes(records)
            if is_ascending and begins_after_head and offsets[-1] == len(data):
                return offsets
    raise DamagedFileError(
        f"{path}: the offsets of its records do not end at its size, {len(data)} bytes; it is no MDS shard and no "
        "chunk of litdata, or was cut",
        path=path,
    )

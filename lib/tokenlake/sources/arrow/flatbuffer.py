"""FlatBuffers, as far as the metadata of Arrow's messages uses them; every access is checked."""

from __future__ import annotations

import struct
from typing import final


@final
class Table:
    """One table: fields are found through a table of offsets that lies elsewhere in the same bytes.

    All methods raise ValueError where the bytes do not hold together.
    """

    def __init__(self, data: bytes, at: int | None = None) -> None:
        """Read the table at `at`, by default the root."""
        self._data = data
        self._at = self._number("<I", 0) if at is None else at
        self._fields = self._at - self._number("<i", self._at)
        self._size = self._number("<H", self._fields)

    def scalar(self, field: int, layout: str, default: int = 0) -> int:
        """Return the number in field `field`, whose form is that of :mod:`struct`."""
        at = self._place(field)
        return self._number(layout, at) if at else default

    def table(self, field: int) -> Table | None:
        """Return the table that `field` points at."""
        at = self._place(field)
        return Table(self._data, at + self._number("<I", at)) if at else None

    def structs(self, field: int, layout: str) -> list[tuple[int, ...]]:
        """Return the vector of structs, or of numbers, that `field` points at."""
        at = self._place(field)
        if not at:
            return []
        at += self._number("<I", at)
        count, size = self._number("<I", at), struct.calcsize(layout)
        if at + 4 + count * size > len(self._data):
            raise ValueError(f"a vector of {count} items ends beyond the metadata")
        return list(struct.iter_unpack(layout, self._data[at + 4 : at + 4 + count * size]))

    def _place(self, field: int) -> int:
        entry = 4 + 2 * field
        offset = self._number("<H", self._fields + entry) if entry < self._size else 0
        return self._at + offset if offset else 0

    def _number(self, layout: str, at: int) -> int:
        if at < 0:
            raise ValueError(f"an offset of {at} bytes lies outside the metadata")
        try:
            return struct.unpack_from(layout, self._data, at)[0]
        except struct.error as error:
            raise ValueError(f"an offset of {at} bytes lies outside the metadata") from error

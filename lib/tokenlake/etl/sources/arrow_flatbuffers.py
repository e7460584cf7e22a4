"""Tables of FlatBuffers, as far as Arrow's messages use them; every access is
checked.
"""

from __future__ import annotations

import struct
from typing import final


@final
class FlatTable:
    """One table: fields are found through a table of offsets that lies elsewhere in the
    same bytes.

    ============================== =========================================================
    at the table                   signed distance back to its table of offsets
    table of offsets, bytes 0-1    size of the table of offsets
    table of offsets, 4 + 2 field  distance from the table to the field; 0 for a missing one
    ============================== =========================================================

    All methods raise ValueError if the bytes are not consistent. Fields are numbered
    from 0.
    """

    def __init__(self, data: bytes, offset: int | None = None) -> None:
        """Read the table at byte `offset`, by default the root."""
        self._data = data
        self._table = self._number("<I", 0) if offset is None else offset
        self._offsets = self._table - self._number("<i", self._table)
        self._offsets_size = self._number("<H", self._offsets)

    def scalar(self, field: int, layout: str, default: int = 0) -> int:
        """Return the number in a field.

        Args:
            field: Number of the field, from 0.
            layout: Form of the number, as of :mod:`struct`.
            default: Value of a missing field.
        """
        place = self._place_of(field)
        return self._number(layout, place) if place else default

    def table(self, field: int) -> FlatTable | None:
        """Return the table that a field refers to, None if the field is missing."""
        place = self._place_of(field)
        if not place:
            return None
        return FlatTable(self._data, place + self._number("<I", place))

    def structs(self, field: int, layout: str) -> list[tuple[int, ...]]:
        """Return the vector of structs, or of numbers, that a field refers to; [] if
        it is missing.
        """
        place = self._place_of(field)
        if not place:
            return []
        vector = place + self._number("<I", place)
        count = self._number("<I", vector)
        start = vector + 4
        stop = start + count * struct.calcsize(layout)
        if stop > len(self._data):
            raise ValueError(f"a vector of {count} items ends beyond the metadata")
        return list(struct.iter_unpack(layout, self._data[start:stop]))

    def _place_of(self, field: int) -> int:
        """Return the offset of a field in the bytes, 0 if it is missing."""
        entry = 4 + 2 * field
        if entry >= self._offsets_size:
            return 0
        distance = self._number("<H", self._offsets + entry)
        return self._table + distance if distance else 0

    def _number(self, layout: str, offset: int) -> int:
        """Return the number at byte `offset`."""
        if offset < 0:
            raise ValueError(f"an offset of {offset} bytes is outside the metadata")
        try:
            return struct.unpack_from(layout, self._data, offset)[0]
        except struct.error as error:
            raise ValueError(
                f"an offset of {offset} bytes is outside the metadata"
            ) from error

"""Tables of FlatBuffers, as far as Arrow's messages use them, with checked access."""

from __future__ import annotations

import struct
from typing import final


@final
class FlatTable:
    """One table, whose fields are found through a table of offsets in the same bytes.

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
        # The first four bytes of the metadata are the distance to the root table.
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
        field_offset = self._place_of(field)
        return self._number(layout, field_offset) if field_offset else default

    def table(self, field: int) -> FlatTable | None:
        """Return the table that a field refers to, None if the field is missing."""
        field_offset = self._place_of(field)
        if not field_offset:
            return None
        return FlatTable(self._data, field_offset + self._number("<I", field_offset))

    def structs(self, field: int, layout: str) -> list[tuple[int, ...]]:
        """Return the vector of structs or numbers in a field; [] if it is missing."""
        field_offset = self._place_of(field)
        if not field_offset:
            return []
        # A vector is its length in four bytes, followed by its items.
        vector_offset = field_offset + self._number("<I", field_offset)
        item_count = self._number("<I", vector_offset)
        first_byte = vector_offset + 4
        end_byte = first_byte + item_count * struct.calcsize(layout)
        if end_byte > len(self._data):
            raise ValueError(f"a vector of {item_count} items ends beyond the metadata")
        return list(struct.iter_unpack(layout, self._data[first_byte:end_byte]))

    def _place_of(self, field: int) -> int:
        """Return the offset of a field in the bytes, 0 if it is missing."""
        # Fields that were added to the format later are missing from a shorter table of
        # offsets.
        entry_offset = 4 + 2 * field
        if entry_offset >= self._offsets_size:
            return 0
        distance = self._number("<H", self._offsets + entry_offset)
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

"""The records that exports write into ArrayRecord files, which Grain reads.

ArrayRecord files hold records of bytes and nothing about them. A record of an export is a matrix of little-endian
int32, one line for each column, which begins with the ids; ``metadata.json`` names the columns::

    columns = json.load(open("metadata.json"))["columns"]       # for example ["input_ids", "segment_ids"]
    row = np.frombuffer(record, "<i4").reshape(len(columns), -1)
    input_ids = row[0]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self, final

from tokenlake.etl.layouts.metadata_file import METADATA as METADATA
from tokenlake.etl.layouts.metadata_file import metadata_bytes, read_metadata

SUFFIX: Final = ".array_record"

ID_TYPE: Final = "<i4"
"""Type of all numbers of a record, ids and masks."""

WRITER_OPTIONS: Final = "group_size:1,uncompressed"
"""Options of the writer: Grain reads single records."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMetadata:
    """The contents of ``metadata.json``.

    Attributes:
        columns: Names of the columns of each record, in order; the first one is
            ``input_ids``.
        dtype: Type of all numbers, ``int32``.
        vocab_size: Number of ids of the vocabulary.
        bos_id: Id that begins documents; None if there is none.
        eos_id: Id that ends documents; None if there is none.
        pad_id: Id of padding; None if there is none.
        files: Name of each file -> number of its records.
    """

    columns: tuple[str, ...]
    dtype: str
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    files: dict[str, int]

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        return metadata_bytes(self)

    @classmethod
    def of(cls, data: bytes, path: str) -> Self:
        """Read the file's bytes; DamagedFileError if they are no such file."""
        return read_metadata(cls, data, path)

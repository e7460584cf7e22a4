"""What reading yields: batches of records with the place each came from, and records that cannot be used."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.errors import BadRecordError
from tokenlake.rows import Rows
from tokenlake.sources.inputs import InputFile

RAW_LIMIT: Final = 64 << 10  # bytes of a bad record that are kept


def _none() -> dict[str, int]:
    return {}


def _nowhere() -> npt.NDArray[np.int64]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """One record that cannot be used, and why.

    Attributes:
        file: path of the input relative to its listing's root.
        file_id: identity of the input, see :func:`tokenlake.fingerprint.file_id`.
        position: byte offset of the line's start in the decompressed stream for JSON Lines and lines of
            text; row number in everything else; 0 for a whole text file.
        line: 1-based line number, None where there are no lines.
        reason: short stable code such as ``null_text`` or ``invalid_json``.
        detail: one sentence for people.
        raw: the first 64 KiB of the record as it stands in the input, empty where it has no bytes.
    """

    file: str
    file_id: int
    position: int
    line: int | None
    reason: str
    detail: str
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some consecutive records of one file.

    Attributes:
        positions: int64, one per record, as in :class:`BadRecord`.
        bad: records set aside (policy ``quarantine``), in file order.
        filtered: records left out on purpose, by reason (``where``).
        left_out: int64, their positions.
        skipped: records never looked at, by reason (``pruned``: row groups in which `where` holds nowhere).
        normalized: how often something harmless was mended: ``bom``, ``crlf``, ``blank_line``.
        bytes_read: input bytes consumed since the batch before; sums up to the range's weight.
    """

    file: InputFile
    positions: npt.NDArray[np.int64]
    bytes_read: int
    bad: tuple[BadRecord, ...] = ()
    filtered: dict[str, int] = field(default_factory=_none)
    left_out: npt.NDArray[np.int64] = field(default_factory=_nowhere)
    skipped: dict[str, int] = field(default_factory=_none)
    normalized: dict[str, int] = field(default_factory=_none)

    @property
    def rows_read(self) -> int:
        """Records that were looked at: those here, those set aside and those left out."""
        return len(self.positions) + len(self.bad) + sum(self.filtered.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBatch(Batch):
    """Records as texts: large_string, no nulls, valid UTF-8, offset 0."""

    text: pa.LargeStringArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch(Batch):
    """Records as rows.

    Attributes:
        table: the rows, in the form in which they were read; objects may have more than the wanted fields.
        all_fields: whether all fields were wanted.
    """

    table: Rows
    all_fields: bool = True

    @property
    def rows(self) -> pa.RecordBatch:
        """The wanted columns. JSON has no schema, so that every batch may have other types."""
        return self.table.columns

    @property
    def objects(self) -> list[dict[str, Any]] | None:
        """The records as they stand in a JSON input, where all fields are wanted; else None."""
        return self.table.objects if self.all_fields and self.table.has_objects else None

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the records as Python dicts of the wanted fields."""
        return self.rows.to_pylist() if self.objects is None else self.objects


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRowBatch(RowBatch):
    """Records as rows, and their texts beside them, as in :class:`TextBatch`."""

    text: pa.LargeStringArray


def refuse(record: BadRecord, file: InputFile) -> BadRecordError:
    """Return the error of the policy ``fail`` for `record`, which is of `file`."""
    place = f"{file.url}:{record.line}" if record.line is not None else file.url
    unit = "byte offset" if file.format in ("jsonl", "text") else "row"
    return BadRecordError(
        f"{place}: {record.reason} at {unit} {record.position}: {record.detail}. "
        "Mend the record, or set `on_bad_record: quarantine` to set such records aside and go on.",
        file=record.file,
        line=record.line,
        position=record.position,
        reason=record.reason,
        detail=record.detail,
    )

"""What reading yields: batches of text with the place each came from, and records that cannot be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.errors import BadRecordError

if TYPE_CHECKING:
    from tokenlake.sources.listing import InputFile

RAW_LIMIT: Final = 64 << 10  # bytes of a bad record that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """One record that cannot be used, and why.

    Attributes:
        file: path of the input relative to its listing's root.
        file_id: identity of the input, see :func:`tokenlake.fingerprint.file_id`.
        position: row number in Parquet; byte offset of the line's start in the decompressed stream
            for line formats; 0 for a whole text file.
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
class TextBatch:
    """Some consecutive records of one file.

    Attributes:
        text: large_string, no nulls, valid UTF-8, offset 0.
        positions: int64, one per text, as in :class:`BadRecord`.
        bad: records set aside (policy ``quarantine``), in file order.
        normalized: how often something harmless was mended: ``bom``, ``crlf``, ``blank_line``.
        rows_read: ``len(text) + len(bad)``.
        bytes_read: input bytes consumed since the batch before; sums up to the range's weight.
    """

    file: InputFile
    text: pa.LargeStringArray
    positions: npt.NDArray[np.int64]
    bad: tuple[BadRecord, ...]
    normalized: dict[str, int]
    rows_read: int
    bytes_read: int


def make_batch(
    file: InputFile,
    text: pa.LargeStringArray,
    positions: npt.NDArray[np.int64],
    bytes_read: int,
    *,
    bad: tuple[BadRecord, ...] = (),
    normalized: dict[str, int] | None = None,
) -> TextBatch:
    """Return a TextBatch with its derived fields filled in; zero counts are left out of `normalized`."""
    return TextBatch(
        file=file,
        text=text,
        positions=positions,
        bad=bad,
        normalized={name: count for name, count in (normalized or {}).items() if count},
        rows_read=len(text) + len(bad),
        bytes_read=bytes_read,
    )


def refuse(record: BadRecord, url: str) -> BadRecordError:
    """Return the error of the policy ``fail`` for `record`; `url` is the file's full path."""
    place = f"{url}:{record.line}" if record.line is not None else url
    unit = "byte offset" if record.line is not None or not record.position else "row"
    return BadRecordError(
        f"{place}: {record.reason} at {unit} {record.position}: {record.detail}. "
        "Mend the record, or set `on_bad_record: quarantine` to set such records aside and go on.",
        file=record.file,
        line=record.line,
        position=record.position,
        reason=record.reason,
        detail=record.detail,
    )

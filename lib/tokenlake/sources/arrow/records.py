"""The records of one Arrow record batch, in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tokenlake.sources.arrow.decoder import BatchDecoder
from tokenlake.sources.arrow.messages import Message
from tokenlake.sources.columnar.access import reading
from tokenlake.sources.columnar.records import row_records, text_records
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.parsed import Parsed

_COUNTED_ROWS: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlace:
    """Where a record batch stands.

    Attributes:
        index: its number in the file.
        first: the number of its first row.
        bytes_read: what it counts as.
        max_record_bytes: a longer text is a bad record.
    """

    file: InputFile
    index: int
    first: int
    bytes_read: int
    max_record_bytes: int


def batch_records(
    decoder: BatchDecoder, place: BatchPlace, message: Message, metadata: bytes, box: list[Any]
) -> Iterator[Parsed]:
    """Yield the records of a batch.

    Args:
        metadata: of the message, with its length in front of it.
        box: the message's body alone, taken out so that nobody else keeps it alive.

    Raises:
        DamagedFileError: something in the batch does not hold together.
    """
    if not decoder.names and not decoder.text:
        yield from _counted(place, message.rows)
        return
    with reading(place.file, f"record batch {place.index}"):
        batch = decoder.decode(metadata, box.pop())
        if batch.num_rows != message.rows:
            raise ValueError(f"it holds {batch.num_rows} rows, its metadata counts {message.rows}")
        if decoder.names:
            done, left = place.first, place.bytes_read
            for rows, text in decoder.rows(batch):
                yield row_records(rows, text, done, left, place.max_record_bytes)
                done, left = done + rows.num_rows, 0
        else:
            yield from text_pieces(decoder.texts(batch), place)


def text_pieces(texts: Iterator[pa.LargeStringArray], place: BatchPlace) -> Iterator[Parsed]:
    """Yield the records of a batch of which nothing but the text is wanted; DamagedFileError as above."""
    done, left = place.first, place.bytes_read
    with reading(place.file, f"record batch {place.index}"):
        for text in texts:
            held = [text_records(text, done, left, place.max_record_bytes)]
            done, left = done + len(text), 0
            del text
            yield held.pop()


def _counted(place: BatchPlace, rows: int) -> Iterator[Parsed]:
    for done in range(0, max(rows, 1), _COUNTED_ROWS):
        positions = np.arange(
            place.first + done, place.first + min(done + _COUNTED_ROWS, rows), dtype=np.int64
        )
        yield Parsed(text=None, positions=positions, bad=(), bytes_read=0 if done else place.bytes_read)

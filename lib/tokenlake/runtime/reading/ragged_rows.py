"""Row groups of rows of many lengths: documents, padded or not, and preferences.

A row consists of *runs* of ids. A row of kind tokens has one run, without a name. A row
of kind preference has the prompt, and each answer with its prompt before it, however
its columns are stored.

The lengths of all runs are known before any row is decoded, because batches are made by
length. A page of lists begins with its repetition levels, which state for each id
whether a row begins there. Therefore only the first bytes of a page are decompressed;
the rest is read only for its checksum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Bools, Int32, Int64, offsets_of
from tokenlake.base.columns import columns_for, parts_of
from tokenlake.runtime.parquet.page_headers import parse_header
from tokenlake.runtime.reading.blocks import BLOCKS
from tokenlake.runtime.reading.levels import Unfamiliar, read_run_head
from tokenlake.runtime.reading.pages import pages_of, stored_body
from tokenlake.runtime.store.manifest import Manifest

IDS: Final = "input_ids"
MASK: Final = "attention_mask"
LEARNED: Final = "loss_mask"
LABEL: Final = "label"

Lengths = npt.NDArray[Any]
"""Lengths of rows, uint16[rows], or uint32[rows] if one is longer."""

_ZERO_BITS: Final = [
    tuple(bit for bit in range(8) if not byte >> bit & 1) for byte in range(256)
]
"""Places of the zero bits of each byte, the lowest first."""

# Of a page with few values; levels of many take far less than a byte for each.
_MOST_LEVEL_BYTES: Final = 64


@final
@dataclass(frozen=True, slots=True)
class TokenRun:
    """One run of ids of every row.

    Attributes:
        name: ``chosen``, ``rejected``, ``completion`` or ``prompt``; empty for a
            document.
        columns: Columns whose ids the run consists of, one after the other.
        prompt: Column of the prompt, whose ids come first and do not count toward the
            loss; None if there is none.
        bears_loss: True if ids of the run count toward the loss.
    """

    name: str
    columns: tuple[str, ...]
    prompt: str | None = None
    bears_loss: bool = True


def runs_of(manifest: Manifest) -> tuple[TokenRun, ...]:
    """Return the runs of an unpacked version's rows: answers first, the prompt last."""
    if manifest.preference is None:
        return (TokenRun("", (IDS,)),)
    # Columns of ids by the parts of a row that they hold.
    method, trainer = manifest.preference
    columns: dict[tuple[str, ...], str] = {
        column.parts: column.name
        for column in columns_for(method, trainer)
        if column.holds == "ids"
    }
    # Answers: each has its own ids, and perhaps those of the prompt before them.
    prompt = columns.get(("prompt",))
    runs: list[TokenRun] = []
    for part in parts_of(method):
        if part == "prompt":
            continue
        if ("prompt", part) in columns:  # one column holds the prompt and the answer
            runs.append(TokenRun(part, (columns["prompt", part],), prompt))
        elif prompt is not None:
            runs.append(
                TokenRun(part, (prompt, columns[part,]), prompt, bears_loss=True)
            )
        else:
            runs.append(TokenRun(part, (columns[part,],), None, bears_loss=False))
    if prompt is not None:
        runs.append(TokenRun("prompt", (prompt,), None, bears_loss=False))
    return tuple(runs)


@final
class RaggedGroup:
    """Row group of n rows. Nothing of it may be written to.

    Args:
        ids: Ids of all rows of each column.
        offsets: Begin of each row in the ids of each column and end of the last,
            int64[n + 1].
        learned: Loss mask of :data:`IDS`; None if it is not stored or was not
            requested.
        label: Label of each row, bool[n]; None if rows have none.

    Attributes:
        rows: Number of rows.
        views: Memory of the ids of all rows of each column, four bytes each.
        begins: Begin of each row's ids in each column and end of the last, n + 1
            numbers.
        learned: Loss mask of :data:`IDS`, one byte for each id; None if it is not
            stored or was not requested.
        label: True for rows with a good answer, bool[n]; None if rows have no label.
        nbytes: Number of bytes of memory that the row group keeps.
    """

    __slots__ = ("begins", "label", "learned", "nbytes", "rows", "views")

    def __init__(
        self,
        ids: dict[str, Int32],
        offsets: dict[str, Int64],
        learned: Bools | None,
        label: Bools | None,
    ) -> None:
        self.views = {name: column.view(np.uint8).data for name, column in ids.items()}
        self.begins = {
            name: column_offsets.tolist() for name, column_offsets in offsets.items()
        }
        self.rows = len(next(iter(offsets.values()))) - 1
        self.label = label
        # Memory that a cache counts: ids, begins and the loss mask.
        ids_bytes = sum(column.nbytes for column in ids.values())
        # A list of Python integers, roughly.
        begins_bytes = 16 * self.rows * len(offsets)
        self.nbytes = ids_bytes + begins_bytes
        self.learned = None
        if learned is not None:
            self.learned = learned.view(np.uint8).data
            self.nbytes += learned.nbytes


class ListColumns(Protocol):
    """Stored columns of lists, by row group.

    Attributes:
        manifest: Manifest of the version.
        group_rows: Number of rows of each row group, int64[G].
    """

    manifest: Manifest
    group_rows: Int64

    def list_lengths(self, column: str) -> Lengths:
        """Return the length of each row's list, of all row groups, unsigned[rows]."""
        ...

    def list_values(self, group: int, column: str, values: int) -> npt.NDArray[Any]:
        """Return the values of a row group's lists, one list after the other.

        There are `values` of them.
        """
        ...

    def flags(self, group: int, column: str) -> Bools:
        """Return a column of booleans."""
        ...


@final
class RaggedRows:
    """Rows of a split, by row group, and their lengths.

    The lengths are read once. Several threads may use the object.

    Args:
        stored: Stored columns.
        has_loss_mask: True if a column states the ids that count toward the loss.

    Attributes:
        runs: Runs of every row.
    """

    def __init__(self, stored: ListColumns, *, has_loss_mask: bool) -> None:
        self._stored = stored
        self._has_loss_mask = has_loss_mask
        self._first_rows = offsets_of(stored.group_rows)
        self.runs: Final = runs_of(stored.manifest)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns whose ids a row group holds."""
        names: dict[str, None] = {}
        for run in self.runs:
            names.update(dict.fromkeys(run.columns))
        return tuple(names)

    @property
    def has_label(self) -> bool:
        """True if rows state whether their answer is good."""
        preference = self._stored.manifest.preference
        return preference is not None and any(
            column.holds == "label" for column in columns_for(*preference)
        )

    def lengths(self, column: str) -> Lengths:
        """Return the number of ids of each row without padding, unsigned[rows]."""
        if column == IDS and self._is_padded:
            _, lengths = self._begins_and_lengths
            return lengths
        return self._stored.list_lengths(column)

    def read(self, group: int, *, loss_mask: bool) -> RaggedGroup:
        """Decode a row group.

        Args:
            group: Number of the row group.
            loss_mask: True to read the loss mask as well, if there is one.

        Raises:
            IntegrityError: The row group is damaged.
        """
        rows = slice(int(self._first_rows[group]), int(self._first_rows[group + 1]))
        # Ids and begins of rows, column by column.
        ids: dict[str, Int32] = {}
        offsets: dict[str, Int64] = {}
        for name in self.columns:
            offsets[name] = offsets_of(
                self._stored.list_lengths(name)[rows].astype(np.int64)
            )
            ids[name] = self._stored.list_values(group, name, int(offsets[name][-1]))
        learned: Bools | None = None
        if loss_mask and self._has_loss_mask:
            learned = self._stored.list_values(group, LEARNED, int(offsets[IDS][-1]))
        if self._is_padded:  # padding before a row's own ids is skipped
            begins, _ = self._begins_and_lengths
            offsets[IDS][:-1] += begins[rows]
        label: Bools | None = None
        if self.has_label:
            label = self._stored.flags(group, LABEL)
        return RaggedGroup(ids, offsets, learned, label)

    @cached_property
    def _is_padded(self) -> bool:
        """True if rows hold padding, which a column marks."""
        manifest = self._stored.manifest
        return manifest.preference is None and bool(
            manifest.config.get("build", {}).get("attention_mask")
        )

    @cached_property
    def _begins_and_lengths(self) -> tuple[Lengths, Lengths]:
        """Numbers of padding ids before each row, and of its own ids.

        Both are unsigned[rows].
        """
        # Row group by row group: the masks of all rows would be as large as their ids.
        stored_lengths = self._stored.list_lengths(MASK).astype(np.int64)
        begins: list[Int64] = [np.zeros(0, np.int64)]
        lengths: list[Int64] = [np.zeros(0, np.int64)]
        for group in range(len(self._stored.group_rows)):
            rows = slice(int(self._first_rows[group]), int(self._first_rows[group + 1]))
            group_begins, group_lengths = self._without_padding(
                group, stored_lengths[rows]
            )
            begins.append(group_begins)
            lengths.append(group_lengths)
        return narrowest(np.concatenate(begins)), narrowest(np.concatenate(lengths))

    def _without_padding(
        self, group: int, stored_lengths: Int64
    ) -> tuple[Int64, Int64]:
        """Return begin and number of each row's own ids, int64[rows] both.

        The begin counts the stored ids.
        """
        # The mask is 1 for a row's own ids: their running sum gives their number in any
        # range of stored ids.
        offsets = offsets_of(stored_lengths)
        ids_before = offsets_of(
            self._stored.list_values(group, MASK, int(offsets[-1])) != 0
        )
        own_ids = np.diff(ids_before[offsets])
        # Padding is at one end: unless the first id of a row is its own, all padding
        # comes first.
        second = np.minimum(offsets[:-1] + 1, offsets[-1])
        begins_with_id = ids_before[second] > ids_before[offsets[:-1]]
        return np.where(begins_with_id, 0, stored_lengths - own_ids), own_ids


def list_lengths(chunk: memoryview, values: int) -> Int64:
    """Return the number of values of each list of a column chunk, int64[n].

    All checksums of pages are verified.

    Args:
        chunk: Bytes of the column chunk.
        values: Number of values of the column chunk, from the footer.

    Raises:
        Unfamiliar: The pages have another layout than ours, or a list is null or empty.
        ValueError, OSError: The pages are damaged.
    """
    # Page by page: its header, then its levels, which state where lists begin.
    starts: list[int] = []
    byte_offset = 0
    values_before = 0
    while byte_offset < len(chunk):
        header = parse_header(chunk, byte_offset)
        if not header.ours or header.dictionary:
            raise Unfamiliar("the header of a page has another form")
        if not 0 < header.values <= values - values_before:
            raise ValueError(
                f"a page of {header.values} values; expected 1 to {values - values_before}"
            )
        starts.extend(
            _list_starts(stored_body(chunk, header), header.values, values_before)
        )
        byte_offset = header.begin + header.stored
        values_before += header.values
    # A chunk whose first value begins no list would continue a list of another row
    # group, which Parquet does not allow.
    if values_before != values or not starts or starts[0]:
        raise ValueError(
            f"pages of {values_before} values; expected {values}, the first of which begins a list"
        )
    return np.diff(np.array([*starts, values], np.int64))


def list_values(
    chunk: memoryview, values: int, bits: int, limit: int | None = None
) -> npt.NDArray[Any]:
    """Return the values of all lists of a column chunk, one list after the other.

    Args:
        chunk: Bytes of the column chunk.
        values: Number of values of the column chunk, from the footer.
        bits: Bits of a value: 32 for int32, 1 for bool.
        limit: Upper bound of the values, which are ids from 0 to `limit` - 1; None for
            any numbers.

    Returns:
        int32[values] or bool[values], read-only.

    Raises:
        Unfamiliar: The pages have another layout than ours.
        ValueError, OSError: The pages are damaged.
    """
    kind: np.dtype[Any] = np.dtype(np.int32)
    if bits == 1:
        kind = np.dtype(np.bool_)
    column: npt.NDArray[Any] = BLOCKS.take(values * kind.itemsize).view(kind)
    # The numbers of each page go to their place; bits are unpacked on the way.
    first_value = 0
    for page in pages_of(chunk, values, bits, limit):
        end_value = first_value + page.values
        if bits > 1:
            column[first_value:end_value] = page.numbers
        else:
            stored_bits = np.frombuffer(page.data, np.uint8)
            bits_of_page = np.unpackbits(
                stored_bits, count=page.values, bitorder="little"
            )
            column[first_value:end_value] = bits_of_page.view(np.bool_)
        first_value = end_value
        del page  # the next page is decompressed to its memory
    # Threads share decoded row groups.
    column.flags.writeable = False
    return column


def narrowest(lengths: Int64) -> Lengths:
    """Return lengths as uint16[n] if all fit, otherwise as uint32[n].

    There may be 10^8 of them.
    """
    if not len(lengths) or lengths.max() < 1 << 16:
        return lengths.astype(np.uint16)
    return lengths.astype(np.uint32)


def _list_starts(body: memoryview, count: int, values_before: int) -> list[int]:
    """Return the values of a page that begin a list.

    Args:
        body: Compressed body of the page.
        count: Number of values of the page.
        values_before: Number of values in earlier pages, from which values are counted.
    """
    # Only as much as holds the levels is decompressed.
    stream: Any = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(body)), "zstd")
    repetition = _read_levels(stream, count)
    definition = _read_levels(stream, count)
    if _places_of_zeros(definition, count, 0):
        raise Unfamiliar("lists that are null or empty")
    return _places_of_zeros(repetition, count, values_before)


def _read_levels(stream: Any, count: int) -> bytes:
    """Read the levels of a page, before which their length stands in four bytes.

    Args:
        stream: Decompressed body of the page.
        count: Number of values of the page.
    """
    size = int.from_bytes(stream.read(4), "little")
    if size > count + _MOST_LEVEL_BYTES:
        raise Unfamiliar("more bytes of levels than the values can have")
    levels: bytes = stream.read(size)
    if len(levels) != size:
        raise ValueError(f"levels of {len(levels)} bytes; expected {size}")
    return levels


def _places_of_zeros(levels: bytes, count: int, first: int) -> list[int]:
    """Return the places of the levels that are 0.

    The form of levels is that of :mod:`tokenlake.runtime.reading.levels`, whose decoder
    returns all levels and takes a multiple of the time where rows are long.

    Args:
        levels: Levels as stored.
        count: Number of levels.
        first: Place of the first level.
    """
    # Run by run: a run of bits is looked up byte by byte, and a repeated level is one
    # range. Rows are mostly longer than eight values, so that most bytes have no zero.
    zeros: list[int] = []
    byte_offset = 0
    place = first
    end = first + count
    try:
        while place < end:
            run_head = levels[byte_offset]
            byte_offset += 1
            if run_head > 0x7F:  # a call only for heads of several bytes
                run_head, byte_offset = read_run_head(levels, byte_offset - 1)
            run_length = run_head >> 1
            if run_head & 1:
                # A run of bits.
                if not 0 < run_length <= (end - place + 7) >> 3:
                    raise Unfamiliar("a run of levels that is too long")
                for byte in levels[byte_offset : byte_offset + run_length]:
                    if byte != 0xFF:
                        zeros += [place + bit for bit in _ZERO_BITS[byte]]
                    place += 8
                byte_offset += run_length
            else:
                # One level, repeated.
                if not 0 < run_length <= end - place or levels[byte_offset] > 1:
                    raise Unfamiliar(
                        "a run of levels that is too long, or of a level other than 0 and 1"
                    )
                if levels[byte_offset] == 0:
                    zeros += range(place, place + run_length)
                place += run_length
                byte_offset += 1
    except IndexError as error:
        raise Unfamiliar("levels that end too early") from error
    while zeros and zeros[-1] >= end:  # a run of bits consists of whole bytes
        zeros.pop()
    return zeros

"""Row groups of datasets whose rows have many lengths: documents, padded or not, and preferences.

A row is made of *runs* of ids: of kind tokens one, without a name; of kind preference the prompt and each answer with
its prompt before it, whichever way its columns are stored. How long all runs are is known before any row is decoded,
for batches are made by length: a page of lists begins with its repetition levels, which say for each id whether a row
begins there. So only the first bytes of a page are decompressed; the rest is read for its checksum alone.
"""

from __future__ import annotations

from collections.abc import Sequence
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
_ZEROS: Final = [tuple(bit for bit in range(8) if not byte >> bit & 1) for byte in range(256)]


@final
@dataclass(frozen=True, slots=True)
class TokenRun:
    """One run of ids of every row.

    Attributes:
        name: ``chosen``, ``rejected``, ``completion`` or ``prompt``; empty for a document.
        columns: whose ids it is made of, one after the other.
        prompt: the column as many ids of which come first and bear no loss; None: no such column.
        bears_loss: whether its ids are targets.
    """

    name: str
    columns: tuple[str, ...]
    prompt: str | None = None
    bears_loss: bool = True


def runs_of(manifest: Manifest) -> tuple[TokenRun, ...]:
    """Return the runs of an unpacked version's rows: what is answered with first, the prompt last."""
    if manifest.preference is None:
        return (TokenRun("", (IDS,)),)
    method, trainer = manifest.preference
    columns: dict[tuple[str, ...], str] = {
        column.parts: column.name for column in columns_for(method, trainer) if column.holds == "ids"
    }
    prompt = columns.get(("prompt",))
    answers: list[str] = [part for part in parts_of(method) if part != "prompt"]
    found = [
        TokenRun(part, (columns["prompt", part],), prompt)
        if ("prompt", part) in columns
        else TokenRun(
            part, (prompt, columns[part,]) if prompt else (columns[part,],), prompt, prompt is not None
        )
        for part in answers
    ]
    return (*found, *([TokenRun("prompt", (prompt,), None, bears_loss=False)] if prompt else []))


@final
class RaggedGroup:
    """A row group of n rows; nothing of it may be written to.

    Attributes:
        rows: n.
        views: column -> the memory of its ids, four bytes each, of all rows.
        begins: column -> where each row's ids begin, n + 1 numbers, the last being where they end.
        learned: which ids of :data:`IDS` bear loss, one byte each; None where that is not stored or not asked for.
        label: whether each answer is good, bool[n]; None where no row says.
        nbytes: bytes of memory that the row group keeps.
    """

    __slots__ = ("begins", "label", "learned", "nbytes", "rows", "views")

    def __init__(
        self, ids: dict[str, Int32], offsets: dict[str, Int64], learned: Bools | None, label: Bools | None
    ) -> None:
        self.views = {name: values.view(np.uint8).data for name, values in ids.items()}
        self.begins = {name: each.tolist() for name, each in offsets.items()}
        self.rows = len(next(iter(offsets.values()))) - 1
        self.learned = None if learned is None else learned.view(np.uint8).data
        self.label = label
        parts = [*ids.values(), *([] if learned is None else [learned])]
        self.nbytes = sum(part.nbytes for part in parts) + 16 * self.rows * len(offsets)


class ListColumns(Protocol):
    """What is stored: columns of lists, by row group."""

    manifest: Manifest
    group_rows: Int64

    def list_lengths(self, column: str) -> Lengths:
        """Return the length of each row's list, of all row groups, unsigned[rows]."""
        ...

    def list_values(self, group: int, column: str, values: int) -> npt.NDArray[Any]:
        """Return the values of a row group's lists, `values` of them, one list after the other."""
        ...

    def flags(self, group: int, column: str) -> Bools:
        """Return a column of booleans."""
        ...


@final
class RaggedRows:
    """The rows of a split, by row group, and their lengths, which are read once; may be used by several threads.

    Args:
        stored: its columns.
        has_loss_mask: whether a column says which ids bear loss.

    Attributes:
        runs: of every row.
    """

    def __init__(self, stored: ListColumns, *, has_loss_mask: bool) -> None:
        self._stored, self._has_loss_mask = stored, has_loss_mask
        self._first_rows = offsets_of(stored.group_rows)
        self.runs: Final = runs_of(stored.manifest)

    @property
    def columns(self) -> tuple[str, ...]:
        """Whose ids a row group holds."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.columns))

    @property
    def has_label(self) -> bool:
        """Whether rows say if their answer is good."""
        preference = self._stored.manifest.preference
        return preference is not None and any(column.holds == "label" for column in columns_for(*preference))

    def lengths(self, column: str) -> Lengths:
        """Return how many ids of each row a column has, padding not counted: unsigned[rows]."""
        return self._real[1] if column == IDS and self._padded else self._stored.list_lengths(column)

    def read(self, group: int, *, loss_mask: bool) -> RaggedGroup:
        """Decode a row group.

        Args:
            group: which.
            loss_mask: whether the stored ``loss_mask`` is read as well, where there is one.

        Raises:
            IntegrityError: it is damaged.
        """
        there = slice(int(self._first_rows[group]), int(self._first_rows[group + 1]))
        offsets = {
            name: offsets_of(self._stored.list_lengths(name)[there].astype(np.int64)) for name in self.columns
        }
        ids = {name: self._stored.list_values(group, name, int(each[-1])) for name, each in offsets.items()}
        learned = None
        if loss_mask and self._has_loss_mask:
            learned = self._stored.list_values(group, LEARNED, int(offsets[IDS][-1]))
        if self._padded:  # what is in front of a row's own ids is passed over
            offsets[IDS][:-1] += self._real[0][there]
        return RaggedGroup(
            ids, offsets, learned, self._stored.flags(group, LABEL) if self.has_label else None
        )

    @cached_property
    def _padded(self) -> bool:
        """Whether rows hold padding, which a column says."""
        manifest = self._stored.manifest
        return manifest.preference is None and bool(manifest.config.get("build", {}).get("attention_mask"))

    @cached_property
    def _real(self) -> tuple[Lengths, Lengths]:
        """Of rows with padding: how many ids of it come first, and how many ids are none, unsigned[rows] both."""
        stored = self._stored.list_lengths(MASK).astype(np.int64)
        parts: Sequence[tuple[Int64, Int64]] = [
            self._unpadded(group, stored[self._first_rows[group] : self._first_rows[group + 1]])
            for group in range(len(self._stored.group_rows))
        ]
        begins, lengths = (
            np.concatenate([np.zeros(0, np.int64), *each]) for each in zip(*parts, strict=True)
        )
        return narrowest(begins), narrowest(lengths)

    def _unpadded(self, group: int, stored: Int64) -> tuple[Int64, Int64]:
        offsets = offsets_of(stored)
        ones = offsets_of(self._stored.list_values(group, MASK, int(offsets[-1])) != 0)
        real = np.diff(ones[offsets])
        # The first id of a row is of the document, or else all padding comes first.
        first = ones[np.minimum(offsets[:-1] + 1, offsets[-1])] > ones[offsets[:-1]]
        return np.where(first, 0, stored - real), real


def list_lengths(chunk: memoryview, values: int) -> Int64:
    """Return how many values each list of a column chunk has, int64[n]; every page is read against its checksum.

    Args:
        chunk: the bytes of the column chunk.
        values: of the column chunk, as the footer counts them.

    Raises:
        Unfamiliar: the pages are laid out in another way than ours, or a list is null or empty.
        ValueError, OSError: they are damaged.
    """
    starts: list[int] = []
    at = done = 0
    while at < len(chunk):
        header = parse_header(chunk, at)
        if not header.ours or header.dictionary:
            raise Unfamiliar("the header of a page has another form")
        if not 0 < header.values <= values - done:
            raise ValueError(f"a page of {header.values} values; expected 1 to {values - done}")
        starts.extend(_starts(stored_body(chunk, header), header.values, done))
        at = header.begin + header.stored
        done += header.values
    if done != values or not starts or starts[0]:
        raise ValueError(f"pages of {done} values; expected {values}, the first of which begins a list")
    return np.diff(np.array([*starts, values], np.int64))


def list_values(chunk: memoryview, values: int, bits: int, limit: int | None = None) -> npt.NDArray[Any]:
    """Return the values of all lists of a column chunk, one list after the other; where each begins is known.

    Args:
        chunk, values: as of :func:`list_lengths`.
        bits: of a value: 32 for int32, 1 for bool.
        limit: Values are ids below it; None: any numbers.

    Returns:
        int32[values] or bool[values], which cannot be written to.

    Raises:
        Unfamiliar: the pages are laid out in another way than ours.
        ValueError, OSError: they are damaged.
    """
    found = BLOCKS.take(values * 4).view(np.int32) if bits > 1 else BLOCKS.take(values).view(np.bool_)
    at = 0
    for page in pages_of(chunk, values, bits, limit):
        there = found[at : at + page.values]
        if bits > 1:
            there[:] = page.numbers
        else:
            unpacked = np.unpackbits(np.frombuffer(page.data, np.uint8), count=page.values, bitorder="little")
            there[:] = unpacked.view(np.bool_)
        at += page.values
        del page  # its memory is that of the next one
    found.flags.writeable = False
    return found


def narrowest(lengths: Int64) -> npt.NDArray[Any]:
    """Return lengths as uint16[n] where all fit, else as uint32[n]: there may be 10^8 of them."""
    return lengths.astype(np.uint16 if not len(lengths) or lengths.max() < 1 << 16 else np.uint32)


def _starts(body: memoryview, count: int, before: int) -> list[int]:
    """Return which of a page's values begin a list, counted from `before`."""
    stream: Any = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(body)), "zstd")
    repetition, definition = _levels(stream, count), _levels(stream, count)
    if _zeros(definition, count, 0):
        raise Unfamiliar("lists that are null or empty")
    return _zeros(repetition, count, before)


def _levels(stream: Any, count: int) -> bytes:
    size = int.from_bytes(stream.read(4), "little")
    if size > count + 64:
        raise Unfamiliar("levels that are longer than what they are of")
    levels: bytes = stream.read(size)
    if len(levels) != size:
        raise ValueError(f"levels of {len(levels)} bytes; expected {size}")
    return levels


def _zeros(levels: bytes, count: int, before: int) -> list[int]:
    """Return where `count` levels are 0, counted from `before`.

    They are stored as runs: see :func:`tokenlake.runtime.reading.pages.decode_levels`, which gives all of
    them, and takes a multiple of the time where rows are long.
    """
    found: list[int] = []
    at, place, end = 0, before, before + count
    try:
        while place < end:
            head, at = levels[at], at + 1
            if head > 0x7F:
                head, at = read_run_head(levels, at - 1)
            length = head >> 1
            if head & 1:
                if not 0 < length <= (end - place + 7) >> 3:
                    raise Unfamiliar("a run of levels that goes on too long")
                for byte in levels[at : at + length]:
                    if byte != 0xFF:
                        found += [place + bit for bit in _ZEROS[byte]]
                    place += 8
                at += length
            else:
                if not 0 < length <= end - place or levels[at] > 1:
                    raise Unfamiliar("a run of levels that goes on too long, or of others than 0 and 1")
                if not levels[at]:
                    found += range(place, place + length)
                place, at = place + length, at + 1
    except IndexError as error:
        raise Unfamiliar("levels that end too early") from error
    while found and found[-1] >= end:  # a run of bits is of whole bytes
        found.pop()
    return found

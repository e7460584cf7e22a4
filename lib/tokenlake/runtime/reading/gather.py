"""Any rows of several datasets, in any order, as one batch.

Each row group is decoded once for a call, and let go unless the caller keeps it: what is wanted of it is taken to its
places at once. Only what has many lengths is collected first, since where a run goes depends on those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenlake.base.arrays import Bools, Int32, Int64, cells, offsets_of, places, values
from tokenlake.errors import ConfigError, IntegrityError
from tokenlake.runtime.reading.version import StoredRows, runs
from tokenlake.runtime.schema import packed_schema
from tokenlake.runtime.store.manifest import Kind

ReadGroup = Callable[[tuple[StoredRows, int]], pa.RecordBatch]


LONG: Final = 16
"""Ids a run from which on copying run by run is faster than looking up each id (measured)."""


@final
@dataclass(frozen=True, slots=True)
class Part:
    """What is wanted of one row group.

    Attributes:
        source: whose it is.
        batch: the row group, all columns.
        rows: of it, int64[m]; any order, one may come several times.
        places: where each goes in the result, int64[m].
    """

    source: StoredRows
    batch: pa.RecordBatch
    rows: Int64
    places: Int64


def wanted_parts(
    sources: Sequence[StoredRows],
    source: Int64,
    group: Int64,
    row: Int64,
    read: ReadGroup,
) -> Iterator[Part]:
    """Yield each row group that n wanted rows lie in, once, in the order they are stored.

    Args:
        source: index of a source, int64[n].
        group, row: the row group in that source and the row in it, int64[n] both.

    Raises:
        ConfigError: there is no such source or row.
        IntegrityError: a row group is damaged.
    """
    if len(source) and not (source.min() >= 0 and source.max() < len(sources)):
        raise ConfigError(
            f"sources {source.min()} to {source.max()} are asked for; expected those of 0 to {len(sources) - 1}"
        )
    first_groups = offsets_of([len(rows.group_rows) for rows in sources])
    group_rows = np.concatenate([np.zeros(0, np.int64), *(rows.group_rows for rows in sources)])
    number = first_groups[source] + group
    outside = (group < 0) | (number >= first_groups[source + 1])
    outside[~outside] = (row[~outside] < 0) | (row[~outside] >= group_rows[number[~outside]])
    if outside.any():
        bad = int(np.argmax(outside))
        raise ConfigError(
            f"{sources[int(source[bad])].name}: there is no row {row[bad]} in row group {group[bad]}"
        )
    places = np.argsort(number, kind="stable")
    ascending = number[places]
    begins = np.flatnonzero(np.diff(ascending, prepend=-1))
    for begin, end in pairwise([*begins.tolist(), len(places)]):
        there = places[begin:end]
        rows = sources[int(source[there[0]])]
        yield Part(rows, read((rows, int(group[there[0]]))), row[there], there)


def check_kind(sources: Sequence[StoredRows], kind: Kind) -> None:
    """Raise ConfigError unless there are sources, all of a kind, and of one length where they are packed."""
    found = {rows.name: (rows.manifest.kind, rows.manifest.width) for rows in sources}
    if not found or any(each != kind for each, _ in found.values()):
        raise ConfigError(f"expected datasets of kind {kind}, got {_listed(found) or 'none'}")
    if len({length for _, length in found.values()}) > 1:
        raise ConfigError(
            f"sequences of different lengths cannot be mixed row by row: {_listed(found)}. "
            "Pack all of them to one length, or mix their documents and pack the mixture"
        )


def _listed(found: dict[str, tuple[str, int]]) -> str:
    return ", ".join(
        f"{name} ({kind}{f', {length} ids a row' if length else ''})"
        for name, (kind, length) in found.items()
    )


_PIECES: Final = ("segment_lengths", "documents")


def pieces_of(part: Part) -> pa.RecordBatch:
    """Return the segments of the wanted rows of a row group: lengths and documents; IntegrityError for unequal ones."""
    found: Any = part.batch.select(list(_PIECES))
    (_, offsets), (_, others) = (runs(found, name) for name in _PIECES)
    if not np.array_equal(offsets, others):
        raise IntegrityError(
            f"{part.source.name}: rows with other numbers of segments than of documents. "
            "Run `tokenlake verify --deep`."
        )
    return found.take(pa.array(part.rows))


def learned_rows(part: Part, pieces: pa.RecordBatch, ids: Int32, bos_id: int) -> npt.NDArray[np.uint8]:
    """Return which ids of a part's rows bear loss, eight in a byte: uint8[m, ceil(length / 8)].

    Args:
        ids: of all rows, int32[n, length].
        bos_id: what begins a document; negative where nothing does.

    Where the dataset does not say, those of every segment do, but for the BOS that a document begins with.
    """
    if "loss_mask" in part.batch.schema.names:
        return np.take(bit_rows(part.batch, "loss_mask"), part.rows, axis=0)
    (lengths, limits), (documents, _) = (runs(pieces, name) for name in _PIECES)
    ends = offsets_of(values(lengths))
    found = cells(ends[limits[1:]] - ends[limits[:-1]], ids.shape[1], left=False)
    row = np.repeat(np.arange(len(part.rows)), np.diff(limits))
    begin = ends[:-1] - ends[limits[:-1]][row]
    begins = (values(documents.field("start")) == 0) & (ids[part.places[row], begin] == bos_id)
    found[row[begins], begin[begins]] = False
    return packed_bits(found)


@final
@dataclass(frozen=True, slots=True)
class Texts:
    """m documents.

    Attributes:
        places: where each goes, int64[m].
        start: where its ids begin in `ids`, int64[m].
        lengths: how many there are, int64[m].
        ids: of the whole row group if half of them or more are wanted, else only those: int32[k].
        learned: which of `ids` bear loss, bool[k]; None where it is not asked for.
    """

    places: Int64
    start: Int64
    lengths: Int64
    ids: Int32
    learned: Bools | None

    @classmethod
    def of(cls, part: Part, bos_id: int, *, masked: bool) -> Texts:
        """Take the wanted documents of a row group, without padding; a row group that little is wanted of is let go."""
        flat, offsets = runs(part.batch, "input_ids")
        start, lengths = _unpadded(part.batch, offsets)
        start, lengths, ids, learned = start[part.rows], lengths[part.rows], values(flat), None
        if masked and "loss_mask" in part.batch.schema.names:
            learned = values(runs(part.batch, "loss_mask")[0])
        if lengths.sum() * 2 < len(ids):
            begin = offsets_of(lengths)
            ids = _moved(ids, start, begin, lengths)
            learned = None if learned is None else _moved(learned, start, begin, lengths)
            start = begin[:-1]
        if masked and learned is None:
            learned, first = np.ones(len(ids), np.bool_), start[lengths > 0]
            learned[first[ids[first] == bos_id]] = False
        return cls(part.places, start, lengths, ids, learned)

    def put(self, offsets: Int64, ids: Int32, learned: Bools | None) -> None:
        """Copy them to where `offsets` (int64[n + 1]) says that documents begin."""
        begin = offsets[self.places]
        move(self.ids, self.start, ids, begin, self.lengths)
        if learned is not None and self.learned is not None:
            move(self.learned, self.start, learned, begin, self.lengths)


def _unpadded(batch: pa.RecordBatch, offsets: Int64) -> tuple[Int64, Int64]:
    """Return where the ids of each row of a row group begin and how many there are; padding is at one end of a row."""
    start, lengths = offsets[:-1], np.diff(offsets)
    if "attention_mask" not in batch.schema.names:
        return start, lengths
    mask = values(runs(batch, "attention_mask")[0])
    counts = np.diff(offsets_of(mask)[offsets])
    before = np.append(mask, 0)[start] == 0
    return np.where(before, start + lengths - counts, start), counts


def _moved(source: npt.NDArray[Any], start: Int64, begin: Int64, lengths: Int64) -> npt.NDArray[Any]:
    target = np.empty(begin[-1], source.dtype)
    move(source, start, target, begin[:-1], lengths)
    return target


_NO_ID: Final = -1


class StoredDocuments(NamedTuple):
    """n documents.

    Attributes:
        ids: int32[total], without padding.
        offsets: where each document begins and the last ends, int64[n + 1] from 0.
        file, position: where each comes from, int64[n].
        learned: which ids bear loss, bool[total]; None where no dataset says so, and all do.
    """

    ids: Int32
    offsets: Int64
    file: Int64
    position: Int64
    learned: Bools | None


def take_packed(
    sources: Sequence[StoredRows],
    source: Int64,
    group: Int64,
    row: Int64,
    *,
    read: ReadGroup,
    bos_id: int | None = None,
) -> pa.RecordBatch:
    """Return sequences of packed datasets of one length.

    Args:
        sources: the datasets.
        source, group, row: of each wanted row, int64[n]: index of its dataset, row group in it, row in that.
        read: (dataset, number of a row group) -> the row group, decoded, all columns.
        bos_id: what begins a document; None where nothing does.

    Returns:
        n rows of :func:`tokenlake.runtime.schema.packed_schema`. They have a ``loss_mask`` if one of the
        datasets has; in rows of another, all ids of a document bear loss but its BOS.

    Raises:
        ConfigError: the datasets are not packed to one length, or have no such row.
        IntegrityError: a row group is damaged.
    """
    check_kind(sources, "packed")
    length, masked = sources[0].manifest.width, any(rows.has_loss_mask for rows in sources)
    ids = np.empty((len(source), length), np.int32)
    learned = np.empty((len(source), -(-length // 8)), np.uint8) if masked else None
    pieces: list[pa.RecordBatch] = []
    places: list[Int64] = []
    for part in wanted_parts(sources, source, group, row, read):
        wanted = pieces_of(part)
        ids[part.places] = np.take(matrix(part.batch, "input_ids"), part.rows, axis=0)
        if learned is not None:
            learned[part.places] = learned_rows(part, wanted, ids, _NO_ID if bos_id is None else bos_id)
        pieces.append(wanted)
        places.append(part.places)
    schema: Any = packed_schema(length, loss_mask=masked)
    if not pieces:
        return pa.RecordBatch.from_pylist([], schema)
    arrow: Any = pa
    joined = arrow.concat_batches(pieces).take(arrow.array(np.argsort(np.concatenate(places))))
    held: dict[str, Any] = {name: joined.column(name) for name in _PIECES}
    held["input_ids"] = arrow.FixedSizeListArray.from_arrays(
        arrow.array(ids.reshape(-1)), type=schema.field("input_ids").type
    )
    if learned is not None:
        held["loss_mask"] = arrow.FixedSizeListArray.from_arrays(
            bit_array(learned, length), type=schema.field("loss_mask").type
        )
    return pa.RecordBatch.from_arrays([held[name] for name in schema.names], schema=schema)


def take_documents(
    sources: Sequence[StoredRows],
    source: Int64,
    group: Int64,
    row: Int64,
    *,
    read: ReadGroup,
    bos_id: int | None = None,
) -> StoredDocuments:
    """Return documents of token datasets, without the padding that some have; arguments as of :func:`take_packed`.

    Raises:
        ConfigError: the datasets are not of kind ``tokens``, or have no such row.
        IntegrityError: a row group is damaged.
    """
    check_kind(sources, "tokens")
    masked = any(rows.has_loss_mask for rows in sources)
    lengths, file, position = np.empty((3, len(source)), np.int64)
    parts: list[Texts] = []
    for part in wanted_parts(sources, source, group, row, read):
        found = Texts.of(part, _NO_ID if bos_id is None else bos_id, masked=masked)
        lengths[part.places] = found.lengths
        file[part.places] = values(part.batch.column("file"))[part.rows]
        position[part.places] = values(part.batch.column("position"))[part.rows]
        parts.append(found)
    offsets = offsets_of(lengths)
    ids = np.empty(offsets[-1], np.int32)
    learned = np.empty(offsets[-1], np.bool_) if masked else None
    for found in parts:
        found.put(offsets, ids, learned)
    return StoredDocuments(ids, offsets, file, position, learned)


def matrix(batch: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    """Return a column of rows of one length as [rows, length], a view of it but for bits."""
    column: Any = batch.column(name)
    size = column.type.list_size
    return values(column.values.slice(column.offset * size, len(column) * size)).reshape(-1, size)


def bit_rows(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.uint8]:
    """Return a column of rows of bits of one length as [rows, ceil(length / 8)], a view of it if 8 divides that."""
    column: Any = batch.column(name)
    size = column.type.list_size
    bits = column.values.slice(column.offset * size, len(column) * size)
    if size % 8 or bits.offset % 8:
        return packed_bits(values(bits).reshape(-1, size))
    return np.frombuffer(bits.buffers()[1], np.uint8, len(bits) // 8, bits.offset // 8).reshape(-1, size // 8)


def packed_bits(rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """Return rows of bits, eight in a byte, the first lowest: uint8[rows, ceil(length / 8)]."""
    return np.packbits(rows, axis=1, bitorder="little")


def bit_array(rows: npt.NDArray[np.uint8], length: int) -> Any:
    """Return the bits of all rows, `length` of each, as one Arrow array; a view of them if 8 divides the length."""
    if length % 8:
        return pa.array(
            np.unpackbits(rows, axis=1, count=length, bitorder="little").reshape(-1).view(np.bool_)
        )
    return pa.Array.from_buffers(pa.bool_(), len(rows) * length, [None, pa.py_buffer(rows.data)])


def move(
    source: npt.NDArray[Any], start: Int64, target: npt.NDArray[Any], begin: Int64, lengths: Int64
) -> None:
    """Copy ``source[start[i]:start[i] + lengths[i]]`` to ``target[begin[i]:]`` for each of n runs."""
    if lengths.sum() < LONG * len(lengths):
        target[places(begin, lengths)] = source[places(start, lengths)]
        return
    # Slices of memory views are the cheapest copies that Python has.
    there, here = target.view(np.uint8).data, source.view(np.uint8).data
    width = source.itemsize
    for first, to, size in zip(
        (start * width).tolist(), (begin * width).tolist(), (lengths * width).tolist(), strict=True
    ):
        there[to : to + size] = here[first : first + size]

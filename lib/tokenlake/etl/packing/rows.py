"""Packing rows as Python objects: dicts of one document each go in, dicts of one full row each come out.

The plans and packers are those of a build. :class:`PackedRows` has all strategies; :func:`pack_pre_tokenized` and
:func:`pack_constant_length` are greedy packing with the arguments of older callers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Final, final

import numpy as np

from tokenlake.base.arrays import Int32, offsets_of
from tokenlake.base.checks import require_one_of
from tokenlake.config.resolved import ResolvedPack
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.packing.packer import open_packer
from tokenlake.etl.packing.segments import LOSS, Packed, learned, marked, plain
from tokenlake.etl.packing.strategies import STRATEGIES
from tokenlake.runtime.mixing.random import key_of, shuffled

Row = dict[str, Any]
GivenDocument = tuple[Int32, tuple[int, int], frozenset[str]]
"""Ids of a document, file and position, and the columns that it has beside its ids."""

_TOGETHER: Final = 1 << 16  # tokens that are handed to the packer at a time


@final
@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """How documents become rows of one length.

    Attributes:
        seq_length: L, tokens of a row.
        eos_token_id: put after each document that does not end with it.
        pad_token_id: fills the ends of rows; None: `eos_token_id`.
        strategy: ``greedy``, ``pool``, ``first_fit`` or ``best_fit``.
        num_packers: rows that stand open at a time, for ``pool``.
        max_segments: at most so many pieces in a row; None: any number.
        window_tokens: tokens inside which every strategy but ``greedy`` reorders documents: so many are read before
            the first row comes out.
        shuffle_packed: shuffle the rows, ``shuffle_buffer_factor * num_packers`` of them at a time.
        seed: of the shuffle.
        include_segment_ids: whether rows say which piece each token belongs to.
        field: of the documents' ids.
    """

    seq_length: int
    eos_token_id: int
    pad_token_id: int | None = None
    strategy: str = "greedy"
    num_packers: int = 4
    max_segments: int | None = None
    window_tokens: int = 1 << 24
    shuffle_packed: bool = False
    shuffle_buffer_factor: int = 10
    seed: int = 0
    include_segment_ids: bool = True
    field: str = "input_ids"

    def __post_init__(self) -> None:
        require_one_of("strategy", self.strategy, tuple(STRATEGIES))
        for name in ("seq_length", "num_packers", "shuffle_buffer_factor", "window_tokens", "max_segments"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}: got {value}, expected at least 1", field_path=name, got=value)

    def pack(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
        """Pack documents.

        Args:
            rows: of each document `input_ids` (integers, any sequence), and, in all of them or in none: `loss_mask`
                (as many truth values); `file` and `position`, where the document comes from.

        Yields:
            Rows with the same columns throughout: ``input_ids`` int32[L]; ``attention_mask`` int32[L], 1 for ids and 0
            for padding; ``segment_ids`` int32[L], 1, 2, 3 ... for the pieces of the row and 0 for padding, where they
            are asked for; ``loss_mask`` bool[L] where documents have one, true for the EOS that was put after a
            document and false for padding; where documents say where they come from, ``segment_lengths`` (one per
            piece) and ``documents`` (of each piece file, position, and `start`, the index of its first token in the
            document). Documents without ids are left out.

        Raises:
            BadRecordError: ids are missing or are not integers of 32 bits, a mask is of another length, or documents
                do not agree on their columns; the message names the document.
        """

        def made() -> Iterator[Row]:
            stream = OpenRows(self)
            yield from stream.add(rows)
            yield from stream.finish()

        if not self.shuffle_packed:
            return made()
        return _shuffled(made(), self.shuffle_buffer_factor * self.num_packers, self.seed)

    def documents(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[GivenDocument]:
        """Yield the documents of rows, checked, with EOS; those without ids are left out."""
        expected: frozenset[str] | None = None
        for number, row in enumerate(rows):
            columns = _columns(row)
            if expected is not None and columns != expected:
                got, before = (", ".join(sorted(each)) or "none" for each in (columns, expected))
                raise BadRecordError(
                    f"document {number}: got the columns {got} beside {self.field!r}, expected {before} as in the "
                    "documents before; give all documents the same columns",
                    row=number,
                )
            expected = columns
            ids = _ids(row, self.field, number)
            if len(ids):
                where = (int(row["file"]), int(row["position"])) if "file" in columns else (0, number)
                yield self._finished(row, ids, number), where, columns

    def _finished(self, row: Mapping[str, Any], ids: Int32, number: int) -> Int32:
        """Put EOS after a document that lacks it, and the mask into its ids."""
        end = np.int32(self.eos_token_id)
        lacks = ids[-1] != end
        if "loss_mask" in row:
            mask = np.asarray(row["loss_mask"]).astype(np.bool_)
            if mask.shape != ids.shape:
                raise BadRecordError(
                    f"document {number}: loss_mask has the shape {mask.shape}, expected one value for each of "
                    f"the {len(ids)} ids",
                    row=number,
                )
            ids, end = marked(ids, mask), end | LOSS
        return np.append(ids, np.int32(end)) if lacks else ids

    def objects(self, packed: Packed, columns: frozenset[str]) -> Iterator[Row]:
        """Yield the rows of `packed` as objects; `columns`: what documents have beside their ids."""
        mask = learned(packed.input_ids) if "loss_mask" in columns else None
        ids = packed.input_ids if mask is None else plain(packed.input_ids)
        segment_ids = packed.segment_ids
        attention = (segment_ids > 0).astype(np.int32)
        for number in range(packed.rows):
            cells = slice(number * packed.width, (number + 1) * packed.width)
            row: Row = {"input_ids": ids[cells].copy(), "attention_mask": attention[cells].copy()}
            if self.include_segment_ids:
                row["segment_ids"] = segment_ids[cells].copy()
            if mask is not None:
                row["loss_mask"] = mask[cells].copy()
            if "file" in columns:
                pieces = slice(int(packed.row_offsets[number]), int(packed.row_offsets[number + 1]))
                row["segment_lengths"] = packed.segment_lengths[pieces].copy()
                places = (packed.file[pieces], packed.position[pieces], packed.start[pieces])
                each = zip(*(column.tolist() for column in places), strict=True)
                row["documents"] = [dict(zip(_PLACE, place, strict=True)) for place in each]
            yield row


@final
class OpenRows:
    """Rows that are filled as documents come: those that are full come out, the others stay open.

    Args:
        packing: how; rows are in its order, not shuffled.
        group_tokens: rows come out so many tokens at a time, or more.
    """

    def __init__(self, packing: PackedRows, group_tokens: int = _TOGETHER) -> None:
        pack = ResolvedPack(
            width=packing.seq_length,
            strategy=packing.strategy,
            window_tokens=packing.window_tokens,
            num_packers=packing.num_packers,
            max_segments=packing.max_segments,
        )
        pad = packing.eos_token_id if packing.pad_token_id is None else packing.pad_token_id
        self._packing, self._columns = packing, frozenset[str]()
        self._packer = open_packer(pack, pad_id=pad, group_tokens=group_tokens)

    def add(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
        """Append documents and yield the rows that are full; errors as :meth:`PackedRows.pack`."""
        for block in _blocks(self._packing.documents(rows)):
            self._columns = block[0][2]
            ids = [document[0] for document in block]
            places = np.array([document[1] for document in block], np.int64)
            for packed in self._packer.add(np.concatenate(ids), offsets_of(list(map(len, ids))), *places.T):
                yield from self._packing.objects(packed, self._columns)

    def finish(self) -> Iterator[Row]:
        """Yield what is left, rows padded; the stream is empty afterwards, and may be used again."""
        for packed in self._packer.finish():
            yield from self._packing.objects(packed, self._columns)


_PLACE: Final = ("file", "position", "start")


def _columns(row: Mapping[str, Any]) -> frozenset[str]:
    there = {name for name in ("loss_mask", "file", "position") if name in row}
    # One without the other does not say where a document is.
    return frozenset(there if {"file", "position"} <= there else there - {"file", "position"})


def _ids(row: Mapping[str, Any], field: str, number: int) -> Int32:
    try:
        given = np.asarray(row[field])
    except KeyError:
        raise BadRecordError(
            f"document {number}: has no {field!r}, only {', '.join(map(repr, sorted(row))) or 'nothing'}; "
            "tokenize documents before packing them",
            row=number,
        ) from None
    if not given.size:
        return np.empty(0, np.int32)
    if given.ndim != 1 or given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= LOSS:
        raise BadRecordError(
            f"document {number}: {field!r} has the shape {given.shape} and type {given.dtype}, expected one "
            f"dimension of integers from 0 to {LOSS - 1}",
            row=number,
        )
    return given.astype(np.int32)


def _blocks(documents: Iterable[GivenDocument]) -> Iterator[list[GivenDocument]]:
    """Yield documents a few at a time; never none."""
    block: list[GivenDocument] = []
    tokens = 0
    for document in documents:
        block.append(document)
        tokens += len(document[0])
        if tokens >= _TOGETHER:
            yield block
            block, tokens = [], 0
    if block:
        yield block


def _shuffled(rows: Iterable[Row], most: int, seed: int) -> Iterator[Row]:
    """Yield windows of `most` rows in another order each."""
    source = iter(rows)
    for number in count():
        window = list(islice(source, most))
        yield from (window[at] for at in shuffled(len(window), key_of(seed, number)).tolist())
        if len(window) < most:
            return


def pack_pre_tokenized(
    stream: Iterable[Mapping[str, Any] | Sequence[int]],
    seq_length: int,
    eos_token_id: int,
    batch_size: int = 1,
    shuffle: bool = False,
    buffer_factor: int = 10,
    *,
    pad_token_id: int | None = None,
    seed: int = 0,
) -> Iterator[Row]:
    """Pack documents that are tokens already into rows of one length; no token is lost.

    Args:
        stream: documents: sequences of ids, or mappings with ``input_ids`` or ``tokens`` (and ``loss_mask``, in all
            or none).
        seq_length: L, tokens of a row.
        eos_token_id: put after each document that does not end with it.
        batch_size, buffer_factor: with `shuffle`, rows are shuffled ``batch_size * buffer_factor`` at a time.
        pad_token_id: fills the last row; None: `eos_token_id`.
        seed: of the shuffle.

    Returns:
        An iterator of ``input_ids``, ``segment_ids`` (0 for padding) and ``attention_mask`` (0 for padding), int32[L]
        each, and ``loss_mask`` (bool[L]) where documents have one.
    """
    packing = PackedRows(
        seq_length=seq_length,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
        num_packers=batch_size,
        shuffle_packed=shuffle,
        shuffle_buffer_factor=buffer_factor,
        seed=seed,
    )
    return packing.pack(map(_document, stream))


def pack_constant_length(
    stream: Iterable[Any],
    tokenize_fn: Callable[[Any], Mapping[str, Any] | Sequence[int]],
    seq_length: int,
    eos_token_id: int,
    *shuffling: Any,
    **options: Any,
) -> Iterator[Row]:
    """Tokenize examples with `tokenize_fn` and pack what it returns.

    Args:
        shuffling, options: `batch_size`, `shuffle`, `buffer_factor` and the other arguments of
            :func:`pack_pre_tokenized`.
    """
    return pack_pre_tokenized(map(tokenize_fn, stream), seq_length, eos_token_id, *shuffling, **options)


def _document(given: Mapping[str, Any] | Sequence[int]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        return {"input_ids": given}
    kept = {name: given[name] for name in ("loss_mask",) if name in given}
    found = next((name for name in ("input_ids", "tokens") if name in given), None)
    return given if found is None else {"input_ids": given[found], **kept}

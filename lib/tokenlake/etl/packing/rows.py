"""Packing of rows that are Python objects, of one document each, to full rows.

Dicts go in, and dicts come out.

Plans and packers are those of a build. :class:`PackedRows` has all strategies;
:func:`pack_pre_tokenized` and :func:`pack_constant_length` are greedy packing with the
arguments of older callers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Final, TypeAlias, final

import numpy as np

from tokenlake.base.arrays import Int32, offsets_of
from tokenlake.base.checks import require_one_of
from tokenlake.config.resolved import ResolvedPack
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.packing.loss_marks import LOSS, learned, marked, plain
from tokenlake.etl.packing.packed import Packed
from tokenlake.etl.packing.packer import open_packer
from tokenlake.etl.packing.strategies import STRATEGIES
from tokenlake.runtime.mixing.random import key_of, shuffled

Row: TypeAlias = dict[str, Any]

_BLOCK_TOKENS: Final = 1 << 16
"""Tokens that are handed to the packer at a time."""


@final
@dataclass(frozen=True, slots=True)
class _Document:
    """One document, checked.

    Attributes:
        ids: Ids with EOS, marked with the loss mask if there is one, int32[n].
        file: Id of the file that it comes from.
        position: Position in the file.
        columns: Names of its columns beside the ids.
    """

    ids: Int32
    file: int
    position: int
    columns: frozenset[str]


@final
@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """Options for packing documents into rows of one length.

    Example:
        >>> from tokenlake import PackedRows
        >>> packing = PackedRows(seq_length=4, eos_token_id=2, pad_token_id=0)
        >>> rows = packing.pack([{"input_ids": [5, 6]}, {"input_ids": [7]}])
        >>> [row["input_ids"].tolist() for row in rows]
        [[5, 6, 2, 7], [2, 0, 0, 0]]

    Attributes:
        seq_length: Tokens of a row, L.
        eos_token_id: Id put after each document that does not end with it.
        pad_token_id: Id that fills the ends of rows; None: `eos_token_id`.
        strategy: ``greedy``, ``pool``, ``first_fit`` or ``best_fit``.
        num_packers: Number of rows that are open at a time, for ``pool``.
        max_segments: Largest number of pieces in a row; None: any number.
        window_tokens: Tokens inside which every strategy except ``greedy`` reorders
            documents. This many are read before the first row comes out.
        shuffle_packed: True to shuffle rows, ``shuffle_buffer_factor * num_packers`` of
            them at a time.
        shuffle_buffer_factor: Factor of the number of rows that are shuffled at a time.
        seed: Random seed of the shuffle.
        include_segment_ids: True if rows state the piece that each token belongs to.
        field: Name of the column with the documents' ids.
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
        # Options that count something. The number of pieces may be unbounded.
        for option in (
            "seq_length",
            "num_packers",
            "shuffle_buffer_factor",
            "window_tokens",
            "max_segments",
        ):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise ConfigError(
                    f"{option}: got {value}, expected at least 1",
                    field_path=option,
                    got=value,
                )

    def pack(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
        """Pack documents.

        Args:
            rows: Documents with the column `input_ids` (integers, any sequence). All of
                them or none may have `loss_mask` (one truth value per id), and `file`
                and `position` (where the document comes from).

        Yields:
            Rows that all have the same columns.

            - ``input_ids``: int32[L].
            - ``attention_mask``: 1 for ids and 0 for padding, int32[L].
            - ``segment_ids``: 1, 2, 3 ... for the pieces of the row and 0 for padding,
              int32[L], if they are included.
            - ``loss_mask``: bool[L], if documents have one; True for an EOS that was
              put after a document, False for padding.
            - ``segment_lengths`` and ``documents``, if documents state where they come
              from: the tokens of each piece, and its file, position and `start` (index
              of its first token in the document).

            Documents without ids are left out.

        Raises:
            BadRecordError: Ids are missing or are not integers of 32 bits, a mask has
                another length, or documents have different columns. The message names
                the document.
        """
        packed = self._packed(rows)
        if not self.shuffle_packed:
            return packed
        window_rows = self.shuffle_buffer_factor * self.num_packers
        return _shuffled(packed, window_rows, self.seed)

    def documents(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[_Document]:
        """Yield the documents of rows, checked, with EOS; those without ids are left out."""
        expected: frozenset[str] | None = None
        for number, row in enumerate(rows):
            columns = _columns(row)
            if expected is not None and columns != expected:
                raise self._other_columns(number, columns, expected)
            expected = columns
            token_ids = _ids(row, self.field, number)
            if not len(token_ids):
                continue
            # A document without a place is numbered, as if all came from one file.
            file_id = 0
            position = number
            if "file" in columns:
                file_id = int(row["file"])
                position = int(row["position"])
            finished_ids = self._finished_ids(row, token_ids, number)
            yield _Document(finished_ids, file_id, position, columns)

    def objects(self, packed: Packed, columns: frozenset[str]) -> Iterator[Row]:
        """Yield packed rows as objects.

        Args:
            packed: Rows.
            columns: Names of the documents' columns beside their ids.
        """
        # 1. Arrays of the whole row group. The ids carry their loss mask in a bit.
        input_ids = packed.input_ids
        loss_mask = None
        if "loss_mask" in columns:
            loss_mask = learned(input_ids)
            input_ids = plain(input_ids)
        segment_ids = packed.segment_ids
        attention_mask = (segment_ids > 0).astype(np.int32)
        # 2. Its rows. They are copied: a view would keep the whole group in memory.
        for number in range(packed.rows):
            tokens = slice(number * packed.width, (number + 1) * packed.width)
            row: Row = {
                "input_ids": input_ids[tokens].copy(),
                "attention_mask": attention_mask[tokens].copy(),
            }
            if self.include_segment_ids:
                row["segment_ids"] = segment_ids[tokens].copy()
            if loss_mask is not None:
                row["loss_mask"] = loss_mask[tokens].copy()
            # Documents that came with their places get them back, piece by piece.
            if "file" in columns:
                first_piece = int(packed.row_offsets[number])
                end_piece = int(packed.row_offsets[number + 1])
                pieces = slice(first_piece, end_piece)
                row["segment_lengths"] = packed.segment_lengths[pieces].copy()
                row["documents"] = _origins(packed, pieces)
            yield row

    def _packed(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
        open_rows = OpenRows(self)
        yield from open_rows.add(rows)
        yield from open_rows.finish()

    def _finished_ids(self, row: Mapping[str, Any], ids: Int32, number: int) -> Int32:
        """Return the ids of a document with its loss mask, and with EOS after them."""
        eos_id = np.int32(self.eos_token_id)
        lacks_eos = ids[-1] != eos_id
        if "loss_mask" in row:
            loss_mask = np.asarray(row["loss_mask"]).astype(np.bool_)
            if loss_mask.shape != ids.shape:
                raise BadRecordError(
                    f"document {number}: loss_mask has the shape {loss_mask.shape}, expected one value for each of "
                    f"the {len(ids)} ids",
                    row=number,
                )
            # The EOS that is put after a document is learned.
            ids = marked(ids, loss_mask)
            eos_id |= np.int32(LOSS)
        if not lacks_eos:
            return ids
        return np.append(ids, eos_id)

    def _other_columns(
        self, number: int, columns: frozenset[str], expected: frozenset[str]
    ) -> BadRecordError:
        return BadRecordError(
            f"document {number}: got the columns {_listed(columns)} beside {self.field!r}, expected "
            f"{_listed(expected)} as in the previous documents; give all documents the same columns",
            row=number,
        )


@final
class OpenRows:
    """Rows that are filled as documents come.

    Full rows come out, the others stay open.

    Args:
        packing: Options; rows are not shuffled.
        group_tokens: Least number of tokens that come out at a time.
    """

    def __init__(self, packing: PackedRows, group_tokens: int = _BLOCK_TOKENS) -> None:
        pack = ResolvedPack(
            width=packing.seq_length,
            strategy=packing.strategy,
            window_tokens=packing.window_tokens,
            num_packers=packing.num_packers,
            max_segments=packing.max_segments,
        )
        pad_id = packing.pad_token_id
        if pad_id is None:
            pad_id = packing.eos_token_id
        self._packing = packing
        self._columns: frozenset[str] = frozenset()
        self._packer = open_packer(pack, pad_id=pad_id, group_tokens=group_tokens)

    def add(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
        """Append documents and yield the rows that are full.

        Errors are those of :meth:`PackedRows.pack`.
        """
        for block in _blocks(self._packing.documents(rows)):
            # All documents have the same columns, which reading them has checked.
            self._columns = block[0].columns
            lengths: list[int] = []
            files: list[int] = []
            positions: list[int] = []
            for document in block:
                lengths.append(len(document.ids))
                files.append(document.file)
                positions.append(document.position)
            block_ids = np.concatenate([document.ids for document in block])
            rows_of_block = self._packer.add(
                block_ids,
                offsets_of(lengths),
                np.array(files, np.int64),
                np.array(positions, np.int64),
            )
            for packed in rows_of_block:
                yield from self._packing.objects(packed, self._columns)

    def finish(self) -> Iterator[Row]:
        """Yield the remaining rows, padded; they are empty then, and may be used again."""
        for packed in self._packer.finish():
            yield from self._packing.objects(packed, self._columns)


def _origins(packed: Packed, pieces: slice) -> list[dict[str, int]]:
    """Return the file, position and start of some pieces."""
    origins: list[dict[str, int]] = []
    files = packed.file[pieces].tolist()
    positions = packed.position[pieces].tolist()
    starts = packed.start[pieces].tolist()
    for file_id, position, start in zip(files, positions, starts, strict=True):
        origins.append({"file": file_id, "position": position, "start": start})
    return origins


def _columns(row: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of a document's columns beside its ids."""
    columns: set[str] = set()
    if "loss_mask" in row:
        columns.add("loss_mask")
    # One without the other does not state where a document is.
    if "file" in row and "position" in row:
        columns |= {"file", "position"}
    return frozenset(columns)


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _ids(row: Mapping[str, Any], field: str, number: int) -> Int32:
    """Return the ids of a document, checked."""
    try:
        token_ids = np.asarray(row[field])
    except KeyError:
        columns = ", ".join(map(repr, sorted(row))) or "nothing"
        raise BadRecordError(
            f"document {number}: has no {field!r}, only {columns}; tokenize documents before packing them",
            row=number,
        ) from None
    # An empty list has the type float64, which says nothing.
    if not token_ids.size:
        return np.empty(0, np.int32)
    is_integers = token_ids.ndim == 1 and token_ids.dtype.kind in "iu"
    if not is_integers or token_ids.min() < 0 or token_ids.max() >= LOSS:
        raise BadRecordError(
            f"document {number}: {field!r} has the shape {token_ids.shape} and type {token_ids.dtype}, expected one "
            f"dimension of integers from 0 to {LOSS - 1}",
            row=number,
        )
    return token_ids.astype(np.int32)


def _blocks(documents: Iterable[_Document]) -> Iterator[list[_Document]]:
    """Yield documents in blocks of at least one, which end after a number of tokens."""
    block: list[_Document] = []
    token_count = 0
    for document in documents:
        block.append(document)
        token_count += len(document.ids)
        if token_count >= _BLOCK_TOKENS:
            yield block
            block = []
            token_count = 0
    if block:
        yield block


def _shuffled(rows: Iterable[Row], window_rows: int, seed: int) -> Iterator[Row]:
    """Yield rows, each window of `window_rows` rows in a shuffled order."""
    remaining_rows = iter(rows)
    # Each window has an order of its own; only the last one may be short.
    for window_number in count():
        window = list(islice(remaining_rows, window_rows))
        window_order = shuffled(len(window), key_of(seed, window_number))
        for row_index in window_order.tolist():
            yield window[row_index]
        if len(window) < window_rows:
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

    Example:
        >>> from tokenlake import pack_pre_tokenized
        >>> rows = pack_pre_tokenized([[5, 6], [7]], seq_length=4, eos_token_id=2, pad_token_id=0)
        >>> [row["input_ids"].tolist() for row in rows]
        [[5, 6, 2, 7], [2, 0, 0, 0]]

    Args:
        stream: Documents: sequences of ids, or mappings with ``input_ids`` or
            ``tokens`` (and ``loss_mask``, in all of them or in none).
        seq_length: Tokens of a row, L.
        eos_token_id: Id put after each document that does not end with it.
        batch_size: Rows of a batch; with `shuffle`, ``batch_size * buffer_factor`` rows
            are shuffled at a time.
        shuffle: True to shuffle rows.
        buffer_factor: Batches that are shuffled at a time.
        pad_token_id: Id that fills the last row; None: `eos_token_id`.
        seed: Random seed of the shuffle.

    Returns:
        Rows with ``input_ids``, ``segment_ids`` (0 for padding) and ``attention_mask``
        (0 for padding), int32[L] each, and ``loss_mask`` (bool[L]) if documents have
        one.
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
    return packing.pack(map(_as_row, stream))


def pack_constant_length(
    stream: Iterable[Any],
    tokenize_fn: Callable[[Any], Mapping[str, Any] | Sequence[int]],
    seq_length: int,
    eos_token_id: int,
    *shuffling: Any,
    **options: Any,
) -> Iterator[Row]:
    """Tokenize examples with `tokenize_fn` and pack the results.

    Example:
        >>> from tokenlake import pack_constant_length
        >>> rows = pack_constant_length(["ab", "c"], lambda text: list(text.encode()), seq_length=3, eos_token_id=0)
        >>> [row["input_ids"].tolist() for row in rows]
        [[97, 98, 0], [99, 0, 0]]

    Args:
        stream: Examples.
        tokenize_fn: Function from an example to its ids, or to a mapping with
            ``input_ids`` or ``tokens``.
        seq_length: Tokens of a row, L.
        eos_token_id: Id put after each document that does not end with it.
        shuffling: `batch_size`, `shuffle` and `buffer_factor` of
            :func:`pack_pre_tokenized`, by position.
        options: Arguments of :func:`pack_pre_tokenized`, by name.

    Returns:
        Rows as of :func:`pack_pre_tokenized`.
    """
    return pack_pre_tokenized(
        map(tokenize_fn, stream), seq_length, eos_token_id, *shuffling, **options
    )


def _as_row(document: Mapping[str, Any] | Sequence[int]) -> Mapping[str, Any]:
    """Return a document of an older caller as a row with ``input_ids``.

    Its ``loss_mask`` stays, if it has one.
    """
    if not isinstance(document, Mapping):
        return {"input_ids": document}
    for ids_name in ("input_ids", "tokens"):
        if ids_name in document:
            row = {"input_ids": document[ids_name]}
            if "loss_mask" in document:
                row["loss_mask"] = document["loss_mask"]
            return row
    return document

"""Packing rows as Python objects: dicts of one document each go in, dicts of one full row each come out.

The same plans and packers as in a build; only the ends of the pipe are objects. :class:`PackedRows` has all strategies;
``pack_pre_tokenized`` and ``pack_constant_length`` are greedy packing with the arguments of older callers, and the
packers are fed one document at a time, for loops of your own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Final, final

import numpy as np

from tokenlake.arrays import Int32, offsets_of
from tokenlake.base.checks import require_one_of
from tokenlake.config.resolved import ResolvedPack
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.mixing.random import key_of, shuffled
from tokenlake.packing.packer import open_packer
from tokenlake.packing.segments import LOSS, Packed, learned, marked, plain
from tokenlake.packing.strategies import STRATEGIES

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


@final
@dataclass(frozen=True, slots=True, eq=False)
class PackedSequence:
    """One row of L tokens.

    Attributes:
        input_ids: int32[L].
        attention_mask: int32[L], 1 for tokens and 0 for padding.
        segment_ids: int32[L], 1, 2, 3 ... for the pieces of the row and 0 for padding; None where not asked for.
        source_ids: of each piece, what `add` was told; None where it was told nothing of any.
        num_segments: pieces of the row.
    """

    input_ids: Int32
    attention_mask: Int32
    segment_ids: Int32 | None = None
    source_ids: list[str | None] | None = None
    num_segments: int = 0

    def to_dict(self) -> dict[str, Int32]:
        """Return the arrays by their names."""
        named = {"input_ids": self.input_ids, "attention_mask": self.attention_mask}
        return named if self.segment_ids is None else {**named, "segment_ids": self.segment_ids}


@final
class _Sequences:
    """Documents with the names of their sources, through one stream of rows."""

    def __init__(self, **packing: Any) -> None:
        self.packing: Final = PackedRows(**packing)
        # A group of one row: it comes out as soon as it is full.
        self._stream = OpenRows(self.packing, group_tokens=self.packing.seq_length)
        self._sources: dict[int, tuple[str, int]] = {}  # document -> name, tokens that have not come out
        self._added = 0

    def add(self, tokens: Sequence[int], source_id: str | None) -> Iterator[PackedSequence]:
        number, self._added = self._added, self._added + 1
        if source_id is not None:
            lacks = len(tokens) > 0 and tokens[-1] != self.packing.eos_token_id
            self._sources[number] = source_id, len(tokens) + lacks
        return self._made(self._stream.add([{"input_ids": tokens, "file": 0, "position": number}]))

    def finish(self) -> Iterator[PackedSequence]:
        return self._made(self._stream.finish())

    def _made(self, rows: Iterable[Row]) -> Iterator[PackedSequence]:
        for row in rows:
            lengths: list[int] = row["segment_lengths"].tolist()
            sources = list[str | None]()
            for piece, length in zip(row["documents"], lengths, strict=True):
                number = piece["position"]
                source, left = self._sources.pop(number, (None, 0))
                if source is not None and left > length:
                    self._sources[number] = source, left - length
                sources.append(source)
            yield PackedSequence(
                row["input_ids"],
                (np.arange(len(row["input_ids"])) < sum(lengths)).astype(np.int32),
                row.get("segment_ids"),
                sources if any(source is not None for source in sources) else None,
                len(lengths),
            )


@final
class GreedyPacker:
    """Documents end to end, cut into rows of `seq_length`; no token is lost.

    ::

        for tokens in documents:
            if (row := packer.add(tokens)) is not None: ...
        last = packer.flush_final()
    """

    def __init__(
        self, seq_length: int, eos_token_id: int, pad_token_id: int = 0, include_segment_ids: bool = True
    ) -> None:
        """Open a row.

        Args:
            seq_length: L, tokens of a row.
            eos_token_id: put after each document that does not end with it.
            pad_token_id: fills the last row.
            include_segment_ids: whether rows say which piece each token belongs to.
        """
        ids = {"eos_token_id": eos_token_id, "pad_token_id": pad_token_id}
        self._rows = _Sequences(seq_length=seq_length, include_segment_ids=include_segment_ids, **ids)

    def add(self, tokens: Sequence[int], source_id: str | None = None) -> PackedSequence | None:
        """Append a document; return the row that it fills up, None while there is room.

        Raises:
            BadRecordError: it is longer than a row and could fill several; the other packers return lists.
        """
        packing = self._rows.packing
        whole = len(tokens) + (len(tokens) > 0 and tokens[-1] != packing.eos_token_id)
        if whole > packing.seq_length:
            why = f"a document of {whole} tokens (with EOS) fills several rows of {packing.seq_length}"
            how = "cut it before, or use PoolPacker or PackedRows(...).pack, which give any number of rows"
            raise BadRecordError(f"{why}, and GreedyPacker.add returns one; {how}", reason="too_long")
        return next(iter(list(self._rows.add(tokens, source_id))), None)

    def flush_final(self) -> PackedSequence | None:
        """Return the open row, padded; None where it is empty."""
        return next(iter(list(self._rows.finish())), None)


@final
class PoolPacker:
    """Some rows stand open, and each document goes to the one that it fills best; no token is lost.

    Documents are placed a window at a time: rows come when one is full, and with :meth:`flush_all`.
    """

    def __init__(
        self,
        seq_length: int,
        eos_token_id: int,
        pad_token_id: int = 0,
        num_packers: int = 4,
        include_segment_ids: bool = True,
        *,
        window_tokens: int = 1 << 20,
    ) -> None:
        """Open the rows.

        Args:
            num_packers: how many stand open.
            window_tokens: tokens that are held before they are placed; at its end open rows are padded.

        The other arguments are those of :class:`GreedyPacker`.
        """
        ids = {"eos_token_id": eos_token_id, "pad_token_id": pad_token_id}
        self._rows = _Sequences(
            seq_length=seq_length,
            strategy="pool",
            num_packers=num_packers,
            include_segment_ids=include_segment_ids,
            window_tokens=max(window_tokens, seq_length),
            **ids,
        )

    def add(self, tokens: Sequence[int], source_id: str | None = None) -> list[PackedSequence]:
        """Append a document; return the rows that are full."""
        return list(self._rows.add(tokens, source_id))

    def flush_all(self) -> list[PackedSequence]:
        """Return the rows that are left, padded."""
        return list(self._rows.finish())


@final
class FirstFitPacker:
    """Each document goes to the first row with room for it, and is cut only where it is longer than a row."""

    def __init__(
        self,
        seq_length: int,
        eos_token_id: int,
        pad_token_id: int = 0,
        include_segment_ids: bool = True,
        buffer_size: int = 1000,
    ) -> None:
        """Hold no document yet.

        Args:
            buffer_size: documents that are held before they are placed together.

        The other arguments are those of :class:`GreedyPacker`.
        """
        if buffer_size < 1:
            raise ConfigError(f"buffer_size: got {buffer_size}, expected at least 1 document")
        ids = {"eos_token_id": eos_token_id, "pad_token_id": pad_token_id}
        self._most, self._held = buffer_size, 0
        self._rows = _Sequences(
            seq_length=seq_length, strategy="first_fit", include_segment_ids=include_segment_ids, **ids
        )

    def add(self, tokens: Sequence[int], source_id: str | None = None) -> list[PackedSequence]:
        """Append a document; return the rows of all that are held where there are `buffer_size` of them."""
        made = list(self._rows.add(tokens, source_id))
        self._held += 1
        return made if self._held < self._most else made + self.flush_all()

    def flush_all(self) -> list[PackedSequence]:
        """Return the rows of the documents that are held, padded."""
        self._held = 0
        return list(self._rows.finish())

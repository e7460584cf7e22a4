"""Rows to tokens by the parts that builds are made of: renderer, encoder, fitting, BOS and EOS, in this order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.config.resolved import ResolvedSource
from tokenlake.config.tokenizer import TokenizerConfig
from tokenlake.errors import BadRecordError
from tokenlake.faults import Fault
from tokenlake.packing.marks import learned, plain
from tokenlake.pipeline.rowencoding import RowEncoding
from tokenlake.pipeline.settling import settled
from tokenlake.prefetching import Prefetched
from tokenlake.ragged import Ragged
from tokenlake.rows import Rows
from tokenlake.sources.sharded.base import Numbered, ShardedDataSource
from tokenlake.sources.sharded.fields import Row
from tokenlake.tokenizers.manager import LoadedTokenizer, with_masks
from tokenlake.transforms.chat.renderer import without_nulls
from tokenlake.transforms.renderers import open_renderer
from tokenlake.transforms.rendering import Renderer

Int64 = npt.NDArray[np.int64]
Batch = list[tuple[int, Row]]
_Batched = tuple[Batch, Exception | None]
_Tokens = tuple[list[tuple[int, Row]], Exception | None]

_FIRST_ROWS: Final = 16  # of the first batch: the first row should come soon
_BATCH_TEXT: Final = 4 << 20  # characters after which a batch is full
_JSON: Final = ("json", "jsonl")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What rows of tokens are to hold, and how many of them are made together.

    Attributes:
        options: of the tokenizer: padding, and whether there is an ``attention_mask``.
        masked: whether rows have a ``loss_mask`` also where they are plain texts, for which it is true but for BOS.
        keep: fields that come out beside the tokens; None: all but those of `remove`.
        remove: fields that do not come out.
        batch_size: rows that are tokenized together, at most; with padding "longest" exactly those whose numbers,
            divided by it, are the same.
        workers: threads that tokenize batches side by side, ahead of who draws rows, at most as many batches; 1: none,
            rows are tokenized when they are drawn.
    """

    options: TokenizerConfig
    masked: bool
    keep: tuple[str, ...] | None
    remove: frozenset[str]
    batch_size: int
    workers: int


@final
class RowTokens:
    """How the rows of a source become tokens, as a build of the same configuration makes them.

    A row may come out as several (``long_documents: split``), all with its number, or as none: where it is empty, or
    too long (``drop``), or bad and the policy is ``quarantine``.
    """

    def __init__(
        self,
        rows: ShardedDataSource,
        source: ResolvedSource,
        tokenizer: LoadedTokenizer,
        encoding: RowEncoding,
        wanted: Wanted,
    ) -> None:
        self._rows, self._source, self._wanted = rows, source, wanted
        self.tokenizer = tokenizer
        self._encoding = encoding
        self._opened: tuple[ResolvedSource, Renderer] | None = None

    @property
    def aligned(self) -> bool:
        return self._wanted.options.padding == "longest"

    @property
    def every_row(self) -> bool:
        return False

    @property
    def batch_size(self) -> int:
        return self._wanted.batch_size

    def tokenized(self, rows: Numbered, shard: str) -> Numbered:
        """Yield the rows made of `rows`; those before one that cannot be used come out before the error does.

        Raises:
            BadRecordError: a row cannot be used, and the policy is ``fail``; names shard and row.
        """
        batches, workers = _batched(rows, self.batch_size, aligned=self.aligned), self._wanted.workers
        make = partial(self._tokens, shard=shard)
        yield from _drawn(map(make, islice(batches, 1)))  # it decides how the others are read
        if workers == 1:
            yield from _drawn(map(make, batches))
            return
        with closing(Prefetched(batches, make, workers=workers, ahead=workers)) as made:
            yield from _drawn(made)

    def _tokens(self, rows: _Batched, shard: str) -> _Tokens:
        """Return the rows made of a batch, and what stopped them, if anything did."""
        batch, error = rows
        found: list[tuple[int, Row]] = []
        try:
            found.extend(self._made(batch, shard) if batch else ())
        except Exception as refused:
            error = refused
        return found, error

    def _made(self, batch: Batch, shard: str) -> Numbered:
        source, renderer = self._open([row for _, row in batch])
        objects = [self._lean(source, row, shard) for _, row in batch]
        rendered = renderer.render(Rows(objects=objects))
        masked = self._wanted.masked or source.texts.masked
        encoded = self._encoding.encode(source, rendered, renderer, masked=masked)
        bad = self._missing(objects) | dict(rendered.bad)
        bad |= {int(rendered.origin[place]): fault for place, fault in encoded.bad.items()}
        if bad and source.on_bad_record == "fail":
            first = min(bad)
            yield from self._made(batch[:first], shard) if first else ()
            raise _refused(shard, batch[first][0], bad[first])
        good = ~np.isin(rendered.origin[encoded.origin], list(bad))
        origin = rendered.origin[encoded.origin[good]]
        yield from self._rows_of(batch, encoded.documents.select(good), origin, masked=masked)

    def _rows_of(self, batch: Batch, documents: Ragged, origin: Int64, *, masked: bool) -> Numbered:
        if not len(documents):
            return
        options = self._wanted.options
        columns = with_masks(Ragged(plain(documents.ids), documents.offsets), self.tokenizer, options)
        if masked:
            columns["loss_mask"] = self._loss(documents, columns["input_ids"])
        names = list(columns)
        for place, *values in zip(origin.tolist(), *columns.values(), strict=True):
            number, row = batch[place]
            yield number, {**self._kept(row), **dict(zip(names, values, strict=True))}

    def _loss(self, documents: Ragged, ids: Any) -> Any:
        """Return what bears loss, of the same shape as the rows of ids: bool."""
        left = self.tokenizer.pads_left(self._wanted.options)
        rows = [np.zeros(len(row), np.bool_) for row in ids]
        for row, marks in zip(rows, Ragged(documents.ids, documents.offsets).rows(), strict=True):
            begin = len(row) - len(marks) if left else 0
            row[begin : begin + len(marks)] = learned(marks)
        return rows

    def _open(self, first: Sequence[Row]) -> tuple[ResolvedSource, Renderer]:
        """Return the source and its renderer, which the first rows decide."""
        if self._opened is None:
            files = self.tokenizer.files
            source = settled(self._source, first, files, self._encoding.eos_id)
            mode = source.tokenizer.special_tokens_in_text
            self._opened = source, open_renderer(source.texts, source.content_field, files, mode)
        return self._opened

    def _lean(self, source: ResolvedSource, row: Row, shard: str) -> Row:
        """Return a row whose conversation has no nulls, unless it is of JSON: elsewhere every object has every key."""
        chat = source.texts.chat
        if chat is None or self._rows.get_shard_info(shard).format in _JSON:
            return row
        fields = {chat.messages_field, chat.tools_field} & row.keys()
        return row | {name: without_nulls(row[name]) for name in row if name in fields}

    def _missing(self, rows: Sequence[Row]) -> dict[int, Fault]:
        """Return which rows lack a field that is to be kept."""
        found: dict[int, Fault] = {}
        for place, row in enumerate(rows if self._wanted.keep else ()):
            missing = [name for name in self._wanted.keep or () if name not in row]
            if missing:
                has = ", ".join(map(repr, row)) or "no fields"
                detail = f"additional_fields: the row has no field {missing[0]!r}; it has {has}"
                found[place] = Fault("missing_field", detail)
        return found

    def _kept(self, row: Row) -> Row:
        if self._wanted.keep is None:
            return {name: value for name, value in row.items() if name not in self._wanted.remove}
        return {name: row[name] for name in self._wanted.keep if name not in self._wanted.remove}


def _drawn(made: Iterator[_Tokens]) -> Numbered:
    for rows, error in made:
        yield from rows
        if error is not None:
            raise error


def _refused(shard: str, number: int, fault: Fault) -> BadRecordError:
    return BadRecordError(
        f"shard {shard!r}, row {number}: {fault.detail}", reason=fault.reason, shard=shard, row=number
    )


def _batched(rows: Numbered, batch_size: int, *, aligned: bool) -> Iterator[_Batched]:
    """Yield rows in batches, and what stopped them, if anything did, with the rows before it."""
    batch: Batch = []
    size, most = 0, batch_size if aligned else min(_FIRST_ROWS, batch_size)
    try:
        for number, row in rows:
            last = batch[-1][0] if batch else number
            full = (
                number // batch_size != last // batch_size
                if aligned
                else len(batch) >= most or size >= _BATCH_TEXT
            )
            if batch and full:
                yield batch, None
                batch, size, most = [], 0, min(most * 4, batch_size)
            batch.append((number, row))
            size += _text_size(row)
    except Exception as error:
        yield batch, error
        return
    yield batch, None


def _text_size(value: Any) -> int:
    """Return about how many characters a row holds."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_text_size, value.values()))
    return sum(map(_text_size, value)) if isinstance(value, list) else 1

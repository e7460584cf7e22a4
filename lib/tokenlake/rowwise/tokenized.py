"""Rows to tokens: the stages of a build (renderer, encoder, length policy, BOS and EOS) over batches of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Final, Self, final

import numpy as np

from tokenlake.base.arrays import Int64, Ragged, offsets_of
from tokenlake.base.checks import expected, whole_number
from tokenlake.base.threads import Prefetched
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import resolve_source
from tokenlake.config.resolved import ResolvedSource
from tokenlake.config.stages import TokenizerConfig
from tokenlake.errors import ConfigError
from tokenlake.etl.packing.loss_marks import LOSS, learned, plain
from tokenlake.etl.plan.source import settle
from tokenlake.etl.sources.bad_records import Fault
from tokenlake.etl.sources.rows import Rows
from tokenlake.etl.text.chat_messages import without_nulls
from tokenlake.etl.text.cut import CutCount, CutCounter
from tokenlake.etl.text.renderer import Rendered, Renderer
from tokenlake.etl.text.steps import open_renderer
from tokenlake.etl.tokenizers.encoder import Encoder
from tokenlake.etl.tokenizers.gate import choose_encoder
from tokenlake.etl.tokenizers.manager import LoadedTokenizer, TokenizerManager, with_masks
from tokenlake.etl.unit.decoded_rows import with_text
from tokenlake.etl.unit.encoding import DocumentEncoder
from tokenlake.etl.unit.finish import Finish
from tokenlake.rowwise.combine import IterableShardedSource
from tokenlake.rowwise.shards import Numbered, Row, bad_row, fields_in
from tokenlake.rowwise.source import DerivedSource, ShardedDataSource, TransformedShardedSource

Callback = Callable[[Row], Row | None]
RowBatch = list[tuple[int, Row]]
"""Rows that are tokenized together, each with its number."""

_FIRST_ROWS: Final = 16  # of the first batch: the first row should come soon
_BATCH_TEXT: Final = 4 << 20  # characters after which a batch is full
_JSON: Final = ("json", "jsonl")
_SPELLED: Final = Fault("special_token_in_text", "the text spells out a special token of the tokenizer")
_CUT: Final = "long_documents_truncate"
"""What the encoder calls documents that it cut."""
_DONE_BEFORE: Final = {"format_callback": None, "format_fields": None, "transforms": None}
"""What happens to rows when their source is opened."""


@final
class TokenizedShardedSource(DerivedSource):
    """Another source's shards with every row tokenized; rows keep their numbers, so seeking is the same.

    A row is changed by `format_callback`, its fields are renamed, its text is tokenized, and the fields asked for are
    kept: ``{"input_ids": [...], "attention_mask": [...], ...}``. Rows are tokenized some at a time, at the speed of the
    engine; their ids are those of a build. Where the first rows hold messages and no text, rows are rendered by the
    tokenizer's chat template, which puts BOS itself.
    """

    def __init__(
        self,
        source: ShardedDataSource,
        tokenizer: Any = None,
        tokenizer_config: TokenizerConfig | None = None,
        content_field: str = "text",
        additional_fields: Sequence[str] | None = None,
        format_callback: Callback | None = None,
        format_fields: Mapping[str, str] | None = None,
        *,
        remove_columns: Sequence[str] | None = None,
        batch_size: int = 1000,
        arrays: bool = False,
    ) -> None:
        """Tokenize `source`.

        Args:
            source: rows with text, or with messages.
            tokenizer: whatever :meth:`TokenizerManager.get_tokenizer` takes; None: what `tokenizer_config` names.
            tokenizer_config: how to cut, pad and surround texts; None: the defaults. `truncation=None` cuts.
            content_field: the field of the text, or of the messages.
            additional_fields: fields to keep beside the tokens; a row that lacks one is an error.
            format_callback: a function of a row, applied first; None as its result leaves the row out.
            format_fields: fields to rename after it, {old: new}.
            remove_columns: keep all other fields (of `additional_fields`, where that is given).
            batch_size: rows that are tokenized together, at most. With padding "longest" rows are as long as the
                longest of their batch, whose first number is a multiple of `batch_size`.
            arrays: give int32 arrays instead of lists.

        Raises:
            ConfigError: an argument is not what is allowed.
            SourceNotFoundError, TokenizerError: the tokenizer cannot be loaded.
        """
        if tokenizer is None and tokenizer_config is None:
            raise ConfigError("tokenizer: missing; give a Hub id, a path, or a tokenizer_config")
        if format_callback is not None and not callable(format_callback):
            raise expected("format_callback", format_callback, "a function of a row")
        loaded = TokenizerManager().get_tokenizer(tokenizer_config if tokenizer is None else tokenizer)
        if tokenizer_config is not None:
            loaded = LoadedTokenizer(loaded.files, tokenizer_config)
        dataset = DatasetConfig(data_files="rows", content_field=content_field, tokenizer=loaded.config)
        texts = texts_of(PipelineConfig(datasets=(dataset,)), dataset, "rows")
        left_open = ("content_field", *texts.texts.left_open)
        how = RowTokens(
            source=replace(texts, texts=replace(texts.texts, left_open=left_open)),
            tokenizer=loaded,
            keep=_names("additional_fields", additional_fields),
            remove=_names("remove_columns", remove_columns),
            loss=False,
            batch_size=whole_number("batch_size", batch_size, 1),
            lists=not arrays,
            one_each=True,
        )
        if format_callback is not None:
            source = TransformedShardedSource(source, format_callback, what="format_callback")
        self._source = source.rename_fields(format_fields) if format_fields else source
        self._decide: Callable[[], RowTokens] = lambda: how

    @classmethod
    def deciding(cls, source: ShardedDataSource, decide: Callable[[], RowTokens]) -> Self:
        """Return a source that asks how to tokenize whenever a shard is opened."""
        made = cls.__new__(cls)
        made._source, made._decide = source, decide
        return made

    @property
    def truncated(self) -> CutCount:
        """What `max_length` cut from the rows that were drawn so far."""
        return self._decide().cut.count

    @property
    def every_row(self) -> bool:
        return self._decide().one_each and self._source.every_row

    def _rows(self, index: int, row: int) -> Numbered:
        how, name = self._decide(), self.shard_names[index]
        # Rows that are padded to the longest of their batch are read from the first row of it on.
        first = row - row % how.batch_size if how.aligned else row
        if first < row:
            next(self._source.open_shard_numbered(name, row), None)  # an error, if `row` is beyond the end
        rows = self._source.open_shard_numbered(name, first)
        made = how.tokenized(rows, name, lambda: self.get_shard_info(name).format in _JSON)
        return (pair for pair in made if pair[0] >= row) if first < row else made

    def __repr__(self) -> str:
        return f"TokenizedShardedSource({self._source!r}, tokenizer={self._decide().tokenizer.files.name!r})"


def batched_tokenize_iterator(
    source: ShardedDataSource | Iterable[Row],
    tokenizer: Any = None,
    tokenizer_config: TokenizerConfig | None = None,
    content_field: str = "text",
    batch_size: int = 1000,
    *fields: Any,
    **options: Any,
) -> Iterator[Row]:
    """Return the tokens of rows, which come from a source or any iterable.

    Args:
        fields, options: `additional_fields`, `format_callback`, `format_fields` and the other arguments of
            :class:`TokenizedShardedSource`.

    Raises:
        as :class:`TokenizedShardedSource`; BadRecordError while rows are drawn: one has no text.
    """
    given = (IterableShardedSource(source), tokenizer, tokenizer_config, content_field, *fields)
    return iter(TokenizedShardedSource(*given, batch_size=batch_size, **options))


@final
@dataclass(eq=False, kw_only=True)
class RowTokens:
    """How the rows of a source become tokens, as a build of the same configuration makes them.

    A row may come out as several (``long_documents: split``), all with its number, or as none: where it is empty, or
    too long (``drop``), or bad and the policy is ``quarantine``.

    Attributes:
        source: as :func:`texts_of` returns it; the first rows decide what it leaves open.
        tokenizer: its configuration says how rows are padded, and whether there is an ``attention_mask``.
        keep: fields that come out beside the tokens; None: all but those of `remove`, and none without `remove`.
        remove: fields that do not come out.
        loss: whether rows have a ``loss_mask``, which of plain texts is true but for BOS; None: only where a part of
            a document's tokens bears loss.
        batch_size: rows that are tokenized together, at most; with padding "longest" exactly those whose numbers,
            divided by it, are the same.
        workers: threads that tokenize batches side by side, ahead of who draws rows, at most as many batches; 1: none,
            rows are tokenized when they are drawn.
        lists: lists instead of int32 arrays.
        eos_id: what ends a packed document; None if there is none.
        packing: whether documents that spell their own special tokens end with EOS in any case.
        one_each: exactly one row comes out of each, be it without ids; not with policies that drop or split rows.
    """

    source: ResolvedSource
    tokenizer: LoadedTokenizer
    keep: tuple[str, ...] | None
    remove: tuple[str, ...] | None
    loss: bool | None
    batch_size: int
    workers: int = 1
    lists: bool = False
    eos_id: int | None = None
    packing: bool = False
    one_each: bool = False
    _opened: tuple[ResolvedSource, Renderer] | None = None

    def __post_init__(self) -> None:
        self._encoders: dict[tuple[str, bool], Encoder] = {}
        self.cut = CutCounter(self.source.name, self.source.tokenizer.max_length)

    @property
    def aligned(self) -> bool:
        """Whether a row's tokens depend on the rows beside it, so that batches must lie where they always do."""
        return self.tokenizer.config.padding == "longest"

    def tokenized(self, rows: Numbered, shard: str, is_json: Callable[[], bool]) -> Numbered:
        """Yield the rows made of `rows`; those before one that cannot be used come out before the error does.

        Args:
            is_json: whether a row lacks the keys that it does not need; elsewhere every object has every key.

        Raises:
            BadRecordError: a row cannot be used, and the policy is ``fail``; names shard and row.
        """
        batches, workers = _batched(rows, self.batch_size, aligned=self.aligned), self.workers

        def make(batch: RowBatch) -> tuple[RowBatch, Exception | None]:
            """Return the rows made of a batch, and what stopped them, if anything did."""
            found: RowBatch = []
            try:
                found.extend(self._made(batch, shard, is_json))
            except Exception as error:
                return found, error
            return found, None

        first = map(make, islice(batches, 1))  # it decides how the others are read
        others = Prefetched(batches, make, workers=workers, ahead=workers if workers > 1 else 0)
        with closing(others):
            for made, error in chain(first, others):
                yield from map(self._listed, made) if self.lists else made
                if error is not None:
                    raise error
                self.cut.judge(is_end=False)
        self.cut.judge(is_end=True)

    def _made(self, batch: RowBatch, shard: str, is_json: Callable[[], bool]) -> Numbered:
        objects = [row for _, row in batch]
        source, renderer = self._open(objects)
        if (chat := source.texts.chat) is not None and not is_json():
            fields = {chat.messages_field, chat.tools_field}
            objects = [row | {key: without_nulls(row[key]) for key in row.keys() & fields} for row in objects]
        rendered = renderer.render(with_text(Rows(objects=objects), renderer.columns))
        loss = source.texts.masked if self.loss is None else self.loss
        documents, origin, bad = self._encoded(source, rendered, renderer, marks=loss)
        bad |= self._missing(objects) | dict(rendered.bad)
        if bad and source.on_bad_record == "fail":
            first = min(bad)
            yield from self._made(batch[:first], shard, is_json) if first else ()
            reason, told = bad[first].reason, bad[first].detail
            told += f"; it has {fields_in(objects[first])}" if reason == "null_text" else ""
            raise bad_row(shard, batch[first][0], told, reason=reason)
        good = ~np.isin(origin, list(bad))
        yield from self._rows_of(batch, documents.select(good), origin[good], loss=loss)

    def _open(self, first: list[Row]) -> tuple[ResolvedSource, Renderer]:
        """Return the source and its renderer, which the first rows decide."""
        if self._opened is None:
            files = self.tokenizer.files
            source, _ = settle(self.source, (), files, self.eos_id, Rows(objects=first))
            if self.one_each and source.texts.chat is not None:  # then no row is left out for lack of loss
                chat = replace(source.texts.chat, loss="all")
                source = replace(source, texts=replace(source.texts, chat=chat))
            mode = source.tokenizer.special_tokens_in_text
            self._opened = source, open_renderer(source.texts, source.content_field, files, mode)
        return self._opened

    def _encoded(
        self, source: ResolvedSource, rendered: Rendered, renderer: Renderer, *, marks: bool
    ) -> tuple[Ragged, Int64, dict[int, Fault]]:
        """Return the documents of texts, of which row each is made, and which rows cannot be used.

        Raises:
            ConfigError: `max_length` leaves no room for a text.
            EngineMismatchError, TokenizerError: as :meth:`Encoder.encode`.
        """
        settings, spans, files = source.tokenizer, rendered.spans, self.tokenizer.files
        mode = "encode" if renderer.control_tokens else settings.special_tokens_in_text
        key, special = (mode, spans is not None), settings.add_special_tokens
        if key not in self._encoders:
            # Nobody knows how many rows follow; the first batch is a lower bound.
            asked: dict[str, Any] = {
                "add_special_tokens": special,
                "places": spans is not None,
                "size": rendered.text.nbytes,
            }
            _, self._encoders[key] = choose_encoder(files, settings.engine, mode, **asked)
        encoder, finish = self._encoders[key], None
        if spans is not None:
            eos, around = -1 if self.eos_id is None else self.eos_id, (encoder.prefix, encoder.suffix)
            finish = Finish.around(source.texts.prompt, eos, *around, packed=self.packing)
        count = len((finish or encoder).prefix) + len((finish or encoder).suffix)
        if settings.long_documents != "keep" and settings.max_length <= count:
            how = "make it larger, or use add_special_tokens: false"
            why = f"{settings.max_length} leaves no room beside the {count} special tokens of {files.name!r}"
            raise ConfigError(f"max_length: {why}; {how}")
        masked, settings = marks or spans is not None, replace(settings, special_tokens_in_text=mode)
        made = DocumentEncoder(settings, encoder, finish, masked=masked).encode(rendered.text, spans)
        bad = {int(rendered.origin[row]): _SPELLED for row in made.refused}
        cut = made.touched.get(_CUT, 0) or sum(len(rows) for rows in made.left_out.values())
        self.cut.add(CutCount(len(rendered.text), cut, made.tokens, sum(made.dropped.values())))
        documents, origin = Ragged(made.ids, made.offsets), made.origin
        if self.one_each:  # also a text without ids is a document
            sizes = np.zeros(len(rendered.text), np.int64)
            sizes[origin] = np.diff(documents.offsets)
            documents = Ragged(documents.ids, documents.offsets[0] + offsets_of(sizes))
            origin = np.arange(len(sizes))
        if finish is None:
            # What the post-processor puts around a document; its end is learned as the text is.
            suffix = [token | LOSS for token in encoder.suffix] if masked else encoder.suffix
            ends = [Ragged.alike(each, len(documents)) for each in (encoder.prefix, suffix)]
            documents = Ragged.joined([ends[0], documents, ends[1]])
        return documents, rendered.origin[origin], bad

    def _rows_of(self, batch: RowBatch, documents: Ragged, origin: Int64, *, loss: bool) -> Numbered:
        if not len(documents):
            return
        ids = Ragged(plain(documents.ids), documents.offsets)
        columns = with_masks(ids, self.tokenizer, self.tokenizer.config)
        if loss:
            left = self.tokenizer.pads_left(self.tokenizer.config)
            columns["loss_mask"] = masks = [np.zeros(len(row), np.bool_) for row in columns["input_ids"]]
            for mask, marks in zip(masks, documents.rows(), strict=True):
                begin = len(mask) - len(marks) if left else 0
                mask[begin : begin + len(marks)] = learned(marks)
        names, removed = list(columns), self.remove or ()
        keeps = self.keep is not None or self.remove is not None
        for place, *cells in zip(origin.tolist(), *columns.values(), strict=True):
            number, row = batch[place]
            tokens = dict(zip(names, cells, strict=True))
            if keeps:
                fields = row if self.keep is None else self.keep
                tokens = {**{name: row[name] for name in fields if name not in removed}, **tokens}
            yield number, tokens

    def _missing(self, rows: Sequence[Row]) -> dict[int, Fault]:
        """Return which rows lack a field that is to be kept."""
        found: dict[int, Fault] = {}
        for place, row in enumerate(rows if self.keep else ()):
            if missing := [name for name in self.keep or () if name not in row]:
                why = f"additional_fields: the row has no field {missing[0]!r}; it has {fields_in(row)}"
                found[place] = Fault("missing_field", why)
        return found

    def _listed(self, numbered: tuple[int, Row]) -> tuple[int, Row]:
        """Return a row with lists: a new one, so that the numbers of a batch do not all lie in memory at a time."""
        number, row = numbered
        made = {**row, "input_ids": row["input_ids"].tolist()}
        if (mask := row.get("attention_mask")) is not None:
            padded = bool(self.tokenizer.config.padding)
            made["attention_mask"] = mask.tolist() if padded else [1] * len(row["input_ids"])
        if "loss_mask" in row:
            made["loss_mask"] = row["loss_mask"].tolist()
        return number, made


def texts_of(config: PipelineConfig, dataset: DatasetConfig | None, name: str) -> ResolvedSource:
    """Return how a source's rows become documents, as a build of the configuration would make them.

    Args:
        dataset: None for a source that a stage made: it has the pipeline's tokenizer, and no options of its own.
        name: of the source.
    """
    if dataset is None:
        dataset = DatasetConfig(data_files=name)
    return replace(resolve_source(config, dataset.model_copy(update=_DONE_BEFORE)), name=name)


def _batched(rows: Numbered, most: int, *, aligned: bool) -> Iterator[RowBatch]:
    """Yield rows in batches; whatever stops them is raised behind the rows before it."""
    batch: RowBatch = []
    size, room = 0, most if aligned else min(_FIRST_ROWS, most)
    try:
        for number, row in rows:
            full = len(batch) >= room or size >= _BATCH_TEXT
            if aligned and batch:
                full = number // most != batch[-1][0] // most
            if batch and full:
                yield batch
                batch, size, room = [], 0, min(room * 4, most)
            batch.append((number, row))
            size += _text_size(row)
    except Exception:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _text_size(value: Any) -> int:
    """Return about how many characters a row holds."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_text_size, value.values()))
    return sum(map(_text_size, value)) if isinstance(value, list) else 1


def _names(what: str, names: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(names, str):
        raise expected(what, names, "a list of names, such as ['text']")
    return None if names is None else tuple(names)

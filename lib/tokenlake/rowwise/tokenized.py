"""Tokens of rows, made by the steps of a build.

They are renderer, encoder, length policy, BOS and EOS.

A batch of rows becomes tokens in these steps:

1. Render: each row becomes a text, by its content field, a prompt or a chat template.
2. Encode: texts become documents of ids, by the length policy one document, several or
   none per text.
3. Frame: BOS and EOS are put around the documents.
4. Rows: each document becomes a row with the number of its source row, and the fields
   that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt

from tokenlake.base.arrays import Int64, Ragged, offsets_of
from tokenlake.base.checks import expected, whole_number
from tokenlake.base.threads import Prefetched
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import resolve_source
from tokenlake.config.resolved import ResolvedSource, ResolvedTokenizer
from tokenlake.config.stages import SpecialTokensInText, TokenizerConfig
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
from tokenlake.etl.tokenizers.manager import (
    LoadedTokenizer,
    TokenizerManager,
    with_masks,
)
from tokenlake.etl.unit.decoded_rows import with_text
from tokenlake.etl.unit.encoding import DocumentEncoder
from tokenlake.etl.unit.finish import Finish
from tokenlake.rowwise.combine import IterableShardedSource
from tokenlake.rowwise.shards import Numbered, Row, bad_row, fields_in
from tokenlake.rowwise.source import (
    DerivedSource,
    ShardedDataSource,
    TransformedShardedSource,
)

Callback = Callable[[Row], Row | None]
RowBatch = list[tuple[int, Row]]
"""Rows that are tokenized together, each with its number."""

# Rows of the first batch, which is small so that the first row comes soon.
_FIRST_ROWS: Final = 16
_BATCH_TEXT: Final = 4 << 20  # characters after which a batch is full
_JSON: Final = ("json", "jsonl")  # formats whose objects lack keys without a value
_SPELLED: Final = Fault(
    "special_token_in_text", "the text spells out a special token of the tokenizer"
)
_CUT: Final = "long_documents_truncate"
"""Name under which the encoder counts documents that it cut."""
_DONE_BEFORE: Final = {
    "format_callback": None,
    "format_fields": None,
    "transforms": None,
}
"""Options of a dataset that act when its source is opened, and not here."""


@final
class TokenizedShardedSource(DerivedSource):
    """Shards of another source with every row tokenized.

    Rows keep their numbers, so that reading can begin at any row.

    For each row, `format_callback` is applied, fields are renamed, the text is
    tokenized, and the fields to keep are added: ``{"input_ids": [...],
    "attention_mask": [...], ...}``. Rows are tokenized in batches, at the speed of the
    tokenizer, and the ids equal those of a build. If the first rows hold messages and
    no text, rows are rendered by the tokenizer's chat template, which adds BOS itself.
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
        """Tokenize a source.

        Args:
            source: Rows with text, or with messages.
            tokenizer: Tokenizer, as :meth:`TokenizerManager.get_tokenizer` takes it.
                None for the tokenizer of `tokenizer_config`.
            tokenizer_config: Settings of truncation, padding and special tokens. None
                for the defaults. `truncation=None` cuts.
            content_field: Field of the text, or of the messages.
            additional_fields: Fields to keep beside the tokens. A row that lacks one is
                an error.
            format_callback: Function of a row, applied first. Its result None leaves
                the row out.
            format_fields: Fields to rename after it, {old: new}.
            remove_columns: Fields to drop; all other fields are kept (of
                `additional_fields`, if both are set).
            batch_size: Maximum number of rows that are tokenized together. With padding
                "longest", rows are padded to the longest of their batch, whose first
                number is a multiple of `batch_size`.
            arrays: Whether rows hold int32 arrays instead of lists.

        Raises:
            ConfigError: An argument is not allowed.
            SourceNotFoundError, TokenizerError: The tokenizer cannot be loaded.
        """
        if tokenizer is None and tokenizer_config is None:
            raise ConfigError(
                "tokenizer: missing; give a Hub id, a path, or a tokenizer_config"
            )
        if format_callback is not None and not callable(format_callback):
            raise expected("format_callback", format_callback, "a function of a row")
        # The tokenizer, with the settings of the configuration.
        loaded = TokenizerManager().get_tokenizer(
            tokenizer_config if tokenizer is None else tokenizer
        )
        if tokenizer_config is not None:
            loaded = LoadedTokenizer(loaded.files, tokenizer_config)
        # The settings of the texts are those of a dataset with these options. A content
        # field that nobody wrote is decided by the first rows.
        dataset = DatasetConfig(
            data_files="rows", content_field=content_field, tokenizer=loaded.config
        )
        texts = texts_of(PipelineConfig(datasets=(dataset,)), dataset, "rows")
        left_open = ("content_field", *texts.texts.left_open)
        row_tokens = RowTokens(
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
            source = TransformedShardedSource(
                source, format_callback, what="format_callback"
            )
        if format_fields:
            source = source.rename_fields(format_fields)
        self._source = source
        self._decide: Callable[[], RowTokens] = lambda: row_tokens

    @classmethod
    def deciding(
        cls, source: ShardedDataSource, decide: Callable[[], RowTokens]
    ) -> Self:
        """Return a source whose settings are decided whenever a shard is opened.

        Args:
            source: Rows to tokenize.
            decide: Function that returns the settings.
        """
        tokenized_source = cls.__new__(cls)
        tokenized_source._source = source
        tokenized_source._decide = decide
        return tokenized_source

    @property
    def truncated(self) -> CutCount:
        """Counts of the documents and tokens that `max_length` cut.

        Rows count when they are drawn.
        """
        return self._decide().cut.count

    @property
    def every_row(self) -> bool:
        return self._decide().one_each and self._source.every_row

    def _rows(self, index: int, row: int) -> Numbered:
        row_tokens = self._decide()
        shard_name = self.shard_names[index]

        def is_json() -> bool:
            return self.get_shard_info(shard_name).format in _JSON

        # Rows that are padded to the longest of their batch are read from the first row
        # of the batch.
        first_row = row
        if row_tokens.aligned:
            first_row -= row % row_tokens.batch_size
        if first_row == row:
            rows = self._source.open_shard_numbered(shard_name, row)
            return row_tokens.tokenized(rows, shard_name, is_json)

        # Raises an error if `row` is beyond the end.
        next(self._source.open_shard_numbered(shard_name, row), None)
        rows = self._source.open_shard_numbered(shard_name, first_row)
        numbered_rows = row_tokens.tokenized(rows, shard_name, is_json)
        return (pair for pair in numbered_rows if pair[0] >= row)

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
    """Return the tokens of rows of a source or any iterable.

    Args:
        source: Rows to tokenize.
        tokenizer: Argument of :class:`TokenizedShardedSource`.
        tokenizer_config: Argument of :class:`TokenizedShardedSource`.
        content_field: Argument of :class:`TokenizedShardedSource`.
        batch_size: Maximum number of rows that are tokenized together.
        fields: Arguments `additional_fields`, `format_callback` and `format_fields` of
            :class:`TokenizedShardedSource`.
        options: Its other arguments.

    Raises:
        ConfigError, SourceNotFoundError, TokenizerError: An argument is not allowed,
            or the tokenizer cannot be loaded.
        BadRecordError: While rows are drawn: one has no text.
    """
    rows = IterableShardedSource(source)
    return iter(
        TokenizedShardedSource(
            rows,
            tokenizer,
            tokenizer_config,
            content_field,
            *fields,
            batch_size=batch_size,
            **options,
        )
    )


@final
@dataclass(eq=False, kw_only=True)
class RowTokens:
    """Settings by which the rows of a source become tokens.

    They do so as in a build of the same configuration.

    A row may become several (``long_documents: split``), all with its number. It
    becomes none if it is empty, too long (``drop``), or bad and the policy is
    ``quarantine``.

    Attributes:
        source: Settings of the texts, as :func:`texts_of` returns them. The first rows
            decide the settings left open.
        tokenizer: Tokenizer. Its configuration decides the padding, and whether there
            is an ``attention_mask``.
        keep: Fields to keep beside the tokens. None for all but those of `remove`, and
            none without `remove`.
        remove: Fields to drop.
        loss: Whether rows have a ``loss_mask``, which for plain texts is true except
            for BOS. None if they have one only where a part of a document's tokens
            counts toward the loss.
        batch_size: Maximum number of rows that are tokenized together. With padding
            "longest", a batch holds exactly the rows with the same value of ``number //
            batch_size``.
        workers: Number of threads that tokenize batches ahead of the reader, at most as
            many batches. 1 for no threads: rows are tokenized when they are drawn.
        lists: Whether rows hold lists instead of int32 arrays.
        eos_id: End of a packed document; None if there is none.
        packing: Whether documents that spell their own special tokens always end with
            EOS.
        one_each: Whether every row becomes exactly one, possibly without ids. Not with
            policies that drop or split.
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

    # Encoders are chosen once, by the treatment of special tokens and the need for
    # places.
    def __post_init__(self) -> None:
        self._encoders: dict[tuple[str, bool], Encoder] = {}
        self.cut = CutCounter(self.source.name, self.source.tokenizer.max_length)

    @property
    def aligned(self) -> bool:
        """Whether a row's tokens depend on the other rows of its batch.

        Batches must then have fixed bounds.
        """
        return self.tokenizer.config.padding == "longest"

    def tokenized(
        self, rows: Numbered, shard: str, is_json: Callable[[], bool]
    ) -> Numbered:
        """Yield the tokenized rows, each with the number of its row.

        Rows before an error are yielded first.

        Args:
            rows: Rows of a shard, each with its number.
            shard: Name of the shard.
            is_json: Function that returns whether objects in a row lack the keys that
                they do not need. In other formats, every object has every key, and keys
                without a value are removed.

        Raises:
            BadRecordError: A row cannot be used and the policy is ``fail``. The error
                names shard and row.
        """
        batches = _batched(rows, self.batch_size, aligned=self.aligned)

        def tokenize(batch: RowBatch) -> tuple[RowBatch, Exception | None]:
            """Return the tokenized rows of a batch, and the error after them."""
            tokenized_rows: RowBatch = []
            try:
                tokenized_rows.extend(self._tokenized_batch(batch, shard, is_json))
            except Exception as error:
                return tokenized_rows, error
            return tokenized_rows, None

        # The first batch decides the settings left open, so it is tokenized before the
        # threads start.
        first_batch = map(tokenize, islice(batches, 1))
        ahead = 0
        if self.workers > 1:
            ahead = self.workers
        later_batches = Prefetched(batches, tokenize, workers=self.workers, ahead=ahead)
        with closing(later_batches):
            for tokenized_rows, error in chain(first_batch, later_batches):
                if self.lists:
                    yield from map(self._with_lists, tokenized_rows)
                else:
                    yield from tokenized_rows
                if error is not None:
                    raise error
                self.cut.judge(is_end=False)
        self.cut.judge(is_end=True)

    def _tokenized_batch(
        self, batch: RowBatch, shard: str, is_json: Callable[[], bool]
    ) -> Numbered:
        """Yield the tokenized rows of a batch.

        Arguments and errors are those of :meth:`tokenized`.
        """
        # 1. Render the rows.
        objects = [row for _, row in batch]
        source, renderer = self._open(objects)
        chat = source.texts.chat
        if chat is not None and not is_json():
            chat_fields = (chat.messages_field, chat.tools_field)
            objects = [_without_nulls(row, chat_fields) for row in objects]

        rendered = renderer.render(with_text(Rows(objects=objects), renderer.columns))
        # 2. and 3. Encode the texts, with BOS and EOS around them. Bad rows are
        # collected from all steps.
        has_loss = source.texts.masked if self.loss is None else self.loss
        documents, origin, faults = self._encoded(
            source, rendered, renderer, marks=has_loss
        )
        faults |= self._missing(objects)
        faults |= rendered.bad

        # A bad row ends the batch, or is left out.
        if faults and source.on_bad_record == "fail":
            # The rows before the first bad one, then its error.
            first_bad = min(faults)
            if first_bad:
                yield from self._tokenized_batch(batch[:first_bad], shard, is_json)
            problem = faults[first_bad].detail
            if faults[first_bad].reason == "null_text":
                problem += f"; it has {fields_in(objects[first_bad])}"
            number, _ = batch[first_bad]
            raise bad_row(shard, number, problem, reason=faults[first_bad].reason)
        # 4. Rows of the documents.
        is_good = ~np.isin(origin, list(faults))
        yield from self._rows_of(
            batch, documents.select(is_good), origin[is_good], loss=has_loss
        )

    def _open(self, first: list[Row]) -> tuple[ResolvedSource, Renderer]:
        """Return the settings of the texts, and the renderer.

        Settings left open are decided by the first rows.
        """
        if self._opened is None:
            files = self.tokenizer.files
            source, _ = settle(self.source, (), files, self.eos_id, Rows(objects=first))
            if self.one_each and source.texts.chat is not None:
                # Rows without a token that counts toward the loss are not left out.
                chat = replace(source.texts.chat, loss="all")
                source = replace(source, texts=replace(source.texts, chat=chat))
            mode = source.tokenizer.special_tokens_in_text
            renderer = open_renderer(source.texts, source.content_field, files, mode)
            self._opened = (source, renderer)
        return self._opened

    def _encoded(
        self,
        source: ResolvedSource,
        rendered: Rendered,
        renderer: Renderer,
        *,
        marks: bool,
    ) -> tuple[Ragged, Int64, dict[int, Fault]]:
        """Return the documents of rendered texts.

        Args:
            source: Settings of the texts.
            rendered: Texts of the rows.
            renderer: Renderer of the texts.
            marks: Whether the documents mark the tokens that count toward the loss.

        Returns:
            documents: Ids of the documents, with BOS and EOS, marked by bits if `marks`
                is true.
            origin: int64[documents], the place in the batch of the row that each
                document is made of.
            faults: Fault of each row that cannot be used, by its place in the batch.

        Raises:
            ConfigError: `max_length` leaves no room for a text.
            EngineMismatchError, TokenizerError: A text cannot be encoded, see
                :meth:`Encoder.encode`.
        """
        # Texts of a template may hold control tokens, which are special tokens on
        # purpose.
        settings = source.tokenizer
        spans = rendered.spans
        mode = "encode" if renderer.control_tokens else settings.special_tokens_in_text
        encoder = self._encoder(
            settings, mode, text_bytes=rendered.text.nbytes, has_spans=spans is not None
        )
        finish: Finish | None = None
        if spans is not None:
            eos = -1
            if self.eos_id is not None:
                eos = self.eos_id
            finish = Finish.around(
                source.texts.prompt,
                eos,
                encoder.prefix,
                encoder.suffix,
                packed=self.packing,
            )

        # Encode, and count the documents and tokens that `max_length` cut.
        frame = encoder if finish is None else finish
        self._require_room(settings, len(frame.prefix) + len(frame.suffix))
        is_masked = marks or spans is not None
        settings = replace(settings, special_tokens_in_text=mode)
        document_encoder = DocumentEncoder(settings, encoder, finish, masked=is_masked)
        encoded = document_encoder.encode(rendered.text, spans)
        left_out = sum(len(rows) for rows in encoded.left_out.values())
        cut_documents = encoded.touched.get(_CUT, 0) or left_out
        cut_tokens = sum(encoded.dropped.values())
        self.cut.add(
            CutCount(len(rendered.text), cut_documents, encoded.tokens, cut_tokens)
        )
        documents = Ragged(encoded.ids, encoded.offsets)
        origin = encoded.origin
        if self.one_each:
            # A text without ids is a document, too, of length 0.
            sizes = np.zeros(len(rendered.text), np.int64)
            sizes[origin] = np.diff(documents.offsets)
            documents = Ragged(documents.ids, documents.offsets[0] + offsets_of(sizes))
            origin = np.arange(len(sizes))
        if finish is None:
            documents = _with_special_tokens(documents, encoder, is_masked=is_masked)
        faults = {int(rendered.origin[text]): _SPELLED for text in encoded.refused}
        return documents, rendered.origin[origin], faults

    def _encoder(
        self,
        settings: ResolvedTokenizer,
        mode: SpecialTokensInText,
        *,
        text_bytes: int,
        has_spans: bool,
    ) -> Encoder:
        """Return the encoder for a mode of special tokens, which is chosen once.

        Args:
            settings: Settings of the tokenizer.
            mode: Treatment of special tokens in a text.
            text_bytes: Size of the first texts. It is a lower bound of the whole, whose
                size is not known.
            has_spans: Whether parts of the texts are marked, so that places of tokens
                are needed.
        """
        # Choosing compares the faster backends with the reference, which takes a while.
        key = (mode, has_spans)
        if key not in self._encoders:
            _, self._encoders[key] = choose_encoder(
                self.tokenizer.files,
                settings.engine,
                mode,
                add_special_tokens=settings.add_special_tokens,
                places=has_spans,
                size=text_bytes,
            )
        return self._encoders[key]

    def _require_room(self, settings: ResolvedTokenizer, special_tokens: int) -> None:
        """Raise ConfigError if the special tokens leave no room for a text."""
        if settings.long_documents != "keep" and settings.max_length <= special_tokens:
            raise ConfigError(
                f"max_length: {settings.max_length} leaves no room beside the {special_tokens} special tokens of "
                f"{self.tokenizer.files.name!r}; make it larger, or use add_special_tokens: false"
            )

    def _rows_of(
        self, batch: RowBatch, documents: Ragged, origin: Int64, *, loss: bool
    ) -> Numbered:
        """Yield the rows of documents, each with the number of its source row."""
        if not len(documents):
            return
        # Columns of tokens, padded if the tokenizer says so.
        ids = Ragged(plain(documents.ids), documents.offsets)
        columns = with_masks(ids, self.tokenizer, self.tokenizer.config)
        if loss:
            columns["loss_mask"] = self._loss_masks(documents, columns["input_ids"])

        column_names = list(columns)
        removed = self.remove or ()
        keeps_fields = self.keep is not None or self.remove is not None
        for row_index, *cells in zip(origin.tolist(), *columns.values(), strict=True):
            number, row = batch[row_index]
            tokens = dict(zip(column_names, cells, strict=True))
            if keeps_fields:
                names = row if self.keep is None else self.keep
                kept_fields = {name: row[name] for name in names if name not in removed}
                tokens = {**kept_fields, **tokens}
            yield number, tokens

    def _loss_masks(
        self, documents: Ragged, rows: Sequence[Sized]
    ) -> list[npt.NDArray[np.bool_]]:
        """Return the loss mask of each document, padded to the length of its row."""
        pads_left = self.tokenizer.pads_left(self.tokenizer.config)
        masks: list[npt.NDArray[np.bool_]] = []
        for row, marked_ids in zip(rows, documents.rows(), strict=True):
            mask = np.zeros(len(row), np.bool_)
            first_place = len(row) - len(marked_ids) if pads_left else 0
            mask[first_place : first_place + len(marked_ids)] = learned(marked_ids)
            masks.append(mask)
        return masks

    def _missing(self, rows: Sequence[Row]) -> dict[int, Fault]:
        """Return the faults of rows that lack a field to keep, by their places."""
        faults: dict[int, Fault] = {}
        if not self.keep:
            return faults
        for row_index, row in enumerate(rows):
            missing_field = next((name for name in self.keep if name not in row), None)
            if missing_field is not None:
                problem = f"additional_fields: the row has no field {missing_field!r}; it has {fields_in(row)}"
                faults[row_index] = Fault("missing_field", problem)
        return faults

    def _with_lists(self, numbered: tuple[int, Row]) -> tuple[int, Row]:
        """Return a row with lists instead of arrays.

        It is a new row, so that the lists of a whole batch are never in memory at once.
        """
        number, row = numbered
        with_lists = {**row, "input_ids": row["input_ids"].tolist()}
        mask = row.get("attention_mask")
        if mask is not None:
            # Without padding a mask is 1 everywhere.
            if self.tokenizer.config.padding:
                with_lists["attention_mask"] = mask.tolist()
            else:
                with_lists["attention_mask"] = [1] * len(row["input_ids"])
        if "loss_mask" in row:
            with_lists["loss_mask"] = row["loss_mask"].tolist()
        return number, with_lists


def _with_special_tokens(
    documents: Ragged, encoder: Encoder, *, is_masked: bool
) -> Ragged:
    """Return documents between the special tokens of the tokenizer.

    The end counts toward the loss, as the text does.
    """
    suffix = encoder.suffix
    if is_masked:
        suffix = [token | LOSS for token in encoder.suffix]
    before = Ragged.alike(encoder.prefix, len(documents))
    after = Ragged.alike(suffix, len(documents))
    return Ragged.joined([before, documents, after])


def _without_nulls(row: Row, names: Iterable[str | None]) -> Row:
    """Return a row without the keys that have no value in some of its fields."""
    cleaned = row.copy()
    for field_name in names:
        if field_name is not None and field_name in row:
            cleaned[field_name] = without_nulls(row[field_name])
    return cleaned


def texts_of(
    config: PipelineConfig, dataset: DatasetConfig | None, name: str
) -> ResolvedSource:
    """Return the settings by which a build makes documents of a source's rows.

    Args:
        config: Configuration.
        dataset: Dataset of the source. None for a source that a stage made: it has the
            pipeline's tokenizer, and no options of its own.
        name: Name of the source.
    """
    if dataset is None:
        dataset = DatasetConfig(data_files=name)
    source = resolve_source(config, dataset.model_copy(update=_DONE_BEFORE))
    return replace(source, name=name)


def _batched(rows: Numbered, max_rows: int, *, aligned: bool) -> Iterator[RowBatch]:
    """Yield rows in batches.

    If drawing them raises an error, the rows before it are yielded first.

    Args:
        rows: Rows, each with its number.
        max_rows: Maximum number of rows per batch.
        aligned: Whether a batch holds exactly the rows with the same value of ``number
            // max_rows``. If not, the first batches are smaller.
    """
    batch: RowBatch = []
    text_size = 0
    # Batches grow to their full size, so that the first row comes soon.
    batch_rows = max_rows if aligned else min(_FIRST_ROWS, max_rows)
    try:
        for number, row in rows:
            if aligned and batch:
                is_full = number // max_rows != batch[-1][0] // max_rows
            else:
                is_full = len(batch) >= batch_rows or text_size >= _BATCH_TEXT
            if batch and is_full:
                yield batch
                batch = []
                text_size = 0
                batch_rows = min(batch_rows * 4, max_rows)
            batch.append((number, row))
            text_size += _text_size(row)
    except Exception:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def _text_size(value: Any) -> int:
    """Return the approximate number of characters of a row."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_text_size, value.values()))
    if isinstance(value, list):
        return sum(map(_text_size, value))
    return 1


def _names(argument: str, names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return names as a tuple; ConfigError for a text, which would be its letters."""
    if isinstance(names, str):
        raise expected(argument, names, "a list of names, such as ['text']")
    if names is None:
        return None
    return tuple(names)

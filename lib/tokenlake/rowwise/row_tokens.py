"""Rows to tokens by the parts that builds are made of: renderer, encoder, fitting, BOS and EOS, in this order.

Rendered documents to marked ids, with what belongs around them, and long ones fitted.

From the configuration of a dataset, and its first rows, to how its rows become documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import numpy.typing as npt

from tokenlake.config.resolve import resolve_source
from tokenlake.config.resolved import MESSAGES_FIELDS, ResolvedChat, ResolvedSource, ResolvedTokenizer
from tokenlake.config.stages import TokenizerConfig
from tokenlake.errors import BadRecordError, ConfigError
from tokenlake.etl.plan.source import settle
from tokenlake.etl.unit.bos_eos import Finish
from tokenlake.etl.unit.long_documents import Lengths
from tokenlake.loader.prefetch import Prefetched
from tokenlake.packing.loss_mask import LEARNED, learned, marked, plain
from tokenlake.ragged import Ragged
from tokenlake.rowwise.source import Numbered, Row, ShardedDataSource
from tokenlake.sources.rows import Fault, Rows
from tokenlake.text.chat.renderer import without_nulls
from tokenlake.text.rendering import Rendered, Renderer
from tokenlake.text.steps import open_renderer
from tokenlake.tokenizers.encoder import Encoder
from tokenlake.tokenizers.files import TokenizerFiles
from tokenlake.tokenizers.gate import choose_encoder
from tokenlake.tokenizers.manager import LoadedTokenizer, with_masks

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.pipeline import PipelineConfig

Int32 = npt.NDArray[np.int32]
RowencodingInt64 = npt.NDArray[np.int64]
_SPELLED = Fault("special_token_in_text", "the text spells out a special token of the tokenizer")


def _none() -> dict[int, Fault]:
    return {}


@final
@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Documents as ids.

    Attributes:
        documents: m of them, whole, marked where that was asked for; see :mod:`tokenlake.packing.loss_mask`.
        origin: int64[m], index of the text that each is made of.
        bad: index of a text that cannot be used, and why.
    """

    documents: Ragged
    origin: RowencodingInt64
    bad: dict[int, Fault] = field(default_factory=_none)


@final
class RowEncoding:
    """Encodes as a build does that packs, or one that does not.

    Encoders are made when the first text comes, and kept.
    """

    def __init__(self, files: TokenizerFiles, *, eos_id: int | None, packing: bool) -> None:
        """Take the tokenizer.

        Args:
            eos_id: what ends a packed document; None where nobody names one.
            packing: whether documents that spell their own special tokens end with EOS in any case.
        """
        self._files, self.eos_id, self._packing = files, eos_id, packing
        self._encoders: dict[tuple[str, bool, bool], Encoder] = {}

    def encode(
        self, source: ResolvedSource, rendered: Rendered, renderer: Renderer, *, masked: bool
    ) -> EncodedRows:
        """Return the documents of n texts.

        Args:
            source: settled.
            rendered: the texts; those with spans come whole.
            masked: whether ids are marked that bear loss.

        Raises:
            ConfigError: `max_length` leaves no room for a text.
            EngineMismatchError, TokenizerError: as :meth:`Encoder.encode`.
        """
        settings, spans = source.tokenizer, rendered.spans
        mode = "encode" if renderer.control_tokens else settings.special_tokens_in_text
        encoder = self._encoder(settings, mode, places=spans is not None)
        bad: dict[int, Fault] = {}
        if spans is not None:
            encoded, touched = encoder.encode_spans(rendered.text, spans)
            ids = marked(encoded.ids, touched)
        else:
            encoded = encoder.encode(rendered.text)
            ids = marked(encoded.ids) if masked else encoded.ids
            if mode == "fail":
                bad = {int(place): _SPELLED for place in encoded.special_docs}
        finish = self._finish(source, encoder) if spans is not None else None
        _require_room(settings, finish or encoder, self._files.name)
        lengths = Lengths(settings, encoder, finish, masked=masked)
        text = rendered.text if lengths.needs_text else None
        fitted = lengths.apply(ids, encoded.offsets, text).without_empty()
        if finish is None:
            documents = _surrounded(Ragged(fitted.ids, fitted.offsets), encoder, masked=masked)
        elif len(fitted.origin):
            done = finish.apply(fitted.ids, fitted.offsets, fitted.ends)
            documents = Ragged(done.ids, done.offsets)
        else:
            documents = Ragged(fitted.ids, fitted.offsets)
        return EncodedRows(documents, fitted.origin, bad)

    def _finish(self, source: ResolvedSource, encoder: Encoder) -> Finish:
        eos = -1 if self.eos_id is None else self.eos_id
        prompt = source.texts.prompt
        return Finish.around(prompt, eos, encoder.prefix, encoder.suffix, packed=self._packing)

    def _encoder(self, settings: ResolvedTokenizer, mode: str, *, places: bool) -> Encoder:
        key = mode, settings.add_special_tokens, places
        if key not in self._encoders:
            _, self._encoders[key] = choose_encoder(
                self._files,
                settings.engine,
                mode,
                add_special_tokens=settings.add_special_tokens,
                places=places,
            )
        return self._encoders[key]


def _surrounded(documents: Ragged, encoder: Encoder, *, masked: bool) -> Ragged:
    """Put around every document what the post-processor does; its end is learned as the text is."""
    count = len(documents)
    suffix = [token | LEARNED for token in encoder.suffix] if masked else encoder.suffix
    return Ragged.joined([Ragged.alike(encoder.prefix, count), documents, Ragged.alike(suffix, count)])


def _require_room(settings: ResolvedTokenizer, around: Finish | Encoder, name: str) -> None:
    special = len(around.prefix) + len(around.suffix)
    if settings.long_documents != "keep" and settings.max_length <= special:
        raise ConfigError(
            f"max_length: {settings.max_length} leaves no room for a text beside the {special} special tokens that "
            f"tokenizer {name!r} puts around it; make it larger, or use add_special_tokens: false"
        )


_DONE_BEFORE = {"format_callback": None, "format_fields": None, "transforms": None}
"""What happens to rows when their source is opened."""


def resolved(
    config: PipelineConfig, dataset: DatasetConfig | None, name: str, *, packing: bool
) -> ResolvedSource:
    """Return how a source's rows become documents, as a build would that packs them or does not.

    Args:
        dataset: None for a source that a stage made: it has the pipeline's tokenizer, and no options of its own.
        name: of the source.
    """
    if dataset is None:
        options = {"name": None, "tokenizer": None, "data_files": name, "content_field": "text"}
        dataset = type(config.datasets[0]).model_validate(options)
    pack = config.pack.model_copy(update={"enabled": packing})
    source = resolve_source(config.model_copy(update={"pack": pack}), dataset.model_copy(update=_DONE_BEFORE))
    return replace(source, name=name)


def settled(
    source: ResolvedSource, first: Sequence[Row], tokenizer: TokenizerFiles, eos_id: int | None
) -> ResolvedSource:
    """Return the source with nothing left open: whether rows are conversations is told by the first of them.

    Args:
        first: rows, at least one where there are any.
        eos_id: what ends a document; None where nobody names one.

    Raises:
        ConfigError: what is asked for cannot be had from these rows or this tokenizer.
    """
    texts = source.texts
    chat = texts.chat
    if chat is None and not (texts.prompt or texts.preference):
        field = _found_messages(source, first)
        chat = None if field is None else ResolvedChat(messages_field=field)
    elif chat is not None and chat.messages_field is None:
        chat = replace(chat, messages_field=_messages_field(first))
    source = replace(source, texts=replace(texts, chat=chat))
    return settle(source, (), tokenizer, eos_id)[0]


def _found_messages(source: ResolvedSource, first: Sequence[Row]) -> str | None:
    """Return the field of conversations where nobody said what the text is, and the rows have none."""
    if "content_field" not in source.texts.left_open:
        return None
    if any(isinstance(row.get(source.content_field), str) for row in first):
        return None
    return next((field for field in MESSAGES_FIELDS if _holds_turns(first, field)), None)


def _holds_turns(rows: Sequence[Row], field: str) -> bool:
    """Whether most of the values are lists; a record may be bad among the first ones, too."""
    given = [isinstance(row[field], list) for row in rows if row.get(field) is not None]
    return bool(given) and 2 * sum(given) > len(given)


def _messages_field(first: Sequence[Row]) -> str:
    for name in MESSAGES_FIELDS:
        if any(row.get(name) is not None for row in first):
            return name
    names = ", ".join(map(repr, first[0])) if first else "none: there are no rows"
    raise ConfigError(
        f"chat.messages_field: not set, and the first rows have none of {', '.join(MESSAGES_FIELDS)}; their fields are "
        f"{names}. Name the field that holds the conversation"
    )


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

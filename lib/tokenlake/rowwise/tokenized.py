"""Another source's rows as tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, final

from tokenlake.config.stages import TokenizerConfig
from tokenlake.errors import ConfigError
from tokenlake.rowwise.source import Numbered, Row, ShardedDataSource, ShardInfo, check_row, without_numbers
from tokenlake.rowwise.token_rows import Callback, TokenRows
from tokenlake.tokenizers.manager import LoadedTokenizer, TokenizerManager


class Tokenizing(Protocol):
    """How rows become tokens; see :class:`tokenlake.rowwise.token_rows.TokenRows`."""

    @property
    def aligned(self) -> bool:
        """Whether a row's tokens depend on the rows beside it."""
        ...

    @property
    def every_row(self) -> bool:
        """Whether exactly one row comes out of each."""
        ...

    @property
    def batch_size(self) -> int:
        """Rows that are tokenized together, at most."""
        ...

    @property
    def tokenizer(self) -> LoadedTokenizer:
        """What tokenizes."""
        ...

    def tokenized(self, rows: Numbered, shard: str) -> Numbered:
        """Yield every row that was not left out, with its number."""
        ...


@final
class TokenizedShardedSource(ShardedDataSource):
    """Another source's shards with every row tokenized; rows keep their numbers, so seeking is the same.

    A row is changed by `format_callback`, its fields are renamed, its text is tokenized, and the fields asked for are
    kept: ``{"input_ids": [...], "attention_mask": [...], ...}``. Rows are tokenized some at a time, at the speed of the
    engine; their ids are those of a build. A row that holds messages and no text is rendered by the tokenizer's chat
    template, which puts BOS itself.
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
            SourceNotFoundError, TokenizerError: the tokenizer cannot be had.
        """
        self._source = source
        how = how_to_tokenize(
            tokenizer,
            tokenizer_config,
            content_field=content_field,
            additional_fields=additional_fields,
            format_callback=format_callback,
            format_fields=format_fields,
            remove_columns=remove_columns,
            batch_size=batch_size,
            arrays=arrays,
        )
        self._decide: Callable[[], Tokenizing] = lambda: how

    @classmethod
    def deciding(cls, source: ShardedDataSource, decide: Callable[[], Tokenizing]) -> Self:
        """Return a source that asks how to tokenize whenever a shard is opened."""
        made = cls.__new__(cls)
        made._source, made._decide = source, decide
        return made

    @property
    def _how(self) -> Tokenizing:
        return self._decide()

    @property
    def shard_names(self) -> Sequence[str]:
        return self._source.shard_names

    @property
    def every_row(self) -> bool:
        return self._source.every_row and self._how.every_row

    @property
    def endless(self) -> bool:
        return self._source.endless

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return without_numbers(self.open_shard_numbered(shard_name))

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        check_row(row)
        how = self._how
        if not how.aligned or not row % how.batch_size:
            return how.tokenized(self._source.open_shard_numbered(shard_name, row), shard_name)
        return self._from_border(how, shard_name, row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return self._source.get_shard_info(shard_name)

    def _from_border(self, how: Tokenizing, name: str, row: int) -> Numbered:
        """Read from the first row of the batch that `row` is in: it is as long as the longest of them all."""
        next(self._source.open_shard_numbered(name, row), None)  # an error, if `row` is beyond the end
        border = row - row % how.batch_size
        rows = how.tokenized(self._source.open_shard_numbered(name, border), name)
        return ((number, tokens) for number, tokens in rows if number >= row)

    def __repr__(self) -> str:
        return f"TokenizedShardedSource({self._source!r}, tokenizer={self._how.tokenizer.files.name!r})"


def batched_tokenize_iterator(
    source: ShardedDataSource | Iterable[Row],
    tokenizer: Any = None,
    tokenizer_config: TokenizerConfig | None = None,
    content_field: str = "text",
    batch_size: int = 1000,
    additional_fields: Sequence[str] | None = None,
    format_callback: Callback | None = None,
    format_fields: Mapping[str, str] | None = None,
    *,
    arrays: bool = False,
) -> Iterator[Row]:
    """Return the tokens of rows, which come from a source or any iterable; see :class:`TokenizedShardedSource`.

    Raises:
        as :class:`TokenizedShardedSource`; BadRecordError while rows are drawn: one has no text.
    """
    how = how_to_tokenize(
        tokenizer,
        tokenizer_config,
        content_field=content_field,
        additional_fields=additional_fields,
        format_callback=format_callback,
        format_fields=format_fields,
        batch_size=batch_size,
        arrays=arrays,
    )
    return without_numbers(how.tokenized(enumerate(iter(source)), "rows"))


def how_to_tokenize(
    tokenizer: Any,
    config: TokenizerConfig | None,
    *,
    content_field: str,
    additional_fields: Sequence[str] | None,
    format_callback: Callback | None,
    format_fields: Mapping[str, str] | None,
    remove_columns: Sequence[str] | None = None,
    batch_size: int = 1000,
    arrays: bool = False,
) -> TokenRows:
    """Check the arguments of :class:`TokenizedShardedSource` and load its tokenizer."""
    if tokenizer is None and config is None:
        raise ConfigError(
            "tokenizer: missing; give a Hub id, a directory, a tokenizer.json file, or a tokenizer_config"
        )
    if isinstance(batch_size, bool) or not hasattr(batch_size, "__index__") or batch_size < 1:
        raise ConfigError(f"batch_size: got {batch_size!r}, must be a whole number from 1 on")
    if format_callback is not None and not callable(format_callback):
        raise ConfigError(f"format_callback: got {format_callback!r}, must be a function of a row")
    loaded = TokenizerManager().get_tokenizer(config if tokenizer is None else tokenizer)
    removed = frozenset(_names("remove_columns", remove_columns) or ())
    kept = _names("additional_fields", additional_fields)
    return TokenRows(
        tokenizer=loaded,
        config=config or loaded.config,
        content_field=content_field,
        keep=() if kept is None and remove_columns is None else kept,
        remove=removed,
        callback=format_callback,
        rename=format_fields,
        batch_size=batch_size,
        arrays=arrays,
    )


def _names(what: str, names: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(names, str):
        raise ConfigError(f"{what}: got {names!r}, must be a list of names, such as ['text']")
    return None if names is None else tuple(names)

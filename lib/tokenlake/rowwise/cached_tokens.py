"""A cache of the tokens of a pipeline: the first pass over a shard stores its rows,
later passes read them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from tokenlake._version import __version__
from tokenlake.base.arrays import mask_of, values
from tokenlake.base.cache.dataset_cache import ChunkWriter, DatasetCache
from tokenlake.base.fingerprint import fingerprint
from tokenlake.base.json_text import dump_json
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.resolve import resolve_source, source_identity
from tokenlake.errors import ConfigError, InputChangedError
from tokenlake.etl.job import produced_by
from tokenlake.etl.sources.file_stat import FileStat, stat_token
from tokenlake.etl.sources.hash_cache import HashCache
from tokenlake.etl.sources.hashing import FoundFile, hash_files
from tokenlake.etl.text.steps import sealed
from tokenlake.etl.tokenizers.manager import content_hash
from tokenlake.rowwise.files import with_lines
from tokenlake.rowwise.shards import Numbered, Row
from tokenlake.rowwise.source import DerivedSource, ShardedDataSource
from tokenlake.rowwise.stage import PipelineContext

_FORMAT: Final = 2
"""Version of the stored rows. Another version makes new entries for all of them."""

_TOKENS: Final = {
    "input_ids": np.int32,
    "attention_mask": np.int32,
    "loss_mask": np.bool_,
}
"""Field of tokens to the dtype of its array in a row."""

_NUMBER: Final = "number"  # column of row numbers
_REST: Final = "rest"  # column of all other fields, as JSON text
_INPUT: Final = "input_ids"
_ONES: Final = "attention_mask"

# A chunk ends after so many tokens or rows, whichever comes first.
_CHUNK_TOKENS: Final = 1 << 20
_CHUNK_ROWS = 4096

_LARGE_NUMBER: Final = re.compile("[0-9]{19}|1e999")
_EXACT: Final = (
    orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_ARROW: Final[Any] = pa


@final
class CachedShardedSource(DerivedSource):
    """Shards of another source, each stored in a cache once it was read from its first
    row to its last.

    The first pass yields the rows of the source and stores them in chunks of some
    thousand rows. Later passes read the cache from any row. If a chunk is lost, the
    pass continues with the rows of the source. Rows and their numbers are the same in
    all cases. A cache that cannot be written does not stop a pass.

    Rows hold arrays of tokens, and other fields with values of JSON.
    """

    def __init__(
        self, source: ShardedDataSource, cache: DatasetCache, key: Callable[[int], str]
    ) -> None:
        """Store the rows of a source in a cache.

        Args:
            source: Source of rows with tokens.
            cache: Cache of the chunks.
            key: Function from the index of a shard in ``shard_names`` to the key of its
                rows. It is called whenever a shard is opened, and its result identifies
                everything that decides these rows.
        """
        self._source = source
        self._cache = cache
        self._key = key

    def _rows(self, index: int, row: int) -> Numbered:
        name = self.shard_names[index]
        key = self._key(index)
        chunks = self._cache.chunks(key, row)
        if chunks is None:
            rows = self._source.open_shard_numbered(name, row)
            # Only a pass from the first row can store the whole shard.
            yield from rows if row else _storing(rows, self._cache.writer(key))
            return

        has_rows = False
        for first, table in chunks:
            if table is None:
                # A lost chunk: the source has its rows, and those after it.
                yield from self._source.open_shard_numbered(name, max(first, row))
                return
            for number, stored_row in _read(table):
                if number >= row:
                    has_rows = True
                    yield number, stored_row
        if row and not has_rows:
            # The source decides whether a row beyond the last one is an error.
            yield from self._source.open_shard_numbered(name, row)

    def __repr__(self) -> str:
        return f"CachedShardedSource({self._source!r})"


def cached(
    tokens: ShardedDataSource,
    rows: ShardedDataSource,
    name: str,
    context: PipelineContext,
    settings: dict[str, Any],
) -> ShardedDataSource:
    """Return rows of tokens, stored in a cache if the configuration says so.

    ``tokenize.cache_tokenized`` decides. If it is not set, rows are stored only if the
    dataset has a `cache_path` or the section `cache` is written out, and everything
    that makes them can be identified by a name (a lambda cannot). So a pipeline never
    fills a disk unasked.

    Args:
        tokens: Rows of tokens.
        rows: Rows that the tokens are made of.
        name: Name of the dataset.
        context: Context of the pipeline.
        settings: Values that decide the tokens and are not in the configuration.

    Raises:
        ConfigError: The configuration asks for stored rows, and something without a
            name makes them.
    """
    dataset = context.dataset(name)
    section = context.config.cache
    cache_tokenized = context.config.tokenize.cache_tokenized
    if (
        cache_tokenized is False
        or dataset is None
        or not dataset.cache_enabled
        or not section.enabled
    ):
        return tokens
    if not (cache_tokenized or dataset.cache_path or section.keeps_tokens):
        return tokens

    try:
        if rows is not context.opened.get(name):
            raise ConfigError("a custom stage produces them")
        sealed(resolve_source(context.config, dataset).texts)
    except ConfigError as error:
        if not cache_tokenized:
            return tokens
        raise ConfigError(
            f"tokenize.cache_tokenized: the rows of {name!r} cannot be cached: the function that produces them has "
            f"no importable name: {error}. Leave it out, or save() the rows"
        ) from error

    # Packing may be configured after this call, so the key is computed when a shard is
    # opened.
    key = cache(partial(_key, rows, dataset, context, settings))
    token_cache = DatasetCache(context.cache_at(dataset.cache_path))
    return CachedShardedSource(
        tokens, token_cache, lambda index: key(index, context.packing)
    )


def _input_identity(version: tuple[str, int, str], hash_fn: str) -> list[Any]:
    """Return the identity of an input file: its content, its path and state, or both.

    Args:
        version: Path or URL, size in bytes and state token of the file.
        hash_fn: Setting ``cache.hash_fn``: ``content``, ``path`` or ``combined``.

    Raises:
        InputChangedError: The file has changed since it was listed.
    """
    path, size, token = version
    content = token
    if hash_fn != "path" and token.startswith("stat:"):
        # The hash cache knows the hashes of files that were read before.
        with HashCache() as hash_cache:
            file_stat = FileStat.of(path)
            [(_, sha256)] = hash_files(
                [FoundFile(path, path, file_stat)], 1, hash_cache, None
            )
        if stat_token(file_stat) != token:
            raise InputChangedError(
                f"{path}: the file changed after it was listed; open the source again"
            )
        content = f"sha256:{sha256}"
    if hash_fn == "content":
        return [size, content]
    return [path, size, token, content if hash_fn == "combined" else ""]


def _key(
    rows: ShardedDataSource,
    dataset: DatasetConfig,
    context: PipelineContext,
    settings: dict[str, Any],
    index: int,
    packing: bool,
) -> str:
    """Return the key of the tokens of one shard, a hash of everything that decides
    them.

    Args:
        rows: Rows that the tokens are made of.
        dataset: Configuration of the dataset.
        context: Context of the pipeline.
        settings: Values that decide the tokens and are not in the configuration.
        index: Index of the shard in ``shard_names``.
        packing: Whether the rows are packed later.
    """
    # With `num_rows`, the number of rows of a shard depends on the shards before it.
    versions = (
        rows.versions[: index + 1] if dataset.num_rows else [rows.versions[index]]
    )
    source = resolve_source(context.config_with_packing(packing), with_lines(dataset))
    tokenizer = context.tokenizers[source.name]
    return fingerprint(
        {
            "format": _FORMAT,
            "version": __version__,
            "source": source_identity(replace(source, texts=sealed(source.texts))),
            "num_rows": source.num_rows,
            "inputs": [
                _input_identity(version, context.config.cache.hash_fn)
                for version in versions
            ],
            # The files and the version of the package identify the ids. The fingerprint
            # of the tokenizer, which encodes sample texts, would take 0.4 s.
            "tokenizer": [
                content_hash(tokenizer.files),
                produced_by("tokenizers")["tokenizers"],
            ],
            "options": tokenizer.config.model_dump(
                mode="json", exclude={"name_or_path"}
            ),
            "packing": packing,
            "eos": context.config.pack.eos_token_id if packing else None,
            **settings,
        }
    )[:32]


# --- Rows as tables, and back


def _read(table: pa.Table) -> Numbered:
    """Yield the rows of a chunk, each with its number."""
    columns: Any = table
    readers: dict[str, Callable[[int], Any]] = {}
    for name in _TOKENS:
        if name in columns.column_names:
            readers[name] = _array_reader(columns, name)

    numbers = columns[_NUMBER].to_pylist()
    rests = columns[_REST].to_pylist()
    for place, (number, rest) in enumerate(zip(numbers, rests, strict=True)):
        # orjson reads integers beyond 64 bits as doubles.
        row: Row = (
            json.loads(rest) if _LARGE_NUMBER.search(rest) else orjson.loads(rest)
        )
        for name, read_array in readers.items():
            row[name] = read_array(place)
        yield number, row


def _array_reader(table: Any, name: str) -> Callable[[int], Any]:
    """Return a function from the place of a row in the table to its array.

    A column of nulls stands for a mask that is 1 everywhere, with the lengths of
    ``input_ids``.
    """
    is_ones = pa.types.is_null(table.schema.field(name).type)
    lists = table[_INPUT if is_ones else name].chunk(0)
    offsets = values(lists.offsets).tolist()
    if is_ones:
        return lambda place: np.ones(offsets[place + 1] - offsets[place], _TOKENS[name])
    tokens = values(lists.values)
    return lambda place: tokens[offsets[place] : offsets[place + 1]].copy()


def _storing(rows: Numbered, writer: ChunkWriter) -> Numbered:
    """Yield rows and store them chunk by chunk.

    Rows with the same number stay in one chunk. A chunk is a table, so all its rows
    have the same fields of tokens; if rows of one number differ in them, the shard is
    not stored.
    """
    pending: list[tuple[int, Row]] = []
    token_count = 0
    is_storable = True
    for number, row in rows:
        has_new_fields = bool(pending) and _token_fields(row) != _token_fields(
            pending[0][1]
        )
        if pending and number != pending[-1][0]:
            is_full = token_count >= _CHUNK_TOKENS or len(pending) >= _CHUNK_ROWS
            if is_full or has_new_fields:
                writer.add(pending[0][0], _table(pending))
                pending = []
                token_count = 0
        elif has_new_fields:
            is_storable = False
        if is_storable:
            pending.append((number, row))
            token_count += len(row.get("input_ids", ()))
        yield number, row

    # Without the end, which `finish` writes, readers ignore the chunks.
    if pending and is_storable:
        writer.add(pending[0][0], _table(pending))
    if is_storable:
        writer.finish()


def _token_fields(row: Row) -> list[str]:
    return [name for name in _TOKENS if name in row]


def _table(numbered_rows: Sequence[tuple[int, Row]]) -> pa.Table:
    """Return rows as a table of their numbers, their tokens, and a JSON text of all
    other fields.

    Raises:
        ConfigError: JSON has no value for one of the other fields.
    """
    numbers = [number for number, _ in numbered_rows]
    rows = [row for _, row in numbered_rows]
    columns: dict[str, Any] = {_NUMBER: pa.array(numbers, pa.int64())}

    rests: list[str] = []
    for row in rows:
        rest = {name: value for name, value in row.items() if name not in _TOKENS}
        try:
            rests.append(dump_json(rest, option=_EXACT, keeps_infinity=True).decode())
        except TypeError as error:
            raise ConfigError(
                f"tokenize.cache_tokenized: a kept field contains a value that JSON does not support ({error}); drop "
                "the field, or leave cache_tokenized out"
            ) from error
    columns[_REST] = rests

    # Fields of tokens become columns of lists.
    lengths = {
        name: [len(row[name]) for row in rows] for name in _token_fields(rows[0])
    }
    for name, field_lengths in lengths.items():
        tokens = np.concatenate([np.asarray(row[name], _TOKENS[name]) for row in rows])
        if name == _ONES and field_lengths == lengths.get(_INPUT) and tokens.all():
            columns[name] = pa.nulls(len(rows))
            continue
        offsets = np.cumsum([0, *field_lengths], dtype=np.int32)
        columns[name] = _ARROW.ListArray.from_arrays(
            _arrow_array(offsets), _arrow_array(tokens)
        )
    return _ARROW.table(columns)


def _arrow_array(numbers: npt.NDArray[Any]) -> Any:
    """Return an array of int32 or bool as an Arrow array; `pa.array` would import
    pandas where it is installed.
    """
    if numbers.dtype == np.bool_:
        return mask_of(numbers)
    return _ARROW.Array.from_buffers(
        pa.int32(), len(numbers), [None, _ARROW.py_buffer(numbers)]
    )

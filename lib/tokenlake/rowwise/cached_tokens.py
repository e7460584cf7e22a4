"""Cache of the tokens of a pipeline.

The first pass over a shard stores its rows, later passes read them.
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

# A chunk ends after this number of tokens or rows, whichever comes first.
_CHUNK_TOKENS: Final = 1 << 20
_CHUNK_ROWS = 4096

# Numbers in a JSON text that orjson may not read exactly.
_LARGE_NUMBER: Final = re.compile("[0-9]{19}|1e999")
# Values that JSON does not have must not be changed silently.
_EXACT: Final = (
    orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_ARROW: Final[Any] = pa


@final
class CachedShardedSource(DerivedSource):
    """Shards of another source, stored in a cache by the first pass over each.

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
        shard_name = self.shard_names[index]
        shard_key = self._key(index)
        stored_chunks = self._cache.chunks(shard_key, row)
        if stored_chunks is None:
            rows = self._source.open_shard_numbered(shard_name, row)
            # Only a pass from the first row can store the whole shard.
            if row == 0:
                rows = _storing(rows, self._cache.writer(shard_key))
            yield from rows
            return
            return

        # The chunks follow each other. A chunk may begin before the row.
        has_rows = False
        for first_number, table in stored_chunks:
            if table is None:
                # A lost chunk: the source has its rows, and those after it.
                yield from self._source.open_shard_numbered(
                    shard_name, max(first_number, row)
                )
                return
            for number, stored_row in _read(table):
                if number >= row:
                    has_rows = True
                    yield number, stored_row
        if row and not has_rows:
            # The source decides whether a row beyond the last one is an error.
            yield from self._source.open_shard_numbered(shard_name, row)

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
    if dataset is None or not dataset.cache_enabled:
        return tokens
    if cache_tokenized is False or not section.enabled:
        return tokens
    if not (cache_tokenized or dataset.cache_path or section.keeps_tokens):
        return tokens

    # Rows have an identity only if they come from files, through steps with names.
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
    path, file_bytes, token = version
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
        return [file_bytes, content]
    if hash_fn == "combined":
        return [path, file_bytes, token, content]
    return [path, file_bytes, token, ""]


def _key(
    rows: ShardedDataSource,
    dataset: DatasetConfig,
    context: PipelineContext,
    settings: dict[str, Any],
    index: int,
    packing: bool,
) -> str:
    """Return the key of the tokens of one shard.

    It is a hash of everything that decides them.

    Args:
        rows: Rows that the tokens are made of.
        dataset: Configuration of the dataset.
        context: Context of the pipeline.
        settings: Values that decide the tokens and are not in the configuration.
        index: Index of the shard in ``shard_names``.
        packing: Whether the rows are packed later.
    """
    # With `num_rows`, the number of rows of a shard depends on the shards before it.
    versions = [rows.versions[index]]
    if dataset.num_rows:
        versions = list(rows.versions[: index + 1])
    source = resolve_source(context.config_with_packing(packing), with_lines(dataset))
    tokenizer = context.tokenizers[source.name]
    eos_token_id: int | None = None
    if packing:
        eos_token_id = context.config.pack.eos_token_id
    hash_fn = context.config.cache.hash_fn
    return fingerprint(
        {
            "format": _FORMAT,
            "version": __version__,
            "source": source_identity(replace(source, texts=sealed(source.texts))),
            "num_rows": source.num_rows,
            "inputs": [_input_identity(version, hash_fn) for version in versions],
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
            "eos": eos_token_id,
            **settings,
        }
    )[:32]


# --- Rows as tables, and back


def _read(table: pa.Table) -> Numbered:
    """Yield the rows of a chunk, each with its number."""
    columns: Any = table
    readers: dict[str, Callable[[int], Any]] = {}
    for field_name in _TOKENS:
        if field_name in columns.column_names:
            readers[field_name] = _array_reader(columns, field_name)

    # Each row is its other fields, and its tokens as copies of the columns.
    numbers = columns[_NUMBER].to_pylist()
    json_texts = columns[_REST].to_pylist()
    for row_index, (number, json_text) in enumerate(
        zip(numbers, json_texts, strict=True)
    ):
        # orjson reads integers beyond 64 bits as doubles.
        parse = json.loads if _LARGE_NUMBER.search(json_text) else orjson.loads
        row: Row = parse(json_text)
        for field_name, read_array in readers.items():
            row[field_name] = read_array(row_index)
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
        dtype = _TOKENS[name]
        return lambda place: np.ones(offsets[place + 1] - offsets[place], dtype)
        return lambda place: np.ones(offsets[place + 1] - offsets[place], _TOKENS[name])
    tokens = values(lists.values)
    return lambda place: tokens[offsets[place] : offsets[place + 1]].copy()


def _storing(rows: Numbered, writer: ChunkWriter) -> Numbered:
    """Yield rows and store them chunk by chunk.

    Rows with the same number stay in one chunk. A chunk is a table, so all its rows
    have the same fields of tokens; if rows of one number differ in them, the shard is
    not stored.
    """
    pending_rows: list[tuple[int, Row]] = []
    token_count = 0
    is_storable = True
    for number, row in rows:
        has_new_fields = False
        if pending_rows:
            has_new_fields = _token_fields(row) != _token_fields(pending_rows[0][1])
        # A new number may begin a new chunk.
        if pending_rows and number != pending_rows[-1][0]:
            is_full = token_count >= _CHUNK_TOKENS or len(pending_rows) >= _CHUNK_ROWS
            if is_full or has_new_fields:
                writer.add(pending_rows[0][0], _table(pending_rows))
                pending_rows = []
                token_count = 0
        elif has_new_fields:
            is_storable = False
        if is_storable:
            pending_rows.append((number, row))
            token_count += len(row.get("input_ids", ()))
        yield number, row

    # Without the end, which `finish` writes, readers ignore the chunks.
    if pending_rows and is_storable:
        writer.add(pending_rows[0][0], _table(pending_rows))
    if is_storable:
        writer.finish()


def _token_fields(row: Row) -> list[str]:
    """Return the fields of tokens that a row has, in the order of the columns."""
    return [name for name in _TOKENS if name in row]


def _table(numbered_rows: Sequence[tuple[int, Row]]) -> pa.Table:
    """Return rows as a table: numbers, tokens, and a JSON text of all other fields.

    Raises:
        ConfigError: JSON has no value for one of the other fields.
    """
    numbers = [number for number, _ in numbered_rows]
    rows = [row for _, row in numbered_rows]
    columns: dict[str, Any] = {_NUMBER: pa.array(numbers, pa.int64())}

    json_texts: list[str] = []
    for row in rows:
        other_fields = {
            field_name: value
            for field_name, value in row.items()
            if field_name not in _TOKENS
        }
        try:
            json_texts.append(
                dump_json(other_fields, option=_EXACT, keeps_infinity=True).decode()
            )
        except TypeError as error:
            raise ConfigError(
                f"tokenize.cache_tokenized: a kept field contains a value that JSON does not support ({error}); drop "
                "the field, or leave cache_tokenized out"
            ) from error
    columns[_REST] = json_texts

    # Fields of tokens become columns of lists.
    lengths: dict[str, list[int]] = {}
    for field_name in _token_fields(rows[0]):
        lengths[field_name] = [len(row[field_name]) for row in rows]
    for field_name, field_lengths in lengths.items():
        tokens = np.concatenate(
            [np.asarray(row[field_name], _TOKENS[field_name]) for row in rows]
        )
        # A mask of ones is stored as nulls: its lengths are those of the ids.
        has_lengths_of_ids = field_lengths == lengths.get(_INPUT)
        if field_name == _ONES and has_lengths_of_ids and tokens.all():
            columns[field_name] = pa.nulls(len(rows))
            continue
        offsets = np.cumsum([0, *field_lengths], dtype=np.int32)
        columns[field_name] = _ARROW.ListArray.from_arrays(
            _arrow_array(offsets), _arrow_array(tokens)
        )
    return _ARROW.table(columns)


def _arrow_array(numbers: npt.NDArray[Any]) -> Any:
    """Return an array of int32 or bool as an Arrow array.

    `pa.array` would import pandas where it is installed.
    """
    if numbers.dtype == np.bool_:
        return mask_of(numbers)
    return _ARROW.Array.from_buffers(
        pa.int32(), len(numbers), [None, _ARROW.py_buffer(numbers)]
    )

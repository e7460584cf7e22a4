"""Rows of tokens that a pipeline keeps in a cache while they are drawn for the first time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final, final

import numpy as np
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
"""Of the kept rows; a new one makes all of them anew."""
_TOKENS: Final = {"input_ids": np.int32, "attention_mask": np.int32, "loss_mask": np.bool_}
_NUMBER, _REST, _INPUT, _ONES = "number", "rest", "input_ids", "attention_mask"
_CHUNK_TOKENS, _CHUNK_ROWS = 1 << 20, 4096
_LARGE_NUMBER: Final = re.compile("[0-9]{19}|1e999")
_EXACT: Final = (
    orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_ARROW: Final[Any] = pa


@final
class CachedShardedSource(DerivedSource):
    """Another source's shards, each kept in a cache once it was read from its first row to its last.

    The first reading passes rows on as they come and keeps them beside that, some thousand at a time. Later ones read
    the cache, at any row; where it has lost some, they go on with the source's. Rows and their numbers are the same
    either way, and where nothing can be written they come all the same.

    Rows hold arrays of tokens, and other fields that JSON has.
    """

    def __init__(self, source: ShardedDataSource, kept: DatasetCache, key: Callable[[int], str]) -> None:
        """Keep the rows of `source`.

        Args:
            key: of a shard (its place in ``shard_names``), asked whenever one is opened. It identifies everything that
                decides these rows.
        """
        self._source, self._kept, self._key = source, kept, key

    def _rows(self, index: int, row: int) -> Numbered:
        name, key, found = self.shard_names[index], self._key(index), False
        chunks = self._kept.chunks(key, row)
        if chunks is None:
            rows = self._source.open_shard_numbered(name, row)
            yield from rows if row else _keeping(rows, self._kept.writer(key))
            return
        for first, table in chunks:
            if table is None:
                yield from self._source.open_shard_numbered(name, max(first, row))
                return
            for number, kept in _read(table):
                if number >= row:
                    found = True
                    yield number, kept
        if row and not found:  # a row beyond the end is the source's to judge
            yield from self._source.open_shard_numbered(name, row)

    def __repr__(self) -> str:
        return f"CachedShardedSource({self._source!r})"


def cached(
    tokens: ShardedDataSource,
    rows: ShardedDataSource,
    name: str,
    context: PipelineContext,
    wanted: dict[str, Any],
) -> ShardedDataSource:
    """Return rows of tokens, which are kept where ``tokenize.cache_tokenized`` says so.

    Where it says nothing, they are kept if the dataset has a `cache_path`, or the section `cache` is written out, and
    everything that makes them can be recognized by its name (a lambda cannot): a pipeline fills no disk unasked.

    Args:
        tokens: what is kept.
        rows: what it is made of.
        wanted: what decides the tokens beside the configuration.

    Raises:
        ConfigError: they are to be kept, and something makes them that has no name, such as a lambda.
    """
    dataset, section = context.dataset(name), context.config.cache
    asked = context.config.tokenize.cache_tokenized
    if asked is False or dataset is None or not dataset.cache_enabled or not section.enabled:
        return tokens
    if not (asked or dataset.cache_path or section.keeps_tokens):
        return tokens
    try:
        if rows is not context.opened.get(name):
            raise ConfigError("a stage of your own makes them")
        sealed(resolve_source(context.config, dataset).texts)
    except ConfigError as error:
        if not asked:
            return tokens
        why = f"what makes them has no name to recognize it by: {error}. Leave it out, or save() the rows"
        raise ConfigError(f"tokenize.cache_tokenized: the rows of {name!r} cannot be kept: {why}") from error
    key = cache(partial(_key, rows, dataset, context, wanted))
    # Asked when rows are drawn, because packing may be asked for later.
    kept = DatasetCache(context.cache_at(dataset.cache_path))
    return CachedShardedSource(tokens, kept, lambda index: key(index, context.packing))


def _input_identity(version: tuple[str, int, str], hash_fn: str) -> list[Any]:
    """Return what tells that an input is the same: its bytes, its path and its state there, or both."""
    path, size, token = version
    content = token
    if hash_fn != "path" and token.startswith("stat:"):
        with HashCache() as known:  # a file that is remembered is not read again
            found = FileStat.of(path)
            [(_, sha256)] = hash_files([FoundFile(path, path, found)], 1, known, None)
        if stat_token(found) != token:
            raise InputChangedError(
                f"{path}: the file has changed since it was listed; open the source again"
            )
        content = f"sha256:{sha256}"
    if hash_fn == "content":
        return [size, content]
    return [path, size, token, content if hash_fn == "combined" else ""]


def _key(
    rows: ShardedDataSource,
    dataset: DatasetConfig,
    context: PipelineContext,
    wanted: dict[str, Any],
    index: int,
    packing: bool,
) -> str:
    """Return a name for everything that decides the tokens of the shard at `index`."""
    # How many rows a shard gives hangs on those before it where a number of rows is asked for.
    versions = rows.versions[: index + 1] if dataset.num_rows else [rows.versions[index]]
    source = resolve_source(context.config_with_packing(packing), with_lines(dataset))
    chosen = context.tokenizers[source.name]
    return fingerprint(
        {
            "format": _FORMAT,
            "version": __version__,
            "source": source_identity(replace(source, texts=sealed(source.texts))),
            "num_rows": source.num_rows,
            "inputs": [_input_identity(version, context.config.cache.hash_fn) for version in versions],
            # By its files and who runs them: to ask it for its ids, as its fingerprint does, takes 0.4 s.
            "tokenizer": [content_hash(chosen.files), produced_by("tokenizers")["tokenizers"]],
            "options": chosen.config.model_dump(mode="json", exclude={"name_or_path"}),
            "packing": packing,
            "eos": context.config.pack.eos_token_id if packing else None,
            **wanted,
        }
    )[:32]


def _read(table: pa.Table) -> Numbered:
    columns: Any = table
    names = [name for name in _TOKENS if name in columns.column_names]
    tokens = {name: _arrays(columns, name) for name in names}
    rows = zip(columns[_NUMBER].to_pylist(), columns[_REST].to_pylist(), strict=True)
    for at, (number, rest) in enumerate(rows):
        # orjson makes doubles of integers beyond 64 bits.
        others = json.loads(rest) if _LARGE_NUMBER.search(rest) else orjson.loads(rest)
        yield number, others | {name: arrays(at) for name, arrays in tokens.items()}


def _arrays(table: Any, name: str) -> Callable[[int], Any]:
    """Return what makes the tokens of a row; a mask that is one everywhere was not written."""
    ones = pa.types.is_null(table.schema.field(name).type)
    written = table[_INPUT if ones else name].chunk(0)
    offsets = values(written.offsets).tolist()
    if ones:
        return lambda at: np.ones(offsets[at + 1] - offsets[at], _TOKENS[name])
    tokens = values(written.values)
    return lambda at: tokens[offsets[at] : offsets[at + 1]].copy()


def _keeping(rows: Numbered, writer: ChunkWriter) -> Numbered:
    """Yield rows, and keep them beside that, some at a time; rows of one number stay together."""
    held, tokens, kept = list[tuple[int, Row]](), 0, True
    for number, row in rows:
        if held and number != held[-1][0]:
            if tokens >= _CHUNK_TOKENS or len(held) >= _CHUNK_ROWS or _fields(row) != _fields(held[0][1]):
                writer.add(held[0][0], _table(held))
                held, tokens = [], 0
        elif held and _fields(row) != _fields(held[0][1]):
            kept = False  # rows of one number that are no table: these are not kept
        if kept:
            held.append((number, row))
            tokens += len(row.get("input_ids", ()))
        yield number, row
    if held and kept:
        writer.add(held[0][0], _table(held))
    if kept:
        writer.finish()


def _fields(row: Row) -> list[str]:
    return [name for name in _TOKENS if name in row]


def _table(held: Sequence[tuple[int, Row]]) -> pa.Table:
    """Return rows as a table: their numbers, their tokens, and a JSON text of all else."""
    columns: dict[str, Any] = {_NUMBER: pa.array([number for number, _ in held], pa.int64())}
    try:
        others = [{name: value for name, value in row.items() if name not in _TOKENS} for _, row in held]
        columns[_REST] = [dump_json(rest, option=_EXACT, keeps_infinity=True).decode() for rest in others]
    except TypeError as error:
        why = f"a kept field holds what JSON does not have ({error}); do not keep it, or leave cache_tokenized out"
        raise ConfigError(f"tokenize.cache_tokenized: {why}") from error
    lengths = {name: [len(row[name]) for _, row in held] for name in _fields(held[0][1])}
    for name, own in lengths.items():
        tokens = np.concatenate([np.asarray(row[name], _TOKENS[name]) for _, row in held])
        if name == _ONES and own == lengths.get(_INPUT) and tokens.all():
            columns[name] = pa.nulls(len(held))
            continue
        # `pa.array` of an array would import pandas where that is installed.
        plain: list[Any] = [np.cumsum([0, *own], dtype=np.int32), tokens]
        for place, each in enumerate(plain):
            whole = [None, _ARROW.py_buffer(each)]
            numbers = each.dtype != np.bool_
            plain[place] = (
                _ARROW.Array.from_buffers(pa.int32(), len(each), whole) if numbers else mask_of(each)
            )
        columns[name] = _ARROW.ListArray.from_arrays(*plain)
    return _ARROW.table(columns)

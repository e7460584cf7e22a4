"""Rows of tokens that are kept on disk while they are drawn for the first time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import orjson
import pyarrow.parquet as pq

from tokenlake._version import __version__
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.identity import source_identity
from tokenlake.config.resolve import resolve_source
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError, StoreError
from tokenlake.export.manifest import FlatManifest
from tokenlake.fingerprint import fingerprint
from tokenlake.rowwise.file_rows import default_path
from tokenlake.rowwise.save import DatasetWriter, create_writer
from tokenlake.rowwise.source import DerivedSource, Numbered, Row, ShardedDataSource
from tokenlake.rowwise.stage import PipelineContext
from tokenlake.text.steps import sealed
from tokenlake.tokenizers.manager import compute_tokenizer_hash

_FORMAT: Final = 1
"""Of the kept rows; a new one makes all of them anew."""

_TOKENS: Final = {"input_ids": np.int32, "attention_mask": np.int32, "loss_mask": np.bool_}
_NUMBER, _REST = "number", "rest"


@final
class CachedShardedSource(DerivedSource):
    """Another source's shards, each kept in a folder once it was read from its first row to its last.

    The first reading passes rows on as they come and writes them beside that; it is kept when it came to its end, and
    left no trace otherwise. Later ones read the folder, at any row. Rows and their numbers are the same either way.
    Where the folder cannot be written, or another process writes it, rows come all the same.

    Rows hold arrays of tokens, and other fields that JSON has.
    """

    def __init__(self, source: ShardedDataSource, folder: Callable[[], Path]) -> None:
        """Keep the rows of `source`.

        Args:
            folder: asked whenever a shard is opened. Its name identifies everything that decides these rows.
        """
        self._source, self._folder = source, folder

    def _rows(self, index: int, row: int) -> Numbered:
        folder, found = self._folder() / f"{index:05}", False
        if (files := _kept(folder)) is not None:
            for number, kept in _read(files, row):
                found = True
                yield number, kept
            if found or not row:
                return
        # A row beyond the end is the source's to judge.
        rows = self._source.open_shard_numbered(self.shard_names[index], row)
        yield from rows if row else _keeping(rows, folder)

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

    Where it says nothing, they are kept if the dataset has a `cache_path`, and everything that makes them can be
    recognized by its name (a lambda cannot): a pipeline fills no disk unasked.

    Args:
        tokens: what is kept.
        rows: what it is made of.
        wanted: what decides the tokens beside the configuration.

    Raises:
        ConfigError: they are to be kept, and something makes them that has no name, such as a lambda.
    """
    dataset = context.dataset(name)
    asked = context.config.tokenize.cache_tokenized
    if asked is False or dataset is None or not dataset.cache_enabled or not (asked or dataset.cache_path):
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

    @cache
    def folder(packing: bool) -> Path:
        own = Path(dataset.cache_path) if dataset.cache_path else default_path().parent / "tokens"
        return own / _key(dataset, rows.versions, context, packing, wanted)

    # Asked when rows are drawn, because packing may be asked for later.
    return CachedShardedSource(tokens, lambda: folder(context.packing))


def _key(
    dataset: DatasetConfig,
    inputs: Sequence[tuple[str, int, str]],
    context: PipelineContext,
    packing: bool,
    wanted: dict[str, Any],
) -> str:
    """Return a name for everything that decides the tokens of a dataset."""
    source = resolve_source(context.config_with_packing(packing), dataset)
    chosen = context.tokenizers[source.name]
    return fingerprint(
        {
            "format": _FORMAT,
            "version": __version__,
            "source": source_identity(replace(source, texts=sealed(source.texts))),
            "num_rows": source.num_rows,
            "inputs": [list(version) for version in inputs],
            "tokenizer": compute_tokenizer_hash(chosen),
            "options": chosen.config.model_dump(mode="json", exclude={"name_or_path"}),
            "packing": packing,
            "eos": context.config.pack.eos_token_id if packing else None,
            **wanted,
        }
    )[:32]


def _kept(folder: Path) -> list[Path] | None:
    """Return the files of a folder that was written to its end, None where there is none."""
    try:
        return [folder / file.path for file in FlatManifest.of(folder).files if file.rows]
    except (NotFoundError, IntegrityError):
        return None


def _read(files: Sequence[Path], row: int) -> Numbered:
    for path in files:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(batch_size=512):
                for kept in batch.to_pylist():
                    if kept[_NUMBER] >= row:
                        tokens = {
                            name: np.array(kept[name], kind) for name, kind in _TOKENS.items() if name in kept
                        }
                        yield kept[_NUMBER], orjson.loads(kept[_REST]) | tokens


def _keeping(rows: Numbered, folder: Path) -> Numbered:
    """Yield rows, and write them beside that."""
    writer: DatasetWriter | None = None
    with suppress(OSError, StoreError, ConfigError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        writer = create_writer(folder, "parquet", overwrite=True).__enter__()
    try:
        for number, row in rows:
            writer = writer and _added(writer, number, row)
            yield number, row
    except BaseException as error:
        if writer is not None:
            writer.__exit__(type(error), error, error.__traceback__)
        raise
    with suppress(OSError, StoreError):  # rows were passed on; the next reading makes them again
        if writer is not None:
            writer.__exit__(None, None, None)


def _added(writer: DatasetWriter, number: int, row: Row) -> DatasetWriter | None:
    """Add a row; where that fails, give the writer up."""
    tokens = {name: row[name] for name in _TOKENS if name in row}
    try:
        rest = orjson.dumps({name: value for name, value in row.items() if name not in _TOKENS}).decode()
    except TypeError as error:
        why = f"a kept field holds what JSON does not have ({error}); do not keep it, or leave cache_tokenized out"
        raise ConfigError(f"tokenize.cache_tokenized: {why}") from error
    try:
        writer.add({_NUMBER: number, _REST: rest, **tokens})
    except Exception as error:
        writer.__exit__(type(error), error, error.__traceback__)
        return None
    return writer

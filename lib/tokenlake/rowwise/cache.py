"""Rows of tokens that are kept on disk while they are drawn for the first time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import orjson
import pyarrow.parquet as pq

from tokenlake._version import __version__
from tokenlake.config.identity import source_identity
from tokenlake.config.resolve import resolve_source
from tokenlake.errors import ConfigError, IntegrityError, NotFoundError, StoreError
from tokenlake.fingerprint import fingerprint
from tokenlake.rowwise.directory import FlatManifest
from tokenlake.rowwise.save import DatasetWriter, create_writer
from tokenlake.rowwise.source import DerivedSource, Numbered, Row, ShardedDataSource, check_row, index_of
from tokenlake.text.steps import sealed
from tokenlake.tokenizers.manager import compute_tokenizer_hash

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.rowwise.stage import PipelineContext

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

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        check_row(row)
        return self._rows(shard_name, self._folder() / f"{index_of(shard_name, self.shard_names):05}", row)

    def _rows(self, name: str, folder: Path, row: int) -> Numbered:
        if (files := _kept(folder)) is not None:
            found = False
            for number, kept in _read(files, row):
                found = True
                yield number, kept
            if found or not row:
                return
        # A row beyond the end is the source's to judge.
        rows = self._source.open_shard_numbered(name, row)
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
        raise ConfigError(
            f"tokenize.cache_tokenized: the rows of {name!r} cannot be kept, because what makes them "
            f"has no name to recognize it by: {error}. Leave cache_tokenized out, or save() the rows"
        ) from error
    folders: dict[bool, Path] = {}

    def folder() -> Path:
        packing = context.packing  # asked when rows are drawn, because packing may be asked for later
        if packing not in folders:
            own = Path(dataset.cache_path) if dataset.cache_path else _default_folder()
            folders[packing] = own / _key(dataset, rows.versions, context, packing, wanted)
        return folders[packing]

    return CachedShardedSource(tokens, folder)


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
            "tokenizer": compute_tokenizer_hash(chosen.loaded),
            "options": chosen.options.model_dump(mode="json", exclude={"name_or_path"}),
            "packing": packing,
            "eos": context.config.pack.eos_token_id if packing else None,
            **wanted,
        }
    )[:32]


def _default_folder() -> Path:
    own = os.environ.get("TOKENLAKE_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(own) if own else Path(home) / "tokenlake") / "tokens"


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
                        yield kept[_NUMBER], _restored(kept)


def _restored(kept: dict[str, Any]) -> Row:
    rest: Row = orjson.loads(kept[_REST])
    return rest | {name: np.array(kept[name], kind) for name, kind in _TOKENS.items() if name in kept}


def _keeping(rows: Numbered, folder: Path) -> Numbered:
    """Yield rows, and write them beside that."""
    writer = _started(folder)
    try:
        for number, row in rows:
            if writer is not None and not _added(writer, number, row):
                writer = None
            yield number, row
    except BaseException as error:
        if writer is not None:
            writer.__exit__(type(error), error, error.__traceback__)
        raise
    if writer is not None:
        _finished(writer)


def _started(folder: Path) -> DatasetWriter | None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        return create_writer(folder, "parquet", overwrite=True).__enter__()
    except (OSError, StoreError, ConfigError):
        return None


def _added(writer: DatasetWriter, number: int, row: Row) -> bool:
    """Add a row; where that fails, give the writer up and return False."""
    tokens = {name: row[name] for name in _TOKENS if name in row}
    rest = {name: value for name, value in row.items() if name not in _TOKENS}
    try:
        writer.add({_NUMBER: number, _REST: _json(rest), **tokens})
    except ConfigError:
        raise
    except Exception as error:
        writer.__exit__(type(error), error, error.__traceback__)
        return False
    return True


def _json(rest: Row) -> str:
    try:
        return orjson.dumps(rest).decode()
    except TypeError as error:
        raise ConfigError(
            f"tokenize.cache_tokenized: a kept field holds what JSON does not have ({error}), so it would come back as "
            "something else; do not keep it, or leave cache_tokenized out"
        ) from error


def _finished(writer: DatasetWriter) -> None:
    try:
        writer.__exit__(None, None, None)
    except (OSError, StoreError):
        return  # rows were passed on; the next reading makes them again

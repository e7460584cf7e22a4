"""Which rows of tokens are kept on disk, and under which name: everything that decides them is in it.

Rows of tokens that are kept on disk while they are drawn for the first time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
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
from tokenlake.rowwise.save import create_writer
from tokenlake.rowwise.source import (
    Numbered,
    Row,
    ShardedDataSource,
    ShardInfo,
    check_row,
    index_of,
    without_numbers,
)
from tokenlake.rowwise.writer import DatasetWriter
from tokenlake.text.steps import sealed
from tokenlake.tokenizers.manager import compute_tokenizer_hash

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.rowwise.stage import PipelineContext

_TOKENS: Final = {"input_ids": np.int32, "attention_mask": np.int32, "loss_mask": np.bool_}
_NUMBER, _REST = "number", "rest"


@final
class CachedShardedSource(ShardedDataSource):
    """Another source's shards, each kept in a folder once it was read from its first row to its last.

    The first reading passes rows on as they come and writes them beside that; it is kept when it came to its end, and
    left no trace otherwise. Later ones read the folder, at any row. Rows and their numbers are the same either way.
    Where the folder cannot be written, or another process writes it, rows come all the same.

    Rows hold arrays of tokens, and other fields that JSON has.
    """

    def __init__(self, source: ShardedDataSource, folder: Callable[[], Path]) -> None:
        """Keep the rows of `source`.

        Args:
            folder: asked whenever a shard is opened. It is for these rows alone: its name says all that decides them.
        """
        self._source, self._folder = source, folder

    @property
    def shard_names(self) -> Sequence[str]:
        return self._source.shard_names

    @property
    def every_row(self) -> bool:
        return self._source.every_row

    @property
    def versions(self) -> Sequence[tuple[str, int, str]]:
        return self._source.versions

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return without_numbers(self.open_shard_numbered(shard_name))

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        check_row(row)
        return self._rows(shard_name, self._folder() / f"{index_of(shard_name, self.shard_names):05}", row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return self._source.get_shard_info(shard_name)

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
        text = orjson.dumps(rest)
    except TypeError as error:
        raise ConfigError(
            f"tokenize.cache_tokenized: a kept field holds what JSON does not have ({error}), so it would come back as "
            "something else; do not keep it, or leave cache_tokenized out"
        ) from error
    return text.decode()


def _finished(writer: DatasetWriter) -> None:
    try:
        writer.__exit__(None, None, None)
    except (OSError, StoreError):
        return  # rows were passed on; the next reading makes them again


_FORMAT: Final = 1
"""Of the kept rows; a new one makes all of them anew."""


def cached(
    tokens: ShardedDataSource,
    rows: ShardedDataSource,
    name: str,
    context: PipelineContext,
    wanted: dict[str, Any],
) -> ShardedDataSource:
    """Return rows of tokens, which are kept where ``tokenize.cache_tokenized`` says so.

    Where it says nothing, they are kept if the dataset has a `cache_path`, and nothing decides them that cannot be told
    by its name (a lambda, say): a pipeline fills no disk unasked.

    Args:
        tokens: what is kept.
        rows: what it is made of.
        wanted: what decides the tokens beside the configuration.

    Raises:
        ConfigError: they are to be kept, and something decides them that cannot be told by its name.
    """
    dataset = context.dataset(name)
    asked = context.config.tokenize.cache_tokenized
    if asked is False or dataset is None or not dataset.cache_enabled or not (asked or dataset.cache_path):
        return tokens
    folder = _Folder(dataset, rows, context, wanted)
    try:
        folder.check()
    except ConfigError as error:
        if not asked:
            return tokens
        raise ConfigError(
            f"tokenize.cache_tokenized: the rows of {name!r} cannot be kept, because nobody could tell when they "
            f"change: {error}. Leave cache_tokenized out, or save() the rows"
        ) from error
    return CachedShardedSource(tokens, folder)


@final
class _Folder:
    """The folder of a source's tokens; asked when rows are drawn, because packing may be asked for later."""

    def __init__(
        self,
        dataset: DatasetConfig,
        rows: ShardedDataSource,
        context: PipelineContext,
        wanted: dict[str, Any],
    ) -> None:
        self._dataset, self._rows, self._context, self._wanted = dataset, rows, context, wanted
        self._found: dict[bool, Path] = {}

    def __call__(self) -> Path:
        packing = self._context.packing
        if packing not in self._found:
            own = self._dataset.cache_path
            self._found[packing] = (Path(own) if own else _default_folder()) / self._key(packing)
        return self._found[packing]

    def check(self) -> None:
        """Raise ConfigError if something decides the rows that has no name."""
        if self._rows is not self._context.opened.get(self._dataset.name or ""):
            raise ConfigError("a stage of your own makes them")
        sealed(resolve_source(self._context.config, self._dataset).texts)

    def _key(self, packing: bool) -> str:
        config = self._context.config
        pack = config.pack.model_copy(update={"enabled": packing})
        source = resolve_source(config.model_copy(update={"pack": pack}), self._dataset)
        chosen = self._context.tokenizers[source.name]
        return fingerprint(
            {
                "format": _FORMAT,
                "version": __version__,
                "source": source_identity(replace(source, texts=sealed(source.texts))),
                "num_rows": source.num_rows,
                "inputs": [list(version) for version in self._rows.versions],
                "tokenizer": compute_tokenizer_hash(chosen.loaded),
                "options": chosen.options.model_dump(mode="json", exclude={"name_or_path"}),
                "packing": packing,
                "eos": config.pack.eos_token_id if packing else None,
                **self._wanted,
            }
        )[:32]


def _default_folder() -> Path:
    own = os.environ.get("TOKENLAKE_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(own) if own else Path(home) / "tokenlake") / "tokens"

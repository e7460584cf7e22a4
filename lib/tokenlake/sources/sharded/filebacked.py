"""Sources whose shards are files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self, Unpack, final

from tokenlake.errors import ConfigError
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.listing import list_inputs
from tokenlake.sources.sharded.base import Numbered, ShardedDataSource, without_numbers
from tokenlake.sources.sharded.fields import Row
from tokenlake.sources.sharded.files import FileShards
from tokenlake.sources.sharded.info import ShardInfo
from tokenlake.sources.sharded.options import DataFiles, ReadOptions, wanted_source


class FileBacked(ShardedDataSource):
    """A source that reads its rows from files; a shard is a file.

    All of these take, after the arguments of their own, the keywords of
    :class:`tokenlake.sources.sharded.options.ReadOptions`. Opening a source lists its files; it reads none.
    """

    _shards: FileShards

    @classmethod
    def over(cls, shards: FileShards) -> Self:
        """Return a source of files that were listed already."""
        source = cls.__new__(cls)
        source._shards = shards
        return source

    @property
    def shard_names(self) -> Sequence[str]:
        return self._shards.names

    @property
    def every_row(self) -> bool:
        return self._shards.every_row

    @property
    def versions(self) -> Sequence[tuple[str, int, str]]:
        return [(file.url, file.size, file.token) for file in self._shards.files]

    def open_shard(self, shard_name: str) -> Iterator[Row]:
        return without_numbers(self._shards.rows(shard_name, 0))

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        return self._shards.rows(shard_name, row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        return self._shards.info(shard_name)

    def count_rows(self, shard_name: str) -> int:
        """Return how many rows a shard has, good or bad; reads it where nothing else tells."""
        return self._shards.count(shard_name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._shards.source.data_files)!r}, shards={self.num_shards()})"


@final
class ParquetShardedSource(FileBacked):
    """Parquet files. Opening at a row decodes the row group that holds it and those after, nothing before."""

    def __init__(
        self,
        data_files: DataFiles,
        storage_options: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files; `columns`: the only ones to read, None for all."""
        if columns is not None and (isinstance(columns, str) or not columns):
            raise ConfigError(f"columns: got {columns!r}, must be a list of names, or None for all columns")
        source = wanted_source("parquet", data_files, storage_options, **options)
        self._shards = FileShards(source, list_inputs(source, hashed=False), columns)


@final
class JsonShardedSource(FileBacked):
    """JSON Lines, or JSON arrays of objects."""

    def __init__(
        self,
        data_files: DataFiles,
        storage_options: Mapping[str, Any] | None = None,
        jsonl: bool = True,
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files.

        Args:
            jsonl: files have an object on every line; else the beginning of each tells whether it has, or is an
                array of objects.
        """
        source = wanted_source("jsonl" if jsonl else "json", data_files, storage_options, **options)
        self._shards = FileShards(source, list_inputs(source, hashed=False))


@final
class ArrowShardedSource(FileBacked):
    """Arrow IPC files and streams."""

    def __init__(
        self,
        data_files: DataFiles,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files."""
        source = wanted_source("arrow", data_files, storage_options, **options)
        self._shards = FileShards(source, list_inputs(source, hashed=False))


@final
class CsvShardedSource(FileBacked):
    """CSV with a header line; every value is text."""

    def __init__(
        self,
        data_files: DataFiles,
        storage_options: Mapping[str, Any] | None = None,
        delimiter: str = ",",
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files; `delimiter`: between cells, where the comma means a tab in ``.tsv`` files."""
        between = None if delimiter == "," else delimiter
        source = wanted_source("csv", data_files, storage_options, **options)
        source = replace(source, delimiter=between)
        self._shards = FileShards(source, list_inputs(source, hashed=False))


@final
class TextShardedSource(FileBacked):
    """Text files: every line that is not empty is a row, or every file."""

    def __init__(
        self,
        data_files: DataFiles,
        storage_options: Mapping[str, Any] | None = None,
        text_field: str = "text",
        *,
        text_mode: Literal["lines", "document"] = "lines",
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files; `text_field`: the field of a row that gets the text, without its end of line."""
        if text_mode not in ("lines", "document"):
            raise ConfigError(f"text_mode: got {text_mode!r}, must be 'lines' or 'document'")
        source = wanted_source("text", data_files, storage_options, **options)
        source = replace(source, content_field=text_field, text_mode=text_mode)
        self._shards = FileShards(source, list_inputs(source, hashed=False))


@final
class HuggingFaceShardedSource(FileBacked):
    """A dataset on the Hub, at the commit that its branch points to when it is opened."""

    def __init__(
        self,
        dataset_name: str,
        split: str = "train",
        subset: str | None = None,
        streaming: bool = True,
        cache_dir: str | None = None,
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files of one split.

        Args:
            streaming: read over the network, and store nothing; else download the files first.
            cache_dir: where downloaded files are kept; None for the cache of `huggingface_hub`.
        """
        if streaming and cache_dir is not None:
            raise ConfigError(
                f"cache_dir: got {cache_dir!r}, but nothing is kept with streaming=True; set streaming=False "
                "to download the files first, or leave cache_dir out"
            )
        source = wanted_source("hub", dataset_name, None, **options)
        source = replace(source, split=split, subset=subset)
        files = list_inputs(source, hashed=False)
        self._shards = FileShards(source, files if streaming else downloaded_first(files, cache_dir))


@final
class FilesShardedSource(FileBacked):
    """Files of any format, each read as its extension says."""

    def __init__(
        self,
        data_files: DataFiles,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files."""
        source = wanted_source(None, data_files, storage_options, **options)
        self._shards = FileShards(source, list_inputs(source, hashed=False))


def downloaded_first(files: list[InputFile], cache_dir: str | None = None) -> list[InputFile]:
    """Return files of the Hub as files of this machine."""
    from tokenlake.sources.hub.cache import downloaded  # other sources start without the Hub's parts

    return downloaded(files, None, cache_dir)

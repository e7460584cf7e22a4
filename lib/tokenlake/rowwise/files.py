"""Sources whose shards are files, of any format, local or at a URL or on the Hub."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypedDict, Unpack, final

from tokenlake import config as configuration
from tokenlake.config.resolve import resolve_dataset, resolve_source
from tokenlake.config.resolved import ResolvedSource
from tokenlake.errors import ConfigError, NotAvailableError
from tokenlake.rowwise.file_rows import (
    END,
    FileRows,
    RowIndexes,
    is_lines,
    line_rows,
    rows_without_reading,
    seek,
)
from tokenlake.rowwise.source import (
    Numbered,
    NumberedSource,
    ShardedDataSource,
    ShardInfo,
    TransformedShardedSource,
    beyond,
    check_row,
    index_of,
    section,
    whole_number,
)
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.listing import list_inputs
from tokenlake.sources.local.patterns import expand, is_url
from tokenlake.sources.where import Predicate
from tokenlake.text.steps import open_chain
from tokenlake.text.transform import ChainedTransform

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.stages import SourceStageConfig

DataFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, glob, directory or URL, or several of them."""


# What a build does with documents; rows that come out as they are would not show it.
_FOR_BUILDS: Final = (
    "splits",
    "exclude",
    "max_bad_fraction",
    "chat",
    "prompt",
    "preference",
    "long_documents",
)


class ReadOptions(TypedDict, total=False):
    """Keywords of every source of files.

    Attributes:
        on_bad_record: ``fail`` (the default: the first bad record is an error) or ``quarantine`` (bad
            records are left out; their numbers stay unused).
        where: one SQL predicate (DuckDB) that rows must meet, such as ``"lang = 'en'"``.
        max_record_bytes: a longer record is a bad one; bytes, or text like "64MB". 256 MB by default.
        num_rows: read at most this many records, good or bad, in the order of the shards.
    """

    on_bad_record: Literal["fail", "quarantine"]
    where: str | None
    max_record_bytes: int | str
    num_rows: int | None


class FileBacked(NumberedSource):
    """A source that reads its rows from files; a shard is a file, its name the path below the root of the listing.

    All of these take, after the arguments of their own, the keywords of :class:`ReadOptions`. Opening a source lists
    its files; it reads none.
    """

    _wanted: ResolvedSource
    _files: tuple[InputFile, ...]
    _columns: tuple[str, ...] | None

    @classmethod
    def over(cls, source: ResolvedSource, files: Sequence[InputFile]) -> Self:
        """Return a source of files that were listed already."""
        made = cls.__new__(cls)
        made._open(source, files)
        return made

    def _open(
        self,
        source: ResolvedSource,
        files: Sequence[InputFile] | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._wanted = source
        self._files = tuple(list_inputs(source, hashed=False) if files is None else files)
        self._columns = None if columns is None else tuple(dict.fromkeys(columns))
        self._names = tuple(file.path for file in self._files)
        self._places = {name: place for place, name in enumerate(self._names)}
        self._indexes = RowIndexes()
        self._left = [source.num_rows]  # rows that may be read before each shard; grows with what is counted
        self._told: dict[int, int | None] = {}  # what metadata say of a shard's rows
        self._counted: dict[int, int] = {}  # what reading found

    @property
    def shard_names(self) -> Sequence[str]:
        return self._names

    @property
    def every_row(self) -> bool:
        return self._wanted.on_bad_record == "fail" and self._wanted.where is None

    @property
    def versions(self) -> Sequence[tuple[str, int, str]]:
        return [(file.url, file.size, file.token) for file in self._files]

    def open_shard_numbered(self, shard_name: str, row: int = 0) -> Numbered:
        check_row(row)
        return self._rows(self._index(shard_name), row)

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        index = self._index(shard_name)
        file = self._files[index]
        return ShardInfo(
            name=shard_name,
            index=index,
            url=file.url,
            format=file.format,
            compression=file.compression,
            bytes=file.size,
            rows=self._known_rows(index),
        )

    def count_rows(self, shard_name: str) -> int:
        """Return how many rows a shard has, good or bad; reads it where nothing else tells."""
        return self._count(self._index(shard_name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._wanted.data_files)!r}, shards={self.num_shards()})"

    def _index(self, name: str) -> int:
        place = self._places.get(name)
        return index_of(name, self._names) if place is None else place

    def _rows(self, index: int, row: int) -> Numbered:
        file, name, stop = self._files[index], self._names[index], self._stop(index)
        if stop is not None and row >= stop:
            if row > stop:
                raise beyond(name, row, stop)
            return
        start = seek(file, row, self._indexes, self._wanted.storage_options)
        reading = FileRows(file, name, self._wanted, self._columns)
        rows = yield from reading.rows(start, row, END if stop is None else stop)
        if rows != stop:  # the end of the file
            self._counted[index] = rows

    def _stop(self, index: int) -> int | None:
        """Return the number of the first row of a shard that `num_rows` leaves out."""
        while len(self._left) <= index:
            left = self._left[-1]
            self._left.append(left and left - self._count(len(self._left) - 1, left))
        return self._left[index]

    def _count(self, index: int, enough: int = END) -> int:
        """Return how many rows a shard has, at most `enough`."""
        rows = self._tell(index)
        rows = self._counted.get(index) if rows is None else rows
        if rows is None:
            rows = self._read_count(self._files[index], enough)
            if rows < enough:
                self._counted[index] = rows
        return min(rows, enough)

    def _read_count(self, file: InputFile, enough: int) -> int:
        options = self._wanted.storage_options
        if is_lines(file):
            return line_rows(file, enough, self._indexes, options)
        reading = FileRows(file, file.path, replace(self._wanted, where=None), None)
        return reading.count(seek(file, 0, self._indexes, options), enough)

    def _tell(self, index: int) -> int | None:
        if index not in self._told:
            self._told[index] = rows_without_reading(self._files[index], self._wanted.storage_options)
        return self._told[index]

    def _known_rows(self, index: int) -> int | None:
        rows, limit = self._tell(index), self._wanted.num_rows
        if rows is None or limit is None:
            return rows
        before = [self._tell(place) for place in range(index)]
        if None in before:
            return None
        return min(rows, max(0, limit - sum(count or 0 for count in before)))


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
        self._open(_resolved("parquet", data_files, storage_options, {}, **options), columns=columns)


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
        self._open(_resolved("jsonl" if jsonl else "json", data_files, storage_options, {}, **options))


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
        self._open(_resolved("arrow", data_files, storage_options, {}, **options))


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
        more = {"delimiter": None if delimiter == "," else delimiter}
        self._open(_resolved("csv", data_files, storage_options, more, **options))


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
        more = {"content_field": text_field, "text_mode": text_mode}
        self._open(_resolved("txt", data_files, storage_options, more, **options))


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
        source = _resolved("hf", dataset_name, None, {"split": split, "subset": subset}, **options)
        files = list_inputs(source, hashed=False)
        self._open(source, files if streaming else _downloaded(files, cache_dir))


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
        self._open(_resolved(None, data_files, storage_options, {}, **options))


_CLASSES: Final[dict[str, type[FileBacked]]] = {
    "jsonl": JsonShardedSource,
    "json": JsonShardedSource,
    "parquet": ParquetShardedSource,
    "arrow": ArrowShardedSource,
    "csv": CsvShardedSource,
    "tsv": CsvShardedSource,
    "text": TextShardedSource,
}


def create_source(config: DatasetConfig | Mapping[str, Any]) -> ShardedDataSource:
    """Return the rows of a dataset as it is configured: `format_callback`, then `format_fields`, then `transforms`.

    Its class is that of the files' format, :class:`FilesShardedSource` where they have several; where rows are
    changed, a :class:`TransformedShardedSource` over it. Text files put their text in `content_field`. Options
    of the tokenizer do not affect a source of rows.

    Args:
        config: a DatasetConfig, or a mapping of its keys.

    Raises:
        ConfigError: a key or value is not allowed.
        NotAvailableError: an option that rows do not follow in this release.
        SourceNotFoundError: an entry of `data_files` matches nothing.
    """
    dataset = section(configuration.DatasetConfig, config, "create_source")
    written = [
        field for field in _FOR_BUILDS if field in dataset.model_fields_set and getattr(dataset, field)
    ]
    if written:
        raise NotAvailableError(
            f"create_source: {', '.join(written)}: these options act in builds only; leave them out, and "
            "filter the rows instead"
        )
    return open_dataset(dataset)


def open_dataset(
    dataset: DatasetConfig, stage: SourceStageConfig | None = None, *, streaming: bool = True
) -> ShardedDataSource:
    """Return the rows of a checked dataset; raises as :func:`create_source`.

    Args:
        stage: limits on records, and the policy of datasets that have none of their own; None: the defaults.
        streaming: read over the network; else files of the Hub are downloaded first.
    """
    if stage is not None:
        dataset = dataset.model_copy(update={"on_bad_record": dataset.on_bad_record or stage.on_bad_record})
    # A function that no other process could find is fine here.
    callback = None if isinstance(dataset.format_callback, str) else dataset.format_callback
    source = resolve_dataset(
        dataset if callback is None else dataset.model_copy(update={"format_callback": None})
    )
    if stage is not None:
        source = replace(source, max_record_bytes=stage.max_record_bytes, max_expansion=stage.max_expansion)
    rows = listed_files(source, streaming=streaming)
    steps = [*([] if callback is None else [callback]), *open_chain(source.texts).steps]
    if not steps:
        return rows
    return TransformedShardedSource(rows, ChainedTransform(steps), on_bad_record=source.on_bad_record)


def listed_files(source: ResolvedSource, *, streaming: bool = True) -> FileBacked:
    """Return the rows of the files of a source, as the class of their format."""
    files = list_inputs(source, hashed=False)
    if source.type == "hub":
        return HuggingFaceShardedSource.over(source, files if streaming else _downloaded(files))
    kinds = {_CLASSES[file.format] for file in files}
    return (kinds.pop() if len(kinds) == 1 else FilesShardedSource).over(source, files)


def expand_data_files(data_files: DataFiles, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the files that entries stand for: absolute paths, or URLs.

    In the order of the entries, sorted within each, every file once. A directory stands for the files in it
    and below whose extensions are known.

    Raises:
        SourceNotFoundError: an entry matches nothing; the message names near matches.
        ConfigError: an argument is not allowed.
    """
    source = _resolved(None, data_files, storage_options, {})
    found: dict[str, None] = {}
    for entry in source.data_files:
        if is_url(entry):
            files = list_inputs(replace(source, data_files=(entry,)), hashed=False)
            found.update(dict.fromkeys(file.url for file in files))
        else:
            found.update(dict.fromkeys(sorted(str(path) for path in expand(entry, None)[1])))
    return list(found)


def _resolved(
    kind: str | None,
    data_files: DataFiles,
    storage_options: Mapping[str, Any] | None,
    more: Mapping[str, Any],
    *,
    on_bad_record: str = "fail",
    where: str | None = None,
    max_record_bytes: int | str = "256MB",
    num_rows: int | None = None,
) -> ResolvedSource:
    """Return what reading needs to know of a source; ConfigError if an argument is not allowed."""
    if where is not None:
        Predicate(where)  # what is wrong with it is said now, not at the first row
    if storage_options is not None and not isinstance(storage_options, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            "storage_options: must be a mapping of option to value (the given value is not shown)"
        )
    fields = {
        "name": "rows",
        "type": kind,
        "data_files": data_files or [],
        "where": where,
        **more,
    }
    dataset = section(configuration.DatasetConfig, {**fields, "on_bad_record": on_bad_record})
    stage = section(configuration.SourceStageConfig, {"max_record_bytes": max_record_bytes})
    source = resolve_source(configuration.PipelineConfig(datasets=(dataset,), source=stage), dataset)
    return replace(
        source,
        num_rows=None if num_rows is None else whole_number("num_rows", num_rows, 0),
        storage_options=dict(storage_options or {}),
    )


def _downloaded(files: list[InputFile], cache_dir: str | None = None) -> list[InputFile]:
    """Return files of the Hub as files of this machine."""
    from tokenlake.sources.hub.reader import downloaded  # other sources start without the Hub's parts

    return downloaded(files, None, cache_dir)

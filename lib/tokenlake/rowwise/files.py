"""Sources whose shards are files.

Files as shards: which there are, what is known of each, and their rows from any one on.

The arguments that all sources of files share, checked.

The rows of one file from a given one on, each with its number.

From a dataset's configuration to its rows.

From patterns to files, without a word on what they hold.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypedDict, Unpack, final, get_args

import numpy as np

from tokenlake import config as configuration
from tokenlake.arrays import Int64s
from tokenlake.config.resolve import resolve_dataset
from tokenlake.config.resolved import ResolvedSource, ResolvedTokenizer, SourceType
from tokenlake.config.sizes import MIB, parse_size
from tokenlake.config.suggestion import did_you_mean
from tokenlake.errors import BadRecordError, ConfigError, NotAvailableError
from tokenlake.rowwise.row_index import (
    RowIndexes,
    Seek,
    is_lines,
    line_rows,
    rows_without_reading,
    seek,
    whole,
)
from tokenlake.rowwise.source import (
    Numbered,
    Row,
    ShardedDataSource,
    ShardInfo,
    TransformedShardedSource,
    beyond,
    check_row,
    index_of,
    without_numbers,
)
from tokenlake.sources.batch import BadRecord, RowBatch, refuse
from tokenlake.sources.inputs import InputFile
from tokenlake.sources.lines import count_lines
from tokenlake.sources.listing import list_inputs
from tokenlake.sources.local.patterns import expand, is_url
from tokenlake.sources.opening import opened
from tokenlake.sources.records import read_rows
from tokenlake.sources.where import Predicate
from tokenlake.text.steps import open_chain
from tokenlake.text.transform import ChainedTransform

if TYPE_CHECKING:
    from tokenlake.config.dataset import DatasetConfig
    from tokenlake.config.stages import SourceStageConfig

DataFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, glob, directory or URL, or several of them."""

BadRecordPolicy = Literal["fail", "quarantine"]


class ReadOptions(TypedDict, total=False):
    """Keywords of every source of files.

    Attributes:
        on_bad_record: ``fail`` (the default: the first bad record is an error) or ``quarantine`` (bad
            records are left out; their numbers stay unused).
        where: one SQL predicate (DuckDB) that rows must meet, such as ``"lang = 'en'"``.
        max_record_bytes: a longer record is a bad one; bytes, or text like "64MB". 256 MB by default.
        num_rows: read at most so many records, good or bad, in the order of the shards.
    """

    on_bad_record: BadRecordPolicy
    where: str | None
    max_record_bytes: int | str
    num_rows: int | None


_NO_TOKENIZER: Final = ResolvedTokenizer(
    name_or_path="",
    add_special_tokens=True,
    max_length=0,
    trust_remote_code=False,
    special_tokens_in_text="literal",
    engine="auto",
)


def wanted_source(
    kind: SourceType | None,
    data_files: DataFiles,
    storage_options: Mapping[str, Any] | None,
    *,
    on_bad_record: BadRecordPolicy = "fail",
    where: str | None = None,
    max_record_bytes: int | str = 256 * MIB,
    num_rows: int | None = None,
) -> ResolvedSource:
    """Return what reading needs to know of a source.

    Raises:
        ConfigError: an argument is none of what is allowed.
    """
    policies = get_args(BadRecordPolicy)
    if on_bad_record not in policies:
        near = did_you_mean(on_bad_record, policies)
        raise ConfigError(f"on_bad_record: got {on_bad_record!r}, must be 'fail' or 'quarantine'{near}")
    if where is not None:
        Predicate(where)  # what is wrong with it is said now, not at the first row
    return ResolvedSource(
        name="rows",
        data_files=file_list(data_files),
        type=kind,
        content_field="text",
        text_mode="document",
        on_bad_record=on_bad_record,
        max_bad_fraction=1.0,
        max_record_bytes=parse_size(max_record_bytes),
        splits=(),
        exclude=None,
        num_rows=_checked_count(num_rows),
        tokenizer=_NO_TOKENIZER,
        where=where,
        storage_options=_checked_options(storage_options),
    )


def file_list(data_files: object) -> tuple[str, ...]:
    """Return the entries of `data_files` as text; ConfigError if it is anything else."""
    if isinstance(data_files, str | os.PathLike):
        return (os.fspath(data_files),)
    if isinstance(data_files, Sequence) and data_files:
        entries: list[Any] = list(data_files)
        if all(isinstance(entry, str | os.PathLike) for entry in entries):
            return tuple(os.fspath(entry) for entry in entries)
    raise ConfigError(
        f"data_files: got {data_files!r}, must be a file, glob, directory or URL, or a list of them"
    )


def _checked_count(num_rows: object) -> int | None:
    if num_rows is None or (isinstance(num_rows, int) and not isinstance(num_rows, bool) and num_rows >= 0):
        return num_rows
    raise ConfigError(f"num_rows: got {num_rows!r}, must be a whole number from 0 on, or None for all")


def _checked_options(options: object) -> dict[str, Any]:
    if options is None:
        return {}
    if isinstance(options, Mapping):
        return dict(options)
    raise ConfigError("storage_options: must be a mapping of option to value (the given value is not shown)")


RowsNumbered = Iterator[tuple[int, dict[str, Any]]]

_SLICE_BYTES: Final = 256 << 10  # of columns that become Python objects at a time: the first row comes soon
_SLICE_ROWS: Final = 1024
END: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the rows of a file are wanted.

    Attributes:
        source: its policy, predicate and limits count; its `content_field` names the only field of text.
        columns: fields to read, None for all.
        shard: name for messages.
        stop: number of the first row not to be read, above that of the first one wanted.
    """

    source: ResolvedSource
    columns: tuple[str, ...] | None
    shard: str
    stop: int = END


def numbered_rows(
    file: InputFile, reading: Reading, start: Seek, row: int
) -> Generator[tuple[int, dict[str, Any]], None, int]:
    """Yield (number, row) from number `row` on; return how many rows there are, at most `reading.stop`.

    Raises:
        BadRecordError: a record from `row` on is bad and the policy is ``fail``; rows before it have come.
        ConfigError: `row` is beyond the end.
        DamagedFileError, InputChangedError: as :func:`tokenlake.sources.records.read_rows`.
    """
    number = start.number
    for batch in _batches(file, reading, start):
        kept, bad, number = _numbers(file, batch, number)
        yield from _judged(reading, batch, kept, bad, row)
        if number >= reading.stop:
            return reading.stop
    if row > number:
        raise beyond(reading.shard, row, number)
    return number


def counted(file: InputFile, source: ResolvedSource, enough: int) -> int:
    """Return how many rows a file has, good or bad, by reading it; some number from `enough` on, if so many."""
    reading = Reading(source=replace(source, where=None), columns=None, shard=file.path)
    count = 0
    for batch in _batches(file, reading, whole(file)):
        count += batch.rows_read
        if count >= enough:
            break
    return count


def _batches(file: InputFile, reading: Reading, start: Seek) -> Iterator[RowBatch]:
    # Bad records are judged here: those before the first row wanted are no matter of who resumes after them.
    source = replace(reading.source, on_bad_record="quarantine")
    for part in start.parts:
        yield from read_rows(part, source, reading.columns, plain=source.content_field)


def _positions_are_numbers(file: InputFile) -> bool:
    return file.format not in ("jsonl", "text")


def _numbers(file: InputFile, batch: RowBatch, number: int) -> tuple[Int64s, Int64s, int]:
    """Return the numbers of the batch's rows and of its bad records, and the number after the batch."""
    bad = np.array([record.position for record in batch.bad], np.int64)
    after = number + batch.rows_read + sum(batch.skipped.values())
    if _positions_are_numbers(file):
        return batch.positions, bad, after
    places = np.sort(np.concatenate([batch.positions, bad, batch.left_out]))
    return number + np.searchsorted(places, batch.positions), number + np.searchsorted(places, bad), after


def _judged(reading: Reading, batch: RowBatch, kept: Int64s, bad: Int64s, row: int) -> RowsNumbered:
    stop = reading.stop
    judged = np.flatnonzero((bad >= row) & (bad < stop)) if reading.source.on_bad_record == "fail" else []
    first_bad = int(judged[0]) if len(judged) else None
    if first_bad is not None:
        stop = int(bad[first_bad])
    at, end = np.searchsorted(kept, [row, stop]).tolist()
    yield from _dicts(batch, kept, range(at, end))
    if first_bad is not None:
        raise _refused(reading, batch.bad[first_bad], batch.file, stop)


def _refused(reading: Reading, record: BadRecord, file: InputFile, number: int) -> BadRecordError:
    error = refuse(replace(record, line=_line(reading, record, file)), file)
    told = f"shard {reading.shard!r}, row {number}: {error}"
    return BadRecordError(told, **error.details, shard=reading.shard, row=number)


def _line(reading: Reading, record: BadRecord, file: InputFile) -> int | None:
    """Return the line of a bad record; far into a local file it was not counted yet."""
    if record.line is not None or not is_lines(file) or not file.is_local:
        return record.line
    with opened(file, reading.source.storage_options) as data:
        return count_lines(data, record.position) + 1


def _dicts(batch: RowBatch, numbers: Int64s, places: range) -> RowsNumbered:
    """Yield (number, row) for the rows at `places` of a batch, some at a time."""
    if batch.objects is not None:
        for place in places:
            yield int(numbers[place]), batch.objects[place]
        return
    rows = batch.rows
    step = max(1, min(_SLICE_ROWS, _SLICE_BYTES * max(len(rows), 1) // max(rows.nbytes, 1)))
    for first in range(places.start, places.stop, step):
        some = slice(first, min(first + step, places.stop))
        part = rows.slice(first, some.stop - first)
        yield from zip(numbers[some].tolist(), part.to_pylist(), strict=True)


@final
class FileShards:
    """The files of a source; a shard is a file, its name the path below the root of the listing.

    Attributes:
        source: what was asked for; `num_rows` counts records, good or bad, in the order of the files.
        files: as they were listed.
        names: of the shards, in order.
    """

    def __init__(
        self, source: ResolvedSource, files: Sequence[InputFile], columns: Sequence[str] | None = None
    ) -> None:
        self.source, self.files = source, tuple(files)
        self.names = tuple(file.path for file in self.files)
        self._columns = None if columns is None else tuple(dict.fromkeys(columns))
        self._places = {name: place for place, name in enumerate(self.names)}
        self._indexes = RowIndexes()
        self._left = [source.num_rows]  # rows that may be read before each shard; grows with what is counted
        self._told: dict[int, int | None] = {}  # what metadata say of a shard's rows
        self._counted: dict[int, int] = {}  # what reading found

    @property
    def every_row(self) -> bool:
        """Whether nothing is left out."""
        return self.source.on_bad_record == "fail" and self.source.where is None

    def info(self, name: str) -> ShardInfo:
        """Return what is known of a shard."""
        index = self._index(name)
        file = self.files[index]
        return ShardInfo(
            name=name,
            index=index,
            url=file.url,
            format=file.format,
            compression=file.compression,
            bytes=file.size,
            rows=self._known_rows(index),
        )

    def rows(self, name: str, row: int) -> RowsNumbered:
        """Return (number, row) from number `row` on."""
        check_row(row)
        return self._rows(self._index(name), row)

    def count(self, name: str) -> int:
        """Return how many rows a shard has, good or bad; reads the file where nothing else tells."""
        return self._count(self._index(name))

    def _index(self, name: str) -> int:
        place = self._places.get(name)
        return index_of(name, self.names) if place is None else place

    def _rows(self, index: int, row: int) -> RowsNumbered:
        file, name, stop = self.files[index], self.names[index], self._stop(index)
        if stop is not None and row >= stop:
            if row > stop:
                raise beyond(name, row, stop)
            return
        reading = Reading(
            source=self.source, columns=self._columns, shard=name, stop=END if stop is None else stop
        )
        start = seek(file, row, self._indexes, self.source.storage_options)
        rows = yield from numbered_rows(file, reading, start, row)
        if rows != stop:  # the end of the file
            self._counted[index] = rows

    def _stop(self, index: int) -> int | None:
        """Return the number of the first row of a shard that `num_rows` leaves out."""
        while len(self._left) <= index:
            left = self._left[-1]
            self._left.append(left and left - self._count(len(self._left) - 1, left))
        return self._left[index]

    def _count(self, index: int, enough: int = END) -> int:
        """Return how many rows a shard has, or `enough`, if it has so many."""
        rows = self._tell(index)
        rows = self._counted.get(index) if rows is None else rows
        if rows is None:
            rows = self._read_count(index, enough)
            if rows < enough:
                self._counted[index] = rows
        return min(rows, enough)

    def _read_count(self, index: int, enough: int) -> int:
        file = self.files[index]
        if is_lines(file):
            return line_rows(file, enough, self._indexes, self.source.storage_options)
        return counted(file, self.source, enough)

    def _tell(self, index: int) -> int | None:
        if index not in self._told:
            self._told[index] = rows_without_reading(self.files[index], self.source.storage_options)
        return self._told[index]

    def _known_rows(self, index: int) -> int | None:
        rows, left = self._tell(index), self.source.num_rows
        if rows is None or left is None:
            return rows
        for before in range(index):
            told = self._tell(before)
            if told is None:
                return None
            left = max(left - told, 0)
        return min(rows, left)


class FileBacked(ShardedDataSource):
    """A source that reads its rows from files; a shard is a file.

    All of these take, after the arguments of their own, the keywords of
    :class:`tokenlake.rowwise.files.ReadOptions`. Opening a source lists its files; it reads none.
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
    from tokenlake.sources.hub.download import downloaded  # other sources start without the Hub's parts

    return downloaded(files, None, cache_dir)


_CLASSES: Final[dict[str, type[FileBacked]]] = {
    "jsonl": JsonShardedSource,
    "json": JsonShardedSource,
    "parquet": ParquetShardedSource,
    "arrow": ArrowShardedSource,
    "csv": CsvShardedSource,
    "tsv": CsvShardedSource,
    "text": TextShardedSource,
}
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


def create_source(config: DatasetConfig | Mapping[str, Any]) -> ShardedDataSource:
    """Return the rows of a dataset as it is configured: `format_callback`, then `format_fields`, then `transforms`.

    Its class is that of the files' format, :class:`FilesShardedSource` where they have several; where rows are
    changed, a :class:`TransformedShardedSource` over it. Text files put their text in `content_field`. What
    concerns the tokenizer is not a source's matter.

    Args:
        config: a DatasetConfig, or a mapping of its keys.

    Raises:
        ConfigError: a key or value is not allowed.
        NotAvailableError: an option that rows do not follow in this release.
        SourceNotFoundError: an entry of `data_files` matches nothing.
    """
    return open_dataset(_checked(config))


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
    steps = open_chain(source.texts).steps
    files = list_inputs(source, hashed=False)
    files = files if streaming or source.type != "hub" else downloaded_first(files)
    kind = HuggingFaceShardedSource if source.type == "hub" else _class_of(files)
    rows = kind.over(FileShards(source, files))
    if callback is None and not steps:
        return rows
    chain = ChainedTransform(steps if callback is None else [callback, *steps])
    return TransformedShardedSource(rows, chain, on_bad_record=source.on_bad_record)


def _checked(config: DatasetConfig | Mapping[str, Any]) -> DatasetConfig:
    dataset = configuration.DatasetConfig
    if isinstance(config, Mapping):
        try:
            config = dataset.model_validate(config)
        except ValueError as error:  # pydantic's, whose messages are in our words
            raise ConfigError(f"create_source: {_told(error)}") from None
    elif not isinstance(config, dataset):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"create_source: got a {type(config).__name__}, must be a DatasetConfig or a mapping of its keys"
        )
    written = [field for field in _FOR_BUILDS if field in config.model_fields_set and getattr(config, field)]
    if written:
        raise NotAvailableError(
            f"create_source: {', '.join(written)}: acts in builds, not on a source of rows; leave it out, "
            "and filter the rows instead"
        )
    return config


def _told(error: Any) -> str:
    return "; ".join(
        f"{'.'.join(map(str, line['loc']))}: {line['msg']}" if line["loc"] else line["msg"]
        for line in error.errors(include_url=False)
    )


def _class_of(files: list[InputFile]) -> type[FileBacked]:
    kinds = {_CLASSES[file.format] for file in files}
    return kinds.pop() if len(kinds) == 1 else FilesShardedSource


def expand_data_files(data_files: DataFiles, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the files that entries stand for: absolute paths, or URLs.

    In the order of the entries, sorted within each, every file once. A directory stands for the files in it
    and below whose extensions are known.

    Raises:
        SourceNotFoundError: an entry matches nothing; the message names near matches.
        ConfigError: an argument is none of what is allowed.
    """
    found: dict[str, None] = {}
    for entry in file_list(data_files):
        found.update(dict.fromkeys(_found(entry, storage_options)))
    return list(found)


def _found(entry: str, storage_options: Mapping[str, Any] | None) -> list[str]:
    if not is_url(entry):
        return sorted(str(path) for path in expand(entry, None)[1])
    source = wanted_source(None, entry, storage_options)
    return [file.url for file in list_inputs(source, hashed=False)]

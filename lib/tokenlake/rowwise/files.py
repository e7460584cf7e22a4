"""Sources whose shards are files of any format, local, at a URL or on the Hub."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Self, TypedDict, Unpack, final

from tokenlake.base.checks import expected, whole_number
from tokenlake.base.threads import in_order
from tokenlake.config.contradictions import raise_problems
from tokenlake.config.dataset import DatasetConfig
from tokenlake.config.formats import FORMATS, Format
from tokenlake.config.pipeline import PipelineConfig
from tokenlake.config.resolve import resolve_source
from tokenlake.config.resolved import ResolvedSource
from tokenlake.config.stages import SourceStageConfig
from tokenlake.config.unsupported import unsupported_options
from tokenlake.errors import (
    ConfigError,
    NotAvailableError,
    NotFoundError,
    SourceError,
    SourceNotFoundError,
)
from tokenlake.etl.export.flat_manifest import FlatManifest
from tokenlake.etl.sources.file_stat import state
from tokenlake.etl.sources.formats import COMPRESSION_ENDINGS, format_of
from tokenlake.etl.sources.input_errors import damaged
from tokenlake.etl.sources.inputs import InputFile, is_url
from tokenlake.etl.sources.listing import (
    each_once,
    list_inputs,
    require_use_of_options,
    spelled_out,
)
from tokenlake.etl.sources.patterns import expand
from tokenlake.etl.sources.split_choice import Survey
from tokenlake.etl.sources.where import Predicate
from tokenlake.etl.text.steps import open_chain
from tokenlake.etl.text.transform import ChainedTransform
from tokenlake.rowwise.file_rows import FileRows, RowIndexes
from tokenlake.rowwise.shards import Numbered, ShardInfo, limited, section
from tokenlake.rowwise.source import (
    NumberedSource,
    ShardedDataSource,
    TransformedShardedSource,
)

DataFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A file, glob, directory or URL, or several of them."""


@final
class DatasetType(StrEnum):
    """Format of the files of a dataset."""

    JSON = "json"
    PARQUET = "parquet"
    CSV = "csv"
    ARROW = "arrow"
    HF = "huggingface"
    TSV = "tsv"
    TXT = "txt"

    @classmethod
    def from_string(cls, value: str) -> DatasetType | str:
        """Return the type with a name, in upper or lower case; else the name itself."""
        for dataset_type in cls:
            if dataset_type == value.lower():
                return dataset_type
        return value

    @classmethod
    def infer_from_path(cls, path: str) -> DatasetType | None:
        """Return the type for the extension of a file, compressed or not.

        It is None if the extension is unknown.
        """
        file_format: Format | None = format_of(path)
        if file_format is None:
            return None
        # Formats whose type has another name.
        names = {"jsonl": "json", "text": "txt"}
        return cls(names.get(file_format, file_format))


class ReadOptions(TypedDict, total=False):
    """Keywords of every source of files.

    Attributes:
        on_bad_record: Policy for bad records. ``fail`` (the default): the first one is
            an error. ``quarantine``: bad records are left out, and their numbers stay
            unused.
        where: SQL predicate (DuckDB) that rows must meet, such as ``"lang = 'en'"``.
        max_record_bytes: Maximum size of a record in bytes, or text like "64MB"; a
            larger one is a bad record. The default is 256 MB.
        num_rows: Maximum number of records to read, good or bad, in the order of the
            shards.
    """

    on_bad_record: Literal["fail", "quarantine"]
    where: str | None
    max_record_bytes: int | str
    num_rows: int | None


class FileBacked(NumberedSource):
    """A source of files, one shard for each.

    The name of a shard is the path of its file below the common folder of all files.

    A shard can also be opened by the full path or URL of its file.

    All these sources take the keywords of :class:`ReadOptions` after their own
    arguments. Opening a source lists its files and reads none. If the names in a folder
    contain splits, the files of train are read; for other splits, give a glob, or use
    :func:`create_source` with `split`.
    """

    _kind: str | None = None  # type of the files; None: by their extensions

    def __init__(
        self,
        data_files: DataFiles,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files."""
        self._open(_resolved(self._kind, data_files, storage_options, **options))

    @classmethod
    def over(cls, source: ResolvedSource, files: Sequence[InputFile]) -> Self:
        """Return a source of files that are already listed."""
        file_source = cls.__new__(cls)
        file_source._open(source, files)
        return file_source

    def _open(
        self,
        source: ResolvedSource,
        files: Sequence[InputFile] | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        """List the files, unless they are given.

        Args:
            source: Settings of reading.
            files: Files of the shards, in order. None for those that the settings name.
            columns: Columns to read. None for all.
        """
        self._settings = source
        indexes = RowIndexes()
        unique_columns: tuple[str, ...] | None = None
        if columns is not None:
            unique_columns = tuple(dict.fromkeys(columns))
        if files is None:
            files = list_inputs(source, hashed=False)
        self._files = [
            FileRows(file, source, unique_columns, indexes) for file in files
        ]
        self._names = tuple(file.path for file in files)
        # Number of rows that may be read of each shard and all after it. It grows as
        # shards are counted.
        self._rows_left = [source.num_rows]

    @property
    def every_row(self) -> bool:
        return self._settings.on_bad_record == "fail" and self._settings.where is None

    @property
    def versions(self) -> Sequence[tuple[str, int, str]]:
        versions: list[tuple[str, int, str]] = []
        for rows in self._files:
            versions.append((rows.file.url, rows.file.size, rows.file.token))
        return versions

    def _index(self, name: str) -> int:
        """Return the index of a shard.

        The shard is named by its name, or by the full path or URL of its file.
        """
        if name not in self._places:
            url = name
            if not is_url(name):
                url = os.path.abspath(os.path.expanduser(name))  # noqa: PTH100, PTH111 (keeps symlinks)
            if url in self._index_by_url:
                return self._index_by_url[url]
        return super()._index(name)

    @cached_property
    def _index_by_url(self) -> dict[str, int]:
        """Index of each shard, by the path or URL of its file."""
        return {rows.file.url: index for index, rows in enumerate(self._files)}

    def get_shard_info(self, shard_name: str) -> ShardInfo:
        index = self._index(shard_name)
        file = self._files[index].file
        num_rows = self._settings.num_rows
        if num_rows is None:
            rows = self._files[index].known
        else:
            # `num_rows` is a limit of all shards together: the rows of the shards
            # before this one count.
            known_rows = [file_rows.known for file_rows in self._files[: index + 1]]
            rows = limited(known_rows, num_rows)
        return ShardInfo(
            name=self._names[index],
            index=index,
            url=file.url,
            format=file.format,
            compression=file.compression,
            bytes=file.size,
            rows=rows,
        )

    @property
    def pad_token_id(self) -> int | None:
        """Padding token that the flat directory of tokens records; else None.

        All folders must record the same token.
        """
        # Only flat directories of this machine have a manifest beside their files.
        folders: set[Path] = set()
        for rows in self._files:
            if rows.file.is_local:
                folders.add(Path(rows.file.url).parent)
        try:
            pad_ids = {FlatManifest.of(folder).pad_token_id for folder in folders}
        except NotFoundError:
            return None
        if len(pad_ids) != 1:
            return None
        return pad_ids.pop()

    def count_rows(self, shard_name: str) -> int:
        """Return the number of rows of a shard, good or bad.

        The shard is read only if the number is not known.
        """
        return self._files[self._index(shard_name)].count()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._settings.data_files)!r}, shards={self.num_shards()})"

    def _rows(self, index: int, row: int) -> Numbered:
        # With `num_rows`, the rows of the shards before this one are counted.
        while len(self._rows_left) <= index:
            rows_left = self._rows_left[-1]
            if rows_left:
                rows_left -= self._files[len(self._rows_left) - 1].count(rows_left)
            self._rows_left.append(rows_left)
        yield from self._files[index].rows(row, self._rows_left[index])


@final
class ParquetShardedSource(FileBacked):
    """Parquet files.

    Opening at a row decodes its row group and those after it, none before.
    """

    def __init__(
        self,
        data_files: DataFiles,
        storage_options: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files.

        Args:
            data_files: File, glob, directory or URL, or several of them.
            storage_options: Options of the file system of URLs.
            columns: Columns to read, None for all.
            options: Keywords of :class:`ReadOptions`.
        """
        if columns is not None and (isinstance(columns, str) or not columns):
            raise expected(
                "columns", columns, "a list of names, or None for all columns"
            )
        source = _resolved("parquet", data_files, storage_options, **options)
        self._open(source, columns=columns)


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
            data_files: File, glob, directory or URL, or several of them.
            storage_options: Options of the file system of URLs.
            jsonl: Whether every file has one object per line. If false, the beginning
                of each file decides whether it has, or is an array of objects.
            options: Keywords of :class:`ReadOptions`.
        """
        file_type = "jsonl" if jsonl else "json"
        self._open(_resolved(file_type, data_files, storage_options, **options))


@final
class ArrowShardedSource(FileBacked):
    """Arrow IPC files and streams."""

    _kind = "arrow"


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
        """List the files.

        Args:
            data_files: File, glob, directory or URL, or several of them.
            storage_options: Options of the file system of URLs.
            delimiter: Character between cells. The comma, which is the default, is a
                tab in ``.tsv`` files.
            options: Keywords of :class:`ReadOptions`.
        """
        # A comma is the default, which in a `.tsv` file means a tab.
        fields = {"delimiter": None if delimiter == "," else delimiter}
        self._open(_resolved("csv", data_files, storage_options, fields, **options))


@final
class TextShardedSource(FileBacked):
    """Text files, line by line or as a whole.

    Every line that is not empty is a row, or every file (``text_mode="document"``).
    """

    def __init__(
        self,
        data_files: DataFiles,
        storage_options: Mapping[str, Any] | None = None,
        text_field: str = "text",
        *,
        text_mode: Literal["lines", "document"] = "lines",
        **options: Unpack[ReadOptions],
    ) -> None:
        """List the files.

        Args:
            data_files: File, glob, directory or URL, or several of them.
            storage_options: Options of the file system of URLs.
            text_field: Field of a row for the text, which is without its end of line.
            text_mode: Unit of a row: ``lines`` or ``document``.
            options: Keywords of :class:`ReadOptions`.
        """
        fields = {"content_field": text_field, "text_mode": text_mode}
        self._open(_resolved("txt", data_files, storage_options, fields, **options))


@final
class HuggingFaceShardedSource(FileBacked):
    """A dataset on the Hub.

    Its commit is that of its branch when the source is opened.
    """

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
            dataset_name: Id of the dataset, ``org/name``.
            split: Split to read.
            subset: Subset of the dataset. None for its default.
            streaming: Whether files are read over the network and not stored. If false,
                they are downloaded first.
            cache_dir: Folder of downloaded files. None for the cache of
                `huggingface_hub`.
            options: Keywords of :class:`ReadOptions`.
        """
        if streaming and cache_dir is not None:
            raise expected(
                "cache_dir",
                cache_dir,
                "None with streaming=True; set streaming=False to download",
            )
        fields = {"split": split, "subset": subset}
        source = _resolved("hf", dataset_name, None, fields, **options)
        # The listing pins the commit, which all later reads use.
        files = list_inputs(source, hashed=False)
        if not streaming:
            files = downloaded(files, source.storage_options, cache_dir)
        self._open(source, files)


@final
class FilesShardedSource(FileBacked):
    """Files of any format. The extension of a file decides how it is read."""


def _known_endings() -> tuple[str, ...]:
    """Return the endings of names of files.

    No id of a dataset on the Hub has one of them.
    """
    endings: list[str] = []
    for file_format in FORMATS.values():
        endings += [
            *file_format.extensions,
            *file_format.prose,
            *COMPRESSION_ENDINGS.values(),
        ]
    return tuple(endings)


_ENDINGS: Final = _known_endings()
_HUB_ID: Final = re.compile(r"[\w-]+/[\w.-]+(@[\w./-]+)?")

# Class of a source by the format of its files.
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
    """Return the rows of a dataset.

    Its `format_callback`, `format_fields` and `transforms` are applied, in this order.

    The class of the source is that of the files' format, or :class:`FilesShardedSource`
    for several formats. If rows are changed, it is a :class:`TransformedShardedSource`
    over it. An entry ``org/name`` that is not a local file is looked up on the Hub.
    Each line of a text file that is not empty is a row, with the text in
    `content_field`; with ``text_mode="document"``, each file is a row. Options of the
    tokenizer do not affect a source of rows.

    Args:
        config: Configuration of the dataset, or mapping of its keys.

    Raises:
        ConfigError: A key or value is not allowed.
        NotAvailableError: An option is set that acts in builds and pipelines only.
        SourceNotFoundError: An entry of `data_files` matches nothing.

    Example:
        >>> import tokenlake as tl
        >>> source = tl.create_source({"data_files": "data/books/*.jsonl", "where": "length(text) > 500"})
        >>> row = next(iter(source))
        >>> sorted(row), row["text"][:8]
        (['lang', 'text'], 'books 5.')
    """
    pipeline = PipelineConfig(
        datasets=(section(DatasetConfig, config, "create_source"),)
    )
    # Options that act in builds and pipelines only are errors here.
    raise_problems(
        NotAvailableError, unsupported_options(pipeline, "source", ("datasets",))
    )
    return open_dataset(pipeline, pipeline.datasets[0])


def open_dataset(config: PipelineConfig, dataset: DatasetConfig) -> ShardedDataSource:
    """Return the rows of a dataset of a checked configuration.

    Errors are those of :func:`create_source`.

    Files of the Hub are downloaded first, unless the configuration and its section
    `source` stream.

    Args:
        config: Configuration.
        dataset: Dataset of it.
    """
    # A callback that is a function is applied here, and need not be importable by name.
    callback = dataset.format_callback
    if isinstance(callback, str):
        callback = None
    if callback is not None:
        dataset = dataset.model_copy(update={"format_callback": None})
    source, files = _listed(resolve_source(config, with_lines(dataset)))

    # A default `text_mode` is no error with files of other formats, but a written one
    # is.
    has_lines = dataset.text_mode == "lines" and "text_mode" in dataset.model_fields_set
    require_use_of_options(
        source.name,
        files,
        delimiter=source.delimiter,
        text_mode=dataset.text_mode if has_lines else None,
    )

    # The class of the source, and its rows.
    classes = {_CLASSES[file.format] for file in files}
    source_class = classes.pop() if len(classes) == 1 else FilesShardedSource
    if source.type == "hub":
        source_class = HuggingFaceShardedSource
        is_streaming = config.streaming and config.source.streaming
        if not is_streaming:
            files = downloaded(files, source.storage_options)
    rows = source_class.over(source, files)

    # The steps over the rows. Without any the source has no wrapper.
    steps = list(open_chain(source.texts).steps)
    if callback is not None:
        steps.insert(0, callback)
    if not steps:
        return rows
    return TransformedShardedSource(
        rows, ChainedTransform(steps), on_bad_record=source.on_bad_record
    )


def _listed(source: ResolvedSource) -> tuple[ResolvedSource, Sequence[InputFile]]:
    """Return a source and its files.

    If no file matches, ids ``org/name`` are looked up on the Hub.

    Raises:
        SourceNotFoundError: Neither this machine nor the Hub has the files.
    """
    try:
        return source, list_inputs(source, hashed=False)
    except SourceNotFoundError as missing:
        if source.type is not None:
            raise
        # Only if every entry may be such an id: a missing file is no dataset.
        for entry in source.data_files:
            if _HUB_ID.fullmatch(entry) is None or entry.endswith(_ENDINGS):
                raise
        hub_source = replace(source, type="hub")
        try:
            return hub_source, list_inputs(hub_source, hashed=False)
        except SourceError as error:
            raise SourceNotFoundError(
                f"{missing} It is not a readable dataset of the Hub either: {error}"
            ) from error


def with_lines(dataset: DatasetConfig) -> DatasetConfig:
    """Return a dataset whose text files are read line by line.

    A dataset that sets `text_mode` is returned unchanged. Lines are the default of
    rows; the default of a build is one document for each file.
    """
    if "text_mode" in dataset.model_fields_set:
        return dataset
    return dataset.model_copy(update={"text_mode": "lines"})


def expand_data_files(
    data_files: DataFiles, storage_options: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the files that entries match, as absolute paths or URLs, each once.

    They are in the order of the entries, and sorted within each entry. A directory
    matches all files in it and below it with known extensions.

    Args:
        data_files: File, glob, directory or URL, or several of them.
        storage_options: Options of the file system of URLs.

    Raises:
        SourceNotFoundError: An entry matches nothing. The message names near matches.
        ConfigError: An argument is not allowed.
    """
    source = _resolved(None, data_files, storage_options)
    paths: dict[str, None] = {}  # in order, each once
    for entry in spelled_out(source.data_files):
        if is_url(entry):
            listed_files = list_inputs(
                replace(source, data_files=(entry,)), hashed=False, select=Survey()
            )
            paths.update(dict.fromkeys(file.url for file in listed_files))
        else:
            paths.update(dict.fromkeys(sorted(expand(entry, None)[1])))
    # Links to the same file count once.
    local_paths = set(each_once(path for path in paths if not is_url(path)))
    return [path for path in paths if is_url(path) or path in local_paths]


def _resolved(
    kind: str | None,
    data_files: DataFiles,
    storage_options: Mapping[str, Any] | None,
    dataset_fields: Mapping[str, Any] | None = None,
    *,
    on_bad_record: str = "fail",
    where: str | None = None,
    max_record_bytes: int | str = "256MB",
    num_rows: int | None = None,
) -> ResolvedSource:
    """Return the settings of reading.

    Args:
        kind: Type of the files, as a configuration writes it. None for the type by
            their extensions.
        data_files: File, glob, directory or URL, or several of them.
        storage_options: Options of the file system of URLs.
        dataset_fields: Further keys of a dataset of the configuration.
        on_bad_record: Keyword of :class:`ReadOptions`.
        where: Keyword of :class:`ReadOptions`.
        max_record_bytes: Keyword of :class:`ReadOptions`.
        num_rows: Keyword of :class:`ReadOptions`.

    Raises:
        ConfigError: An argument is not allowed.
    """
    if where is not None:
        Predicate(where)  # raises now, and not at the first row
    if storage_options is not None and not isinstance(storage_options, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            "storage_options: must be a mapping of option to value (yours is not shown)"
        )
    # A dataset of a configuration has nearly all of these options, and checks them.
    fields = {
        "name": "rows",
        "type": kind,
        "data_files": data_files or [],
        "where": where,
        "on_bad_record": on_bad_record,
        **(dataset_fields or {}),
    }
    dataset = with_lines(section(DatasetConfig, fields))
    stage = section(SourceStageConfig, {"max_record_bytes": max_record_bytes})
    source = resolve_source(PipelineConfig(datasets=(dataset,), source=stage), dataset)
    # A configuration has no dataset of 0 rows, but a source of rows may be empty.
    max_rows: int | None = None
    if num_rows is not None:
        max_rows = whole_number("num_rows", num_rows, 0)
    return replace(
        source, num_rows=max_rows, storage_options=dict(storage_options or {})
    )


def downloaded(
    files: Iterable[InputFile],
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | Path | None = None,
) -> list[InputFile]:
    """Return files of the Hub as local files.

    Their identity stays the same; `url` and `stat` are those of the copies. A file that
    is already in the cache of `huggingface_hub` is not downloaded again.

    Args:
        files: Files of the Hub.
        storage_options: Options of the source, with its token and endpoint.
        cache_dir: Folder of the files. None for the cache of `huggingface_hub`.

    Raises:
        DamagedFileError: A copy does not have the recorded size and hash.
        SourceError: A download failed.
    """
    # Other sources start without the Hub's parts.
    from tokenlake.etl.sources.hub_client import HubClient
    from tokenlake.etl.sources.hub_id import parse_url

    client = HubClient(storage_options)

    def local_copy(file: InputFile) -> InputFile:
        # A copy in the cache may be of an interrupted or changed download.
        path = client.download(*parse_url(file.url), cache_dir)
        file_status = path.stat()
        token = _hub_token_of(path, is_git=file.token.startswith("git:"))
        if file_status.st_size != file.size or token != file.token:
            raise damaged(
                file,
                f"its copy {str(path)!r} has {file_status.st_size} bytes and {token}, planned were {file.size} and "
                f"{file.token}; delete the copy and run again",
            )
        return replace(file, url=str(path), stat=state(file_status))

    return list(in_order(local_copy, list(files), _DOWNLOADS))


def _hub_token_of(path: Path, *, is_git: bool) -> str:
    """Return the hash of a file as the Hub records it.

    It is that of Git for small files, else SHA-256.
    """
    if is_git:
        # Git hashes a header with the length, and the content after it.
        content = path.read_bytes()
        header = b"blob %d" % len(content) + bytes(1)
        return f"git:{hashlib.sha1(header + content).hexdigest()}"
    with path.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


_DOWNLOADS: Final = 4  # number of files that are downloaded at once
